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
from types import MappingProxyType
from typing import Any, NamedTuple

import jobflow.core.scope as scope
from jobflow.compiler.compile import distribute, logical
from jobflow.compiler.front.batch_cut import cut_batch, explained
from jobflow.compiler.front.differentiate import reached_from, trained_variables
from jobflow.compiler.front.trace import Tracer
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import JobError, SourceLine
from jobflow.core.layout import Placement
from jobflow.core.notices import notice
from jobflow.core.types import TensorType, float32
from jobflow.engine.body import JobBody, Replacing
from jobflow.engine.compiled import Compiled
from jobflow.engine.data_feed import Fed, Ragged
from jobflow.engine.device_programs import compare_devices
from jobflow.engine.job_config import FunctionConfig
from jobflow.engine.job_tensor import Found, packed, value_of
from jobflow.engine.returned import deliver
from jobflow.engine.session import Session
from jobflow.graph.ir import Physical, Value
from jobflow.graph.strategy import Strategy
from jobflow.graph.traced import Traced
from jobflow.graph.training import ArgumentBounds, Microbatches, Optimizer, Training, Watch
from jobflow.ops.arithmetic import Where
from jobflow.ops.random_tensors import RandomSource
from jobflow.ops.row_update import RowUpdate
from jobflow.program.arguments import argument_parts
from jobflow.runtime.collection import collection_paused
from jobflow.typing.annotations import Declared
from jobflow.typing.lazy import is_lazy, whole
from jobflow.typing.results import HostArgument, HostResult, Results
from jobflow.typing.signature import Bound, JobSignature

#: The optimizer that a configuration describes; JobError if it does not.
OptimizerOf = Callable[[FunctionConfig], Optimizer]
#: The shapes of one call: per array its shape, or a tuple of shapes, one per rank.
Shapes = tuple[tuple[Any, ...], ...]
#: by name, no shapes of what is read
NOTHING: Mapping[str, Any] = MappingProxyType({})
#: What a body recorded, and the nesting of what it returned.
Trace = tuple[Traced, Results]
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


