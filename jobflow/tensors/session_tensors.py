"""Bindings of tensors to variables of a session, for modules that jobs call.  A tensor and its variable have the same values.

The tensor shares the memory of the variable if the elements of the tensor on this rank are one array in host memory.  The variable must then be
whole in this process, or the tensor must be global.  Otherwise (on a GPU, or with pieces on several threads) the values are fetched when the
tensor is read.  Writes of the program to the tensor reach the variable before the variable is used again.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import JobError, PlacementError, user_line
from jobflow.core.layout import Layout
from jobflow.core.types import Array, TensorType
from jobflow.engine.session import Session
from jobflow.graph.ir import Variable
from jobflow.plan.storage import is_common
from jobflow.program.commands import Barrier, ExchangeItems
from jobflow.program.program import state_of
from jobflow.runtime.variable_buffers import State
from jobflow.runtime.world.world import World
from jobflow.tensors.convert import convert_array
from jobflow.tensors.gpus import device_name, duplicate, gpu_of
from jobflow.tensors.state import EagerState, state
from jobflow.tensors.tensor import RemoteMemory, ResidentMemory, TensorBase, attach_memory, has_array, move_memory


@dataclass(frozen=True, eq=False)
class Binding:
    """A binding of a tensor to a variable; `resident` is their common memory, or None on a rank without a piece."""

    variable: Variable
    tensor: TensorBase
    resident: ResidentMemory | None
    #: type and layout of the tensor when it was bound
    type: TensorType
    layout: Layout | None

    @property
    def moved(self) -> bool:
        """True if the tensor has left the memory of the variable, so that their values may differ."""
        return self.resident is not None and has_array(self.tensor) and self.tensor.array is not self.resident.array

    def changed(self, where: str) -> str:
        """Describe how the type or layout of the tensor changed since the tensor was bound; "" if neither changed."""
        before, now = (f"{type} {layout or 'local'}" for type, layout in ((self.type, self.layout), (self.tensor.tensor_type, self.tensor.layout)))
        return "" if before == now else f"{self.variable.name} was {before} {where} and is {now} now"

    def readmit(self) -> None:
        """Store the tensor in the memory of the variable again, after the variable received its values."""
        assert self.resident is not None
        self.resident.readmit()
        attach_memory(self.tensor, self.resident)


def adopt_layout(here: EagerState, x: TensorBase, lies: Layout, what: str) -> bool:
    """Redistribute the global tensor x in place to the layout `lies` of its variable, and return True if the layout changed.

    A local tensor is unchanged.  `what` names the operation in messages.
    """
    if x.layout is None or x.layout == lies:
        return False
    before = x.layout if x._storage is None else x._storage.before or x.layout
    x.array, x.layout = duplicate(convert_array(here, x.array, x.tensor_type, x.layout, lies, what)), lies
    x._storage = None
    x.memory.before = before
    return True


class SessionTensors:
    """The bindings of tensors to the variables of one session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.bindings: dict[str, Binding] = {}
        self._names: dict[int, str] = {}

    @classmethod
    def of(cls, session: Session) -> SessionTensors:
        """Return the bindings of a session, created at the first call."""
        if not isinstance(session.tensors, SessionTensors):
            session.tensors = cls(session)
        return session.tensors

    def name_of(self, x: TensorBase) -> str | None:
        """Return the name of the variable that a tensor is bound to, or None."""
        return self._names.get(id(x))

    def __contains__(self, name: str) -> bool:
        return name in self.bindings

    # ---------------------------------------------------------------- binding

    def bind(self, tensors: Mapping[str, TensorBase]) -> None:
        """Initialize new variables with the values of the tensors of the same names, and bind each tensor to its variable."""
        variables = self.session.variables
        for name, x in tensors.items():
            self._check(variables[name], x)
        local = {name: x.array for name, x in tensors.items() if x.layout is None or not self.session.multi}
        self.session.put({name: np.asarray(array, order="C") for name, array in self._of_first(local).items()})
        for name, x in tensors.items():
            self._bind_one(variables[name], x)
        self._meet(len(local) < len(tensors))

    def _check(self, variable: Variable, x: TensorBase) -> None:
        """Raise JobError in a program with several clients if the tensor is local but its variable is not whole on every rank."""
        if gpu_of(x.array) is not None:
            raise PlacementError(
                f"variable {variable.name!r} at {user_line()}: the module is on {device_name(x.array)}, but a job receives its parameters from "
                f"the host; call module.cpu() before the job, or train with an nn.Graph"
            )
        world = self._world
        if not world.multi or x.layout is not None:
            return
        outside = set(range(world.size)) - set(variable.placement.ranks)
        if not variable.layout.is_whole or outside:
            stored = f"on {variable.placement} only" if outside else f"in pieces, {variable.layout}"
            raise JobError(
                f"variable {variable.name!r} at {user_line()}: the module has a local tensor, whole on every rank, but the variable is stored "
                f"{stored}; "
                f"call to_global(placement, sbp.broadcast) on the module before the job, so that its tensors can have the layouts of the variables"
            )

    def _of_first(self, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return the arrays by name; if they differ between clients, return the arrays of rank 0."""
        if not self.session.multi or len(set(self._exchanged(_digests(arrays), "parameters"))) == 1:
            return arrays
        values = dict(arrays) if self._world.ranks[0].index == 0 else None
        return self._exchanged(values, "parameters of rank 0")[0]

    def _bind_one(self, variable: Variable, x: TensorBase) -> None:
        if self.session.multi and x.layout is not None:
            self._redistribute(variable, x)
        resident = self._resident_memory(variable, x)
        if resident is not None:
            move_memory(x, resident)
        self.bindings[variable.name] = Binding(variable, x, resident, x.tensor_type, x.layout)
        self._names[id(x)] = variable.name

    def _redistribute(self, variable: Variable, x: TensorBase) -> None:
        """Redistribute the global tensor x to the layout of its variable, and write this rank's piece to the variable."""
        here = state()
        adopt_layout(here, x, Layout(variable.placement, variable.sbp), f"variable {variable.name}")
        if here.rank.index in variable.placement.ranks:
            self._state(here.rank.index).write(variable.name, x.array)

    def _resident_memory(self, variable: Variable, x: TensorBase) -> ResidentMemory | None:
        """Return the memory that x uses from now on, in which this rank stores its variable; None if this rank has no piece."""
        world, name, lies = self._world, variable.name, variable.placement.ranks
        if world.multi:
            rank = world.ranks[0].index
            if rank not in lies:
                return None
        else:
            rank = lies[0]
        held = self._state(rank)
        if held.device.tag != "cpu" or not (variable.layout.is_whole or (world.multi and x.layout is not None)):
            return RemoteMemory(np.array(x.array), partial(held.read, name) if world.multi else partial(self._whole, name))
        slot = held.slots[name]
        copies = not is_common(slot.buffer)
        sharing = lies if len(lies) > 1 and (variable.layout.is_whole or not copies) else ()
        return ResidentMemory(held.array(name), held.buffers[slot.buffer], slot.offset, sharing, copies)

    def _whole(self, name: str) -> Array:
        return self.session.read([name])[name]

    # ---------------------------------------------------------------- synchronization

    def settle(self) -> None:
        """Copy the values that the user's program wrote to tensors into their variables, before a job reads the variables.

        Raises: JobError if the type or layout of a written tensor changed since it was bound, or if clients wrote different values.
        """
        moved = [binding for binding in self.bindings.values() if binding.moved]
        if not moved:
            return
        for changed in filter(None, (binding.changed("when a job was compiled for it") for binding in moved)):
            raise JobError(
                f"module in a job at {user_line()}: the parameter or buffer {changed}; "
                f"change modules before jobs call them, or restart with clear_default_session()"
            )
        whole = {binding.variable.name: binding.tensor.array for binding in moved if binding.layout is None or not self.session.multi}
        self._check_alike([binding.variable.name for binding in moved], whole)
        self.session.put({name: np.asarray(array, order="C") for name, array in whole.items()})
        for binding in moved:
            if binding.variable.name not in whole:
                self._state(self._world.ranks[0].index).write(binding.variable.name, binding.tensor.array)
            if isinstance(binding.resident, RemoteMemory):
                np.copyto(binding.resident.fetched, binding.tensor.array)
            binding.readmit()
        self._meet(len(whole) < len(moved))

    def _check_alike(self, names: Sequence[str], whole: Mapping[str, Array]) -> None:
        """Raise JobError on all clients if they wrote to different tensors, or wrote different values to a local tensor."""
        if not self.session.multi:
            return
        exchanged = self._exchanged((tuple(names), _digests(whole)), "writes to parameters")
        for rank, (theirs, digests) in enumerate(exchanged):
            other = next(
                (name for name in {**dict.fromkeys(theirs), **dict.fromkeys(exchanged[0][0])} if (name in theirs) != (name in exchanged[0][0])), None
            )
            other = other or next((name for name, mine in dict(exchanged[0][1]).items() if dict(digests)[name] != mine), None)
            if other is not None:
                raise JobError(
                    f"variable {other!r} at {user_line()}: ranks 0 and {rank} wrote different values to this variable of a job; write the same "
                    f"values on every rank (the same seed, the same gradients), or convert the module with to_global"
                )

    def changed(self, names: Iterable[str]) -> None:
        """Mark the tensors of these variables as overwritten, after a job assigned new values."""
        for name in names:
            binding = self.bindings.get(name)
            if binding is not None and binding.resident is not None:
                binding.tensor.wrote()
                if isinstance(binding.resident, RemoteMemory):
                    binding.resident.invalidate()

    def release(self, names: Sequence[str]) -> None:
        """Unbind the tensors of these variables; they keep their data, in memory of their own."""
        for name in names:
            binding = self.bindings.pop(name, None)
            if binding is not None:
                del self._names[id(binding.tensor)]
                _keep(binding)

    def part(self) -> None:
        """Move tensors whose memory is remote or shared between ranks to a writable copy, at the end of the session."""
        for binding in self.bindings.values():
            _keep(binding)

    # ---------------------------------------------------------------- ranks

    @property
    def _world(self) -> World:
        assert self.session.world is not None, "its jobs are bound"
        return self.session.world

    def _state(self, rank: int) -> State:
        """Return the variables that `rank`, a rank of this process, stores."""
        return state_of(next(each for each in self._world.ranks if each.index == rank))

    def _exchanged(self, item: Any, about: str) -> list[Any]:
        return self._world.call(ExchangeItems(item, about))

    def _meet(self, needed: bool) -> None:
        if needed:
            self._world.call(Barrier())


def _keep(binding: Binding) -> None:
    """Move the tensor of a binding to a writable copy if its memory is remote or shared between ranks."""
    if isinstance(binding.resident, RemoteMemory):
        binding.resident.refresh()
    if binding.resident is not None and not binding.resident.array.flags.writeable:
        binding.resident.evict()


def _digests(arrays: Mapping[str, Array]) -> tuple[tuple[str, int], ...]:
    return tuple((name, zlib.crc32(np.asarray(array, order="C").tobytes())) for name, array in arrays.items())
