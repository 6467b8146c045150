"""A compiled graph on this rank: binding, running, optimizer state.

Every rank compiles for itself, and those of the graph's placements compare what they compiled before the first run.  The graph's
ranks are numbered from 0 among themselves.  Tensors of the program and variables of the graph are the same memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

import jobflow.core.scope as scope
from jobflow.compiler.compile import distribute
from jobflow.core.cache_folder import choose_cache_folder
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import DivergedError, JobError, user_line
from jobflow.core.layout import Layout, Placement
from jobflow.core.types import Array, TensorType
from jobflow.eager.convert import agree, convert_array, done, empty
from jobflow.eager.session_tensors import Binding, adopt_layout
from jobflow.eager.state import EagerState, mixed
from jobflow.eager.structures import filled, form, leaves
from jobflow.eager.tensor import ResidentMemory, Storage, move_memory
from jobflow.engine.session import current_session
from jobflow.functional.tensor_class import Tensor
from jobflow.graph.graph_text import physical_text
from jobflow.graph.ir import Graph, Value, Variable
from jobflow.kernels.target import target_of
from jobflow.nn.graph.building import Draw
from jobflow.nn.parameter import Parameter
from jobflow.plan.storage import is_common
from jobflow.program.program import Program, StorageChoice, state_of
from jobflow.program.rank_group import RankGroup, compare_programs, program_digest
from jobflow.runtime.comm.communicator import Communicator
from jobflow.runtime.executor import Executor
from jobflow.runtime.interrupts import held
from jobflow.runtime.variable_buffers import State
from jobflow.runtime.world.world import Rank


@dataclass(frozen=True)
class Meta:
    """What a graph expects of an input, and gives as an output."""

    name: str
    type: TensorType
    layout: Layout | None

    def __str__(self) -> str:
        return f"{self.type} {'local' if self.layout is None else self.layout}"


class Arguments(NamedTuple):
    """What a graph is called with."""

    args: tuple[Any, ...]
    options: dict[str, Any]

    def leaves(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors, by name."""
        for name, x in (*((f"input{i}", x) for i, x in enumerate(self.args)), *self.options.items()):
            yield from leaves(x, name)

    def __repr__(self) -> str:
        return repr((*self.args, self.options) if self.options else self.args)


@dataclass(frozen=True)
class Built:
    """What was traced, and what it needs from the host at every run."""

    name: str
    graph: Graph
    inputs: tuple[Meta, ...]
    #: what build took and gave, with stand-ins for tensors
    taken: Arguments
    given: Any
    tensors: Mapping[str, Tensor]
    draws: Sequence[Draw]
    rates: Sequence[Any]
    schedules: Sequence[Any]
    #: True if its tensors are local
    local: bool


@dataclass
class Memory:
    """What the programs of one graph, one for each shape of its inputs, have in common."""

    #: the ranks they run on, and this rank as one of them, if it is
    ranks: tuple[int, ...] | None = None
    rank: Rank | None = None
    #: tensors that are variables, by name, and where they lie
    tensors: dict[str, Tensor] = field(default_factory=dict)
    homes: dict[str, ResidentMemory] = field(default_factory=dict)
    #: variables that have got what was loaded for them
    loaded: set[str] = field(default_factory=set)


