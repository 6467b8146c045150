"""Does a job give on N devices what it gives on one?  `jobflow verify file.py:job --devices N` runs both and compares every tensor.

The job runs step by step on one device, on one device again with its numbers changed in their last bit, and on N devices (threads,
or processes under MPI) from the same variables and arguments.  After a step every tensor of the logical program - activations,
gradients, new values of variables - is fetched as it lies, every rank's copy of it too, and tensors of one name are compared; those of
the microbatches that a strategy brings are put together first.

A tensor may differ by ROUNDING units in the last place of its largest number, and by AMPLIFIED times what the change of last bits
did to it: so what a program itself makes of rounding (a division by nearly nothing, Adam's first steps) is not called wrong.
Integers must be equal unless they changed with the last bits.  The first tensor beyond that, in the program's order, is named, and
whether its op is wrong given its inputs, or only its inputs were.

At last the job runs as it always does, with nothing fetched on the way, and its variables and results are compared too.
"""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from jobflow import scope
from jobflow.commands import Bind, Run
from jobflow.compiled import Compiled
from jobflow.compiler.box import Reroute
from jobflow.errors import ArgumentError, ConfigError, JobError
from jobflow.explain import load_job
from jobflow.graph.ir import Graph, Node, Value
from jobflow.graph.wire import physical_to_wire
from jobflow.job import Job
from jobflow.layout import Layout, Local, Partial, Placement
from jobflow.ops.source import External
from jobflow.plan.verify import compare_schedules
from jobflow.runtime.device.cpu import CpuDevice
from jobflow.runtime.world.launch import launched
from jobflow.runtime.world.solo import SoloWorld
from jobflow.session import Session, environment
from jobflow.strategies import named
from jobflow.types import Array
from jobflow.typing.signature import Bound

#: units in the last place, of the largest number of a tensor, that are always allowed
ROUNDING = 64
#: and how many times what a change of the last bits of all arguments and variables did
AMPLIFIED = 32
#: numbers that plans of watched jobs have, which no job has
WATCHED = -1

Arrays = dict[str, Array]


class OneDevice(Session):
    """A session in which every placement is the one device there is."""

    def place(self, tag: str, devices: Sequence[str], hierarchy: tuple[int, ...] | None) -> Placement:
        return Placement("cpu", (0,), (1,) * len(hierarchy or (1,)))


# What a job does in a step ------------------------------------------------------------------------------------------


@dataclass
class Seen:
    """A tensor after a step: its whole value, and what each rank holds of it."""

    value: Value
    layout: Layout | Local
    shards: dict[int, Array]
    whole: Array | None


@dataclass
class Runner:
    """A job on the world of a session, bound so that everything is handed out."""

    session: Session
    job: Job
    compiled: Compiled = field(init=False)
    fetched: Compiled = field(init=False)

    def __post_init__(self) -> None:
        with self._inside():
            self.shapes = self.job.declared_shapes(self.session)
            self.compiled = self.session.compiled(self.job, self.shapes)
        self.fetched = replace(self.compiled, programs=tuple(_all_given(program) for program in self.compiled.programs))
        world = self.session.start()
        schedules = world.call(Bind(WATCHED, copies=True), [physical_to_wire(program) for program in self.fetched.programs])
        compare_schedules(self.job.name, schedules)

    def _inside(self) -> Any:
        return scope.using(root=scope.Root(self.session, environment()))

    @property
    def graph(self) -> Graph:
        return self.compiled.graph

    @property
    def ranks(self) -> int:
        return self.job.placement(self.session).size

    def bound(self, arguments: Arrays) -> list[Bound]:
        """Whole arrays as the job takes them; those per device are cut in balance."""
        found: list[Bound] = []
        for name, declared in self.job.signature.placeholders():
            array = arguments[name]
            found.append((name, declared, np.array_split(array, self.ranks) if declared.per_device else array))
        return found

    def watched(self, arguments: Arrays, step: int) -> dict[str, Seen]:
        """One step: every tensor by name."""
        world = self.session.start()
        parts = world.call(Run(WATCHED), self.fetched.feeds(self.bound(arguments), step))
        found: dict[str, Seen] = {}
        for position, value in enumerate(self.fetched.graph.outputs):
            shards = {rank: dict(fetched)[position] for rank, fetched in enumerate(parts) if position in dict(fetched)}
            layout = self.fetched.programs[0].layouts[value]
            found.setdefault(value.name, Seen(value, layout, shards, _whole(value, layout, shards)))
        return found

    def plain(self, arguments: Arrays, step: int) -> Arrays:
        """One step as the job always runs: its results by number."""
        world = self.session.start()
        parts = world.call(Run(self.compiled.number), self.compiled.feeds(self.bound(arguments), step))
        values = self.compiled.values(parts)
        return {f"result {i}": np.concatenate(v) if isinstance(v, list) and v[0].ndim else np.asarray(v) for i, v in enumerate(values)}

    def read(self) -> Arrays:
        return self.session.read(sorted(self.graph.variables))

    def write(self, values: Mapping[str, Array]) -> None:
        self.session.write({name: value for name, value in values.items() if name in self.graph.variables})


