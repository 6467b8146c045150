"""Inputs and attributes of the published operation types, and the outputs that NumPy computes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import jobflow as flow

R = np.random.default_rng(0)
X = R.uniform(0.3, 0.9, (4, 6)).astype(np.float32)
Y = R.uniform(1.0, 3.0, (4, 6)).astype(np.float32)
IMAGE = R.normal(size=(2, 4, 6, 6)).astype(np.float32)
KERNEL = R.normal(size=(3, 4, 3, 3)).astype(np.float32)
IDS = np.array([2, 0, 2, 5], np.int64)
V, W = X[0], Y[0]
ROW = X.mean(1)
Z = np.zeros
NAN = np.nan


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def log_softmax(x: Any) -> Any:
    return np.log(softmax(x))


def normal(x: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-3)


def windows(x: Any) -> Any:
    n, c, h, w = x.shape
    return x.reshape(n, c, h // 2, 2, w // 2, 2)


SLICE = {"start": [1, None], "stop": [4, 5], "step": [2, 2]}
PADS = {"padding_before": [1, 0], "padding_after": [0, 2]}
POOL = {"pool_size": [2, 2], "strides": [2, 2], "data_format": "channels_first", "padding": "valid"}
CONV = {"filters": 3, "padding_before": [1, 1], "kernel_size": [3, 3], "strides": [1, 1], "dilation_rate": [1, 1], "groups": 1}
ONES = np.ones((4, 6), np.float32)
ADDED = IMAGE / 2 * W[:4, None, None] + V[:4, None, None] + IMAGE**2
#: those that NumPy has by the same name
SAME = (
    *("abs", "ceil", "cos", "cosh", "exp", "expm1", "floor", "log", "log1p", "negative", "rint", "sign", "sin", "sinh", "sqrt", "square"),
    *("tan", "tanh"),
)
BROADCAST = ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal", "maximum", "minimum")
SCALARS = {"add": X + W[0], "sub": X - W[0], "mul": X * W[0], "div": X / W[0]}
#: inputs and attributes of each type, and what NumPy says of its first outputs; None where that is tested elsewhere
CASES: dict[str, tuple[tuple[Any, ...], dict[str, Any], Any]] = {
    **{word: ((X,), {}, getattr(np, word)(X)) for word in SAME},
    **{word: ((X,), {}, getattr(np, f"arc{word[1:]}")(X)) for word in ("acos", "asin", "atan", "asinh", "atanh")},
    "acosh": ((Y,), {}, np.arccosh(Y)),
    "erf": ((X,), {}, np.vectorize(math.erf)(X)),
    "erfc": ((X,), {}, np.vectorize(math.erfc)(X)),
    "lgamma": ((Y,), {}, np.vectorize(math.lgamma)(Y)),
    "log_sigmoid": ((X,), {}, -np.log1p(np.exp(-X))),
    "reciprocal": ((X,), {}, 1 / X),
    "reciprocal_no_nan": ((np.float32([0, 2]),), {}, [0, 0.5]),
    "round": ((np.float32([0.5, 1.5]),), {}, [0, 2]),
    "rsqrt": ((X,), {}, X**-0.5),
    "sigmoid_v2": ((X,), {}, 1 / (1 + np.exp(-X))),
    "softplus": ((X,), {}, np.log1p(np.exp(X))),
    "tanh_v2": ((X,), {}, np.tanh(X)),
    "atan2": ((X, Y), {}, np.arctan2(X, Y)),
    "floordiv": ((Y, X), {}, np.floor_divide(Y, X)),
    "pow": ((X, Y), {}, X**Y),
    "xdivy": ((X, Y), {}, X / Y),
    "xlogy": ((X, Y), {}, X * np.log(Y)),
    "elementwise_maximum": ((X, Y), {}, Y),
    "elementwise_minimum": ((X, Y), {}, X),
    "broadcast_add": ((X, V), {}, X + V),
    "broadcast_sub": ((X, V), {}, X - V),
    "broadcast_mul": ((X, V), {}, X * V),
    "broadcast_div": ((X, V), {}, X / V),
    "broadcast_floor_mod": ((Y, V), {}, np.mod(Y, V)),
    **{f"broadcast_{word}": ((X, V), {}, getattr(np, word)(X, V)) for word in BROADCAST},
    "broadcast_logical_and": ((X, np.float32([0, 1] * 3)), {}, ONES * ([0, 1] * 3)),
    **{f"scalar_{word}_by_tensor": ((X, W[:1]), {}, result) for word, result in SCALARS.items()},
    "add_n": (([X, Y, X],), {}, X + Y + X),
    "multiply": ((X, Y), {}, X * Y),
    "scalar_add": ((X,), {"has_float_operand": True, "float_operand": 1.5}, X + 1.5),
    "scalar_mul": ((IDS,), {"has_int_operand": True, "int_operand": 3}, IDS * 3),
    "scalar_pow": ((X,), {"exponent": 2.0}, X * X),
    "clip_by_scalar": ((X,), {"floating_min": 0.4, "floating_max": 0.6}, X.clip(0.4, 0.6)),
    "clip_by_scalar_min": ((IDS,), {"integral_min": 1}, IDS.clip(1)),
    "clip_by_scalar_max": ((X,), {"floating_max": 0.6}, X.clip(None, 0.6)),
    "fused_cast_scale": ((IDS, W[:1]), {"scale": 2.0}, 2 * W[0] * IDS),
    "cast_like": ((Y, IDS), {}, Y.astype(np.int64)),
    "cast": ((Y,), {"dtype": flow.int32}, Y.astype(np.int32)),
    "where": ((np.int8([[1], [0], [1], [0]]), X, Y), {}, np.where([[1], [0], [1], [0]], X, Y)),
    "dropout": ((X, np.int8([0, 1] * 3)), {"scale": 2.0}, X * ([0, 2] * 3)),
    "random_mask_like": ((X,), {"rate": 0.0, "seed": 3}, ONES),
    "bernoulli": ((ONES,), {"seed": 1}, ONES),
    "coin_flip": ((), {"batch_size": 4, "probability": 1.0}, [1] * 4),
    "generate_random_batch_permutation_indices": ((X,), {}, None),
    "relu": ((X - 0.5,), {}, (X - 0.5).clip(0)),
    "ccrelu": ((X - 0.5,), {}, (X - 0.5).clip(0)),
    "hardsigmoid": ((X,), {}, X / 6 + 0.5),
    "hardswish": ((X,), {}, X * (X / 6 + 0.5)),
    "gelu": ((X,), {}, X * (1 + np.vectorize(math.erf)(X / 2**0.5)) / 2),
    "sigmoid": ((X,), {}, 1 / (1 + np.exp(-X))),
    "elu": ((-X,), {"alpha": 2.0}, 2 * np.expm1(-X)),
    "hardtanh": ((X,), {"min_val": 0.4, "max_val": 0.5}, X.clip(0.4, 0.5)),
    "leaky_relu": ((-X,), {"alpha": 0.5}, -X / 2),
    "prelu": ((-X, V), {}, -X * V),
    "softmax": ((X,), {}, softmax(X)),
    "relu_grad": ((X - 0.5, Y), {}, Y * (X > 0.5)),
    "gelu_grad": ((Z(3, np.float32), W[:3]), {}, W[:3] / 2),
    "sigmoid_grad": ((X, Y), {}, Y * X * (1 - X)),
    "tanh_grad": ((X, Y), {}, Y * (1 - np.tanh(X) ** 2)),
    "leaky_relu_grad": ((-X, Y), {"alpha": 0.5}, Y / 2),
    "softmax_grad": ((X, Y), {}, X * (Y - (X * Y).sum(-1, keepdims=True))),
    "reduce_sum": ((X,), {"axis": [1], "keepdims": True}, X.sum(1, keepdims=True)),
    "reduce_min": ((X,), {"axis": [0]}, X.min(0)),
    "reduce_max": ((X,), {"axis": [0, 1]}, [X.max()]),
    "reduce_prod": ((X,), {"axis": [1]}, X.prod(1)),
    "reduce_any": ((IDS,), {"axis": [0]}, [1]),
    "reduce_all": ((IDS,), {"axis": [0]}, [0]),
    "argwhere": ((IDS,), {"dtype": flow.int64}, ([[0], [2], [3], [-1]], [3])),
    "argmax": ((X,), {}, X.argmax(-1)),
    "square_sum": ((X,), {}, [(X**2).sum()]),
    "multi_square_sum": (([X, Y],), {}, [(X**2).sum() + (Y**2).sum()]),
    "count_not_finite": ((np.float32([1, np.inf, NAN]),), {}, [2]),
    "multi_count_not_finite": (([X, np.float32([NAN])],), {}, [1]),
    "l2_normalize": ((X,), {"axis": 1, "epsilon": 1e-12}, (X / np.sqrt((X**2).sum(1, keepdims=True)), (X**2).sum(1, keepdims=True))),
    "unsorted_segment_sum": ((X, np.array([0, 1, 0, 1])), {"num_segments": 2, "axis": 0}, [X[::2].sum(0), X[1::2].sum(0)]),
    "unsorted_segment_sum_like": ((X, np.array([0, 1, 0, 1]), X[:2]), {"axis": 0}, [X[::2].sum(0), X[1::2].sum(0)]),
    "unsorted_batch_segment_sum": ((X, np.array([[0, 1] * 3] * 4)), {"num_segments": 2}, np.stack([X[:, ::2].sum(1), X[:, 1::2].sum(1)], 1)),
    "identity": ((X,), {}, X),
    "tuple_identity": (([X, Y],), {}, (X, Y)),
    "amp_white_identity": ((X,), {}, X),
    "cast_to_static_shape": ((X,), {}, X),
    "reshape": ((X,), {"shape": (6, -1)}, X.reshape(6, 4)),
    "reshape_like": ((X, X.reshape(8, 3)), {}, X.reshape(8, 3)),
    "flatten": ((IMAGE,), {"start_dim": 1}, IMAGE.reshape(2, -1)),
    "squeeze": ((X[:, None],), {"axes": [1]}, X),
    "expand_dims": ((X,), {"axis": 1}, X[:, None]),
    "expand": ((V,), {"in_shape": [6], "out_shape": [4, 6]}, V * ONES),
    "transpose": ((X,), {"perm": [1, 0]}, X.T),
    "broadcast_like": ((V, X), {"broadcast_axes": [0]}, V * ONES),
    "broadcast_to_compatible_with": ((V, [X]), {}, V * ONES),
    "concat": (([X, Y],), {"axis": 1, "max_dim_size": 12}, np.concatenate([X, Y], 1)),
    "split_like": ((np.concatenate([X, Y, Y], 1), [X, np.concatenate([Y, Y], 1)]), {"axis": 1}, (X, np.concatenate([Y, Y], 1))),
    "slice": ((X,), SLICE, X[1:4:2, :5:2]),
    "logical_slice": ((X,), SLICE, X[1:4:2, :5:2]),
    "slice_update": ((X, Y[:1, :2]), {"start": [1, 2], "stop": [2, 4], "step": [1, 1]}, None),
    "pad": ((X,), {**PADS, "floating_constant_value": 2.0}, np.pad(X, [(1, 0), (0, 2)], constant_values=2)),
    "pad_grad": ((X,), PADS, X[1:, :-2]),
    "constant_pad2d": (
        (IMAGE,),
        {"padding": [1, 2, 0, 3], "floating_value": 1.0},
        np.pad(IMAGE, [(0, 0), (0, 0), (0, 3), (1, 2)], constant_values=1),
    ),
    "reflection_pad2d": ((IMAGE,), {"padding": [1, 2, 0, 3]}, np.pad(IMAGE, [(0, 0), (0, 0), (0, 3), (1, 2)], "reflect")),
    "replication_pad2d": ((IMAGE,), {"padding": [1, 2, 0, 3]}, np.pad(IMAGE, [(0, 0), (0, 0), (0, 3), (1, 2)], "edge")),
    "same_padding": (
        (IMAGE,),
        {"padding": "SAME_LOWER", "data_format": "channels_first", "kernel_size": [3, 4], "strides": [1, 1], "dilation_rate": [1, 1]},
        np.pad(IMAGE, [(0, 0), (0, 0), (1, 1), (2, 1)]),
    ),
    "tril": ((X,), {"diagonal": 1}, np.tril(X, 1)),
    "fused_scale_tril": ((X,), {"floating_scale_value": 2.0}, np.tril(2 * X)),
    "diag": ((V,), {}, np.diag(V)),
    "repeat": ((X,), {"repeat_num": 2}, np.concatenate([X, X])),
    "unpack": ((X,), {"unpack_num": 2}, X),
    "pack": ((X,), {"pack_num": 1}, X),
    "acc": ((X,), {"max_acc_num": 1}, X),
    "parallel_cast": ((X,), {"sbp_parallel": "S(0)", "grad_sbp_parallel": "B"}, X),
    "hierarchical_parallel_cast": ((X,), {"parallel_distribution": ["S(1)"]}, X),
    "nvtx_start": ((X,), {"mark_prefix": "a"}, X),
    "nvtx_end": ((X,), {"mark_prefix": "a"}, X),
    "constant": ((), {"shape": [2, 3], "dtype": flow.float32, "is_floating_value": True, "floating_value": 1.5}, Z((2, 3)) + 1.5),
    "constant_like": ((X,), {"float_operand": 2.5}, ONES * 2.5),
    "zero_like": ((X,), {}, ONES * 0),
    "ones_like": ((X,), {}, ONES),
    "range": ((), {"start": 1, "limit": 7, "delta": 2}, [1, 3, 5]),
    "gather": ((X, IDS), {"axis": 1}, X[:, IDS]),
    "batch_gather": ((X, np.array([[0], [5], [1], [2]])), {}, X[range(4), [0, 5, 1, 2]][:, None]),
    "dim_gather": ((X, np.array([[0], [5], [1], [2]])), {"dim": 1}, X[range(4), [0, 5, 1, 2]][:, None]),
    "gather_nd": ((X, np.array([[1, 2], [3, 0]])), {}, X[[1, 3], [2, 0]]),
    "scatter_nd": ((np.array([[1], [3]]), V[:2]), {"shape": (4,)}, [0, V[0], 0, V[1]]),
    "tensor_scatter_nd_update": ((V, W[:2], np.array([[1], [3]])), {}, [V[0], W[0], V[2], W[1], V[4], V[5]]),
    "tensor_scatter_nd_add": ((V, W[:2], np.array([[1], [3]])), {}, [V[0], V[1] + W[0], V[2], V[3] + W[1], V[4], V[5]]),
    "one_hot": ((IDS,), {"depth": 6, "floating_on_value": 2.0}, 2 * np.eye(6)[IDS]),
    "sort": ((X,), {"direction": "DESCENDING"}, -np.sort(-X)),
    "arg_sort": ((X,), {}, X.argsort()),
    "top_k": ((X,), {"k": 2}, (-X).argsort()[:, :2]),
    "in_top_k": ((np.array([0, 1, 2, 3], np.int32), X), {"k": 6}, [1] * 4),
    "unique_with_counts": ((IDS,), {}, ([2, 0, 5, 0], [0, 1, 0, 2], [2, 1, 1, 0], [3])),
    "indexed_slices_reduce_sum": ((IDS, X), {}, ([2, 0, 5, 0], [X[0] + X[2], X[1], X[3], 0 * V], [3])),
    "matmul": ((X, Y), {"transpose_b": True, "alpha": 2.0}, 2 * X @ Y.T),
    "batch_matmul": ((X[None], Y[None]), {"transpose_b": True}, (X @ Y.T)[None]),
    "broadcast_matmul": ((X[None], Y), {"transpose_b": True}, (X @ Y.T)[None]),
    "bias_add": ((IMAGE, V[:4]), {"axis": 1}, IMAGE + V[:4, None, None]),
    "fused_bias_add_gelu": ((Z((4, 6), np.float32), 0 * V), {"axis": 1}, Z((4, 6))),
    "fused_bias_add_mask_scale": ((X, V, np.int8(ONES)), {"axis": 1, "scale": 2.0}, 2 * (X + V)),
    "fused_tril_scale_softmax_mask_scale": (
        (X, np.int8(ONES)),
        {"tril_fill_value": -1e9, "tril_scale_value": 2.0, "mask_scale_value": 3.0},
        (3 * softmax(np.tril(2 * X) - 1e9 * np.triu(ONES, 1)), softmax(np.tril(2 * X) - 1e9 * np.triu(ONES, 1))),
    ),
    "fused_self_attention_query_mul_key_and_value": ((R.normal(size=(4, 2, 12)).astype(np.float32),), {"head_size": 4}, None),
    "conv1d": ((IMAGE[:, :, 0], KERNEL[:, :, 0, :1]), {"filters": 3}, np.einsum("nci,oc->noi", IMAGE[:, :, 0], KERNEL[:, :, 0, 0])),
    "conv2d": ((IMAGE, KERNEL, V[:3]), CONV, None),
    "conv3d": ((IMAGE[..., None], KERNEL[:, :, :1, :1, None]), {"filters": 3}, np.einsum("ncij,oc->noij", IMAGE, KERNEL[:, :, 0, 0])[..., None]),
    "deconv1d": ((IMAGE[:, :, 0], KERNEL[:, :, 0, :1].swapaxes(0, 1)), {}, np.einsum("nci,oc->noi", IMAGE[:, :, 0], KERNEL[:, :, 0, 0])),
    "deconv3d": ((IMAGE[:, :2, :, :, None], np.ones((2, 1, 1, 1, 2), np.float32)), {}, IMAGE[:, :2].sum(1)[:, None, :, :, None].repeat(2, 4)),
    "deconv2d": ((IMAGE, KERNEL[:, :, :1, :1].swapaxes(0, 1)), {"filters": 3}, np.einsum("ncij,oc->noij", IMAGE, KERNEL[:, :, 0, 0])),
    "max_pool_1d": ((X[None],), {"pool_size": [2], "strides": [2]}, X.reshape(1, 4, 3, 2).max(3)),
    "avg_pool_1d": ((X[None],), {"pool_size": [2], "strides": [2]}, X.reshape(1, 4, 3, 2).mean(3)),
    "max_pool_2d": ((IMAGE,), POOL, windows(IMAGE).max((3, 5))),
    "avg_pool_2d": ((IMAGE,), POOL, windows(IMAGE).mean((3, 5))),
    "max_pool_3d": ((IMAGE[..., None],), {"pool_size": [2, 2, 1], "strides": [2, 2, 1]}, windows(IMAGE).max((3, 5))[..., None]),
    "avg_pool_3d": ((IMAGE[..., None],), {"pool_size": [2, 2, 1], "strides": [2, 2, 1]}, windows(IMAGE).mean((3, 5))[..., None]),
    "upsample": ((IMAGE,), {"height_scale": 2.0, "width_scale": 3.0}, IMAGE.repeat(2, 2).repeat(3, 3)),
    "normalization": ((IMAGE, V[:4], W[:4], W[:4], V[:4]), {"axis": 1, "epsilon": 1e-5}, None),
    **{
        f"{before}normalization_add_relu": (
            (IMAGE, 0 * V[:4], 0 * W[:4] + 4, W[:4], V[:4], IMAGE**2),
            {"axis": 1, "epsilon": 0.0},
            (ADDED.clip(0), ADDED > 0, 0 * V[:4], 0 * V[:4] + 0.5),
        )
        for before in ("", "cudnn_fused_")
    },
    "layer_norm": (
        (X, W, V),
        {"begin_norm_axis": 1, "begin_params_axis": 1, "epsilon": 1e-3},
        (normal(X) * W + V, ROW, (X.var(1) + 1e-3) ** -0.5, normal(X)),
    ),
    "layer_norm_grad": ((Y, X, ROW, (X.var(1) + 1e-3) ** -0.5), {"begin_norm_axis": 1}, None),
    "layer_norm_param_grad": ((Y, X, W), {"begin_params_axis": -1}, (Y * W, Y.sum(0), (Y * X).sum(0))),
    "softmax_cross_entropy": ((X, softmax(Y)), {}, (softmax(X), -(softmax(Y) * log_softmax(X)).sum(1))),
    "sparse_softmax_cross_entropy": ((X, IDS), {"depth": 6}, (softmax(X), -log_softmax(X)[range(4), IDS])),
    "sparse_softmax_cross_entropy_ms": ((X, IDS), {"depth": 6}, (softmax(X), -log_softmax(X)[range(4), IDS])),
    "sparse_cross_entropy_ms": ((softmax(X), IDS), {"depth": 6}, -log_softmax(X)[range(4), IDS]),
    "sparse_cross_entropy": ((softmax(X), IDS), {"depth": 6}, -log_softmax(X)[range(4), IDS]),
    "sigmoid_cross_entropy": ((X, ONES), {}, np.log1p(np.exp(-X))),
    "smooth_l1_loss": ((X, Y), {"beta": 1e-6}, Y - X),
    "combined_margin_loss": ((X, IDS), {"m1": 1.0, "m2": 0.0, "m3": 0.25}, (X - 0.25 * np.eye(6)[IDS], np.arccos(X[range(4), IDS]))),
    "ctc_loss": (
        (log_softmax(X[:3, None]), np.array([[1]]), np.array([1]), np.array([1])),
        {"max_target_length": 1, "blank": 0},
        (-log_softmax(X)[:1, 1], [[[*log_softmax(X)[0, :2], -np.inf], [-np.inf] * 3, [-np.inf] * 3]]),
    ),
    "ctc_greedy_decoder": (
        (log_softmax(X[:3, None, ::-1]), np.array([2])),
        {"merge_repeated": False},
        ([[*X[:2, ::-1].argmax(1), 0]], [[-log_softmax(X[:2]).max(1).sum()]]),
    ),
    "distributed_partial_fc_sample": ((Y, np.array([3, 0])), {"num_sample": 4}, ([2, 0], [0, 1, 3, 2], Y[[0, 1, 3, 2]])),
    "min_max_observer": ((X,), {}, ([X.max() / 127], [0])),
    "fake_quantization": ((X, np.float32([0.25]), np.float32([0])), {"quantization_bit": 3}, (np.rint(X / 0.25).clip(-4, 3)) * 0.25),
}
