"""Functions of flow.nn in jobs against NumPy formulas; tests/laws/function_table.py has activations and reduced losses."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from jobflow import nn, random, scope
from jobflow.core.errors import ArgumentError, ConfigError, DtypeError, JobError, ShapeError
from jobflow.distribute import split, with_distribute
from jobflow.legacy import loss_functions
from jobflow.ops.loss import SplitCrossEntropy


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def soft(x: Any, axis: int = -1) -> Any:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


# Activations --------------------------------------------------------------------------------------------------------


def test_softmax_needs_two_axes(run: Any) -> None:
    with pytest.raises(ShapeError, match=r"softmax at test_nn\.py:\d+: the input float64\[3\]"):
        run(lambda t: nn.softmax(t), np.zeros(3))


def test_bias_add(run: Any, rng: Any) -> None:
    x, b, last = rng.standard_normal((2, 3, 4, 5)), rng.standard_normal(3), rng.standard_normal(5)
    np.testing.assert_allclose(run(nn.bias_add, x, b), x + b[:, None, None])
    np.testing.assert_allclose(run(lambda x, b: nn.bias_add(x, b, "NCHW"), x, b), x + b[:, None, None])
    np.testing.assert_allclose(run(lambda x, b: nn.bias_add(x, b, "NHWC"), x, last), x + last)
    with pytest.raises(ShapeError, match="bias"):
        run(nn.bias_add, x, last)
    with pytest.raises(ArgumentError, match=r"data_format must start with NC, .* not 'CHW'"):
        run(lambda x, b: nn.bias_add(x, b, "CHW"), x, b)


# Dropout ------------------------------------------------------------------------------------------------------------


def test_dropout_is_the_identity_in_predict_jobs_and_for_rate_0(run: Any) -> None:
    assert run(lambda t: nn.dropout(t, 0.5) is t, np.ones((2, 2)))
    assert run(lambda t: nn.dropout(t, 0) is t, np.ones((2, 2)), trainable=True)


def test_dropout_masks_and_scales(run: Any) -> None:
    y = run(lambda t: nn.dropout(t, 0.75, name="drop"), np.ones((50, 40)), trainable=True)
    assert set(np.unique(y)) == {0, 4} and abs((y == 0).mean() - 0.75) < 0.05 and run.job.names == ["drop"]


def test_dropout_depends_on_seed_name_and_run(run: Any) -> None:
    def masked(name: str = "drop", seed: int | None = None, **options: Any) -> Any:
        return run(lambda t: nn.dropout(t, 0.5, seed=seed, name=name), np.ones((8, 8)), trainable=True, **options)

    first = masked()
    assert (first == masked()).all() and (masked(seed=3) == masked(seed=3)).all()
    others = (masked(name="other"), masked(seed=3), masked(runs=1))
    assert all((first != other).any() for other in others)

    def in_a_namespace(t: Any) -> Any:
        with scope.using(namespace=("block",)):
            return nn.dropout(t, 0.5, name="drop")

    assert (first != run(in_a_namespace, np.ones((8, 8)), trainable=True)).any() and run.job.names == ["block-drop"]


def test_dropout_checks_its_arguments(run: Any) -> None:
    x = np.ones((2, 2))
    for arguments, message in (((1.0,), "rate must be in .*, not 1.0"), ((0.5, (2, 1)), "noise_shape")):
        with pytest.raises(AssertionError, match=message):
            run(lambda t, a=arguments: nn.dropout(t, *a), x, trainable=True)


def test_random_masks(run: Any) -> None:
    mask = run(lambda t: nn.random_mask_like(t, 0.25, seed=1, name="m"), np.zeros((40, 50), np.float32))
    assert mask.dtype == np.int8 and set(np.unique(mask)) == {0, 1} and abs(mask.mean() - 0.75) < 0.05
    flips = run(lambda: random.CoinFlip(2000, None, 0.3))
    assert flips.dtype == np.int8 and abs(flips.mean() - 0.3) < 0.05
    ones = run(random.bernoulli, np.full((40, 50), 0.9))
    assert ones.dtype == np.float64 and abs(ones.mean() - 0.9) < 0.05


def test_fused_functions(run: Any, rng: Any) -> None:
    x, b = rng.standard_normal((2, 4)), rng.standard_normal(4)
    wide = x + b
    erf = np.vectorize(math.erf)
    np.testing.assert_allclose(run(nn.fused_bias_add_gelu, x, b), wide * (1 + erf(wide / 2**0.5)) / 2, rtol=1e-10)
    np.testing.assert_allclose(run(lambda x, b: nn.fused_bias_add_dropout(x, b, rate=0.5), x, b), wide)
    s = rng.standard_normal((2, 3, 3))
    lower = np.tril(np.ones((3, 3), bool))
    for fill in (-np.inf, -10000.0):
        attention = run(lambda t, f=fill: nn.fused_scale_tril_softmax_dropout(t, 0, f, 0.5, 0.1), s)
        np.testing.assert_allclose(attention, soft(np.where(lower, s / 2, -10000.0)), rtol=1e-10, atol=1e-12)


def test_fused_self_attention(run: Any, rng: Any) -> None:
    s, b, heads, size = 3, 2, 2, 4
    x = rng.standard_normal((s, b, heads * 3 * size))
    q, k, v = x.reshape(s, b, heads, 3, size).transpose(3, 1, 2, 0, 4)
    qk, value = run(lambda t: nn.fused_self_attention_query_mul_key_and_value(t, size, 0.5), x)
    np.testing.assert_allclose(qk, 0.5 * q @ k.swapaxes(-1, -2))
    np.testing.assert_array_equal(value, v)


# Convolution and pooling --------------------------------------------------------------------------------------------


def pads(size: int, kernel: int, stride: int, dilation: int, padding: Any, axis: int) -> tuple[int, int]:
    if isinstance(padding, list):
        return padding[axis] if isinstance(padding[axis], tuple) else (padding[axis],) * 2
    total = max(0, (-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1 - size)
    return {"VALID": (0, 0), "SAME": (total - total // 2, total // 2), "SAME_UPPER": (total // 2, total - total // 2)}[padding]


def windows(x: Any, kernel: Any, strides: Any, padding: Any, dilations: Any = (1, 1), fill: float = 0.0) -> Any:
    """Return [n, c, oh, ow, kh, kw]: the input window of each output position."""
    around = [pads(x.shape[2 + a], kernel[a], strides[a], dilations[a], padding, 2 + a) for a in (0, 1)]
    wide = np.pad(x, [(0, 0), (0, 0), *around], constant_values=fill)
    sizes = [(wide.shape[2 + a] - (kernel[a] - 1) * dilations[a] - 1) // strides[a] + 1 for a in (0, 1)]
    out = np.empty((*x.shape[:2], *sizes, *kernel))
    for i, j, p, q in itertools.product(*map(range, (*sizes, *kernel))):
        out[:, :, i, j, p, q] = wide[:, :, i * strides[0] + p * dilations[0], j * strides[1] + q * dilations[1]]
    return out


def conv(x: Any, w: Any, strides: Any, padding: Any, dilations: Any = (1, 1)) -> Any:
    return np.einsum("nchwpq,ocpq->nohw", windows(x, w.shape[2:], strides, padding, dilations), w)


EXPLICIT = [0, 0, (1, 2), 1]


@pytest.mark.parametrize("padding", ["VALID", "SAME", "same", EXPLICIT])
@pytest.mark.parametrize("strides", [(1, 1), (2, 3)])
def test_conv2d(padding: Any, strides: Any, run: Any, rng: Any) -> None:
    x, w = rng.standard_normal((2, 3, 7, 8)), rng.standard_normal((4, 3, 2, 3))
    expected = conv(x, w, strides, padding.upper() if isinstance(padding, str) else padding)
    y = run(lambda x, w: nn.conv2d(x, w, list(strides), padding, name="c"), x, w)
    np.testing.assert_allclose(y, expected, rtol=1e-9, atol=1e-9)
    assert run.job.names == ["c"]
    last = [0, (1, 2), 1, 0] if padding is EXPLICIT else padding
    z = run(lambda x, w: nn.conv2d(x, w, list(strides), last, "NHWC"), x.transpose(0, 2, 3, 1), w.transpose(0, 2, 3, 1))
    np.testing.assert_allclose(z.transpose(0, 3, 1, 2), expected, rtol=1e-9, atol=1e-9)


def test_same_pads_before_and_compat_pads_after(run: Any) -> None:
    x, w = np.arange(1.0, 5.0).reshape(1, 1, 1, 4), np.ones((1, 1, 1, 2))
    assert run(lambda x, w: nn.conv2d(x, w, 1, "SAME"), x, w).ravel().tolist() == [1, 3, 5, 7]
    assert run(lambda x, w: nn.compat_conv2d(x, w, 1, "SAME"), x, w).ravel().tolist() == [3, 5, 7, 4]


@pytest.mark.parametrize("choice", ["direct", "winograd"])
def test_convolutions_use_the_algorithm_of_the_session(choice: str, run: Any) -> None:
    run(lambda x, w: nn.conv2d(x, w, 1, "SAME"), np.zeros((2, 3, 8, 8)), np.zeros((4, 3, 3, 3)), conv_algorithm=choice)
    assert [op.algorithm for op in run.job.ops if hasattr(op, "algorithm")] == [choice]


def test_dilations_and_groups(run: Any, rng: Any) -> None:
    x, w = rng.standard_normal((2, 4, 7, 8)), rng.standard_normal((6, 2, 2, 3))
    halves = [conv(x[:, 2 * g : 2 * g + 2], w[3 * g : 3 * g + 3], (1, 1), "SAME", (2, 1)) for g in (0, 1)]
    y = run(lambda x, w: nn.conv2d(x, w, 1, "SAME", dilations=[2, 1], groups=2), x, w)
    np.testing.assert_allclose(y, np.concatenate(halves, 1), rtol=1e-9, atol=1e-9)


def test_conv1d_and_conv3d(run: Any, rng: Any) -> None:
    x, w = rng.standard_normal((2, 3, 9)), rng.standard_normal((4, 3, 3))
    expected = conv(x[:, :, None], w[:, :, None], (1, 2), "SAME")[:, :, 0]
    np.testing.assert_allclose(run(lambda x, w: nn.conv1d(x, w, 2, "SAME"), x, w), expected, rtol=1e-9, atol=1e-9)
    deep, kernel = rng.standard_normal((1, 2, 3, 5, 5)), rng.standard_normal((3, 2, 1, 2, 2))
    slices = [conv(deep[:, :, d], kernel[:, :, 0], (1, 1), "VALID") for d in range(3)]
    y = run(lambda x, w: nn.conv3d(x, w, 1, "VALID", "NDHWC"), deep.transpose(0, 2, 3, 4, 1), kernel.transpose(0, 2, 3, 4, 1))
    np.testing.assert_allclose(y.transpose(0, 4, 1, 2, 3), np.stack(slices, 2), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("padding", "size"), [("VALID", (8, 10)), ("SAME", (6, 9))])
def test_conv2d_transpose_is_the_adjoint(padding: str, size: Any, run: Any, rng: Any) -> None:
    w, image = rng.standard_normal((3, 2, 3, 2)), rng.standard_normal((2, 2, *size))
    upper = "SAME_UPPER" if padding == "SAME" else padding
    forward = conv(image, w, (2, 2), upper)
    dy = rng.standard_normal(forward.shape)
    back = run(lambda y, w: nn.conv2d_transpose(y, w, (2, 2, *size), 2, padding), dy, w)
    assert back.shape == image.shape
    np.testing.assert_allclose((forward * dy).sum(), (image * back).sum(), rtol=1e-9)
    last = run(
        lambda y, w: nn.conv2d_transpose(input=y, filters=w, output_shape=[2, *size, 2], strides=[2, 2], padding=padding, data_format="NHWC"),
        dy.transpose(0, 2, 3, 1),
        w.transpose(0, 2, 3, 1),
    )
    np.testing.assert_allclose(last.transpose(0, 3, 1, 2), back, rtol=1e-9, atol=1e-12)


def test_conv2d_transpose_checks_the_output_shape(run: Any) -> None:
    y, w = np.zeros((2, 3, 4, 4)), np.zeros((3, 2, 3, 3))
    for shape, text in (((2, 2, 9, 20), "20 elements along w; .* result in 9 to 10"), ((1, 2, 9, 9), "a batch of 1, but value .* has 2")):
        with pytest.raises(ValueError, match=f"conv2d_transpose at .*{text}"):
            run(lambda y, w, s=shape: nn.conv2d_transpose(y, w, s, 2), y, w)
    with pytest.raises(ArgumentError, match="exactly one of value and input, not both"):
        run(lambda y, w: nn.conv2d_transpose(y, w, (2, 2, 9, 9), 2, input=y), y, w)
    assert run(lambda y, w: nn.conv2d_transpose(y, w, (2, 5, 9, 9), 2), y, w).shape == (2, 2, 9, 9)


@pytest.mark.parametrize("padding", ["VALID", "SAME", [0, 0, (1, 0), (0, 1)]])
def test_pools(padding: Any, run: Any, rng: Any) -> None:
    x = rng.standard_normal((2, 3, 7, 8))
    tall = windows(x, (2, 3), (2, 2), padding, fill=-np.inf).max((-1, -2))
    counts = windows(np.ones_like(x), (2, 3), (2, 2), padding).sum((-1, -2))
    mean = windows(x, (2, 3), (2, 2), padding).sum((-1, -2)) / counts
    np.testing.assert_allclose(run(lambda t: nn.max_pool2d(t, [2, 3], 2, padding, name="p"), x), tall)
    np.testing.assert_allclose(run(lambda t: nn.avg_pool2d(t, [2, 3], 2, padding, "NCHW"), x), mean, rtol=1e-9)
    if isinstance(padding, str):
        y = run(lambda t: nn.max_pool2d(t, [2, 3], 2, padding, "NHWC", True), x.transpose(0, 2, 3, 1))
        np.testing.assert_allclose(y.transpose(0, 3, 1, 2), tall, err_msg="ceil_mode counts for explicit padding only")
    assert run(lambda t: nn.avg_pool3d(t, 2, 2, "VALID"), x[:, None]).shape == (2, 1, 1, 3, 4)
    assert run(lambda t: nn.max_pool3d(t, 1, 2, "SAME"), x[:, None]).shape == (2, 1, 2, 4, 4)


def test_ceil_mode_keeps_a_last_window(run: Any) -> None:
    x = np.arange(25.0).reshape(1, 1, 5, 5)
    still = [0, 0, 0, 0]
    assert run(lambda t: nn.max_pool2d(t, 2, 2, still), x).shape == (1, 1, 2, 2)
    assert run(lambda t: nn.max_pool2d(t, 2, 2, still, ceil_mode=True), x)[0, 0].tolist() == [[6, 8, 9], [16, 18, 19], [21, 23, 24]]


@pytest.mark.parametrize("pool", [nn.max_pool1d, nn.avg_pool1d])
def test_pools_of_one_axis_raise(pool: Any, run: Any) -> None:
    with pytest.raises(NotImplementedError, match="expand_dims"):
        run(lambda t: pool(t, 2, 2, "VALID"), np.zeros((1, 2, 4)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, "SAMEE"), "SAME"),
        ((1, "SAME", "NHCW"), "NCHW or NHWC"),
        ((1, [1, 0, 0, 0]), "batch and channels"),
        ((1, [1, 1]), "each of the 4 axes"),
        ((1, [0, 0, -1, 0]), "non-negative int"),
    ],
)
def test_invalid_arguments_of_convolutions_raise(arguments: Any, message: str, run: Any) -> None:
    with pytest.raises(AssertionError, match=f"conv2d at .*{message}"):
        run(lambda x, w: nn.conv2d(x, w, *arguments), np.zeros((1, 2, 4, 4)), np.zeros((3, 2, 2, 2)))


def test_pixel_shuffle(run: Any, rng: Any) -> None:
    x = rng.standard_normal((2, 12, 3, 2))
    expected = x.reshape(2, 2, 2, 3, 3, 2).transpose(0, 1, 4, 2, 5, 3).reshape(2, 2, 6, 6)
    np.testing.assert_array_equal(run(lambda t: nn.PixelShufflev2(t, 2, 3), x), expected)
    assert run(lambda t: nn.PixelShuffle(t, 2), x).shape == (2, 3, 6, 4)
    with pytest.raises(ShapeError, match="multiple"):
        run(lambda t: nn.PixelShuffle(t, 5), x)


# Normalisation ------------------------------------------------------------------------------------------------------


def normal(x: Any, axes: Any, eps: float) -> Any:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def test_moments(run: Any, rng: Any) -> None:
    x = rng.standard_normal((3, 4, 5))
    mean, variance = run(lambda t: nn.moments(t, [0, 2]), x)
    np.testing.assert_allclose(mean, x.mean((0, 2)))
    np.testing.assert_allclose(variance, x.var((0, 2)))
    assert run(lambda t: nn.moments(t, [0, 1, 2]), x)[0].shape == (1,) and run(lambda t: nn.moments(t, [1], True), x)[0].shape == (3, 1, 5)


def test_batch_normalization_with_passed_statistics(run: Any, rng: Any) -> None:
    x, (mean, offset, scale), variance = rng.standard_normal((2, 3, 4)), rng.standard_normal((3, 3)), rng.uniform(0.5, 2, 3)
    plain = (x - mean[:, None]) / np.sqrt(variance + 1e-5)[:, None]
    np.testing.assert_allclose(run(nn.batch_normalization, x, mean, variance), plain)
    np.testing.assert_allclose(run(nn.batch_normalization, x, mean, variance, offset, scale), plain * scale[:, None] + offset[:, None])
    y = run(lambda *t: nn.batch_normalization(*t, axis=-1), x.swapaxes(1, 2), mean, variance)
    np.testing.assert_allclose(y.swapaxes(1, 2), plain)
    with pytest.raises(ShapeError, match="mean"):
        run(lambda *t: nn.batch_normalization(*t, axis=2), x, mean, variance)


def test_layer_norm(run: Any, rng: Any) -> None:
    x, gamma, beta = rng.standard_normal((3, 4, 5)), rng.standard_normal(5), rng.standard_normal(5)
    np.testing.assert_allclose(run(nn.layer_norm, x), normal(x, (1, 2), 1e-5))
    np.testing.assert_allclose(run(nn.layer_norm, x, gamma, beta), normal(x, (1, 2), 1e-5) * gamma + beta)
    y = run(lambda t, g, b: nn.layer_norm(t, g, b, -1, -1, 1e-3), x, gamma, beta)
    np.testing.assert_allclose(y, normal(x, (2,), 1e-3) * gamma + beta)
    np.testing.assert_allclose(run(lambda t, b: nn.layer_norm(t, None, b, 2), x, beta), normal(x, (2,), 1e-5) + beta)
    with pytest.raises(ShapeError, match="gamma float64\\[5\\]"):
        run(lambda t, g: nn.layer_norm(t, g, begin_params_axis=1), x, gamma)


def test_group_and_instance_norm(run: Any, rng: Any) -> None:
    x = rng.standard_normal((2, 6, 4, 5))
    grouped = normal(x.reshape(2, 3, 40), (2,), 1e-5).reshape(x.shape)
    np.testing.assert_allclose(run(lambda t: nn.GroupNorm(t, 3), x), grouped)
    assert {n: v.type.shape for n, v in run.job.variables.items()} == {"GroupNorm_1_gamma": (1, 6, 1), "GroupNorm_1_beta": (1, 6, 1)}
    np.testing.assert_allclose(run(lambda t: nn.GroupNorm(t, 3, affine=False), x), grouped)
    np.testing.assert_allclose(run(lambda t: nn.InstanceNorm2d(t, 1e-3, name="in"), x), normal(x, (2, 3), 1e-3))
    assert set(run.job.variables) == {"in_gamma", "in_beta"}
    np.testing.assert_allclose(run(nn.InstanceNorm1d, x[..., 0]), normal(x[..., 0], (2,), 1e-5))
    np.testing.assert_allclose(run(nn.InstanceNorm3d, x[:, :, None]), normal(x[:, :, None], (2, 3, 4), 1e-5))
    with pytest.raises(ShapeError, match="6 channels"):
        run(lambda t: nn.GroupNorm(t, 4), x)
    with pytest.raises(ShapeError, match="must have 3 axes"):
        run(nn.InstanceNorm1d, x)


# Losses -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.int8])
def test_sparse_softmax_cross_entropy(dtype: Any, run: Any, rng: Any) -> None:
    x, labels = rng.standard_normal((5, 3)), np.array([0, 2, 1, 1, 0], dtype)
    expected = -np.log(soft(x)[np.arange(5), labels])
    for targets in (labels, labels[:, None]):
        y = run(lambda z, t: nn.sparse_softmax_cross_entropy_with_logits(z, t, name="loss"), targets, x)
        np.testing.assert_allclose(y, expected)
        assert run.job.names == ["loss"]
    np.testing.assert_allclose(run(nn.distributed_sparse_softmax_cross_entropy_with_logits, labels, x), expected)
    np.testing.assert_allclose(run(nn.sparse_cross_entropy, labels, soft(x)), expected)

    def class_split(labels: Any, logits: Any) -> Any:
        return nn.sparse_softmax_cross_entropy_with_logits(labels, with_distribute(logits, split(1)))

    np.testing.assert_allclose(run(class_split, labels, x), expected)
    assert any(isinstance(op, SplitCrossEntropy) for op in run.job.ops)


def test_labels_of_the_wrong_shape_raise(run: Any) -> None:
    loss = nn.sparse_softmax_cross_entropy_with_logits
    with pytest.raises(ShapeError, match=r"labels int32\[4\] .*\[5\] or \[5, 1\].*float64\[5,3\]"):
        run(loss, np.zeros(4, np.int32), np.zeros((5, 3)))
    with pytest.raises(DtypeError, match="labels float64"):
        run(loss, np.zeros(5), np.zeros((5, 3)))


def test_dense_cross_entropies(run: Any, rng: Any) -> None:
    x, t = rng.standard_normal((4, 3)), soft(rng.standard_normal((4, 3)))
    np.testing.assert_allclose(run(nn.softmax_cross_entropy_with_logits, t, x), -(t * np.log(soft(x))).sum(1))
    hard = (x > 0.3).astype(np.int32)
    expected = -(hard * np.log(sigmoid(x)) + (1 - hard) * np.log(1 - sigmoid(x)))
    np.testing.assert_allclose(run(nn.sigmoid_cross_entropy_with_logits, hard, x), expected)
    with pytest.raises(ShapeError, match="labels"):
        run(nn.softmax_cross_entropy_with_logits, t[:, :2], x)
    with pytest.raises(ShapeError, match="labels"):
        run(nn.sigmoid_cross_entropy_with_logits, hard[:2], x)


def logistic(x: Any, t: Any, p: Any = 1.0) -> Any:
    return -(p * t * np.log(sigmoid(x)) + (1 - t) * np.log(1 - sigmoid(x)))


@pytest.mark.parametrize("word", ["L1Loss", "MSELoss", "BCEWithLogitsLoss", "KLDivLoss", "MarginRankingLoss", "TripletMarginLoss"])
def test_unknown_reductions_raise_with_the_closest_match(word: str, run: Any) -> None:
    tensors = np.zeros((3 if word in ("MarginRankingLoss", "TripletMarginLoss") else 2, 4, 3))
    with pytest.raises(ConfigError, match=f'{word} at .*did you mean "mean"'):
        run(lambda *t: getattr(nn, word)(*t, reduction="meen"), *tensors)


def test_options_of_losses(run: Any, rng: Any) -> None:
    x, t, w = rng.standard_normal((4, 3)), rng.uniform(0, 1, (4, 3)), rng.uniform(0, 2, (4, 3))
    p, pos = sigmoid(x), rng.uniform(0.5, 2, 3)
    expected = w * -(t * np.log(p) + (1 - t) * np.log(1 - p))
    np.testing.assert_allclose(run(lambda x, t, w: nn.BCELoss(x, t, w, "none"), p, t, w), expected)
    np.testing.assert_allclose(run(nn.BCEWithLogitsLoss, x, t, w, pos), [(w * logistic(x, t, pos)).mean()])
    np.testing.assert_allclose(run(lambda x, t: nn.KLDivLoss(x, t, True, "none"), x, np.log(t)), t * (np.log(t) - x))
    ranking = run(lambda a, b, t: nn.MarginRankingLoss(a, b, t, 0.5, "none"), x, w, np.sign(t - 0.5))
    np.testing.assert_allclose(ranking, np.maximum(0, -np.sign(t - 0.5) * (x - w) + 0.5))
    with pytest.raises(NotImplementedError, match="swap"):
        run(lambda a: nn.TripletMarginLoss(a, a, a, swap=True), x)
    with pytest.raises(ShapeError, match=r"input float64\[4,3\], target float64\[4,2\]"):
        run(nn.MSELoss, x, x[:, :2])


def test_large_logits_do_not_overflow(run: Any) -> None:
    loss = run(lambda x, t: nn.BCEWithLogitsLoss(x, t, reduction="none"), [-1000.0, 1000.0], [1.0, 0.0])
    assert loss.tolist() == [1000, 1000]


def test_smooth_l1(run: Any) -> None:
    from_two = run(lambda p, t: loss_functions.smooth_l1_loss(p, t, 2.0), [0.0, 1.0, -5.0], [0.0, 0.0, 0.0])
    assert from_two.tolist() == [0, 0.25, 4]


def test_errors_outside_a_job() -> None:
    with pytest.raises(JobError, match="outside a job"):
        nn.dropout(None, 0.5)  # type: ignore[arg-type]
