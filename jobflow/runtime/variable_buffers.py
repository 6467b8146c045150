"""The variables of one rank: flat buffers with the layout of `plan.storage`, which outlive the runs of jobs; and arrays over slots of a plan."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import numpy as np

from jobflow.core.types import Array, TensorType, Xp, contiguous_strides
from jobflow.graph.ir import Variable
from jobflow.kernels import registry
from jobflow.kernels.target import CPU, Target
from jobflow.ops.op import Op, types_tuple
from jobflow.ops.source import Constant
from jobflow.plan.plan import Slot
from jobflow.plan.storage import COMMON, OWN, is_common, place_variables, shadowed_buffer
from jobflow.runtime.comm.communicator import Communicator
from jobflow.runtime.device.device import Device, memory_of
from jobflow.runtime.device.numpy_device import CpuDevice
from jobflow.runtime.memory_contents import largest_variables_text


def window(xp: Xp, buffer: Array, slot: Slot) -> Array:
    """Return the strided view of a uint8 buffer described by a slot."""
    shape, dtype = slot.type.shape, slot.type.dtype.numpy
    if 0 in shape:
        return xp.empty(shape, dtype)
    if xp is np:
        return np.ndarray(shape, dtype, buffer, slot.offset, slot.strides)
    return xp.ndarray(shape, dtype, memptr=buffer.data + slot.offset, strides=slot.strides)


def _is_zero(initializer: Op) -> bool:
    """Return True if new memory, which is zeroed, has this initial value; False for -0.0."""
    return isinstance(initializer, Constant) and initializer.value == 0 and math.copysign(1, initializer.value) > 0


class State:
    """The variables with a shard on `rank`."""

    def __init__(self, rank: int, device: Device, comm: Communicator) -> None:
        self.rank = rank
        self.device = device
        self.comm = comm
        self.buffers: dict[str, Array] = {}
        self.slots: dict[str, Slot] = {}
        self.variables: dict[str, Variable] = {}
        #: memory of half-precision copies of variables, by buffer, and the names of the variables whose copies there are current
        self.shadows: dict[str, Array] = {}
        self.current_shadows: dict[str, set[str]] = {}
        #: number of buffers created so far, for unique names
        self._buffer_count = 0

    def declare(self, variables: Iterable[Variable], share: bool = False, own: Collection[str] = ()) -> list[str]:
        """Allocate memory for new variables; return the names of those that `initialize` must initialize on this rank.

        With `share`, replicated variables that are not in `own` are stored once, in memory that all ranks share.  On a GPU, or if there is too
        little shared memory, each rank stores its own copy.
        Collective with `share`: all ranks declare the same variables.
        """
        new = [v for v in variables if v.name not in self.variables and self.rank in v.placement.ranks]
        sharing = tuple(range(self.comm.size)) if share and self.on_hosts() else ()
        slots, sizes = place_variables(new, self.rank, self._buffer_count, sharing, own)
        common = self._common({name: nbytes for name, nbytes in sizes.items() if is_common(name)})
        if common is None:
            slots, sizes = place_variables(new, self.rank, self._buffer_count)
        self._buffer_count += len(sizes)
        with memory_of("variables", partial(largest_variables_text, slots)):
            self._allocate(sizes, common or {})
        self.slots.update(slots)
        self.variables.update({variable.name: variable for variable in new})
        mine = [v for v in new if self.rank == 0 or not is_common(slots[v.name].buffer)]
        return [v.name for v in mine if is_common(slots[v.name].buffer) or not _is_zero(v.initializer)]

    def _allocate(self, sizes: Mapping[str, int], common: Mapping[str, Array]) -> None:
        own = {name: nbytes for name, nbytes in sizes.items() if not is_common(name)}
        self.device.require(sum(own.values()))
        self.buffers.update({name: self.device.allocate(nbytes) for name, nbytes in own.items()} | dict(common))

    def forget(self, names: Collection[str]) -> None:
        """Remove these variables; memory is freed with the last variable in it."""
        for name in names:
            self.variables.pop(name, None)
            self.slots.pop(name, None)
        self.wrote(names)
        used = {slot.buffer for slot in self.slots.values()}
        self.buffers = {name: buffer for name, buffer in self.buffers.items() if name in used}
        self.shadows = {name: shadow for name, shadow in self.shadows.items() if shadowed_buffer(name) in used}

    @contextmanager
    def forgetting_on_error(self) -> Iterator[None]:
        """Remove the variables that are added in this context if it raises, so that the next program initializes them."""
        known = set(self.variables)
        try:
            yield
        except BaseException:
            self.forget(self.variables.keys() - known)
            raise

    def attach(self, variable: Variable, buffer: Array, offset: int = 0, common: bool = False) -> None:
        """Bind a variable to existing memory that has its values, from byte `offset` of `buffer`.

        `common` is True if all ranks share the memory and bind it to this variable.
        """
        kind = COMMON if common else OWN
        name = next((name for name, known in self.buffers.items() if known is buffer), f"{kind}{self._buffer_count}:{variable.group}")
        self._buffer_count += name not in self.buffers
        type = variable.layout.local_type(variable.type, self.rank)
        self.buffers[name] = buffer
        self.slots[variable.name] = Slot(name, offset, type, contiguous_strides(type.shape, type.dtype.itemsize))
        self.variables[variable.name] = variable
        self.wrote((variable.name,))

    def shadow_buffer(self, name: str) -> Array:
        """Return the memory of the half-precision copies of the variables in a buffer, allocated at the first call."""
        if name not in self.shadows:
            self.shadows[name] = self.device.allocate(self.buffers[shadowed_buffer(name)].nbytes // 2)
        return self.shadows[name]

    def wrote(self, names: Collection[str]) -> None:
        """Record that the half-precision copies of these variables are out of date, because something other than their program may write them."""
        for current in self.current_shadows.values():
            current.difference_update(names)

    def on_hosts(self) -> bool:
        """Return True if all ranks compute in host memory; collective."""
        return all(tag == "cpu" for tag in self.comm.exchange(self.device.tag))

    def _common(self, sizes: Mapping[str, int]) -> dict[str, Array] | None:
        """Return the buffers with these sizes, in memory that all ranks share; None on all ranks if there is too little shared memory."""
        arrays = {name: self.comm.allocate_common(nbytes) for name, nbytes in sizes.items()}
        return None if any(array is None for array in arrays.values()) else arrays

    def initialize(self, names: Iterable[str], target: Target = CPU) -> None:
        """Run the initializers of variables for this rank's shards, on the host, so that values do not depend on the device.

        `target` computes the initializers if it is a CPU target; otherwise the default CPU target does.
        """
        for name in names:
            variable, is_host = self.variables[name], self.device.tag == "cpu"
            op = variable.initializer.localize((), (variable.layout.box(variable.type.shape, self.rank),))
            (type,) = types_tuple(op.infer())
            value = self.array(name) if is_host else np.empty(type.shape, type.dtype.numpy)
            for call, arguments in registry.bind(op, target if target.kind == "cpu" else CPU, CpuDevice(), (), (value,)):
                call(*arguments)
            if not is_host:
                self.write(name, value)

    def array(self, name: str) -> Array:
        """Return this rank's shard of a variable as a view of its memory; the caller may write the view until the next run."""
        self.wrote((name,))
        return self._view(name)

    def _view(self, name: str) -> Array:
        slot = self.slots[name]
        return window(self.device.xp, self.buffers[slot.buffer], slot)

    def read(self, name: str) -> Array:
        """Return this rank's shard of a variable as a NumPy copy."""
        return self.device.to_host(self._view(name))

    def write(self, name: str, value: Array) -> None:
        """Assign a value to this rank's shard of a variable."""
        self.device.upload(self.array(name), value)

    def types(self) -> dict[str, TensorType]:
        """Return the logical type of each variable, by name."""
        return {name: variable.type for name, variable in self.variables.items()}
