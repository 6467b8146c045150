"""Entries of `op_types` for gradients: the gradients of an operation's inputs from the gradient of its output.

    flow.user_op_builder("g").Op("elu_grad").Input("x", [x]).Input("dy", [dy]).Output("dx").Attr("alpha", 1.0)

Most entries are derived from the entry of the operation, which is traced for the inputs and differentiated. Unused nodes of the trace are removed
before the program runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jobflow.legacy.activations as nn
import jobflow.legacy.arrays as arrays
import jobflow.legacy.math as math
from jobflow.core.errors import ArgumentError, ShapeError, user_line
from jobflow.core.types import Tensor
from jobflow.graph.ir import nodes_behind
from jobflow.legacy.extras.op_types import OP_TYPES, UNARY, dropout
from jobflow.legacy.operands import counts, positive_shape
from jobflow.legacy.variables import current_job
from jobflow.ops import elementwise as ew
from jobflow.ops.broadcast import sum_to
from jobflow.ops.margin_loss import combined_margin_grad
from jobflow.ops.move import Mode, PadEdgesGrad
from jobflow.ops.op import apply, normal_axis

Row = Callable[..., Any]
_ATTENTION = "fused_self_attention_query_mul_key_and_value_grad"

#: derived gradients: "operation: inputs | targets", where the targets are inputs of the operation; "<-" marks the gradient of its first output,
#: "a=b" an input with the name b in the operation, and brackets an unused input
WALKED = {
    **{f"{word}_grad -> dx": f"{word}: x <-dy | x" for word in UNARY.split() if word != "tanh"},
    **{f"{word}_x_grad -> dx": f"{word}: x y <-dz | x" for word in ("atan2", "floordiv", "pow", "xdivy", "xlogy")},
    **{f"{word}_y_grad -> dy": f"{word}: x y <-dz | y" for word in ("atan2", "floordiv", "pow", "xdivy", "xlogy")},
    **{f"{word}_backward -> dx dy": f"{word}: <-dz x y | x y" for word in ("elementwise_maximum", "elementwise_minimum")},
    **{f"{word}_grad -> dx": f"{word}: x=in <-dy | in" for word in ("elu", "hardsigmoid", "hardswish")},
    **{f"{word}_grad -> dx": f"{word}: <-dy x | x" for word in ("clip_by_scalar", "clip_by_scalar_min", "clip_by_scalar_max", "upsample")},
    **{f"{word}_pool_{n}d_grad -> dx": f"{word}_pool_{n}d: x (y) <-dy | x" for word in ("max", "avg") for n in (1, 2, 3)},
    "prelu_grad -> dx alpha_diff": "prelu: <-dy x alpha | x alpha",
    "scalar_pow_grad -> dx": "scalar_pow: x=in <-dy | in",
    "slice_grad -> dx": "slice: <-dy like=x | x",
    "same_padding_grad -> dx": "same_padding: x_like=x <-dy | x",
    "conv_data_grad -> dx": "conv: <-dy filter=weight x_like=in | in",
    "fused_bias_add_gelu_grad -> dx": "fused_bias_add_gelu: a b <-dy | a",
    "ctc_loss_grad -> grad": "ctc_loss: <-grad_out log_probs targets input_lengths target_lengths (loss) (alpha) | log_probs",
    "dim_scatter_add_like -> output": "dim_gather: like=input <-input index | input",
    "scatter_nd_like -> out": "gather_nd: like=params indices <-updates | params",
    "diag_grad -> dx": "diag: <-dy in | in",
    "smooth_l1_loss_grad -> prediction_grad": "smooth_l1_loss: <-loss_grad prediction label | prediction",
    "sigmoid_cross_entropy_grad -> prediction_diff": "sigmoid_cross_entropy: prediction <-loss_diff label | prediction",
    **{f"sparse_cross_entropy{ms}_grad -> prediction_diff": f"sparse_cross_entropy{ms}: prediction label <-dy | prediction" for ms in ("", "_ms")},
}


def _gradients(what: str, operation: Callable[[], Any], dy: Tensor, targets: Sequence[Any]) -> list[Tensor]:
    """Trace `operation()`, and return the gradients of `targets` for the gradient `dy` of its first output.

    The gradient of a target that does not affect the output is zeros. Raises: ShapeError unless `dy` has the type of the output.
    """
    body: Any = current_job(what)
    recorded, body.replacing = body.replacing, None  # differentiate without quantization
    try:
        outputs = operation()
        outputs = outputs[0] if isinstance(outputs, tuple) else outputs
        if dy.tensor_type != outputs.tensor_type:
            raise ShapeError(f"{what} at {user_line()}: the gradient {dy.tensor_type} must have the type of the output {outputs.tensor_type}")
        gradients: dict[Any, Any] = {outputs.value: dy}
        for node in reversed(nodes_behind(outputs.value.node, {x.value for x in targets})):
            seeds = [gradients.get(y) for y in node.outputs]
            if any(each is not None for each in seeds):
                tensors = [body.handle(value) for value in (*node.inputs, *node.outputs)]
                for x, slope in zip(node.inputs, node.op.grad(*tensors, *seeds), strict=True):
                    if slope is not None:
                        gradients[x] = slope if x not in gradients else ew.add(gradients[x], slope)
        return [gradients[x.value] if x.value in gradients else arrays.zeros_like(x) for x in targets]
    finally:
        body.replacing = recorded


def _row(word: str) -> Row:
    rows = {**OP_TYPES, "conv -> out": _conv}
    return next(row for key, row in rows.items() if key.startswith(f"{word} -> "))


def _walked(key: str, rule: str) -> Row:
    """Return the entry `key` of WALKED as a function, which traces an operation and differentiates it as `rule` describes."""
    word, _, rest = rule.partition(": ")
    accepted, _, names = rest.partition(" | ")
    what, forward, tokens = key.partition(" ")[0], _row(word), accepted.split()
    inputs = [token.strip("()").removeprefix("<-").partition("=")[0] for token in tokens]
    (diff,) = (name for name, token in zip(inputs, tokens, strict=True) if token.startswith("<-"))
    source = {token.partition("=")[2] or name: name for name, token in zip(inputs, tokens, strict=True) if token[0] not in "<("}
    parameters = inspect.signature(forward).parameters
    needed = [p.rstrip("_") for p, kind in parameters.items() if kind.kind is not kind.KEYWORD_ONLY and p.rstrip("_") in source]

    def row(*defaults: Any, name: str | None = None, **attributes: Any) -> Any:
        named = dict(zip(inputs, defaults, strict=True))
        starts, further = [named[source[each]] for each in needed], {"name": None} if "name" in parameters else {}
        wished = [named[source[each]] for each in names.split()]
        slopes = _gradients(what, lambda: forward(*starts, **further, **attributes), named[diff], wished)
        return [ew.identity(slope, name=name if len(slopes) == 1 else None) for slope in slopes]

    kinds = [inspect.Parameter("in_" if each == "in" else each, inspect.Parameter.POSITIONAL_OR_KEYWORD) for each in inputs]
    own = [p for p in parameters.values() if p.kind is p.KEYWORD_ONLY and p.name != "name"]
    last = inspect.Parameter("name", inspect.Parameter.KEYWORD_ONLY, default=None)
    row.__signature__ = inspect.Signature([*kinds, *own, last])  # type: ignore[attr-defined]
    return row


def _conv(
    in_: Any,
    weight: Any,
    *,
    num_spatial_dims: int,
    padding_before: Sequence[int],
    data_format: str,
    kernel_size: Sequence[int],
    strides: Sequence[int],
    dilation_rate: Sequence[int],
    groups: int = 1,
) -> Any:
    _images("conv", num_spatial_dims, data_format, x=in_)
    sizes = {"padding_before": padding_before, "kernel_size": kernel_size, "strides": strides, "dilation_rate": dilation_rate}
    return _row(f"conv{int(num_spatial_dims)}d")(in_, weight, data_format=data_format, groups=groups, **sizes)


def _filter_grad(
    dy: Any,
    x: Any,
    *,
    num_spatial_dims: int,
    padding_before: Sequence[int],
    data_format: str,
    kernel_size: Sequence[int],
    strides: Sequence[int],
    dilation_rate: Sequence[int],
    groups: int = 1,
    name: str | None = None,
) -> Tensor:
    what, last = "conv_filter_grad", data_format == "channels_last"
    _images(what, num_spatial_dims, data_format, dy=dy, x=x)
    counts(what, groups=groups)
    kernel = positive_shape(what, "kernel_size", kernel_size)
    filters, channels = (each.tensor_type.shape[-1 if last else 1] for each in (dy, x))
    shape = (filters, *kernel, channels // groups) if last else (filters, channels // groups, *kernel)
    w = arrays.constant(0, dy.tensor_type.dtype, shape)
    sizes = {"padding_before": padding_before, "kernel_size": kernel_size, "strides": strides, "dilation_rate": dilation_rate}
    operation = partial(_conv, x, w, num_spatial_dims=num_spatial_dims, data_format=data_format, groups=groups, **sizes)
    return ew.identity(_gradients(what, operation, dy, [w])[0], name=name)


def _images(what: str, ndim: int, data_format: str, **attributes: Tensor) -> None:
    if (
        ndim not in (1, 2, 3)
        or data_format not in ("channels_first", "channels_last")
        or any(x.tensor_type.ndim != ndim + 2 for x in attributes.values())
    ):
        types = ", ".join(f"{word} {x.tensor_type}" for word, x in attributes.items())
        raise ArgumentError(
            f"{what} at {user_line()}: num_spatial_dims {ndim!r} must be 1, 2 or 3, each tensor must have 2 more axes ({types}), and data_format "
            f'{data_format!r} must be "channels_first" or "channels_last"'
        )


def _conv_bias_grad(dy: Any, *, num_spatial_dims: int, data_format: str = "channels_first") -> Tensor:
    _images("conv_bias_grad", num_spatial_dims, data_format, dy=dy)
    channels = dy.tensor_type.ndim - 1 if data_format == "channels_last" else 1
    return math.reduce_sum(dy, [i for i in range(dy.tensor_type.ndim) if i != channels])


def _frame(what: str, padding: Any) -> tuple[tuple[int, int], ...]:
    """Return the padding (left, right, top, bottom) of images [n, c, h, w] as one pair (before, after) per axis.

    Raises: ArgumentError unless `padding` is a list of four non-negative ints.
    """
    if not isinstance(padding, list | tuple) or len(padding) != 4 or any(not isinstance(n, int) or n < 0 for n in padding):
        raise ArgumentError(f"{what} at {user_line()}: padding {padding!r} must be a list of four non-negative ints: left, right, top and bottom")
    left, right, top, bottom = padding
    return (0, 0), (0, 0), (top, bottom), (left, right)


def _framed_grad(word: str, mode: Mode) -> dict[str, Row]:
    what = f"{word}_pad2d_grad"
    return {f"{what} -> dx": lambda dy, *, padding, floating_value=0.0, integral_value=0: apply(PadEdgesGrad(_frame(what, padding), mode), dy)}


def _attention_grad(query_mul_key_grad: Any, value_grad: Any, hidden_states: Any, *, alpha: float = 1.0, name: str | None = None) -> Tensor:
    x, product, value = hidden_states, query_mul_key_grad, value_grad
    if x.tensor_type.ndim != 3 or value.tensor_type.ndim != 4:
        raise ShapeError(f"{_ATTENTION} at {user_line()}: hidden_states {x.tensor_type} must have 3 axes, and value_grad {value.tensor_type} 4 axes")

    def of(i: int, dy: Any) -> Tensor:
        return _gradients(_ATTENTION, lambda: nn.fused_self_attention_query_mul_key_and_value(x, value.tensor_type.shape[3], alpha)[i], dy, [x])[0]

    return ew.add(of(0, product), of(1, value), name=name)


def _normalization_grad(x: Any, dy: Any, mean: Any, inv_variance: Any, gamma: Any, *, axis: int, epsilon: float = 0.0) -> Any:
    axis = normal_axis(f"normalization_grad at {user_line()}", axis, x.tensor_type.ndim)
    shape = [n if i == axis else 1 for i, n in enumerate(x.tensor_type.shape)]
    others = [i for i in range(x.tensor_type.ndim) if i != axis]
    mean, inverse, scale = (arrays.reshape(each, shape) for each in (mean, inv_variance, gamma))
    normal = math.multiply(math.subtract(x, mean), inverse)
    sums = math.reduce_sum(math.multiply(dy, normal), others, True), math.reduce_sum(dy, others, True)
    share = 1.0 / (x.tensor_type.size // x.tensor_type.shape[axis])
    inner = math.subtract(dy, math.multiply(math.add(sums[1], math.multiply(normal, sums[0])), share))
    return *(arrays.reshape(each, (-1,)) for each in sums), math.multiply(math.multiply(scale, inverse), inner)


def _l2_normalize_grad(dy: Any, y: Any, square_x_sum: Any, *, axis: int, epsilon: float = 1e-12) -> Any:
    inner = math.subtract(dy, math.multiply(y, math.reduce_sum(math.multiply(dy, y), axis, True)))
    return math.multiply(inner, math.rsqrt(math.clip_by_value(square_x_sum, epsilon)))


def _entropy_grad(prob: Any, label: Any, dy: Any, *, depth: int | None = None) -> Any:
    flat = arrays.reshape(label, dy.tensor_type.shape)
    return math.multiply(
        arrays.expand_dims(dy, -1), math.subtract(prob, arrays.one_hot(flat, prob.tensor_type.shape[-1], dtype=prob.tensor_type.dtype))
    )


def _margin_grad(dy: Any, label: Any, theta: Any, *, m1: float = 1.0, m2: float = 0.0, m3: float = 0.0, depth: int | None = None) -> Any:
    n, t = (theta.tensor_type.size,), dy.tensor_type
    if (
        t.ndim != 2
        or n != t.shape[:1]
        or label.tensor_type.size != theta.tensor_type.size
        or t.dtype is not theta.tensor_type.dtype
        or not label.tensor_type.dtype.is_integer
    ):
        raise ShapeError(
            f"combined_margin_loss_grad at {user_line()}: dy {dy.tensor_type} must be [n, classes], label {label.tensor_type} n integers, and "
            f"theta {theta.tensor_type} n angles of the element type of dy"
        )
    return combined_margin_grad(arrays.reshape(theta, n), arrays.reshape(label, n), dy, float(m1), float(m2))


def _add_relu_grad(
    x: Any, dy: Any, mean: Any, inv_variance: Any, gamma: Any, beta: Any, reserve_space: Any, y: Any, *, axis: int, epsilon: float = 0.0
) -> Any:
    through = _through_relu(y, dy)
    return *_normalization_grad(x, through, mean, inv_variance, gamma, axis=axis), through


def _through_relu(y: Any, dy: Any) -> Tensor:
    return math.multiply(dy, arrays.cast(math.greater(y, 0), dy.tensor_type.dtype))


def _between(y: Any, dy: Any, *, min_val: float, max_val: float) -> Tensor:
    inside = math.logical_and(math.greater(y, min_val), math.less(y, max_val))
    return math.multiply(dy, arrays.cast(inside, dy.tensor_type.dtype))


def _tril_softmax_grad(
    softmax_y: Any, dy: Any, mask: Any, *, diagonal: int = 0, tril_scale_value: float = 1.0, mask_scale_value: float = 1.0
) -> Tensor:
    before = nn.softmax_grad(softmax_y, dropout(dy, mask, scale=mask_scale_value))
    return math.fused_scale_tril(before, diagonal, 0, tril_scale_value)


def _matrix_grad(a: Any, b: Any, _add_to_output: Any = None, *, alpha: float = 1.0) -> Tensor:
    rows, others = (arrays.reshape(each, (-1, each.tensor_type.shape[-1])) for each in (a, b))
    product = arrays.matmul(rows, others, transpose_a=True, alpha=alpha)
    return product if _add_to_output is None else math.add(product, _add_to_output)


def _sum_like(x: Any, like: Any, *, axis: Any = ()) -> Tensor:
    return arrays.reshape(x if isinstance(axis, list | tuple) and not axis else math.reduce_sum(x, axis), like.tensor_type.shape)


OP_TYPES_OF_GRADIENTS: Mapping[str, Row] = {
    **{key: _walked(key, rule) for key, rule in WALKED.items()},
    # activations, dropout and softmax
    "ccrelu_grad -> dx": lambda y, dy: _through_relu(y, dy),
    "hardtanh_grad -> dx": _between,
    "dropout_grad -> dx": lambda dy, mask, *, scale: dropout(dy, mask, scale=scale),
    "fused_tril_scale_softmax_mask_scale_grad -> dx": _tril_softmax_grad,
    # broadcasting and products
    "broadcast_div_grad -> dy": lambda y, z, dz: sum_to(math.negative(math.divide(math.multiply(dz, z), y)), y.tensor_type.shape),
    "expand_grad -> out": lambda in_, *, in_shape, out_shape=None, stride=None: sum_to(in_, tuple(in_shape)),
    "reduce_sum_like -> y": _sum_like,
    "broadcast_matmul_grad_b -> out": _matrix_grad,
    f"{_ATTENTION} -> hidden_states_grad": _attention_grad,
    # images
    "conv_filter_grad -> filter_diff": _filter_grad,
    "conv_bias_grad -> bias_diff": _conv_bias_grad,
    "constant_pad2d_grad -> dx": lambda dy, *, padding, floating_value=0.0, integral_value=0: arrays.pad_grad(
        dy, _frame("constant_pad2d_grad", padding)
    ),
    **_framed_grad("reflection", "reflect"),
    **_framed_grad("replication", "edge"),
    # normalization
    "l2_normalize_grad -> dx": _l2_normalize_grad,
    "normalization_grad -> gamma_diff beta_diff dx": _normalization_grad,
    **{f"{word}normalization_add_relu_grad -> gamma_diff beta_diff dx addend_diff": _add_relu_grad for word in ("", "cudnn_fused_")},
    # losses
    "softmax_cross_entropy_grad -> prediction_diff": lambda dy, label, prob: math.multiply(arrays.expand_dims(dy, -1), math.subtract(prob, label)),
    **{f"sparse_softmax_cross_entropy{ms}_grad -> prediction_diff": _entropy_grad for ms in ("", "_ms")},
    "combined_margin_loss_grad -> dx": _margin_grad,
}