@dataclass(frozen=True)
class Before:
    """In the place of shapes: what a job with these does to compute an argument of the rest of the run."""

    name: str
    shapes: Shapes

    def of(self, trace: Trace) -> Trace:
        """It, of what the body has recorded; it writes nothing."""
        program, _ = trace
        names = list(program.sized)
        known = {name: program.sized[name] for name in names[: names.index(self.name)]}
        unknown = program.sized.keys() - known.keys()
        unknown |= {made for made, of in program.feed.made_of.items() if unknown & {*of}} if program.feed is not None else set()
        inputs = {name: value for name, value in program.inputs.items() if name not in unknown}
        rest = replace(program, inputs=inputs, updates={}, training=None, losses=(), watches=(), sized=known)
        return rest, Results("value", (program.sized[self.name].value,), ("numpy",), 0)


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
    def compile(self, session: Session, shapes: Shapes | Before, number: int) -> Compiled:
        """Trace the body and lay it out; once for all ranks, or once per rank where their shapes differ."""
        if isinstance(shapes, Before):
            traces = self.traces(session, shapes.shapes)
            parts = {id(trace): shapes.of(trace) for trace in traces}
            return self.laid_out(session, [parts[id(trace)] for trace in traces], number)
        return self.laid_out(session, self.traces(session, shapes), number)

    def traces(self, session: Session, shapes: Shapes) -> tuple[Trace, ...]:
        """Per rank what the body records for the shapes of its arguments; the same object where they are the same."""
        placement = self.placement(session)
        declared = [d for _, d in self.signature.placeholders()]
        shapes, read = shapes[: len(declared)], shapes[len(declared) :]
        per_device = [shape for d, shape in zip(declared, shapes, strict=True) if d.per_device] + [shape for _, each, shape in read if each]
        ragged = [shape for shape in per_device if len(set(shape)) > 1]
        rows = tuple(own[0] for own in ragged[0]) if ragged else ()
        largest = tuple(d.type.shape for d in declared)
        if self.ahead and self.microbatch_count == 1 and shapes != self.declared_shapes(session) and self._shown(session) is None:
            self.trace(session, placement, largest)
        each: dict[Any, Trace] = {}
        found: list[Trace] = []
        for index in range(session.device_count()):
            position = placement.ranks.index(index) if index in placement.ranks else 0
            own = tuple(shape[position] if d.per_device else shape for d, shape in zip(declared, shapes, strict=True))
            mine = tuple((name, shape[position] if split else shape) for name, split, shape in read)
            if (own, mine) not in each:
                each[own, mine] = self._traced(session, placement, own, rows, dict(mine)) if mine else self.trace(session, placement, own, rows)
            found.append(each[own, mine])
        return tuple(found)

    def laid_out(self, session: Session, traces: Sequence[Trace], number: int) -> Compiled:
        """What the ranks run of what the body recorded for each of them."""
        each = {id(trace): _version(trace) for trace in {id(trace): trace for trace in traces}.values()}
        programs = [each[id(trace)].physical for trace in traces]
        compare_devices(f"{self.name} at {self.where}", programs)
        first = each[id(traces[0])]
        parts = argument_parts(programs)
        program = first.program
        cut = program.microbatches
        passes = 1 if cut is None else cut.count
        fed = None if program.feed is None else Fed.of(program.feed, self.where, passes, parts, session.here, bool(program.sized))
        refused = next((version.program.refused for version in each.values() if version.program.refused), "")
        return Compiled(
            *(self.name, self.where, number, tuple(programs), parts, first.bounds, first.pieces),
            *(first.results, first.watches, program.tensors, program.modes, fed, refused, program.sized),
        )

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

    def _traced(
        self, session: Session, placement: Placement, shapes: Sequence[tuple[int, ...]], rows: tuple[int, ...], read: Mapping[str, Any] = NOTHING
    ) -> Trace:
        settings, view = session.settings, self.view
        tracer = Tracer(self.name, placement, self.where, self.trainable, known=session.variables, rows=rows, looks=True)
        dtype = self.config.options.get("default_data_type") or float32
        body = self.body(session, tracer, seed=settings.seed or 0, conv_algorithm=settings.conv_algorithm, default_dtype=dtype, config=self.config)
        given = zip(self.signature.placeholders(), shapes, strict=True)
        largest = self.ahead and not read and all(shape == d.type.shape for (_, d), shape in given if d.per_device)
        body.read, body.replacing = read, self.replacing_of and self.replacing_of(body)
        body.declared = None if largest else self._shown(session) or {}
        with scope.using(interpreter=body, placement=placement, view=view, namespace=()):
            declared = zip(self.signature.placeholders(), shapes, strict=True)
            values = [
                HostArgument(name, d.type, placement.size)
                if d.nested
                else body.handle(tracer.in_current_view(self._argument(tracer, name, d, shape)))
                for (name, d), shape in declared
            ]
            try:
                returned = self.function(*self.signature.arguments(values))
            except Exception as error:
                error.add_note(f"while job {self.name} ({self.where}) was traced")
                raise
            results = self.signature.results(returned)
            found = tuple(leaf.axis if isinstance(leaf, Found) and not leaf.read else None for leaf in results.leaves)
            results = replace(results, leaves=tuple(map(packed, results.leaves)), found=found)
            self._train(tracer)
            if tracer.training is not None and body.feed is not None:
                _trains_what_it_can(body, tracer.training)
        if largest:
            self._declared = weakref.ref(session), {value.name: value.shape for node in tracer.nodes for value in node.outputs}
        return self.recorded(body, returned_values(results)), results

    def _shown(self, session: Session) -> dict[str, tuple[int, ...]] | None:
        """The shapes that the program sees, by name of value: those for the largest arguments; None before the body was traced for these."""
        return self._declared[1] if self._declared is not None and self._declared[0]() is session else None

    def body(self, session: Session, tracer: Tracer, **options: Any) -> JobBody:
        """The interpreter of its body."""
        return JobBody(tracer, **options)

    def recorded(self, body: JobBody, outputs: Sequence[Value]) -> Traced:
        """What a body has recorded, of which these are to be the outputs."""
        program = body.tracer.traced(outputs)
        told: dict[str, Any] = {"half": self.config.half, "strategy": self.strategy, "lazily": self.config.lazily}
        if body.sized and self.microbatch_count > 1:
            where = self.config.lines.get(ACCUMULATION, self.where)
            raise JobError(
                f"job {self.name}: {', '.join(body.sized)} is computed before the rest of a run, in each of its {self.microbatch_count} microbatches "
                f"another, requested at {where}; {' and '.join(dict.fromkeys(sized.instead for sized in body.sized.values()))}"
            )
        if self.microbatch_count > 1 and body.feed is not None and (names := [*body.feed.ragged, *body.feed.results]):
            raise JobError(
                f"job {self.name}: {', '.join(names)} has another shape in each of its {self.microbatch_count} microbatches, requested at "
                f"{self.config.lines.get(ACCUMULATION, self.where)}; give samples one shape, as image.Resize does"
            )
        return replace(program, **told, tensors=body.tensors, modes=body.modes, feed=body.feed, refused=body.refused, sized=dict(body.sized))

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
        """One call with arguments from the program; what then shows what is watched, and gives the result."""
        bound = self.signature.bind(args, self.placement(session).size)
        if not session.multi and any(is_lazy(value) for _, _, value in bound):
            bound = [(name, declared, whole(value)) for name, declared, value in bound]
        compiled = self.compiled(session, bound)
        compiled.check(bound)
        session.compare_arguments(self, {name: _arrays(declared, value) for name, declared, value in bound})
        further, beside = read_for(session, compiled, bound)
        compiled = self.fitting(session, compiled, bound, further)
        while ahead := [name for name in compiled.sized if name not in {name for name, _, _ in further}]:
            further.append(self._before(session, compiled, bound, further, ahead[0]))
            compiled = self.fitting(session, compiled, bound, further)
            compiled.check(further)
            made, results = read_for(session, compiled, [*bound, *further], ahead[0])
            further, beside = further + made, beside | results
            compiled = self.fitting(session, compiled, bound, further)
        return partial(_given, compiled, session.run(compiled, [*bound, *further], beside))

    def _before(self, session: Session, compiled: Compiled, bound: Sequence[Bound], further: Sequence[Bound], name: str) -> Bound:
        """An argument that the run computes before the rest of it."""
        part = session.compiled(self, Before(name, (*shapes_of(bound), *_read(compiled, further))))
        (found,) = session.look(part, [*bound, *further], {})
        sized = compiled.sized[name]
        return name, Declared(sized.type, sized.per_device, self.where), sized.of(found)

    def fitting(self, session: Session, compiled: Compiled, bound: Sequence[Bound], further: Sequence[Bound]) -> Compiled:
        """The job for a call with these arguments and what the feed has read, whose shapes may be known now only."""
        ragged, read = _ragged(compiled), _read(compiled, further)
        if all(set(shape if split else (shape,)) == {ragged[name].type.shape} for name, split, shape in read):
            return compiled
        return session.compiled(self, (*shapes_of(bound), *read))

    def compiled(self, session: Session, bound: Sequence[Bound]) -> Compiled:
        """The job for a call with these arguments."""
        return session.compiled(self, shapes_of(bound))


