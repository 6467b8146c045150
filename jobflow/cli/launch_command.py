"""`jobflow launch`: start a program as several ranks; the same as `python -m jobflow.distributed.launch`."""

from __future__ import annotations

import argparse

from jobflow.distributed.launch import command, fill

__all__ = ["fill", "run"]


def run(given: argparse.Namespace) -> int:
    """Start the ranks and wait for them; the exit code of the first that failed."""
    return command(given)
