"""Binding, execution and optimizer state of a compiled graph on this rank.

Every rank compiles the program separately.  The ranks of the graph's placements compare their programs before the first run, and are numbered
from 0.  Tensors of the user's program share memory with the variables of the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

import jobflow.core.scope as scope
from jobflow.compiler.compile import distribute
from jobflow.core.cache_folder import choose_cache_folder
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import DivergedError, JobError, PlacementError, user_line
from jobflow.core.layout import Layout, Placement
from jobflow.core.types import Array
from jobflow.engine.session import current_session
from jobflow.functional.tensor_class import Tensor
from jobflow.graph.graph_text import physical_text
from jobflow.graph.ir import Value, Variable
from jobflow.nn.graph.built import Arguments, Built, Meta
from jobflow.nn.graph.step_counters import StepCounters
from jobflow.nn.parameter import Parameter
from jobflow.plan.storage import is_common
from jobflow.program.program import Program, StorageChoice, state_of
from jobflow.program.rank_group import RankGroup, compare_programs, program_digest
from jobflow.runtime.comm.communicator import Communicator
from jobflow.runtime.executor import Executor
from jobflow.runtime.interrupts import held
from jobflow.runtime.variable_buffers import State
from jobflow.runtime.world.world import Rank
from jobflow.tensors.convert import agree, convert_array, done, empty
from jobflow.tensors.gpu_ranks import rank_on
from jobflow.tensors.gpus import address, as_numpy, byte_bounds, device_name, duplicate, gpu_of, write
from jobflow.tensors.overlaps import is_shared
from jobflow.tensors.session_tensors import Binding, adopt_layout
from jobflow.tensors.state import EagerState, mixed
from jobflow.tensors.structures import filled, form, leaves
from jobflow.tensors.tensor import ResidentMemory, Storage, TensorBase, move_memory, own

if TYPE_CHECKING:
    from jobflow.tensors.eager_gpu import EagerGpu

#: alignment in bytes of tensors on a GPU that a graph uses in place
ALIGNMENT = 256


@dataclass
class Memory:
    """State shared by all programs of one graph; a graph has one program for each combination of input shapes."""

    #: the ranks of the programs, and this rank within them if it is one of them
    ranks: tuple[int, ...] | None = None
    rank: Rank | None = None
    #: the tensors that are variables, by name, and their memory
    tensors: dict[str, Tensor] = field(default_factory=dict)
    residents: dict[str, ResidentMemory] = field(default_factory=dict)
    #: names of variables whose elements every run copies from tensors, and copies back, because other tensors share the memory of these tensors
    copied: set[str] = field(default_factory=set)
    #: variables that have received their loaded values
    loaded: set[str] = field(default_factory=set)
    #: variables in memory that the user's program allocated and may write without a trace
    foreign: set[str] = field(default_factory=set)
    #: number of writes to a variable after the last run that wrote its half-precision copy
    writes: dict[str, int] = field(default_factory=dict)


class Bound:
    """A graph compiled for one combination of input shapes, and bound to memory and tensors of this rank."""

    def __init__(self, here: EagerState, built: Built, loaded: Mapping[str, Tensor], memory: Memory, gpu: EagerGpu | None) -> None:
        self.here = here
        #: the GPU that runs the graph on this rank; None for the host
        self.gpu = gpu
        self.built = built
        self.memory = memory
        #: the key in the graph's cache
        self.key = current_session().settings.computing, tuple(meta.type.shape for meta in built.inputs), scope.current().autocast
        self.group = RankGroup.of(built.graph)
        self._check_memory()
        self.physical = distribute(self.group.graph(built.graph), built.target)
        self.lines = [
            " ".join(filter(None, (f"kernels: {self.key[0].kernels}", str(self.key[0].checks)))),
            *physical_text(self.physical).splitlines(),
        ]
        self.digest = program_digest(self.lines)
        results = [x for _, x in leaves(built.result, "an output")]
        self.outputs = [self._output_meta(value, x) for value, x in zip(self.physical.graph.outputs, results, strict=True)]
        self.executor: Executor | None = None
        #: bindings of tensors to variables, and their memory
        self.bindings: list[tuple[Binding, ResidentMemory]] = []
        self.storages: list[Storage] = []
        #: tensors that stay in memory that others share, with the memory of their variables, and True if the program overwrites them
        self.copied: list[tuple[TensorBase, Array, bool]] = []
        self.together = Placement("cpu", self.group.ranks)
        self.collective_log = here.collective_log(self.together)
        #: the variables with half-precision copies that a run reads, and their memory
        self.shadowed: list[tuple[str, ResidentMemory]] = []
        #: the variables that a run overwrites
        self.changing = [name for name in built.tensors if name in built.graph.updates]
        #: the communicator, if a run communicates
        self.comm: Communicator | None = None
        self.rank, self.counters = here.rank, StepCounters(built)
        if here.rank.index in self.group.ranks:
            self._bind(loaded)
        else:
            self._follow(loaded)
        #: inputs from the host that may differ between ranks
        self.uncompared = {rate.key for rate in built.rates if not getattr(rate, "is_equal", True)}
        self.constant = {draw.key: draw.array for draw in built.draws} | {rate.key: rate.array for rate in built.rates}

    def _meta(self, value: Value) -> Meta:
        return Meta(value.name, value.tensor_type, None if self.built.local else self.group.world_layout(self.physical.layouts[value]))

    def _output_meta(self, value: Value, x: Tensor) -> Meta:
        """Return the name, type and layout of an output; x is the traced tensor of the output.

        Along mesh dimensions of size 1, where all layouts are equal, the result has the layout of x.
        """
        meta = self._meta(value)
        if meta.layout is None or x.layout is None or x.layout.placement != meta.layout.placement:
            return meta
        mesh = meta.layout.placement.mesh
        sbp = tuple(before if n == 1 else after for before, after, n in zip(x.layout.sbp, meta.layout.sbp, mesh, strict=True))
        return replace(meta, layout=Layout(meta.layout.placement, sbp))

    # ---------------------------------------------------------------- memory

    def _check_memory(self) -> None:
        """Raise JobError if the program has other ranks, or another tensor for a variable, than the graph's programs for other shapes."""
        memory, tensors = self.memory, self.built.tensors
        memory.ranks = memory.ranks or self.group.ranks
        other = next((name for name, x in tensors.items() if memory.tensors.setdefault(name, x) is not x), None)
        if other is not None or memory.ranks != self.group.ranks:
            if other is None:
                what = f"the graph ran on ranks {list(memory.ranks)} for other input shapes, and now runs on ranks {list(self.group.ranks)}"
            else:
                what = f"{other} is not the tensor that the graph had for other input shapes"
            raise JobError(f"{self.built.name} at {user_line()}: {what}; create another graph")

    def _bind(self, loaded: Mapping[str, Tensor]) -> None:
        here, ranks = self.here, self.group.ranks
        comm = here.rank.host_comm.group(ranks)
        what = self.built.first_call
        agree(here, comm, crc32(what.encode()), lambda: what)
        self._compare(comm)
        rank = self.memory.rank = self.memory.rank or rank_on(here, ranks, self.gpu, self.built.target)
        storage = StorageChoice(share=current_session().settings.share_variables, copies=True, in_place=True)
        choose_cache_folder(current_session().settings.cache_folder)
        with state_of(rank).forgetting_on_error():
            fresh = self._adopt(state_of(rank), comm)
            bound = Program(self.physical, storage, self.key[0].target(rank.device.tag, timed=len(ranks) == 1)).bind(rank)
        self._fill(state_of(rank), fresh, loaded)
        self.executor = bound.executor
        self.shadowed = [(name, resident) for binding, resident in self.bindings if (name := binding.variable.name) in bound.plan.shadows]
        self.executor.undo_by(self.counters.undo)
        if self.gpu is not None:  # outputs stay on the GPU
            self.executor.shown = frozenset(position for position, _ in self.executor.fetches)
        self.comm = comm if bound.plan.schedule or bound.executor.depart is not None else None

    def _follow(self, loaded: Mapping[str, Tensor]) -> None:
        """Redistribute the tensors of the graph on a rank outside of the graph, because this rank may store pieces that the graph needs."""
        for variable in self.physical.graph.variables.values():
            x = self.built.tensors.get(variable.name)
            if x is not None:
                self._redistribute(x, variable)
        self._pieces(loaded)

    def _compare(self, comm: Communicator) -> None:
        """Raise DivergedError unless all ranks have built the same graph."""
        if difference := compare_programs(self.lines, self.group.ranks, comm.exchange):
            first, other = difference.ranks
            raise DivergedError(
                f"{self.built.first_call}: ranks {first} and {other} have built different graphs, "
                f"but every rank must build the same graph. {difference}"
            )

    def _adopt(self, state: State, comm: Communicator) -> list[Variable]:
        """Attach new variables to the memory of their tensors where all ranks can use this memory; return the other new variables."""
        index = self.group.ranks.index(self.here.rank.index)
        fresh: list[Variable] = []
        usable: dict[str, ResidentMemory] = {}
        for variable in self.physical.graph.variables.values():
            x = self.built.tensors.get(variable.name)
            if variable.name in state.variables:
                self._check_stored(state.variables[variable.name], variable)
            elif index not in variable.placement.ranks:
                if x is not None:
                    self._redistribute(x, variable)
            else:
                fresh.append(variable)
                if x is not None and not self._redistribute(x, variable) and (resident := self._usable(x, variable)) is not None:
                    usable[variable.name] = resident
        unusable = set().union(*comm.exchange({variable.name for variable in fresh if variable.name not in usable}))
        for variable in fresh:
            if variable.name not in unusable:
                resident = usable[variable.name]
                state.attach(variable, resident.buffer, resident.offset, bool(resident.ranks))
        return [variable for variable in fresh if variable.name in unusable]

    def _usable(self, x: Tensor, variable: Variable) -> ResidentMemory | None:
        """Return the memory of the tensor if the variable can use it, else None.

        Memory of another graph must be shared by the same ranks, or by no ranks.  Memory of the user's program is used unless a copy is faster.
        """
        resident = None if x._storage is None else x._storage.resident
        writes = variable.name in self.built.graph.updates
        if resident is not None and x.array is resident.array:
            return resident if resident.ranks in ((), self.group.ranks) and not resident.copies else None
        if not x.array.flags.c_contiguous or (address(x.array) % ALIGNMENT if self.gpu is not None else writes and not x.array.flags.writeable):
            return None
        if is_shared(x):
            self.memory.foreign.add(variable.name)
            return ResidentMemory(x.array, x.array.reshape(-1).view(np.uint8), 0)
        if variable.trainable:
            return None
        if isinstance(x, Parameter) and variable.layout.is_whole and variable.placement.size == len(self.group.ranks) > 1:
            return None
        self.memory.foreign.add(variable.name)
        return ResidentMemory(x.array, x.array.reshape(-1).view(np.uint8), 0)

    def _fill(self, state: State, fresh: Sequence[Variable], loaded: Mapping[str, Tensor]) -> None:
        """Write loaded values, or values of tensors, to new variables, and move the tensors into the memory of the variables."""
        self._write_first(state, fresh, self._pieces(loaded))
        for name, x in self.built.tensors.items():
            if name in state.slots:
                self._share(state, name, x)

    def _write_first(self, state: State, fresh: Sequence[Variable], pieces: Mapping[str, Array]) -> None:
        for variable in fresh:
            x = self.built.tensors.get(variable.name)
            piece = pieces.get(variable.name) if x is None else self._piece(x, variable)
            if piece is not None:
                write(state.array(variable.name), piece)

    def _check_stored(self, stored: Variable, variable: Variable) -> None:
        if (stored.type, stored.layout) != (variable.type, variable.layout):
            raise JobError(
                f"{self.built.name} at {user_line()}: {variable.name} is {stored.type} {stored.layout} in the program for an earlier shape "
                f"and {variable.type} {variable.layout} in the program for this shape; create another graph"
            )

    def _redistribute(self, x: Tensor, variable: Variable) -> bool:
        """Redistribute the tensor x in place to the layout of its variable; return True if the layout changed."""
        layout = self.group.world_layout(Layout(variable.placement, variable.sbp))
        return adopt_layout(self.here, x, layout, f"{self.built.name}: {variable.name}")

    def _pieces(self, loaded: Mapping[str, Tensor]) -> dict[str, Array]:
        """Return this rank's pieces of loaded values, by variable, for the variables that have no tensor in the user's program.

        All ranks of the world must call this method, because any rank may store loaded values.
        """
        variables = self.physical.graph.variables
        names = [name for name in variables if name in loaded and name not in self.built.tensors and name not in self.memory.loaded]
        self.memory.loaded.update(names)
        return {name: self._piece(loaded[name], variables[name]) for name in names}

    def _piece(self, saved: Tensor, variable: Variable) -> Array:
        if saved.tensor_type != variable.type or (saved.layout is None) != self.built.local:
            where = "local" if self.built.local else "global"
            kind = "local" if saved.layout is None else str(saved.layout)
            raise JobError(
                f'{self.built.name} at {user_line()}: the loaded "{variable.name}" is {kind}, {saved.tensor_type}, but the variable of the graph is '
                f"{where}, {variable.type}; load the state of a graph with the same variables"
            )
        if saved.layout is None:
            return saved.array
        return convert_array(self.here, saved.array, saved.tensor_type, saved.layout, self.world(variable), f"{self.built.name}: {variable.name}")

    def world(self, variable: Variable) -> Layout:
        """Return the layout of a variable with the rank numbers of the world, instead of numbers within the graph."""
        return self.group.world_layout(variable.layout)

    def _share(self, state: State, name: str, x: Tensor) -> None:
        resident = self.memory.residents.get(name)
        if resident is None and not is_common(state.slots[name].buffer) and byte_bounds(state.array(name)) != byte_bounds(x.array) and is_shared(x):
            self.memory.copied.add(name)
        if name in self.memory.copied:
            self.copied.append((x, state.array(name), name in self.built.graph.updates))
            return
        if resident is None:
            slot, known = state.slots[name], None if x._storage is None else x._storage.resident
            if known is not None and x.array is known.array and state.buffers[slot.buffer] is known.buffer:
                resident = known
            else:
                ranks = self.group.ranks if is_common(slot.buffer) else ()
                resident = ResidentMemory(state.array(name), state.buffers[slot.buffer], slot.offset, ranks)
                move_memory(x, resident)
            self.memory.residents[name] = resident
        self.bindings.append((Binding(self.built.graph.variables[name], x, resident, x.tensor_type, x.layout), resident))
        if name in self.built.graph.updates:
            self.storages.append(x.memory)

    # ---------------------------------------------------------------- running

    def __call__(self, tensors: Sequence[Tensor]) -> Any:
        """Run the program once on `tensors`, step the learning rate schedules, and return the result in the structure that `build` returned."""
        self.check_session()
        self._check_guarded()
        with scope.lock(), held():  # every run uses the same memory
            for rate in self.built.rates:
                rate.array[0] = rate.group["lr"]
            provenance, arrays = self.run_once(tensors)
            self.counters.step(late=self.gpu is not None)
            device = tensors[0]._device if tensors and self.built.local else None
            return filled(self.built.result, (self._output(meta, arrays.get(i), provenance + i, device) for i, meta in enumerate(self.outputs)))

    def _check_guarded(self) -> None:
        """Raise JobError if a Python number of `build` depends on a tensor whose elements have changed."""
        for guard in self.built.guarded:
            if as_numpy(guard.tensor.array).tobytes() != guard.elements:
                tensor = f"the tensor {guard.name} {guard.tensor.tensor_type}" if guard.name else f"a tensor {guard.tensor.tensor_type}"
                raise JobError(
                    f"{self.built.name} at {user_line()}: build read the elements of {tensor} at {guard.where}, and they have changed since; create "
                    f"another graph, and load the state_dict() of this graph"
                )

    def check_session(self) -> None:
        """Raise JobError if the program communicates and the session in which it was compiled has ended."""
        if self.comm is not None and self.rank is not self.here.rank:
            raise JobError(
                f"{self.built.name} at {user_line()}: clear_default_session closed the session in which the graph was compiled; "
                f"create another graph, and load the state_dict() of this graph"
            )

    def run_once(self, tensors: Sequence[Tensor]) -> tuple[int, dict[int, Array]]:
        """Run the program; return the provenance of the first output, and this rank's pieces of the outputs by position."""
        moved = [(binding, resident) for binding, resident in self.bindings if binding.tensor.array is not resident.array]
        if self.here.gpus:
            self._check_devices(tensors, [*(binding.tensor for binding, _ in moved), *(x for x, _, _ in self.copied)])
        arrays = {meta.name: x.array for meta, x in zip(self.built.inputs, tensors, strict=True)}
        for draw in self.built.draws:
            draw.array[0] = draw.generator.next()
        provenance = self._compare_runs(tensors, moved)
        if self.executor is None:
            return provenance, {}
        copied = [*self.copied, *self._copy_back(moved)] if moved else self.copied
        for x, array, _ in copied:
            write(array, x.array)
        if self.shadowed:
            self._note_writes([*self.memory.copied, *(binding.variable.name for binding, _ in moved)])
        try:
            outputs = dict(self.executor.run({**arrays, **self.constant}))
            if self.gpu is not None:
                outputs = {position: duplicate(view) for position, view in self.executor.fetches}
        except BaseException:
            for draw in self.built.draws:
                draw.generator.draws -= 1
            raise
        for storage in self.storages:
            storage.wrote()
        for name, resident in self.shadowed:
            self.memory.writes[name] = resident.writes
        for x, array, is_written in copied:
            if is_written:
                write(own(x, self.built.name), array)
                x.wrote()
        return provenance, outputs

    def _note_writes(self, copied: Iterable[str]) -> None:
        """Report variables that other programs or libraries may have written: the `copied` ones, and those in memory with unknown writes."""
        assert self.memory.rank is not None
        state, memory = state_of(self.memory.rank), self.memory
        unknown = (name for name, resident in self.shadowed if resident.exported or resident.writes != memory.writes.get(name))
        state.wrote({*unknown, *copied, *memory.foreign})

    def _check_devices(self, tensors: Sequence[Tensor], replaced: Sequence[TensorBase]) -> None:
        """Raise PlacementError if an input, or a tensor with replaced memory, is not on the device of the graph; make its GPU the current one."""
        for meta, x in zip(self.built.inputs, tensors, strict=True):
            if gpu_of(x.array) is not self.gpu and (x.layout is None or x.array.size):
                raise PlacementError(
                    f"{self.built.name} at {user_line()}: {meta.name} {meta} is on {device_name(x.array)}, but the graph runs on "
                    f"{self.gpu or 'cpu'}; move the input with x.to(device)"
                )
        for y in replaced:
            if y.layout is None and gpu_of(y.array) is not self.gpu:
                name = next(name for name, known in self.built.tensors.items() if known is y)
                raise PlacementError(
                    f"{self.built.name} at {user_line()}: {name} {y.tensor_type} is now on {device_name(y.array)}, but the graph runs on "
                    f"{self.gpu or 'cpu'}; move its module back with module.to(device), or create another graph"
                )
        if self.gpu is not None:
            self.gpu.activate()

    def has_strays(self) -> bool:
        """Return True if a tensor is not in the memory of its variable."""
        return bool(self.copied) or any(binding.tensor.array is not resident.array for binding, resident in self.bindings)

    def _compare_runs(self, tensors: Sequence[Tensor], moved: Sequence[tuple[Binding, ResidentMemory]]) -> int:
        """Return the provenance of this run; `moved` are the bindings whose tensors left the memory of their variables.

        If ranks communicate in the run, or share memory that was overwritten, raise DivergedError unless all ranks run the same operations.
        """
        values = [crc32(array.tobytes()) for name, array in self.constant.items() if name not in self.uncompared]
        changes = [self.built.tensors[name]._provenance for name in self.changing]
        provenance = mixed(self.digest, *(x._provenance for x in tensors), *values, *changes)
        rates = "".join(f", learning rate {rate.array[0]:g}" for rate in self.built.rates if rate.key not in self.uncompared)
        self.collective_log.add(provenance, f"{self.built.name}{rates}")
        for number, name in enumerate(self.changing):
            self.built.tensors[name]._provenance = provenance + number
        shared = [binding.variable.name for binding, resident in moved if resident.ranks]
        if self.comm is not None or shared:
            written = f" after {', '.join(shared[:3])}{', ...' if len(shared) > 3 else ''} had been written to outside of it" if shared else ""
            agree(
                self.here,
                self.peers,
                mixed(self.collective_log.number, provenance, crc32(" ".join(shared).encode())),
                lambda: f"a call of {self.built.name} at {user_line()}{written}{done(self.here, self.together)}",
            )
        return provenance

    def _copy_back(self, moved: Sequence[tuple[Binding, ResidentMemory]]) -> list[tuple[TensorBase, Array, bool]]:
        """Copy the elements of tensors that left the memory of their variables back to this memory.

        Tensors that now share memory with others stay there; return them with the memory of their variables, and True if the program overwrites
        them.  The first rank writes shared memory.  The ranks have already compared the names of these variables.
        """
        first = self.here.rank.index == self.group.ranks[0]
        staying = []
        for binding, resident in moved:
            if changed := binding.changed("when the graph was compiled"):
                raise JobError(f"{self.built.name} at {user_line()}: {changed}; create another graph")
            if not resident.ranks and len(resident.tensors) > 1:  # views of the memory from before an assignment to `data`
                resident._move(resident.array, duplicate(resident.array))
            if not resident.ranks and is_shared(binding.tensor):
                staying.append((binding.tensor, resident.array, binding.variable.name in self.built.graph.updates))
                continue
            if first or not resident.ranks:
                target = resident.array
                if resident.ranks:
                    assert self.memory.rank is not None
                    target = state_of(self.memory.rank).array(binding.variable.name)
                write(target, binding.tensor.array)
            binding.readmit()
        if any(resident.ranks for _, resident in moved):
            self.peers.barrier()
        return staying

    @property
    def peers(self) -> Communicator:
        """The communicator between the ranks of the graph."""
        assert self.memory.rank is not None
        return self.memory.rank.comm

    @staticmethod
    def _output(meta: Meta, array: Array | None, provenance: int, device: Any = None) -> Tensor:
        output = Tensor(meta.type, meta.layout, empty(meta.type) if array is None else array)
        output._provenance, output._device = provenance, device
        return output

    def tensors(self, arguments: Arguments) -> Sequence[Tensor]:
        """Return the tensors of a call; raise JobError if structure, element types or layouts differ from the first call."""
        expected = self.built.inputs
        if len(arguments.args) == len(expected) and not arguments.options and all(type(x) is Tensor for x in arguments.args):
            tensors: Sequence[Tensor] = arguments.args
        else:
            if form(arguments) != form(self.built.arguments):
                raise JobError(
                    f"{self.built.name} at {user_line()}: inputs must have the structure of the first call, {self.built.arguments!r}; "
                    f"got {arguments!r}"
                )
            tensors = [x for _, x in arguments.leaves()]
        for meta, x in zip(expected, tensors, strict=True):
            if x.tensor_type.dtype is not meta.type.dtype or x.layout != meta.layout:
                actual = Meta(meta.name, x.tensor_type, x.layout)
                raise JobError(
                    f"{self.built.name} at {user_line()}: inputs must have the dtype, placement and sbp of the first call; "
                    f"{meta.name} must be {meta}, but is {actual}; create another graph, or convert it with to_global"
                )
        return tensors

    # ---------------------------------------------------------------- description

    def steps(self) -> list[str]:
        """Return one line per node of the program, with its outputs, their types and layouts, its operation and its inputs."""
        lines = []
        for node in self.physical.graph.nodes:
            outputs = ", ".join(f"{value.name}: {self._meta(value)}" for value in node.outputs)
            lines.append(f"{outputs} = {node.op}({', '.join(value.name for value in node.inputs)})")
        return lines

    def text(self) -> str:
        """Return the program as text, one line per node with layouts and the user's line."""
        return "\n".join(self.lines[1:])

    def variable(self, name: str) -> Tensor:
        """Return a tensor with a copy of the value of a variable; a rank that does not store the variable gets an empty piece."""
        variable = self.physical.graph.variables[name]
        state = None if self.memory.rank is None else state_of(self.memory.rank)
        array = empty(variable.type) if state is None or name not in state.slots else duplicate(state.array(name))
        return Tensor(variable.type, None if self.built.local else self.world(variable), array)
