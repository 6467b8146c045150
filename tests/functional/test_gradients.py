"""Backward, gradient modes, hooks, second gradients, functions with user-defined gradients, and layouts of gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ranks import on_ranks, with_ranks

from jobflow.core.errors import ArgumentError, DtypeError, JobError, PlacementError, ShapeError
from jobflow.core.layout import B, P, S
from jobflow.core.types import float64
from jobflow.engine.placements import placement
from jobflow.functional import custom_functions as autograd
from jobflow.functional import gradients
from jobflow.functional.creation import arange, full, ones, tensor, zeros
from jobflow.functional.nn_activations import relu
from jobflow.functional.sampling import randn
from jobflow.nn.parameter import Parameter
from jobflow.optim import SGD

LAYOUTS = (B, S(0), S(1), P)
RANDOM = np.random.default_rng(9)
X, W = RANDOM.normal(size=(4, 6)), RANDOM.normal(size=(6, 4))


@with_ranks(1, 2, 4)
def test_the_gradient_of_a_leaf_has_its_layout(n: int) -> None:
    here = placement("cpu", range(n))
    for a in LAYOUTS:
        for b in LAYOUTS:
            x, w = tensor(X, placement=here, sbp=a, requires_grad=True), tensor(W, placement=here, sbp=b, requires_grad=True)
            relu(x @ w).sum().backward()
            mask = (X @ W > 0).astype(float)
            assert x.grad.sbp == (a,) and w.grad.sbp == (b,)
            np.testing.assert_allclose(x.grad.numpy(), mask @ W.T)
            np.testing.assert_allclose(w.grad.numpy(), X.T @ mask)


@with_ranks(1, 2)
def test_gradients_add_up(n: int) -> None:
    here = placement("cpu", range(n))
    w = ones(4, placement=here, sbp=S(0), requires_grad=True)
    for i in range(3):
        (w * 2).sum().backward()
        assert w.grad.tolist() == [2.0 * (i + 1)] * 4
    y = (w * w).sum()
    w.grad = None
    y.backward(retain_graph=True)
    y.backward()
    assert w.grad.tolist() == [4.0] * 4
    with pytest.raises(JobError, match=r"test_gradients.py:\d+.*retain_graph"):
        y.backward()
    w.grad = zeros(4, placement=here, sbp=S(0))
    (w * 3).sum().backward()
    assert w.grad.tolist() == [3.0] * 4


@with_ranks(1, 2)
def test_backward_accepts_an_explicit_gradient(n: int) -> None:
    here = placement("cpu", range(n))
    for how in LAYOUTS:
        x = ones(4, 6, placement=here, sbp=S(0), dtype=float64, requires_grad=True)
        y = x * 3
        y.backward(tensor(X, placement=here, sbp=how))
        np.testing.assert_allclose(x.grad.numpy(), 3 * X)
    with pytest.raises(JobError, match="24 elements needs an explicit gradient"):
        (x * 2).backward()
    with pytest.raises(ShapeError, match="has another type than"):
        (x * 2).backward(ones(4, placement=here, sbp=B))
    with pytest.raises(JobError, match="does not require gradients"):
        ones(2).sum().backward()


@with_ranks(2)
def test_gradient_modes_nest() -> None:
    w = ones(3, requires_grad=True)

    @gradients.no_grad()
    def first(x: Any) -> Any:
        return x * 2

    @gradients.no_grad
    def second(x: Any) -> Any:
        return x * 2

    @gradients.enable_grad()
    def third(x: Any) -> Any:
        return x * 2

    @gradients.set_grad_enabled(False)
    def fourth(x: Any) -> Any:
        return x * 2

    assert not first(w).requires_grad and not second(w).requires_grad and not fourth(w).requires_grad and gradients.is_grad_enabled()
    with gradients.no_grad():
        assert not gradients.is_grad_enabled() and third(w).requires_grad and not (w * 2).requires_grad
        with gradients.enable_grad():
            assert (w * 2).requires_grad
        assert not gradients.is_grad_enabled()
    with gradients.set_grad_enabled(False):
        assert not (w * 2).requires_grad
    gradients.set_grad_enabled(False)
    assert not (w * 2).requires_grad
    gradients.set_grad_enabled(True)
    assert (w * 2).requires_grad and not (w > 0).requires_grad and not (w * 2).long().requires_grad
    with pytest.raises(ValueError, match="stop"), gradients.no_grad():
        raise ValueError("stop")
    assert gradients.is_grad_enabled()


@with_ranks(1, 2)
def test_tensors_and_the_graph(n: int) -> None:
    here = placement("cpu", range(n))
    w = ones(4, placement=here, sbp=S(0), requires_grad=True)
    y = w * 2
    z = y.detach()
    assert w.is_leaf and not y.is_leaf and y.grad_fn is not None and w.grad_fn is None and not z.requires_grad and z.is_leaf
    z += 1
    assert y.tolist() == [3.0] * 4, "detach shares memory"
    c = w.clone()
    assert c.requires_grad and c.sbp == (S(0),)
    with gradients.no_grad():
        c.zero_()
    assert w.tolist() == [1.0] * 4, "clone does not"
    (w.clone() * 5).sum().backward()
    assert w.grad.tolist() == [5.0] * 4
    assert zeros(2).requires_grad_().requires_grad and not w.detach().requires_grad_(False).requires_grad
    with pytest.raises(DtypeError, match="only floating point tensors"):
        arange(3).requires_grad_()
    with pytest.raises(JobError, match="detach"):
        (w * 2).requires_grad_(False)
    x = w * 2
    assert x.detach_() is x and x.is_leaf and not x.requires_grad


@with_ranks(1, 2)
def test_hooks_and_retained_gradients_of_computed_tensors(n: int) -> None:
    here = placement("cpu", range(n))
    w = ones(4, placement=here, sbp=S(0), requires_grad=True)
    y = w * 2
    z = y * 3
    observed: list[Any] = []
    y.retain_grad()
    first = y.register_hook(lambda g: observed.append(g.tolist()))
    z.register_hook(lambda g: g * 10)
    handle = w.register_hook(lambda g: g + 1)
    z.sum().backward(retain_graph=True)
    assert observed == [[30.0] * 4] and y.grad.tolist() == [30.0] * 4 and w.grad.tolist() == [61.0] * 4 and z.grad is None
    first.remove()
    handle.remove()
    handle.remove()
    w.grad = None
    z.sum().backward()
    assert len(observed) == 1 and w.grad.tolist() == [60.0] * 4
    with pytest.raises(JobError, match="does not require"):
        zeros(2).register_hook(lambda g: None)
    with pytest.raises(JobError, match="does not require"):
        zeros(2).retain_grad()


@with_ranks(1, 2)
def test_grad_of_some_tensors(n: int) -> None:
    here = placement("cpu", range(n))
    x, w = (tensor(a, placement=here, sbp=s, requires_grad=True) for a, s in ((X, S(0)), (W, B)))
    y = x @ w
    dy, dx = gradients.grad((y * y).sum(), [y, x], retain_graph=True)
    assert dy is not None and dx is not None and x.grad is None and w.grad is None
    np.testing.assert_allclose(dy.numpy(), 2 * X @ W)
    np.testing.assert_allclose(dx.numpy(), 2 * X @ W @ W.T)
    (dw,) = gradients.grad(y, w, grad_outputs=tensor(X @ W, placement=here, sbp=B))
    assert dw is not None
    np.testing.assert_allclose(dw.numpy(), X.T @ X @ W)
    other = ones(2, placement=here, sbp=B, requires_grad=True)
    assert gradients.grad((x * 2).sum(), [other], allow_unused=True) == (None,)
    with pytest.raises(JobError, match="do not depend on input 0"):
        gradients.grad((x * 2).sum(), [other])
    with pytest.raises(JobError, match=r"input 0.*does not require"):
        gradients.grad((x * 2).sum(), [x.detach()])
    with pytest.raises(ArgumentError, match="grad_outputs has 2 gradients for 1 tensor"):
        gradients.grad((x * 2).sum(), [x], [None, None])


@with_ranks(1, 2)
def test_gradients_of_gradients(n: int) -> None:
    here = placement("cpu", range(n))
    x = tensor(X, placement=here, sbp=S(0), requires_grad=True)
    y = (x**3).sum()
    (first,) = gradients.grad(y, x, create_graph=True)
    assert first is not None and first.requires_grad
    (second,) = gradients.grad(first.sum(), x)
    assert second is not None
    np.testing.assert_allclose(first.detach().numpy(), 3 * X**2)
    np.testing.assert_allclose(second.numpy(), 6 * X)
    penalty = x.exp().sum()
    penalty.backward(create_graph=True)
    assert x.grad is not None and x.grad.requires_grad


class Scaled(autograd.Function):
    """The function a x + b, with a gradient that differs from the true one."""

    @staticmethod
    def forward(ctx: Any, x: Any, factor: float, y: Any) -> Any:
        ctx.save_for_backward(x, y)
        ctx.factor = factor
        return x * factor + y, x > 0

    @staticmethod
    def backward(ctx: Any, dz: Any, dmask: Any) -> Any:
        x, _ = ctx.saved_tensors
        assert ctx.needs_input_grad == (True, False, True) and not dmask.any()
        return dz * ctx.factor * x, None, dz * 100


class Half(autograd.Function):
    """Two outputs, one of which is unused."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x, x * 2

    @staticmethod
    def backward(ctx: Any, da: Any, db: Any) -> Any:
        return da + db * 5


