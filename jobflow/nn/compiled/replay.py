"""Plans of compiled functions: binding to the memory of the user's tensors, and execution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import jobflow.core.scope as scope
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import JobError
from jobflow.core.types import Array, TensorType
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.graph.built import Built
from jobflow.nn.graph.running import Bound, Memory
from jobflow.program.program import state_of
from jobflow.runtime.interrupts import held
from jobflow.tensors.gpus import gpu_of
from jobflow.tensors.state import EagerState
from jobflow.tensors.tensor import ResidentMemory, attach_memory


class GradientSlot:
    """The memory in which plans store the `grad` of one tensor."""

    def __init__(self, array: Array, buffer: Array, offset: int, type: TensorType, layout: Any, transient: bool = False) -> None:
        self.array, self.buffer, self.offset = array, buffer, offset
        self.type, self.layout = type, layout
        #: True if every run stores a new gradient, False if runs add to the old gradient
        self.transient = transient
        self.resident = ResidentMemory(array, buffer, offset, transient=transient)

    def enter(self, x: Tensor) -> None:
        """Copy the `grad` of x to this memory, and make the `grad` use it; do nothing if `grad` is None or already uses this memory."""
        known = x._gradient
        if known is not None and known.array is not self.array:
            self.release()
            self.array[...] = known.array
            attach_memory(known, self.resident)

    def release(self) -> None:
        """Move tensors that use this memory to a copy, so that the next run does not overwrite their elements."""
        if len(self.resident.tensors):
            self.resident._move(self.array, self.array.copy())
            self.resident = ResidentMemory(self.array, self.buffer, self.offset, transient=self.transient)

    def show(self) -> Tensor:
        """Return a new tensor that shares this memory."""
        created = Tensor(self.type, self.layout, self.array)
        attach_memory(created, self.resident)
        return created


@dataclass
class CompiledMemory(Memory):
    """State shared by the plans of one compiled function."""

    #: slots by name of the variable of a `grad`
    gradients: dict[str, GradientSlot] = field(default_factory=dict)


class Replay(Bound):
    """A plan of a compiled function, bound to the user's tensors.

    A `grad` that the plan creates is a tensor in the memory of the plan.  A `grad` that the plan adds to is a variable, shared by all plans.
    """

    memory: CompiledMemory

    def __init__(self, here: EagerState, built: Built, memory: CompiledMemory, added: Mapping[str, Tensor], created: Mapping[int, Tensor]) -> None:
        on_gpu = next((name for name, x in built.tensors.items() if gpu_of(x.array) is not None), None) if here.gpus else None
        if on_gpu is not None:
            raise JobError(f"{on_gpu} is on a GPU, and plans of compiled functions run on CPUs; use an nn.Graph")
        super().__init__(here, built, {}, memory, None)
        #: slots by name of the variable, and by number of the output
        self.added: dict[str, GradientSlot] = {}
        self.shown: dict[int, GradientSlot] = {}
        if self.executor is not None:
            self.added = {name: self._variable(name, x) for name, x in added.items()}
            shown = self.executor.show(created)
            self.shown = {i: GradientSlot(*location, created[i].tensor_type, created[i].layout, transient=True) for i, location in shown.items()}

    def _variable(self, name: str, x: Tensor) -> GradientSlot:
        if name not in self.memory.gradients:
            assert self.memory.rank is not None
            state = state_of(self.memory.rank)
            slot = state.slots[name]
            self.memory.gradients[name] = GradientSlot(state.array(name), state.buffers[slot.buffer], slot.offset, x.tensor_type, x.layout)
        return self.memory.gradients[name]

    def run(self, tensors: Sequence[Tensor], added: Mapping[str, Tensor], created: Mapping[int, Tensor]) -> list[Tensor]:
        """Run the plan once on the arguments `tensors`, and return the outputs.

        The plan adds to the `grad` of the tensors `added`, and creates the `grad` of the tensors `created`.
        """
        self.check_session()
        with scope.lock(), held():
            for x in created.values():
                x._gradient = None
            for slot in self.shown.values():
                slot.release()
            for name, slot in self.added.items():
                slot.enter(added[name])
            provenance, arrays = self.run_once(tensors)
            slots = self.shown
            return [slots[i].show() if i in slots else self._output(meta, arrays.get(i), provenance + i) for i, meta in enumerate(self.outputs)]
