"""Stands for pip: `fake_pip.py BEHAVIOUR FILE download ... --dest DIR REQUIREMENT`.

deliver WHEEL     copies the wheel to DIR, and notes the call in WHEEL.log
words TEXT        says TEXT on its standard error, and fails
hang FIFO         leaves half a wheel and says its process id on FIFO, and unless it is ended, that it has survived
index DIR         copies DIR/NAME.whl for the requirement NAME==VERSION, and notes the requirement in DIR/log
gate FIFO:WHEEL   delivers as soon as something is written to FIFO
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path


def main(behaviour: str, argument: str, *pip_arguments: str) -> int:
    if pip_arguments[0] != "download" or "--no-deps" not in pip_arguments:
        return 2
    destination = Path(pip_arguments[pip_arguments.index("--dest") + 1])
    if behaviour == "words":
        sys.stderr.write(argument)
        return 1
    if behaviour == "hang":
        with tempfile.NamedTemporaryFile(suffix=".whl", delete=False) as half, open(argument, "w") as fifo:
            half.write(b"PK")
            half.flush()
            fifo.write(f"{os.getpid()}\n")
            fifo.flush()
            time.sleep(60)
            fifo.write("survived\n")
        return 0
    if behaviour == "index":
        with open(Path(argument) / "log", "a") as log:
            log.write(f"{pip_arguments[-1]}\n")
        destination.mkdir(parents=True)
        shutil.copy(Path(argument) / f"{pip_arguments[-1].partition('==')[0]}.whl", destination)
        return 0
    if behaviour == "gate":
        fifo_name, _, argument = argument.partition(":")
        Path(fifo_name).read_text()
    with open(argument + ".log", "a") as log:
        log.write("called\n")
    destination.mkdir(parents=True)
    shutil.copy(argument, destination)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
