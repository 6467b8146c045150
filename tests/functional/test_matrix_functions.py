"""Linear algebra, products, order statistics and index updates equal NumPy in every layout, and in graphs; errors name the argument."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import matrix_cases
import numpy as np
import pytest
from doors import gives, refuses
from everywhere import compare

import jobflow as flow

TABLES = {
    "linear algebra": matrix_cases.LINEAR_ALGEBRA,
    "products": matrix_cases.PRODUCTS,
    "rearranged": matrix_cases.REARRANGED,
    "ordered": matrix_cases.ORDERED,
    "updates": matrix_cases.UPDATES,
}


@pytest.mark.full
@pytest.mark.parametrize("table", TABLES)
def test_functions_equal_numpy_in_every_layout(table: str) -> None:
    """The laws of layouts compare these functions with those of local tensors in the default suite."""
    compare(2, TABLES[table], 1e-7)


@pytest.mark.parametrize("table", TABLES)
def test_functions_equal_numpy_eagerly_and_in_graphs(table: str) -> None:
    for function, reference, arguments in TABLES[table]:
        tensors = [flow.tensor(a) for a in arguments]
        calls = (function, flow.compile(function, fullgraph=True)) if table in ("linear algebra", "products", "updates") else (function,)
        for call in calls:
            np.testing.assert_allclose(call(*tensors).numpy(), reference(*arguments), rtol=1e-7, atol=1e-9)


def test_second_derivatives_of_factorizations_equal_differences() -> None:
    x = flow.tensor(matrix_cases.regular(1, 3, 3), requires_grad=True)
    for function in (flow.linalg.inv, flow.linalg.svdvals, lambda x: flow.linalg.qr(x)[1], flow.linalg.det):
        assert flow.autograd.gradcheck(function, (x,))
        assert flow.autograd.gradgradcheck(function, (x,))


@pytest.mark.parametrize(
    ("function", "facts"),
    [
        (lambda x: flow.linalg.inv(x * 0), ("linalg.inv", "singular", "pinv")),
        (lambda x: flow.linalg.cholesky(-x), ("linalg.cholesky", "positive definite")),
        (lambda x: flow.linalg.svd(x / 0), ("linalg.svd", "inf at [0, 0]", "finite")),
        (lambda x: flow.linalg.eigh(x * math.nan), ("linalg.eigh", "nan at [0, 0]", "finite")),
        (lambda x: flow.linalg.pinv(x * math.nan), ("linalg.pinv", "nan at [0, 0]", "finite")),
        (lambda x: flow.linalg.matrix_rank(x * math.nan), ("matrix_rank", "nan at [0, 0]", "finite")),
        (lambda x: flow.linalg.lstsq(x * math.nan, x), ("lstsq", "nan at [0, 0]", "finite")),
        (lambda x: flow.linalg.inv(x[:1]), ("linalg.inv", "[1,2]", "square")),
        (lambda x: flow.linalg.norm(x, "two"), ("matrix_norm", "'two'", "nuc")),
        (lambda x: flow.linalg.qr(x, "all"), ("linalg.qr", "'all'", "reduced")),
        (lambda x: x.quantile(1.5), ("quantile", "1.5", "0 to 1")),
        (lambda x: x.quantile(0.5, interpolation="cubic"), ("quantile", "'cubic'", "linear")),
        (lambda x: x.histc(0), ("histc", "0", "at least 1")),
        (lambda x: x.histc("4"), ("histc", "'4'", "whole number")),
        (lambda x: x.cummax("a"), ("cummax", "'a'", "whole number")),
        (lambda x: x.scatter_reduce(0, x.long(), x, "max"), ("scatter_reduce", "'max'", "amax")),
        (lambda x: x.index_put((1,), x), ("index_put", "tensors or None")),
        (lambda x: x.masked_scatter(x > -9, x[0]), ("masked_scatter", "2 elements of source")),
        (lambda x: flow.searchsorted(x, x, side="middle"), ("searchsorted", "'middle'", "left")),
        (lambda x: x.unfold(0, 3, 1), ("unfold", "3", "from 0 to 2")),
        (lambda x: x.tensor_split(0), ("tensor_split", "0", "at least 1")),
        (lambda x: flow.cdist(x, x, -1), ("cdist", "-1", "negative")),
        (lambda x: flow.tensordot(x, x, 5), ("tensordot", "5", "0 to 2")),
    ],
)
def test_errors_name_the_argument(function: Callable[[Any], Any], facts: tuple[str, ...]) -> None:
    refuses(function, [np.eye(2)], flow.JobflowError, *facts)


def test_functions_of_integers_equal_numpy() -> None:
    a, b = np.array([12, -7, 0, 5]), np.array([8, 14, 3, 70])
    gives(flow.gcd, [a, b], np.gcd(a, b))
    gives(flow.lcm, [a, b], np.lcm(a, b))
    gives(lambda x: x << 2, [a], a << 2)
    gives(lambda x, y: x >> y, [a, b], [0, -1, 0, 0])
    gives(flow.nextafter, [np.array([1.0, 2.0]), np.array([2.0, 2.0])], np.nextafter([1.0, 2.0], 2.0))


def test_methods_change_shape_and_elements_in_place() -> None:
    x = flow.arange(6).reshape(2, 3).float()
    y = x.clone()
    assert y.t_() is y and y.unsqueeze_(0).shape == (1, 3, 2) and y.squeeze_().shape == (3, 2)
    y[0] = 7
    np.testing.assert_array_equal(y.transpose_(0, 1).numpy(), [[7, 1, 2], [7, 4, 5]])
    np.testing.assert_array_equal(x.clone().fill_diagonal_(9).numpy(), [[9, 1, 2], [3, 9, 5]])
    np.testing.assert_array_equal(x.clone().apply_(lambda v: v + 1).map_(x, lambda a, b: a - b).numpy(), np.ones((2, 3)))
    np.testing.assert_array_equal(x.clone().resize_(4).numpy(), [0, 1, 2, 3])
    assert flow.tensor([1]).set_(x).shape == (2, 3)
    weight = flow.ones(2, 3, requires_grad=True)
    z = weight * 2
    z.t_()
    z[0] = 5
    (z * flow.arange(6).reshape(3, 2)).sum().backward()
    np.testing.assert_array_equal(weight.grad.numpy(), [[0, 4, 8], [0, 6, 10]])
    with pytest.raises(flow.JobError, match="a leaf"):
        weight.t_()


def test_random_fills_have_the_mean_of_their_distribution() -> None:
    flow.manual_seed(1)
    x = flow.zeros(20000, dtype=flow.float64)
    assert abs(x.exponential_(2).mean().item() - 0.5) < 0.02
    assert abs(x.geometric_(0.25).mean().item() - 4) < 0.1
    assert abs(x.log_normal_(0, 0.5).log().std().item() - 0.5) < 0.02
    assert abs(x.cauchy_(3).median().item() - 3) < 0.05
