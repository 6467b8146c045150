"""Shapes compared with NumPy, in every layout; views share memory, and impossible views raise."""

from __future__ import annotations

import numpy as np
import pytest
from everywhere import Case, compare
from ranks import with_ranks

from jobflow import functional as F
from jobflow.core.errors import AxisError, JobError, ShapeError
from jobflow.core.layout import S
from jobflow.engine.placements import placement
from jobflow.functional.creation import tensor

RANDOM = np.random.default_rng(1)
X, COLUMN, CUBE = RANDOM.normal(size=(4, 6)), RANDOM.normal(size=(4, 1)), RANDOM.normal(size=(2, 4, 6))

CASES: list[Case] = [
    (lambda x: x.reshape(2, -1), lambda x: x.reshape(2, -1), (X,)),
    (lambda x: x.reshape((24,)), lambda x: x.reshape(24), (X,)),
    (lambda x: x.view(2, 2, 6), lambda x: x.reshape(2, 2, 6), (X,)),
    (lambda x: x.view_as(tensor(np.zeros((3, 8)))), lambda x: x.reshape(3, 8), (X,)),
    (lambda x: x.flatten(), lambda x: x.reshape(-1), (CUBE,)),
    (lambda x: x.flatten(1), lambda x: x.reshape(2, 24), (CUBE,)),
    (lambda x: x.flatten(0, -2), lambda x: x.reshape(8, 6), (CUBE,)),
    (lambda x: x.unflatten(-1, (2, -1)), lambda x: x.reshape(4, 2, 3), (X,)),
    (lambda x: x.squeeze(), lambda x: x.squeeze(), (COLUMN,)),
    (lambda x: x.squeeze(0).squeeze(-1), lambda x: x[:, 0], (COLUMN,)),
    (lambda x: x.unsqueeze(-1), lambda x: x[..., None], (X,)),
    (lambda x: F.unsqueeze(x, 0), lambda x: x[None], (X,)),
    (lambda x: x.transpose(0, -1), lambda x: x.swapaxes(0, -1), (CUBE,)),
    (lambda x: x.swapaxes(0, 1), lambda x: x.swapaxes(0, 1), (CUBE,)),
    (lambda x: x.permute(2, 0, 1), lambda x: x.transpose(2, 0, 1), (CUBE,)),
    (lambda x: F.permute(x, (-1, 0, 1)), lambda x: x.transpose(2, 0, 1), (CUBE,)),
    (lambda x: x.t(), lambda x: x.T, (X,)),
    (lambda x: x.T, lambda x: x.T, (CUBE,)),
    (lambda x: x.mT, lambda x: x.swapaxes(1, 2), (CUBE,)),
    (lambda x: x.movedim(0, 2), lambda x: np.moveaxis(x, 0, 2), (CUBE,)),
    (lambda x: F.movedim(x, (0, 1), (-1, 0)), lambda x: np.moveaxis(x, (0, 1), (-1, 0)), (CUBE,)),
    (lambda x: x.expand(3, -1, 5), lambda x: np.broadcast_to(x, (3, 4, 5)), (COLUMN,)),
    (lambda x, y: x.expand_as(y), lambda x, y: np.broadcast_to(x, (4, 6)), (COLUMN, X)),
    (lambda x: F.broadcast_to(x, (2, 4, 6)), lambda x: np.broadcast_to(x, (2, 4, 6)), (X,)),
    (lambda x, y: F.broadcast_tensors(x, y)[0], lambda x, y: np.broadcast_to(x, (4, 6)), (COLUMN, X)),
    (lambda x: x.repeat(2, 1, 3), lambda x: np.tile(x, (2, 1, 3)), (X,)),
    (lambda x: F.tile(x, (2,)), lambda x: np.tile(x, 2), (X,)),
    (lambda x: x.repeat_interleave(2, 0), lambda x: np.repeat(x, 2, 0), (X,)),
]


@pytest.mark.parametrize("n", [2, 3])
def test_shape_functions_equal_numpy(n: int) -> None:
    compare(n, CASES if n == 2 else CASES[::3])


@with_ranks(1)
def test_views_share_memory() -> None:
    x = tensor(X)
    for view in (x.view(24), x.reshape(2, 12), x.flatten(), x.T, x.unsqueeze(0), x.permute(1, 0), x.view(4, 6, 1).squeeze(-1)):
        assert np.shares_memory(view.numpy(), x.numpy())
    assert not np.shares_memory(x.T.reshape(24).numpy(), x.numpy())
    x.view(-1)[3] = 7.0
    assert x[0, 3].item() == 7.0


