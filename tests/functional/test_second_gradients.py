"""Second gradients: of functions, by central differences of the gradients, and through changes of placement and layout."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ranks import on_ranks, with_ranks

import jobflow as flow

F = flow.nn.functional
RANDOM = np.random.default_rng(12)
X, Y, IMAGE = RANDOM.standard_normal((4, 6)), RANDOM.standard_normal((4, 6)), RANDOM.standard_normal((2, 4, 5, 4))
POSITIVE = RANDOM.uniform(0.3, 2, (4, 6))
CLASSES = np.array([0, 5, 2, 2])

FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "softmax": (lambda x: flow.softmax(x, 1), (X,)),
    "softmax of a split axis": (lambda x: flow.softmax(x, 0), (X,)),
    "log_softmax": (lambda x: flow.log_softmax(x, 0), (X,)),
    "cross_entropy": (lambda x, t: F.cross_entropy(x, t, reduction="none"), (X, CLASSES)),
    "cross_entropy of probabilities": (lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), (X, POSITIVE)),
    "binary_cross_entropy_with_logits": (lambda x, t: F.binary_cross_entropy_with_logits(x, t), (X, POSITIVE)),
    "kl_div": (lambda x, t: F.kl_div(x, t, reduction="sum"), (X, POSITIVE)),
    "smooth_l1_loss": (lambda x, y: F.smooth_l1_loss(x, y, reduction="none"), (X, Y)),
    "layer_norm": (lambda x, g, b: F.layer_norm(x, (6,), g, b), (X, X[0], Y[0])),
    "layer_norm of two axes": (lambda x: F.layer_norm(x, (5, 4)), (IMAGE,)),
    "rms_norm": (lambda x, g: F.rms_norm(x, (6,), g), (X, Y[0])),
    "group_norm": (lambda x, g, b: F.group_norm(x, 2, g, b), (IMAGE, X[0, :4], Y[0, :4])),
    "instance_norm": (lambda x: F.instance_norm(x), (IMAGE,)),
    "batch_norm": (lambda x, g, b: F.batch_norm(x, None, None, g, b, training=True), (IMAGE, X[0, :4], Y[0, :4])),
    "batch_norm with statistics": (lambda x, m, v: F.batch_norm(x, m, v, training=False), (X, Y[0], POSITIVE[0])),
    "attention": (lambda q, k: F.scaled_dot_product_attention(q, k, k), (X, Y)),
    "attention, causal": (lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True), (X, Y)),
    "attention with a mask": (lambda q, k, m: F.scaled_dot_product_attention(q, k, k, m), (X, Y, RANDOM.standard_normal((4, 4)))),
    "attention, blind": (lambda q, k, m: F.scaled_dot_product_attention(q, k, k, flow.gt(m, 0.5)), (X, Y, np.tril(np.ones((4, 4)), -1))),
    "silu": (lambda x: F.silu(x), (X,)),
    "gelu": (lambda x: F.gelu(x), (X,)),
    "gelu by tanh": (lambda x: F.gelu(x, approximate="tanh"), (X,)),
    "mish": (lambda x: F.mish(x), (X,)),
    "softplus": (lambda x: F.softplus(x, beta=2.0), (X,)),
    "elu": (lambda x: F.elu(x, 1.3), (X,)),
    "normalize": (lambda x: F.normalize(x, dim=1), (X,)),
    "cosine_similarity": (lambda x, y: F.cosine_similarity(x, y, dim=1), (X, Y)),
    "cumprod": (lambda x: flow.cumprod(x, 1), (X,)),
    "prod": (lambda x: flow.prod(x, 1), (X,)),
    "std": (lambda x: x.std(1), (X,)),
    "norm": (lambda x: x.norm(2, 0), (X,)),
    "logsumexp": (lambda x: flow.logsumexp(x, 1), (X,)),
    "powers": (lambda x, y: x**y + 2**x, (POSITIVE, Y)),
    "quotients": (lambda x, y: y / x, (POSITIVE, Y)),
    "atan2": (lambda x, y: flow.atan2(x, y), (POSITIVE, POSITIVE[::-1].copy())),
    "products": (lambda x, y: (x @ y.t()).sigmoid(), (X, Y)),
    "conv2d": (lambda x, w: F.conv2d(x, w, padding=1).tanh(), (IMAGE, RANDOM.standard_normal((2, 4, 3, 3)))),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2).exp(), (IMAGE,)),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2) ** 2, (IMAGE,)),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True).exp(), (IMAGE[:1, :2],)),
    "indices": (lambda x, i: x[1:, ::2].exp() * x[i, :3], (X, np.array([2, 0, 2]))),
    "sort": (lambda x: x.sort(1).values ** 3, (X,)),
    "max": (lambda x: (x.max(1).values ** 3, x.amax(0).exp()), (X,)),
}


def tensors(arrays: tuple[Any, ...], placement_options: Callable[[int], dict[str, Any]]) -> list[Any]:
    return [flow.tensor(a, requires_grad=a.dtype.kind == "f", **placement_options(a.ndim)) for a in arrays]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_gradients_are_differences(name: str) -> None:
    function, arrays = FUNCTIONS[name]

    def program(rank: int, n: int) -> None:
        here = flow.placement("cpu", range(n))
        directions = [lambda ndim: {}] if n == 1 else []
        for axis in range(2):
            sbp = [flow.sbp.split(axis), flow.sbp.broadcast]
            directions.append(lambda ndim, axis=axis, sbp=sbp: {"placement": here, "sbp": sbp[ndim <= axis]})
        for placement_options in directions:
            assert flow.autograd.gradgradcheck(function, tensors(arrays, placement_options), atol=1e-4, fast_mode=True)

    on_ranks(1, program, 1)
    on_ranks(2, program, 2)


LAYOUTS = [flow.sbp.split(0), flow.sbp.split(1), flow.sbp.broadcast, flow.sbp.partial_sum]


@with_ranks(1, 2, 3)
def test_derivatives_up_to_the_third_go_through_changes_of_layout(n: int) -> None:
    here = flow.placement("cpu", range(n))
    for a, b in itertools.product(LAYOUTS, LAYOUTS[:3]):
        x = flow.tensor(X, placement=here, sbp=a, requires_grad=True)
        y = (x.to_global(sbp=b) ** 4).to_global(sbp=a) * 1
        results = [y]
        for _ in range(3):
            results += flow.autograd.grad(results[-1].sum(), x, create_graph=True)
        for derivative, value in zip(results[1:], (4 * X**3, 12 * X**2, 24 * X), strict=True):
            assert derivative.sbp == x.sbp
            np.testing.assert_allclose(derivative.detach().numpy(), value, rtol=1e-9, atol=1e-9, err_msg=f"{a} {b}")


@with_ranks(1, 2, 3)
def test_derivatives_go_from_local_tensors_to_global_ones_and_back(rank: int, n: int) -> None:
    """The pieces of a split tensor, as local and as global tensors, and their second and third derivatives."""
    here = flow.placement("cpu", range(n))
    whole = np.arange(1.0, 2 * n * 3 + 1).reshape(2 * n, 3) / 4
    mine = slice(2 * rank, 2 * rank + 2)
    x = flow.tensor(whole[mine], requires_grad=True)
    y = (x**4).to_global(placement=here, sbp=flow.sbp.split(0))
    results = [y.sum()]
    for power, factor in ((3, 4), (2, 12), (1, 24)):
        (derivative,) = flow.autograd.grad(results[-1], x, create_graph=True)
        np.testing.assert_allclose(derivative.detach().numpy(), factor * whole[mine] ** power)
        results.append(derivative.to_global(placement=here, sbp=flow.sbp.split(0)).sum())
    g = flow.tensor(whole, placement=here, sbp=flow.sbp.split(0), requires_grad=True)
    (first,) = flow.autograd.grad((g**3).to_local().sum(), g, create_graph=True)
    (second,) = flow.autograd.grad(first.to_local().sum(), g)
    np.testing.assert_allclose(first.detach().numpy(), 3 * whole**2)
    np.testing.assert_allclose(second.numpy(), 6 * whole)


@with_ranks(1, 2)
def test_copies_that_become_one_tensor(rank: int, n: int) -> None:
    """The first rank's value is used: this rank receives the gradient and the second gradient, other ranks receive zeros."""
    here = flow.placement("cpu", range(n))
    x = flow.tensor(X, requires_grad=True)
    y = (x**3).to_global(placement=here, sbp=flow.sbp.broadcast)
    (first,) = flow.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = flow.autograd.grad(first.to_global(placement=here, sbp=flow.sbp.partial_sum).sum(), x)
    counts = float(rank == 0)
    np.testing.assert_allclose(first.detach().numpy(), counts * 3 * X**2)
    np.testing.assert_allclose(second.numpy(), counts * 6 * X)


