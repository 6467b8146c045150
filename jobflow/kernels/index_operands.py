"""Index operands: indices in expressions as operands of a loop.  The address of an element is the value of the index.

    index(-2) * 100 + index(-1) + 7        an array at offset 7 from an unused address, with strides 100 and 1

Axes of index operands can be merged like the axes of other operands.  A loop over a dense tensor that uses the flat index of each element has one
axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from jobflow.core.types import Array, TensorType, int64
from jobflow.expressions.language import Expression, element, in_order, replaced
from jobflow.kernels.registry import at

#: the value at index 0 of all axes, and the increment along each axis
Count: TypeAlias = tuple[int, Mapping[int, int]]
#: the address that stands for index 0: unused, and not the null pointer
_FIRST = 1 << 60


def with_index_operands(outputs: Sequence[Expression], inputs: int, shape: tuple[int, ...]) -> tuple[list[Expression], list[Array]]:
    """Replace index arithmetic in the outputs by elements of additional inputs; return the outputs and the additional inputs.

    `inputs` is the number of existing inputs, and `shape` the shape of the index space.
    """
    counts: dict[Expression, Count] = {}
    outermost: dict[Expression, None] = {}
    order = in_order(outputs)
    if not any(x.primitive == "index" for x in order):
        return list(outputs), []
    for x in order:
        count = _count(x, counts)
        if count is not None:
            counts[x] = count
    for x in (*outputs, *(y for z in order if z not in counts for y in z.arguments)):
        if x in counts and counts[x][1]:
            outermost[x] = None
    replacements = {x: element(inputs + k, int64) - _FIRST for k, x in enumerate(outermost)}
    return [replaced(y, replacements) for y in outputs], [_array(counts[x], shape) for x in outermost]


def _count(x: Expression, known: Mapping[Expression, Count]) -> Count | None:
    match x.primitive:
        case "index":
            return 0, {int(str(x.attribute)): 1}
        case "constant" if x.dtype is int64 and int(str(x.attribute)) >= 0:
            return int(str(x.attribute)), {}
        case "add" if all(y in known for y in x.arguments):
            (a, p), (b, q) = (known[y] for y in x.arguments)
            return a + b, {axis: p.get(axis, 0) + q.get(axis, 0) for axis in {**p, **q}}
        case "multiply" if all(y in known for y in x.arguments) and any(not known[y][1] for y in x.arguments):
            (a, p), (b, q) = sorted((known[y] for y in x.arguments), key=lambda count: bool(count[1]))
            return a * b, {axis: a * step for axis, step in q.items()}
    return None


def _array(count: Count, shape: tuple[int, ...]) -> Array:
    start, growth = count
    grows = [growth.get(axis - len(shape), 0) for axis in range(len(shape))]
    sizes = tuple(n if step else 1 for n, step in zip(shape, grows, strict=True))
    return at(TensorType(sizes, int64), tuple(grows), _FIRST + start)
