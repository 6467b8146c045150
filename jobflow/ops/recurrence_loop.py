"""Base classes of operations that repeat one step over time, and the loop over steps for arrays and for tensors.

A step is a formula of named operands, `formula(f, e)`.  e("x:2") is block 2 of the hidden units of x at this step.  e("runs") is the condition that a
sample has the step.  The result has the new values by name.  Kernels compute the formula with arrays.  Compiled loops and printed kernels
compute it with expressions, and second derivatives by ordinary operations on tensors (`OverTime.composed`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

from jobflow.core.layout import Rule
from jobflow.core.types import Array, Tensor, TensorType, Xp
from jobflow.expressions.on_arrays import functions
from jobflow.ops import elementwise as ew
from jobflow.ops.activation import sigmoid, tanh
from jobflow.ops.axes import expand_dims, squeeze
from jobflow.ops.compare import greater
from jobflow.ops.matmul import matmul
from jobflow.ops.op import Op
from jobflow.ops.slices import concat, slice_

#: operand -> its axes in a layout rule; only samples are split
AXES = {
    **dict.fromkeys(("x", "gates", "dx", "dg"), "TnG"),
    **dict.fromkeys(("y", "cells", "dy"), "TnH"),
    **dict.fromkeys(("h", "c", "h0", "c0", "dh", "dc", "dh0", "dc0"), "nH"),
    "w": "GH",
    "bias": "G",
    "lengths": "n",
}
STATES = ("h", "c")
#: reads an operand of a step by name
Read = Callable[[str], Any]


class OverTime(Op):
    """Base class of recurrences and their gradients, whose inputs and outputs have names."""

    abstract = True
    compiles_at_once = True
    reverse: bool = False
    #: True if the inputs include initial states
    starts: bool = False
    #: True if the inputs include lengths
    masked: bool = False

    #: blocks of w, and number of states
    blocks: ClassVar[int]
    states: ClassVar[int] = 1

    def inputs(self) -> tuple[str, ...]:
        """Return the names of the inputs."""
        raise NotImplementedError

    def results(self) -> tuple[str, ...]:
        """Return the names of the outputs."""
        raise NotImplementedError

    def formula(self, f: Any, e: Read) -> dict[str, Any]:
        """Return the results of one step by name; e(name) returns an operand, and `f` has the functions for arrays, tensors or expressions."""
        raise NotImplementedError

    def loop(self, space: ArraySpace | TensorSpace) -> None:
        """Compute all steps; `space` provides the operands and stores the results."""
        raise NotImplementedError

    def named(self, tensors: Sequence[Any]) -> dict[str, Any]:
        """Return a dict of the inputs and outputs `tensors` by name."""
        return dict(zip((*self.inputs(), *self.results()), tensors, strict=False))

    def rule(self, *types: TensorType) -> Rule:
        inputs = self.inputs()
        linear = tuple(i for i, name in enumerate(inputs) if name in ("dy", "dh", "dc"))
        words = (",".join(AXES[name] for name in names) for names in (inputs, self.results()))
        return Rule("->".join(words), linear=(linear,) if linear else ())

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        self.loop(ArraySpace(xp, self.named(arrays)))

    def composed(self, *tensors: Tensor) -> list[Tensor]:
        """Return the outputs by ordinary operations, step by step."""
        space = TensorSpace(self.named(tensors))
        self.loop(space)
        return [space.output(name) for name in self.results()]

    def times(self, count: int) -> range:
        """Return the time steps 0 to count - 1 in the order of the recurrence."""
        return range(count - 1, -1, -1) if self.reverse else range(count)

    def previous(self, t: int) -> int:
        """Return the step before t in the order of the recurrence, which may not exist."""
        return t + 1 if self.reverse else t - 1


def split_name(name: str) -> tuple[str, int | None]:
    """Return an operand and its block, or None for the whole operand."""
    operand, _, block = name.partition(":")
    return operand, int(block) if block else None


class ArraySpace:
    """The operands of a recurrence as arrays; results are written into the outputs."""

    def __init__(self, xp: Xp, at: Mapping[str, Array]) -> None:
        self.f, self.xp, self.at, self.w = functions(xp), xp, at, at["w"]
        self.hidden = self.w.shape[1]
        sequence = next(a for name, a in at.items() if AXES[name].startswith("T"))
        self.steps, self.samples = sequence.shape[:2]

    def start(self, name: str) -> Array:
        """Return an operand [n, hidden]; zeros if it is absent."""
        return self.at[name] if name in self.at else self.xp.zeros((self.samples, self.hidden), self.w.dtype)

    def part(self, values: Array, block: int | None) -> Array:
        return values if block is None else values[..., block * self.hidden : (block + 1) * self.hidden]

    def read(self, name: str, t: int) -> Array:
        operand, block = split_name(name)
        values = self.at[operand]
        return self.part(values[t] if values.ndim == 3 else values, block)

    def runs(self, t: int) -> Array:
        return (t < self.at["lengths"])[:, None]

    def product(self, factor: Array, transpose: bool) -> Array:
        return factor @ (self.w.T if transpose else self.w)

    def write(self, t: int, results: Mapping[str, Array]) -> None:
        for name, value in results.items():
            operand, block = split_name(name)
            self.part(self.at[operand][t], block)[...] = value

    def row(self, name: str, t: int) -> Array:
        """Return the values of `name` at step t."""
        return self.at[name][t]

    def finish(self, results: Mapping[str, Array]) -> None:
        """Write results that are computed once for all steps to the outputs; omit results that are not outputs."""
        for name, value in results.items():
            if name in self.at:
                self.at[name][...] = value


class TensorSpace:
    """The operands of a recurrence as tensors; results are collected by step."""

    f = SimpleNamespace(
        sigmoid=lambda x: Quantity(sigmoid(x.value)),
        tanh=lambda x: Quantity(tanh(x.value)),
        maximum=lambda x, y: x.combined(ew.maximum, y),
        where=lambda condition, x, y: _selected(condition, x, y),
    )

    def __init__(self, at: Mapping[str, Tensor]) -> None:
        self.at = at
        self.hidden = at["w"].tensor_type.shape[1]
        self.sequence = next(name for name in at if AXES[name].startswith("T"))
        self.steps = at[self.sequence].tensor_type.shape[0]
        self.rows: dict[str, dict[int, dict[int, Tensor]]] = {}
        self.final: dict[str, Tensor] = {}

    def start(self, name: str) -> Quantity:
        return Quantity(self.at[name]) if name in self.at else Quantity(ew.fill_like(self.read(f"{self.sequence}:0", 0).value, 0.0))

    def part(self, values: Quantity, block: int | None) -> Quantity:
        if block is None:
            return values
        lead = (None,) * (values.value.tensor_type.ndim - 1)
        return Quantity(slice_(values.value, (*lead, block * self.hidden), (*lead, (block + 1) * self.hidden)))

    def read(self, name: str, t: int) -> Quantity:
        operand, block = split_name(name)
        values = self.at[operand]
        if values.tensor_type.ndim == 3:
            values = squeeze(slice_(values, (t,), (t + 1,)), (0,))
        return self.part(Quantity(values), block)

    def runs(self, t: int) -> Quantity:
        lengths = self.at["lengths"]
        return Quantity(expand_dims(greater(lengths, ew.fill_like(lengths, t)), 1))

    def product(self, factor: Quantity, transpose: bool) -> Quantity:
        return Quantity(matmul(factor.value, self.at["w"], transpose_b=transpose))

    def write(self, t: int, results: Mapping[str, Quantity]) -> None:
        for name, value in results.items():
            operand, block = split_name(name)
            self.rows.setdefault(operand, {}).setdefault(t, {})[block or 0] = value.value

    def finish(self, results: Mapping[str, Quantity]) -> None:
        self.final |= {name: value.value for name, value in results.items()}

    def row(self, name: str, t: int) -> Quantity:
        blocks = self.rows[name][t]
        return Quantity(concat([blocks[k] for k in range(len(blocks))], 1) if len(blocks) > 1 else blocks[0])

    def output(self, name: str) -> Tensor:
        """Return the output `name`, with the results of all steps along axis 0 if it was computed step by step."""
        return self.final[name] if name in self.final else concat([expand_dims(self.row(name, t).value, 0) for t in range(self.steps)], 0)


class Quantity:
    """A tensor with the operators that formulas use."""

    def __init__(self, value: Tensor) -> None:
        self.value = value

    def combined(self, function: Callable[[Tensor, Tensor], Tensor], other: Quantity | float, swapped: bool = False) -> Quantity:
        """Return function(this tensor, other), or function(other, this tensor) if `swapped`."""
        second = other.value if isinstance(other, Quantity) else ew.fill_like(self.value, other)
        return Quantity(function(second, self.value) if swapped else function(self.value, second))

    def __add__(self, other: Quantity | float) -> Quantity:
        return self.combined(ew.add, other)

    def __sub__(self, other: Quantity | float) -> Quantity:
        return self.combined(ew.subtract, other)

    def __rsub__(self, other: float) -> Quantity:
        return self.combined(ew.subtract, other, swapped=True)

    def __mul__(self, other: Quantity | float) -> Quantity:
        return self.combined(ew.multiply, other)

    def __gt__(self, other: Quantity | float) -> Quantity:
        return self.combined(greater, other)


def _selected(condition: Quantity, x: Quantity | float, y: Quantity | float) -> Quantity:
    """Return x where the condition is true, else y; one of x and y may be a number."""
    if isinstance(x, Quantity):
        return x.combined(lambda a, b: ew.where(condition.value, a, b), y)
    assert isinstance(y, Quantity)
    return y.combined(lambda a, b: ew.where(condition.value, a, b), x, swapped=True)
