"""Shadows: half-precision copies of variables, which the updates of a program write and its next run reads.

A shadow is current after a complete run of the program that writes it.  Any other write of the variable makes it out of date: a checkpoint, values
of the user, another program, or a run that failed.  The state of the rank has a record of the current shadows, and every write removes its variable
from the record (`State.wrote`).  Before a run, the shadows that are out of date are cast.  These calls precede the captured graph.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from jobflow.kernels import registry
from jobflow.kernels.target import Target
from jobflow.ops.op import Call
from jobflow.ops.scalar import Cast
from jobflow.plan.plan import Compute, Plan
from jobflow.runtime.device.device import Device, memory_of
from jobflow.runtime.variable_buffers import State, window


class Shadows:
    """The shadows that a program on one rank reads, and the variables that it writes."""

    def __init__(self, plan: Plan, state: State, device: Device, target: Target) -> None:
        self._state = state
        with memory_of(f"job {plan.job}: half-precision copies of variables"):
            self.buffers = {slot.buffer: state.shadow_buffer(slot.buffer) for slot in plan.shadows.values()}
        names: dict[str, set[str]] = {}
        for name, slot in plan.shadows.items():
            names.setdefault(slot.buffer, set()).add(name)
        #: the current shadows of a buffer, and the shadows that the program reads in it
        self._records = [(state.current_shadows.setdefault(buffer, set()), read) for buffer, read in names.items()]
        self._casts: dict[str, list[Call]] = {}
        for name, slot in plan.shadows.items():
            device.begin_instruction()
            variable, shadow = plan.variables[name], self.buffers[slot.buffer]
            arrays = [window(device.xp, state.buffers[variable.buffer], variable)], [window(device.xp, shadow, slot)]
            self._casts[name] = list(registry.bind(Cast(slot.type.dtype), target, device, *arrays))
        #: variables that the program writes; on CPUs, variables have no shadows
        self._written = frozenset((*plan.shadows, *_written(plan))) if device.tag == "gpu" else frozenset()

    def begin(self) -> None:
        """Cast the variables whose shadows are out of date; until the run is complete, no shadow of a variable that it writes is current.

        After the run, the shadows of these variables in another half-precision type are out of date.
        """
        for current, read in self._records:
            for name in sorted(read - current):
                for function, arguments in self._casts[name]:
                    function(*arguments)
        self._state.wrote(self._written)

    def complete(self) -> None:
        """Record the shadows of the program as current, after a complete run."""
        for current, read in self._records:
            current |= read


def _written(plan: Plan) -> Iterator[str]:
    """Iterate over the names of the variables that the plan writes."""
    starts: dict[str, list[tuple[int, str]]] = {}
    for name, slot in plan.variables.items():
        starts.setdefault(slot.buffer, []).append((slot.offset, name))
    for known in starts.values():
        known.sort()
    for instruction in plan.epilogue:
        for slot in instruction.outputs if isinstance(instruction, Compute) else ():
            known = starts.get(slot.buffer, [])
            for _, name in known[max(bisect_left(known, (slot.offset, "")) - 1, 0) :]:
                if plan.variables[name].offset >= slot.stop:
                    break
                if plan.variables[name].stop > slot.offset:
                    yield name
