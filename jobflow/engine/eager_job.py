"""Eager jobs: the body runs at every call, and its tensors have data while it runs.

    flow.enable_eager_execution()

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        y = flow.math.square(x)
        if y.numpy().sum() > 1:                  # an array, in the body
            y = y / flow.math.reduce_sum(y)
        return y

Each call traces its body. When the body reads a tensor's data, the trace so far runs on the ranks and its results are discarded. At the end of
the body the whole trace runs, including updates. Equal traces are compiled once, so results equal those of a job that is not eager.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property, partial
from typing import Any, NoReturn

import jobflow.core.scope as scope
from jobflow.compiler.front.trace import Tracer
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import JobError, user_line
from jobflow.core.types import Tensor
from jobflow.engine.compiled import Compiled
from jobflow.engine.data_feed import DynamicArgument
from jobflow.engine.job import ACCUMULATION, Trace, read_feed, shapes_of
from jobflow.engine.job_tensor import DynamicRows, JobTensor, value_of
from jobflow.engine.returned import trimmed
from jobflow.engine.session import Session
from jobflow.engine.staged_job import StagedBody, StagedJob, StagedProgram
from jobflow.graph.ir import Value
from jobflow.ops.slices import Slice
from jobflow.typing.results import HostResult, Results
from jobflow.typing.signature import Bound


class EagerBody(StagedBody):
    """The interpreter of the body of an eager job."""

    #: returns the array of a value
    look: Callable[[Value], Any]
    #: returns the shape of a dynamic argument in this call
    shape_of_call: Callable[[str], tuple[int, ...]]

    def dynamic_shape(self, name: str, argument: DynamicArgument) -> tuple[int, ...]:
        return self.shape_of_call(name)

    def now(self, value: Value) -> Any:
        return self.look(value)

    def dynamic_rows(self, name: str, padded: JobTensor, axis: int) -> JobTensor:
        """Return the rows of this call, as a slice of the tensor `padded`.

        If the devices have different numbers of rows, operations that read the result raise JobError.
        """
        rows = trimmed(self.look(padded.value), axis)
        counts = {each.shape[axis] for each in (rows if isinstance(rows, list) else [rows])}
        if len(counts) > 1:
            return DynamicRows(padded, axis, partial(_uneven, self.name, padded.name), padded.tensor_type.shape)
        stop = tuple([counts.pop() if i == axis else n for i, n in enumerate(padded.tensor_type.shape)])
        return self.apply(Slice((0,) * len(stop), stop, (1,) * len(stop)), [padded], None)[0]

    def watch(self, value: Tensor, take: Callable[[Any], None], gradient: bool = False) -> None:
        """Pass the value to `take` immediately, or its gradient after the run."""
        if not gradient:
            take(self.look(value_of(value)))
            return
        super().watch(value, Turn(len(self.tracer.watches), take), gradient)


def _uneven(job: str, name: str) -> NoReturn:
    raise JobError(f"job {job} at {user_line()}: {name} has different shapes on the devices; pass arrays of equal shape to an eager job")


@dataclass(frozen=True, eq=False)
class Turn:
    """The callback of a watched gradient, which calls `take`; `number` counts the gradients that the body watches."""

    number: int
    take: Callable[[Any], None]

    def __call__(self, value: Any) -> None:
        self.take(value)


@dataclass(frozen=True)
class RecordedCall:
    """The traces of a call, used as a key in place of argument shapes; two calls are equal if their programs are equal."""

    traces: tuple[Trace, ...] = field(compare=False)
    #: True for the trace up to a read of data
    looks: bool = False

    @cached_property
    def content(self) -> tuple[Any, ...]:
        """The programs in a comparable form."""
        return tuple([_content(*trace) for trace in dict(zip(map(id, self.traces), self.traces, strict=True)).values()])

    def __hash__(self) -> int:
        return hash((self.looks, tuple([node.name for node in self.traces[0][0].nodes])))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordedCall) and self.looks == other.looks and self.content == other.content


def _content(program: Any, results: Results) -> tuple[Any, ...]:
    indices: dict[Value, int] = {}
    nodes = []
    for node in program.nodes:
        nodes.append((node.op, node.name, node.placement, node.provenance, tuple([indices[value] for value in node.inputs]), len(node.outputs)))
        indices.update({value: len(indices) + i for i, value in enumerate(node.outputs)})
    training = program.training
    return (
        nodes,
        [(leaf.name, leaf.tensor_type) if isinstance(leaf, HostResult) else indices[value_of(leaf)] for leaf in results.leaves],
        program.variables,
        {name: indices[value] for name, value in program.updates.items()},
        None if training is None else (training.optimizers, training.where, [indices[loss] for loss in training.losses]),
        [indices[watch.value] for watch in program.watches],
        (program.rows, program.half, program.strategy, program.microbatches, program.schedule),
        {name: id(tensor) for name, tensor in program.tensors.items()},
        repr(program.feed),
    )


class EagerJob(StagedJob):
    """A job whose body runs at every call."""

    ahead = False
    #: the arguments of the current call
    bound: Sequence[Bound] | None = None

    def __init__(self, *declared: Any) -> None:
        super().__init__(*declared)
        self.signature = replace(self.signature, exact=True)

    def __eq__(self, other: object) -> bool:
        """Compare by name: a job declared inside a function is a new object at each call of the function, but shares its programs."""
        return type(other) is EagerJob and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def compile(self, session: Session, shapes: Any, number: int) -> Compiled:
        """Compile the traces of a `RecordedCall`, or a new trace for argument shapes."""
        return self.compile_traces(session, shapes.traces, number) if isinstance(shapes, RecordedCall) else super().compile(session, shapes, number)

    def compiled(self, session: Session, bound: Sequence[Bound]) -> Compiled:
        call = copy.copy(self)
        call.bound = bound
        recorded = RecordedCall(call.traces(session, shapes_of(bound)))
        program_of_call = session.compiled(self, recorded)
        program, results = recorded.traces[0]
        turns = {watch.take.number: watch.take for watch in program.watches if isinstance(watch.take, Turn)}
        watches = tuple(
            [replace(watch, take=turns[watch.take.number]) if isinstance(watch.take, Turn) else watch for watch in program_of_call.watches]
        )
        return replace(program_of_call, results=results, watches=watches)

    def body(self, session: Session, tracer: Tracer, shapes: Sequence[Any], options: Mapping[str, Any]) -> EagerBody:
        body = EagerBody(tracer, {}, **options)
        body.look = lambda value: self._look(session, body, value)
        body.shape_of_call = lambda name: self._shape_of_call(session, body, name)
        return body

    def specialize(self, session: Session, compiled: StagedProgram, bound: Sequence[Bound], extra: Sequence[Bound]) -> StagedProgram:
        return compiled

    def _shape_of_call(self, session: Session, body: EagerBody, name: str) -> tuple[int, ...]:
        """Return the shape that the argument `name`, from the body's feed, has in this call; without a call, its declared shape.

        Raises: JobError if the shapes on the devices differ.
        """
        dynamic = body.feed.dynamic[name]
        if self.bound is None:
            return dynamic.type.shape
        shapes = body.feed.shapes(name, session.runs.get(self.name, 0), {key: value for key, _, value in self.bound})
        if dynamic.per_device and len(set(shapes)) > 1:
            _uneven(self.name, name)
        return shapes[0] if dynamic.per_device else shapes

    def _look(self, session: Session, body: EagerBody, value: Value) -> Any:
        """Return the data of a value while the body runs.

        Raises: JobError without a call, with several microbatches, or if arrays differ in length between devices.
        """
        bound, what = self.bound, f"job {self.name} at {user_line()}: the values of {value.name}"
        if bound is None:
            raise JobError(f"{what} are unknown while the job is compiled; read them in a call of the job")
        if self.microbatch_count > 1:
            raise JobError(f"{what} belong to one of {self.microbatch_count} microbatches; omit {ACCUMULATION} to read them")
        if body.tracer.rows:
            raise JobError(f"{what} differ in length between devices; return the tensor, or pass arrays of equal length")
        program = replace(self.recorded(body, [value]), updates={}, training=None, losses=(), watches=())
        trace = program, Results("value", (body.handle(value),), ("numpy",), 0)
        with scope.using(interpreter=None):
            compiled = session.compiled(self, RecordedCall((trace,) * session.device_count(), looks=True))
            compiled.check(bound)
            extra, host_results = read_feed(session, compiled, bound)
            return session.start_phase(compiled, [*bound, *extra], host_results)()[0]
