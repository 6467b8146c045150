"""Indexing and assignment compared with NumPy: values, gradients, layouts, and selections by index and mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from everywhere import Case, compare, layouts, with_layout
from ranks import on_ranks, with_ranks

from jobflow import functional as F
from jobflow.core.errors import AxisError, DtypeError, JobError, PlacementError, ShapeError
from jobflow.core.layout import B, P, S
from jobflow.core.types import uint8
from jobflow.engine.placements import placement
from jobflow.functional.creation import tensor
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.graph.graph import Graph
from jobflow.tensors.state import state

RANDOM = np.random.default_rng(3)
X, CUBE = RANDOM.normal(size=(4, 6)), RANDOM.normal(size=(4, 6, 3))
HOLDS = CUBE > 0.3
PLACES = np.array([3, 0, 0, -1])
WINDOWS = [
    np.s_[1],
    np.s_[-1, 2:5],
    np.s_[..., 0],
    np.s_[:, None, ::2],
    np.s_[::-1],
    np.s_[3:0:-2, ..., 1],
    np.s_[None],
    np.s_[2:2],
    np.s_[1:3, 2, 1:],
]
LOOKUPS = [
    np.s_[[0, 2, -1]], np.s_[:, [1, 2], [0, 1]], np.s_[[0, 1], 1:, [0, 1]], np.s_[[[0, 1], [2, 3]], 1:3], np.s_[1:, [[0], [3]], [1, -1]], np.s_[[]],
    np.s_[PLACES], np.s_[:, np.array([True, False] * 3)], np.s_[HOLDS], np.s_[HOLDS[:, :, 0]], np.s_[:, HOLDS[0, :, 0]],
]  # fmt: skip
KEYS = WINDOWS + LOOKUPS


def tensor_key(key: Any, like: Any) -> Any:
    """Return the key with arrays replaced by tensors, broadcast on the placement of a tensor."""
    each = [
        tensor(k, **({"placement": like.placement, "sbp": [B] * len(like.sbp)} if like.is_global else {})) if isinstance(k, np.ndarray) else k
        for k in (key if isinstance(key, tuple) else (key,))
    ]
    return tuple(each) if isinstance(key, tuple) else each[0]


def reading(key: Any) -> Case:
    return (lambda x: x[tensor_key(key, x)]), (lambda x: x[key]), (CUBE,)


def writing(key: Any, value: np.ndarray[Any, Any] | float) -> Case:
    """Return a copy of x after x[key] = value."""

    def ours(x: Any, *v: Any) -> Any:
        y = x.clone()
        y[tensor_key(key, y)] = v[0] if v else value
        assert not y.is_global or y.sbp == x.sbp
        return y

    def numpys(x: Any, *v: Any) -> Any:
        y = x.copy()
        y[key] = v[0] if v else value
        return y

    return ours, numpys, (CUBE, value) if isinstance(value, np.ndarray) else (CUBE,)


@pytest.mark.parametrize("n", [2, 3])
def test_indexing_equals_numpy(n: int) -> None:
    compare(n, [reading(key) for key in (KEYS if n == 2 else WINDOWS)])


@pytest.mark.parametrize("values", ["number", "row", "all"])
def test_assignment_equals_numpy(values: str) -> None:
    """A number, broadcast values, and one value per element; two ranks."""
    distinct = [key for key in KEYS if key is not PLACES]  # which of two values for one place stays is another matter
    cases = []
    for i, key in enumerate({"number": distinct, "row": distinct[::2], "all": distinct[1::2]}[values]):
        shape = CUBE[key].shape
        value = 1.5 if values == "number" else np.random.default_rng(i).normal(size=shape if values == "all" else shape[-1:])
        cases.append(writing(key, value))
    compare(2, cases)


@with_ranks(1)
def test_assignment_keeps_type_and_memory() -> None:
    x = tensor(np.arange(12).reshape(3, 4))
    row, memory = x[1], x.numpy()
    x[1] = tensor([0.9, 1.9, -2.9, 3.0])
    x[0, [3, 0]] = tensor([7, 8])
    x[2:][x[2:] > 9] = -1
    assert memory.tolist() == [[8, 1, 2, 7], [0, 1, -2, 3], [8, 9, -1, -1]] and row.tolist() == [0, 1, -2, 3]
    x[1:] = x[:-1]
    assert memory.tolist() == [[8, 1, 2, 7], [8, 1, 2, 7], [0, 1, -2, 3]]


@with_ranks(1)
def test_the_gradient_of_a_slice_shifted_in_place() -> None:
    x = tensor(X, requires_grad=True)
    y = x.clone()
    y[1:] = y[:-1]
    (y * tensor(np.arange(24.0).reshape(4, 6))).sum().backward()
    weights = np.arange(24.0).reshape(4, 6)
    expected = np.concatenate([weights[1:], np.zeros((1, 6))])
    expected[0] += weights[0]
    np.testing.assert_array_equal(x.grad.numpy(), expected)


@pytest.mark.parametrize("how", [S(0), S(1), B, P])
def test_ranks_outside_a_placement_run_the_same_lines(how: Any) -> None:
    def program(rank: int) -> Any:
        here = placement("cpu", [0, 2])
        x = with_layout(X, here, how, rank) if how != P else tensor(X, placement=here, sbp=P)
        x[1:3, 2] = 5.0
        picked = x[tensor(X > 0, placement=here, sbp=B)]
        rows = x[[3, 1]]
        return x.numpy(), picked.shape, picked.numpy(), rows.numpy()

    expected = X.copy()
    expected[1:3, 2] = 5.0
    for x, shape, picked, rows in on_ranks(3, program):
        np.testing.assert_allclose(x, expected)
        assert shape == picked.shape
        np.testing.assert_allclose(picked, expected[X > 0])
        np.testing.assert_allclose(rows, expected[[3, 1]])


@with_ranks(1, 2)
def test_masks_of_uint8_and_of_no_axes() -> None:
    """As in PyTorch, uint8 values are truth values, and a mask without axes selects the whole tensor or nothing."""
    here = {"placement": placement("cpu", list(range(state().rank.size))), "sbp": B}
    x, mask = tensor(X, placement=here["placement"], sbp=S(0)), np.array([2, 0, 0, 1], np.uint8)
    for key, like in ((tensor(mask, **here), mask > 0), (mask, mask > 0), (tensor(3, dtype=uint8, **here), True), (tensor(False, **here), False)):
        np.testing.assert_array_equal(x[key].numpy(), X[like])
        for value in (5.0, tensor(5.0, **here), tensor(X[0], **here)):
            y, expected = x.clone(), X.copy()
            y[key], expected[like] = value, 5.0 if not isinstance(value, Tensor) or value.ndim == 0 else X[0]
            np.testing.assert_array_equal(y.numpy(), expected)


@with_ranks(2)
def test_assignment_to_one_broadcast_element() -> None:
    x = tensor(2.0, placement=placement("cpu", [0, 1]), sbp=P)
    x[...] = 3.0
    assert x.item() == 3.0


@with_ranks(1)
def test_several_ellipses() -> None:
    """Several ellipses are allowed if the following indices are unambiguous, as in PyTorch."""
    x = tensor(CUBE)
    for key, like in (
        ((..., ...), ...),
        ((..., None, slice(None), ...), np.s_[..., None, :]),
        ((..., 0, ..., ...), np.s_[..., 0]),
        ((0, ..., None, ..., 1, 1), np.s_[0, None, 1, 1]),
    ):
        np.testing.assert_array_equal(x[key].numpy(), CUBE[like])


@with_ranks(1)
def test_invalid_indices_raise() -> None:
    x = tensor(X)
    for wrong, error, words in (
        (lambda: x[4], IndexError, r"test_indexing.py:\d+: index 4 is out of range for axis 0 of float64\[4,6\], which has 4 elements"),
        (lambda: x[0, 0, 0], AxisError, "the number of indices, 3, exceeds the number of axes of float64"),
        (lambda: x[..., ..., 0], AxisError, "an index after a second"),
        (lambda: x[[0, 4]], AxisError, "index 4 at .* is out of range for an axis of 4"),
        (lambda: x[[-5]], AxisError, "index -5"),
        (lambda: x[[0.5]], DtypeError, r"or a list or tensor of integers or bool; got \[0.5\]"),
        (lambda: x[tensor([0.5])], DtypeError, "indices must be integers"),
        (lambda: x[tensor([True])], AxisError, r"the mask must have the shape \[4\] .* got \[1\]"),
        (lambda: x[[0, 1], [0, 1, 2]], ShapeError, r"\[2\] and \[3\] do not broadcast"),
        (lambda: x.__setitem__(0, tensor([1.0, 2.0])), ShapeError, r"float32\[2\]|float64\[2\]"),
        (lambda: x.__setitem__(slice(None), "a"), DtypeError, "got 'a'"),
        (lambda: tensor(X, placement=placement("cpu", [0]), sbp=B)[tensor([1])], PlacementError, "local"),
        (lambda: x.gather(0, tensor([[4]])), AxisError, "index 4"),
        (lambda: x.gather(0, tensor([1])), ShapeError, "as many axes"),
        (lambda: x.index_select(0, tensor([[1]])), ShapeError, "the indices must be a vector"),
        (lambda: x.masked_fill(x > 0, tensor(X)), ShapeError, "use where"),
        (lambda: x.roll([1, 2], 0), ShapeError, r"shifts \[1, 2\] and dims 0 must have the same length"),
        (lambda: x.diagonal(0, 1, 1), ShapeError, "two different axes"),
    ):
        with pytest.raises(error, match=words):
            wrong()


# ------------------------------------------------------------------- selecting

IDS, ROWS = np.array([[0, 3, 1], [2, 2, 0]]), np.array([2, 0, 2])


def put_along(x: Any, ids: Any, v: Any, axis: int, add: bool = False) -> Any:
    y = x.copy()
    for at in np.ndindex(ids.shape):
        to = (*at[:axis], ids[at], *at[axis + 1 :])
        y[to] = y[to] + v[at] if add else v[at]
    return y


def rolled(x: Any, shift: int) -> Any:
    return np.roll(x, shift)


DISTINCT = np.array([[0, 3, 1], [2, 1, 0]])
SELECTIONS: list[Case] = [
    (lambda x: x.select(1, -2), lambda x: x[:, -2], (X,)),
    (lambda x, i: x.index_select(1, i), lambda x, i: x[:, i], (X, ROWS)),
    (lambda x, i: F.take(x, i), lambda x, i: x.ravel()[i], (X, IDS)),
    (lambda x, i: x.gather(0, i), lambda x, i: np.take_along_axis(x[:, :3], i, 0), (X, IDS)),
    (lambda x, i: F.gather(x, 1, i), lambda x, i: np.take_along_axis(x[:2], i, 1), (X, IDS)),
    (lambda x, i, v: x.scatter(0, i, v), lambda x, i, v: put_along(x, i, v, 0), (X, DISTINCT, CUBE[:2, :3, 0])),
    (lambda x, i: F.scatter(x, 1, i, 2.5), lambda x, i: put_along(x, i, np.full(i.shape, 2.5), 1), (X, DISTINCT)),
    (lambda x, i, v: x.scatter_add(0, i, v), lambda x, i, v: put_along(x, i, v, 0, True), (X, IDS, CUBE[:3, :4, 0])),
    (lambda x, i, v: F.scatter(x, 1, i, v, reduce="add"), lambda x, i, v: put_along(x, i, v, 1, True), (X, IDS, CUBE[:2, :3, 0])),
    (
        lambda x, i, v: x.index_add(0, i, v, alpha=2.0),
        lambda x, i, v: x + 2 * np.stack([v[1], 0 * v[0], v[0] + v[2], 0 * v[0]]),
        (X, ROWS, CUBE[1:, :, 0]),
    ),
    (lambda x: x.masked_fill(x.detach() > 0, -3), lambda x: np.where(x > 0, -3, x), (X,)),
    (lambda x, v: x.masked_fill(x.detach() > 0, v), lambda x, v: np.where(x > 0, v, x), (X, np.array(0.5))),
    (lambda x, m: x.masked_select(m), lambda x, m: x[m], (X, HOLDS[..., 0])),
    (lambda x, m: F.masked_select(x, m), lambda x, m: x[np.broadcast_to(m, x.shape)], (X, HOLDS[0, :, 0])),
    (lambda x: F.nonzero(x > 0), lambda x: np.argwhere(x > 0), (X,)),
    (lambda x: F.argwhere(x), np.argwhere, (np.array([0, 2, 0, 3]),)),
    (lambda x: F.where(x > 0)[1], lambda x: np.where(x > 0)[1], (X,)),
    (lambda x, y: F.where(x.detach() > 0, x, y), lambda x, y: np.where(x > 0, x, y), (X, CUBE[..., 0])),
    (lambda x: x.flip(0), lambda x: x[::-1], (X,)),
    (lambda x: F.flip(x, (0, -1)), lambda x: x[::-1, ::-1], (X,)),
    (lambda x: x.roll(2), lambda x: rolled(x, 2), (X,)),
    (lambda x: F.roll(x, (1, -2), (0, 1)), lambda x: np.roll(x, (1, -2), (0, 1)), (X,)),
    (lambda x: x.triu(1), lambda x: np.triu(x, 1), (X,)),
    (lambda x: F.tril(x, -1), lambda x: np.tril(x, -1), (X,)),
    (lambda x: x.diagonal(1), lambda x: np.diagonal(x, 1), (X,)),
    (lambda x: x.diagonal(-2, 1, 2), lambda x: np.diagonal(x, -2, 1, 2), (CUBE,)),
    (lambda x: F.diag(x, -1), lambda x: np.diag(x, -1), (X,)),
    (lambda x: F.diag(x, 2), lambda x: np.diag(x, 2), (X[0],)),
]


def test_selections_equal_numpy() -> None:
    compare(2, SELECTIONS)


@with_ranks(2)
def test_in_place_forms(rank: int) -> None:
    here = placement("cpu", [0, 1])
    for how in layouts(X):
        x = with_layout(X, here, how, rank)
        ids = tensor(DISTINCT, placement=here, sbp=B)
        assert x.masked_fill_(tensor(HOLDS[..., 0], placement=here, sbp=B), 1.0) is x
        x.scatter_(0, ids, 2.0).scatter_add_(1, ids, tensor(np.ones((2, 3)), placement=here, sbp=S(1)))
        expected = put_along(put_along(np.where(HOLDS[..., 0], 1.0, X), DISTINCT, np.full((2, 3), 2.0), 0), DISTINCT, np.ones((2, 3)), 1, True)
        assert x.sbp == (how,)
        np.testing.assert_allclose(x.numpy(), expected)


# ------------------------------------------------------------------- in graphs


def many(x: Any, i: Any, m: Any) -> list[Any]:
    a, b = x.split(3, 1)
    z = x.clone()
    z[1:3] = 2.0
    z[:, [0, 2]] = x[:, [1, 1]]
    z[m] = 0.5
    w = z[i] + z.index_select(0, i) + z[-1]
    values, places = F.einsum("ij,kj->ik", w, x).masked_fill(m[:3, :4], -1.0).sort(1)
    column = i.reshape(3, 1)
    turned = [F.cat([a.t(), b.t()], 0)[1:, None].squeeze(1), x.roll(1, 0).flip(1), F.diag(x.diagonal()), z.triu(), x[..., ::-2]]
    chosen = [x.gather(1, column), x.scatter(1, column, 9.0), F.where(x > 0, x, 0.0), x.topk(2)[0], x.max(1)[0]]
    return [*turned, *chosen, values.tile(2, 1), places]


@pytest.mark.parametrize("how", [S(0), S(1), B])
def test_graphs_equal_eager_indexing(how: Any) -> None:
    class Model(Graph):  # type: ignore[misc]
        def build(self, x: Any, i: Any, m: Any) -> list[Any]:
            return many(x, i, m)

    def program(rank: int) -> None:
        here = placement("cpu", [0, 1])
        arguments = [
            tensor(X, placement=here, sbp=how),
            tensor(np.array([2, 0, -1]), placement=here, sbp=B),
            tensor(HOLDS[..., 0], placement=here, sbp=how),
        ]
        model = Model()
        for built, direct in zip(model(*arguments), many(*arguments), strict=True):
            np.testing.assert_allclose(built.numpy(), direct.numpy())

    on_ranks(2, program)


def test_data_dependent_selections_raise_in_a_graph() -> None:
    class Model(Graph):  # type: ignore[misc]
        def build(self, x: Any) -> Any:
            return x[x > 0]

    def program(rank: int) -> None:
        model = Model()
        with pytest.raises(JobError, match=r"test_indexing.py:\d+: the number of elements that a mask selects .* use where"):
            model(tensor(X, placement=placement("cpu", [0]), sbp=B))

    on_ranks(1, program)
