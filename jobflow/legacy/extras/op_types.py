"""The published operation types with their attribute names, for `user_op_builder("n").Op(type)`.

An entry is a function whose signature is the schema of the type. Positional parameters are inputs: `*in_` accepts a list, a default of None
makes an input optional, and a trailing "_" is not part of the name. Keyword parameters are attributes. The key names the outputs:

    "gather -> out": lambda in_, indices, *, axis: arrays.gather(in_, indices, axis=axis)

    user_op_builder("n").Op("gather").Input("in", [x]).Input("indices", [i]).Output("out").Attr("axis", 1)

A parameter `name` receives the name of the op, for its variables or random numbers. Other entries are in `op_types_on_host`,
`op_types_of_gradients` and `op_types_of_updates`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any

import jobflow.engine.distribute as distribute
import jobflow.legacy.activations as nn
import jobflow.legacy.arrays as arrays
import jobflow.legacy.elements as elements
import jobflow.legacy.extras.quantization as quantization
import jobflow.legacy.ids as ids
import jobflow.legacy.layers as layers
import jobflow.legacy.loss_functions as losses
import jobflow.legacy.math as math
import jobflow.legacy.normalization as normalization
import jobflow.legacy.profiler as profiler
import jobflow.legacy.random as random
import jobflow.legacy.time_steps as time_steps
import jobflow.ops.activation as ac
import jobflow.ops.norm as norm
import jobflow.ops.softmax as softmax
from jobflow.core.errors import ArgumentError, user_line
from jobflow.core.types import Tensor, float32, int32
from jobflow.legacy.extras.op_type_rows import named_as
from jobflow.legacy.extras.op_types_of_images import OP_TYPES_OF_IMAGES
from jobflow.ops.op import apply, normal_axis

Row = Callable[..., Any]

#: x -> y
UNARY = (
    "abs acos acosh asin asinh atan atanh ceil cos cosh erf erfc exp expm1 floor lgamma log log1p log_sigmoid negative reciprocal reciprocal_no_nan "
    "rint round rsqrt sigmoid_v2 sign sin sinh softplus sqrt square tan tanh tanh_v2"
)
#: x, y -> z, with and without broadcasting
_BINARY = {word: word for word in ("atan2", "floordiv", "pow", "xdivy", "xlogy")} | {
    "elementwise_maximum": "maximum",
    "elementwise_minimum": "minimum",
    "broadcast_add": "add",
    "broadcast_sub": "subtract",
    "broadcast_mul": "multiply",
    "broadcast_div": "divide",
    "broadcast_floor_mod": "mod",
    **{f"broadcast_{word}": word for word in ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal", "logical_and")},
    **{f"broadcast_{word}": word for word in ("maximum", "minimum")},
}
#: x, scalar -> y, for a scalar tensor of one element
_BY_TENSOR = {"add": "add", "sub": "subtract", "mul": "multiply", "div": "divide"}


def _of_one(function: Row) -> Row:
    return lambda x: function(x)


def _of_two(function: Row) -> Row:
    return lambda x, y: function(x, y)


def _by_one_element(function: Row) -> Row:
    return lambda x, scalar: function(x, scalar)


def _activation(function: Row) -> Row:
    return lambda in_: function(in_)


def _reduction(function: Row) -> Row:
    return lambda input_tensor, *, axis, keepdims=False: function(input_tensor, axis, keepdims)


def _number(like: Tensor, floating: float, integer: int) -> float:
    """Return `floating` if the element type of `like` is floating point, and `integer` otherwise."""
    return floating if like.tensor_type.dtype.is_float else integer


def _by_number(function: Row) -> Row:
    def scalar(in_: Any, *, has_float_operand: bool = False, has_int_operand: bool = False, float_operand: float = 0.0, int_operand: int = 0) -> Any:
        return function(in_, float_operand if has_float_operand or not has_int_operand else int_operand)

    return scalar


def dropout(in_: Any, mask: Any, *, scale: float) -> Any:
    return math.multiply(math.multiply(in_, arrays.cast(mask, in_.tensor_type.dtype)), scale)


def _split_like(in_: Any, *like: Any, axis: int) -> list[Any]:
    result, start = [], 0
    for each in like:
        at = normal_axis(f"split_like at {user_line()}", axis, min(in_.tensor_type.ndim, each.tensor_type.ndim))
        stop = start + each.tensor_type.shape[at]
        result.append(arrays.slice_v2(in_, [(None, None, None)] * at + [(start, stop, 1)]))
        start = stop
    return result


def _each_axis(**lists: Any) -> list[Any]:
    """Return one tuple per axis with the entries of all `lists`, which are integers or None.

    Raises: ArgumentError for other entries, and for lists of unequal length.
    """
    listed = all(isinstance(each, list | tuple) and all(n is None or isinstance(n, Integral) for n in each) for each in lists.values())
    if not listed or len({len(each) for each in lists.values()}) > 1:
        words = ", ".join(f"{word} {each!r}" for word, each in lists.items())
        raise ArgumentError(f"slices and paddings at {user_line()}: {words} must be lists of integers, with one entry per axis")
    return list(zip(*lists.values(), strict=True))


def _bias(a: Any, b: Any, *, axis: int) -> Any:
    shape = [1] * a.tensor_type.ndim
    shape[normal_axis("bias_add", axis, a.tensor_type.ndim)] = -1
    return math.add(a, arrays.reshape(b, shape))


def _layer_norm(
    x: Any,
    gamma: Any = None,
    beta: Any = None,
    *,
    center: bool = True,
    scale: bool = True,
    begin_norm_axis: int,
    begin_params_axis: int,
    epsilon: float,
) -> Any:
    t = x.tensor_type
    begin = normal_axis("layer_norm", begin_norm_axis, t.ndim)
    one, zero = (arrays.constant(n, t.dtype, t.shape[begin:]) for n in (1, 0))
    normalized, mean, inverse = apply(norm.LayerNorm(begin, epsilon), x, one, zero)
    y = normalized if gamma is None or not scale else math.multiply(normalized, gamma)
    return (y if beta is None or not center else math.add(y, beta)), mean, inverse, normalized


def _entropies(prediction: Any, label: Any, *, depth: int | None = None) -> Any:
    return softmax.softmax(prediction, -1), losses.sparse_softmax_cross_entropy_with_logits(label, prediction)


def _normalization(
    x: Any,
    moving_mean: Any,
    moving_variance: Any,
    gamma: Any,
    beta: Any,
    *,
    axis: int,
    epsilon: float,
    training: bool = False,
    momentum: float = 0.99,
    name: str | None = None,
) -> Any:
    y, mean, variance = normalization.normalized(x, moving_mean, moving_variance, gamma, beta, axis, epsilon, momentum, training, name)
    return y, mean, math.rsqrt(math.add(variance, epsilon))


def _normalization_add_relu(
    x: Any,
    moving_mean: Any,
    moving_variance: Any,
    gamma: Any,
    beta: Any,
    addend: Any = None,
    *,
    axis: int,
    epsilon: float,
    training: bool = False,
    momentum: float = 0.99,
    name: str | None = None,
) -> Any:
    how: dict[str, Any] = {"axis": axis, "epsilon": epsilon, "training": training, "momentum": momentum, "name": name}
    before, mean, inverse = _normalization(x, moving_mean, moving_variance, gamma, beta, **how)
    y = nn.relu(before if addend is None else math.add(before, addend))
    return y, math.greater(y, 0), mean, inverse  # the second is the mask of the gradient


def _scaled_tril(
    in_: Any,
    *,
    diagonal: int = 0,
    is_floating_fill_value: bool = False,
    floating_fill_value: float = 0.0,
    integer_fill_value: int = 0,
    is_floating_scale_value: bool = True,
    floating_scale_value: float = 1.0,
    integer_scale_value: int = 1,
) -> Any:
    fill = floating_fill_value if is_floating_fill_value else integer_fill_value
    return math.fused_scale_tril(in_, diagonal, fill, floating_scale_value if is_floating_scale_value else integer_scale_value)


def _one_hot(
    indices: Any,
    *,
    depth: int,
    floating_on_value: float = 1.0,
    integer_on_value: int = 1,
    floating_off_value: float = 0.0,
    integer_off_value: int = 0,
    dtype: Any = float32,
) -> Any:
    on, off = (floating_on_value, floating_off_value) if dtype.is_float else (integer_on_value, integer_off_value)
    return arrays.one_hot(indices, depth, on, off, -1, dtype)


def _tril_softmax(
    x: Any, mask: Any, *, diagonal: int = 0, tril_fill_value: float = 0.0, tril_scale_value: float = 1.0, mask_scale_value: float = 1.0
) -> Any:
    y = nn.softmax(math.fused_scale_tril(x, diagonal, tril_fill_value, tril_scale_value))
    return dropout(y, mask, scale=mask_scale_value), y


def _cast_layout(in_: Any, *, sbp_parallel: str = "", grad_sbp_parallel: str = "", name: str | None = None) -> Any:
    def distribute_of(text: str) -> Any:
        axis = getattr(distribute.read_sbp(text, "parallel_cast"), "axis", None) if text else None
        return None if not text else distribute.broadcast() if axis is None else distribute.split(axis)

    return distribute.parallel_cast(in_, name, distribute_of(sbp_parallel), distribute_of(grad_sbp_parallel))


def _cast_layouts(
    in_: Any, *, parallel_distribution: Any, grad_mode: str = "restore", grad_parallel_distribution: Any = None, name: str | None = None
) -> Any:
    gradient = (grad_parallel_distribution or []) if grad_mode == "manual" else grad_parallel_distribution or None
    return distribute.hierarchical_parallel_cast(in_, list(parallel_distribution), grad_mode, gradient, name)


def _moving_observer(
    in_: Any,
    current_train_step: Any,
    moving_max: Any,
    moving_min: Any,
    *,
    training: bool,
    quantization_formula: str = "google",
    stop_update_after_iters: int | None = None,
    quantization_bit: int = 8,
    quantization_scheme: str = "symmetric",
    momentum: float = 0.95,
    name: str | None = None,
) -> Any:
    how = quantization_bit, quantization_scheme, quantization_formula
    return quantization.observed(in_, moving_max, moving_min, current_train_step, *how, momentum, training, stop_update_after_iters)


def _permuted(x: Any, *, seed: int | None = None, name: str | None = None) -> Any:
    return random.generate_random_batch_permutation_indices(x, seed, name)


OP_TYPES: Mapping[str, Row] = {
    # element by element
    **{f"{word} -> y": _of_one(getattr(math, word)) for word in UNARY.split()},
    **{f"{word} -> z": _of_two(getattr(math, name)) for word, name in _BINARY.items()},
    **{f"scalar_{word}_by_tensor -> y": _by_one_element(getattr(math, name)) for word, name in _BY_TENSOR.items()},
    "add_n -> out": lambda *in_: math.add_n(list(in_)),
    "multiply -> out": lambda x, y: math.multiply(x, y),
    "fused_cast_scale -> y": lambda x, scale_by_tensor, *, scale=1.0: math.multiply(
        math.multiply(arrays.cast(x, scale_by_tensor.tensor_type.dtype), scale_by_tensor), float(scale)
    ),
    "scalar_add -> out": _by_number(math.add),
    "scalar_mul -> out": _by_number(math.multiply),
    "scalar_pow -> out": lambda in_, *, exponent: math.pow(in_, exponent),
    "clip_by_scalar -> y": lambda x, *, floating_min=0.0, integral_min=0, floating_max=0.0, integral_max=0: math.clip_by_value(
        x, _number(x, floating_min, integral_min), _number(x, floating_max, integral_max)
    ),
    "clip_by_scalar_min -> y": lambda x, *, floating_min=0.0, integral_min=0: math.clip_by_value(x, _number(x, floating_min, integral_min)),
    "clip_by_scalar_max -> y": lambda x, *, floating_max=0.0, integral_max=0: math.clip_by_value(x, None, _number(x, floating_max, integral_max)),
    "cast_like -> out": lambda in_, dtype_like: arrays.cast(in_, dtype_like.tensor_type.dtype),
    "cast -> out": lambda in_, *, dtype: arrays.cast(in_, dtype),
    "where -> out": lambda condition, x, y: arrays.where(condition, x, y),
    "dropout -> out": dropout,
    "random_mask_like -> out": lambda like, *, rate, seed=None, name=None: random.random_mask_like(like, rate, seed, None, name),
    "bernoulli -> out": named_as(random.bernoulli, "in=x", "", "has_seed"),
    "coin_flip -> out": named_as(random.CoinFlip, "", "", "has_seed"),
    "generate_random_batch_permutation_indices -> y": _permuted,
    # activations and their gradients
    **{f"{word} -> out": _activation(getattr(nn, word)) for word in ("relu", "hardsigmoid", "hardswish")},
    "ccrelu -> out": lambda in_: nn.relu(in_),
    "gelu -> out": lambda in_: math.gelu(in_),
    "sigmoid -> out": lambda in_: math.sigmoid(in_),
    "elu -> out": lambda in_, *, alpha: nn.elu(in_, alpha),
    "hardtanh -> out": lambda in_, *, min_val, max_val: nn.hardtanh(in_, min_val, max_val),
    "leaky_relu -> y": lambda x, *, alpha: nn.leaky_relu(x, alpha),
    "prelu -> y": lambda x, alpha: ac.prelu(x, alpha),
    "softmax -> out": lambda in_: nn.softmax(in_),
    "relu_grad -> dx": lambda y, dy: math.multiply(dy, arrays.cast(math.greater(y, 0), dy.tensor_type.dtype)),
    "gelu_grad -> dx": lambda x, dy: math.gelu_grad(x, dy),
    "sigmoid_grad -> dx": lambda y, dy: math.sigmoid_grad(y, dy),
    "tanh_grad -> dx": lambda x, dy: math.multiply(dy, math.subtract(1.0, math.square(math.tanh(x)))),
    "leaky_relu_grad -> dx": lambda x, dy, *, alpha: arrays.where(math.greater(x, 0), dy, math.multiply(dy, alpha)),
    "softmax_grad -> dx": lambda y, dy: nn.softmax_grad(y, dy),
    # reductions
    **{f"reduce_{word} -> output_tensor": _reduction(getattr(math, f"reduce_{word}")) for word in ("sum", "min", "max", "prod", "any", "all")},
    "argwhere -> output output_size": lambda input, *, dtype=int32: ids.places_and_count(input, dtype),
    "argmax -> out": lambda in_: math.argmax(in_),
    "square_sum -> y": lambda x: elements.square_sum(x),
    "multi_square_sum -> y": lambda *x: math.add_n([elements.square_sum(each) for each in x]),
    "count_not_finite -> y": lambda x: math.count_not_finite(x),
    "multi_count_not_finite -> y": lambda *x: math.multi_count_not_finite(list(x)),
    "l2_normalize -> y square_x_sum": lambda x, *, axis, epsilon=1e-12: (
        math.l2_normalize(x, axis, epsilon),
        math.reduce_sum(math.square(x), axis, True),
    ),
    "unsorted_segment_sum -> out": lambda data, segment_ids, *, num_segments, axis=0: math.unsorted_segment_sum(
        data, segment_ids, num_segments, axis
    ),
    "unsorted_segment_sum_like -> out": lambda data, segment_ids, like, *, axis=0: math.unsorted_segment_sum_like(data, segment_ids, like, axis),
    "unsorted_batch_segment_sum -> out": lambda data, segment_ids, *, num_segments: math.unsorted_batch_segment_sum(data, segment_ids, num_segments),
    # shapes
    "identity -> out": lambda in_: arrays.identity(in_),
    "tuple_identity -> out*": lambda *in_: [arrays.identity(each) for each in in_],
    "amp_white_identity -> out": lambda in_: arrays.amp_white_identity(in_),
    "cast_to_static_shape -> output": lambda input: arrays.cast_to_static_shape(input),
    "reshape -> out": lambda in_, *, shape: arrays.reshape(in_, list(shape)),
    "reshape_like -> out": lambda in_, like: arrays.reshape_like(in_, like),
    "flatten -> out": lambda in_, *, start_dim=0, end_dim=-1: arrays.flatten(in_, start_dim, end_dim),
    "squeeze -> out": lambda in_, *, axes: arrays.squeeze(in_, list(axes)),
    "expand_dims -> out": lambda in_, *, axis: arrays.expand_dims(in_, axis),
    "expand -> out": lambda in_, *, in_shape=None, out_shape, stride=None: arrays.expand(in_, list(out_shape)),
    "transpose -> output": lambda input, *, perm: arrays.transpose(input, list(perm)),
    "broadcast_like -> y": lambda x, like, *, broadcast_axes=None: arrays.broadcast_like(x, like, broadcast_axes),
    "broadcast_to_compatible_with -> y": lambda x, *compatible: math.broadcast_to_compatible_with(x, list(compatible)),
    "concat -> out": lambda *in_, axis, max_dim_size=None: arrays.concat(list(in_), axis, max_dim_size),
    "split_like -> out*": _split_like,
    "slice -> y": lambda x, *, start, stop, step: arrays.slice_v2(x, _each_axis(start=start, stop=stop, step=step)),
    "slice_update -> y": lambda x, update, *, start, stop, step: elements.slice_update(x, update, _each_axis(start=start, stop=stop, step=step)),
    "logical_slice -> y": lambda x, *, start, stop, step: elements.logical_slice(x, _each_axis(start=start, stop=stop, step=step)),
    "pad -> y": lambda x, *, padding_before, padding_after, floating_constant_value=0.0, integral_constant_value=0: arrays.pad(
        x, _each_axis(padding_before=padding_before, padding_after=padding_after), _number(x, floating_constant_value, integral_constant_value)
    ),
    "pad_grad -> dx": lambda dy, *, padding_before, padding_after, floating_constant_value=0.0, integral_constant_value=0: arrays.pad_grad(
        dy, _each_axis(padding_before=padding_before, padding_after=padding_after)
    ),
    "constant_pad2d -> y": lambda x, *, padding, floating_value=0.0, integral_value=0: arrays.constant_pad2d(
        x, list(padding), _number(x, floating_value, integral_value)
    ),
    "reflection_pad2d -> y": lambda x, *, padding: arrays.reflection_pad2d(x, list(padding)),
    "replication_pad2d -> y": lambda x, *, padding: arrays.replication_pad2d(x, list(padding)),
    "same_padding -> y": lambda x, *, padding, data_format, kernel_size, strides, dilation_rate: arrays.same_padding(
        x, padding, data_format, kernel_size, strides, dilation_rate
    ),
    "tril -> out": lambda in_, *, diagonal=0, is_floating_fill_value=False, floating_fill_value=0.0, integer_fill_value=0: math.tril(
        in_, diagonal, floating_fill_value if is_floating_fill_value else integer_fill_value
    ),
    "fused_scale_tril -> out": _scaled_tril,
    "diag -> out": lambda in_, *, diagonal=0: elements.diag(in_, diagonal),
    "repeat -> out": lambda in_, *, repeat_num, name=None: time_steps.repeat(in_, repeat_num, name),
    "acc -> out": lambda in_, *, max_acc_num, name=None: time_steps.acc(in_, max_acc_num, name),
    "pack -> out": lambda in_, *, pack_num, name=None: time_steps.pack(in_, pack_num, name),
    "unpack -> out": lambda in_, *, unpack_num, name=None: time_steps.unpack(in_, unpack_num, name),
    "parallel_cast -> out": _cast_layout,
    "hierarchical_parallel_cast -> out": _cast_layouts,
    "nvtx_start -> out": lambda in_, *, mark_prefix: profiler.nvtx_start(in_, mark_prefix),
    "nvtx_end -> out": lambda in_, *, mark_prefix: profiler.nvtx_end(in_, mark_prefix),
    # constants
    "constant -> out": lambda *, shape, dtype, is_floating_value, floating_value=0.0, integer_value=0: arrays.constant(
        floating_value if is_floating_value else integer_value, dtype, list(shape)
    ),
    "constant_like -> out": lambda like, *, dtype=None, is_floating_operand=True, float_operand=0.0, integer_operand=0: arrays.constant_like(
        like, float_operand if is_floating_operand else integer_operand, dtype
    ),
    "zero_like -> out": lambda like: arrays.zeros_like(like),
    "ones_like -> out": lambda like: arrays.ones_like(like),
    "range -> out": lambda *, start, delta, limit, dtype=None: arrays.range(start, limit, delta, dtype),
    # indexing and sorting
    "gather -> out": lambda in_, indices, *, axis: arrays.gather(in_, indices, axis=axis),
    "batch_gather -> out": lambda in_, indices: arrays.gather(in_, indices, batch_dims=indices.tensor_type.ndim - 1),
    "dim_gather -> output": lambda input, index, *, dim: arrays.dim_gather(input, dim, index),
    "gather_nd -> out": lambda params, indices: elements.gather_nd(params, indices),
    "scatter_nd -> out": lambda indices, updates, *, shape: elements.scatter_nd(indices, updates, list(shape)),
    "tensor_scatter_nd_update -> out": lambda params, updates, indices: elements.tensor_scatter_nd_update(params, indices, updates),
    "tensor_scatter_nd_add -> out": lambda params, updates, indices: elements.tensor_scatter_nd_add(params, indices, updates),
    "one_hot -> out": _one_hot,
    "sort -> out": lambda in_, *, direction="ASCENDING": elements.sort(in_, -1, direction),
    "arg_sort -> out": lambda in_, *, direction="ASCENDING": elements.argsort(in_, -1, direction),
    "top_k -> out": lambda in_, *, k, sorted=True: elements.top_k(in_, -1, k, sorted),
    "in_top_k -> out": lambda targets, predictions, *, k: math.in_top_k(targets, predictions, k),
    "unique_with_counts -> y idx count num_unique": lambda x, *, out_idx=int32: ids.unique_with_counts(x, out_idx),
    "indexed_slices_reduce_sum -> y_indices y_values num_unique": lambda x_indices, x_values: ids.indexed_slices_reduce_sum(x_indices, x_values),
    # products
    "matmul -> out": lambda a, b, *, transpose_a=False, transpose_b=False, alpha=1.0: arrays.matmul(a, b, transpose_a, transpose_b, alpha),
    "batch_matmul -> out": lambda a, b, *, transpose_a=False, transpose_b=False, alpha=1.0: arrays.matmul(a, b, transpose_a, transpose_b, alpha),
    "broadcast_matmul -> out": lambda a, b, *, transpose_a=False, transpose_b=False, alpha=1.0: arrays.matmul(a, b, transpose_a, transpose_b, alpha),
    "bias_add -> out": _bias,
    "fused_bias_add_gelu -> out": lambda a, b, *, axis: math.gelu(_bias(a, b, axis=axis)),
    "fused_bias_add_mask_scale -> out": lambda a, b, mask, *, axis, scale: dropout(_bias(a, b, axis=axis), mask, scale=scale),
    "fused_tril_scale_softmax_mask_scale -> y softmax_y": _tril_softmax,
    "fused_self_attention_query_mul_key_and_value -> query_mul_key value": named_as(
        nn.fused_self_attention_query_mul_key_and_value, "hidden_states=x"
    ),
    # images
    **OP_TYPES_OF_IMAGES,
    # normalisation
    "normalization -> y mean inv_variance": _normalization,
    **{f"{word}normalization_add_relu -> y reserve_space mean inv_variance": _normalization_add_relu for word in ("", "cudnn_fused_")},
    "layer_norm -> y mean inv_variance normalized": _layer_norm,
    "layer_norm_grad -> dx": lambda dy, x, mean, inv_variance, *, begin_norm_axis=1, epsilon=None: layers.layer_norm_grad(
        dy, x, mean, inv_variance, begin_norm_axis
    ),
    "layer_norm_param_grad -> normalized_diff beta_diff gamma_diff": lambda dy, normalized, gamma, *, begin_params_axis=-1, epsilon=None: (
        layers.layer_norm_param_grad(dy, normalized, gamma, begin_params_axis)
    ),
    # losses
    "softmax_cross_entropy -> prob out": lambda prediction, label: (
        softmax.softmax(prediction, -1),
        losses.softmax_cross_entropy_with_logits(label, prediction),
    ),
    "sparse_softmax_cross_entropy -> prob out": _entropies,
    "sparse_softmax_cross_entropy_ms -> prob out": lambda prediction, label, *, depth=None, name=None: (
        nn.softmax(prediction),
        losses.distributed_sparse_softmax_cross_entropy_with_logits(label, prediction, name),
    ),
    **{
        f"sparse_cross_entropy{ms} -> out": lambda prediction, label, *, depth=None: losses.sparse_cross_entropy(label, prediction)
        for ms in ("", "_ms")
    },
    "sigmoid_cross_entropy -> loss": lambda prediction, label: losses.sigmoid_cross_entropy_with_logits(label, prediction),
    "smooth_l1_loss -> loss": lambda prediction, label, *, beta=1.0: losses.smooth_l1_loss(prediction, label, beta),
    "combined_margin_loss -> y theta": lambda x, label, *, m1=1.0, m2=0.0, m3=0.0, depth=None: elements.margins(x, label, m1, m2, m3),
    "ctc_loss -> loss alpha": lambda log_probs, targets, input_lengths, target_lengths, *, max_target_length=None, blank=0, zero_infinity=False: (
        losses.ctc_losses(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity)
    ),
    "ctc_greedy_decoder -> decoded neg_sum_logits": lambda log_probs, input_lengths, *, merge_repeated=True: losses.ctc_greedy_decoder(
        log_probs, input_lengths, merge_repeated
    ),
    "distributed_partial_fc_sample -> mapped_label sampled_label sampled_weight": lambda weight, label, *, num_sample, seed=-1, name=None: (
        ids.sampled_classes(weight, label, num_sample, None if seed == -1 else seed, name)
    ),
    # ids and quantization
    "categorical_ordinal_encode -> out": lambda table, size, in_, *, hash_precomputed=True, name=None: ids.categorical_ordinal_encode(
        table, size, in_, hash_precomputed, name
    ),
    "min_max_observer -> scale zero_point": named_as(quantization.min_max_observer, "in=input"),
    "moving_average_min_max_observer -> scale zero_point": _moving_observer,
    "fake_quantization -> out": named_as(quantization.fake_quantization, "in=input scale zero_point"),
}