@with_ranks(1, 2)
def test_functions_with_user_defined_gradients(n: int) -> None:
    here = placement("cpu", range(n))
    x, y = (full((4,), v, placement=here, sbp=S(0), requires_grad=True) for v in (2.0, 1.0))
    z, mask = Scaled.apply(x, 3.0, y)
    assert z.tolist() == [7.0] * 4 and mask.tolist() == [True] * 4 and not mask.requires_grad
    z.sum().backward()
    assert x.grad.tolist() == [6.0] * 4 and y.grad.tolist() == [100.0] * 4
    a, b = Half.apply(x)
    x.grad = None
    b.sum().backward()
    assert x.grad.tolist() == [5.0] * 4 and a.requires_grad
    with gradients.no_grad():
        assert not Half.apply(x)[0].requires_grad
    autograd.backward([x.sum(), (x * 2).sum()], [None, None])
    assert x.grad.tolist() == [8.0] * 4


def test_a_training_step_is_the_same_on_any_number_of_ranks() -> None:
    def program(rank: int, n: int) -> Any:
        here = placement("cpu", range(n))
        x, w, b = (randn(*shape, placement=here, sbp=s, dtype=float64) for shape, s in (((8, 5), S(0)), ((5, 3), B), ((3,), B)))
        w.requires_grad_()
        b.requires_grad_()
        losses = []
        for _ in range(4):
            loss = ((x @ w + b).sigmoid() ** 2).mean()
            loss.backward()
            with gradients.no_grad():
                for p in (w, b):
                    p -= 0.5 * p.grad
                    p.grad = None
            losses.append(loss.item())
        return losses

    alone = on_ranks(1, program, 1)[0]
    assert alone[-1] < alone[0]
    for n in (2, 3):
        for losses in on_ranks(n, program, n):
            np.testing.assert_allclose(losses, alone, rtol=1e-12)


