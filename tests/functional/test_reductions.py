"""Reductions in every layout, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from everywhere import compare
from ranks import on_ranks, with_ranks

from jobflow.core.errors import ArgumentError, DtypeError, ShapeError
from jobflow.core.layout import P, S
from jobflow.core.types import bool_, float32, float64, int64
from jobflow.engine.placements import placement
from jobflow.functional import reductions
from jobflow.functional.creation import arange, ones, tensor, zeros

RANDOM = np.random.default_rng(8)
X = RANDOM.uniform(-2, 2, (4, 6))
CUBE = RANDOM.uniform(0.5, 2, (2, 3, 4))
N = RANDOM.permutation(24).reshape(4, 6) - 9
T = RANDOM.random((4, 6)) < 0.6
#: one rank, whose layouts are all equal, only with --full
COUNTS = [pytest.param(1, marks=pytest.mark.full), 2]


@pytest.mark.parametrize("n", [*COUNTS, 3])
def test_sums_means_and_products_equal_numpy(n: int) -> None:
    cases: list[Any] = []
    for name in ("sum", "mean", "prod"):
        numpys = getattr(np, name)
        for dim, keep in ((None, False), (0, False), (1, True), (-1, False), ((0, 2), False), ((1, 2), True)):
            x = X if dim != (0, 2) and dim != (1, 2) else CUBE
            cases.append(
                (lambda x, m=name, d=dim, k=keep: getattr(x, m)(dim=d, keepdim=k), lambda x, f=numpys, d=dim, k=keep: f(x, axis=d, keepdims=k), (x,))
            )
    cases += [(reductions.sum, np.sum, (N,)), (reductions.sum, np.sum, (T,)), (lambda x: x.sum(1), lambda x: x.sum(1), (T,))]
    cases += [(lambda x: x.cumsum(0), lambda x: x.cumsum(0), (X,)), (lambda x: x.cumprod(-1), lambda x: x.cumprod(-1), (X,))]
    cases += [(lambda x: x.cumsum(1), lambda x: x.cumsum(1), (T,))]
    compare(n, cases if n == 2 else cases[::3])


@pytest.mark.parametrize("n", COUNTS)
def test_extremes_equal_numpy(n: int) -> None:
    cases: list[Any] = []
    for name in ("max", "min"):
        f, a, arg = getattr(np, name), f"a{name}", f"arg{name}"
        g = getattr(np, arg)
        for x in (X, N):
            cases += [
                (lambda x, m=name: getattr(x, m)(), f, (x,)),
                (lambda x, m=name: getattr(x, m)(1).values, lambda x, f=f: f(x, 1), (x,)),
                (lambda x, m=name: getattr(x, m)(0, keepdim=True)[0], lambda x, f=f: f(x, 0, keepdims=True), (x,)),
                (lambda x, m=name: getattr(x, m)(dim=-1)[1], lambda x, g=g: g(x, -1), (x,)),
                (lambda x, m=arg: getattr(x, m)(), g, (x,)),
                (lambda x, m=arg: getattr(x, m)(0, keepdim=True), lambda x, g=g: g(x, 0, keepdims=True), (x,)),
                (lambda x, m=a: getattr(x, m)((0, 1)), lambda x, f=f: f(x, (0, 1)), (x,)),
            ]
    cases += [(lambda x, y: x.max(y), np.maximum, (X, -X)), (lambda x: x.max(), np.max, (np.array(2.0),))]
    cases += [
        (lambda x: x.median(), lambda x: np.sort(x, None)[(x.size - 1) // 2], (X,)),
        (lambda x: x.median(1).values, lambda x: np.sort(x)[:, 2], (X,)),
    ]
    compare(n, cases)


@pytest.mark.parametrize("n", COUNTS)
def test_all_and_any_equal_numpy(n: int) -> None:
    cases: list[Any] = []
    for name in ("any", "all"):
        f = getattr(np, name)
        for x in (T, T | True, T & False):
            cases += [(getattr(reductions, name), f, (x,)), (lambda x, m=name: getattr(x, m)(1), lambda x, f=f: f(x, 1), (x,))]
        cases.append((lambda x, m=name: getattr(x, m)(0), lambda x, f=f: f(x, 0), (N,)))
    compare(n, cases)


@pytest.mark.parametrize("n", COUNTS)
def test_variances_norms_and_counts_equal_numpy(n: int) -> None:
    cases: list[Any] = [
        (lambda x: x.var(), lambda x: x.var(ddof=1), (X,)),
        (lambda x: x.var(1, unbiased=False, keepdim=True), lambda x: x.var(1, keepdims=True), (X,)),
        (lambda x: x.var(False), lambda x: x.var(), (X,)),
        (lambda x: x.std((0, 2)), lambda x: x.std((0, 2), ddof=1), (CUBE,)),
        (lambda x: x.std(correction=0), lambda x: x.std(), (X,)),
        (lambda x: x.var_mean(1)[0], lambda x: x.var(1, ddof=1), (X,)),
        (lambda x: x.std_mean()[1], np.mean, (X,)),
        (lambda x: x.nansum(0), lambda x: np.nansum(x, 0), (np.where(T, X, np.nan),)),
        (lambda x: x.count_nonzero(1), lambda x: np.count_nonzero(x, 1), (N % 3,)),
        (lambda x: x.logsumexp(1), lambda x: np.log(np.exp(x).sum(1)), (X,)),
        (lambda x: x.logsumexp((0, 1), keepdim=True), lambda x: np.log(np.exp(x).sum(keepdims=True)), (X,)),
        (lambda x: x.norm(), np.linalg.norm, (X,)),
        (lambda x: x.norm(2, 1), lambda x: np.linalg.norm(x, 2, 1), (X,)),
        (lambda x: x.norm(1, dim=0, keepdim=True), lambda x: np.linalg.norm(x, 1, 0, keepdims=True), (X,)),
        (lambda x: x.norm(float("inf")), lambda x: np.abs(x).max(), (X,)),
        (lambda x: x.norm(float("-inf"), 1), lambda x: np.abs(x).min(1), (X,)),
        (lambda x: x.norm(0), lambda x: float((x != 0).sum()), (X * (N % 2),)),
        (lambda x: x.norm(3, (1, 2)), lambda x: (np.abs(x) ** 3).sum((1, 2)) ** (1 / 3), (CUBE,)),
    ]
    compare(n, cases, 1e-8)


def test_layouts_of_reductions() -> None:
    def program(rank: int) -> Any:
        here = placement("cpu", [0, 1])
        x = ones(4, 6, placement=here, sbp=S(0))
        y = ones(4, 6, placement=here, sbp=P)
        return [z.sbp for z in (x.sum(), x.sum(1), x.mean(), x.sum(0), y.sum(), y.mean(1), x.amax(1), x.cumsum(1), y.cumsum(1))]

    for layouts in on_ranks(2, program):
        assert layouts == [(P,), (S(0),), (P,), (P,), (P,), (P,), (S(0),), (S(0),), (P,)]


@with_ranks(1, 4)
def test_reductions_of_short_axes_and_empty_tensors(n: int) -> None:
    here = placement("cpu", range(n))
    x = tensor([[3.0, -1.0, 2.0]], placement=here, sbp=S(0))
    assert x.sum().item() == 4 and x.max().item() == 3 and x.min(1).indices.tolist() == [1] and x.mean(0).tolist() == [3.0, -1.0, 2.0]
    assert tensor([[3.0, -1.0, 2.0]], placement=here, sbp=S(1)).max(1).indices.tolist() == [0]
    empty = zeros(0, 3, placement=here, sbp=S(0))
    assert empty.sum().item() == 0 and empty.sum(0).tolist() == [0.0] * 3 and np.isnan(empty.mean().item()) and empty.any().item() is False
    z = zeros(3, requires_grad=True)
    z.norm().backward()
    assert z.grad.tolist() == [0.0] * 3
    inf = tensor([-np.inf, -np.inf])
    assert inf.logsumexp(0).item() == -np.inf


@with_ranks(1)
def test_reductions_raise_for_invalid_types_and_axes() -> None:
    x = arange(6).reshape(2, 3)
    assert x.sum().dtype is int64 and x.bool().sum().dtype is int64 and x.sum(dtype=float64).dtype is float64 and x.argmax().dtype is int64
    assert (
        x.max(1).indices.dtype is int64
        and x.bool().any().dtype is bool_
        and x.float().mean().dtype is float32
        and x.mean(dtype=float32).item() == 2.5
    )
    values, indices = x.max(dim=1)
    assert values.tolist() == [2, 5] and indices.tolist() == [2, 2]
    for wrong, error, reason in (
        (lambda: x.sum(2), ShapeError, r"dim=2 is not an axis of int64\[2,3\], whose axes are -2 to 1"),
        (lambda: x.sum((0, 0)), ShapeError, "twice"),
        (lambda: x.mean(), DtypeError, "must have a floating point type"),
        (lambda: x.float().norm("spectral"), ArgumentError, "order of a norm"),
    ):
        with pytest.raises(error, match=reason):
            wrong()


def test_the_gradient_of_an_extreme_along_an_axis_goes_to_one_element() -> None:
    def program(rank: int) -> Any:
        x = tensor([[1.0, 3.0, 3.0]], requires_grad=True)
        x.max(1).values.sum().backward()
        first = x.grad.tolist()
        x.grad = None
        x.amax(1).sum().backward()
        return first, x.grad.tolist()

    assert on_ranks(1, program) == [([[0.0, 1.0, 0.0]], [[0.0, 0.5, 0.5]])]
