"""Results that do not depend on the layout: batch statistics, initial values, dropout masks, norms of gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from ranks import on_ranks
from surroundings import F, lain, nn

from jobflow.core.errors import ArgumentError, DtypeError, JobError, PlacementError, ShapeError
from jobflow.core.layout import B, Layout, P, Placement, S
from jobflow.engine.placements import placement, sbp
from jobflow.functional.creation import ones, tensor, zeros
from jobflow.nn import init
from jobflow.nn.utils import clip_grad_norm_, clip_grad_value_, parameters_to_vector, vector_to_parameters
from jobflow.tensors.state import state

LINE = Placement("cpu", (0, 1))
MESH = Placement("cpu", (0, 1, 2, 3), (2, 2))


def _random(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).standard_normal(shape)


# -------------------------------------------------------------------- batch norm


@pytest.mark.parametrize("shape", [(8, 3, 4, 5), (5, 3, 2, 2)])
def test_batch_statistics_are_of_the_global_batch(shape: tuple[int, ...]) -> None:
    """Split batches have exactly the running statistics and gradients of one process, on all ranks."""

    def program(rank: int, ranks: int) -> Any:
        net = nn.BatchNorm2d(3).double()
        x, layout = _random(*shape), None
        if ranks > 1:
            net.to_global(placement("cpu", range(ranks)), sbp.broadcast)
            layout = Layout(Placement("cpu", tuple(range(ranks))), (S(0),))
        for step in range(3):
            y = net(lain(x * (step + 1) + step, layout))
            (y * y * y).sum().backward()
        net.eval()
        pieces = [x.array.tobytes() for x in (net.running_mean, net.running_var, net.weight.grad, net.bias.grad)]
        tensors = [y, net.running_mean, net.running_var, net.weight.grad, net.bias.grad, net(lain(x, layout))]
        return pieces, [np.array(x.detach().numpy()) for x in tensors], int(net.num_batches_tracked.item())

    ((_, alone, count),) = on_ranks(1, program, 1)
    mean, var = alone[1:3]
    expected = [0.0, 1.0]
    for step in range(3):
        batch = _random(*shape) * (step + 1) + step
        expected = [0.9 * expected[0] + 0.1 * batch.mean((0, 2, 3)), 0.9 * expected[1] + 0.1 * batch.var((0, 2, 3), ddof=1)]
    np.testing.assert_allclose(mean, expected[0], rtol=1e-12)
    np.testing.assert_allclose(var, expected[1], rtol=1e-12)
    for ranks in (2, 4):
        runs = on_ranks(ranks, program, ranks)
        for pieces, arrays, each in runs:
            assert pieces == runs[0][0] and each == count == 3
            for x, y in zip(arrays, alone, strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9)


def test_batches_of_channels_that_are_split() -> None:
    def program(rank: int) -> Any:
        net = nn.BatchNorm1d(4).double().to_global(placement("cpu", [0, 1]), sbp.broadcast).to_global(sbp=sbp.split(0))
        y = net(lain(_random(6, 4), Layout(LINE, (S(1),))))
        return y.sbp, net.running_mean.sbp, y.detach().numpy(), net.running_var.numpy()

    x = _random(6, 4)
    for y_sbp, mean_sbp, y, var in on_ranks(2, program):
        assert y_sbp == (S(1),) and mean_sbp == (S(0),)
        np.testing.assert_allclose(y, (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5), rtol=1e-9)
        np.testing.assert_allclose(var, 0.9 + 0.1 * x.var(0, ddof=1), rtol=1e-12)


# -------------------------------------------------------------------- first values


FIRST = {
    "uniform": lambda x: init.uniform_(x, -2.0, 3.0),
    "normal": lambda x: init.normal_(x, 1.0, 0.1),
    "xavier_uniform": init.xavier_uniform_,
    "xavier_normal": lambda x: init.xavier_normal_(x, 2.0),
    "kaiming_uniform": lambda x: init.kaiming_uniform_(x, math.sqrt(5)),
    "kaiming_normal": lambda x: init.kaiming_normal_(x, mode="fan_out", nonlinearity="relu"),
    "trunc_normal": lambda x: init.trunc_normal_(x, 0.5, 0.3, 0.0, 0.8),
    "orthogonal": lambda x: init.orthogonal_(x, 1.5),
    "sparse": lambda x: init.sparse_(x, 0.3),
    "eye": init.eye_,
    "constant": lambda x: init.constant_(x, 4.0),
}


@pytest.mark.parametrize("name", FIRST)
def test_initial_values_are_equal_in_every_layout(name: str) -> None:
    layouts = [Layout(LINE, (S(0),)), Layout(LINE, (S(1),)), Layout(LINE, (B,)), Layout(LINE, (P,)), Layout(Placement("cpu", (1,)), (B,))]

    def program(rank: int, layout: Layout | None) -> Any:
        state().manual_seed(11)
        x = lain(np.zeros((30, 17)), layout)
        x.requires_grad = True
        assert FIRST[name](x) is x and x.is_leaf
        return x.detach().numpy()

    (alone,) = on_ranks(1, program, None)
    for layout in layouts:
        for values in on_ranks(2, program, layout):
            np.testing.assert_array_equal(values, alone)


def test_initial_values_have_the_expected_deviation() -> None:
    def filled(fill: Any, *shape: int) -> Any:
        x = zeros(*shape)
        fill(x)
        return x.numpy().astype(np.float64)

    state().manual_seed(5)
    assert abs(filled(init.normal_, 200, 200)).mean() == pytest.approx(math.sqrt(2 / math.pi), rel=0.02)
    bound = math.sqrt(6 / (300 + 100))
    drawn = filled(init.xavier_uniform_, 100, 300)
    assert drawn.max() == pytest.approx(bound, rel=0.01) and drawn.min() == pytest.approx(-bound, rel=0.01)
    assert filled(lambda x: init.kaiming_normal_(x, nonlinearity="relu"), 64, 32, 3, 3).std() == pytest.approx(math.sqrt(2 / (32 * 9)), rel=0.02)
    cut = filled(lambda x: init.trunc_normal_(x, 0.0, 1.0, -0.5, 2.0), 300, 300)
    assert cut.min() >= -0.5 and cut.max() <= 2.0
    density = np.exp(-(np.array([0.5, 2.0]) ** 2) / 2) / math.sqrt(2 * math.pi)
    share = (math.erf(2 / math.sqrt(2)) + math.erf(0.5 / math.sqrt(2))) / 2
    assert cut.mean() == pytest.approx((density[0] - density[1]) / share, rel=0.02)
    rows = filled(lambda x: init.orthogonal_(x, 2.0), 5, 3, 4).reshape(5, 12)
    np.testing.assert_allclose(rows @ rows.T, 4 * np.eye(5), atol=1e-5)
    assert (filled(lambda x: init.sparse_(x, 0.25), 20, 9) == 0).sum(axis=0).tolist() == [5] * 9
    kernel = filled(init.dirac_, 3, 2, 3)
    assert kernel.sum() == 2 and kernel[1, 1, 1] == 1


def test_layers_have_the_usual_initial_deviation() -> None:
    state().manual_seed(2)
    layer, conv, table = nn.Linear(100, 400), nn.Conv2d(8, 64, 3), nn.Embedding(500, 40, padding_idx=-1)
    for weight, bound in ((layer.weight, 0.1), (layer.bias, 0.1), (conv.weight, 1 / math.sqrt(72)), (conv.bias, 1 / math.sqrt(72))):
        size = abs(weight.numpy()).max()
        assert 0.9 * bound < size <= bound
    assert table.weight.numpy().std() == pytest.approx(1, rel=0.02) and not table.weight.numpy()[499].any()
    assert init.calculate_gain("leaky_relu", 0.2) == pytest.approx(math.sqrt(2 / 1.04)) and init.calculate_gain("tanh") == pytest.approx(5 / 3)
    with pytest.raises(ArgumentError, match='did you mean "relu"'):
        init.calculate_gain("relo")
    with pytest.raises(ShapeError, match="two axes"):
        init.xavier_normal_(ones(3))


def test_a_model_has_equal_initial_values_on_any_ranks() -> None:
    def program(rank: int, ranks: int) -> Any:
        state().manual_seed(7)
        net = nn.Sequential(nn.Linear(5, 6), nn.Linear(6, 2))
        if ranks > 1:
            net.to_global(placement("cpu", range(ranks)), sbp.broadcast)
        return [p.numpy() for p in net.parameters()]

    (alone,) = on_ranks(1, program, 1)
    for values in on_ranks(3, program, 3):
        for x, y in zip(values, alone, strict=True):
            np.testing.assert_array_equal(x, y)


# -------------------------------------------------------------------- dropout


def test_dropout_masks_are_equal_in_every_layout() -> None:
    def program(rank: int, layout: Layout | None) -> Any:
        state().manual_seed(4)
        x = lain(np.ones((8, 6, 5)), layout)
        x.requires_grad = True
        y, wide = F.dropout(x, 0.4), nn.Dropout2d(0.5)(x)
        (y * 3.0).sum().backward()
        return np.array(y.detach().numpy()), np.array(wide.detach().numpy()), np.array(x.grad.numpy()), np.array(F.dropout(x, 0.4).detach().numpy())

    ((y, wide, gradient, again),) = on_ranks(1, program, None)
    assert set(np.round(np.unique(y), 9)) == {0.0, round(1 / 0.6, 9)} and abs((y == 0).mean() - 0.4) < 0.1 and (again != y).any()
    np.testing.assert_allclose(gradient, 3 * y)
    assert set(np.unique(wide.reshape(48, 5).std(axis=1))) == {0.0} and 0.2 < (wide == 0).mean() < 0.8
    for n, layout in ((2, Layout(LINE, (S(0),))), (2, Layout(LINE, (S(2),))), (2, Layout(LINE, (B,))), (4, Layout(MESH, (S(0), S(1))))):
        for results in on_ranks(n, program, layout):
            for a, b in zip(results, (y, wide, gradient, again), strict=True):
                np.testing.assert_array_equal(a, b)


def test_dropout_with_probability_0_and_1() -> None:
    x = ones(4, 5)
    assert F.dropout(x, 0.0) is x and F.dropout(x, 0.5, training=False) is x and nn.Dropout(0.5).eval()(x) is x
    assert not F.dropout(x, 1.0).numpy().any()
    assert F.dropout(x, 0.5, inplace=True) is x and (x.numpy() != 1).all()
    with pytest.raises(ArgumentError, match="must be in"):
        F.dropout(x, 1.5)
    with pytest.raises(ArgumentError, match="must be in"):
        nn.Dropout(-0.1)


# -------------------------------------------------------------------- tables


def test_rows_of_a_table_may_be_split() -> None:
    def program(rank: int) -> Any:
        table = nn.Embedding(7, 3, padding_idx=4).double().to_global(placement("cpu", [0, 1]), sbp.broadcast).to_global(sbp=sbp.split(0))
        table.weight.array[...] = np.arange(21.0).reshape(7, 3)[table.weight.layout.box((7, 3), rank).slices]
        y = table(lain(np.array([[6, 0], [4, 6]]), Layout(LINE, (B,))))
        y.sum().backward()
        assert y.sbp == (P,) and table.weight.grad.sbp == (S(0),)
        table.reset_parameters()
        return y.detach().numpy(), table.weight.grad.numpy(), table.weight.numpy()

    for y, gradient, fresh in on_ranks(2, program):
        np.testing.assert_array_equal(y, np.arange(21.0).reshape(7, 3)[[[6, 0], [4, 6]]])
        np.testing.assert_array_equal(gradient[:, 0], [1, 0, 0, 0, 0, 0, 2])
        assert not fresh[4].any() and fresh[5].all()


def test_indices_out_of_range_raise() -> None:
    table = nn.Embedding(5, 2)
    for wrong in (5, -1):
        with pytest.raises(ArgumentError, match=rf"row {wrong} at \[1\] is outside \[0, 5\)"):
            table(tensor([0, wrong]))
    with pytest.raises(DtypeError, match="must be integers"):
        table(ones(2))
    with pytest.raises(ArgumentError, match="padding_idx"):
        nn.Embedding(5, 2, padding_idx=5)
    frozen = nn.Embedding.from_pretrained(ones(3, 2))
    assert not frozen.weight.requires_grad and frozen(tensor([1])).numpy().tolist() == [[1, 1]]


def test_one_hot() -> None:
    assert F.one_hot(tensor([2, 0])).numpy().tolist() == [[0, 0, 1], [1, 0, 0]] and F.one_hot(tensor([1]), 4).shape == (1, 4)
    with pytest.raises(ArgumentError, match="outside"):
        F.one_hot(tensor([4]), 4)

    def program(rank: int) -> Any:
        return F.one_hot(lain(np.array([1, 3, 0]), Layout(LINE, (S(0),)))).numpy().tolist()

    assert on_ranks(2, program) == [[[0, 1, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0]]] * 2


# -------------------------------------------------------------------- classes that are split


def test_logits_stay_split() -> None:
    """A loss with split classes communicates numbers per sample, not the logits."""

    def program(rank: int) -> Any:
        x = lain(_random(6, 8), Layout(LINE, (S(1),)))
        x.requires_grad = True
        loss = F.cross_entropy(x, lain(np.array([0, 7, 3, 4, 1, 7]), Layout(LINE, (B,))))
        loss.backward()
        return loss.item(), x.grad.sbp, x.grad.numpy()

    x = _random(6, 8)
    p = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    at = (np.arange(6), np.array([0, 7, 3, 4, 1, 7]))
    gradient = p.copy()
    gradient[at] -= 1
    for loss, lies, result in on_ranks(2, program):
        assert loss == pytest.approx(-np.log(p[at]).mean(), rel=1e-12) and lies == (S(1),)
        np.testing.assert_allclose(result, gradient / 6, rtol=1e-9, atol=1e-12)


def test_labels_out_of_range_raise() -> None:
    with pytest.raises(ArgumentError, match=r"label 5 at .* is outside"):
        F.cross_entropy(ones(2, 5), tensor([0, 5]))
    with pytest.raises(ShapeError, match=r"target int64\[3\] must be \[2\]"):
        F.cross_entropy(ones(2, 5), tensor([0, 1, 2]))
    with pytest.raises(ShapeError, match="for numbers instead of classes, use mse_loss"):
        F.cross_entropy(ones(2), tensor([0, 1]))
    with pytest.raises(DtypeError, match="must be integers, or probabilities"):
        F.cross_entropy(ones(2, 5), ones(2))
    with pytest.raises(ValueError, match='did you mean "mean"'):
        nn.CrossEntropyLoss(reduction="meen")
    assert math.isnan(F.cross_entropy(ones(2, 5), tensor([-100, -100])).item())


# -------------------------------------------------------------------- gradients kept small


def _with_gradient(array: np.ndarray[Any, Any], layout: Layout | None) -> Any:
    p = nn.Parameter(lain(np.zeros(array.shape), layout))
    p.grad = lain(array, layout)
    return p


@pytest.mark.parametrize("kind", [2.0, 1.0, 3.0, math.inf])
def test_gradient_norms_are_of_all_shards(kind: float) -> None:
    """The vector consists of split, partial and copied gradients on different placements."""
    arrays = [_random(6, 4), _random(5), _random(3, 3), _random(4)]
    vector = np.concatenate([a.ravel() for a in arrays])
    norm = np.linalg.norm(vector, kind)

    def program(rank: int) -> Any:
        layouts = [Layout(MESH, (S(0), S(1))), Layout(LINE, (S(0),)), Layout(MESH, (P, B)), Layout(Placement("cpu", (3,)), (B,))]
        parameters = [_with_gradient(a, layout) for a, layout in zip(arrays, layouts, strict=True)]
        actual = clip_grad_norm_([*parameters, nn.Parameter(lain(np.zeros(2), Layout(LINE, (B,))))], 1.5, kind)
        return actual.item(), [p.grad.numpy() for p in parameters]

    for actual, gradients in on_ranks(4, program):
        assert actual == pytest.approx(norm, rel=1e-9)
        for a, b in zip(gradients, arrays, strict=True):
            np.testing.assert_allclose(a, b * 1.5 / (norm + 1e-6), rtol=1e-9)


def test_clipping_by_norm_and_value() -> None:
    p = _with_gradient(np.array([3.0, 4.0]), None)
    assert clip_grad_norm_(p, 10.0).item() == 5 and p.grad.numpy().tolist() == [3, 4]
    clip_grad_value_([p], 3.5)
    assert p.grad.numpy().tolist() == [3, 3.5]
    p.grad = tensor(np.array([math.inf, 1.0]))
    with pytest.raises(ArgumentError, match="inf"):
        clip_grad_norm_([p], 1.0, error_if_nonfinite=True)
    assert clip_grad_norm_([], 1.0).item() == 0

    def program(rank: int) -> Any:
        q = _with_gradient(np.array([3.0, -4.0]), Layout(LINE, (P,)))
        with pytest.raises(PlacementError, match="local and global"):
            clip_grad_norm_([q, _with_gradient(np.ones(2), None)], 1.0)
        clip_grad_value_([q], 3.5)
        return q.grad.sbp, q.grad.numpy().tolist()

    assert on_ranks(2, program) == [((P,), [3, -3.5])] * 2


def test_parameters_as_a_vector() -> None:
    net = nn.Linear(2, 3)
    vector = parameters_to_vector(net.parameters())
    assert vector.shape == (9,) and vector.requires_grad
    vector_to_parameters(tensor(np.arange(9.0, dtype=np.float32)), net.parameters())
    assert net.bias.detach().numpy().tolist() == [6, 7, 8]
    with pytest.raises(ShapeError, match="9 elements"):
        vector_to_parameters(ones(8), net.parameters())


# -------------------------------------------------------------------- what is said of wrong uses


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: nn.Linear(3, 2)(ones(4, 5)), ShapeError, r"linear at test_ranks\.py:\d+: weight float32\[2,3\].*input float32\[4,5\]"),
        (lambda: nn.Conv2d(3, 4, 3, stride=2, padding="same"), ShapeError, "needs stride 1"),
        (lambda: nn.Conv2d(3, 4, 2, groups=2), ArgumentError, "multiples of groups=2"),
        (lambda: nn.Conv2d(3, 4, 2)(ones(2, 3, 4)[0, 0]), ShapeError, "2 spatial axes"),
        (lambda: nn.BatchNorm2d(3)(ones(2, 3)), ShapeError, "must have 4 axes"),
        (lambda: nn.BatchNorm1d(3)(ones(1, 3)), ShapeError, "more than one value per channel"),
        (lambda: nn.LayerNorm(3)(ones(2, 4)), ShapeError, r"normalized_shape \[3\]"),
        (lambda: nn.GroupNorm(2, 5), ArgumentError, "5 cannot be divided into 2"),
        (lambda: nn.MaxPool2d(2, padding=2)(ones(1, 1, 4, 4)), ShapeError, "at most half"),
        (lambda: nn.MultiheadAttention(6, 4), ArgumentError, "6 must be a multiple of num_heads 4"),
        (lambda: F.pad(ones(2, 3), (3, 0), "reflect"), ShapeError, "reflect"),
        (lambda: F.mse_loss(ones(2, 3), ones(2, 4)), ShapeError, r"input float32\[2,3\] and target float32\[2,4\]"),
        (lambda: F.scaled_dot_product_attention(ones(2, 3), ones(2, 4), ones(2, 4)), ShapeError, "query.*key.*value"),
        (lambda: F.interpolate(ones(1, 1, 2, 2)), ShapeError, "pass either size or scale_factor"),
        (lambda: F.glu(ones(2, 3)), ShapeError, "must have an even size"),
        (lambda: F.relu(nn.Parameter(ones(2)), inplace=True), JobError, "leaf"),
        (lambda: F.softplus([1.0]), DtypeError, "list"),
    ],
)
def test_errors_name_the_cause(call: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        call()