def _all_given(physical: Any) -> Any:
    """The program with every tensor of the logical program for its outputs; what updates do is seen by the variables."""
    values = [v for node in physical.graph.nodes if not isinstance(node.op, Reroute) and node.phase != "update" for v in node.outputs]
    return replace(physical, graph=replace(physical.graph, outputs=tuple(dict.fromkeys(values))))


def _whole(value: Value, layout: Layout | Local, shards: dict[int, Array]) -> Array | None:
    """The logical value; None for what each device has of its own and cannot be put together."""
    parts = [shards[rank] for rank in layout.placement.ranks]
    if isinstance(layout, Local):
        return np.concatenate(parts) if parts[0].ndim else None
    kinds = {sbp.reduce for sbp in layout.sbp if isinstance(sbp, Partial)}
    return layout.assemble(parts, value.type) if len(kinds) < 2 else None


# What is compared ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """Where a tensor on N devices is not what it is on one."""

    step: int
    name: str
    worst: float
    allowed: float
    where: str
    node: Node | None = None
    layout: str = ""
    verdict: str = ""

    def __str__(self) -> str:
        made = "" if self.node is None else f'\n  made by   {self.node.op} at {self.node.where} ({self.node.phase}, layer "{self.node.name}")'
        lies = f"\n  lies      {self.layout}" if self.layout else ""
        verdict = f"\n  so        {self.verdict}" if self.verdict else ""
        return f"step {self.step}: {self.name} differs by {self.worst:.3g}, allowed {self.allowed:.3g}, {self.where}{made}{lies}{verdict}"


@dataclass
class Report:
    """What was compared, and the first difference of all."""

    job: str
    devices: int
    how: str
    steps: int = 0
    compared: int = 0
    #: tensors that only one program has, or that have no whole
    skipped: list[str] = field(default_factory=list)
    #: the largest difference as a part of what was allowed, and of which tensor
    closest: tuple[float, str] = (0.0, "nothing")
    difference: Difference | None = None

    @property
    def agrees(self) -> bool:
        return self.difference is None

    def __str__(self) -> str:
        head = f"{self.job} on {self.devices} devices{self.how}: {self.compared} tensors compared in {self.steps} steps"
        names = sorted(set(self.skipped))
        left = f"; not compared, for the programs differ or it has no whole: {', '.join(names[:6])}{' ...' if names[6:] else ''}" if names else ""
        if self.difference is not None:
            return f"{head}{left}\nDIFFERENT  {self.difference}"
        return f"{head}{left}\nequal      the largest difference is {self.closest[0]:.2g} of what is allowed, of {self.closest[1]}"


def allowed(whole: Array, nudged: Array) -> float:
    """By how much a tensor may differ."""
    if whole.dtype.kind not in "fV":
        return 0.0 if np.array_equal(whole, nudged) else float("inf")
    one, other = whole.astype(float), nudged.astype(float)
    finite = np.isfinite(one) & np.isfinite(other)
    scale = float(np.max(np.abs(one), initial=0.0, where=finite))
    moved = float(np.max(np.abs(one - other), initial=0.0, where=finite))
    return ROUNDING * epsilon(whole.dtype) * scale + AMPLIFIED * moved


