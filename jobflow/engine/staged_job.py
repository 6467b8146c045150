"""Jobs whose runs may have phases: the result of one program is an argument of the next.

    rows = flow.argwhere(x)          # phase 1 computes x; the host counts the rows
    y = flow.gather_nd(table, rows)  # phase 2 is compiled for their number

A phase computes an argument of later programs in the run, because the host needs its shape or its values.  Arguments from the job's feed may
have a different shape in each run, too.  Each combination of shapes has a separate program.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np

from jobflow.compiler.front.differentiate import reached_from, trained_variables
from jobflow.compiler.front.trace import Tracer
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import JobError
from jobflow.core.types import Array, Tensor, TensorType
from jobflow.engine.body import JobBody
from jobflow.engine.compiled import Compiled
from jobflow.engine.data_feed import DynamicArgument
from jobflow.engine.job import ACCUMULATION, Job, Parts, Shapes, Trace, read_feed, shapes_of
from jobflow.engine.job_tensor import DynamicRows, JobTensor
from jobflow.engine.returned import trimmed
from jobflow.engine.session import Session
from jobflow.graph.ir import Value
from jobflow.graph.traced import Traced
from jobflow.runtime.collection import collection_paused
from jobflow.typing.annotations import Declared
from jobflow.typing.results import Results
from jobflow.typing.signature import Bound

#: the alternative to dynamic rows
_MASK = "return the tensor, or compute with where(condition, x, y)"
#: per dynamic argument its name, True for one shape per device, and its shape or shapes
DynamicShapes = tuple[tuple[str, bool, Any], ...]


@dataclass(frozen=True, eq=False)
class PhaseArgument(DynamicArgument):
    """An argument computed by an earlier phase of the run, because its shape or its values are needed on the host."""

    value: Value
    convert: Callable[[Array], Array]
    #: the advice of errors for jobs that cannot have phases
    advice: str

    def of(self, result: Any) -> Any:
        """Convert the result of the phase to the argument: an array, or a list with one array per device."""
        return [self.convert(each) for each in result] if self.per_device else self.convert(result)


class StagedBody(JobBody):
    """The interpreter of the body of a staged job."""

    def __init__(self, tracer: Tracer, shapes: Mapping[str, tuple[int, ...]], **options: Any) -> None:
        super().__init__(tracer, **options)
        #: by name, the arguments that earlier phases compute
        self.phases: dict[str, PhaseArgument] = {}
        #: by name, the shapes of dynamic arguments that differ from the largest
        self.shapes = shapes

    # ---------------------------------------------------------------- arguments from a feed

    def fed(self, name: str, type: TensorType) -> JobTensor:
        """Declare an argument that the job's feed reads, and return its tensor."""
        return self.handle(self.tracer.in_current_view(self.tracer.input(name, type)))

    def dynamic_input(self, name: str, argument: DynamicArgument) -> JobTensor:
        """Declare an argument whose shape may differ between runs, and return its tensor."""
        type = argument.type.with_shape(self.dynamic_shape(name, argument))
        return self.handle(self.tracer.in_current_view(self.tracer.input(name, type, local=argument.per_device)))

    def dynamic_shape(self, name: str, argument: DynamicArgument) -> tuple[int, ...]:
        """Return the shape of an argument in the runs for which the body is traced."""
        return self.shapes.get(name, argument.type.shape)

    # ---------------------------------------------------------------- arguments from earlier phases

    def dynamic_rows(self, name: str, padded: JobTensor, axis: int) -> JobTensor:
        """Return the rows of `padded` along `axis` without their padding of -1; the number of rows differs between runs."""
        shape = self.shapes.get(name, padded.tensor_type.shape)
        return DynamicRows(padded, axis, partial(self._phase_input, name, padded, axis), shape)

    def _phase_input(self, name: str, padded: JobTensor, axis: int) -> JobTensor:
        """Return the rows as an argument that an earlier phase computes; the program that reads the argument is compiled for the number of rows."""
        self.phases[name] = phase = PhaseArgument(padded.tensor_type, padded.local, padded.value, partial(trimmed, axis=axis), _MASK)
        return self.dynamic_input(name, phase)

    def host_phase(self, what: str, value: Value) -> str:
        """Declare a phase that computes `value` for the host, and return the name of the argument with its array.

        If the body has such a phase already, return the name of its argument.  `what` is the prefix of a new name.
        """
        if known := next((name for name, phase in self.phases.items() if phase.value is value and phase.convert is np.asarray), None):
            return known
        name = self.unique_name(what)
        advice = "compute the tensor in a separate job, and pass the result to this job"
        self.phases[name] = PhaseArgument(value.tensor_type, value.local, value, np.asarray, advice)
        return name

    def now(self, value: Value) -> Any:
        """Return the array of a value, or a list with one array per device; None if the values are unknown while the body runs."""
        return None

    def watch(self, value: Tensor, take: Callable[[Any], None], gradient: bool = False) -> None:
        if isinstance(value, DynamicRows):
            axis = value.axis
            self.tracer.watch(value.padded.value, lambda array: take(trimmed(array, axis)), gradient)
        else:
            super().watch(value, take, gradient)


