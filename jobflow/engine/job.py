"""A job: a declared Python function over logical tensors.

It is traced once per set of argument shapes; a call cuts the arguments, runs the plan on every rank, and puts the
results together as the return annotation says.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jobflow.core.scope as scope
from jobflow.compiler.compile import distribute, logical
from jobflow.compiler.front.batch_cut import cut_batch, explained
from jobflow.compiler.front.trace import Tracer
from jobflow.core.errors import JobError, SourceLine
from jobflow.core.layout import Placement
from jobflow.core.notices import notice
from jobflow.core.types import TensorType, float32
from jobflow.engine.body import JobBody, Replacing
from jobflow.engine.compiled import Compiled
from jobflow.engine.data_feed import Fed
from jobflow.engine.device_programs import compare_devices
from jobflow.engine.job_config import FunctionConfig
from jobflow.engine.job_tensor import dynamic_axis, packed, value_of
from jobflow.engine.returned import deliver
from jobflow.engine.session import Session
from jobflow.graph.ir import Physical, Value
from jobflow.graph.strategy import Strategy
from jobflow.graph.traced import Traced
from jobflow.graph.training import ArgumentBounds, Microbatches, Optimizer, Watch
from jobflow.ops.arithmetic import Where
from jobflow.ops.random_tensors import RandomSource
from jobflow.ops.row_update import RowUpdate
from jobflow.program.arguments import ArgumentPart, argument_parts
from jobflow.runtime.collection import collection_paused
from jobflow.typing.annotations import Declared
from jobflow.typing.lazy import is_lazy, whole
from jobflow.typing.results import HostArgument, HostResult, Results
from jobflow.typing.signature import Bound, JobSignature

#: The optimizer that a configuration describes; JobError if it does not.
OptimizerOf = Callable[[FunctionConfig], Optimizer]
#: The shapes of one call: per array its shape, or a tuple of shapes, one per rank.
Shapes = tuple[tuple[Any, ...], ...]
#: the recorded program, and its results with their nesting
Trace = tuple[Traced, Results]
#: per rank, its parts of the arguments
Parts = tuple[tuple[ArgumentPart, ...], ...]
#: the option that says how many microbatches a run has
ACCUMULATION = "train.num_gradient_accumulation_steps"


class Version(NamedTuple):
    """A job for the shapes of one rank's arguments; see `Compiled`."""

    physical: Physical
    results: Results
    watches: tuple[Watch, ...]
    bounds: tuple[ArgumentBounds, ...]
    pieces: tuple[int, ...]
    program: Traced


