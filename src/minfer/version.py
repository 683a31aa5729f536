"""The version of the package, which the build reads, too. Nothing else stands here, so that anything may import it."""

__version__ = "0.2.0.dev0"
