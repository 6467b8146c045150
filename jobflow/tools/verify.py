"""`jobflow verify`: run a job on one device and on N, and compare every tensor.

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

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

import jobflow.core.scope as scope
from jobflow.compiler.layouts.box import Reroute
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError, ConfigError, JobError
from jobflow.core.layout import Local, Placement, cut
from jobflow.core.types import Array
from jobflow.data.batch import per_device
from jobflow.distributed import mpiexec
from jobflow.engine.binding import StorageChoice, state_of
from jobflow.engine.commands import Bind, Run, performed
from jobflow.engine.compiled import Compiled
from jobflow.engine.job import Job
from jobflow.engine.session import Session, environment
from jobflow.graph.ir import Graph
from jobflow.graph.wire import physical_to_wire
from jobflow.runtime.device.numpy_device import CpuDevice
from jobflow.runtime.world.launched import launched
from jobflow.runtime.world.solo import SoloWorld
from jobflow.runtime.world.world import Rank
from jobflow.strategies import named
from jobflow.tools.comparison import ROUNDING, Difference, Report, Seen, allowed, apart, by_microbatch, compare, epsilon, judged, together, whole_of
from jobflow.tools.explain import load_job
from jobflow.typing.signature import Bound

#: numbers that plans of watched jobs have, which no job has
WATCHED = -1

Arrays = dict[str, Array]


class OneDevice(Session):
    """A session in which every placement is the one device there is."""

    def place(self, tag: str, devices: Sequence[str], hierarchy: tuple[int, ...] | None) -> Placement:
        return Placement("cpu", (0,), (1,) * len(hierarchy or (1,)))


@dataclass(frozen=True)
class Held:
    """What a rank holds of variables, copies too."""

    names: tuple[str, ...]

    def __call__(self, rank: Rank, _: Any) -> Arrays:
        state = state_of(rank)
        return {name: state.read(name) for name in self.names if name in state.slots}


# What a job does in a step ------------------------------------------------------------------------------------------


@dataclass
class Runner:
    """A job on the world of a session, bound so that everything is handed out."""

    session: Session
    job: Job
    #: True if the declared rows of a mirrored job are those of all its devices together
    divides: bool = False
    compiled: Compiled = field(init=False)
    fetched: Compiled = field(init=False)

    def __post_init__(self) -> None:
        with self._inside():
            self.shapes = self._shapes()
            self.compiled = self.session.compiled(self.job, self.shapes)
        self.fetched = replace(self.compiled, programs=tuple(_all_given(program) for program in self.compiled.programs))
        world = self.session.start()
        world.call(Bind(WATCHED, StorageChoice(copies=True), self.session.target()), [physical_to_wire(program) for program in self.fetched.programs])

    def _shapes(self) -> Any:
        """Those of the arguments."""
        if not self.divides:
            return self.job.declared_shapes(self.session)
        found: list[Any] = []
        for (_, declared), shape in zip(self.job.signature.placeholders(), self.job.declared_shapes(self.session), strict=True):
            rows, *rest = declared.type.shape or (0,)
            found.append(tuple((stop - start, *rest) for start, stop in cut(rows, self.ranks)) if declared.per_device else shape)
        return tuple(found)

    def _inside(self) -> Any:
        return scope.using(root=scope.Root(self.session, environment()))

    @property
    def graph(self) -> Graph:
        return self.compiled.graph

    @property
    def ranks(self) -> int:
        return self.job.placement(self.session).size

    def bound(self, arguments: Mapping[str, Any], step: int) -> list[Bound]:
        """Whole or lazy arrays as the job takes them, those per device cut in balance, and what its readers give."""
        found: list[Bound] = []
        for name, declared in self.job.signature.placeholders():
            array = arguments[name]
            found.append((name, declared, per_device(array, self.ranks) if declared.per_device else array))
        return [*found, *self.compiled.read(step, found)[0]]

    def watched(self, arguments: Mapping[str, Any], step: int) -> dict[str, Seen]:
        """One step: every tensor by name."""
        world = self.session.start()
        parts = performed(world, Run(WATCHED), self.fetched.feeds(self.bound(arguments, step), step, self.session.here))
        found: dict[str, Seen] = {}
        for position, value in enumerate(self.fetched.graph.outputs):
            shards = {rank: dict(fetched)[position] for rank, fetched in enumerate(parts) if position in dict(fetched)}
            layout = self.fetched.programs[0].layouts[value]
            found.setdefault(value.name, Seen(value, layout, shards, whole_of(value, layout, shards)))
        return found

    def plain(self, arguments: Arrays, step: int) -> Arrays:
        """One step as the job always runs: its results by number."""
        world = self.session.start()
        parts = performed(world, Run(self.compiled.number), self.compiled.feeds(self.bound(arguments, step), step))
        values = self.compiled.values(parts)
        return {f"result {i}": np.concatenate(v) if isinstance(v, list) and v[0].ndim else np.asarray(v) for i, v in enumerate(values)}

    def read(self) -> Arrays:
        """The variables, whole."""
        return {name: seen.whole for name, seen in self.held().items()}

    def held(self) -> dict[str, Seen]:
        """The variables, whole and as every rank holds them."""
        parts = self.session.start().call(Held(tuple(sorted(self.graph.variables))))
        found: dict[str, Seen] = {}
        for name, variable in self.graph.variables.items():
            shards = {rank: held[name] for rank, held in enumerate(parts) if name in held}
            whole = variable.layout.assemble([shards[rank] for rank in variable.placement.ranks], variable.type)
            found[name] = Seen(None, variable.layout, shards, whole)
        return found

    def write(self, values: Mapping[str, Array]) -> None:
        self.session.write({name: value for name, value in values.items() if name in self.graph.variables})


def _all_given(physical: Any) -> Any:
    """The program with every tensor of the logical program for its outputs; what updates do is seen by the variables."""
    values = [v for node in physical.graph.nodes if not isinstance(node.op, Reroute) and node.phase != "update" for v in node.outputs]
    return replace(physical, graph=replace(physical.graph, outputs=tuple(dict.fromkeys(values))))


# The run ------------------------------------------------------------------------------------------------------------


@dataclass
class Proof:
    """One device, one device with other last bits, and N devices, step by step."""

    one: Runner
    many: Runner
    report: Report

    def run(self, steps: int, given: Mapping[str, Array], seed: int) -> Report:
        first = self.one.read()
        self._variables(0, self.many.held(), first, first)
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
            self._variables(step, self.many.held(), values, moved)
            after.append((values, moved))
            self.report.steps += 1
        return after

    def _tensors(self, step: int, ours: Mapping[str, Seen], right: Mapping[str, Seen], other: Mapping[str, Seen]) -> None:
        pieces = by_microbatch(ours)
        for name, theirs in right.items():
            seen = ours.get(name) or together(pieces.get(name, []), theirs)
            moved = other[name].whole
            if (
                seen is None
                or self._is_scaled_later(seen)
                or seen.whole is None
                or theirs.whole is None
                or moved is None
                or seen.whole.shape != theirs.whole.shape
            ):
                self.report.skipped.append(name)
                continue
            limit = allowed(theirs.whole, moved)
            worst, where = compare(seen, theirs.whole)
            if self._counts(step, name, worst, limit, where):
                difference = self.report.difference
                assert difference is not None and seen.value is not None
                self.report.difference = replace(
                    difference, node=seen.value.node, layout=f"{seen.value.tensor_type} {seen.layout}", verdict=judged(seen, ours, limit)
                )

    def _is_scaled_later(self, seen: Seen) -> bool:
        """True for gradients of devices with different numbers of rows: their weights are applied at the sum over devices."""
        return bool(self.many.graph.rows) and isinstance(seen.layout, Local) and seen.value is not None and seen.value.node.phase == "backward"

    def _variables(self, step: int, ours: Mapping[str, Seen], right: Arrays, moved: Arrays) -> None:
        for name, theirs in right.items():
            if name in ours:
                worst, where = compare(ours[name], theirs)
                self._counts(step, f"variable {name}", worst, allowed(theirs, moved[name]), where)

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
            self._variables(step, self.many.held(), values, moved)


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
        bounds = limit.check.low, limit.check.high
        ranges[limit.argument] = low if bounds[0] is None else max(low, int(bounds[0])), high if bounds[1] is None else min(high, int(bounds[1]) + 1)
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
        many = Runner(
            crowd, job.with_strategy(wanted), divides=True
        )  # first: where modules differ between clients, the numbers of the first one count
        one = Runner(alone, job.with_strategy(None), divides=True)
        return Proof(one, many, report).run(steps, inputs or {}, seed)
    finally:
        alone.close()
        crowd.close()


def command(job: Job, devices: int, strategy: str | None, steps: int, seed: int, inputs: Mapping[str, Array] | None) -> int:
    """`jobflow verify`: print the report; the exit code."""
    started = launched()
    if started is not None and started.size != devices:
        raise ConfigError(f"--devices {devices} but {started.launcher} started {started.size} ranks; omit mpiexec, or start {devices} ranks")
    report = verify(job, devices=devices, strategy=strategy, steps=steps, seed=seed, inputs=inputs)
    print(report, flush=True)
    return 0 if report.agrees else 1


def named_job(target: str) -> Job:
    """The job of a file or module; JobError if that is something else."""
    job = load_job(target)
    if job.signature is None:
        raise JobError(f"{target} is not a job")
    return job


def by_mpiexec(devices: int) -> int:
    """The same command line once more, by so many processes."""
    launcher = mpiexec.find()
    if launcher is None:
        raise ConfigError("--ranks mpi needs mpiexec; install an MPI, or omit the option to run the ranks as threads")
    return subprocess.run(mpiexec.ranks(launcher, devices, [sys.executable, "-m", "jobflow", *sys.argv[1:]]), check=False).returncode
