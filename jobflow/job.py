"""A job: a declared Python function over logical tensors.

It is traced once per set of argument shapes; a call cuts the arguments, runs the plan on every rank, and puts the
results together as the return annotation says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jobflow import scope
from jobflow.compiler.compile import distribute, logical
from jobflow.compiler.trace import RUN_COUNTER, Tracer
from jobflow.errors import ArgumentError, JobError, SourceLine, user_line
from jobflow.function_config import FunctionConfig
from jobflow.graph.ir import Graph, Physical, Value, Variable
from jobflow.graph.training import Optimizer, Watch
from jobflow.layout import Box, Layout, Local, Placement
from jobflow.ops.base import ViewOp
from jobflow.ops.source import Input
from jobflow.results import deliver
from jobflow.session import Session
from jobflow.types import Array, TensorType, float32
from jobflow.typing.annotations import Declared
from jobflow.typing.results import Results
from jobflow.typing.signature import Bound, JobSignature

#: The optimizer that a configuration describes; JobError if it does not.
OptimizerOf = Callable[[FunctionConfig], Optimizer]
#: The shapes of one call: per array its shape, or a tuple of shapes, one per rank.
Shapes = tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Limit:
    """What an argument may hold because an op indexes with it: low <= value < high."""

    argument: str
    low: int
    high: int
    reader: str


#: A job for the shapes of one rank's arguments.
Version = tuple[Physical, Results, tuple[Watch, ...], tuple[Limit, ...]]


@dataclass(frozen=True)
class Compiled:
    """A job for one set of argument shapes."""

    job: Job
    number: int
    #: per rank; the same object for all unless the ranks' shapes differ
    programs: tuple[Physical, ...]
    results: Results
    #: whom to show the outputs that come after those of `results`
    watches: tuple[Watch, ...]
    limits: tuple[Limit, ...]
    #: argument -> the box of it that each rank takes; None for an argument that is a list already
    boxes: dict[str, tuple[Box | None, ...]]

    @property
    def graph(self) -> Graph:
        return self.programs[0].graph

    @property
    def variables(self) -> dict[str, Variable]:
        return self.graph.variables


class Job:
    """A declared job; `signature` says what it takes and gives."""

    def __init__(self, function: Callable[..., Any], trainable: bool, config: FunctionConfig, where: SourceLine, optimizer_of: OptimizerOf) -> None:
        self.function = function
        self.name = function.__name__
        self.signature = JobSignature.of(function)
        self.trainable = trainable
        self.config = config
        self.where = where
        self.optimizer_of = optimizer_of

    def __repr__(self) -> str:
        return f"<job {self.name} at {self.where}>"

    # ---------------------------------------------------------------- compiling

    def placement(self, session: Session) -> Placement:
        """Where the job runs unless its body says otherwise."""
        wanted = self.config.options.get("default_placement_scope")
        return session.default_placement() if wanted is None else wanted.resolve()

    @property
    def view(self) -> scope.View:
        wanted = self.config.options.get("default_logical_view")
        per_device = any(declared.per_device for _, declared in self.signature.placeholders())
        return wanted.view if wanted is not None else "mirrored" if per_device else "consistent"

    def declared_shapes(self, session: Session) -> Shapes:
        """The shapes that the declaration names."""
        ranks = self.placement(session).size
        return tuple((declared.type.shape,) * ranks if declared.per_device else declared.type.shape for _, declared in self.signature.placeholders())

    def compile(self, session: Session, shapes: Shapes, number: int) -> Compiled:
        """Trace the body and lay it out; once for all ranks, or once per rank where their shapes differ."""
        placement = self.placement(session)
        declared = [d for _, d in self.signature.placeholders()]
        ragged = [shape for d, shape in zip(declared, shapes, strict=True) if d.per_device and len(set(shape)) > 1]
        rows = tuple(own[0] for own in ragged[0]) if ragged else ()
        each: dict[Any, Version] = {}
        programs: list[Physical] = []
        for index in range(session.device_count()):
            position = placement.ranks.index(index) if index in placement.ranks else 0
            own = tuple(shape[position] if d.per_device else shape for d, shape in zip(declared, shapes, strict=True))
            if own not in each:
                each[own] = self._lay_out(session, placement, own, rows)
            programs.append(each[own][0])
        physical, results, watches, limits = each[next(iter(each))]
        return Compiled(self, number, tuple(programs), results, watches, limits, _boxes(physical, session.device_count()))

    def trace(self, session: Session, placement: Placement, shapes: Sequence[tuple[int, ...]], rows: tuple[int, ...] = ()) -> tuple[Tracer, Results]:
        """Run the body once: what it recorded, and the nesting of what it returned.  `rows` as in `Tracer`."""
        self.config.check()
        settings, view = session.settings, self.view
        tracer = Tracer(
            name=self.name,
            placement=placement,
            where=self.where,
            trainable=self.trainable,
            seed=settings.seed or 0,
            conv_algorithm=settings.conv_algorithm,
            default_dtype=self.config.options.get("default_data_type") or float32,
            config=self.config,
            known=session.variables,
            rows=rows,
        )
        with scope.using(interpreter=tracer, placement=placement, view=view, namespace=()):
            values = [self._argument(tracer, name, d, shape) for (name, d), shape in zip(self.signature.placeholders(), shapes, strict=True)]
            try:
                returned = self.function(*self.signature.arguments(values))
            except Exception as error:
                error.add_note(f"while job {self.name} ({self.where}) was traced")
                raise
            results = self.signature.results(returned)
            self._train(tracer)
        return tracer, results

    def _lay_out(self, session: Session, placement: Placement, shapes: Sequence[tuple[int, ...]], rows: tuple[int, ...]) -> Version:
        tracer, results = self.trace(session, placement, shapes, rows)
        graph = logical(tracer, returned_values(results))
        return distribute(graph), results, tuple(tracer.watches), _limits(graph)

    @staticmethod
    def _argument(tracer: Tracer, name: str, declared: Declared, shape: tuple[int, ...]) -> Value:
        return tracer.input(name, TensorType(shape, declared.type.dtype), local=declared.per_device)

    def _train(self, tracer: Tracer) -> None:
        """Have the optimizer of the configuration minimise the losses that were added, unless `minimize` was called."""
        if not self.trainable:
            return
        if tracer.training is None:
            try:
                optimizer = self.optimizer_of(self.config)
            except JobError as error:
                raise JobError(f"train job {self.name} ({self.where}): {error}") from None
            tracer.minimize(optimizer, tracer.losses, self.where)

    # ---------------------------------------------------------------- running

    def run(self, session: Session, args: tuple[Any, ...]) -> Any:
        """One call with arguments from the program."""
        bound = self.signature.bind(args, self.placement(session).size)
        compiled = session.compiled(self, tuple(_shape(declared, value) for _, declared, value in bound))
        self._check_limits(compiled, bound)
        session.compare_arguments(self, {name: value if declared.per_device else [value] for name, declared, value in bound})
        parts = session.run(compiled, self._feeds(session, compiled, bound))
        values = self._values(compiled, parts)
        returned = len(compiled.results.leaves)
        self._show(compiled.watches, values[returned:])
        return deliver(compiled.results, values[:returned])

    def _show(self, watches: Sequence[Watch], values: Sequence[Any]) -> None:
        for watch, value in zip(watches, values, strict=True):
            try:
                watch.take(value)
            except Exception as error:
                error.add_note(f"while job {self.name} ({self.where}) showed {watch.value.name}, which is watched at {watch.where}")
                raise

    def _check_limits(self, compiled: Compiled, bound: Sequence[Bound]) -> None:
        values = {name: value for name, _, value in bound}
        for limit in compiled.limits:
            for array in values[limit.argument] if isinstance(values[limit.argument], list) else [values[limit.argument]]:
                if array.size and not (limit.low <= array.min() and array.max() < limit.high):
                    wrong = next(int(x) for x in array.flat if not limit.low <= x < limit.high)
                    raise ArgumentError(
                        f'{self.name}({limit.argument}=...) at {user_line()}: argument "{limit.argument}" holds {wrong}; '
                        f"{limit.reader} takes {limit.low} to {limit.high - 1}. Pass such numbers, or make what they point into larger."
                    )

    def _feeds(self, session: Session, compiled: Compiled, bound: Sequence[Bound]) -> list[dict[str, Array]]:
        feeds: list[dict[str, Array]] = [{} for _ in compiled.programs]
        for name, declared, value in bound:
            for rank, box in enumerate(compiled.boxes.get(name, ())):
                if declared.per_device:
                    position = compiled.graph.placement.ranks.index(rank) if rank in compiled.graph.placement.ranks else None
                    if position is not None:
                        feeds[rank][name] = value[position]
                elif box is not None:
                    feeds[rank][name] = value if box.is_whole else value[box.slices]
        if RUN_COUNTER in compiled.boxes:
            counter = np.array([session.runs.get(self.name, 0)])
            for rank in range(len(feeds)):
                feeds[rank][RUN_COUNTER] = counter
        return feeds

    @staticmethod
    def _values(compiled: Compiled, parts: Sequence[Sequence[tuple[int, Array]]]) -> list[Any]:
        """Per returned tensor: the whole array, or a list of one array per device of a mirrored one."""
        found: dict[int, dict[int, Array]] = {}
        for rank, fetched in enumerate(parts):
            for position, array in fetched:
                found.setdefault(position, {})[rank] = array
        values: list[Any] = []
        for position, value in enumerate(compiled.graph.outputs):
            layout = compiled.programs[0].layouts[value]
            shards = found[position]
            if isinstance(layout, Local):
                values.append([shards[rank] for rank in layout.placement.ranks])
            elif layout.is_whole:
                values.append(next(iter(shards.values())))
            else:
                values.append(layout.assemble([shards[rank] for rank in layout.placement.ranks], value.type))
        return values


def returned_values(results: Results) -> list[Value]:
    """The tensors of a result, as nodes of the graph that made them."""
    return [value for value in results.leaves if isinstance(value, Value)]


def _shape(declared: Declared, value: Any) -> tuple[Any, ...]:
    return tuple(tuple(a.shape) for a in value) if declared.per_device else declared.type.shape


def _boxes(physical: Physical, size: int) -> dict[str, tuple[Box | None, ...]]:
    found: dict[str, tuple[Box | None, ...]] = {}
    for value in physical.graph.inputs:
        layout = physical.layouts[value]
        op = value.node.op
        assert isinstance(op, Input)
        found[op.key] = tuple(
            layout.box(value.shape, rank) if isinstance(layout, Layout) and rank in layout.placement.ranks else None for rank in range(size)
        )
    return found


def _limits(graph: Graph) -> tuple[Limit, ...]:
    """Arguments that an op indexes with directly, and what they may hold."""
    found: list[Limit] = []
    for node in graph.nodes:
        for i, (low, high) in node.op.limits(*(value.type for value in node.inputs)).items():
            value = node.inputs[i]
            while isinstance(value.node.op, ViewOp):
                value = value.node.inputs[0]
            if isinstance(value.node.op, Input):
                found.append(Limit(value.node.op.key, low, high, f"{node.name} at {node.where}"))
    return tuple(found)


def job_of(declared: Any) -> Job:
    """The job behind a decorated function; JobError if it is none."""
    job = getattr(declared, "job", None)
    if not isinstance(job, Job):
        raise JobError(f"{declared!r} is not a job; decorate it with global_function")
    return job