@pytest.mark.parametrize("n", [1, 2])
def test_a_penalty_on_gradients_trains(n: int) -> None:
    """The gradients of a loss that contains input gradients are the same on any number of ranks."""
    weights = [RANDOM.standard_normal(shape) for shape in ((8, 6), (8,), (3, 8), (3,))]

    def program(rank: int, n: int) -> Any:
        here = flow.placement("cpu", range(n))
        model = flow.nn.Sequential(flow.nn.Linear(6, 8), flow.nn.LayerNorm(8), flow.nn.GELU(), flow.nn.Linear(8, 3)).double()
        for p, array in zip([p for name, p in model.named_parameters() if name[0] in "03"], weights, strict=True):
            p.array[...] = array
        model = model.to_global(placement=here, sbp=flow.sbp.broadcast)
        x = flow.tensor(X, placement=here, sbp=flow.sbp.split(0), requires_grad=True)
        loss = F.cross_entropy(model(x), flow.tensor(CLASSES % 3, placement=here, sbp=flow.sbp.split(0)))
        (slope,) = flow.autograd.grad(loss, x, create_graph=True)
        (loss + (slope.norm(2, 1) - 1).square().mean()).backward()
        return [p.grad.numpy() for p in model.parameters()]

    alone = on_ranks(1, program, 1)[0]
    for results in on_ranks(n, program, n):
        for ours, theirs in zip(results, alone, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