@with_ranks(1)
def test_invalid_shapes_raise() -> None:
    x = tensor(X)
    for wrong, error, words in (
        (lambda: x.t().view(24), ShapeError, r"test_shapes.py:\d+: float64\[6,4\] cannot be viewed as .* use reshape"),
        (lambda: x.reshape(5, -1), ShapeError, r"float64\[4,6\] has 24 elements, which do not fill the shape \[5, -1\]"),
        (lambda: x.reshape(23), ShapeError, r"do not fill the shape \[23\]"),
        (lambda: x.unsqueeze(3), AxisError, "dim 3 is out of range, -3 to 2"),
        (lambda: x.transpose(0, 2), IndexError, "dim 2 is out of range"),
        (lambda: x.permute(0, 0), ShapeError, r"\[0, 0\] is not a permutation of the axes of"),
        (lambda: x.expand(4, 7), ShapeError, r"does not expand to \[4, 7\]"),
        (lambda: x.repeat(2), ShapeError, r"\[2\] must have one count"),
        (lambda: x.unflatten(1, (4, 2)), ShapeError, r"\[4, 2\] is not the size of axis 1"),
        (lambda: tensor(CUBE).t(), ShapeError, "at most two axes"),
        (lambda: F.broadcast_tensors(x, tensor(CUBE)[..., 1:]), ShapeError, r"\[4, 6\] and \[2, 4, 5\] do not broadcast"),
    ):
        with pytest.raises(error, match=words):
            wrong()


@with_ranks(1)
def test_sizes() -> None:
    x = tensor(CUBE)
    assert (x.size(), x.size(-1), x.dim(), x.numel(), x.shape.numel()) == ((2, 4, 6), 6, 3, 48, 48)
    assert repr(x.shape) == "jobflow.Size([2, 4, 6])"


# ------------------------------------------------------------- writing through views


@with_ranks(1)
def test_gradients_of_views_after_writes() -> None:
    """An earlier view has the new values after y = x, y[1] = 3 x[1], y[0] = w."""
    x, w = tensor(X, requires_grad=True), tensor(X[0] - 1, requires_grad=True)
    y = x * 2.0
    first, flat = y[0], y.view(24)
    y[1].mul_(3.0)
    first.copy_(w)
    np.testing.assert_array_equal(flat.detach().numpy().reshape(4, 6)[0], X[0] - 1)
    (flat * tensor(np.arange(24.0))).sum().backward()
    scale = np.arange(24.0).reshape(4, 6)
    np.testing.assert_array_equal(w.grad.numpy(), scale[0])
    np.testing.assert_array_equal(x.grad.numpy(), scale * np.array([0, 6, 2, 2])[:, None])


@with_ranks(1)
def test_overwriting_a_leaf_raises_while_gradients_are_recorded() -> None:
    x = tensor(X, requires_grad=True)
    for write in (lambda: x.add_(1.0), lambda: x[0].zero_(), lambda: x.__setitem__(0, 1.0), lambda: x.view(24)[2:].mul_(2.0)):
        with pytest.raises(JobError, match=r"leaf float64\[4,6\] that requires gradients"):
            write()
    with F.no_grad():
        x[0] = 1.0
    assert x.requires_grad and x.is_leaf and x[0, 0].item() == 1.0


@with_ranks(1)
def test_backward_raises_if_a_view_overwrote_saved_values() -> None:
    x = tensor(X, requires_grad=True)
    y = x * 2.0
    z = (y * y).sum()
    y.add_(1.0)
    with pytest.raises(JobError, match="overwritten by an in-place operation"):
        z.backward()


@with_ranks(4)
def test_axes_shorter_than_ranks_keep_their_layout() -> None:
    row = tensor(X[:1], placement=placement("cpu", [0, 1, 2]), sbp=S(0))
    mesh = tensor(CUBE, placement=placement("cpu", [[0, 1], [2, 3]]), sbp=[S(0), S(0)])
    assert (row.clone() * 2.0).sbp == (S(0),) and row.t().sbp == (S(1),)
    assert (mesh.clone() + mesh).sbp == mesh.sbp
    np.testing.assert_array_equal((mesh + mesh).numpy(), 2 * CUBE)
