"""Losses, optimizers and watched tensors of a job, and the interface of an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import SourceLine
from jobflow.core.layout import Broadcast, Placement, Span, cut
from jobflow.core.types import DType, Tensor, TensorType
from jobflow.graph.ir import Value, Variable
from jobflow.ops.op import apply
from jobflow.ops.optimizer_updates import OptimizerUpdate
from jobflow.ops.runtime_assertions import RuntimeAssertion
from jobflow.ops.update import rate_dtype


@dataclass(frozen=True)
class Parameter:
    """A trainable variable, its value in this run, and its gradient (averaged, unscaled, regularized; not yet clipped)."""

    variable: Variable
    value: Value
    gradient: Value


#: slot(name, type, initial value, like) -> the current value of an optimizer slot, which is created at its first use.
#: `like` is the variable whose stored layout it shares, or the placement of a replicated scalar; None means all ranks of the job.
Slots = Callable[[str, TensorType, float, Variable | Placement | None], Value]


def updated(
    parameters: Sequence[Parameter],
    op_of: Callable[[str], OptimizerUpdate],
    rate_of: Callable[[DType], Tensor],
    step: Value,
    slots: Slots,
    names: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Value]:
    """Apply the update op_of(name) to each variable; return the new values of variables and slots, by name.

    `rate_of` computes the learning rate once per element type.  `names` maps slots to their names in the calling API.
    """
    dtypes = {parameter.variable.name: rate_dtype(parameter.variable.type.dtype) for parameter in parameters}
    rates = {dtype: rate_of(dtype) for dtype in dict.fromkeys(dtypes.values())}
    new: dict[str, Value] = {}
    for parameter in parameters:
        variable, op = parameter.variable, op_of(parameter.variable.name)
        values = {variable.name: parameter.value}
        for slot in op.slots:
            name = f"{variable.name}-{names.get(slot.name, slot.name)}"
            if slot.scalar:
                whole = all(isinstance(sbp, Broadcast) for sbp in variable.sbp)
                values[name] = slots(name, variable.type.with_shape((1,)), slot.initial, variable if whole else variable.placement)
            else:
                values[name] = slots(name, variable.type, slot.initial, variable)
        outputs = apply(op, *values.values(), parameter.gradient, rates[dtypes[variable.name]], *([step] if op.reads_step else []))
        new.update(zip(values, outputs if op.slots else (outputs,), strict=True))
    return new


@dataclass(frozen=True)
class DynamicScale:
    """Options of the dynamic loss scale, which starts at `initial`.

    `period` consecutive finite steps multiply the scale by `multiplier`; a step with non-finite gradients divides the scale by `multiplier`.
    """

    initial: float
    period: int
    multiplier: float


@dataclass(frozen=True)
class Halting:
    """The option to skip the first step with non-finite gradients and all later steps, without a loss scale."""


class Optimizer(Protocol):
    """A rule that computes new values of variables from gradients; its operations are recorded in the program."""

    def selects(self, names: Sequence[str]) -> Sequence[str]:
        """Return the names of the trainable variables that this optimizer updates."""
        ...

    def update(self, parameters: Sequence[Parameter], step: Value, slots: Slots) -> dict[str, Value]:
        """Return new values by variable name, including slots.  `step` is int64[1], the number of earlier updates."""
        ...

    @property
    def loss_scale(self) -> float:
        """The factor by which the loss gradient is multiplied, and the gradients of the parameters are divided."""
        ...

    @property
    def dynamic_loss_scale(self) -> DynamicScale | Halting | None:
        """The dynamic loss scale, or the option to halt at non-finite gradients; None if `loss_scale` is constant."""
        ...


@dataclass(frozen=True)
class Training:
    """The losses to minimize and their optimizers; `where` is the user's line of the request."""

    losses: tuple[Value, ...]
    optimizers: tuple[Optimizer, ...]
    where: SourceLine


@dataclass(frozen=True)
class Microbatches:
    """The division of a batch into `count` microbatches of nearly equal length, for which the job's body runs one after another.

    `rows` is the length of the batch along its first axis; in the mirrored view, the length on each rank.
    """

    count: int
    rows: int
    #: the arguments that are cut along their first axis; all other arguments are passed whole
    arguments: tuple[str, ...]
    #: the setting that requests the microbatches, for messages
    where: SourceLine
    #: True if the ranks hold whole arguments and return whole results: the program then cuts and concatenates them
    within: bool = False

    @property
    def spans(self) -> tuple[Span, ...]:
        """The range [start, stop) of each microbatch along the first axis of the batch."""
        return cut(self.rows, self.count)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The distinct lengths of microbatches: one size, or two with the longer first."""
        return tuple(dict.fromkeys(stop - start for start, stop in self.spans))


@dataclass(frozen=True)
class ArgumentBounds:
    """A runtime assertion on the values of an argument."""

    argument: str
    check: RuntimeAssertion
    #: the user's line that reads the argument
    where: SourceLine


@dataclass(frozen=True)
class Watch:
    """A tensor whose value is passed to the callback `take` after every run.

    If `gradient` is True, the callback receives the gradient of the summed losses for this tensor instead.
    `take` receives the whole array, or a list with one array per device for a mirrored tensor.
    """

    value: Value
    take: Callable[[Any], None]
    gradient: bool
    where: SourceLine
