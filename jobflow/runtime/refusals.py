"""Values that a check of a run has refused, and the error that all ranks raise together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jobflow.core.errors import JobflowError, SourceLine
from jobflow.ops.checked import Checked
from jobflow.plan.plan import Compute, Instruction
from jobflow.runtime.device.device import Device


class Refusal(NamedTuple):
    """What a check of one rank has found wrong."""

    #: the number of the last communication before it; -1: none
    before: int
    #: which rank of the world
    rank: int
    error: type[JobflowError]
    text: str


class Note:
    """What a check on a GPU writes down, for the host to read at the end of the body."""

    def __init__(self, op: Checked, instruction: Compute, device: Device) -> None:
        self.op = op
        self.instruction = instruction
        (slot,) = instruction.inputs
        self.at = device.allocate(8).view("int64")
        self.value = device.allocate(slot.type.dtype.itemsize).view(slot.type.dtype.numpy)

    def refusal(self, device: Device) -> JobflowError | None:
        at = int(device.to_host(self.at)[0])
        if not at:
            return None
        return self.op.refusal(device.to_host(self.value)[0].item(), at - 1, self.instruction.inputs[0].type.shape)


def checks(body: Sequence[Instruction]) -> bool:
    """Whether anything in the body of a plan is checked."""
    return any(isinstance(instruction, Compute) and isinstance(instruction.op, Checked) for instruction in body)


def refusal(body: Sequence[Instruction], instruction: Compute, rank: int, error: JobflowError) -> Refusal:
    """What `instruction` of this body has refused on a rank."""
    at = next(i for i, other in enumerate(body) if other is instruction)
    before = max((other.order for other in body[:at] if not isinstance(other, Compute)), default=-1)
    return Refusal(before, rank, type(error), located(error, instruction.where))


def located(error: JobflowError, where: SourceLine) -> str:
    """Its text with the user's line behind the first word."""
    word, _, rest = str(error).partition(":")
    return f"{word} at {where}:{rest}"


def raise_first(everywhere: Sequence[Refusal | None]) -> None:
    """Raise what the ranks refused first, if they did; the same on all of them, who can all go on.

    Ranks communicate in one order: of two errors the one before which there was less of it cannot come of the other.
    """
    first = min((one for one in everywhere if one is not None), key=lambda one: one[:2], default=None)
    if first is not None:
        error = first.error(f"{first.text}{f' (on rank {first.rank})' if len(everywhere) > 1 else ''}")
        error.everywhere = True
        raise error
