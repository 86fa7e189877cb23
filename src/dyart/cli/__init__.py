"""The command line: one thin command per verb."""

from dyart.cli.main import main

__all__ = ["main"]
