"""MPI ends with the interpreter of a rank, and not with that of a child by fork.

mpi4py, left to itself, ends MPI where either of the two ends: in a child that is the end of MPI for the rank as well, of which the child has the
sockets and the memory that is shared with other ranks.
"""

from __future__ import annotations

import os
import sys
from typing import Any

#: the attribute of `sys` that keeps what ends MPI
_NAME = "_ends_mpi_of_jobflow"


class _Last:
    """What the interpreter lets go of last: nothing of the program runs any more that could read memory of MPI's.

    All that `__del__` needs is its own, for modules are empty by then.
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
    """Have mpi4py, which reads its settings when mpi4py.MPI is imported first, not end MPI."""
    settings.finalize = False


def ends_with_interpreter(mpi: Any) -> None:
    """MPI ends when the interpreter of this process does, if it has begun by then."""
    setattr(sys, _NAME, _Last(mpi))


def is_ours() -> bool:
    """Whether this is so, and mpi4py does nothing of the kind."""
    return hasattr(sys, _NAME)
