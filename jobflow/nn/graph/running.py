"""A graph that has been built, as this rank runs it.

Every rank compiles for itself, and those of the graph's placements compare what they compiled before the first run.  The graph's
ranks are numbered from 0 among themselves.  Tensors of the program and variables of the graph are the same memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any
from zlib import crc32

import numpy as np

import jobflow.scope as scope
from jobflow.compiler.compile import distribute, plan_rank
from jobflow.eager.convert import agree, convert_array, done, empty
from jobflow.eager.state import EagerState, mixed
from jobflow.eager.tensor import Storage, Tensor
from jobflow.errors import DivergedError, JobError, user_line
from jobflow.graph.ir import Graph, Node, Value, Variable
from jobflow.graph.rewrite import rebuild
from jobflow.graph.text import physical_text
from jobflow.layout import Layout, Placement
from jobflow.nn.graph.building import Draw
from jobflow.nn.graph.optimizers import Rate
from jobflow.nn.graph.structures import filled, form, leaves
from jobflow.plan.verify import compare_schedules
from jobflow.runtime.comm.base import Communicator
from jobflow.runtime.executor import Executor
from jobflow.runtime.state import State
from jobflow.types import Array, TensorType

#: where a tensor keeps (its array, the bytes that it is a part of, and from which on), if a graph has laid it there
HOME = "_graph_home"


@dataclass(frozen=True)
class Meta:
    """What a graph expects of an input, and gives as an output."""

    name: str
    type: TensorType
    layout: Layout | None

    def __str__(self) -> str:
        return f"{self.type} {'local' if self.layout is None else self.layout}"


@dataclass(frozen=True)
class Built:
    """What was traced, and what it needs from the host at every run."""

    name: str
    graph: Graph
    inputs: tuple[Meta, ...]
    #: what build took and gave, with stand-ins for tensors
    taken: Any
    given: Any
    tensors: Mapping[str, Tensor]
    draws: Sequence[Draw]
    rates: Sequence[Rate]
    schedules: Sequence[Any]
    #: True if its tensors are local
    local: bool


class Numbering:
    """The ranks of a graph, numbered from 0."""

    def __init__(self, graph: Graph) -> None:
        used = [graph.placement, *(node.placement for node in graph.nodes), *(variable.placement for variable in graph.variables.values())]
        self.ranks = tuple(sorted({rank for placement in used for rank in placement.ranks}))
        self.within = {placement: self._numbered(placement) for placement in dict.fromkeys(used)}
        self.outside = {within: placement for placement, within in self.within.items()}

    def _numbered(self, placement: Placement) -> Placement:
        return Placement(placement.tag, tuple(map(self.ranks.index, placement.ranks)), placement.mesh)

    def graph(self, graph: Graph) -> Graph:
        """The graph with the ranks' numbers."""

        def place(node: Node) -> None:
            node.placement = self.within[node.placement]

        made = rebuild(graph, lambda node, inputs: None, place)
        variables = {name: self.variable(variable) for name, variable in graph.variables.items()}
        return replace(made, placement=self.within[graph.placement], variables=variables)

    def variable(self, variable: Variable) -> Variable:
        return replace(variable, placement=self.within[variable.placement])

    def layout(self, layout: Any) -> Layout:
        """A layout with numbers of the world."""
        assert isinstance(layout, Layout)
        return Layout(self.outside[layout.placement], layout.sbp)


@dataclass
class Memory:
    """What the programs of one graph, one for each shape of its inputs, have in common."""

    #: the ranks they run on, and this rank's variables, if it is one of them
    ranks: tuple[int, ...] | None = None
    state: State | None = None
    #: tensors that are variables, by name, and where they lie
    tensors: dict[str, Tensor] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)