class Bound:
    """A graph that is ready to run."""

    def __init__(self, here: EagerState, built: Built, loaded: Mapping[str, Tensor], memory: Memory) -> None:
        self.here = here
        self.built = built
        self.memory = memory
        #: by which its graph keeps it
        self.key = current_session().settings.kernels, tuple(meta.type.shape for meta in built.inputs)
        self.group = RankGroup.of(built.graph)
        self._check_memory()
        self.physical = distribute(self.group.graph(built.graph))
        self.lines = [f"kernels: {self.key[0]}", *physical_text(self.physical).splitlines()]
        self.digest = program_digest(self.lines)
        given = [x for _, x in leaves(built.given, "an output")]
        self.outputs = [self._given(value, x) for value, x in zip(self.physical.graph.outputs, given, strict=True)]
        self.executor: Executor | None = None
        #: tensors that are variables, and where the program has them
        self.ties: list[tuple[Binding, ResidentMemory]] = []
        self.storages: list[Storage] = []
        self.together = Placement("cpu", self.group.ranks)
        self.collective_log = here.collective_log(self.together)
        #: tensors of the program that a run writes over
        self.changing = [name for name in built.tensors if name in built.graph.updates]
        #: this rank's peers, if it exchanges anything with them in a run
        self.comm: Communicator | None = None
        self.rank = here.rank
        if here.rank.index in self.group.ranks:
            self._bind(loaded)
        else:
            self._follow(loaded)
        self.constant = {draw.key: draw.array for draw in built.draws} | {rate.key: rate.array for rate in built.rates}

    def _meta(self, value: Value) -> Meta:
        return Meta(value.name, value.tensor_type, None if self.built.local else self.group.world_layout(self.physical.layouts[value]))

    def _given(self, value: Value, x: Tensor) -> Meta:
        """An output; along mesh dimensions of one rank, where all layouts are one, it lies as build saw it."""
        meta = self._meta(value)
        if meta.layout is None or x.layout is None or x.layout.placement != meta.layout.placement:
            return meta
        mesh = meta.layout.placement.mesh
        sbp = tuple(seen if n == 1 else found for seen, found, n in zip(x.layout.sbp, meta.layout.sbp, mesh, strict=True))
        return replace(meta, layout=Layout(meta.layout.placement, sbp))

    # ---------------------------------------------------------------- memory

    def _check_memory(self) -> None:
        """JobError unless the program can work on the memory of those for other shapes."""
        memory, tensors = self.memory, self.built.tensors
        memory.ranks = memory.ranks or self.group.ranks
        other = next((name for name, x in tensors.items() if memory.tensors.setdefault(name, x) is not x), None)
        if other is not None or memory.ranks != self.group.ranks:
            what = f"runs on other ranks, {list(self.group.ranks)}," if other is None else f"has another tensor as {other}"
            raise JobError(f"{self.built.name} at {user_line()}: the graph {what} than for the shapes of its earlier calls; make another graph")

    def _bind(self, loaded: Mapping[str, Tensor]) -> None:
        here, ranks = self.here, self.group.ranks
        comm, index = here.rank.comm.group(ranks), ranks.index(here.rank.index)
        what = self._described()
        agree(here, comm, crc32(what.encode()), lambda: what)
        self._compare(comm)
        rank = self.memory.rank = self.memory.rank or Rank(index, len(ranks), here.device, comm)
        fresh = self._adopt(state_of(rank), comm)
        storage = StorageChoice(share=current_session().settings.share_variables, copies=True, in_place=True)
        choose_cache_folder(current_session().settings.cache_folder)
        ready = Program(self.physical, storage, target_of(rank.device.tag, self.key[0])).bind(rank)
        self._fill(state_of(rank), fresh, loaded)
        self.executor = ready.executor
        self.comm = comm if ready.plan.schedule or ready.executor.depart is not None else None

    def _follow(self, loaded: Mapping[str, Tensor]) -> None:
        """On a rank outside: tensors that the graph stores otherwise lie otherwise from now on, seen from here too; what was loaded may lie here."""
        for variable in self.physical.graph.variables.values():
            x = self.built.tensors.get(variable.name)
            if x is not None:
                self._relaid(x, variable)
        self._pieces(loaded)

    def _described(self) -> str:
        return f"the first call of {self.built.name}({', '.join(f'{meta.name} {meta}' for meta in self.built.inputs)}) at {user_line()}"

    def _compare(self, comm: Communicator) -> None:
        """Raise DivergedError unless all ranks have built the same graph."""
        if difference := compare_programs(self.lines, self.group.ranks, comm.exchange):
            first, other = difference.ranks
            raise DivergedError(
                f"{self._described()}: ranks {first} and {other} have built different graphs; every rank builds the same one. {difference}"
            )

    def _adopt(self, state: State, comm: Communicator) -> list[Variable]:
        """Let variables lie where their tensors do, as far as all ranks can use that as it is; the others, which are new here."""
        index = self.group.ranks.index(self.here.rank.index)
        fresh: list[Variable] = []
        usable: dict[str, ResidentMemory] = {}
        for variable in self.physical.graph.variables.values():
            x = self.built.tensors.get(variable.name)
            if variable.name in state.variables:
                self._check_stored(state.variables[variable.name], variable)
            elif index not in variable.placement.ranks:
                if x is not None:
                    self._relaid(x, variable)
            else:
                fresh.append(variable)
                if x is not None and not self._relaid(x, variable) and (home := self._usable(x, variable)) is not None:
                    usable[variable.name] = home
        unusable = set().union(*comm.exchange({variable.name for variable in fresh if variable.name not in usable}))
        for variable in fresh:
            if variable.name not in unusable:
                home = usable[variable.name]
                state.attach(variable, home.buffer, home.offset, bool(home.ranks))
        return [variable for variable in fresh if variable.name in unusable]

    def _usable(self, x: Tensor, variable: Variable) -> ResidentMemory | None:
        """Where the tensor lies, if the variable can lie there: where a graph has laid it, or anywhere if nothing is gained by laying it elsewhere.

        Where other ranks look too, only if they are those of this graph, or if it only reads there.
        """
        home = None if x.storage is None else x.storage.resident
        writes = variable.name in self.built.graph.updates
        if home is not None and x.array is home.array:
            return home if home.ranks in ((), self.group.ranks) and not home.copies else None
        if variable.trainable or not x.array.flags.c_contiguous or (writes and not x.array.flags.writeable):
            return None
        if isinstance(x, Parameter) and variable.layout.is_whole and variable.placement.size == len(self.group.ranks) > 1:
            return None
        return ResidentMemory(x.array, x.array.reshape(-1).view(np.uint8), 0)

    def _fill(self, state: State, fresh: Sequence[Variable], loaded: Mapping[str, Tensor]) -> None:
        """Give new variables the numbers of their tensors, or those that were loaded; from now on the tensors lie where the variables do."""
        pieces = self._pieces(loaded)
        for variable in fresh:
            x = self.built.tensors.get(variable.name)
            piece = pieces.get(variable.name) if x is None else self._piece(x, variable)
            if piece is not None:
                state.write(variable.name, piece)
        for name, x in self.built.tensors.items():
            if name in state.slots:
                self._share(state, name, x)

    def _check_stored(self, stored: Variable, variable: Variable) -> None:
        if (stored.type, stored.layout) != (variable.type, variable.layout):
            raise JobError(
                f"{self.built.name} at {user_line()}: {variable.name} is {stored.type} {stored.layout} in the program for an earlier shape "
                f"and {variable.type} {variable.layout} in that for this one; make another graph"
            )

    def _relaid(self, x: Tensor, variable: Variable) -> bool:
        """Whether the graph stores a tensor otherwise than it lies; it lies so from now on."""
        lies = self.group.world_layout(Layout(variable.placement, variable.sbp))
        return adopt_layout(self.here, x, lies, f"{self.built.name}: {variable.name}")

    def _pieces(self, loaded: Mapping[str, Tensor]) -> dict[str, Array]:
        """This rank's pieces of loaded variables without tensors; every rank there is calls it, for each may have some of what was loaded."""
        variables = self.physical.graph.variables
        names = [name for name in variables if name in loaded and name not in self.built.tensors and name not in self.memory.loaded]
        self.memory.loaded.update(names)
        return {name: self._piece(loaded[name], variables[name]) for name in names}

    def _piece(self, saved: Tensor, variable: Variable) -> Array:
        if saved.tensor_type != variable.type or (saved.layout is None) != self.built.local:
            where = "local" if self.built.local else "global"
            kind = "local" if saved.layout is None else str(saved.layout)
            raise JobError(
                f'{self.built.name} at {user_line()}: loaded "{variable.name}" {saved.tensor_type} {kind}, where the graph has a '
                f"{where} {variable.type}"
            )
        if saved.layout is None:
            return saved.array
        return convert_array(self.here, saved.array, saved.tensor_type, saved.layout, self.world(variable), f"{self.built.name}: {variable.name}")

    def world(self, variable: Variable) -> Layout:
        """How a variable lies, with numbers of the world."""
        return self.group.world_layout(variable.layout)

    def _share(self, state: State, name: str, x: Tensor) -> None:
        home = self.memory.homes.get(name)
        if home is None:
            slot, known = state.slots[name], None if x.storage is None else x.storage.resident
            if known is not None and x.array is known.array and state.buffers[slot.buffer] is known.buffer:
                home = known
            else:
                ranks = self.group.ranks if is_common(slot.buffer) else ()
                home = ResidentMemory(state.array(name), state.buffers[slot.buffer], slot.offset, ranks)
                move_memory(x, home)
            self.memory.homes[name] = home
        self.ties.append((Binding(self.built.graph.variables[name], x, home, x.tensor_type, x.layout), home))
        if name in self.built.graph.updates:
            self.storages.append(x.memory)

    # ---------------------------------------------------------------- running

    def __call__(self, tensors: Sequence[Tensor]) -> Any:
        """One run, on tensors of the shapes that it is for."""
        self.check_session()
        with scope.lock(), held():  # every run uses the same memory
            return self._run(tensors)

    def check_session(self) -> None:
        """JobError if the session has ended whose ranks the program runs on."""
        if self.comm is not None and self.rank is not self.here.rank:
            raise JobError(
                f"{self.built.name} at {user_line()}: clear_default_session has ended the session that the graph was compiled in, "
                f"and its ranks with it; make another graph, and load what state_dict() of this one gives"
            )

    def _run(self, tensors: Sequence[Tensor]) -> Any:
        arrays = {meta.name: x.array for meta, x in zip(self.built.inputs, tensors, strict=True)}
        for draw in self.built.draws:
            draw.array[0] = draw.generator.next()
        for rate in self.built.rates:
            rate.array[0] = rate.group["lr"]
        moved = [(tie, home) for tie, home in self.ties if tie.tensor.array is not home.array]
        provenance = self._agreed(tensors, moved)
        made: dict[int, Array] = {}
        if self.executor is not None:
            if moved:
                self._take(moved)
            made = self._step(self.executor, arrays)
            for storage in self.storages:
                storage.version += 1
        for schedule in self.built.schedules:
            schedule.step()
        found = (self._output(meta, made.get(i), provenance + i) for i, meta in enumerate(self.outputs))
        return filled(self.built.given, found)

    def _step(self, executor: Executor, arrays: Mapping[str, Array]) -> dict[int, Array]:
        """This rank's parts of the outputs by number.  A run that fails has drawn nothing."""
        try:
            return dict(executor.run({**arrays, **self.constant}))
        except BaseException:
            for draw in self.built.draws:
                draw.generator.draws -= 1
            raise

    def _agreed(self, tensors: Sequence[Tensor], moved: Sequence[tuple[Binding, ResidentMemory]]) -> int:
        """Make sure that all ranks run this graph now, on the same; a number for that."""
        fed = [crc32(array.tobytes()) for array in self.constant.values()]
        held = [self.built.tensors[name]._provenance for name in self.changing]
        provenance = mixed(self.digest, *(x._provenance for x in tensors), *fed, *held)
        rates = "".join(f", learning rate {rate.array[0]:g}" for rate in self.built.rates)
        self.collective_log.add(provenance, f"{self.built.name}{rates}")
        for number, name in enumerate(self.changing):
            self.built.tensors[name]._provenance = provenance + number
        theirs = [tie.variable.name for tie, home in moved if home.ranks]
        if self.comm is not None or theirs:
            written = f" after {', '.join(theirs[:3])}{', ...' if len(theirs) > 3 else ''} had been written to outside of it" if theirs else ""
            agree(
                self.here,
                self.peers,
                mixed(self.collective_log.number, provenance, crc32(" ".join(theirs).encode())),
                lambda: f"a call of {self.built.name} at {user_line()}{written}{done(self.here, self.together)}",
            )
        return provenance

    def _take(self, moved: Sequence[tuple[Binding, ResidentMemory]]) -> None:
        """The program has put other memory in the place of tensors': the graph's memory gets its numbers.

        Of what the ranks have in common these are the first rank's; all ranks have agreed to be here.
        """
        first = self.here.rank.index == self.group.ranks[0]
        for tie, home in moved:
            if changed := tie.changed("when the graph was compiled"):
                raise JobError(f"{self.built.name} at {user_line()}: {changed}; make another graph")
            if first or not home.ranks:
                target = home.array
                if home.ranks:
                    assert self.memory.rank is not None
                    target = state_of(self.memory.rank).array(tie.variable.name)
                target[...] = tie.tensor.array
            tie.readmit()
        if any(home.ranks for _, home in moved):
            self.peers.barrier()

    @property
    def peers(self) -> Communicator:
        """The communicator of the graph's ranks."""
        assert self.memory.rank is not None
        return self.memory.rank.comm

    @staticmethod
    def _output(meta: Meta, array: Array | None, provenance: int) -> Tensor:
        made = Tensor(meta.type, meta.layout, empty(meta.type) if array is None else array)
        made._provenance = provenance
        return made

    def tensors(self, given: Arguments) -> Sequence[Tensor]:
        """The tensors of a call.  JobError unless they are as those of the first call were, but for their shapes."""
        expected = self.built.inputs
        if len(given.args) == len(expected) and not given.options and all(type(x) is Tensor for x in given.args):
            found: Sequence[Tensor] = given.args
        else:
            if form(given) != form(self.built.taken):
                raise JobError(
                    f"{self.built.name} at {user_line()}: a graph takes inputs nested as in its first call, {self.built.taken!r}; got {given!r}"
                )
            found = [x for _, x in given.leaves()]
        for meta, x in zip(expected, found, strict=True):
            if x.tensor_type.dtype is not meta.type.dtype or x.layout != meta.layout:
                actual = Meta(meta.name, x.tensor_type, x.layout)
                raise JobError(
                    f"{self.built.name} at {user_line()}: a graph takes inputs of the dtype, placement and sbp of its first call; "
                    f"{meta.name} was expected as {meta} and is {actual}. Make another graph for it, or convert it with to_global"
                )
        return found

    # ---------------------------------------------------------------- what it is

    def steps(self) -> list[str]:
        """A line for every step of the program: what it makes, how that lies, and of what."""
        lines = []
        for node in self.physical.graph.nodes:
            made = ", ".join(f"{value.name}: {self._meta(value)}" for value in node.outputs)
            lines.append(f"{made} = {node.op}({', '.join(value.name for value in node.inputs)})")
        return lines

    def text(self) -> str:
        """The program with layouts and the lines that asked for it."""
        return "\n".join(self.lines[1:])

    def variable(self, name: str) -> Tensor:
        """A copy of one of the graph's own variables."""
        variable = self.physical.graph.variables[name]
        state = None if self.memory.rank is None else state_of(self.memory.rank)
        array = empty(variable.type) if state is None or name not in state.slots else state.read(name)
        return Tensor(variable.type, None if self.built.local else self.world(variable), np.array(array))
