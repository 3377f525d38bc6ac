"""The `fm3` command."""

from fm3_runtime.cli.app import main

__all__ = ["main"]
