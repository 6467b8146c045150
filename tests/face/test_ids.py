"""Ids, sampled classes, sequence losses and quantized values in jobs, on several devices and in both views."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp

CTC = np.load(Path(__file__).parents[1] / "references" / "ctc.npz")
TARGETS, FRAMES, LABELS = np.array([[1, 2, 2], [3, 1, 0], [2, 0, 0]]), np.array([6, 5, 2]), np.array([3, 2, 1])
FLAT = np.array([1, 2, 2, 3, 1, 2])


def resting() -> Any:
    return flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.0]), momentum=0)


def fresh(devices: int, view: str = "consistent") -> Any:
    """Start a session; return the configuration of its jobs."""
    flow.clear_default_session()
    flow.config.cpu_device_num(devices)
    config = flow.function_config()
    config.default_logical_view(flow.scope.consistent_view() if view == "consistent" else flow.scope.mirrored_view())
    return config


@pytest.fixture(autouse=True)
def _clear() -> Any:
    yield
    flow.clear_default_session()


@pytest.mark.parametrize(("devices", "view"), [(1, "consistent"), (3, "consistent"), (2, "mirrored")])
def test_ctc_loss_equals_pytorch(devices: int, view: str) -> None:
    """Compare losses in all three reductions and the gradients of logits and log-probabilities; targets as rows and concatenated."""
    gradients: dict[str, Any] = {}

    @flow.global_function("train", fresh(devices, view))
    def job(
        t: tp.Numpy.Placeholder((1, 3, 3), flow.int64),  # type: ignore[valid-type]
        flat: tp.Numpy.Placeholder((1, 6), flow.int64),  # type: ignore[valid-type]
    ) -> tp.Bundle[tp.Numpy]:
        x = flow.get_variable("x", (6, 3, 4), flow.float64, flow.constant_initializer(0, flow.float64))
        logs = flow.nn.logsoftmax(x)
        frames, labels = (flow.concat([flow.constant(n, flow.int32, [1]) for n in each]) for each in (FRAMES.tolist(), LABELS.tolist()))
        flow.watch_diff(x, lambda d: gradients.update(dx=d.numpy()))
        flow.watch_diff(logs, lambda d: gradients.update(dlogs=d.numpy()))
        rows = flow.squeeze(t, [0])
        losses = {each: flow.ctc_loss(logs, rows, frames, labels, 0, each, name=each) for each in ("none", "sum", "mean")}
        resting().minimize(losses["mean"])
        return {**losses, "flat": flow.ctc_loss(logs, flow.squeeze(flat, [0]), frames, labels)}

    flow.load_variables({"x": CTC["x"]})
    losses = job(TARGETS[None], FLAT[None])
    copies = devices if view == "mirrored" else 1
    for word in ("none", "sum", "mean"):
        np.testing.assert_allclose(losses[word].reshape(copies, -1)[0], CTC[word].reshape(-1), rtol=1e-12)
    np.testing.assert_allclose(losses["flat"][0], CTC["mean"], rtol=1e-12)
    for word in ("dx", "dlogs"):
        np.testing.assert_allclose(gradients[word][: len(CTC[word])], copies * CTC[word] if word == "dx" else CTC[word], atol=1e-12)


def test_ctc_loss_is_infinite_without_a_path_and_checks_arguments(run: Any) -> None:
    logs, short = np.log(np.full((6, 3, 4), 0.25)), np.array([6, 3, 0])
    assert np.isinf(run(lambda *arguments: flow.ctc_loss(*arguments, reduction="none"), logs, TARGETS, short, LABELS)).tolist() == [
        False,
        False,
        True,
    ]
    assert run(lambda *arguments: flow.ctc_loss(*arguments, 0, "none", True), logs, TARGETS, short, LABELS)[2] == 0
    for arguments, message in (
        ((logs, TARGETS, FRAMES + 1, LABELS), "input length 7"),
        ((logs, TARGETS, FRAMES, LABELS + 1), "target length 4"),
        ((logs, TARGETS + 1, FRAMES, LABELS), "label 4"),
        ((logs, TARGETS[:2], FRAMES, LABELS), "log_probs"),
        ((logs, TARGETS * 1.0, FRAMES, LABELS), "integers"),
    ):
        with pytest.raises(flow.JobflowError, match=message):
            run(lambda *x: flow.ctc_loss(*x), *arguments)


#: the likeliest class of each frame of three samples, of which the last class, 3, is the blank
SPOKEN = np.array([[1, 1, 3, 1, 2, 2], [3, 0, 0, 3, 3, 0], [2, 2, 1, 1, 1, 3]])


@pytest.mark.parametrize(("devices", "view"), [(1, "consistent"), (3, "consistent"), (2, "consistent"), (2, "mirrored")])
def test_greedy_decoding_of_frames(devices: int, view: str) -> None:
    """Leave out blanks, and repeated classes on request; sums and gradients cover the frames of each sample."""
    gradients: dict[str, Any] = {}
    scores = np.random.default_rng(4).uniform(-3, -2, (6, 3, 4))
    np.put_along_axis(scores, SPOKEN.T[:, :, None], np.random.default_rng(5).uniform(-2, -1, (6, 3, 1)), 2)

    @flow.global_function("train", fresh(devices, view))
    def job() -> tp.Bundle[tp.Numpy]:
        x = flow.get_variable("x", (6, 3, 4), flow.float64, flow.constant_initializer(0, flow.float64))
        lengths = flow.concat([flow.constant(n, flow.int32, [1]) for n in (6, 6, 4)])
        flow.watch_diff(x, lambda d: gradients.update(dx=d.numpy()))
        merged, total = flow.nn.ctc_greedy_decoder(x, lengths)
        every, _ = flow.nn.ctc_greedy_decoder(x, flow.cast(lengths, flow.int64), merge_repeated=False, name="every")
        resting().minimize(total * flow.constant(2.0, flow.float64, [1]))
        return merged, every, total

    flow.load_variables({"x": scores})
    merged, every, total = job()
    copies = devices if view == "mirrored" else 1
    assert merged.tolist() == [[1, 1, 2, 0, 0, 0], [0, 0, 0, 0, 0, 0], [2, 1, 0, 0, 0, 0]] * copies
    assert every.tolist() == [[1, 1, 1, 2, 2, 0], [0, 0, 0, 0, 0, 0], [2, 2, 1, 1, 0, 0]] * copies
    assert (merged.dtype, every.dtype, total.dtype) == (np.int32, np.int64, np.float64)
    inside = np.arange(6)[:, None] < np.array([6, 6, 4])
    np.testing.assert_allclose(total, np.tile(-(scores.max(2) * inside).sum(0)[:, None], (copies, 1)), rtol=1e-12)
    slope = -2.0 * copies * (np.arange(4) == SPOKEN.T[:, :, None]) * inside[:, :, None]
    np.testing.assert_allclose(gradients["dx"][:6], slope, atol=1e-12)


def test_greedy_decoding_checks_its_arguments(run: Any) -> None:
    scores, lengths = np.zeros((6, 3, 4)), np.array([6, 0, 3])
    assert not run(lambda *arguments: flow.nn.ctc_greedy_decoder(*arguments)[1], scores, np.zeros(3, np.int64)).any()
    for arguments, message in (
        ((scores, lengths + 1), "input length 7"),
        ((scores, lengths - 1), "input length -1"),
        ((scores[:, :2], lengths), r"ctc_greedy_decoder at .*test_ids.py:\d+: log_probs"),
        ((scores, lengths * 1.0), "integers"),
        ((scores[:, :, :0], lengths), "at least one class"),
        ((scores, lengths, "no"), "merge_repeated is 'no' of type str"),
    ):
        with pytest.raises(flow.JobflowError, match=message):
            run(lambda x, n, arguments=arguments: flow.nn.ctc_greedy_decoder(x, n, *arguments[2:])[0], *arguments[:2])


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_sampled_classes(devices: int) -> None:
    """All labels are among the samples; other samples and their weights differ in every run and receive the gradient."""
    gradients: dict[str, Any] = {}

    @flow.global_function("train", fresh(devices))
    def job(label: tp.Numpy.Placeholder((6,), flow.int32)) -> tp.Bundle[tp.Numpy]:  # type: ignore[valid-type]
        w = flow.get_variable("w", (11, 3), initializer=flow.random_normal_initializer(), random_seed=1, distribute=flow.distribute.split(0))
        flow.watch_diff(w, lambda dw: gradients.update(dw=dw.numpy()))
        mapped, sampled, weight = flow.distributed_partial_fc_sample(w, label, 8, name="fc")
        resting().minimize(flow.math.reduce_sum(weight * weight))
        return mapped, sampled, weight, w

    label, drawn = np.array([0, 3, 10, 0, 7, 3], np.int32), set()
    for _ in range(3):
        mapped, sampled, weight, w = job(label)
        assert (sampled[mapped] == label).all() and len(set(sampled)) == 8
        np.testing.assert_array_equal(weight, w[sampled])
        expected = np.zeros_like(w)
        expected[sampled] = 2 * weight
        np.testing.assert_allclose(gradients["dw"], expected, rtol=1e-6)
        drawn.add(tuple(sampled))
    assert len(drawn) > 1
    if devices > 1:
        with pytest.raises(flow.ArgumentError, match="more distinct labels"):
            job(np.arange(6, dtype=np.int32))


@pytest.mark.parametrize("devices", [1, 2])
def test_ordinal_numbers_of_ids(devices: int) -> None:
    """Numbers persist between runs; a full table raises at the next id and keeps its contents."""

    @flow.global_function("predict", fresh(devices))
    def job(x: tp.Numpy.Placeholder((2, 2), flow.int64)) -> tp.Numpy:  # type: ignore[valid-type]
        return flow.layers.categorical_ordinal_encoder(x, 5, name="enc")

    assert job(np.array([[9, -4], [9, 14]])).tolist() == [[1, 2], [1, 3]]
    assert job(np.array([[14, 0], [9, 3]])).tolist() == [[3, 4], [1, 5]]
    with pytest.raises(flow.ArgumentError, match="number of distinct ids 6"):
        job(np.array([[14, 100], [9, 3]]))
    assert job(np.array([[3, 0], [9, 3]])).tolist() == [[5, 4], [1, 5]]
    assert {"enc-Table", "enc-Size"} == set(flow.get_all_variables())


@pytest.mark.parametrize("devices", [1, 2])
def test_quantized_values(devices: int) -> None:
    """Compare the scales of all schemes, per tensor and per row; moving scales are variables, and rounding passes gradients through."""
    x = np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32)
    gradients: dict[str, Any] = {}
    quantization = flow.quantization

    @flow.global_function("train", fresh(devices))
    def job(x: tp.Numpy.Placeholder((4, 6))) -> tp.Bundle[tp.Numpy]:  # type: ignore[valid-type]
        w = flow.get_variable("w", (4, 6), initializer=flow.ones_initializer())
        y = x * w
        flow.watch_diff(y, lambda dy: gradients.update(dy=dy.numpy()))
        scales = {
            "symmetric": quantization.min_max_observer(y, 8),
            "affine": quantization.min_max_observer(y, 8, "affine", per_layer_quantization=False),
            "cambricon": quantization.min_max_observer(y, 8, "symmetric", "cambricon"),
            "moving": quantization.moving_average_min_max_observer(y, 8, "affine", momentum=0.5, name="moving"),
        }
        builder = flow.user_op_builder("by_type").Op("moving_average_min_max_observer").Attr("training", True).Attr("momentum", 0.5)
        builder = builder.Attr("quantization_scheme", "affine").Attr("stop_update_after_iters", 5).Input("in", [y])
        for key, dtype in (("moving_max", flow.float), ("moving_min", flow.float), ("current_train_step", flow.int64)):
            builder.Input(key, [flow.get_variable(key, (1,), dtype, flow.zeros_initializer(dtype), trainable=False)])
        scales["by_type"] = builder.Output("scale").Output("zero_point").Build().InferAndTryRun().RemoteBlobList()
        rounded = {
            "symmetric": quantization.fake_quantization(y, *scales["symmetric"]),
            "affine": quantization.fake_quantization(y, *scales["affine"], 8, "affine"),
            "cambricon": quantization.fake_quantization(y, *scales["cambricon"], 8, "symmetric", "cambricon"),
        }
        resting().minimize(rounded["affine"])
        return scales, rounded

    scales, rounded = job(x)
    top, low, high = np.abs(x).max(), x.min(1), x.max(1)
    np.testing.assert_allclose(scales["symmetric"][0], [top / 127], rtol=1e-6)
    scale = (high - low) / 255
    np.testing.assert_allclose(scales["affine"][0], scale, rtol=1e-6)
    np.testing.assert_array_equal(scales["affine"][1], -np.rint(low / scale))
    np.testing.assert_array_equal(scales["cambricon"][0], [np.floor(np.log2(top)) - 6])
    for word, step in (("symmetric", top / 127), ("affine", scale.max()), ("cambricon", 2 ** scales["cambricon"][0][0])):
        assert np.abs(rounded[word] - x).max() <= 0.51 * step + (word == "cambricon") * step, word
    np.testing.assert_array_equal(gradients["dy"], np.ones_like(x))
    np.testing.assert_allclose(scales["moving"][0], [(x.max() - x.min()) / 255], rtol=1e-6)
    again, _ = job(2 * x)
    np.testing.assert_allclose(again["moving"][0], [1.5 * (x.max() - x.min()) / 255], rtol=1e-6)
    assert [again["by_type"][i].tolist() for i in (0, 1)] == [again["moving"][i].tolist() for i in (0, 1)]
    assert flow.get_all_variables()["moving-current_train_step"].numpy().tolist() == [2]


@pytest.mark.parametrize(("devices", "options"), [(1, {}), (2, {"symmetric": False, "per_channel_weight_quantization": True})])
def test_quantization_aware_training(devices: int, options: dict[str, bool]) -> None:
    """Products take rounded values: weights by their own scale, inputs by the scale of the runs; gradients use the rounded values."""
    rng = np.random.default_rng(2)
    x, w = rng.normal(size=(4, 6)).astype(np.float32), rng.normal(size=(3, 6)).astype(np.float32)
    config = fresh(devices)
    config.enable_qat()
    config.qat.moving_min_max_momentum(0.5)
    for word, value in options.items():
        getattr(config.qat, word)(value)

    def rounded(x: Any, top: Any, low: Any) -> Any:
        if options:
            scale = (top - low) / 255
            zero = -np.rint(low / scale)
            return (np.clip(np.rint(x / scale + zero), 0, 255) - zero) * scale
        return np.clip(np.rint(x / (top / 127)), -128, 127) * (top / 127)

    def product(x: Any) -> Any:
        weight = flow.get_variable("w", (3, 6), initializer=flow.zeros_initializer())
        return flow.matmul(x, weight, transpose_b=True)

    @flow.global_function("train", config)
    def train(x: tp.Numpy.Placeholder((4, 6))) -> tp.Numpy:  # type: ignore[valid-type]
        y = product(x)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [12.0]), momentum=0).minimize(y)
        return y

    @flow.global_function("predict", config)
    def predict(x: tp.Numpy.Placeholder((4, 6))) -> tp.Numpy:  # type: ignore[valid-type]
        return product(x)

    flow.load_variables({"w": w})
    with pytest.raises(
        flow.ArgumentError,
        match=r"quantization in job 'predict' at .*: .*'w-quantization_0-moving_max', .* are 0; run a train job with the same layers first",
    ):
        predict(x)
    by_row = rounded(w, w.max(1, keepdims=True), w.min(1, keepdims=True)) if options else rounded(w, np.abs(w).max(), 0)
    largest = (x.max(), x.min()) if options else (np.abs(x).max(), 0)
    np.testing.assert_allclose(train(x), rounded(x, *largest) @ by_row.T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(flow.get_all_variables()["w"].numpy(), w - rounded(x, *largest).sum(0), rtol=1e-4, atol=1e-5)
    flow.load_variables({"w": w})
    train(2 * x)
    flow.load_variables({"w": w})
    np.testing.assert_allclose(predict(x), rounded(x, *(1.5 * each for each in largest)) @ by_row.T, rtol=1e-4, atol=1e-5)


def test_quantization_of_some_layers() -> None:
    """A predict job with some of the layers, in another order, uses their moving averages."""
    x = np.random.default_rng(3).normal(size=(4, 6)).astype(np.float32)
    config = fresh(1)
    config.enable_qat()

    def product(x: Any, name: str) -> Any:
        return flow.matmul(x, flow.get_variable(name, (6, 6), initializer=flow.random_normal_initializer()))

    @flow.global_function("train", config)
    def train(x: tp.Numpy.Placeholder((4, 6))) -> tuple[tp.Numpy, tp.Numpy]:  # type: ignore[valid-type]
        first, second = product(flow.math.relu(x), "first"), product(x * 100.0, "second")
        resting().minimize(first + second)
        return first, second

    @flow.global_function("predict", config)
    def predict(x: tp.Numpy.Placeholder((4, 6))) -> tuple[tp.Numpy, tp.Numpy]:  # type: ignore[valid-type]
        second, first = product(x * 100.0, "second"), product(flow.math.relu(x), "first")
        return first, second

    for trained, predicted in zip(train(x), predict(x), strict=True):
        np.testing.assert_allclose(predicted, trained, rtol=1e-5)


@pytest.mark.parametrize(
    ("word", "value", "message"),
    [
        ("target_backend", "cambrikon", 'one of cambricon, tensorrt, ; got .cambrikon.; did you mean "cambricon"'),
        ("moving_min_max_stop_update_after_iters", 0, "at least 1; got 0"),
        ("moving_min_max_momentum", 1.5, "at most 1; got 1.5"),
        ("moving_min_max_momentum", float("nan"), "at least 0; got nan"),
    ],
)
def test_quantization_options_check_their_values(word: str, value: Any, message: str) -> None:
    with pytest.raises(flow.ConfigError, match=message):
        getattr(flow.function_config().qat, word)(value)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("devices", [1, 2])
def test_quantization_of_constant_tensors(devices: int, symmetric: bool) -> None:
    """Check scales of a layer that begins with zeros and of an input of ones."""
    config = fresh(devices)
    config.enable_qat()
    config.qat.symmetric(symmetric)

    def product(x: Any) -> tuple[Any, Any]:
        zeros = flow.get_variable("zeros", (3, 6), initializer=flow.zeros_initializer())
        halves = flow.get_variable("halves", (3, 6), initializer=flow.constant_initializer(-0.5))
        return flow.matmul(x, zeros, transpose_b=True), flow.matmul(x, halves, transpose_b=True)

    @flow.global_function("train", config)
    def train(x: tp.Numpy.Placeholder((4, 6))) -> tuple[tp.Numpy, tp.Numpy]:  # type: ignore[valid-type]
        zeros, halves = product(x)
        resting().minimize(zeros)
        return zeros, halves

    @flow.global_function("predict", config)
    def predict(x: tp.Numpy.Placeholder((4, 6))) -> tuple[tp.Numpy, tp.Numpy]:  # type: ignore[valid-type]
        return product(x)

    for value in (0.0, 2.0):
        for job in (train, predict):
            zeros, halves = job(np.full((4, 6), value, np.float32))
            assert (zeros == 0).all()
            np.testing.assert_allclose(halves, np.full((4, 3), -3 * value), rtol=1e-2)


def test_assignments_of_experimental() -> None:
    """Slices of variables, and whole variables, are written at the end of the run."""

    @flow.global_function("predict", fresh(2))
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:  # type: ignore[valid-type]
        v, w, u = (flow.get_variable(name, (4, 3), initializer=flow.zeros_initializer()) for name in "vwu")
        flow.experimental.logical_slice_assign(v, x, [(1, 4, 2)])
        ref, value = flow.experimental.ssp_variable_proxy(w)
        flow.experimental.eager_assign_121(ref, value + 1)
        part = flow.experimental.logical_slice(x.with_distribute(flow.distribute.split(0)), [(1, 2, 1), (0, 1, 1)])
        return flow.system.assign(u, v + 2) + (part - 1)

    x = np.ones((2, 3), np.float32)
    assert not job(x).any()
    after = {name: variable.numpy()[:, 0].tolist() for name, variable in flow.get_all_variables().items()}
    assert after == {"v": [0, 1, 0, 1], "w": [1] * 4, "u": [2] * 4}
    job(x)
    assert flow.get_all_variables()["u"].numpy()[:, 0].tolist() == [2, 3, 2, 3]


@pytest.mark.parametrize(("devices", "view"), [(1, "consistent"), (2, "consistent"), (2, "mirrored")])
def test_a_size_selects_the_number_of_rows(devices: int, view: str) -> None:
    """The consistent view takes one size, the mirrored view one per device; the job may compute it."""

    @flow.global_function("predict", fresh(devices, view))
    def job(x: tp.Numpy.Placeholder((8, 3)), n: tp.Numpy.Placeholder((devices if view == "mirrored" else 1,), flow.int32)) -> tp.Bundle[tp.ListNumpy]:  # type: ignore[valid-type]
        some = flow.sync_dynamic_resize(x, n + 1)
        v = flow.get_variable("v", (1,), flow.int32, flow.constant_initializer(1, flow.int32))
        assert some.shape == x.shape, "the largest there may be"
        return [some * 2, flow.sync_dynamic_resize(x, v)]

    x = np.arange(1.0, 25, dtype=np.float32).reshape(8, 3)
    for sizes in ([1, 3], [0, 2]) if view == "mirrored" else ([1], [7]):
        some, later = job(x, np.int32(sizes))
        for part, rows, size in zip(some, np.split(x, len(sizes)), sizes, strict=True):
            np.testing.assert_array_equal(part, 2 * rows[: size + 1])
        assert [len(each) for each in later] == [1] * len(sizes) and later[0].tolist() == [x[0].tolist()]
    with pytest.raises(flow.ArgumentError, match=r"size 10 .*is outside"):
        job(x, np.int32([9] * len(sizes)))


def test_a_reshape_with_an_open_axis(run: Any) -> None:
    x = np.arange(1.0, 13).reshape(4, 3)
    assert run(lambda x: flow.dynamic_reshape(x, [-1, 4]), x).shape == (3, 4)


def test_transposed_convolution_takes_pytorch_arguments(run: Any) -> None:
    """Return the adjoint of the convolution in the published sizes."""
    rng = np.random.default_rng(0)
    x, w, image = rng.normal(size=(2, 3, 4, 5)), rng.normal(size=(3, 2, 3, 3)), rng.normal(size=(2, 2, 8, 9))
    y = run(lambda x, w: flow.nn.torch_conv2d_transpose(x, w, [1, 0], [2, 2], [2, 2]), x, w)
    assert y.shape == (2, 2, 8, 9)
    there = run(lambda i, w: flow.nn.conv2d(i, w, [2, 2], [(0, 0), (0, 0), (1, 1), (1, 1)]), image, w)
    np.testing.assert_allclose((y * image).sum(), (x * there).sum(), rtol=1e-10)


@pytest.mark.parametrize(("devices", "view"), [(1, "consistent"), (2, "mirrored")])
def test_training_on_rows_of_data_dependent_shape(devices: int, view: str) -> None:
    """The loss is the mean over the selected rows; a run without rows changes no variable."""

    @flow.global_function("train", fresh(devices, view))
    def job(x: tp.Numpy.Placeholder((8, 3))) -> tp.ListNumpy:  # type: ignore[valid-type]
        w = flow.get_variable("w", (3, 1), initializer=flow.constant_initializer(0.5))
        chosen = flow.argwhere(flow.math.greater(flow.squeeze(flow.matmul(x, w), [1]), 0.0))
        loss = flow.math.square(flow.squeeze(flow.matmul(flow.gather_nd(x, chosen), w), [1]))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(loss)
        return loss

    rng, w = np.random.default_rng(3), np.full((3, 1), 0.5)
    for sign in (1, 1, 0, 1):
        x = rng.normal(size=(8, 3)).astype(np.float32) * sign
        rows = x[(x @ w)[:, 0] > 0]
        assert sum(map(len, job(x))) == len(rows)
        w -= 0.1 * 2 * rows.T @ (rows @ w) / max(len(rows), 1)
        np.testing.assert_allclose(flow.get_all_variables()["w"].numpy(), w, rtol=1e-5)


def test_jobs_with_data_dependent_shapes_are_not_exported(tmp_path: Path) -> None:
    @flow.global_function("predict", fresh(1))
    def job(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:  # type: ignore[valid-type]
        return flow.gather_nd(x, flow.argwhere(x))

    with pytest.raises(flow.JobError, match="has dynamic shapes"):
        flow.onnx.export(job, None, str(tmp_path / "job.onnx"))
    model = flow.saved_model.ModelBuilder(str(tmp_path / "model")).ModelName("m").Version(1)
    model.AddFunction(job)
    with pytest.raises(flow.JobError, match="has dynamic shapes"):
        model.Save()


@pytest.mark.parametrize(("devices", "view"), [(1, "consistent"), (2, "consistent"), (2, "mirrored")])
def test_argwhere_and_nonzero_have_data_dependent_shapes(devices: int, view: str) -> None:
    """Return, watch and compute with indices of values that the job computes."""
    index_arrays: list[Any] = []
    words: list[str] = []

    @flow.global_function("predict", fresh(devices, view))
    def job(x: tp.Numpy.Placeholder((4, 3))):  # type: ignore[no-untyped-def,valid-type]
        places = flow.argwhere(x, dtype=flow.int64)
        flow.watch(places, lambda selected: index_arrays.append(selected.numpy()))
        words.append(f"{places.is_dynamic} {places.shape}")
        w = flow.get_variable("w", (1,), initializer=flow.constant_initializer(2))
        selected = flow.gather_nd(x, flow.argwhere(x * w))
        large = flow.gather_nd(selected, flow.argwhere(flow.math.greater(selected, 0.5)))
        others = flow.where(flow.cast(x, flow.int32)), flow.where(flow.math.greater(x, 0), x, x)
        return places, flow.nonzero(x), *others, large + 1.0

    x = np.zeros((4, 3), np.float32)
    for number in (0, 1, 4, 11):
        x.reshape(-1)[: number + 1 : 2] = number
        places, columns, alone, same, large = job(x).get()
        parts = np.split(x, devices) if view == "mirrored" else [x]
        for selected, expected in zip(places.numpy_list(), parts, strict=True):
            np.testing.assert_array_equal(selected, np.argwhere(expected))
        for selected, expected in zip(columns.numpy_list(), parts, strict=True):
            np.testing.assert_array_equal(selected, np.stack(np.nonzero(expected)))
        np.testing.assert_array_equal(index_arrays[-1], np.concatenate([np.argwhere(part) for part in parts]))
        np.testing.assert_array_equal(alone.numpy(), index_arrays[-1])
        np.testing.assert_array_equal(same.numpy(), x)
        for selected, expected in zip(large.numpy_list(), parts, strict=True):
            np.testing.assert_array_equal(selected, expected[expected > 0.5] + 1)
    assert (
        set(words) == {f"True {(12 // (devices if view == 'mirrored' else 1), 2)}"}
        and places.numpy().dtype == np.int64
        and columns.numpy().dtype == np.int32
    )
