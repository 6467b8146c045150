"""A program that prints when MPI is finalized, which must be after all code of the program."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import jobflow as flow

total = flow.ones(4, placement=flow.placement.all("cpu"), sbp=flow.sbp.split(0)).sum().item()
last = sys._ends_mpi_of_jobflow  # type: ignore[attr-defined]


def ends(end: Callable[[], None] = last.end, write: Callable[[int, bytes], int] = os.write) -> None:
    end()
    write(2, b"MPI has ended\n")


last.end = ends
del last