def epsilon(dtype: Any) -> float:
    """The distance from 1 to the next number; of bfloat16 too, which NumPy does not know."""
    return float(np.finfo(dtype).eps) if np.dtype(dtype).kind == "f" else 2.0**-7


def apart(ours: Array, theirs: Array) -> tuple[float, tuple[int, ...]]:
    """The largest difference and where it is; infinite where one of them is no number."""
    if ours.shape != theirs.shape:
        return float("inf"), ()
    one, other = ours.astype(float), theirs.astype(float)
    with np.errstate(invalid="ignore"):
        gaps = np.abs(one - other)
    gaps[(one == other) | (np.isnan(one) & np.isnan(other))] = 0.0
    gaps[np.isnan(gaps)] = np.inf
    if not gaps.size:
        return 0.0, ()
    at = np.unravel_index(int(np.argmax(gaps)), gaps.shape)
    return float(gaps[at]), tuple(int(i) for i in at)


def pieces(seen: Seen, whole: Array) -> Iterator[tuple[str, Array, Array, tuple[int, ...]]]:
    """(which, ours, theirs, where theirs begins) for everything of a tensor that can be compared: each rank's part, or the sum of addends."""
    if isinstance(seen.layout, Local) or seen.layout.is_partial:
        if seen.whole is not None:
            yield "", seen.whole, whole, (0,) * whole.ndim
        return
    for rank, shard in sorted(seen.shards.items()):
        box = seen.layout.box(whole.shape, rank)
        yield f" on rank {rank}", shard, whole[box.slices] if whole.ndim else whole, box.start


def by_microbatch(seen: Mapping[str, Seen]) -> dict[str, list[Seen]]:
    """Tensors of single microbatches, `name#0`, `name#1` ..., by name."""
    found: dict[str, list[Seen]] = {}
    for name, one in seen.items():
        base, mark, number = name.partition("#")
        if mark:
            found.setdefault(base + number.lstrip("0123456789"), []).append(one)
    return found


def together(each: Sequence[Seen], theirs: Seen) -> Seen | None:
    """The tensor that those of microbatches make up: one after another, else all the same, else their sum; None if there are none."""
    arrays = [one.whole for one in each if one.whole is not None]
    if not arrays or theirs.whole is None or len(arrays) < len(each):
        return None
    shape = theirs.whole.shape
    if shape and all(a.shape[1:] == shape[1:] and a.ndim == len(shape) for a in arrays) and sum(len(a) for a in arrays) == shape[0]:
        whole = np.concatenate(arrays)
    elif any(a.shape != shape for a in arrays):
        return None
    else:
        same = all(np.array_equal(a, arrays[0]) for a in arrays)
        whole = arrays[0] if same else np.sum(arrays, axis=0, dtype=arrays[0].dtype)
    first = each[0]
    return Seen(first.value, Local(first.layout.placement), {}, whole)


def compare(seen: Seen, whole: Array) -> tuple[float, str]:
    """The largest difference of any rank's part, and where it is."""
    worst = 0.0, ""
    for which, ours, theirs, start in pieces(seen, whole):
        gap, at = apart(ours, theirs)
        if gap > worst[0]:
            index = [i + first for i, first in zip(at, start, strict=True)] if at else []
            worst = gap, f"at {index}{which}: {ours[at]} instead of {theirs[at]}" if ours.shape == theirs.shape else f"shape {ours.shape}{which}"
    return worst


def judged(seen: Seen, tensors: Mapping[str, Seen], limit: float) -> str:
    """Whether the op that made a tensor is wrong, given the inputs that it had."""
    node = seen.value.node
    inputs = [tensors[v.name].whole if v.name in tensors else None for v in node.inputs]
    if isinstance(node.op, External) or seen.whole is None or any(x is None for x in inputs):
        return ""
    outputs = [np.zeros(v.shape, v.dtype.numpy) for v in node.outputs]
    node.op.kernel(np, *inputs, *outputs)
    gap, _ = apart(seen.whole, outputs[seen.value.index])
    if gap > limit:
        lies = ", ".join(f"{v.name} {tensors[v.name].layout}" for v in node.inputs)
        made = f"from the inputs it had ({lies}) one device makes something else, by {gap:.3g}"
        return f"the op is wrong in this layout: {made}; see its rule and the boxing before it"
    return "the op is right for the inputs it had: each of them differs by no more than it may, together they make too much"


