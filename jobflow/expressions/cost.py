"""The cost of an expression for the planner: arithmetic and memory traffic, computed before a run.

    cost([x * sigmoid(x)], n, [x's type, y's type]).flops == 22 n        1 for the product, 21 for the sigmoid

`FLOPS` counts additions and multiplications per element in compiled loops.  A division or a root counts as 4, a function computed by a
polynomial as 20.  Bytes count every input and output once, because intermediate values are in registers or in the cache.
`Cost.as_bytes` combines arithmetic and memory traffic.  The planner recomputes a value if that is cheaper than reading it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jobflow.core.dataclass import dataclass
from jobflow.core.types import TensorType
from jobflow.expressions.language import Expression, in_order

#: primitives without arithmetic
_FREE = {"element", "looked_up", "number", "constant", "columns", "index", "reinterpret", "positive"}
_FEW = dict.fromkeys(("divide", "sqrt", "reciprocal", "fmod", "remainder", "floor_divide", "quotient"), 4)
_MANY = {
    **dict.fromkeys(("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "power", "softplus", "sinh", "cosh", "tanh"), 20),
    **dict.fromkeys(("sin", "cos", "tan", "arcsin", "arccos", "arctan", "arctan2", "arcsinh", "arccosh", "arctanh"), 20),
}
#: operations of one core in the time of reading one byte from memory or a shared cache; a low estimate, which favours reading
FLOPS_PER_BYTE = 1
#: arithmetic per element; 1 for other primitives
FLOPS: Mapping[str, int] = {
    **dict.fromkeys(_FREE, 0),
    **_FEW,
    **_MANY,
    "sigmoid": 21,
    "rsqrt": 8,
    "erf": 40,
    "erfc": 40,
    "fma": 2,
    "weighted_sum": 3,
    "philox": 80,
}


@dataclass(frozen=True)
class Cost:
    """The cost of an operation: floating-point operations, and bytes of memory read and written."""

    flops: int
    bytes: int

    @property
    def as_bytes(self) -> int:
        """The total cost in bytes: the memory traffic, plus the bytes that could be transferred in the time of the arithmetic."""
        return self.bytes + self.flops // FLOPS_PER_BYTE


def flops_per_element(outputs: Sequence[Expression]) -> int:
    """Return the floating-point operations for one index, by the weights in `FLOPS`; subexpressions shared by several outputs count once."""
    return sum(FLOPS.get(x.primitive, 1) for x in in_order(outputs))


def cost(outputs: Sequence[Expression], elements: int, operands: Sequence[TensorType]) -> Cost:
    """Return the cost of evaluating expressions for `elements` indices; `operands` are the types of inputs and outputs."""
    return Cost(flops_per_element(outputs) * elements, sum(type.nbytes for type in operands))
