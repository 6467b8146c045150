"""Functions of tensors in graphs: the values equal those of eager execution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from of_function import OfFunction
from ranks import on_ranks, with_ranks

import jobflow as flow
from jobflow.core.layout import B, P, S
from jobflow.engine.placements import placement
from jobflow.functional import casting, comparing, creation, reductions, sampling

X, Y = np.random.default_rng(2).uniform(0.5, 2, (4, 6)), np.random.default_rng(3).uniform(-1, 1, (4, 6))


def written_over(x: Any, y: Any) -> Any:
    z = x * 1
    z += y
    z.mul_(2).clamp_(-1, 3)
    z[0] = 0.5
    return z


FUNCTIONS: list[Callable[..., Any]] = [
    lambda x, y: x + y * 2 - 3 / x + x // 0.3 + y % 0.7 + x**2 + x**y + 2**y,
    lambda x, y: (x.long() + y, x / 3, x.long() / 2, x.int() & 3, ~(x > 1), -x, abs(y)),
    lambda x, y: x @ y.t() + x.matmul(y.t()).sum(1),
    lambda x, y: comparing.where((x > y) | (y >= 0.5), x, 0.25),
    lambda x, y: (x == y, x != y, x.logical_not(), comparing.isclose(x, x + 1e-9), flow.maximum(x, y), flow.fmod(x, y)),
    lambda x, y: (x.sqrt().log().exp() + y.sin(), x.rsqrt(), y.erf(), y.floor(), y.round(), y.abs(), x.clamp(0.6, 1.1), x.clamp_min(1)),
    lambda x, y: (x.sum(), x.mean(0), x.prod(1), x.max(), x.amin(1, True), x.argmax(1), (x > 1).any(), (x > 0).all(0), x.cumsum(0)),
    lambda x, y: (*x.max(1), *x.min(0), x.var(), x.std(1), x.norm(), x.norm(1, 0), reductions.logsumexp(x, 1), x.median(1).values),
    lambda x, y: (x.to(flow.float32), x.half(), casting.cast(x, flow.int32), x.type_as(y.float()), x.to(sbp=S(1)), x.to_global(sbp=B)),
    lambda x, y: (creation.zeros_like(x), creation.ones_like(x, dtype=flow.int64), x.new_full((2, 2), 7), x.new_zeros(3), creation.full_like(y, 2)),
    lambda x, y: (x.clone(), x.detach() + y, x.contiguous(), x.data * 2),
    written_over,
]


def flat(output: Any) -> list[Any]:
    return [output] if isinstance(output, flow.Tensor) else [each for part in output for each in flat(part)]


@pytest.mark.parametrize("number", range(len(FUNCTIONS)))
@with_ranks(2)
def test_graphs_equal_eager_execution(number: int) -> None:
    here = placement("cpu", [0, 1])
    function = FUNCTIONS[number]
    for a, b in ((S(0), S(0)), (B, P), (S(1), B)):
        x, y = creation.tensor(X, placement=here, sbp=a), creation.tensor(Y, placement=here, sbp=b)
        graph = OfFunction(function)
        output, expected = flat(graph(x, y)), flat(function(x, y))
        assert len(output) == len(expected)
        for one, other in zip(output, expected, strict=True):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-9, atol=1e-12)


@with_ranks(2)
def test_functions_of_values_raise_in_a_graph() -> None:
    here = placement("cpu", [0, 1])
    x = creation.tensor(X, placement=here, sbp=S(0))
    for function, reason in (
        (lambda x, y: x.numpy(), "no values while nn.Graph.build runs"),
        (lambda x, y: x.sum().item(), "no values while nn.Graph.build runs"),
        (lambda x, y: x if x.sum() > 0 else y, "the truth value of a tensor"),
        (lambda x, y: x + np.ones((4, 6)), "NumPy array of shape"),
    ):
        with pytest.raises(flow.JobflowError, match=reason):
            OfFunction(function)(x, x)


def test_random_values_differ_between_runs() -> None:
    def program(rank: int) -> Any:
        here = placement("cpu", [0, 1])
        x = creation.tensor(X, placement=here, sbp=S(0))
        graph = OfFunction(lambda x, y: (sampling.randn_like(x), sampling.bernoulli(y / 3)))
        (a, b), (c, d) = ([each.numpy() for each in graph(x, x)] for _ in range(2))
        assert (a != c).any() and (b != d).any() and set(np.unique(b)) <= {0.0, 1.0}
        return a

    first, second = on_ranks(2, program)
    np.testing.assert_array_equal(first, second)
