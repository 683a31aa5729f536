"""`python -m minfer` is the command `minfer`."""

from minfer.cli.main import main

if __name__ == "__main__":
    main()