def _trains_what_it_can(body: JobBody, training: Training) -> None:
    """JobError if a gradient would have to go through what the host makes of tensors of the job."""
    nodes = body.tracer.nodes
    trained = reached_from(trained_variables(body.tracer), nodes)
    for name, made_of in body.feed.made_of.items():
        sources = [body.sized[each].value for each in made_of]
        if name in body.tracer.inputs and (reached := [value.name for value in sources if value in trained]):
            onward = reached_from({body.tracer.inputs[name]}, nodes)
            if any(loss in onward for loss in training.losses):
                raise JobError(
                    f"{body.tracer.kind} {body.name} at {training.where}: the loss depends by {name} on {', '.join(reached)}, which trainable "
                    f"variables are part of, and what the host does has no gradient; give them trainable=False, or make {reached[0]} of integers"
                )
            trained |= onward


def _ragged(compiled: Compiled) -> dict[str, Ragged]:
    """The arguments that nobody passes and whose shapes are those of the run."""
    return {**(compiled.fed.feed.ragged if compiled.fed is not None else {}), **compiled.sized}


def _read(compiled: Compiled, further: Sequence[Bound]) -> list[tuple[str, bool, Any]]:
    """Their shapes in a run with these arguments, or one for each device."""
    ragged = _ragged(compiled)
    return [
        (name, ragged[name].per_device, tuple([x.shape for x in value]) if declared.per_device else value.shape)
        for name, declared, value in further
        if name in ragged
    ]


def read_for(session: Session, compiled: Compiled, bound: Sequence[Bound], after: str | None = None) -> tuple[list[Bound], dict[str, Any]]:
    """The arguments that nobody passes of the run with these, and what no tensor of the job holds of its results; see `Compiled.read`."""
    session.settle()
    counter = None if compiled.fed is None else compiled.fed.feed.counter
    if compiled.fed is not None and counter in session.loaded:
        session.loaded.discard(counter)
        session.runs[compiled.name] = int(session.read([counter])[counter].item()) // compiled.fed.passes
    return compiled.read(session.runs.get(compiled.name, 0), bound, after)


def _given(compiled: Compiled, values: list[Any]) -> Any:
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