# The run ------------------------------------------------------------------------------------------------------------


@dataclass
class Proof:
    """One device, one device with other last bits, and N devices, step by step."""

    one: Runner
    many: Runner
    report: Report

    def run(self, steps: int, given: Mapping[str, Array], seed: int) -> Report:
        self._variables(0, self.many.read(), self.one.read(), self.one.read())
        first = self.one.read()
        plain = self._follow(steps, given, seed, first)
        if self.report.agrees:
            self._plain(steps, given, seed, first, plain)
        return self.report

    def _follow(self, steps: int, given: Mapping[str, Array], seed: int, values: Arrays) -> list[tuple[Arrays, Arrays]]:
        """The steps with everything fetched; what variables are after each on one device, and with other last bits."""
        after: list[tuple[Arrays, Arrays]] = []
        for step in range(steps):
            if not self.report.agrees:
                break
            random = np.random.default_rng((seed, step))
            arguments = made_arguments(self.one, given, random, step)
            self.one.write({name: nudged(value, random) for name, value in values.items()})
            other = self.one.watched({name: nudged(value, random) for name, value in arguments.items()}, step)
            moved = self.one.read()
            for runner in (self.one, self.many):
                runner.write(values)
            right, ours = self.one.watched(arguments, step), self.many.watched(arguments, step)
            self._tensors(step, ours, right, other)
            values = self.one.read()
            self._variables(step, self.many.read(), values, moved)
            after.append((values, moved))
            self.report.steps += 1
        return after

    def _tensors(self, step: int, ours: Mapping[str, Seen], right: Mapping[str, Seen], other: Mapping[str, Seen]) -> None:
        pieces = by_microbatch(ours)
        for name, theirs in right.items():
            seen = ours.get(name) or together(pieces.get(name, []), theirs)
            moved = other[name].whole
            if seen is None or seen.whole is None or theirs.whole is None or moved is None or seen.whole.shape != theirs.whole.shape:
                self.report.skipped.append(name)
                continue
            limit = allowed(theirs.whole, moved)
            worst, where = compare(seen, theirs.whole)
            if self._counts(step, name, worst, limit, where):
                difference = self.report.difference
                assert difference is not None
                self.report.difference = replace(
                    difference, node=seen.value.node, layout=f"{seen.value.type} {seen.layout}", verdict=judged(seen, ours, limit)
                )

    def _variables(self, step: int, ours: Arrays, right: Arrays, moved: Arrays) -> None:
        for name, theirs in right.items():
            if name in ours:
                limit = allowed(theirs, moved[name])
                gap, at = apart(ours[name], theirs)
                self._counts(step, f"variable {name}", gap, limit, f"at {list(at)}")

    def _counts(self, step: int, name: str, worst: float, limit: float, where: str) -> bool:
        """Take down a comparison; True if it is the first that differs."""
        self.report.compared += 1
        if worst <= limit:
            part = worst / limit if 0 < limit < float("inf") else 0.0
            self.report.closest = max(self.report.closest, (part, name))
            return False
        if self.report.difference is not None:
            return False
        self.report.difference = Difference(step, name, worst, limit, where)
        return True

    def _plain(self, steps: int, given: Mapping[str, Array], seed: int, values: Arrays, after: list[tuple[Arrays, Arrays]]) -> None:
        """The same steps as the job always runs, each from the variables that one device had."""
        for step in range(steps):
            random = np.random.default_rng((seed, step))
            arguments = made_arguments(self.one, given, random, step)
            for runner in (self.one, self.many):
                runner.write(values)
            right, ours = self.one.plain(arguments, step), self.many.plain(arguments, step)
            for name, theirs in right.items():
                if ours[name].shape == theirs.shape:
                    scale = float(np.max(np.abs(theirs.astype(float)), initial=0.0))
                    limit = 100 * ROUNDING * epsilon(theirs.dtype) * scale if theirs.dtype.kind in "fV" else float("inf")
                    gap, at = apart(ours[name], theirs)
                    self._counts(step, f"{name} of the job as it always runs", gap, limit, f"at {list(at)}")
            values, moved = after[step]
            self._variables(step, self.many.read(), values, moved)


