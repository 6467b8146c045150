"""What an expression costs, before anything is run: arithmetic and memory, as the planner counts them.

    cost([x * sigmoid(x)], n, [x's type, y's type]).flops == 22 n        a product, and an exponential with what makes a sigmoid of it

`FLOPS` counts additions and multiplications for one element of what compiled loops do; a division or a root counts as 4, a function that is
made of a polynomial as 20.  Bytes are those of inputs and outputs, each once: what is between them stays in registers or in the cache.
Both together are a cost in bytes: what can be computed for less than it costs to read is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jobflow.core.dataclass import dataclass
from jobflow.core.types import TensorType
from jobflow.expressions.language import Expression, in_order

#: read or known, not computed
_FREE = {"element", "looked_up", "number", "constant", "columns", "index", "reinterpret", "positive"}
_FEW = dict.fromkeys(("divide", "sqrt", "reciprocal", "fmod", "remainder", "floor_divide", "quotient"), 4)
_MANY = {
    **dict.fromkeys(("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "power", "softplus", "sinh", "cosh", "tanh"), 20),
    **dict.fromkeys(("sin", "cos", "tan", "arcsin", "arccos", "arctan", "arctan2", "arcsinh", "arccosh", "arctanh"), 20),
}
#: what one core computes while a byte comes from memory or from a cache of many cores; fewer than it can, so that memory is preferred in doubt
FLOPS_PER_BYTE = 1
#: for one element; 1 for all that is not here
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
    """Floating-point operations, and bytes that are read and written."""

    flops: int
    bytes: int

    @property
    def as_bytes(self) -> int:
        """The bytes that are read and written in the time of both."""
        return self.bytes + self.flops // FLOPS_PER_BYTE


def flops_per_element(outputs: Sequence[Expression]) -> int:
    """The arithmetic for one index; what several outputs share counts once."""
    return sum(FLOPS.get(x.primitive, 1) for x in in_order(outputs))


def cost(outputs: Sequence[Expression], elements: int, operands: Sequence[TensorType]) -> Cost:
    """What expressions cost over so many indices, for inputs and outputs of these types."""
    return Cost(flops_per_element(outputs) * elements, sum(type.nbytes for type in operands))
