"""Operations whose gradients the program derives, and the types that compute the same gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from op_type_cases import IMAGE, ONES, V, W, X


@dataclass
class Case:
    """An operation and the types of its gradients: inputs "name=source", attributes, and the input that each output belongs to.

    A source is an input or an output of the operation, or d<output>: the gradient of that output.
    """

    word: str
    inputs: dict[str, Any]
    attributes: dict[str, Any]
    gradients: dict[str, tuple[str, dict[str, Any], dict[str, str]]]
    #: of the operation's outputs, those that losses are made of
    losses: tuple[str, ...] = ()
    #: inputs that are moved, not trained
    moved: tuple[str, ...] = ()


R = np.random.default_rng(4)


def of(*shape: int) -> Any:
    return R.normal(size=shape).astype(np.float32)


def log_softmax(x: Any) -> Any:
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def convolution(n: int, last: bool = False, groups: int = 1, strides: int = 1, dilation: int = 1, transposed: bool = False) -> Case:
    """Return the gradients of a convolution: two types and a sum.

    Those of a transposed convolution are the convolution and the gradient of a filter.
    """
    c, o, size = 4, 6, (7, 5, 4)[:n]
    lead = (c, o // groups) if transposed else (o, c // groups)
    x, w, b = of(2, c, *size), of(*lead, *(3, 2, 2)[:n]), of(o)
    if last:
        x, w = np.moveaxis(x, 1, -1), np.moveaxis(w, 1, -1)
    shared = {"padding_before": [1] * n, "kernel_size": [3, 2, 2][:n], "strides": [strides] * n, "dilation_rate": [dilation] * n, "groups": groups}
    shared["data_format"] = "channels_last" if last else "channels_first"
    slopes = {**shared, "num_spatial_dims": n}
    if transposed:
        behind = {"output_padding": [strides - 1] * n}
        data = {f"conv{n}d": ("in=dout weight=weight", {**shared, "filters": c}, {"out": "in"})}
        weight = {"conv_filter_grad": ("dy=in x=dout", slopes, {"filter_diff": "weight"})}
        return Case(f"deconv{n}d", {"in": x, "weight": w}, {**shared, **behind, "filters": o}, {**data, **weight})
    return Case(
        f"conv{n}d",
        {"in": x, "weight": w, "bias": b},
        {**shared, "filters": o},
        {
            "conv_data_grad": ("dy=dout filter=weight x_like=in", slopes, {"dx": "in"}),
            "conv_filter_grad": ("dy=dout x=in", slopes, {"filter_diff": "weight"}),
            "conv_bias_grad": ("dy=dout", {key: slopes[key] for key in ("num_spatial_dims", "data_format")}, {"bias_diff": "bias"}),
        },
    )


def of_one(word: str, x: Any, attributes: dict[str, Any], gradients: str, name: str = "x", extra_inputs: dict[str, Any] | None = None) -> Case:
    """Return the case of a type <word>_grad with output dx and the operation's attributes."""
    return Case(word, {name: x, **(extra_inputs or {})}, attributes, {f"{word}_grad": (gradients, attributes, {"dx": name})})