class Job:
    """A declared job; `signature` says what it takes and gives."""

    #: whether it is compiled before it is called
    ahead = True

    def __init__(
        self,
        function: Callable[..., Any],
        trainable: bool,
        config: FunctionConfig,
        where: SourceLine,
        optimizer_of: OptimizerOf,
        replacing_of: Callable[[JobBody], Replacing] | None = None,
    ) -> None:
        self.signature = JobSignature.of(function)
        self.function = function
        self.name = function.__name__
        self.trainable = trainable
        self.config = config
        self.where = where
        self.optimizer_of = optimizer_of
        self.replacing_of = replacing_of
        self._declared: tuple[Any, dict[str, tuple[int, ...]]] | None = None

    def __repr__(self) -> str:
        return f"<job {self.name} at {self.where}>"

    # ---------------------------------------------------------------- compiling

    def placement(self, session: Session) -> Placement:
        """Where the job runs unless its body says otherwise."""
        wanted = self.config.options.get("default_placement_scope")
        given = session.default_placement() if wanted is None else wanted.resolve()
        return given if self.strategy is None else self.strategy.placement(given)

    @property
    def strategy(self) -> Strategy | None:
        """How the job is parallel, if its configuration says so."""
        return self.config.options.get("strategy")

    @property
    def view(self) -> scope.View:
        if self.strategy is not None and self.strategy.view is not None:
            return self.strategy.view
        wanted = self.config.options.get("default_logical_view")
        per_device = any(declared.per_device for _, declared in self.signature.placeholders())
        return wanted.view if wanted is not None else "mirrored" if per_device else "consistent"

    def with_strategy(self, strategy: Strategy | None) -> Job:
        """The same job under another strategy, or none; this one is left as it is."""
        other = copy.copy(self)
        other._declared = None
        other.config = self.config.copy()
        other.config.options.pop("strategy", None)
        if strategy is not None:
            other.config.set("strategy", strategy)
        return other

    def declared_shapes(self, session: Session) -> Shapes:
        """The shapes that the declaration names."""
        ranks = self.placement(session).size
        return tuple((declared.type.shape,) * ranks if declared.per_device else declared.type.shape for _, declared in self.signature.placeholders())

    @collection_paused()
    def compile(self, session: Session, shapes: Any, number: int) -> Compiled:
        """Trace the body and choose layouts; once for all ranks, or once per rank where their shapes differ."""
        return self.compile_traces(session, self.traces(session, shapes), number)

    @property
    def per_device(self) -> list[bool]:
        """Per input, True if every device has an array of its own."""
        return [declared.per_device for _, declared in self.signature.placeholders()]

    def traces(self, session: Session, shapes: Shapes) -> tuple[Trace, ...]:
        """Return per rank the trace for the shapes of its arguments; the same object for equal shapes."""
        placement, per_device = self.placement(session), self.per_device
        uneven = [shape for own, shape in zip(per_device, shapes, strict=True) if own and len(set(shape)) > 1]
        rows = tuple(own[0] for own in uneven[0]) if uneven else ()
        if self.ahead and self.microbatch_count == 1 and shapes != self.declared_shapes(session) and self._shown(session) is None:
            self.trace(session, placement, [declared.type.shape for _, declared in self.signature.placeholders()])
        each: dict[Any, Trace] = {}
        traces: list[Trace] = []
        for index in range(session.device_count()):
            position = placement.ranks.index(index) if index in placement.ranks else 0
            own = tuple(shape[position] if split else shape for split, shape in zip(per_device, shapes, strict=True))
            if own not in each:
                each[own] = self.trace(session, placement, own, rows)
            traces.append(each[own])
        return tuple(traces)

    def compile_traces(self, session: Session, traces: Sequence[Trace], number: int) -> Compiled:
        """Return the program of the ranks from the trace for each of them."""
        each = {id(trace): _version(trace) for trace in {id(trace): trace for trace in traces}.values()}
        programs = [each[id(trace)].physical for trace in traces]
        compare_devices(f"{self.name} at {self.where}", programs)
        first = each[id(traces[0])]
        parts = argument_parts(programs)
        program = first.program
        cut = program.microbatches
        passes = 1 if cut is None else cut.count
        fed = None if program.feed is None else Fed.of(program.feed, self.where, passes, self.parts_fed(program, parts), session.here)
        refused = next((version.program.refused for version in each.values() if version.program.refused), "")
        return Compiled(
            *(self.name, self.where, number, tuple(programs), parts, first.bounds, first.pieces),
            *(first.results, first.watches, program.tensors, program.modes, fed, refused),
        )

    def parts_fed(self, program: Traced, parts: Parts) -> Parts | None:
        """Return the parts of arguments that decide which rows the feed reads; None for all rows."""
        return parts

    @property
    def microbatch_count(self) -> int:
        """How many microbatches a run passes through the body."""
        by_strategy = self.strategy.microbatches if self.strategy is not None else None
        asked = self.config.options.get(ACCUMULATION) or self.config.microbatches or by_strategy or 1
        return asked if self.trainable else 1

    def microbatches(self, shapes: Sequence[tuple[int, ...]], rows: tuple[int, ...] = ()) -> Microbatches | None:
        """How the batch of a train job is cut, for arguments of these shapes; None if it passes whole.  `rows` as in `Tracer`."""
        if self.microbatch_count == 1:
            return None
        named = zip(self.signature.placeholders(), shapes, strict=True)
        where, exact = self.config.lines.get(ACCUMULATION, self.where), ACCUMULATION not in self.config.options
        return cut_batch(f"job {self.name}", self.microbatch_count, where, {name: shape for (name, _), shape in named}, exact=exact, devices=rows)

    def _reads_its_batch(self) -> bool:
        """Whether nobody passes the batch that is to be cut, so that each microbatch is one that the body reads or draws."""
        return self.microbatch_count > 1 and not any(declared.type.shape[:1] > (1,) for _, declared in self.signature.placeholders())

    def _passes(self, program: Traced, results: Results) -> Trace:
        """A body that reads its batch, or draws it, passed as often as there are microbatches: a run takes so many batches."""
        read = {} if program.feed is None else program.feed.types
        drawn = next((node.outputs[0].shape[:1] for node in program.nodes if isinstance(node.op, RandomSource)), ())
        rows = {type.shape[0] for type in read.values()} or set(drawn)
        if not rows:
            self.microbatches([declared.type.shape for _, declared in self.signature.placeholders()])  # which says that there is no batch
        where, count = self.config.lines.get(ACCUMULATION, self.where), self.microbatch_count
        if len(rows) > 1:
            raise JobError(
                f"job {self.name}: {count} microbatches, requested at {where}: its readers have batches of different sizes, {sorted(rows)}"
            )
        cut = Microbatches(count, count * rows.pop(), tuple(read), where)
        return replace(program, microbatches=cut, schedule=self._schedule), results

    def _with_read(self, cut: Microbatches, read: Mapping[str, TensorType]) -> Microbatches:
        """Microbatches of what is passed, each with a batch of what nobody passes."""
        rows = sorted({type.shape[0] for type in read.values()})
        if rows != list(cut.sizes):
            raise JobError(
                f"job {self.name}: {cut.count} microbatches, requested at {cut.where}: those of its arguments have "
                f"{' or '.join(map(str, cut.sizes))} rows, and what it reads has {' or '.join(map(str, rows))}; read as many rows as a microbatch has"
            )
        return replace(cut, arguments=(*cut.arguments, *read))

    @property
    def _schedule(self) -> str | None:
        """The order of the stages of a pipeline, by name."""
        asked: str | None = self.config.options.get("pipeline_schedule")
        return asked or (self.strategy.schedule if self.strategy is not None else None)

    def trace(self, session: Session, placement: Placement, shapes: Sequence[tuple[int, ...]], rows: tuple[int, ...] = ()) -> Trace:
        """Run the body: what it recorded, and the nesting of what it returned.  `rows` as in `Tracer`.

        Once; or once for each size of microbatches, if the batch is cut.
        """
        self.config.check()
        if self._reads_its_batch():
            return self._passes(*self._traced(session, placement, shapes, rows))
        cut = self.microbatches(shapes, rows)
        if cut is None:
            return self._traced(session, placement, shapes, rows)
        named = list(zip(self.signature.placeholders(), shapes, strict=True))
        each: list[Trace] = []
        exact = ACCUMULATION not in self.config.options
        for size in (*cut.sizes, *((cut.rows,) if exact else ())):
            own = [(size, *shape[1:]) if name in cut.arguments else shape for (name, _), shape in named]
            with explained(cut, size):
                each.append(self._traced(session, placement, own, rows))
        whole = each.pop() if exact else None
        (program, results), *others = each
        if read := {} if program.feed is None else program.feed.types:
            cut, whole = self._with_read(cut, read), None
        schedule = self._schedule
        tail = next(((body, returned_values(returned)) for body, returned in others), None)
        batch = None if whole is None else (whole[0], returned_values(whole[1]))
        return replace(program, microbatches=cut, schedule=schedule, tail=tail, whole=batch), results

    def _traced(self, session: Session, placement: Placement, shapes: Sequence[tuple[int, ...]], rows: tuple[int, ...]) -> Trace:
        settings, view = session.settings, self.view
        tracer = Tracer(self.name, placement, self.where, self.trainable, known=session.variables, rows=rows, looks=True)
        dtype = self.config.options.get("default_data_type") or float32
        options = {"seed": settings.seed or 0, "conv_algorithm": settings.conv_algorithm, "default_dtype": dtype, "config": self.config}
        body = self.body(session, tracer, shapes, options)
        arguments = [(name, declared, shape) for (name, declared), shape in zip(self.signature.placeholders(), shapes, strict=False)]
        largest = self.ahead and all(shape == d.type.shape for _, d, shape in arguments if d.per_device)
        body.replacing = self.replacing_of and self.replacing_of(body)
        body.declared = None if largest else self._shown(session) or {}
        with scope.using(interpreter=body, placement=placement, view=view, namespace=()):
            values = [
                HostArgument(name, d.type, placement.size)
                if d.nested
                else body.handle(tracer.in_current_view(self._argument(tracer, name, d, shape)))
                for name, d, shape in arguments
            ]
            try:
                returned = self.function(*self.signature.arguments(values))
            except Exception as error:
                error.add_note(f"while job {self.name} ({self.where}) was traced")
                raise
            results = self.signature.results(returned)
            dynamic_axes = tuple(map(dynamic_axis, results.leaves))
            results = replace(results, leaves=tuple(map(packed, results.leaves)), dynamic_axes=dynamic_axes)
            self._train(tracer)
        if largest:
            self._declared = weakref.ref(session), {value.name: value.shape for node in tracer.nodes for value in node.outputs}
        return self.recorded(body, returned_values(results)), results

    def _shown(self, session: Session) -> dict[str, tuple[int, ...]] | None:
        """The shapes that the program sees, by name of value: those for the largest arguments; None before the body was traced for these."""
        return self._declared[1] if self._declared is not None and self._declared[0]() is session else None

    def body(self, session: Session, tracer: Tracer, shapes: Sequence[Any], options: Mapping[str, Any]) -> JobBody:
        """Return the interpreter of the body for inputs of these shapes."""
        return JobBody(tracer, **options)

    def recorded(self, body: JobBody, outputs: Sequence[Value]) -> Traced:
        """Return the program that a body has recorded, with these outputs."""
        program = body.tracer.traced(outputs)
        options: dict[str, Any] = {"half": self.config.half, "strategy": self.strategy, "lazily": self.config.lazily}
        return replace(program, **options, tensors=body.tensors, modes=body.modes, feed=body.feed, refused=body.refused)

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

    def run(self, session: Session, args: tuple[Any, ...]) -> Callable[[], Any]:
        """Run with the user's arguments; return a function that passes watched values to their callbacks and returns the result."""
        bound = self.signature.bind(args, self.placement(session).size)
        if not session.multi and any(is_lazy(value) for _, _, value in bound):
            bound = [(name, declared, whole(value)) for name, declared, value in bound]
        compiled = self.compiled(session, bound)
        compiled.check(bound)
        session.compare_arguments(self, {name: _arrays(declared, value) for name, declared, value in bound})
        return partial(_delivered, *self.run_program(session, compiled, bound))

    def run_program(self, session: Session, compiled: Compiled, bound: Sequence[Bound]) -> tuple[Compiled, list[Any]]:
        """Run once; return the last program that has run, and its values."""
        extra, host_results = read_feed(session, compiled, bound)
        return compiled, session.run(compiled, [*bound, *extra], host_results)

    def compiled(self, session: Session, bound: Sequence[Bound]) -> Compiled:
        """Return the program for a call with these arguments."""
        return session.compiled(self, shapes_of(bound))


