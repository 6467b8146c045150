"""Arguments that a plan reads in the caller's memory, without a copy."""

from __future__ import annotations

from jobflow.core.types import Array
from jobflow.ops.op import Call
from jobflow.plan.plan import Compute, Slot


class ReboundArgument:
    """An argument that is read without a copy, and the calls that read it."""

    def __init__(self, slot: Slot, own: Array) -> None:
        self.slot = slot
        #: memory for a copied argument
        self.own = own
        #: the address in the prepared calls
        self.start: int = own.__array_interface__["data"][0]
        #: (list of calls, first, stop, instruction) of each reader
        self.readers: list[tuple[list[Call], int, int, Compute]] = []
