"""Data for the laws of layers and losses: changes of valid inputs, and invalid arguments.

The valid inputs and the layers are those of the reference cases (`nn_cases`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from running import PLAIN

Array = np.ndarray[Any, Any]


def floats(arrays: Sequence[Array], dtype: Any, which: slice = slice(None)) -> list[Array]:
    """Return the same arrays, with floats in another type."""
    chosen = range(len(arrays))[which]
    return [a.astype(dtype) if i in chosen and a.dtype.kind == "f" else a for i, a in enumerate(arrays)]


def first(change: Callable[[Array], Array]) -> Callable[[Sequence[Array]], list[Array]]:
    """Return a change of the first input."""
    return lambda arrays: [change(arrays[0]) if arrays[0].ndim else arrays[0], *arrays[1:]]


def last(change: Callable[[Array], Array]) -> Callable[[Sequence[Array]], list[Array]]:
    return lambda arrays: [*arrays[:-1], change(arrays[-1]) if arrays[-1].ndim else arrays[-1]]


def rows(n: int) -> Callable[[Sequence[Array]], list[Array]]:
    """Return a change to n rows of all inputs with as many rows as the first one."""
    return lambda arrays: [a[:n] if a.ndim and a.shape[0] == arrays[0].shape[0] else a for a in arrays]


def holding(*values: float) -> Callable[[Array], Array]:
    def change(array: Array) -> Array:
        changed = array.copy()
        if array.dtype.kind == "f":
            changed.reshape(-1)[: len(values)] = values[: array.size]
        return changed

    return change


#: label -> change of valid float64 inputs
CHANGES: Mapping[str, Callable[[Sequence[Array]], list[Array]]] = {
    "as it is": list,
    "float32": lambda arrays: floats(arrays, np.float32),
    "float16": lambda arrays: floats(arrays, np.float16),
    "the first in float32": lambda arrays: floats(arrays, np.float32, slice(1)),
    "the last in float16": lambda arrays: floats(arrays, np.float16, slice(-1, None)),
    "integers": first(lambda a: a.astype(np.int64)),
    "the last of integers": last(lambda a: np.nan_to_num(a, neginf=-1).astype(np.int32)),
    "truth values": first(lambda a: a > 0),
    "no rows": rows(0),
    "one row": rows(1),
    "other rows": first(lambda a: a[:2]),
    "the last of other rows": last(lambda a: a[:2]),
    "no columns": first(lambda a: a[..., :0]),
    "one column": first(lambda a: a[..., :1]),
    "the last of one column": last(lambda a: a[..., :1]),
    "0-d": first(lambda a: a.reshape(-1)[0]),
    "the last 0-d": last(lambda a: a.reshape(-1)[0]),
    "an axis less": first(lambda a: a[0]),
    "an axis more": first(lambda a: a[None]),
    "two axes more": first(lambda a: a[None, None]),
    "not finite": first(holding(math.nan, math.inf, -math.inf)),
    "the last not finite": last(holding(math.nan, math.inf, -math.inf)),
    **({} if PLAIN else {"large": first(holding(1e300, -1e300, 1e-310))}),  # sums of cancelling values depend on the order
    "labels beyond": last(lambda a: a + 100 if a.dtype.kind == "i" else a),
    "labels below": last(lambda a: np.minimum(a, -7) if a.dtype.kind == "i" else a),
}  # fmt: skip

_IMAGES, _KERNEL, _TABLE = (2, 4, 5, 5), (6, 4, 3, 3), (5, 4)

#: invalid arguments: function, shapes of its tensors, and options, each of which raises an error
REFUSED: Sequence[tuple[str, tuple[tuple[int, ...], ...], Sequence[Mapping[str, Any]]]] = (
    (
        "conv2d",
        (_IMAGES, _KERNEL),
        (
            *({"stride": n} for n in (0, -1, 1.5, (1, 2, 3), "same", None)),
            *({"padding": n} for n in (-1, 1.5, (1,) * 3, "sane", None)),
            *({"dilation": n} for n in (0, -2, 4, 2.0)),
            *({"groups": n} for n in (0, -1, 3, 2, 1.0)),
            {"padding": "same", "stride": 2},
        ),
    ),
    ("conv1d", ((2, 4, 5), (6, 4, 9)), ({},)),
    ("conv1d", ((2, 4, 5), (6, 3, 2)), ({},)),
    ("conv1d", ((2, 4, 5), (6, 4, 2), (5,)), ({},)),
    ("conv3d", (_IMAGES, _KERNEL), ({},)),
    (
        "conv_transpose2d",
        (_IMAGES, (4, 6, 3, 3)),
        (
            *({"output_padding": n} for n in (-1, 1, 0.5)),
            *({"stride": n} for n in (0, -1)),
            *({"padding": n} for n in (-1, 9, 0.5)),
            *({"groups": n} for n in (0, 3)),
            {"dilation": 0},
        ),
    ),
    *(
        (
            name,
            (_IMAGES,),
            (
                *({"kernel_size": n} for n in (0, -1, 9, 1.5, (2, 2, 2), "2", None)),
                *({"kernel_size": 2, "stride": n} for n in (0, -1, 0.5)),
                *({"kernel_size": 2, "padding": n} for n in (-1, 2, 0.5)),
            ),
        )
        for name in ("max_pool2d", "avg_pool2d")
    ),
    ("avg_pool2d", (_IMAGES,), ({"kernel_size": 2, "divisor_override": 0},)),
    *((f"adaptive_{how}_pool2d", (_IMAGES,), [{"output_size": n} for n in (-1, 1.5, (1, 2, 3), "1")]) for how in ("avg", "max")),
    ("batch_norm", (_IMAGES, (4,), (4,)), ({"training": True, "eps": 0.0}, {"training": True, "eps": -1.0}, {"momentum": "much", "training": True})),
    ("batch_norm", (_IMAGES, (3,), (4,)), ({}, {"training": True})),
    ("layer_norm", (_TABLE,), [{"normalized_shape": n} for n in (5, (), (4, 5), -4, "4", 4.0)]),
    ("rms_norm", (_TABLE,), [{"normalized_shape": n} for n in (5, (), (4, 5), -4, "4", 4.0)]),
    ("layer_norm", (_TABLE, (4,)), ({"normalized_shape": 4, "bias": 1.0},)),
    ("group_norm", (_IMAGES,), [{"num_groups": n} for n in (0, -2, 3, 2.0, "2")]),
    ("instance_norm", ((2, 4),), ({},)),
    *(
        (name, (_TABLE, _TABLE), ({"reduction": "middle"}, {"reduction": None}))
        for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "soft_margin_loss", "poisson_nll_loss", "hinge_embedding_loss")
    ),
    *((name, (_TABLE, (3, 4)), ({},)) for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "binary_cross_entropy")),
    ("huber_loss", (_TABLE, _TABLE), ({"delta": 0.0}, {"delta": -1.0})),
    ("smooth_l1_loss", (_TABLE, _TABLE), ({"beta": -1.0},)),
    ("cross_entropy", (_TABLE, _TABLE), ({"label_smoothing": -0.1}, {"label_smoothing": 1.1}, {"reduction": "batchmean"})),
    ("cross_entropy", (_TABLE, (5,)), ({},)),
    ("nll_loss", (_TABLE, (5,)), ({},)),
    ("gaussian_nll_loss", (_TABLE, _TABLE), ({"var": -1.0},)),
    ("softmax", (_TABLE,), [{"dim": n} for n in (2, -3, 0.5, "0")]),
    ("log_softmax", (_TABLE,), [{"dim": n} for n in (2, -3, 0.5)]),
    ("glu", (_TABLE,), ({"dim": 0}, {"dim": 2})),
    ("normalize", (_TABLE,), ({"dim": 2}, {"p": "two"})),
    ("cosine_similarity", (_TABLE, _TABLE), ({"dim": 2},)),
    ("cosine_similarity", (_TABLE, (3, 4)), ({},)),
    ("dropout", (_TABLE,), [{"p": n} for n in (-0.1, 1.1, math.nan, "half")]),
    ("dropout2d", (_IMAGES,), [{"p": n} for n in (-0.1, 1.1)]),
    ("embedding", (_TABLE, (3, 4)), ({},)),
    ("one_hot", (_TABLE,), ({"num_classes": 3},)),
    ("linear", (_TABLE, (3, 5)), ({},)),
    ("linear", (_TABLE, (3, 4), (4,)), ({},)),
    ("bilinear", (_TABLE, _TABLE, (2, 4, 3)), ({},)),
    ("prelu", (_TABLE, (3,)), ({},)),
    (
        "interpolate",
        (_IMAGES,),
        (
            *({"size": n} for n in (0, -1, 1.5, (1, 2, 3))),
            *({"scale_factor": n} for n in (0.0, -1.0, (1.0, 2.0, 3.0), math.nan, math.inf, "2")),
            {},
            {"size": 3, "scale_factor": 2.0},
            {"size": 3, "mode": "cubic"},
            {"size": 3, "align_corners": True},
            {"size": 3, "recompute_scale_factor": True},
            *({"size": 3, "antialias": flag} for flag in (True, "yes")),
            {"size": 3, "mode": "linear"},
        ),
    ),
    ("max_pool2d", (_IMAGES,), [{"kernel_size": 2, "dilation": n} for n in (0, 5, 0.5, (1, 1, 1), None)]),
    ("adaptive_max_pool2d", (_IMAGES,), ({"output_size": 2, "return_indices": "both"},)),
    ("lp_pool2d", (_IMAGES,), ({"norm_type": 0, "kernel_size": 2}, {"norm_type": "two", "kernel_size": 2}, {"norm_type": 2, "kernel_size": 9})),
    ("max_unpool2d", (_IMAGES, _IMAGES), ({"kernel_size": 2},)),
    ("unfold", (_IMAGES,), [{"kernel_size": 2, **more} for more in ({"kernel_size": 9}, {"dilation": 0}, {"padding": -1}, {"stride": 2**40})]),
    ("fold", ((2, 8, 9),), [{"output_size": n, "kernel_size": 2} for n in (5, 1, (4, 4, 4), "4")]),
    ("grid_sample", (_IMAGES, (2, 3, 3, 3)), ({},)),
    ("grid_sample", (_IMAGES, (2, 3, 3, 2)), ({"mode": "linear"}, {"padding_mode": "mirror"}, {"align_corners": "yes"})),
    ("affine_grid", ((2, 2, 3),), [{"size": n} for n in ((2, 3, 4), (3, 3, 4, 4), (2, 3, 4, 4, 4), 4, (2, 3, 0, 4))]),
    ("channel_shuffle", (_IMAGES,), [{"groups": n} for n in (0, 3, 2.0)]),
    ("local_response_norm", (_IMAGES,), [{"size": n} for n in (0, 2**40, 1.5)]),
    ("multi_margin_loss", (_TABLE, (5,)), ({}, {"p": 3}, {"reduction": "batchmean"})),
    ("multilabel_margin_loss", (_TABLE, _TABLE), ({},)),
    ("multilabel_soft_margin_loss", (_TABLE, (5, 3)), ({},)),
    ("triplet_margin_with_distance_loss", (_TABLE,) * 3, ({"margin": 0.0}, {"distance_function": 2}, {"swap": "yes"}, {"reduction": None})),
    ("pdist", (_TABLE,), ({"p": -1.0}, {"p": "two"})),
    ("mse_loss", (_TABLE, _TABLE), ({"size_average": "sum"}, {"reduce": 3})),
    ("gumbel_softmax", (_TABLE,), ({"tau": 0.0}, {"dim": 2})),
    ("rrelu", (_TABLE,), ({"lower": 1.0, "upper": 0.5}, {"lower": "one"})),
    ("alpha_dropout", (_TABLE,), ({"p": 1.5, "training": True},)),
    ("feature_alpha_dropout", ((5,),), ({"training": True},)),
    ("softmax", (_TABLE,), [{"dim": 0, "dtype": n} for n in (int, "float32")]),
    ("pixel_shuffle", (_IMAGES,), [{"upscale_factor": n} for n in (0, -1, 3, 1.5)]),
    ("pixel_unshuffle", (_IMAGES,), [{"downscale_factor": n} for n in (0, -1, 3, 1.5)]),
    (
        "pad",
        (_IMAGES,),
        (
            *({"pad": n} for n in ((1,), (1,) * 10, (-9, 0), (0.5, 1), 1, None)),
            *({"pad": (5, 0), "mode": m} for m in ("reflect", "mirror")),
            {"pad": (6, 0), "mode": "circular"},
            {"pad": (1, 1), "value": "zero"},
        ),
    ),
    ("scaled_dot_product_attention", ((2, 3, 4), (2, 3, 5), (2, 3, 5)), ({},)),
    ("scaled_dot_product_attention", ((2, 3, 4), (2, 3, 4), (2, 2, 4)), ({},)),
    ("scaled_dot_product_attention", ((2, 3, 4),) * 3, ({"dropout_p": 1.5}, {"dropout_p": -0.5})),
    ("triplet_margin_loss", (_TABLE, _TABLE, (3, 4)), ({},)),
    ("threshold", (_TABLE,), ({"threshold": "low", "value": 0.0},)),
    ("softplus", (_TABLE,), ({"beta": 0.0}, {"beta": "one"})),
    ("hardtanh", (_TABLE,), ({"min_val": 1.0, "max_val": -1.0},)),
    ("gelu", (_TABLE,), ({"approximate": "sin"},)),
    *((name, (_TABLE,), ({"alpha": "one"},)) for name in ("elu", "celu")),
    ("celu", (_TABLE,), ({"alpha": 0.0},)),
    ("leaky_relu", (_TABLE,), ({"negative_slope": "steep"}, {"negative_slope": None})),
    *((name, (_TABLE,), ({"lambd": "half"},)) for name in ("hardshrink", "softshrink")),
    ("softshrink", (_TABLE,), ({"lambd": -1.0},)),
)  # fmt: skip