def read_feed(session: Session, compiled: Compiled, bound: Sequence[Bound], phase: str | None = None) -> tuple[list[Bound], dict[str, Any]]:
    """Return the arguments that no caller passes of a run with these arguments, and its results that no tensor of the job holds.

    With `phase`, only those that need the result of this phase and of none after it.
    """
    session.settle()
    counter = None if compiled.fed is None else compiled.fed.feed.counter
    if compiled.fed is not None and counter in session.loaded:
        session.loaded.discard(counter)
        session.runs[compiled.name] = int(session.read([counter])[counter].item()) // compiled.fed.passes
    return compiled.read(session.runs.get(compiled.name, 0), bound, phase)


def _delivered(compiled: Compiled, values: list[Any]) -> Any:
    returned = len(compiled.results.leaves)
    compiled.show_watched(values[returned:])
    return deliver(compiled.results, values[:returned])


def _version(trace: Trace) -> Version:
    program, results = trace
    found = logical(program, returned_values(results))
    updates = found.graph.updates
    whole = [name for name in program.lazily if name in updates and not isinstance(updates[name].node.op, RowUpdate | Where)]
    if whole:
        notice(
            f"{program}: indexed_slices_optimizer_conf names {', '.join(whole)}, of which all rows are updated: the gradient is more than "
            f"sums of rows, something else reads it, or the optimizer's formula is not one of single elements"
        )
    return Version(distribute(found.graph), results, found.watches, program.bounds, found.pieces, program)


def returned_values(results: Results) -> list[Value]:
    """The tensors of a result, as nodes of the graph that made them."""
    return [value_of(tensor) for tensor in results.leaves if not isinstance(tensor, HostResult)]


def shapes_of(bound: Sequence[Bound]) -> Shapes:
    """Those of the arguments of a call."""
    return tuple(_shape(declared, value) for _, declared, value in bound)


def _shape(declared: Declared, value: Any) -> tuple[Any, ...]:
    if declared.nested:
        return (declared.type.shape,) * len(value)
    return tuple(tuple(a.shape) for a in value) if declared.per_device else declared.type.shape


def _arrays(declared: Declared, value: Any) -> list[Any]:
    """Those of an argument."""
    if declared.nested:
        return [array for own in value for array in own]
    return list(value) if declared.per_device else [value]


def job_of(declared: Any) -> Job:
    """The job behind a decorated function; JobError if it is none."""
    job = getattr(declared, "job", None)
    if not isinstance(job, Job):
        raise JobError(f"{declared!r} is not a job; decorate it with global_function")
    return job
