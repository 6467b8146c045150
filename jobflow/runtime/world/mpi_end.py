"""Finalization of MPI at the exit of a rank's interpreter, but not of a forked child's.

By default mpi4py finalizes MPI at the exit of both processes.  Finalization in a child would end MPI for the rank as well, because the child
shares its sockets and the memory shared with other ranks.
"""

from __future__ import annotations

import os
import sys
from typing import Any

#: the attribute of `sys` that holds the object which finalizes MPI
_NAME = "_ends_mpi_of_jobflow"


class _Last:
    """An object that the interpreter deletes last, when no code of the program can read MPI's memory any more.

    `__del__` uses attributes only, because modules are empty by then.
    """

    def __init__(self, mpi: Any) -> None:
        self.rank = os.getpid()
        self.process = os.getpid
        self.mpi_has_ended = mpi.Is_finalized
        self.mpi_has_begun = mpi.Is_initialized
        self.end = mpi.Finalize

    def __del__(self) -> None:
        if self.process() == self.rank and self.mpi_has_begun() and not self.mpi_has_ended():
            self.end()


def leave_to_us(settings: Any) -> None:
    """Configure mpi4py not to finalize MPI; it reads its settings at the first import of mpi4py.MPI."""
    settings.finalize = False


def ends_with_interpreter(mpi: Any) -> None:
    """Finalize MPI at the exit of this process's interpreter, if MPI is initialized then."""
    setattr(sys, _NAME, _Last(mpi))


def is_ours() -> bool:
    """Return True if this module finalizes MPI instead of mpi4py."""
    return hasattr(sys, _NAME)
