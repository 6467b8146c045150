"""A job: a declared Python function over logical tensors.

The function is traced once per set of argument shapes.  A call runs the program for its shapes and delivers results by the return annotation.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jobflow.core.scope as scope
from jobflow.compiler.compile import distribute, logical
from jobflow.compiler.front.batch_cut import cut_batch, explained
from jobflow.compiler.front.trace import Tracer
from jobflow.core.errors import NOWHERE, JobError, SourceLine, user_line
from jobflow.core.layout import Placement
from jobflow.core.notices import notice
from jobflow.core.types import TensorType, float32
from jobflow.engine.body import JobBody, Replacing
from jobflow.engine.common_target import common_target
from jobflow.engine.compiled import Compiled
from jobflow.engine.data_feed import Fed
from jobflow.engine.job_config import FunctionConfig
from jobflow.engine.job_tensor import dynamic_axis, packed, value_of
from jobflow.engine.returned import deliver
from jobflow.engine.session import Session
from jobflow.graph.ir import Graph, Value
from jobflow.graph.strategy import Strategy
from jobflow.graph.traced import Traced
from jobflow.graph.training import Microbatches, Optimizer
from jobflow.ops.arithmetic import Where
from jobflow.ops.random_tensors import RandomSource
from jobflow.ops.row_update import RowUpdate
from jobflow.program.arguments import ArgumentPart, argument_parts
from jobflow.program.rank_group import compare_devices
from jobflow.runtime.collection import collection_paused
from jobflow.typing.annotations import Declared
from jobflow.typing.lazy import is_lazy, whole
from jobflow.typing.results import HostArgument, HostResult, Results
from jobflow.typing.signature import Bound, JobSignature

#: the optimizer of a configuration; JobError if it has none
OptimizerOf = Callable[[FunctionConfig], Optimizer]
#: the shapes of one call: per array its shape, or a tuple of shapes, one per rank
Shapes = tuple[tuple[Any, ...], ...]
#: the recorded program, and its results with their nesting
Trace = tuple[Traced, Results]
#: per rank, its parts of the arguments
Parts = tuple[tuple[ArgumentPart, ...], ...]
#: the option for the number of microbatches
ACCUMULATION = "train.num_gradient_accumulation_steps"


class Job:
    """A declared job: the function, its signature and its configuration."""

    #: True if the job is compiled before its first call
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
        """Return the default placement of operations in the body."""
        option = self.config.options.get("default_placement_scope")
        placement = session.default_placement() if option is None else option.resolve()
        return placement if self.strategy is None else self.strategy.placement(placement)

    @property
    def strategy(self) -> Strategy | None:
        """The strategy of the configuration, or None."""
        return self.config.options.get("strategy")

    @property
    def view(self) -> scope.View:
        if self.strategy is not None and self.strategy.view is not None:
            return self.strategy.view
        option = self.config.options.get("default_logical_view")
        return option.view if option is not None else "mirrored" if any(self.per_device) else "consistent"

    def with_strategy(self, strategy: Strategy | None) -> Job:
        """Return a copy of the job with this strategy; None removes the strategy."""
        other = copy.copy(self)
        other._declared = None
        other.config = self.config.copy()
        other.config.options.pop("strategy", None)
        if strategy is not None:
            other.config.set("strategy", strategy)
        return other

    def declared_shapes(self, session: Session) -> Shapes:
        """Return the shapes in the annotations of the arguments."""
        ranks = self.placement(session).size
        return tuple((declared.type.shape,) * ranks if declared.per_device else declared.type.shape for _, declared in self.signature.placeholders())

    @collection_paused()
    def compile(self, session: Session, shapes: Any, number: int) -> Compiled:
        """Trace the body and choose layouts, once for all ranks, or once per rank if argument shapes differ between ranks."""
        return self.compile_traces(session, self.traces(session, shapes), number)

    @property
    def per_device(self) -> list[bool]:
        """One flag per argument: True if every device has a separate array."""
        return [declared.per_device for _, declared in self.signature.placeholders()]

    def traces(self, session: Session, shapes: Shapes) -> tuple[Trace, ...]:
        """Return one trace per rank for the shapes of its arguments; ranks with equal shapes have the same trace."""
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
        """Compile the program of all ranks from one trace per rank."""
        each = {id(trace): trace for trace in traces}
        target = common_target(session)
        logical_of = {key: logical(program, returned_values(results), target) for key, (program, results) in each.items()}
        physical_of = {key: distribute(program.graph, target, self.config.sum_dtype) for key, program in logical_of.items()}
        programs = tuple([physical_of[id(trace)] for trace in traces])
        compare_devices(f"{self.name} at {self.where}", programs)
        if target.kind == "cuda" and session.device_tag == "gpu" and not any(node.placement.tag == "gpu" for node in programs[0].graph.nodes):
            where = f'job {self.name} at {self.where}: all operations are placed on "cpu", but the session has GPUs, which run them'
            notice(f"{where}; for a job on CPUs, set config.cpu_device_num instead of config.gpu_device_num")
        parts, first, (program, results) = argument_parts(programs), logical_of[id(traces[0])], traces[0]
        _note_whole_updates(program, first.graph)
        passes = 1 if program.microbatches is None else program.microbatches.count
        fed = None if program.feed is None else Fed.of(program.feed, self.where, passes, self.parts_fed(program, parts), session.here)
        refused = next((other.refused for other, _ in each.values() if other.refused), "")
        return Compiled(
            *(self.name, self.where, number, programs, parts, program.bounds, first.pieces),
            *(results, first.watches, program.tensors, program.modes, fed, refused),
        )

    def parts_fed(self, program: Traced, parts: Parts) -> Parts | None:
        """Return the parts of arguments that determine the rows that the feed reads; None for all rows."""
        return parts

    @property
    def microbatch_count(self) -> int:
        """The number of microbatches of a run."""
        by_strategy = self.strategy.microbatches if self.strategy is not None else None
        count = self.config.options.get(ACCUMULATION) or self.config.microbatches or by_strategy or 1
        return count if self.trainable else 1

    def microbatches(self, shapes: Sequence[tuple[int, ...]], rows: tuple[int, ...] = ()) -> Microbatches | None:
        """Return the microbatches for arguments of these shapes, or None if the batch is not divided.  `rows` as in `Tracer`."""
        if self.microbatch_count == 1:
            return None
        named = zip(self.signature.placeholders(), shapes, strict=True)
        where, exact = self.config.lines.get(ACCUMULATION, self.where), ACCUMULATION not in self.config.options
        return cut_batch(f"job {self.name}", self.microbatch_count, where, {name: shape for (name, _), shape in named}, exact=exact, devices=rows)

    def _reads_its_batch(self) -> bool:
        """True if the body reads or samples each microbatch, because no argument has a batch that can be divided."""
        return self.microbatch_count > 1 and not any(declared.type.shape[:1] > (1,) for _, declared in self.signature.placeholders())

    def _passes(self, program: Traced, results: Results) -> Trace:
        """Return the trace of a body that reads or samples its batch, changed for runs with one batch per microbatch.

        Raises: JobError if there is no batch, or if the readers have different batch sizes.
        """
        read = {} if program.feed is None else program.feed.types
        sampled = next((node.outputs[0].shape[:1] for node in program.nodes if isinstance(node.op, RandomSource)), ())
        rows = {type.shape[0] for type in read.values()} or set(sampled)
        if not rows:
            self.microbatches([declared.type.shape for _, declared in self.signature.placeholders()])  # raises the error that there is no batch
        where, count = self.config.lines.get(ACCUMULATION, self.where), self.microbatch_count
        if len(rows) > 1:
            raise JobError(
                f"job {self.name} at {where}: with {count} microbatches, all readers must have the same batch size; got {sorted(rows)}; "
                f"set one batch size for all readers"
            )
        cut = Microbatches(count, count * rows.pop(), tuple(read), where)
        return replace(program, microbatches=cut, schedule=self._schedule), results

    def _with_read(self, cut: Microbatches, read: Mapping[str, TensorType]) -> Microbatches:
        """Return the microbatches extended by the arrays that the body reads, one batch for each microbatch.

        Raises: JobError if the readers and the microbatches differ in batch size.
        """
        rows = sorted({type.shape[0] for type in read.values()})
        if rows != list(cut.sizes):
            raise JobError(
                f"job {self.name} at {cut.where}: each of {cut.count} microbatches has {' or '.join(map(str, cut.sizes))} rows of the "
                f"arguments, but the readers return {' or '.join(map(str, rows))}; read as many rows as a microbatch has"
            )
        return replace(cut, arguments=(*cut.arguments, *read))

    @property
    def _schedule(self) -> str | None:
        """The name of the pipeline schedule, or None."""
        option: str | None = self.config.options.get("pipeline_schedule")
        return option or (self.strategy.schedule if self.strategy is not None else None)

    def trace(self, session: Session, placement: Placement, shapes: Sequence[tuple[int, ...]], rows: tuple[int, ...] = ()) -> Trace:
        """Run the body, once for each size of microbatches, and return its trace.  `rows` as in `Tracer`."""
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
        """Return shapes by name of value in the trace for the largest arguments; None before that trace."""
        return self._declared[1] if self._declared is not None and self._declared[0]() is session else None

    def body(self, session: Session, tracer: Tracer, shapes: Sequence[Any], options: Mapping[str, Any]) -> JobBody:
        """Return the interpreter of the body for inputs of these shapes."""
        return JobBody(tracer, **options)

    def recorded(self, body: JobBody, outputs: Sequence[Value]) -> Traced:
        """Return the program that was traced in a body, with these outputs."""
        program = body.tracer.traced(outputs)
        options: dict[str, Any] = {"half": self.config.half, "strategy": self.strategy, "lazily": self.config.lazily}
        return replace(program, **options, tensors=body.tensors, modes=body.modes, feed=body.feed, refused=body.refused)

    @staticmethod
    def _argument(tracer: Tracer, name: str, declared: Declared, shape: tuple[int, ...]) -> Value:
        return tracer.input(name, TensorType(shape, declared.type.dtype), local=declared.per_device)

    def _train(self, tracer: Tracer) -> None:
        """Minimize the losses with the optimizer of the configuration, unless the body has called `minimize`."""
        if not self.trainable:
            return
        if tracer.training is None:
            try:
                optimizer = self.optimizer_of(self.config)
            except JobError as error:
                raise JobError(f"train job {self.name} at {self.where}: {error}") from None
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

    def run_program(self, session: Session, compiled: Compiled, bound: Sequence[Bound]) -> tuple[Compiled, Callable[[], list[Any]]]:
        """Run once; return the last program that has run, and a function that returns its values."""
        extra, host_results = read_feed(session, compiled, bound)
        return compiled, session.run(compiled, [*bound, *extra], host_results)

    def compiled(self, session: Session, bound: Sequence[Bound]) -> Compiled:
        """Return the program for a call with these arguments."""
        return session.compiled(self, shapes_of(bound))


def read_feed(session: Session, compiled: Compiled, bound: Sequence[Bound], phase: str | None = None) -> tuple[list[Bound], dict[str, Any]]:
    """Read the arguments and the results of the host pipeline from the job's feed, for a run with the caller's arguments `bound`.

    With `phase`, only arrays whose last phase is `phase` are read; without it, only arrays that depend on no phase.
    """
    session.settle()
    counter = None if compiled.fed is None else compiled.fed.feed.counter
    if compiled.fed is not None and counter in session.loaded:
        session.loaded.discard(counter)
        session.runs[compiled.name] = int(session.read([counter])[counter].item()) // compiled.fed.passes
    return compiled.read(session.runs.get(compiled.name, 0), bound, phase)


def _delivered(compiled: Compiled, values: Callable[[], list[Any]]) -> Any:
    if compiled.watches:
        compiled.show_watched(values()[len(compiled.results.leaves) :])
    return deliver(compiled.results, values)


def _note_whole_updates(program: Traced, graph: Graph) -> None:
    """Print a notice for variables that are updated in all rows although the configuration requests updates of single rows."""
    updates = graph.updates
    whole = [name for name in program.lazily if name in updates and not isinstance(updates[name].node.op, RowUpdate | Where)]
    if whole:
        notice(
            f"{program}: indexed_slices_optimizer_conf names {', '.join(whole)}, but all rows are updated: the gradient is not a sum of "
            f"rows, another operation reads it, or the optimizer does not update each element separately"
        )


def returned_values(results: Results) -> list[Value]:
    """Return the values of the results that are tensors of the job."""
    return [value_of(tensor) for tensor in results.leaves if not isinstance(tensor, HostResult)]


def shapes_of(bound: Sequence[Bound]) -> Shapes:
    """Return the shapes of the arguments of a call."""
    return tuple(_shape(declared, value) for _, declared, value in bound)


def _shape(declared: Declared, value: Any) -> tuple[Any, ...]:
    if declared.nested:
        return (declared.type.shape,) * len(value)
    return tuple(tuple(a.shape) for a in value) if declared.per_device else declared.type.shape


def _arrays(declared: Declared, value: Any) -> list[Any]:
    """Return the arrays of an argument."""
    if declared.nested:
        return [array for own in value for array in own]
    return list(value) if declared.per_device else [value]


def job_of(declared: Any, operation: str = "job_of") -> Job:
    """Return the job of a decorated function; raise JobError, with the `operation` that needs a job, for another object."""
    job = getattr(declared, "job", None)
    if not isinstance(job, Job):
        line = user_line()
        where = operation if line == NOWHERE else f"{operation} at {line}"
        raise JobError(f"{where}: {declared!r} is not a job; decorate the function with global_function")
    return job
