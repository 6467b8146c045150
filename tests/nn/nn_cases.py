"""Modules and functions with inputs, written for any library with PyTorch's names.

Inputs and parameters are functions of the case's name.  A kind of input is
    x  numbers with gradients      p  probabilities with gradients      v  positive numbers with gradients
    z  numbers with gradients, many of them 0
    c  numbers    q  probabilities    s  1 or -1    b  truth values    i7  integers below 7    j7  the same, some of them -100
    h  a mask that hides some elements, never the last of a row    H  the same, but all of row 1    u  the elements above the diagonal
    f F  numbers to add, -inf where h and H hide
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

GRADIENTS = "xpvz"


@dataclass(frozen=True)
class Case:
    """A call of `make(nn, F)` with tensors of these kinds and shapes."""

    name: str
    make: Callable[[Any, Any], Callable[..., Any]]
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    train: bool = True

    def random(self, what: str) -> np.random.Generator:
        return np.random.default_rng(zlib.crc32(f"{self.name}:{what}".encode()))

    def arrays(self) -> list[np.ndarray[Any, Any]]:
        return [_values(self.random(str(i)), kind, shape) for i, (kind, shape) in enumerate(self.inputs)]

    def weights(self, i: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """Return the weights of output i in the sum that is the loss."""
        return self.random(f"out{i}").standard_normal(shape)

    def weights_of_gradient(self, name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """Return the weights of a tensor's gradient in the sum for second derivatives."""
        return self.random(f"second/{name}").standard_normal(shape)

    def parameter(self, name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        return self.random(name).uniform(0.2, 1.0, shape) * self.random(name + "+").choice([-1.0, 1.0], shape)


def _values(random: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    if kind[0] in "ij":
        drawn = random.integers(0, int(kind[1:]), shape)
        return np.where(random.random(shape) < 0.3, -100, drawn) if kind[0] == "j" else drawn
    if kind in "pq":
        return random.uniform(0.1, 0.9, shape)
    if kind == "v":
        return random.uniform(0.3, 2.0, shape)
    if kind == "z":
        return random.choice([-1.5, -0.5, 0.0, 0.0, 2.5], shape)
    if kind == "s":
        return random.choice([-1.0, 1.0], shape)
    if kind == "b":
        return random.random(shape) < 0.3
    if kind == "u":
        return ~np.tri(*shape, dtype=bool)
    if kind in "hHfF":
        hidden = random.random(shape) < 0.4
        hidden[..., -1] = False
        if kind in "HF":
            hidden[..., 1, :] = True
        return hidden if kind in "hH" else np.where(hidden, -np.inf, random.standard_normal(shape))
    return random.standard_normal(shape) * 1.5


X, IMAGE = ("x", (5, 4)), ("x", (3, 4, 6, 5))


def _module(name: str, *arguments: Any, **options: Any) -> Callable[[Any, Any], Any]:
    return lambda nn, F: getattr(nn, name)(*arguments, **options)


def _function(name: str, *arguments: Any, **options: Any) -> Callable[[Any, Any], Any]:
    return lambda nn, F: lambda *tensors: getattr(F, name)(*tensors, *arguments, **options)


class _Written:
    """A module that may overwrite a copy of its input, called between that copy and a product."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def __call__(self, x: Any) -> Any:
        y = x * 1.0
        z = self.module(y)
        return y, z * 2.0


ACTIVATIONS = [
    Case(f"{name}{number}", _module(name, **options), (("x", (5, 4, 6)),))
    for number, (name, options) in enumerate(
        [
            *((name, {}) for name in ("ReLU", "ReLU6", "SiLU", "SELU", "LeakyReLU", "ELU", "CELU", "GELU", "Sigmoid", "Tanh", "Softsign")),
            *((name, {}) for name in ("LogSigmoid", "Hardsigmoid", "Hardswish", "Mish", "Tanhshrink", "Softplus", "Hardtanh", "Hardshrink")),
            *((name, {}) for name in ("Softshrink", "GLU", "Identity", "PReLU")),
            ("Softmax", {"dim": 1}),
            ("Softmax", {"dim": 0}),
            ("LogSoftmax", {"dim": -1}),
            ("Softmin", {"dim": 2}),
            ("LeakyReLU", {"negative_slope": 0.3}),
            ("ELU", {"alpha": 1.7}),
            ("CELU", {"alpha": 0.5}),
            ("GELU", {"approximate": "tanh"}),
            ("Softplus", {"beta": 2.0, "threshold": 1.5}),
            ("Hardtanh", {"min_val": -0.3, "max_val": 1.2}),
            ("Threshold", {"threshold": 0.2, "value": -3.0}),
            ("GLU", {"dim": 1}),
            ("PReLU", {"num_parameters": 4}),
            ("Flatten", {}),
            ("Flatten", {"start_dim": 0, "end_dim": 1}),
            ("Unflatten", {"dim": 2, "unflattened_size": (2, 3)}),
        ]
    )
]
AT_ZERO = [
    Case(f"{name}_at_zero", _module(name), (("z", (5, 4)),))
    for name in ("ReLU", "ReLU6", "LeakyReLU", "ELU", "SELU", "CELU", "PReLU", "Softsign", "Hardshrink", "Softplus", "Mish", "GELU", "LogSigmoid")
] + [Case(f"{name}_at_zero", _module(name), (("z", (5, 4)), ("z", (5, 4)))) for name in ("L1Loss", "SmoothL1Loss", "CosineSimilarity")]
WRITTEN = [
    Case(f"{name}_written", lambda nn, F, name=name, options=options: _Written(getattr(nn, name)(*options, inplace=True)), (("x", (5, 4)),))
    for name, options in [
        *((name, ()) for name in ("ReLU", "ReLU6", "SiLU", "SELU", "LeakyReLU", "ELU", "CELU", "Hardswish", "Hardsigmoid", "Mish", "Hardtanh")),
        ("Threshold", (0.2, -3.0)),
    ]
]
LAYERS = [
    Case("linear", _module("Linear", 4, 7), (X,)),
    Case("linear3", _module("Linear", 4, 3, bias=False), (("x", (5, 2, 4)),)),
    Case("linear1", _module("Linear", 4, 3), (("x", (4,)),)),
    Case("bilinear", _module("Bilinear", 4, 3, 2), (X, ("x", (5, 3)))),
    Case("embedding", _module("Embedding", 9, 4, padding_idx=2), (("i9", (5, 6)),)),
    Case("conv1d", _module("Conv1d", 4, 6, 3, stride=2, padding=1), (("x", (3, 4, 9)),)),
    Case("conv2d", _module("Conv2d", 4, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)), (IMAGE,)),
    Case("conv2d_same", _module("Conv2d", 4, 2, (4, 3), padding="same", dilation=2), (("x", (3, 4, 7, 6)),)),
    Case("conv2d_groups", _module("Conv2d", 4, 8, 3, groups=2, bias=False, padding=1), (IMAGE,)),
    Case("conv2d_valid", _module("Conv2d", 4, 2, 2, padding="valid"), (("x", (4, 6, 5)),)),
    Case("conv2d_reflect", _module("Conv2d", 4, 2, 3, padding=(2, 1), padding_mode="reflect"), (IMAGE,)),
    Case("conv2d_circular", _module("Conv2d", 4, 2, 3, padding="same", padding_mode="circular"), (IMAGE,)),
    Case("conv3d", _module("Conv3d", 2, 3, 2, padding=1), (("x", (2, 2, 3, 2, 3)),)),
    Case("conv_transpose1d", _module("ConvTranspose1d", 4, 2, 3, stride=2, padding=1, output_padding=1), (("x", (3, 4, 5)),)),
    Case("conv_transpose2d", _module("ConvTranspose2d", 4, 6, (3, 2), stride=2, padding=(1, 0), output_padding=1, groups=2), (IMAGE,)),
    Case("conv_transpose2d_dilated", _module("ConvTranspose2d", 4, 3, 2, dilation=3, output_padding=2, bias=False), (IMAGE,)),
    Case("conv_transpose3d", _module("ConvTranspose3d", 2, 3, 2), (("x", (2, 2, 2, 3, 2)),)),
]
NORMS = [
    Case("batch_norm1d", _module("BatchNorm1d", 4), (X,)),
    Case("batch_norm1d_length", _module("BatchNorm1d", 4, momentum=0.3), (("x", (5, 4, 3)),)),
    Case("batch_norm2d", _module("BatchNorm2d", 4, eps=1e-3), (IMAGE,)),
    Case("batch_norm2d_mean", _module("BatchNorm2d", 4, momentum=None), (IMAGE,)),
    Case("batch_norm2d_plain", _module("BatchNorm2d", 4, affine=False), (IMAGE,)),
    Case("batch_norm2d_untracked", _module("BatchNorm2d", 4, track_running_stats=False), (IMAGE,), train=False),
    Case("batch_norm2d_eval", _module("BatchNorm2d", 4), (IMAGE,), train=False),
    Case("batch_norm3d", _module("BatchNorm3d", 2), (("x", (3, 2, 2, 2, 3)),)),
    Case("instance_norm1d", _module("InstanceNorm1d", 4), (("x", (3, 4, 6)),)),
    Case("instance_norm2d", _module("InstanceNorm2d", 4, affine=True), (IMAGE,)),
    Case("instance_norm2d_tracked", _module("InstanceNorm2d", 4, track_running_stats=True), (IMAGE,)),
    Case("instance_norm2d_eval", _module("InstanceNorm2d", 4, affine=True, track_running_stats=True), (IMAGE,), train=False),
    Case("group_norm", _module("GroupNorm", 2, 4), (IMAGE,)),
    Case("group_norm_plain", _module("GroupNorm", 4, 4, affine=False), (X,)),
    Case("layer_norm", _module("LayerNorm", 4), (X,)),
    Case("layer_norm_axes", _module("LayerNorm", (6, 5), eps=1e-3), (IMAGE,)),
    Case("layer_norm_whole", _module("LayerNorm", (5, 4), elementwise_affine=False), (X,)),
    Case("layer_norm_unbiased", _module("LayerNorm", 4, bias=False), (X,)),
    Case("rms_norm", _module("RMSNorm", (6, 5)), (IMAGE,)),
]
POOLS = [
    Case("max_pool1d", _module("MaxPool1d", 3, 2, 1), (("x", (3, 4, 8)),)),
    Case("max_pool2d", _module("MaxPool2d", 2), (IMAGE,)),
    Case("max_pool2d_ceil", _module("MaxPool2d", 3, 2, 1, ceil_mode=True), (IMAGE,)),
    Case("max_pool3d", _module("MaxPool3d", 2, 1), (("x", (2, 2, 3, 2, 3)),)),
    Case("avg_pool1d", _module("AvgPool1d", 3, 2, 1), (("x", (3, 4, 8)),)),
    Case("avg_pool2d", _module("AvgPool2d", (3, 2), (2, 1)), (IMAGE,)),
    Case("avg_pool2d_pad", _module("AvgPool2d", 3, 2, 1, ceil_mode=True), (IMAGE,)),
    Case("avg_pool2d_inside", _module("AvgPool2d", 3, 2, 1, count_include_pad=False), (IMAGE,)),
    Case("avg_pool2d_divisor", _module("AvgPool2d", 3, 2, 1, ceil_mode=True, divisor_override=5), (IMAGE,)),
    Case("avg_pool3d", _module("AvgPool3d", 2, 1, 1), (("x", (2, 2, 3, 2, 3)),)),
    Case("adaptive_avg_pool1d", _module("AdaptiveAvgPool1d", 3), (("x", (3, 4, 8)),)),
    Case("adaptive_avg_pool2d", _module("AdaptiveAvgPool2d", (3, None)), (IMAGE,)),
    Case("adaptive_avg_pool2d_one", _module("AdaptiveAvgPool2d", 1), (IMAGE,)),
    Case("adaptive_avg_pool2d_uneven", _module("AdaptiveAvgPool2d", (4, 3)), (IMAGE,)),
    Case("adaptive_max_pool2d", _module("AdaptiveMaxPool2d", (3, 1)), (IMAGE,)),
    Case("adaptive_max_pool2d_uneven", _module("AdaptiveMaxPool2d", (4, 3)), (IMAGE,)),
    Case("upsample", _module("Upsample", scale_factor=2), (IMAGE,)),
    Case("upsample_size", _module("Upsample", size=(7, 4)), (IMAGE,)),
    Case("upsample_bilinear", _module("Upsample", scale_factor=1.5, mode="bilinear"), (IMAGE,)),
    Case("upsample_corners", _module("UpsamplingBilinear2d", size=(9, 3)), (IMAGE,)),
    Case("upsample_linear", _module("Upsample", size=11, mode="linear", align_corners=False), (("x", (3, 4, 6)),)),
    Case("pixel_shuffle", _module("PixelShuffle", 2), (("x", (3, 8, 2, 3)),)),
    Case("pixel_unshuffle", _module("PixelUnshuffle", 2), (("x", (3, 2, 4, 6)),)),
    Case("zero_pad2d", _module("ZeroPad2d", (1, 2, 0, 3)), (IMAGE,)),
    Case("constant_pad1d", _module("ConstantPad1d", (2, -1), 3.5), (("x", (3, 4, 6)),)),
    Case("reflection_pad2d", _module("ReflectionPad2d", (2, 1, 3, 0)), (IMAGE,)),
    Case("replication_pad2d", _module("ReplicationPad2d", 2), (IMAGE,)),
    Case("pad_circular", _function("pad", (2, 1, 0, 3), "circular"), (IMAGE,)),
    Case("pad_axis0", _function("pad", (1, 0, 2, -1)), (X,)),
]
_TWO = (X, ("c", (5, 4)))
LOSSES = [
    *(
        Case(f"{name}_{reduction}", _module(name, reduction=reduction), _TWO)
        for name in ("MSELoss", "L1Loss", "SmoothL1Loss")
        for reduction in ("mean", "sum", "none")
    ),
    Case("smooth_l1_beta", _module("SmoothL1Loss", beta=0.4), _TWO),
    Case("smooth_l1_zero", _module("SmoothL1Loss", beta=0.0), _TWO),
    Case("huber", _module("HuberLoss", delta=0.7), _TWO),
    Case("mse_both", _module("MSELoss"), (X, X)),
    Case("bce", _module("BCELoss"), (("p", (5, 4)), ("q", (5, 4)))),
    Case("bce_weight", _function("binary_cross_entropy", reduction="sum"), (("p", (5, 4)), ("q", (5, 4)), ("q", (4,)))),
    Case("bce_logits", _module("BCEWithLogitsLoss"), (X, ("q", (5, 4)))),
    Case("bce_logits_weights", lambda nn, F: lambda x, t, w, p: F.binary_cross_entropy_with_logits(x, t, w, pos_weight=p), (X, *[("q", (5, 4))] * 3)),
    Case("kl_div", _module("KLDivLoss", reduction="batchmean"), (X, ("q", (5, 4)))),
    Case("kl_div_log", _module("KLDivLoss", log_target=True, reduction="sum"), _TWO),
    Case("soft_margin", _module("SoftMarginLoss"), (X, ("s", (5, 4)))),
    Case("hinge_embedding", _module("HingeEmbeddingLoss", margin=0.8), (X, ("s", (5, 4)))),
    Case("margin_ranking", _module("MarginRankingLoss", margin=0.3), (X, X, ("s", (5, 4)))),
    Case("cosine_embedding", _module("CosineEmbeddingLoss", margin=0.1), (X, X, ("s", (5,)))),
    Case("triplet_margin", _module("TripletMarginLoss", margin=2.0), (X, X, X)),
    Case("triplet_margin_swap", _module("TripletMarginLoss", p=3.0, swap=True, reduction="none"), (X, X, X)),
    Case("gaussian_nll", _module("GaussianNLLLoss", full=True), (X, ("c", (5, 4)), ("v", (5, 4)))),
    Case("poisson_nll", _module("PoissonNLLLoss", full=True), (X, ("v", (5, 4)))),
    Case("cosine_similarity", _module("CosineSimilarity", dim=1), (X, X)),
    Case("pairwise_distance", _module("PairwiseDistance", p=3.0, keepdim=True), (X, X)),
    Case("normalize", _function("normalize"), (X,)),
    Case("normalize_p3", _function("normalize", p=3.0, dim=0), (X,)),
]
_LABELS, _PIXELS = (("x", (6, 5)), ("j5", (6,))), (("x", (3, 5, 2, 2)), ("j5", (3, 2, 2)))
CLASSES = [
    Case("cross_entropy", _module("CrossEntropyLoss"), (("x", (6, 5)), ("i5", (6,)))),
    Case("cross_entropy_sum", _module("CrossEntropyLoss", reduction="sum"), _LABELS),
    Case("cross_entropy_ignored", _module("CrossEntropyLoss"), _LABELS),
    Case("cross_entropy_index", _module("CrossEntropyLoss", ignore_index=2), (("x", (6, 5)), ("i5", (6,)))),
    Case("cross_entropy_none", _module("CrossEntropyLoss", reduction="none"), _PIXELS),
    Case("cross_entropy_pixels", _module("CrossEntropyLoss", label_smoothing=0.2), _PIXELS),
    Case("cross_entropy_vector", _module("CrossEntropyLoss"), (("x", (5,)), ("i5", ()))),
    Case("cross_entropy_weight", lambda nn, F: lambda x, t, w: F.cross_entropy(x, t, w), (*_LABELS, ("q", (5,)))),
    Case("cross_entropy_smooth", lambda nn, F: lambda x, t, w: F.cross_entropy(x, t, w, label_smoothing=0.1), (*_PIXELS, ("q", (5,)))),
    Case("cross_entropy_probabilities", _module("CrossEntropyLoss", label_smoothing=0.1), (("x", (6, 5)), ("p", (6, 5)))),
    Case("cross_entropy_soft_pixels", lambda nn, F: lambda x, t, w: F.cross_entropy(x, t, w), (_PIXELS[0], ("p", (3, 5, 2, 2)), ("q", (5,)))),
    Case("nll", _module("NLLLoss"), _LABELS),
    Case("nll_weight", lambda nn, F: lambda x, t, w: F.nll_loss(x, t, w, reduction="none"), (*_PIXELS, ("q", (5,)))),
]
_QKV = (("x", (3, 2, 4, 6)), ("x", (3, 2, 5, 6)), ("x", (3, 2, 5, 3)))
_SEQUENCE = ("x", (3, 4, 8))


def _attention(**options: Any) -> Callable[[Any, Any], Any]:
    def make(nn: Any, F: Any) -> Any:
        return nn.MultiheadAttention(8, 2, batch_first=True, **options)

    return make


class _Called:
    """A module that is called by `call(module, *tensors)`."""

    def __init__(self, module: Any, call: Callable[..., Any]) -> None:
        self.module = module
        self.call = call

    def __call__(self, *tensors: Any) -> Any:
        return self.call(self.module, *tensors)


def _answered(nn: Any, F: Any) -> Any:
    """Call the function with inverted masks: its masks mark visible keys, and modules' masks mark hidden keys."""
    return lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, ~mask if "bool" in str(mask.dtype) else mask)


def _masked(name: str, **options: Any) -> Callable[[Any, Any], Any]:
    """Return attention with masks; a case named "blind" has fully masked queries and requests no weights."""

    def call(m: Any, x: Any, y: Any, *masks: Any) -> Any:
        masks_by_name = dict(zip(options["masks"], masks, strict=True))
        if "blind" in name:
            return m(x, y, y, need_weights=False, **masks_by_name)[0]
        return m(x, y, y, average_attn_weights=options.get("average", False), **masks_by_name)

    return lambda nn, F: _Called(_attention()(nn, F), call)


_KEYS = ("x", (3, 5, 8))
_PADDING, _MASK = ("key_padding_mask",), ("attn_mask",)
_MASKED: list[tuple[str, dict[str, Any], tuple[Any, ...]]] = [
    ("padding", {"masks": _PADDING, "average": True}, (_SEQUENCE, _KEYS, ("h", (3, 5)))),
    ("padding_numbers", {"masks": _PADDING}, (_SEQUENCE, _KEYS, ("f", (3, 5)))),
    ("padding_blind", {"masks": _PADDING}, (_SEQUENCE, _KEYS, ("H", (3, 5)))),
    ("hidden", {"masks": _MASK}, (_SEQUENCE, _KEYS, ("h", (4, 5)))),
    ("hidden_heads", {"masks": _MASK + _PADDING}, (_SEQUENCE, _KEYS, ("h", (6, 4, 5)), ("h", (3, 5)))),
    ("mixed", {"masks": _MASK + _PADDING}, (_SEQUENCE, _KEYS, ("f", (4, 5)), ("h", (3, 5)))),
    ("added_heads", {"masks": _MASK + _PADDING}, (_SEQUENCE, _KEYS, ("f", (6, 4, 5)), ("f", (3, 5)))),
    ("blind", {"masks": _MASK + _PADDING}, (_SEQUENCE, _KEYS, ("H", (4, 5)), ("h", (3, 5)))),
    ("blind_heads", {"masks": _MASK}, (_SEQUENCE, _KEYS, ("F", (6, 4, 5)))),
    ("unbatched", {"masks": _MASK + _PADDING}, (("x", (4, 8)), ("x", (5, 8)), ("h", (2, 4, 5)), ("f", (5,)))),
]
ATTENTION = [
    Case("sdpa", _function("scaled_dot_product_attention"), _QKV),
    Case("sdpa_causal", _function("scaled_dot_product_attention", is_causal=True, scale=0.5), _QKV),
    Case("sdpa_mask", _function("scaled_dot_product_attention"), (*_QKV, ("c", (4, 5)))),
    Case("attention", lambda nn, F: _Called(_attention()(nn, F), lambda m, x: m(x, x, x)), (_SEQUENCE,)),
    Case("attention_first", lambda nn, F: _Called(nn.MultiheadAttention(8, 4, bias=False), lambda m, x: m(x, x, x)[0]), (_SEQUENCE,)),
    Case(
        "attention_masks",
        lambda nn, F: _Called(_attention()(nn, F), lambda m, x, y, h: m(x, y, y, attn_mask=h, average_attn_weights=False)),
        (_SEQUENCE, ("x", (3, 5, 8)), ("c", (4, 5))),
    ),
    Case(
        "attention_sizes",
        lambda nn, F: _Called(_attention(kdim=3, vdim=5)(nn, F), lambda m, x, y, z: m(x, y, z)[0]),
        (_SEQUENCE, ("x", (3, 5, 3)), ("x", (3, 5, 5))),
    ),
    *(
        Case(f"sdpa_{name}", _answered, (*_QKV, mask))
        for name, mask in [("seen", ("h", (4, 5))), ("blind", ("H", (3, 1, 4, 5))), ("added_blind", ("F", (4, 5)))]
    ),
    *(Case(f"attention_{name}", _masked(name, **options), inputs) for name, options, inputs in _MASKED),
    *(Case(f"{name}_eval", _masked(name, **options), inputs, train=False) for name, options, inputs in _MASKED[:2]),
    Case("encoder", lambda nn, F: nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True), (_SEQUENCE,)),
    *(
        Case(
            f"encoder_{name}",
            lambda nn, F, first=first: _Called(
                nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True, norm_first=first),
                lambda m, x, h, p: m(x, src_mask=h, src_key_padding_mask=p),
            ),
            (_SEQUENCE, masks[0], masks[1]),
        )
        for name, first, masks in [
            ("padded", False, (("f", (4, 4)), ("f", (3, 4)))),
            ("padded_first", True, (("h", (6, 4, 4)), ("h", (3, 4)))),
            ("blind", False, (("u", (4, 4)), ("H", (3, 4)))),
        ]
    ),
    *(
        Case(
            f"encoders_{name}",
            lambda nn, F: _Called(
                nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True), 2),
                lambda m, x, p: m(x, src_key_padding_mask=p),
            ),
            (_SEQUENCE, padding),
            train=name != "eval",
        )
        for name, padding in [("padded", ("h", (3, 4))), ("eval", ("h", (3, 4))), ("numbers", ("f", (3, 4))), ("blind", ("F", (3, 4)))]
    ),
    Case(
        "encoder_first",
        lambda nn, F: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, 0.0, "gelu", norm_first=True), 2, nn.LayerNorm(8)),
        (_SEQUENCE,),
    ),
]
CASES = [*ACTIVATIONS, *AT_ZERO, *WRITTEN, *LAYERS, *NORMS, *POOLS, *LOSSES, *CLASSES, *ATTENTION]
_ATTENTION_TWICE = ("sdpa", "sdpa_causal", "sdpa_mask", "sdpa_blind", "attention", "attention_padding", "attention_blind", "encoder_blind")
#: whose second derivatives are recorded too
TWICE = [
    case
    for case in CASES
    if case in NORMS or case.name in _ATTENTION_TWICE or case.name.startswith(("Softmax", "LogSoftmax", "Softmin", "cross_entropy", "bce"))
]
