"""Variables of one rank: flat buffers that outlive the runs of jobs, laid out as `plan.storage` says."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from jobflow.graph.ir import Variable
from jobflow.ops import half
from jobflow.ops.base import types_tuple
from jobflow.plan.plan import Slot
from jobflow.plan.storage import place_variables
from jobflow.runtime.arrays import window
from jobflow.runtime.device.base import Device
from jobflow.types import Array, TensorType


class State:
    """The variables that `rank` holds a part of."""

    def __init__(self, rank: int, device: Device) -> None:
        self.rank = rank
        self.device = device
        self.buffers: dict[str, Array] = {}
        self.slots: dict[str, Slot] = {}
        self.variables: dict[str, Variable] = {}

    def declare(self, variables: Iterable[Variable]) -> None:
        """Give memory and a first value to every variable that is new."""
        new = [v for v in variables if v.name not in self.variables and self.rank in v.placement.ranks]
        slots, sizes = place_variables(new, self.rank, len(self.buffers))
        self.slots.update(slots)
        self.buffers.update({name: self.device.allocate(nbytes) for name, nbytes in sizes.items()})
        self.variables.update({variable.name: variable for variable in new})
        for variable in new:
            self.initialize(variable.name)

    def initialize(self, name: str) -> None:
        """Run the variable's initializer on this rank's part of it."""
        variable = self.variables[name]
        box = variable.layout.box(variable.type.shape, self.rank)
        op = variable.initializer.localize((), (box,))
        (type,) = types_tuple(op.infer())
        value = np.empty(type.shape, type.dtype.numpy)
        half.run(op, (), (value,))
        self.write(name, value)

    def array(self, name: str) -> Array:
        """This rank's part of a variable, as a view of its memory."""
        slot = self.slots[name]
        return window(self.device.xp, self.buffers[slot.buffer], slot)

    def read(self, name: str) -> Array:
        """A NumPy copy of this rank's part."""
        return self.device.to_host(self.array(name))

    def write(self, name: str, value: Array) -> None:
        """Overwrite this rank's part."""
        self.device.upload(self.array(name), value)

    def types(self) -> dict[str, TensorType]:
        """The logical types of all variables."""
        return {name: variable.type for name, variable in self.variables.items()}