class Bound:
    """A graph that is ready to run."""

    def __init__(self, here: EagerState, built: Built, loaded: Mapping[str, Tensor], memory: Memory) -> None:
        self.here = here
        self.built = built
        self.memory = memory
        self.numbering = Numbering(built.graph)
        self._check_memory()
        self.physical = distribute(self.numbering.graph(built.graph))
        self.lines = physical_text(self.physical).splitlines()
        self.digest = crc32("\n".join(map(_bare, self.lines)).encode())
        given = [x for _, x in leaves(built.given, "an output")]
        self.outputs = [self._given(value, x) for value, x in zip(self.physical.graph.outputs, given, strict=True)]
        self.state: State | None = None
        self.executor: Executor | None = None
        self.shared: list[tuple[Tensor, Array, Layout | None]] = []
        self.storages: list[Storage] = []
        self.together = Placement("cpu", self.numbering.ranks)
        self.trail = here.trail(self.together)
        #: tensors of the program that a run writes over
        self.changing = [name for name in built.tensors if name in built.graph.updates]
        #: this rank's peers, if it exchanges anything with them in a run
        self.comm: Communicator | None = None
        self.rank = here.rank
        if here.rank.index in self.numbering.ranks:
            self._bind(loaded)
        else:
            self._follow()
        self.shapes = tuple(meta.type.shape for meta in built.inputs)
        self.constant = {draw.key: draw.array for draw in built.draws} | {rate.key: rate.array for rate in built.rates}

    def _meta(self, value: Value) -> Meta:
        return Meta(value.name, value.type, None if self.built.local else self.numbering.layout(self.physical.layouts[value]))

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
        memory.ranks = memory.ranks or self.numbering.ranks
        other = next((name for name, x in tensors.items() if memory.tensors.setdefault(name, x) is not x), None)
        if other is not None or memory.ranks != self.numbering.ranks:
            what = f"runs on other ranks, {list(self.numbering.ranks)}," if other is None else f"has another tensor as {other}"
            raise JobError(f"{self.built.name} at {user_line()}: the graph {what} than for the shapes of its earlier calls; make another graph")

    def _bind(self, loaded: Mapping[str, Tensor]) -> None:
        here, ranks = self.here, self.numbering.ranks
        comm, index = here.rank.comm.group(ranks), ranks.index(here.rank.index)
        what = self._described()
        agree(here, comm, crc32(what.encode()), lambda: what)
        self._compare(comm)
        self.state = self.memory.state = self.memory.state or State(index, here.device, comm)
        self._place(self.state, index, loaded)
        plan = plan_rank(self.physical, index, self.state.slots, True)
        compare_schedules(self.built.name, comm.exchange(plan.schedule))
        self.executor = Executor(plan, here.device, comm, self.state)
        self.comm = comm if plan.schedule else None

    def _follow(self) -> None:
        """On a rank outside: tensors that the graph stores otherwise lie otherwise from now on, seen from here too."""
        for variable in self.physical.graph.variables.values():
            x = self.built.tensors.get(variable.name)
            if x is not None:
                self._relaid(x, variable)

    def _described(self) -> str:
        return f"the first call of {self.built.name}({', '.join(f'{meta.name} {meta}' for meta in self.built.inputs)}) at {user_line()}"

    def _compare(self, comm: Communicator) -> None:
        """DivergedError, with the first step in which they differ, unless all ranks have built the same."""
        if len(set(comm.exchange(self.digest))) == 1:
            return
        programs = comm.exchange(self.lines)
        first = programs[0]
        rank, other = next((i, lines) for i, lines in enumerate(programs) if list(map(_bare, lines)) != list(map(_bare, first)))
        a, b = next((a, b) for a, b in zip_longest(first, other, fillvalue="nothing more") if _bare(a) != _bare(b))
        names = self.numbering.ranks[0], self.numbering.ranks[rank]
        raise DivergedError(
            f"{self._described()}: ranks {names[0]} and {names[1]} have built different graphs; every rank builds the same one. "
            f"The first difference:\n  rank {names[0]}: {a.strip()}\n  rank {names[1]}: {b.strip()}"
        )

    def _place(self, state: State, index: int, loaded: Mapping[str, Tensor]) -> None:
        """Give the graph's variables memory: that which their tensors have, as far as it can be used as it is."""
        fresh: list[Variable] = []
        for variable in self.physical.graph.variables.values():
            x = self.built.tensors.get(variable.name)
            if variable.name in state.variables:
                self._check_stored(state.variables[variable.name], variable)
            elif index not in variable.placement.ranks:
                if x is not None:
                    self._relaid(x, variable)
            elif not (x is not None and not self._relaid(x, variable) and _adopted(state, variable, x)):
                fresh.append(variable)
        state.declare(fresh)
        for variable in fresh:
            given = self.built.tensors.get(variable.name)
            saved = loaded.get(variable.name) if given is None else given
            if saved is not None:
                state.write(variable.name, self._piece(saved, variable))
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
        if x.layout is None:
            return False
        stored = self.numbering.layout(Layout(variable.placement, variable.sbp))
        if stored == x.layout:
            return False
        x.array, x.layout = convert_array(self.here, x.array, x.type, x.layout, stored, f"{self.built.name}: {variable.name}").copy(), stored
        return True

    def _piece(self, saved: Tensor, variable: Variable) -> Array:
        if saved.type != variable.type or (saved.layout is None) != self.built.local:
            where = "local" if self.built.local else "global"
            kind = "local" if saved.layout is None else str(saved.layout)
            raise JobError(
                f'{self.built.name} at {user_line()}: loaded "{variable.name}" {saved.type} {kind}, where the graph has a {where} {variable.type}'
            )
        if saved.layout is None:
            return saved.array
        return convert_array(self.here, saved.array, saved.type, saved.layout, self.world(variable), f"{self.built.name}: {variable.name}")

    def world(self, variable: Variable) -> Layout:
        """How a variable lies, with numbers of the world."""
        return self.numbering.layout(variable.layout)

    def _share(self, state: State, name: str, x: Tensor) -> None:
        array = self.memory.arrays.get(name)
        if array is None:
            array = x.array = self.memory.arrays[name] = state.array(name)
            slot = state.slots[name]
            x.__dict__[HOME] = array, state.buffers[slot.buffer], slot.offset
        self.shared.append((x, array, x.layout))
        if name in self.built.graph.updates:
            self.storages.append(x.memory)

    # ---------------------------------------------------------------- running

    def __call__(self, tensors: Sequence[Tensor]) -> Any:
        """One run, on tensors of the shapes that it is for."""
        if self.comm is not None and self.rank is not self.here.rank:
            raise JobError(
                f"{self.built.name} at {user_line()}: clear_default_session has ended the session that the graph was compiled in, "
                f"and its ranks with it; make another graph, and load what state_dict() of this one gives"
            )
        with scope.lock():  # every run uses the same memory
            return self._run(tensors)

    def _run(self, tensors: Sequence[Tensor]) -> Any:
        arrays = {meta.name: x.array for meta, x in zip(self.built.inputs, tensors, strict=True)}
        for draw in self.built.draws:
            draw.array[0] = draw.generator.next()
        for rate in self.built.rates:
            rate.array[0] = rate.group["lr"]
        origin = self._agreed(tensors)
        made: dict[int, Array] = {}
        if self.executor is not None:
            for x, array, layout in self.shared:
                if x.array is not array:
                    self._take(x, array, layout)
            made = self._step(self.executor, arrays)
            for storage in self.storages:
                storage.version += 1
        for schedule in self.built.schedules:
            schedule.step()
        found = (self._output(meta, made.get(i), origin + i) for i, meta in enumerate(self.outputs))
        return filled(self.built.given, found)

    def _step(self, executor: Executor, arrays: Mapping[str, Array]) -> dict[int, Array]:
        """This rank's parts of the outputs by number.  A run that fails has drawn nothing."""
        try:
            return dict(executor.run({**arrays, **self.constant}))
        except BaseException:
            for draw in self.built.draws:
                draw.generator.draws -= 1
            raise

    def _agreed(self, tensors: Sequence[Tensor]) -> int:
        """Make sure that all ranks run this graph now, on the same; a number for that."""
        fed = [crc32(array.tobytes()) for array in self.constant.values()]
        held = [self.built.tensors[name].origin for name in self.changing]
        origin = mixed(self.digest, *(x.origin for x in tensors), *fed, *held)
        rates = "".join(f", learning rate {rate.array[0]:g}" for rate in self.built.rates)
        self.trail.add(origin, f"{self.built.name}{rates}")
        for number, name in enumerate(self.changing):
            self.built.tensors[name].origin = origin + number
        if self.comm is not None:
            agree(
                self.here,
                self.comm,
                mixed(self.trail.number, origin),
                lambda: f"a call of {self.built.name} at {user_line()}{done(self.here, self.together)}",
            )
        return origin

    def _take(self, x: Tensor, array: Array, layout: Layout | None) -> None:
        """The program has put other memory in the place of a tensor's: the graph's memory gets its numbers."""
        name = next(name for name, tensor in self.built.tensors.items() if tensor is x)
        before = Meta(name, self.built.graph.variables[name].type, layout)
        now = Meta(name, x.type, x.layout)
        if now != before:
            raise JobError(
                f"{self.built.name} at {user_line()}: {name} was {before} when the graph was compiled and is {now} now; make another graph"
            )
        array[...] = x.array
        x.array = array

    @staticmethod
    def _output(meta: Meta, array: Array | None, origin: int) -> Tensor:
        made = Tensor(meta.type, meta.layout, empty(meta.type) if array is None else array)
        made.origin = origin
        return made

    def tensors(self, given: tuple[Any, ...]) -> Sequence[Tensor]:
        """The tensors of a call.  JobError unless they are as those of the first call were, but for their shapes."""
        expected = self.built.inputs
        if len(given) == len(expected) and all(type(x) is Tensor for x in given):
            found: Sequence[Tensor] = given
        else:
            self._check_form(given)
            found = [x for _, x in leaves(given, "input")]
        for meta, x in zip(expected, found, strict=True):
            if x.type.dtype is not meta.type.dtype or x.layout != meta.layout:
                actual = Meta(meta.name, x.type, x.layout)
                raise JobError(
                    f"{self.built.name} at {user_line()}: a graph takes inputs of the dtype, placement and sbp of its first call; "
                    f"{meta.name} was expected as {meta} and is {actual}. Make another graph for it, or bring it over with to_global"
                )
        return found

    def _check_form(self, given: Any) -> None:
        if form(given) != form(self.built.taken):
            raise JobError(
                f"{self.built.name} at {user_line()}: a graph takes inputs nested as in its first call, {self.built.taken!r}; got {given!r}"
            )

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
        return "\n".join(self.lines)

    def variable(self, name: str) -> Tensor:
        """A copy of one of the graph's own variables."""
        variable = self.physical.graph.variables[name]
        array = empty(variable.type) if self.state is None or name not in self.state.slots else self.state.read(name)
        return Tensor(variable.type, None if self.built.local else self.world(variable), np.array(array))


def _adopted(state: State, variable: Variable, x: Tensor) -> bool:
    """Whether the variable can lie where the tensor does: where a graph has laid it, or anywhere if nothing is gained by laying it beside others."""
    array, buffer, offset = x.__dict__.get(HOME, (None, None, 0))
    if array is None or array is not x.array:
        if variable.trainable or not x.array.flags.c_contiguous or not x.array.flags.writeable:
            return False
        buffer, offset = x.array.reshape(-1).view(np.uint8), 0
    state.adopt(variable, buffer, offset)
    return True


def _bare(line: str) -> str:
    """A step of a program without the line that asked for it."""
    return line.partition("  # ")[0]
