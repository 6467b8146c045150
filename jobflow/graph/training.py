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
from jobflow.ops.checked import Checked
from jobflow.ops.op import apply
from jobflow.ops.optimizer_updates import OptimizerUpdate
from jobflow.ops.update import rate_dtype


@dataclass(frozen=True)
class Parameter:
    """A trainable variable, its value in this run, and its gradient (divided, unscaled, regularized; not yet clipped)."""

    variable: Variable
    value: Value
    gradient: Value


#: slot(name, type, initial value, like) -> the current value of an optimizer's own variable, created at first sight.
#: `like` is the variable whose storage layout it shares; or where a scalar is that every rank there holds, None for all of the job's.
Slots = Callable[[str, TensorType, float, Variable | Placement | None], Value]


def updated(
    parameters: Sequence[Parameter],
    op_of: Callable[[str], OptimizerUpdate],
    rate_of: Callable[[DType], Tensor],
    step: Value,
    slots: Slots,
    names: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Value]:
    """New values by name of variable and slot, each by the update of its variable; the learning rate is asked for once for each type.

    `names` are those of slots that a face calls by another name.
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
        made = apply(op, *values.values(), parameter.gradient, rates[dtypes[variable.name]], *([step] if op.reads_step else []))
        new.update(zip(values, made if op.slots else (made,), strict=True))
    return new


@dataclass(frozen=True)
class DynamicScale:
    """A loss scale that begins at `initial`, grows by `multiplier` after `period` finite steps in a row, and shrinks by it after any other."""

    initial: float
    period: int
    multiplier: float


@dataclass(frozen=True)
class Halting:
    """No loss scale; a step whose gradients are not all finite is skipped, and every step after it."""


class Optimizer(Protocol):
    """Turns gradients into new values of variables by calling ordinary ops."""

    def selects(self, names: Sequence[str]) -> Sequence[str]:
        """Which of the job's trainable variables this optimizer updates."""
        ...

    def update(self, parameters: Sequence[Parameter], step: Value, slots: Slots) -> dict[str, Value]:
        """New values by variable name, slots included.  `step` is int64[1], the number of updates before this one."""
        ...

    @property
    def loss_scale(self) -> float:
        """Factor on the loss gradient that is divided out of the parameters' gradients again."""
        ...

    @property
    def dynamic_loss_scale(self) -> DynamicScale | Halting | None:
        """The same where it follows what the gradients can bear, or what else may skip a step; None where `loss_scale` holds."""
        ...


@dataclass(frozen=True)
class Training:
    """Losses to minimise and who does it; `where` is the user's line that asked for it."""

    losses: tuple[Value, ...]
    optimizers: tuple[Optimizer, ...]
    where: SourceLine


@dataclass(frozen=True)
class Microbatches:
    """The batch of a job in `count` balanced parts that pass through its body one after another.

    `rows` is the length of the batch; in the mirrored view, of each rank's.
    """

    count: int
    rows: int
    #: the arguments that are cut, along their first axis; the others go whole with every microbatch
    arguments: tuple[str, ...]
    #: who asked for it
    where: SourceLine
    #: arguments lie on the ranks already, whole, and so are results to: the program cuts and joins them
    within: bool = False

    @property
    def spans(self) -> tuple[Span, ...]:
        """The rows (first, behind last) of every microbatch."""
        return cut(self.rows, self.count)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How long microbatches are: one size, or two, the longer first."""
        return tuple(dict.fromkeys(stop - start for start, stop in self.spans))


@dataclass(frozen=True)
class ValidRange:
    """What an argument may hold: what passes a check."""

    argument: str
    check: Checked
    #: the line that reads it
    where: SourceLine


@dataclass(frozen=True)
class Watch:
    """A tensor that the program is shown after every run: itself, or the gradient of the sum of the losses' elements by it.

    `take` gets the whole array, or a list with one array per device of a mirrored tensor.
    """

    value: Value
    take: Callable[[Any], None]
    gradient: bool
    where: SourceLine
