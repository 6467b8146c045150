"""`jobflow verify`: run a job on one device and on N devices, and compare every tensor.

The job runs step by step three times from the same variables and arguments. The first run uses one device. The second run also uses one
device, and changes the last bits of all numbers. The third run uses N devices (threads, or processes under MPI).

After a step, every tensor of the logical program is fetched from all ranks: activations, gradients, and new values of variables. Tensors of one
name are compared. Tensors of microbatches are combined first.

The tolerance of a tensor is ROUNDING units in the last place of its largest number, plus AMPLIFIED times the effect of the changed bits. So
rounding errors that the program itself amplifies (a division by almost zero, Adam's first steps) are not reported. Integers must be equal unless
the changed bits changed them.
The report names the first tensor outside its tolerance, in program order, and whether its operation or its inputs are wrong.

Finally the job runs as usual, without fetching, and its variables and results are compared too.
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
from jobflow.engine.compiled import Compiled
from jobflow.engine.job import Job
from jobflow.engine.session import Session, environment
from jobflow.graph.ir import Graph
from jobflow.program.client import ClientProgram, assembled
from jobflow.program.commands import ReadVariables
from jobflow.program.program import StorageChoice
from jobflow.runtime.device.numpy_device import CpuDevice
from jobflow.runtime.world.launched import launched
from jobflow.runtime.world.solo import SoloWorld
from jobflow.strategies import named
from jobflow.tools.comparison import ROUNDING, Difference, Report, Seen, allowed, apart, by_microbatch, compare, epsilon, judged, together, whole_of
from jobflow.tools.explain import load_job
from jobflow.typing.signature import Bound

#: plan number of fetched jobs, which other jobs do not use
WATCHED = -1

Arrays = dict[str, Array]


class OneDevice(Session):
    """A session in which every placement is the single device."""

    def place(self, tag: str, devices: Sequence[str], hierarchy: tuple[int, ...] | None) -> Placement:
        return Placement("cpu", (0,), (1,) * len(hierarchy or (1,)))


# What a job does in a step ------------------------------------------------------------------------------------------


@dataclass
class Runner:
    """A job in a session, compiled so that each run returns all tensors."""

    session: Session
    job: Job
    #: True if a mirrored job declares the rows of all its devices together
    divides: bool = False
    compiled: Compiled = field(init=False)
    fetched: ClientProgram = field(init=False)

    def __post_init__(self) -> None:
        with self._inside():
            self.shapes = self._shapes()
            self.compiled = self.session.compiled(self.job, self.shapes)
        self.fetched = replace(self.compiled, number=WATCHED, programs=tuple(map(_with_all_outputs, self.compiled.programs)))
        self.fetched.bind(self.session.start(), StorageChoice(copies=True), self.session.target())

    def _shapes(self) -> Any:
        """Return the shapes of the arguments, with one shape per device for per-device arguments."""
        if not self.divides:
            return self.job.declared_shapes(self.session)
        shapes: list[Any] = []
        for (_, declared), shape in zip(self.job.signature.placeholders(), self.job.declared_shapes(self.session), strict=True):
            rows, *rest = declared.type.shape or (0,)
            shapes.append(tuple((stop - start, *rest) for start, stop in cut(rows, self.ranks)) if declared.per_device else shape)
        return tuple(shapes)

    def _inside(self) -> Any:
        return scope.using(root=scope.Root(self.session, environment()))

    @property
    def graph(self) -> Graph:
        return self.compiled.graph

    @property
    def ranks(self) -> int:
        return self.job.placement(self.session).size

    def arguments(self, arguments: Mapping[str, Any], step: int) -> dict[str, Any]:
        """Return the arguments of a step as the job expects them: per-device arguments split evenly, and the batches of its readers."""
        bound: list[Bound] = []
        for name, declared in self.job.signature.placeholders():
            array = arguments[name]
            bound.append((name, declared, per_device(array, self.ranks) if declared.per_device else array))
        return self.compiled.arguments([*bound, *self.compiled.read(step, bound)[0]], step)

    def watched(self, arguments: Mapping[str, Any], step: int) -> dict[str, Seen]:
        """Run one step and return every tensor by name."""
        feeds = self.fetched.feeds(self.arguments(arguments, step), self.session.here)
        shards_of = self.fetched.shards(self.fetched.run_on_ranks(self.session.start(), feeds))
        tensors: dict[str, Seen] = {}
        for value, shards in zip(self.fetched.graph.outputs, shards_of, strict=True):
            layout = self.fetched.programs[0].layouts[value]
            tensors.setdefault(value.name, Seen(value, layout, shards, whole_of(value, layout, shards)))
        return tensors

    def plain(self, arguments: Arrays, step: int) -> Arrays:
        """Run one step without fetching tensors; return the results as "result 0", "result 1", ..."""
        values = self.compiled.run(self.session.start(), self.arguments(arguments, step), self.session.here)
        return {f"result {i}": np.concatenate(v) if isinstance(v, list) and v[0].ndim else np.asarray(v) for i, v in enumerate(values)}

    def read(self) -> Arrays:
        """Return the whole values of the variables by name."""
        return {name: tensor.whole for name, tensor in self.held().items()}

    def held(self) -> dict[str, Seen]:
        """Return the variables by name, as stored on every rank and assembled."""
        parts = self.session.start().call(ReadVariables(tuple(sorted(self.graph.variables)), copies=True))
        tensors: dict[str, Seen] = {}
        for name, variable in self.graph.variables.items():
            shards = {rank: held[name] for rank, held in enumerate(parts) if name in held}
            tensors[name] = Seen(None, variable.layout, shards, assembled(variable.layout, variable.type, shards))
        return tensors

    def write(self, values: Mapping[str, Array]) -> None:
        self.session.write({name: value for name, value in values.items() if name in self.graph.variables})


def _with_all_outputs(physical: Any) -> Any:
    """Return the program with every logical tensor as an output, except tensors of the update phase, whose variables are compared."""
    values = [v for node in physical.graph.nodes if not isinstance(node.op, Reroute) and node.phase != "update" for v in node.outputs]
    return replace(physical, graph=replace(physical.graph, outputs=tuple(dict.fromkeys(values))))


# The run ------------------------------------------------------------------------------------------------------------


@dataclass
class Proof:
    """The comparison of three runs step by step: one device, one device with changed last bits, and N devices."""

    one: Runner
    many: Runner
    report: Report

    def run(self, steps: int, arrays: Mapping[str, Array], seed: int) -> Report:
        first = self.one.read()
        self._variables(0, self.many.held(), first, first)
        plain = self._follow(steps, arrays, seed, first)
        if self.report.agrees:
            self._plain(steps, arrays, seed, first, plain)
        return self.report

    def _follow(self, steps: int, arrays: Mapping[str, Array], seed: int, values: Arrays) -> list[tuple[Arrays, Arrays]]:
        """Run the steps with all tensors fetched, and compare the tensors.

        Return the variables after each step on one device, without and with changed bits.
        """
        after: list[tuple[Arrays, Arrays]] = []
        for step in range(steps):
            if not self.report.agrees:
                break
            random = np.random.default_rng((seed, step))
            arguments = made_arguments(self.one, arrays, random, step)
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
            tensor = ours.get(name) or together(pieces.get(name, []), theirs)
            moved = other[name].whole
            if (
                tensor is None
                or self._is_scaled_later(tensor)
                or tensor.whole is None
                or theirs.whole is None
                or moved is None
                or tensor.whole.shape != theirs.whole.shape
            ):
                self.report.skipped.append(name)
                continue
            limit = allowed(theirs.whole, moved)
            worst, where = compare(tensor, theirs.whole)
            if self._counts(step, name, worst, limit, where):
                difference = self.report.difference
                assert difference is not None and tensor.value is not None
                self.report.difference = replace(
                    difference, node=tensor.value.node, layout=f"{tensor.value.tensor_type} {tensor.layout}", verdict=judged(tensor, ours, limit)
                )

    def _is_scaled_later(self, tensor: Seen) -> bool:
        """Return True for local gradients if devices have different numbers of rows; the later sum over devices weights these gradients."""
        return bool(self.many.graph.rows) and isinstance(tensor.layout, Local) and tensor.value is not None and tensor.value.node.phase == "backward"

    def _variables(self, step: int, ours: Mapping[str, Seen], right: Arrays, moved: Arrays) -> None:
        for name, theirs in right.items():
            if name in ours:
                worst, where = compare(ours[name], theirs)
                self._counts(step, f"variable {name}", worst, allowed(theirs, moved[name]), where)

    def _counts(self, step: int, name: str, worst: float, limit: float, where: str) -> bool:
        """Record that `name` differs by `worst` at `where`; return True for the first difference beyond its tolerance `limit`."""
        self.report.compared += 1
        if worst <= limit:
            part = worst / limit if 0 < limit < float("inf") else 0.0
            self.report.closest = max(self.report.closest, (part, name))
            return False
        if self.report.difference is not None:
            return False
        self.report.difference = Difference(step, name, worst, limit, where)
        return True

    def _plain(self, steps: int, arrays: Mapping[str, Array], seed: int, values: Arrays, after: list[tuple[Arrays, Arrays]]) -> None:
        """Run the same steps without fetching, and compare results and variables.

        The first step starts from the variables `values`. Each later step starts from the one-device variables of the preceding step in `after`.
        """
        for step in range(steps):
            random = np.random.default_rng((seed, step))
            arguments = made_arguments(self.one, arrays, random, step)
            for runner in (self.one, self.many):
                runner.write(values)
            right, ours = self.one.plain(arguments, step), self.many.plain(arguments, step)
            for name, theirs in right.items():
                if ours[name].shape == theirs.shape:
                    scale = float(np.max(np.abs(theirs.astype(float)), initial=0.0))
                    limit = 100 * ROUNDING * epsilon(theirs.dtype) * scale if theirs.dtype.kind in "fV" else float("inf")
                    gap, at = apart(ours[name], theirs)
                    self._counts(step, f"{name} of the job without fetching", gap, limit, f"at {list(at)}")
            values, moved = after[step]
            self._variables(step, self.many.held(), values, moved)


def nudged(array: Array, random: np.random.Generator) -> Array:
    """Return the array with every float changed by one or two units in its last place; other types and zeros do not change."""
    if array.dtype.kind not in "fV":
        return array
    change: Array = array.astype(float) * (1 + epsilon(array.dtype) * random.choice([-1.0, 1.0], array.shape))
    return change.astype(array.dtype)


def made_arguments(one: Runner, arrays: Mapping[str, Array], random: np.random.Generator, step: int) -> Arrays:
    """Return the arguments of a step: arrays from `arrays`, and random values for all other arguments.

    An array with an additional first axis has one entry per step. Random integers are inside the bounds that the job checks.
    Raises: ArgumentError for an array of another shape.
    """
    ranges: dict[str, tuple[int, int]] = {}
    for limit in one.compiled.bounds:
        low, high = ranges.get(limit.argument, (0, 1 << 30))
        bounds = limit.check.low, limit.check.high
        ranges[limit.argument] = low if bounds[0] is None else max(low, int(bounds[0])), high if bounds[1] is None else min(high, int(bounds[1]) + 1)
    arguments: Arrays = {}
    for (name, declared), shape in zip(one.job.signature.placeholders(), one.shapes, strict=True):
        sizes, dtype = shape[0] if declared.per_device else shape, declared.type.dtype
        if name in arrays:
            array = np.asarray(arrays[name])
            arguments[name] = (array[step % len(array)] if array.ndim == len(sizes) + 1 else array).astype(dtype.numpy)
            if arguments[name].shape != sizes:
                raise ArgumentError(
                    f"argument {name} has shape {list(array.shape)}, but the job takes {declared.type}; pass this shape, or a stack of such arrays"
                )
        elif dtype.is_float:
            arguments[name] = random.standard_normal(sizes).astype(dtype.numpy)
        else:
            arguments[name] = random.integers(*ranges.get(name, (0, 2)), sizes).astype(dtype.numpy)
    return arguments


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
    """Compare a job on one device with the same job on `devices` devices, and return the report.

    Each of the `steps` steps has the arguments in `inputs`, and random values from `seed` for all others. `strategy` replaces the job's own strategy.
    `session` has a world of `devices` ranks and is closed afterwards; None creates a session with one thread per rank.
    """
    target = named(strategy) if strategy is not None else job.strategy
    alone, crowd = OneDevice(), session or Session()
    alone.world = SoloWorld(CpuDevice())
    crowd.settings.cpu_device_num = devices
    crowd.settings.seed = alone.settings.seed
    report = Report(job.name, devices, f" by {strategy}" if strategy else "")
    try:
        many = Runner(crowd, job.with_strategy(target), divides=True)  # first, because modules of clients get the values of rank 0
        one = Runner(alone, job.with_strategy(None), divides=True)
        return Proof(one, many, report).run(steps, inputs or {}, seed)
    finally:
        alone.close()
        crowd.close()


def command(job: Job, devices: int, strategy: str | None, steps: int, seed: int, inputs: Mapping[str, Array] | None) -> int:
    """Run `jobflow verify`: print the report, and return the exit code 0 if the results agree, else 1."""
    started = launched()
    if started is not None and started.size != devices:
        raise ConfigError(f"--devices {devices}: {started.launcher} started {started.size} ranks; omit {started.launcher}, or start {devices} ranks")
    report = verify(job, devices=devices, strategy=strategy, steps=steps, seed=seed, inputs=inputs)
    print(report, flush=True)
    return 0 if report.agrees else 1


def named_job(target: str) -> Job:
    """Return the job that `target` names; raise JobError if `target` does not name a declared job."""
    job = load_job(target)
    if job.signature is None:
        raise JobError(f"{target} is not a job; pass path/to/file.py:job or module:job")
    return job


def by_mpiexec(devices: int) -> int:
    """Run this command line again as N processes under mpiexec, and return its exit code; raise ConfigError without mpiexec."""
    launcher = mpiexec.find()
    if launcher is None:
        raise ConfigError("--ranks mpi needs mpiexec; install an MPI, or omit the option to run the ranks as threads")
    return subprocess.run(mpiexec.ranks(launcher, devices, [sys.executable, "-m", "jobflow", *sys.argv[1:]]), check=False).returncode
