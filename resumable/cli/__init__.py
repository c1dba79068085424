"""The command line: one file per command."""

from resumable.cli.main import main

__all__ = ["main"]
