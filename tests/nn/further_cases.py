"""Cases of resampling, windows with positions, margin losses and further layers, written for any library; kinds of inputs as in `nn_cases`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nn_cases import Case, _Called, _function, _module

IMAGE, ROWS, LABELS = ("x", (3, 4, 6, 5)), ("x", (5, 4)), ("i4", (5,))
VOLUME = ("x", (2, 2, 3, 4, 3))

POOLS = [
    Case("max_pool1d_indices", _module("MaxPool1d", 3, 2, 1, return_indices=True), (("x", (3, 4, 8)),)),
    Case("max_pool2d_dilated", _module("MaxPool2d", 2, 1, 1, (2, 3), ceil_mode=True), (IMAGE,)),
    Case("max_pool3d_indices", _function("max_pool3d_with_indices", 2, 1), (VOLUME,)),
    Case("adaptive_max_pool2d_indices", _module("AdaptiveMaxPool2d", (4, 3), True), (IMAGE,)),
    Case("max_unpool2d", lambda nn, F: lambda x: nn.MaxUnpool2d(2)(*F.max_pool2d(x, 2, return_indices=True), (3, 4, 6, 5)), (IMAGE,)),
    Case("lp_pool2d", _module("LPPool2d", 3, 2), (IMAGE,)),
    Case("unfold", _module("Unfold", (3, 2), dilation=(1, 2), padding=1, stride=2), (IMAGE,)),
    Case("fold", _module("Fold", (6, 5), 2, padding=1, stride=(2, 3)), (("x", (3, 8, 8)),)),
]
RESAMPLED = [
    Case("bicubic", _module("Upsample", scale_factor=1.6, mode="bicubic"), (IMAGE,)),
    Case("bicubic_antialias", _function("interpolate", (4, 7), mode="bicubic", antialias=True), (IMAGE,)),
    Case("bilinear_antialias", _function("interpolate", (3, 2), mode="bilinear", antialias=True, align_corners=True), (IMAGE,)),
    Case("area", _module("Upsample", size=(4, 3), mode="area"), (IMAGE,)),
    Case("nearest_exact", _module("Upsample", scale_factor=0.7, mode="nearest-exact"), (IMAGE,)),
    Case("affine_grid", _function("affine_grid", (3, 4, 2, 3)), (("x", (3, 2, 3)),)),
    Case("grid_sample", _function("grid_sample", align_corners=False), (IMAGE, ("x", (3, 3, 4, 2)))),
    Case("grid_sample_border", _function("grid_sample", padding_mode="border", align_corners=True), (IMAGE, ("x", (3, 3, 4, 2)))),
    Case("grid_sample_bicubic", _function("grid_sample", "bicubic", "reflection", True), (IMAGE, ("x", (3, 3, 4, 2)))),
    Case("grid_sample_nearest", _function("grid_sample", "nearest", "reflection", False), (VOLUME, ("c", (2, 2, 3, 2, 3)))),
    Case("channel_shuffle", _module("ChannelShuffle", 2), (IMAGE,)),
    Case("circular_pad2d", _module("CircularPad2d", (1, 2, 0, 3)), (IMAGE,)),
    Case("reflection_pad3d", _module("ReflectionPad3d", (1, 0, 2, 1, 0, 1)), (VOLUME,)),
    Case("softmax2d", _module("Softmax2d"), (IMAGE,)),
    Case("local_response_norm", _module("LocalResponseNorm", 3, 0.3, 0.6, 1.5), (IMAGE,)),
]
MARGINS = [
    Case("multi_margin", _module("MultiMarginLoss", 2, 0.7), (ROWS, LABELS)),
    Case("multi_margin_weight", _function("multi_margin_loss", reduction="none"), (ROWS, LABELS)),
    Case("multilabel_margin", _module("MultiLabelMarginLoss"), (ROWS, ("i4", (5, 4)))),
    Case("multilabel_soft_margin", _module("MultiLabelSoftMarginLoss", reduction="sum"), (ROWS, ("q", (5, 4)))),
    Case("triplet_distance", _module("TripletMarginWithDistanceLoss", swap=True, margin=2.0), (ROWS, ROWS, ROWS)),
    Case("pdist", _function("pdist", 3.0), (ROWS,)),
    Case("huber_weight", lambda nn, F: lambda x, t, w: F.huber_loss(x, t, weight=w), (ROWS, ("c", (5, 4)), ("q", (5, 4)))),
    Case("l1_weight", lambda nn, F: lambda x, t, w: F.l1_loss(x, t, weight=w), (ROWS, ("c", (5, 4)), ("q", (5, 4)))),
    Case("size_average", _module("MSELoss", False), (ROWS, ("c", (5, 4)))),
]


def _normalized(name: str, make: Callable[[Any], Any], *path: str, **options: Any) -> Callable[[Any, Any], Any]:
    """Return a module with a weight that is normalized by nn.utils.<path>.<name>."""

    def module(nn: Any, F: Any) -> Any:
        where = nn.utils
        for each in path:
            where = getattr(where, each)
        return getattr(where, name)(make(nn), **options)

    return module


def _attended(m: Any, *tensors: Any) -> Any:
    return m(tensors[0], tensors[1], tensors[1], attn_mask=tensors[2], average_attn_weights=False)


LAYERS = [
    Case("weight_norm", _normalized("weight_norm", lambda nn: nn.Linear(4, 3)), (ROWS,)),
    Case("weight_norm_whole", _normalized("weight_norm", lambda nn: nn.Conv2d(4, 3, 2), "parametrizations", dim=None), (IMAGE,)),
    Case("weight_norm_axis", _normalized("weight_norm", lambda nn: nn.ConvTranspose2d(4, 3, 2), "parametrizations", dim=1), (IMAGE,)),
    Case("embedding_frequency", _module("Embedding", 4, 3, scale_grad_by_freq=True, padding_idx=1), (("i4", (5, 3)),)),
    Case("embedding_norm", _module("Embedding", 4, 3, max_norm=0.8, norm_type=1.0), (("i3", (5, 3)),)),
    Case("instance_norm2d_alone", _module("InstanceNorm2d", 4, affine=True, bias=False), (("x", (4, 6, 5)),)),
    Case(
        "attention_more_keys",
        lambda nn, F: _Called(nn.MultiheadAttention(8, 2, add_bias_kv=True, add_zero_attn=True), _attended),
        (("x", (4, 3, 8)), ("x", (5, 3, 8)), ("h", (4, 5))),
    ),
    Case(
        "adaptive_softmax",
        lambda nn, F: _Called(nn.AdaptiveLogSoftmaxWithLoss(8, 9, [2, 5], 2.0), lambda m, x, t: tuple(m(x, t))),
        (("x", (5, 8)), ("i9", (5,))),
    ),
]
FURTHER = [*LAYERS, *POOLS, *RESAMPLED, *MARGINS]