def nudged(array: Array, random: np.random.Generator) -> Array:
    """Every number changed by half a unit in its last place or so; integers stay."""
    if array.dtype.kind not in "fV":
        return array
    change: Array = array.astype(float) * (1 + epsilon(array.dtype) * random.choice([-1.0, 1.0], array.shape))
    return change.astype(array.dtype)


def made_arguments(one: Runner, given: Mapping[str, Array], random: np.random.Generator, step: int) -> Arrays:
    """The arguments of a step: as given, else random, integers within what their readers take."""
    ranges: dict[str, tuple[int, int]] = {}
    for limit in one.compiled.limits:
        low, high = ranges.get(limit.argument, (0, 1 << 30))
        ranges[limit.argument] = max(low, limit.low), min(high, limit.high)
    found: Arrays = {}
    for (name, declared), shape in zip(one.job.signature.placeholders(), one.shapes, strict=True):
        sizes, dtype = shape[0] if declared.per_device else shape, declared.type.dtype
        if name in given:
            array = np.asarray(given[name])
            found[name] = (array[step % len(array)] if array.ndim == len(sizes) + 1 else array).astype(dtype.numpy)
            if found[name].shape != sizes:
                raise ArgumentError(f"argument {name} in the file has shape {list(array.shape)}; the job takes {declared.type}")
        elif dtype.is_float:
            found[name] = random.standard_normal(sizes).astype(dtype.numpy)
        else:
            found[name] = random.integers(*ranges.get(name, (0, 2)), sizes).astype(dtype.numpy)
    return found


def with_strategy(job: Job, strategy: Any) -> Job:
    """The job with another strategy; None: with none."""
    other = copy.copy(job)
    other.config = job.config.copy()
    other.config.options.pop("strategy", None)
    if strategy is not None:
        other.config.set("strategy", strategy)
    return other


def verify(
    job: Job,
    *,
    devices: int,
    strategy: str | None = None,
    steps: int = 2,
    seed: int = 0,
    inputs: Mapping[str, Array] | None = None,
    session: Session | None = None,
) -> Report:
    """Compare the job on one device with the same on N; `session` has the world of N ranks, one of threads if it is None."""
    wanted = named(strategy) if strategy is not None else job.strategy
    alone, crowd = OneDevice(), session or Session()
    alone.world = SoloWorld(CpuDevice())
    crowd.settings.cpu_device_num = devices
    crowd.settings.seed = alone.settings.seed
    report = Report(job.name, devices, f" by {strategy}" if strategy else "")
    try:
        one = Runner(alone, with_strategy(job, None))
        many = Runner(crowd, with_strategy(job, wanted))
        return Proof(one, many, report).run(steps, inputs or {}, seed)
    finally:
        alone.close()
        crowd.close()


def command(target: str, devices: int, strategy: str | None, steps: int, seed: int, ranks: str, inputs: str | None) -> int:
    """`jobflow verify`: print the report; the exit code."""
    if ranks == "mpi" and launched() is None:
        return _mpiexec(devices)
    started = launched()
    if started is not None and started.size != devices:
        raise ConfigError(f"--devices {devices} but {started.launcher} started {started.size} ranks; leave mpiexec away, or start {devices} ranks")
    job = load_job(target)
    if job.signature is None:
        raise JobError(f"{target} is no job")
    given: Mapping[str, Array] = dict(np.load(inputs)) if inputs is not None else {}
    report = verify(job, devices=devices, strategy=strategy, steps=steps, seed=seed, inputs=given)
    print(report, flush=True)
    return 0 if report.agrees else 1


def _mpiexec(devices: int) -> int:
    """The same command line once more, by so many processes."""
    launcher = shutil.which("mpiexec", path=os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")]))
    if launcher is None:
        raise ConfigError("--ranks mpi needs mpiexec; install an MPI, or leave the option away to run the ranks as threads")
    return subprocess.run([launcher, "-n", str(devices), sys.executable, "-m", "jobflow", *sys.argv[1:]], check=False).returncode
