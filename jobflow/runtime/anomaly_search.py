"""Detection of NaN in a program, and the search for the instruction that computes it first.

After the body of a run, NaN is searched in the values that leave the body: results, and gradients that updates read.  NaN in other values has no
effect.  If there is NaN, the body runs again with the same arguments, and the outputs of each instruction are searched.  Variables have not changed
yet, so the instructions compute the same values again.

A search of every output in every run would read each activation once more, which costs a third of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

import numpy as np

from jobflow.core.errors import JobError
from jobflow.core.types import Array
from jobflow.kernels.half import is_half
from jobflow.ops.op import Call
from jobflow.plan.plan import Collective, Completion, Compute, Instruction, Plan, Slot, Transfer, Wait
from jobflow.runtime.device.cuda_device import CudaDevice
from jobflow.runtime.device.device import Device
from jobflow.runtime.failed_assertions import FailedAssertion

#: the name of a phase in messages
_PASS = {"forward": "in the forward pass", "backward": "in the backward pass", "update": "in the update"}


class AnomalySearch:
    """The search for NaN in one bound plan; `view(slot)` returns the array of a slot."""

    def __init__(self, plan: Plan, device: Device, view: Callable[[Slot], Array]) -> None:
        self._plan, self._device, self._view = plan, device, view
        self._leaving = self._search(_leaving(plan))

    def occurs(self) -> bool:
        """Return True if a value that leaves the body contains NaN."""
        return self._leaving()[0]

    def first(self, calls: Iterable[tuple[Instruction, Call]], rank: int) -> FailedAssertion | None:
        """Run the calls of the body, and return the error of the first instruction whose outputs contain NaN; None if there is none.

        The caller has copied the arguments to the rank again.  All ranks call this method together, because the body communicates.
        """
        named = [(f'variable "{name}"', slot) for name, slot in self._plan.variables.items()]
        named += [(f'argument "{feed.name}"', feed.slot) for feed in self._plan.feeds]
        spoiled = [f"{name} contains NaN before the run" for name, slot in named if self._search([slot])()[0]]
        if spoiled:
            text = f"job {self._plan.job}: {', '.join(spoiled)}; no variable has changed; check the data and earlier steps"
            failure: FailedAssertion | None = FailedAssertion(-1, rank, JobError, text)
        else:
            failure = None
        infinite, before = "", -1
        for _, group in groupby(calls, lambda each: id(each[0])):
            (instruction, _), *_ = prepared = list(group)
            for _, (function, values) in prepared:
                function(*values)
            before = before if isinstance(instruction, Compute) else instruction.order  # received NaN is from another rank
            if failure is None:
                nan, infinity = self._search(list(_written(instruction)))()
                if nan:
                    failure = FailedAssertion(before, rank, JobError, self._text(instruction, infinite))
                elif infinity and not infinite:
                    infinite = f"; infinity came first from {instruction.name} at {instruction.where}"
        return failure

    def _text(self, instruction: Instruction, infinite: str) -> str:
        phase = _PASS[getattr(instruction, "phase", "forward")]
        types = ", ".join(str(slot.type) for slot in _written(instruction))
        return (
            f"{instruction.name} at {instruction.where}: NaN in the result {types}, {phase} of job {self._plan.job}{infinite}; "
            "no variable has changed; check the operands of this operation and the learning rate"
        )

    def _search(self, slots: Sequence[Slot]) -> Callable[[], tuple[bool, bool]]:
        return _search(self._device, [self._view(slot) for slot in slots if slot.type.dtype.is_float])


def _search(device: Device, arrays: Sequence[Array]) -> Callable[[], tuple[bool, bool]]:
    """Return a function that returns (True if an array contains NaN, True if an array contains infinity)."""
    if isinstance(device, CudaDevice):
        return _GpuSearch(device, arrays)
    return lambda: _search_host(arrays)


def _search_host(arrays: Sequence[Array]) -> tuple[bool, bool]:
    wide = [array.astype(np.float32) if is_half(array) else array for array in arrays]
    return any(bool(np.isnan(array).any()) for array in wide), any(bool(np.isinf(array).any()) for array in wide)


class _GpuSearch:
    """The search in arrays of a GPU: one launch, and a copy of two numbers, for which the host waits."""

    def __init__(self, device: CudaDevice, arrays: Sequence[Array]) -> None:
        from jobflow.kernels.cuda.anomaly_kernels import anomaly_search

        self._device = device
        self._flags = device.constant(np.zeros(2, np.int64))
        self._host = device.host_array(2, "int64")
        self._call = anomaly_search(device.index, arrays, self._flags, device.constant)

    def __call__(self) -> tuple[bool, bool]:
        if self._call is None:
            return False, False
        self._flags.fill(0)
        function, arguments = self._call
        function(*arguments)
        self._device.fetch(self._flags, self._host)
        return bool(self._host[0]), bool(self._host[1])


def _leaving(plan: Plan) -> list[Slot]:
    """Return the slots of values that leave the body: operands of the epilogue, and outputs that the epilogue does not write."""
    written: list[Slot] = []
    leaving: list[Slot] = []
    for instruction in plan.epilogue:
        leaving += [slot for slot in _read(instruction) if not _overlaps(slot, written)]
        written += _written(instruction)
    leaving += [slot for _, slot in plan.fetches if not _overlaps(slot, written)]
    return list(dict.fromkeys(slot for slot in leaving if slot.buffer in plan.buffers))


def _overlaps(slot: Slot, others: Iterable[Slot]) -> bool:
    return any(slot.buffer == other.buffer and slot.offset < other.stop and other.offset < slot.stop for other in others)


def _read(instruction: Instruction) -> Iterator[Slot]:
    match instruction:
        case Compute(_, inputs, _):
            yield from inputs
        case Collective():
            yield instruction.input
        case Transfer(_, sends, slot):
            yield from (slot,) if sends else ()


def _written(instruction: Instruction) -> Iterator[Slot]:
    match instruction:
        case Compute(_, _, outputs):
            yield from outputs
        case Collective():
            yield from () if instruction.concurrent else (instruction.output,)
        case Completion():
            yield instruction.output
        case Wait(_, sends, slot):
            yield from () if sends else (slot,)