@dataclass(frozen=True)
class StageShapes:
    """Shapes of the caller's arguments and of the dynamic arguments in a run."""

    arguments: Shapes
    dynamic: DynamicShapes
    #: the argument that the program computes; "" for the last program of the run
    phase: str = ""


@dataclass(frozen=True)
class StagedProgram(Compiled):
    """The last program of runs with dynamic arguments."""

    phases: Mapping[str, PhaseArgument]

    @property
    def programs_per_call(self) -> int:
        return 1 + 2 * len(self.phases)

    def arguments(self, bound: Sequence[Bound], run: int) -> dict[str, Any]:
        arguments = super().arguments(bound, run)
        if absent := self.next_phase(bound):
            raise JobError(f"job {self.name} at {self.where}: {absent} is computed by an earlier phase of the run; call the job to run all phases")
        return arguments

    def next_phase(self, bound: Sequence[Bound]) -> str | None:
        """Return the name of the first argument that a phase must compute, because `bound` lacks it; None if `bound` has all arguments."""
        known = {name for name, _, _ in bound}
        return next((name for name in self.phases if name not in known), None)

    def dynamic_shapes(self, extra: Sequence[Bound]) -> tuple[DynamicShapes, bool]:
        """Return the shapes of the dynamic arguments in `extra`, and True if all of these shapes are the largest possible ones."""
        dynamic: dict[str, DynamicArgument] = {**({} if self.fed is None else self.fed.feed.dynamic), **self.phases}
        shapes = [
            (name, declared.per_device, tuple([x.shape for x in value]) if declared.per_device else value.shape)
            for name, declared, value in extra
            if name in dynamic
        ]
        largest = all(set(shape if per_device else (shape,)) == {dynamic[name].type.shape} for name, per_device, shape in shapes)
        return tuple(shapes), largest


