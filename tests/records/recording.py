"""Recorder of a running jobflow program: names, layouts, plans, keys of random streams and values.

This file has all uses of private names, so that renames inside the package change only this file. Records have
no lines of the programs.
"""

from __future__ import annotations

import hashlib
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np

import jobflow as flow
import jobflow.compiler.compile
from jobflow import scope
from jobflow.core import notices
from jobflow.data import sample_order as order
from jobflow.engine.returned import Future, LocalBlob
from jobflow.engine.session import Session
from jobflow.expressions import philox
from jobflow.functional.tensor_class import Tensor
from jobflow.graph.graph_text import physical_text
from jobflow.plan.footprint import footprint
from jobflow.plan.plan import Collective, Compute, Transfer
from jobflow.plan.traffic import planned
from jobflow.runtime.device.numpy_device import CpuDevice
from jobflow.runtime.world.solo import SoloWorld
from jobflow.runtime.world.threads import ThreadsWorld
from jobflow.runtime.world.world import Rank
from jobflow.tensors.state import EagerState, building_now
from jobflow.tools.explain import boxing_rows

#: what is recorded of a run, as JSON has it
Record = dict[str, Any]
#: the job of a change of layout that is made at once, which is no program of the user
AT_ONCE = "convert"
#: characters of a hash
LENGTH = 12