FRAME = {"padding": [1, 2, 0, 3]}
SAME = {"padding": "SAME_UPPER", "data_format": "channels_first", "kernel_size": [3, 4], "strides": [2, 1], "dilation_rate": [1, 2]}
LINE = {"pool_size": [3], "strides": [2], "padding": "customized", "padding_before": [1], "padding_after": [1]}
LENGTHS = {"input_lengths": np.array([6, 5, 4]), "target_lengths": np.array([2, 3, 1], np.int32)}
PATHS = "grad_out=dloss log_probs=log_probs targets=targets input_lengths=input_lengths target_lengths=target_lengths loss=loss alpha=alpha"
TRIANGLE = {"diagonal": 1, "tril_scale_value": 0.5, "mask_scale_value": 2.0}
AXIS: dict[str, Any] = {"axis": 1, "epsilon": 1e-3}
CHANNELS = {"moving_mean": V[:4], "moving_variance": W[:4], "gamma": V[:4], "beta": W[:4] - 2}
THROUGH = "x=x dy=dy mean=mean inv_variance=inv_variance gamma=gamma beta=beta reserve_space=reserve_space y=y"
COSINES = np.float32([[1.0000001, 0.2, -0.7], [0.1, 1.0, 0.3], [-0.4, 0.5, -0.2], [0.9, 0.8, -0.1]])
IN_PROGRAMS = {
    "convolution of lines": convolution(1, strides=2),
    "convolution": convolution(2, dilation=2),
    "convolution, channels last": convolution(2, last=True, strides=2),
    "convolution in groups": convolution(2, groups=2),
    "convolution of volumes": convolution(3),
    "deconvolution of lines": convolution(1, transposed=True),
    "deconvolution": convolution(2, transposed=True, strides=2),
    "deconvolution in groups": convolution(2, transposed=True, groups=2, last=True),
    "deconvolution of volumes": convolution(3, transposed=True, strides=2),
    "max pool": of_one("max_pool_1d", IMAGE[..., 0], LINE, "x=x y=y dy=dy"),
    "average pool": of_one("avg_pool_1d", IMAGE[..., 1], LINE, "x=x y=y dy=dy"),
    "reflection": of_one("reflection_pad2d", IMAGE, FRAME, "dy=dy"),
    "replication": of_one("replication_pad2d", IMAGE, FRAME, "dy=dy"),
    "constant": of_one("constant_pad2d", IMAGE, {**FRAME, "floating_value": 2.0}, "dy=dy"),
    "pad": of_one("pad", X, {"padding_before": [1, 0], "padding_after": [0, 2], "floating_constant_value": 3.0}, "dy=dy"),
    "same": of_one("same_padding", IMAGE, SAME, "x_like=x dy=dy"),
    "hardtanh": of_one("hardtanh", 3 * of(4, 6), {"min_val": -2.0, "max_val": 1.0}, "y=out dy=dout", "in"),
    "relu": of_one("ccrelu", of(4, 6), {}, "y=out dy=dout", "in"),
    "power": of_one("scalar_pow", X, {"exponent": 2.5}, "x=in dy=dout", "in"),
    "gelu": of_one("fused_bias_add_gelu", of(4, 6), {"axis": 1}, "a=a b=b dy=dout", "a", {"b": V}),
    "triangle": of_one(
        "fused_tril_scale_softmax_mask_scale", of(4, 6), TRIANGLE, "softmax_y=softmax_y dy=dy mask=mask", "x", {"mask": np.int8(ONES * ([0, 1] * 3))}
    ),
    "attention": Case(
        "fused_self_attention_query_mul_key_and_value",
        {"hidden_states": of(4, 2, 24)},
        {"head_size": 4, "alpha": 0.5},
        {
            "fused_self_attention_query_mul_key_and_value_grad": (
                "query_mul_key_grad=dquery_mul_key value_grad=dvalue hidden_states=hidden_states",
                {"alpha": 0.5},
                {"hidden_states_grad": "hidden_states"},
            )
        },
        losses=("query_mul_key", "value"),
    ),
    "products": Case("broadcast_matmul", {"a": of(2, 4, 6), "b": of(6, 3)}, {}, {"broadcast_matmul_grad_b": ("a=a b=dout", {}, {"out": "b"})}),
    "expansion": Case(
        "expand",
        {"in": of(4, 1)},
        {"in_shape": [4, 1], "out_shape": [2, 4, 6], "stride": [0, 1, 0]},
        {"expand_grad": ("in=dout", {"in_shape": [4, 1], "out_shape": [2, 4, 6], "stride": [0, 1, 0]}, {"out": "in"})},
    ),
    "broadcast": Case(
        "broadcast_like",
        {"x": of(6), "like": X},
        {"broadcast_axes": [0]},
        {"reduce_sum_like": ("x=dy like=x", {"axis": [0]}, {"y": "x"})},
    ),
    "chosen": Case(
        "dim_gather",
        {"input": of(4, 6), "index": np.array([[0, 5], [5, 5], [1, 2], [2, 0]])},
        {"dim": 1},
        {"dim_scatter_add_like": ("like=input input=doutput index=index", {"dim": 1}, {"output": "input"})},
    ),
    "coordinates": Case(
        "gather_nd",
        {"params": of(4, 6), "indices": np.array([[1], [3], [1]])},
        {},
        {"scatter_nd_like": ("like=params updates=dout indices=indices", {}, {"out": "params"})},
    ),
    "margin of angles": of_one(
        "combined_margin_loss",
        X,
        {"m1": 0.9, "m2": 0.4, "m3": 0.2, "depth": 6},
        "dy=dy label=label theta=theta",
        "x",
        {"label": np.array([2, 0, 5, 5])},
    ),
    "margin of cosines": of_one(
        "combined_margin_loss", COSINES, {"m3": 0.35}, "dy=dy label=label theta=theta", "x", {"label": np.array([0, 1, 2, 0], np.int32)}
    ),
    "paths": Case(
        "ctc_loss",
        {"log_probs": log_softmax(of(6, 3, 5)), "targets": np.array([[1, 2, 0], [2, 2, 4], [3, 0, 0]], np.int32), **LENGTHS},
        {"blank": 0, "max_target_length": 3},
        {"ctc_loss_grad": (PATHS, {"blank": 0, "max_target_length": 3, "zero_infinity": False}, {"grad": "log_probs"})},
        losses=("loss",),
    ),
    "classes": Case(
        "sparse_cross_entropy_ms",
        {"prediction": X, "label": np.array([2, 0, 5, 5])},
        {"depth": 6},
        {"sparse_cross_entropy_ms_grad": ("prediction=prediction label=label dy=dout", {"depth": 6}, {"prediction_diff": "prediction"})},
    ),
    **{
        f"{before}normalization": Case(
            f"{before}normalization_add_relu",
            {"x": IMAGE, **CHANNELS, "addend": of(2, 4, 6, 6)},
            {**AXIS, "training": True},
            {
                f"{before}normalization_add_relu_grad": (
                    THROUGH,
                    AXIS,
                    {"gamma_diff": "gamma", "beta_diff": "beta", "dx": "x", "addend_diff": "addend"},
                )
            },
            losses=("y",),
            moved=("moving_mean", "moving_variance"),
        )
        for before in ("", "cudnn_fused_")
    },
}
#: what reaches the outputs
DIFFS = R.normal(size=12000).astype(np.float32)