class StagedJob(Job):
    """A job whose runs have several phases if its body needs the shape or the values of a tensor on the host."""

    #: the dynamic arguments after the arguments of the signature, as in `StageShapes`
    dynamic: Sequence[tuple[str, bool, Any]] = ()

    # ---------------------------------------------------------------- compiling

    @property
    def per_device(self) -> list[bool]:
        return [*super().per_device, *(per_device for _, per_device, _ in self.dynamic)]

    @collection_paused()
    def compile(self, session: Session, shapes: Any, number: int) -> Compiled:
        if not isinstance(shapes, StageShapes):
            return super().compile(session, shapes, number)
        job = self
        if shapes.dynamic:
            job = copy.copy(self)
            job.ahead, job.dynamic = False, shapes.dynamic
        traces = job.traces(session, (*shapes.arguments, *(shape for _, _, shape in shapes.dynamic)))
        if shapes.phase:
            phases = {id(trace): _phase_of(trace, shapes.phase) for trace in traces}
            traces = tuple([phases[id(trace)] for trace in traces])
        return self.compile_traces(session, traces, number)

    def compile_traces(self, session: Session, traces: Sequence[Trace], number: int) -> Compiled:
        compiled, phases = super().compile_traces(session, traces, number), traces[0][0].phases
        if compiled.fed is None and not phases:
            return compiled
        return StagedProgram(**{each.name: getattr(compiled, each.name) for each in fields(Compiled)}, phases=phases)

    def parts_fed(self, program: Traced, parts: Parts) -> Parts | None:
        return None if program.phases else parts

    def body(self, session: Session, tracer: Tracer, shapes: Sequence[Any], options: Mapping[str, Any]) -> StagedBody:
        arguments = len(self.signature.placeholders())
        dynamic = {name: shape for (name, _, _), shape in zip(self.dynamic, shapes[arguments:], strict=True)}
        return StagedBody(tracer, dynamic, **options)

    def recorded(self, body: JobBody, outputs: Sequence[Value]) -> Traced:
        program = super().recorded(body, outputs)
        assert isinstance(body, StagedBody)
        if self.microbatch_count > 1:
            self._check_microbatches(body)
        if program.training is not None and program.feed is not None:
            _check_gradients(body, program)
        return replace(program, phases=dict(body.phases))

    def _check_microbatches(self, body: StagedBody) -> None:
        """Raise JobError if the job has earlier phases, or if arrays of the feed may differ in shape between microbatches."""
        where = self.config.lines.get(ACCUMULATION, self.where)
        if body.phases:
            raise JobError(
                f"job {self.name} at {where}: earlier phases compute {', '.join(body.phases)}; a job with {self.microbatch_count} microbatches "
                f"cannot have earlier phases; {' and '.join(dict.fromkeys(phase.advice for phase in body.phases.values()))}"
            )
        if body.feed is not None and (names := [*body.feed.dynamic, *body.feed.results]):
            raise JobError(
                f"job {self.name} at {where}: the {self.microbatch_count} microbatches may differ in the shape of {', '.join(names)}; "
                f"give all samples the same shape, as image.Resize does"
            )

    # ---------------------------------------------------------------- running

    def run_program(self, session: Session, compiled: Compiled, bound: Sequence[Bound]) -> tuple[Compiled, Callable[[], list[Any]]]:
        """Run the phases in order, each with the results of earlier phases, and then the last program."""
        if not isinstance(compiled, StagedProgram):
            return super().run_program(session, compiled, bound)
        extra, host_results = read_feed(session, compiled, bound)
        compiled = self.specialize(session, compiled, bound, extra)
        while name := compiled.next_phase(extra):
            extra.append(self._run_phase(session, compiled, bound, extra, name))
            compiled = self.specialize(session, compiled, bound, extra)
            compiled.check(extra)
            read, results = read_feed(session, compiled, [*bound, *extra], name)
            extra, host_results = extra + read, host_results | results
            compiled = self.specialize(session, compiled, bound, extra)
        return compiled, session.run(compiled, [*bound, *extra], host_results)

    def _run_phase(self, session: Session, compiled: StagedProgram, bound: Sequence[Bound], extra: Sequence[Bound], name: str) -> Bound:
        """Run a phase, and return the argument that it computes."""
        program = session.compiled(self, StageShapes(shapes_of(bound), compiled.dynamic_shapes(extra)[0], name))
        (result,) = session.start_phase(program, [*bound, *extra], {})()
        phase = compiled.phases[name]
        return name, Declared(phase.type, phase.per_device, self.where), phase.of(result)

    def specialize(self, session: Session, compiled: StagedProgram, bound: Sequence[Bound], extra: Sequence[Bound]) -> StagedProgram:
        """Return the program for the shapes of the dynamic arguments among `extra`."""
        shapes, largest = compiled.dynamic_shapes(extra)
        return compiled if largest else session.compiled(self, StageShapes(shapes_of(bound), shapes))  # type: ignore[return-value]


def _phase_of(trace: Trace, name: str) -> Trace:
    """Return the part of a trace that computes the argument `name` of an earlier phase, without updates of variables."""
    program, _ = trace
    phases = program.phases
    earlier = list(phases)[: list(phases).index(name)]
    unknown = {each for each in phases if each not in earlier}
    if program.feed is not None:
        unknown |= {array for array, sources in program.feed.phases.items() if unknown & {*sources}}
    inputs = {key: value for key, value in program.inputs.items() if key not in unknown}
    phases_before = {each: phases[each] for each in earlier}
    rest = replace(program, inputs=inputs, updates={}, training=None, losses=(), watches=(), phases=phases_before)
    return rest, Results("value", (phases[name].value,), ("numpy",), 0)


def _check_gradients(body: StagedBody, program: Traced) -> None:
    """Raise JobError if a gradient would have to pass through arrays that the host computes from tensors of the job."""
    assert program.training is not None
    nodes, inputs = body.tracer.nodes, body.tracer.inputs
    trained = reached_from(trained_variables(body.tracer), nodes)
    for name, sources in body.feed.phases.items():
        values = [body.phases[each].value for each in sources]
        if name in inputs and (reached := [value.name for value in values if value in trained]):
            onward = reached_from({inputs[name]}, nodes)
            if any(loss in onward for loss in program.training.losses):
                raise JobError(
                    f"{body.tracer.kind} {body.name} at {program.training.where}: the loss depends on {', '.join(reached)} through {name}, which the "
                    f"host computes without a gradient; cast {reached[0]} to integers, or create the variables behind it with trainable=False"
                )
            trained |= onward