def short_hash(*parts: str | bytes | memoryview) -> str:
    """A short text that differs if the content does."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
    return digest.hexdigest()[:LENGTH]


# -------------------------------------------------------------------- numbers


def number_text(what: str, value: Any) -> str:
    """A result: the mean of its magnitudes as hex (of one element, itself), and a hash of its bytes if it has more elements."""
    arrays = [np.asarray(x) for x in _arrays(value)]
    if sum(x.size for x in arrays) == 1:
        return f"{what} {float(next(x for x in arrays if x.size).item()).hex()}"
    every = np.concatenate([np.abs(x.astype(np.float64)).ravel() for x in arrays]) if arrays else np.zeros(0)
    mean = float(every.mean()) if every.size else 0.0
    return f"{what} {mean.hex()} {short_hash(*(np.ascontiguousarray(x).tobytes() for x in arrays))}"


def _arrays(value: Any) -> Iterator[Any]:
    if isinstance(value, Future):
        value = value.get()
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value)]
    if isinstance(value, list | tuple):
        for one in value:
            yield from _arrays(one)
    elif value is not None:
        yield value.numpy() if isinstance(value, LocalBlob) else value


# -------------------------------------------------------------------- inside


@dataclass
class Rankwise:
    """The programs and plans of one rank, in the order of compilation."""

    programs: list[tuple[Any, Any]] = field(default_factory=list)
    numbers: list[str] = field(default_factory=list)
    modules: list[Any] = field(default_factory=list)
    optimizers: list[Any] = field(default_factory=list)
    final: str = ""


class Recorder:
    """Watches what is compiled and computed while it is in force."""

    def __init__(self) -> None:
        self.ranks: dict[int, Rankwise] = {}
        self.streams: set[str] = set()
        #: hashes of all variables, one for each session that has ended
        self.final: list[str] = []
        self._guard = threading.Lock()

    def of(self, rank: int) -> Rankwise:
        with self._guard:
            return self.ranks.setdefault(rank, Rankwise())

    def number(self, rank: int, what: str, value: Any) -> None:
        self.of(rank).numbers.append(number_text(what, value))

    @contextmanager
    def in_force(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, watch in self._watched():
                stack.enter_context(mock.patch.object(owner, name, watch(getattr(owner, name))))
            yield

    def _watched(self) -> Sequence[tuple[Any, str, Callable[[Any], Any]]]:
        """Whose attribute is replaced while programs are watched, and by what."""
        return (
            (jobflow.compiler.compile, "plan_rank", self._plans),
            (philox, "key_of", self._keys),
            (Session, "performed", self._results),
            (Session, "close", self._ends),
            (Tensor, "item", self._items),
            (flow.nn.Module, "__init__", lambda make: self._makes(make, "modules")),
            (flow.optim.Optimizer, "__init__", lambda make: self._makes(make, "optimizers")),
        )

    def _plans(self, plan_rank: Any) -> Any:
        def watched(physical: Any, memory: Any, target: Any) -> Any:
            plan = plan_rank(physical, memory, target)
            if plan.job != AT_ONCE:
                self.of(memory.rank).programs.append((physical, plan))
            return plan

        return watched

    def _keys(self, key_of: Any) -> Any:
        def watched(seed: int, name: str) -> Any:
            with self._guard:
                self.streams.add(f"{seed}/{name}")
            return key_of(seed, name)

        return watched

    def _results(self, performed: Any) -> Any:
        def watched(session: Session, job: Any, args: Any) -> Any:
            give = performed(session, job, args)

            def result() -> Any:
                value = give()
                self.number(0, job.name, value)
                return value

            return result

        return watched

    def _ends(self, close: Any) -> Any:
        def watched(session: Session) -> None:
            if session.world is not None and session.variables:
                values = session.read(sorted(session.variables))
                self.final.append(_values_hash(values))
            close(session)

        return watched

    def _items(self, item: Any) -> Any:
        def watched(tensor: Tensor) -> Any:
            value = item(tensor)
            if building_now() is None:
                self.number(this_rank(), "item", np.asarray(value))
            return value

        # traces of compiled functions do not observe functions of jobflow
        return types.FunctionType(watched.__code__, {**globals(), "__name__": "jobflow.recorded"}, "item", None, watched.__closure__)

    def _makes(self, make: Any, kind: str) -> Any:
        def watched(instance: Any, *args: Any, **options: Any) -> None:
            own = getattr(self.of(this_rank()), kind)
            if all(instance is not other for other in own):
                own.append(instance)
            make(instance, *args, **options)

        return watched

    def record(self) -> Record:
        """Return the record as plain data."""
        first = self.of(0)
        programs = []
        for at in range(max(len(own.programs) for own in self.ranks.values())):
            each = {rank: own.programs[at] for rank, own in sorted(self.ranks.items()) if at < len(own.programs)}
            programs.append(program_record(each))
        fields: Record = {"programs": programs, "streams": sorted(self.streams), "numbers": first.numbers}
        for rank, own in self.ranks.items():
            if own.numbers not in (first.numbers, []):
                fields[f"numbers of rank {rank}"] = own.numbers
        fields |= eager_record(first)
        finals = [*self.final, *(own.final for _, own in sorted(self.ranks.items()) if own.final)]
        return fields | ({"final": finals} if finals else {})


def this_rank() -> int:
    """The number of the rank whose thread this is; 0 where there are no ranks."""
    eager = scope.current().root.eager
    return 0 if eager is None else int(eager.rank.index)


def _values_hash(values: dict[str, Any]) -> str:
    parts = [(f"{name} {x.dtype} {x.shape}", np.ascontiguousarray(x).tobytes()) for name, x in sorted(values.items())]
    return short_hash(*(part for pair in parts for part in pair))


def program_record(each: dict[int, tuple[Any, Any]]) -> Record:
    """A compiled program, from the physical graph and the plan of each rank."""
    physical, plan = each[min(each)]
    graph = physical.graph
    texts = {rank: program_lines(physical) for rank, (physical, _) in each.items()}
    first = texts[min(texts)]
    fields: Record = {
        "job": graph.name,
        "placement": str(graph.placement),
        "variables": {name: variable_text(variable, graph.placement) for name, variable in sorted(graph.variables.items())},
        "layouts": layout_lines(physical),
        "program": first,
        "boxing": boxing_lines(physical),
        "schedule": schedule_hash(plan),
        "ranks": {},
    }
    for rank, (_, plan) in each.items():
        own = rank_record(plan)
        if texts[rank] != first:
            own["program"] = texts[rank]
        if schedule_hash(plan) != fields["schedule"]:
            own["schedule"] = schedule_hash(plan)
        fields["ranks"][str(rank)] = own
    return fields


def variable_text(variable: Any, placement: Any) -> str:
    """Type, layout, group, first value and regularizers of a variable; of the layout only sbp where it is on the job's placement."""
    words = [f"{variable.type} {without(placement, variable.layout)}", variable.group, "trained" if variable.trainable else "not trained"]
    words += [f"{name}={value}" for name, value in (("l1", variable.l1), ("l2", variable.l2)) if value]
    return f"{', '.join(words)} = {variable.initializer}"


def without(placement: Any, layout: Any) -> str:
    """A layout without the placement, if it is that."""
    return str(layout).removeprefix(f"{placement}:")


def layout_lines(physical: Any) -> list[str]:
    """Return a line with the layout of every value."""
    values = physical.graph.values()
    return [f"{value.name}: {value.tensor_type} {without(physical.graph.placement, physical.layouts[value])}" for value in values]


def program_lines(physical: Any) -> list[str]:
    """The program with the layout of every value and every change of layout, without the lines of the user's program."""
    return [line.partition("  # ")[0].strip() for line in physical_text(physical).splitlines()]


def boxing_lines(physical: Any) -> list[str]:
    """Every change of layout: route, bytes that the busiest rank sends, what, from where to where, and for which ops."""
    at = physical.graph.placement
    rows = boxing_rows(physical)
    return [f"{x.route} {x.nbytes:.0f} {x.tensors} {without(at, x.source)} -> {without(at, x.target)} for {x.readers}" for x in rows]


def schedule_hash(plan: Any) -> str:
    """Of all communication of all ranks, in its order."""
    lines = "\n".join(map(str, plan.schedule))
    return f"{len(plan.schedule)} lines {short_hash(lines)}"


