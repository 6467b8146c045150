"""Rows of `op_types` for gradients: what reaches the inputs of an operation when so much reaches its output.

    flow.user_op_builder("g").Op("elu_grad").Input("x", [x]).Input("dy", [dy]).Output("dx").Attr("alpha", 1.0)

Most are made of the row of the operation itself: it is recorded for the inputs of the gradient, and walked backwards.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jobflow.legacy.arrays as arrays
import jobflow.legacy.math as math
from jobflow.core.types import Tensor
from jobflow.graph.ir import nodes_behind
from jobflow.legacy.op_types import OP_TYPES, UNARY, dropout
from jobflow.legacy.variables import current_job
from jobflow.ops import elementwise as ew
from jobflow.ops.broadcast import sum_to

Row = Callable[..., Any]

#: of each type "<key>" here: the operation, the inputs in their order (that of the operation's output behind "<-"; "like" is of no use but
#: for its shape), and which of its inputs the outputs are gradients of
WALKED = {
    **{f"{word}_grad -> dx": f"{word}: x <-dy | x" for word in UNARY.split() if word != "tanh"},
    **{f"{word}_x_grad -> dx": f"{word}: x y <-dz | x" for word in ("atan2", "floordiv", "pow", "xdivy", "xlogy")},
    **{f"{word}_y_grad -> dy": f"{word}: x y <-dz | y" for word in ("atan2", "floordiv", "pow", "xdivy", "xlogy")},
    **{f"{word}_backward -> dx dy": f"{word}: <-dz x y | x y" for word in ("elementwise_maximum", "elementwise_minimum")},
    **{f"{word}_grad -> dx": f"{word}: x <-dy | x" for word in ("elu", "hardsigmoid", "hardswish")},
    **{f"{word}_grad -> dx": f"{word}: <-dy x | x" for word in ("clip_by_scalar", "clip_by_scalar_min", "clip_by_scalar_max", "upsample")},
    **{f"{word}_pool_{n}d_grad -> dx": f"{word}_pool_{n}d: x y <-dy | x" for word in ("max", "avg") for n in (2, 3)},
    "prelu_grad -> dx alpha_diff": "prelu: <-dy x alpha | x alpha",
    "slice_grad -> dx": "slice: <-dy like | like",
    "diag_grad -> dx": "diag: <-dy in | in",
    "smooth_l1_loss_grad -> prediction_grad": "smooth_l1_loss: <-loss_grad prediction label | prediction",
    "sigmoid_cross_entropy_grad -> prediction_diff": "sigmoid_cross_entropy: prediction <-loss_diff label | prediction",
    "sparse_cross_entropy_grad -> prediction_diff": "sparse_cross_entropy: prediction label <-dy | prediction",
}


def _slopes(made: Any, dy: Tensor, wanted: Sequence[Any]) -> list[Tensor]:
    """What reaches these tensors if dy reaches what was made of them; zeros where nothing does."""
    body: Any = current_job("a gradient")
    found: dict[Any, Any] = {made.value: dy}
    for node in reversed(nodes_behind(made.value.node, {x.value for x in wanted})):
        given = [found.get(y) for y in node.outputs]
        if any(each is not None for each in given):
            tensors = [body.handle(value) for value in (*node.inputs, *node.outputs)]
            for x, slope in zip(node.inputs, node.op.grad(*tensors, *given), strict=True):
                if slope is not None:
                    found[x] = slope if x not in found else ew.add(found[x], slope)
    return [found[x.value] if x.value in found else arrays.zeros_like(x) for x in wanted]


def _walked(said: str) -> Row:
    """The row of a gradient that is made of the operation itself."""
    word, _, rest = said.partition(": ")
    taken, _, wanted = rest.partition(" | ")
    forward = next(row for key, row in OP_TYPES.items() if key.startswith(f"{word} -> "))
    parameters = inspect.signature(forward).parameters
    needed = [p.rstrip("_") for p, kind in parameters.items() if kind.kind is not kind.KEYWORD_ONLY]
    inputs = [each.removeprefix("<-") for each in taken.split()]
    (diff,) = (each[2:] for each in taken.split() if each.startswith("<-"))
    of = {name: name if name in inputs else next(each for each in inputs if each not in (diff, "y")) for name in needed}

    def row(*given: Any, name: str | None = None, **attributes: Any) -> Any:
        named = dict(zip(inputs, given, strict=True))
        starts = [named[of[each]] for each in needed]
        made = forward(*starts, **({"name": None} if "name" in parameters else {}), **attributes)
        slopes = _slopes(made[-1] if isinstance(made, tuple) else made, named[diff], [named[each] for each in wanted.split()])
        return [ew.identity(slope, name=name if len(slopes) == 1 else None) for slope in slopes]

    kinds = [inspect.Parameter("in_" if each == "in" else each, inspect.Parameter.POSITIONAL_OR_KEYWORD) for each in inputs]
    own = [p for p in parameters.values() if p.kind is p.KEYWORD_ONLY and p.name != "name"]
    last = inspect.Parameter("name", inspect.Parameter.KEYWORD_ONLY, default=None)
    row.__signature__ = inspect.Signature([*kinds, *own, last])  # type: ignore[attr-defined]
    return row


def _normalization_grad(x: Any, dy: Any, mean: Any, inv_variance: Any, gamma: Any, *, axis: int, epsilon: float = 0.0) -> Any:
    shape = [n if i == axis % x.type.ndim else 1 for i, n in enumerate(x.type.shape)]
    others = [i for i in range(x.type.ndim) if i != axis % x.type.ndim]
    mean, inverse, scale = (arrays.reshape(each, shape) for each in (mean, inv_variance, gamma))
    normal = math.multiply(math.subtract(x, mean), inverse)
    sums = math.reduce_sum(math.multiply(dy, normal), others, True), math.reduce_sum(dy, others, True)
    share = 1.0 / (x.type.size // x.type.shape[axis])
    inner = math.subtract(dy, math.multiply(math.add(sums[1], math.multiply(normal, sums[0])), share))
    return *(arrays.reshape(each, (-1,)) for each in sums), math.multiply(math.multiply(scale, inverse), inner)


def _l2_normalize_grad(dy: Any, y: Any, square_x_sum: Any, *, axis: int, epsilon: float = 1e-12) -> Any:
    inner = math.subtract(dy, math.multiply(y, math.reduce_sum(math.multiply(dy, y), axis, True)))
    return math.multiply(inner, math.rsqrt(math.clip_by_value(square_x_sum, epsilon)))


def _entropy_grad(prob: Any, label: Any, dy: Any, *, depth: int | None = None) -> Any:
    flat = arrays.reshape(label, dy.type.shape)
    return math.multiply(arrays.expand_dims(dy, -1), math.subtract(prob, arrays.one_hot(flat, prob.type.shape[-1], dtype=prob.type.dtype)))


OP_TYPES_OF_GRADIENTS: Mapping[str, Row] = {
    **{key: _walked(said) for key, said in WALKED.items()},
    "dropout_grad -> dx": lambda dy, mask, *, scale: dropout(dy, mask, scale=scale),
    "broadcast_div_grad -> dy": lambda y, z, dz: sum_to(math.negative(math.divide(math.multiply(dz, z), y)), y.type.shape),
    "l2_normalize_grad -> dx": _l2_normalize_grad,
    "softmax_cross_entropy_grad -> prediction_diff": lambda dy, label, prob: math.multiply(arrays.expand_dims(dy, -1), math.subtract(prob, label)),
    **{f"sparse_softmax_cross_entropy{ms}_grad -> prediction_diff": _entropy_grad for ms in ("", "_ms")},
    "normalization_grad -> gamma_diff beta_diff dx": _normalization_grad,
}