def test_requires_grad_follows_the_rules_of_pytorch() -> None:
    w = ones(2, requires_grad=True)
    y = w * 2
    for value in (True, False):
        with pytest.raises(JobError, match=r"requires_grad at test_gradients.py:\d+: requires_grad of a computed tensor"):
            y.requires_grad = value
    assert y.requires_grad and y.detach().requires_grad is False
    for wrong in ("yes", 1, None, 2.5):
        with pytest.raises(DtypeError, match=r"test_gradients.py:\d+: the value must be True or False; got"):
            w.requires_grad = wrong
        with pytest.raises(DtypeError, match=r"Parameter at test_gradients.py:\d+: requires_grad must be True or False; got"):
            Parameter(zeros(2), wrong)
    assert w.requires_grad is True
    values = arange(3)
    with pytest.raises(DtypeError, match=r"test_gradients.py:\d+: only floating point tensors have gradients; got int64\[3\]"):
        values.requires_grad = True
    values.requires_grad = False
    w.requires_grad = np.bool_(False)
    assert w.requires_grad is False and not (w * 2).requires_grad
    x = zeros(3)
    part = x[:2]
    x.mul_(ones(3, requires_grad=True))
    assert part.requires_grad  # it is asked of the tensor that it is a part of


@with_ranks(1, 2)
def test_assigning_a_mismatched_gradient_raises(n: int) -> None:
    here = placement("cpu", range(n))
    local, w = ones(2, 3, requires_grad=True), ones(2, 3, placement=here, sbp=S(0), requires_grad=True)
    wrong: list[tuple[Any, Any, type[Exception], str]] = [
        (local, zeros(3, 2), ShapeError, r"float32\[3,2\] does not have the shape of its tensor float32\[2,3\]"),
        (local, zeros(2, 3, dtype=float64), DtypeError, r"float64\[2,3\] does not have the element type .* cast it: grad.to\(jobflow.float32\)"),
        (local, np.zeros((2, 3), np.float32), DtypeError, "must be a tensor or None; got a NumPy array"),
        (local, 3.0, DtypeError, "must be a tensor or None; got"),
        (local, local, JobError, "its own gradient"),
        (local, zeros(2, 3, placement=here, sbp=B), PlacementError, "the gradient is global, .* is local; use to_global or to_local"),
        (w, zeros(2, 3), PlacementError, "the gradient is local, .* is global"),
        (w, zeros(2, 3, placement=placement("cpu", [0]), sbp=B), PlacementError, r"use grad.to_global\(placement=...\)"),
    ]
    for x, gradient, error, fact in wrong[: None if n > 1 else -1]:
        with pytest.raises(error, match=rf"grad at test_gradients.py:\d+: .*{fact}"):
            x.grad = gradient
        assert x.grad is None
    for how in (B, S(0), S(1), P):  # in any layout of its placement
        w.grad = ones(2, 3, placement=here, sbp=how)
        SGD([w], lr=0.5).step()
        (w * 2).sum().backward()
        np.testing.assert_array_equal(w.grad.numpy(), np.full((2, 3), 3.0))
    np.testing.assert_array_equal(w.detach().numpy(), np.full((2, 3), -1.0))
    w.grad = None
    assert w.grad is None


def test_overwriting_a_view_that_became_a_leaf_raises() -> None:
    view = zeros(2, 3).t().requires_grad_()
    with pytest.raises(JobError, match=r"mul_ at test_gradients.py:\d+: a leaf float32\[3,2\] that requires gradients cannot be overwritten"):
        view.mul_(2)
    (view * 3).sum().backward()
    assert view.grad.tolist() == [[3.0, 3.0]] * 3