def rank_record(plan: Any) -> Record:
    """Counts of instructions by kind, memory, bytes handed on, and a hash of the whole plan."""
    memory = footprint(plan)
    kinds = Counter(map(instruction_kind, plan.instructions))
    sent = {kind: f"{traffic.nbytes} bytes in {traffic.operations}" for kind, traffic in sorted(planned(plan).items())}
    used = {kind: nbytes for kind, nbytes in memory.at_peak.items() if nbytes}
    return {
        "instructions": dict(sorted(kinds.items())),
        "memory": {"allocated": memory.total, **used},
        "sends": sent,
        "plan": plan_hash(plan),
    }


def instruction_kind(instruction: Any) -> str:
    match instruction:
        case Compute():
            return str(instruction.op.word())
        case Collective():
            return str(instruction.kind)
        case Transfer():
            return "send" if instruction.sends else "receive"
    return f"wait for {'send' if instruction.sends else 'receive'}"


def plan_hash(plan: Any) -> str:
    """Of every instruction with the addresses that it touches; buffers count by the order in which they come."""
    buffers: dict[str, int] = {}

    def slot_name(slot: Any) -> str:
        return f"{buffers.setdefault(slot.buffer, len(buffers))}@{slot.offset}:{slot.type}/{slot.strides}"

    lines = [f"feed {feed.name} {slot_name(feed.slot)} {feed.box}" for feed in plan.feeds]
    for part in (plan.body, plan.epilogue):
        lines.append("part")
        for i in part:
            match i:
                case Compute():
                    lines.append(f"{i.op} {[slot_name(x) for x in i.inputs]} {[slot_name(x) for x in i.outputs]}")
                case Collective():
                    lines.append(f"{i.kind} {i.ranks} {slot_name(i.input)} {slot_name(i.output)} {i.counts} {i.receives} {i.reduce.value} {i.order}")
                case _:
                    lines.append(f"{instruction_kind(i)} {i.peer} {slot_name(i.slot)} {i.order}")
    lines += [f"fetch {position} {slot_name(slot)}" for position, slot in plan.fetches]
    return short_hash("\n".join(lines))


def eager_record(own: Rankwise) -> Record:
    """Names, types and layouts of what modules and optimizers save."""
    inner = {id(child) for module in own.modules for child in module.modules() if child is not module}
    roots = [module for module in own.modules if id(module) not in inner]
    states: Record = {}
    for kind, objects in (("modules", roots), ("optimizers", own.optimizers)):
        saved = [{"class": type(one).__name__, **dict(_saved(one.state_dict()))} for one in objects]
        if saved:
            states[kind] = saved
    return states


def _saved(state: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(state, dict):
        for key, value in state.items():
            yield from _saved(value, f"{path}.{key}" if path else str(key))
    elif isinstance(state, list | tuple):
        for i, value in enumerate(state):
            yield from _saved(value, f"{path}[{i}]")
    elif isinstance(state, Tensor):
        yield path, f"{state.tensor_type} {state.layout or 'local'}"
    else:
        yield path, f"{state:.12g}" if isinstance(state, float) else repr(state)


def finish_rank(own: Rankwise) -> None:
    """Take a hash of what the modules and optimizers of this rank hold."""
    tensors = [x for one in (*own.modules, *own.optimizers) for x in _tensors(one.state_dict())]
    own.final = short_hash(*(part for x in tensors for part in (str(x.tensor_type), np.ascontiguousarray(x.array).tobytes()))) if tensors else ""


def _tensors(state: Any) -> Iterator[Tensor]:
    if isinstance(state, dict | list | tuple):
        for value in state.values() if isinstance(state, dict) else state:
            yield from _tensors(value)
    elif isinstance(state, Tensor):
        yield state


# -------------------------------------------------------------------- running


def recorded(program: Callable[[], Any], ranks: int | None = None) -> Record:
    """Return the record of a program as if it ran alone; with `ranks`, on this number of ranks, which are threads."""
    notices.forget()
    for remembers in vars(order).values():  # the keys of an order that another program had are drawn again
        if hasattr(remembers, "cache_clear"):
            remembers.cache_clear()
    recorder = Recorder()
    with recorder.in_force(), scope.using(root=scope.Root()):
        if ranks is None:
            program()
            flow.clear_default_session()
            finish_rank(recorder.of(0))
        else:
            _on_ranks(ranks, program, recorder)
    return recorder.record()


def _on_ranks(n: int, program: Callable[[], Any], recorder: Recorder) -> None:
    def command(rank: Rank, _: Any) -> None:
        with scope.using(root=scope.Root(eager=EagerState(rank))):
            program()
            finish_rank(recorder.of(rank.index))

    world = SoloWorld(CpuDevice()) if n == 1 else ThreadsWorld([CpuDevice() for _ in range(n)])
    try:
        world.call(command)
    finally:
        world.close()
