"""The body of a job while it is traced: operations on its tensors become nodes over values.

Only this module converts between tensors of the job and values of the graph.  The compiler, whose interpreter is the tracer itself, sees values only.
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
from jobflow.core.layout import Placement
from jobflow.core.types import DType, Tensor, TensorType, float32, int8
from jobflow.engine.job_tensor import JobTensor, TimeSteps, every_step, value_of
from jobflow.graph.ir import Value, Variable
from jobflow.graph.training import Optimizer
from jobflow.ops.op import Op
from jobflow.ops.scalar import fill_like, scale

#: an op and its inputs -> what it is to take in their place
Replacing = Callable[[Op, Sequence[Tensor]], Sequence[Tensor]]


class JobBody:
    """The interpreter while the body of a job runs."""

    #: what comparisons written with operators give: jobs know no bool
    truth: DType = int8

    def __init__(self, tracer: Tracer, *, seed: int = 0, conv_algorithm: str = "auto", default_dtype: DType = float32, config: Any = None) -> None:
        self.tracer = tracer
        self.seed = seed
        self.conv_algorithm = conv_algorithm
        self.default_dtype = default_dtype
        #: the job's function_config
        self.config = config
        #: how functions of tensors record here: see eager/job_recorder.py
        self.records: Any = None
        #: by variable, the tensor of the program that it is; by id of a module that is called, what tells its mode
        self.tensors: dict[str, Any] = {}
        self.modes: dict[int, Callable[[], Any]] = {}
        #: what gives the arguments that nobody passes: see `DataFeed`
        self.feed: Any = None
        #: the shapes by name of value where arguments are as large as declared, for the program to see; None where they are so large
        self.declared: Mapping[str, tuple[int, ...]] | None = {}
        #: why arguments that are as large as declared are too large
        self.refused = ""
        #: gives the inputs that an op is to take in the place of its own
        self.replacing: Replacing | None = None
        self._handles: dict[Value, JobTensor] = {}

    def handle(self, value: Value) -> JobTensor:
        """Return the one tensor of the job for a value."""
        found = self._handles.get(value)
        if found is None:
            declared = (self.declared or {}).get(value.name, value.shape)
            differs = declared != value.shape and len(declared) == len(value.shape)
            found = self._handles[value] = JobTensor(value, declared if differs else None)
        return found

    def apply(self, op: Op, inputs: Sequence[Tensor], name: str | None) -> tuple[JobTensor, ...]:
        """Record one op, or one for each time step of its inputs; its outputs."""
        if any(x.__class__ is TimeSteps for x in inputs):
            return self._at_each_step(op, inputs, name)
        inputs = inputs if self.replacing is None else self.replacing(op, inputs)
        return tuple(map(self.handle, self.tracer.apply(op, list(map(value_of, inputs)), name)))

    def _at_each_step(self, op: Op, inputs: Sequence[Any], name: str | None) -> tuple[JobTensor, ...]:
        """The op on each time step; inputs without steps are the same at all of them, and random numbers are others."""
        counts = sorted({len(x.each) for x in inputs if isinstance(x, TimeSteps)})
        if len(counts) > 1:
            raise JobError(f"{op.word()} at {user_line()}: its operands are of {' and '.join(map(str, counts))} time steps, and must be of as many")
        made = []
        for i in range(counts[0]):
            here: Any = op
            if i and op.by_position and hasattr(op, "key"):
                here = replace(here, key=f"{here.key}_{i}")
            given = [x.each[i] if isinstance(x, TimeSteps) else x for x in inputs]
            made.append(self.apply(here, given, name if name is None else f"{name}_{i}"))
        return tuple(map(TimeSteps, zip(*made, strict=True)))

    # ---------------------------------------------------------------- what the job is

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
        """Return this device's summand of the mean of a local value over devices; those without samples add zeros and do not count."""
        if is_without_rows(self.tracer.inputs.values(), self.tracer.rows):
            return fill_like(value, 0.0)
        return scale(value, 1.0 / (sum(map(bool, self.tracer.rows)) or devices))

    @property
    def first_device(self) -> int:
        """The position of the first device that has samples."""
        return next((position for position, rows in enumerate(self.tracer.rows) if rows), 0)

    def unique_name(self, prefix: str) -> str:
        """`<prefix>_<n>`, behind the namespaces, that no other op has."""
        return self.tracer.unique_name(prefix)

    def new_region(self) -> int:
        """A number that no region of the job has."""
        return self.tracer.new_region()

    def refuse(self, message: str) -> None:
        """ShapeError: arguments are too large; when they are called with, if it is the largest of them for which the body is traced."""
        if self.declared is not None:
            raise ShapeError(message)
        self.refused = self.refused or message

    # ---------------------------------------------------------------- variables

    @property
    def variables(self) -> Mapping[str, Variable]:
        """Those read so far."""
        return self.tracer.variables

    @property
    def reads(self) -> Mapping[str, Value]:
        """Their values, by name."""
        return self.tracer.reads

    def variable(self, wanted: Variable) -> JobTensor:
        """The current value of a variable, declared at first sight."""
        return self.handle(self.tracer.variable(wanted))

    def slot(self, name: str, type: TensorType, initial: float, like: Variable | Placement | None) -> JobTensor:
        """A variable of an optimizer: stored like the variable it serves, or whole on every rank."""
        return self.handle(self.tracer.slot(name, type, initial, like))

    def assign(self, name: str, value: Tensor) -> None:
        """The variable takes this value at the end of the run."""
        self.tracer.assign(name, value_of(value))

    def run_counter(self) -> JobTensor:
        """int64[1]: how often this job ran before."""
        return self.handle(self.tracer.run_counter())

    @contextmanager
    def updating(self, where: SourceLine) -> Iterator[None]:
        """What is recorded inside belongs to the step that writes variables."""
        with self.tracer.updating(where), scope.using(interpreter=self):
            yield

    # ---------------------------------------------------------------- training

    def add_loss(self, loss: Tensor) -> None:
        """Mark a loss for the optimizer of the job's configuration."""
        for each in every_step(loss):
            self.tracer.add_loss(value_of(each))

    def minimize(self, optimizer: Optimizer, losses: Sequence[Tensor]) -> None:
        """Have `optimizer` minimise the sum of the losses' means."""
        self.tracer.minimize(optimizer, [value_of(each) for loss in losses for each in every_step(loss)])

    def watch(self, value: Tensor, take: Callable[[Any], None], gradient: bool = False) -> None:
        """Show `take` the value after every run; or its gradient, if it has one."""
        for each in every_step(value):
            self.tracer.watch(value_of(each), take, gradient)
