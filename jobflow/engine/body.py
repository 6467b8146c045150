"""Tracing of the body of a job: operations on its tensors become nodes of a graph.

Only this module converts between tensors of the job and values of the graph. The compiler operates on values only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jobflow.core.scope as scope
from jobflow.compiler.front.differentiate import is_without_rows
from jobflow.compiler.front.trace import Tracer
from jobflow.core.errors import JobError, ShapeError, SourceLine, user_line
from jobflow.core.filters import matches
from jobflow.core.layout import Placement
from jobflow.core.types import DType, Tensor, TensorType, float32, int8
from jobflow.engine.job_tensor import JobTensor, TimeSteps, every_step, value_of
from jobflow.graph.ir import Value, Variable
from jobflow.graph.training import Optimizer
from jobflow.ops.op import Op
from jobflow.ops.scalar import fill_like, scale

#: function from an operation and its inputs to replacements of the inputs
Replacing = Callable[[Op, Sequence[Tensor]], Sequence[Tensor]]


class JobBody:
    """The interpreter of the body of a job."""

    #: element type of comparisons by operators; jobs have no bool
    truth: DType = int8

    def __init__(self, tracer: Tracer, *, seed: int = 0, conv_algorithm: str = "auto", default_dtype: DType = float32, config: Any = None) -> None:
        self.tracer = tracer
        self.seed = seed
        self.conv_algorithm = conv_algorithm
        self.default_dtype = default_dtype
        #: the job's function_config
        self.config = config
        #: records functions of tensors in this body; see tensors/job_recorder.py
        self.records: Any = None
        #: variable -> bound tensor of the program; id of a called module -> function that returns its mode
        self.tensors: dict[str, Any] = {}
        self.modes: dict[int, Callable[[], Any]] = {}
        #: source of the arguments that are read from files; see `DataFeed`
        self.feed: Any = None
        #: value name -> shape for arguments of their declared sizes; None if this trace has those sizes
        self.declared: Mapping[str, tuple[int, ...]] | None = {}
        #: reason why arguments of their declared sizes are too large
        self.refused = ""
        #: replaces the inputs of operations
        self.replacing: Replacing | None = None
        #: patterns of the variables that are not trained
        self.frozen: Sequence[str] = ()
        self._handles: dict[Value, JobTensor] = {}

    def handle(self, value: Value) -> JobTensor:
        """Return the `JobTensor` of a value; repeated calls return the same object."""
        handle = self._handles.get(value)
        if handle is None:
            declared = (self.declared or {}).get(value.name, value.shape)
            differs = declared != value.shape and len(declared) == len(value.shape)
            handle = self._handles[value] = JobTensor(value, declared if differs else None)
        return handle

    def apply(self, op: Op, inputs: Sequence[Tensor], name: str | None) -> tuple[JobTensor, ...]:
        """Record an operation, or one operation per time step of its inputs, and return the outputs."""
        if any(x.__class__ is TimeSteps for x in inputs):
            return self._at_each_step(op, inputs, name)
        inputs = inputs if self.replacing is None else self.replacing(op, inputs)
        return tuple(map(self.handle, self.tracer.apply(op, list(map(value_of, inputs)), name)))

    def _at_each_step(self, op: Op, inputs: Sequence[Any], name: str | None) -> tuple[JobTensor, ...]:
        """Record an operation once per time step.

        Inputs without time steps are the same at all steps. Random operations sample different numbers at each step.

        Raises: JobError if inputs have different numbers of time steps.
        """
        counts = sorted({len(x.each) for x in inputs if isinstance(x, TimeSteps)})
        if len(counts) > 1:
            raise JobError(
                f"{op.word()} at {user_line()}: the operands have {' and '.join(map(str, counts))} time steps; "
                f"pass operands with the same number of time steps"
            )
        results = []
        for i in range(counts[0]):
            here: Any = op
            if i and op.by_position and hasattr(op, "key"):
                here = replace(here, key=f"{here.key}_{i}")
            step_inputs = [x.each[i] if isinstance(x, TimeSteps) else x for x in inputs]
            results.append(self.apply(here, step_inputs, name if name is None else f"{name}_{i}"))
        return tuple(map(TimeSteps, zip(*results, strict=True)))

    # ---------------------------------------------------------------- properties of the job

    @property
    def name(self) -> str:
        return self.tracer.name

    @property
    def placement(self) -> Placement:
        return self.tracer.placement

    @property
    def trainable(self) -> bool:
        """True in a train job."""
        return self.tracer.trainable

    def summand_of_mean(self, value: Tensor, devices: int) -> Tensor:
        """Scale a local value so that the sum over devices is the mean over the devices that have samples.

        A device without samples returns zeros.  If the numbers of samples are unknown, all `devices` count.
        """
        if is_without_rows(self.tracer.inputs.values(), self.tracer.rows):
            return fill_like(value, 0.0)
        return scale(value, 1.0 / (sum(map(bool, self.tracer.rows)) or devices))

    @property
    def first_device(self) -> int:
        """The index of the first device that has samples; 0 if no device is known to have samples."""
        return next((position for position, rows in enumerate(self.tracer.rows) if rows), 0)

    def unique_name(self, prefix: str) -> str:
        """Return the name `<prefix>_<n>` within the current namespaces, which no other operation has."""
        return self.tracer.unique_name(prefix)

    def new_region(self) -> int:
        """Return an unused number for a region of the job."""
        return self.tracer.new_region()

    def refuse(self, message: str) -> None:
        """Raise ShapeError because arguments are too large.

        In the trace for the declared sizes, store `message` instead; a call with arguments of these sizes raises the error.
        """
        if self.declared is not None:
            raise ShapeError(message)
        self.refused = self.refused or message

    # ---------------------------------------------------------------- variables

    @property
    def variables(self) -> Mapping[str, Variable]:
        """The variables that the body has read so far, by name."""
        return self.tracer.variables

    @property
    def reads(self) -> Mapping[str, Value]:
        """The values of the variables read so far, by name."""
        return self.tracer.reads

    def variable(self, declared: Variable) -> JobTensor:
        """Return the current value of a variable, which is declared at its first use; variables in `frozen` are not trained."""
        if matches(self.frozen, declared.name):
            declared = replace(declared, trainable=False, group="buffer")
        return self.handle(self.tracer.variable(declared))

    def slot(self, name: str, type: TensorType, initial: float, like: Variable | Placement | None) -> JobTensor:
        """Return a state variable of an optimizer, in the layout of the variable `like`, or replicated on the placement `like`."""
        return self.handle(self.tracer.slot(name, type, initial, like))

    def assign(self, name: str, value: Tensor) -> None:
        """Assign `value` to the variable `name` at the end of the run."""
        self.tracer.assign(name, value_of(value))

    def run_counter(self) -> JobTensor:
        """Return the number of earlier runs of this job, int64[1]."""
        return self.handle(self.tracer.run_counter())

    @contextmanager
    def updating(self, where: SourceLine) -> Iterator[None]:
        """Record the nodes in the block as part of the update of variables; `where` is their line in messages."""
        with self.tracer.updating(where), scope.using(interpreter=self):
            yield

    # ---------------------------------------------------------------- training

    def add_loss(self, loss: Tensor) -> None:
        """Register a loss for the optimizer of the job's configuration."""
        for each in every_step(loss):
            self.tracer.add_loss(value_of(each))

    def minimize(self, optimizer: Optimizer, losses: Sequence[Tensor]) -> None:
        """Update the variables by `optimizer` in every run, to minimize the sum of the means of `losses`."""
        self.tracer.minimize(optimizer, [value_of(each) for loss in losses for each in every_step(loss)])

    def watch(self, value: Tensor, take: Callable[[Any], None], gradient: bool = False) -> None:
        """Call `take` with the value, or with its gradient, after every run; a value without a gradient causes no call."""
        for each in every_step(value):
            self.tracer.watch(value_of(each), take, gradient)
