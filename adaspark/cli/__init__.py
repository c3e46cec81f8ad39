"""The command line, ``adaspark-run``."""

from adaspark.cli.app import main

__all__ = ["main"]
