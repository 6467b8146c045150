"""Functions of integer and bool tensors, and arguments that PyTorch accepts in several forms; the expected values are those of PyTorch 2.13."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jobflow as flow
import jobflow.nn.functional as F

Call = Callable[[], Any]


def ints(*values: Any) -> flow.Tensor:
    return flow.tensor(values, dtype=flow.int64)


def bools(*values: bool) -> flow.Tensor:
    return flow.tensor(values, dtype=flow.bool)


#: call -> element type and values
VALUES: dict[str, tuple[Call, Any, Any]] = {
    "relu": (lambda: F.relu(ints(-2, 3)), flow.int64, [0, 3]),
    "hardtanh": (lambda: F.hardtanh(ints(-2, 3), -1.5, 2.5), flow.int64, [-1, 2]),
    "softsign": (lambda: F.softsign(ints(-2, 3)), flow.float32, [-2 / 3, 0.75]),
    "tanhshrink": (lambda: F.tanhshrink(ints(-2, 3)), flow.float32, [-1.0359724, 2.0049453]),
    "poisson_nll_loss": (lambda: F.poisson_nll_loss(ints(0, 1), ints(2, 3)), flow.float32, (1 + np.e - 3) / 2),
    "cosine_embedding_loss": (lambda: F.cosine_embedding_loss(ints([1, 0]), ints([1, 1]), ints(1)), flow.float32, 1 - 0.5**0.5),
    "pairwise_distance": (lambda: F.pairwise_distance(ints(1, 2), ints(4, 6)), flow.float32, 5.0),
    "triplet_margin_loss": (lambda: F.triplet_margin_loss(ints([0, 0]), ints([3, 4]), ints([6, 8])), flow.float32, 0.0),
    "margin_ranking_loss": (lambda: F.margin_ranking_loss(ints(1, 2), ints(3, 1), ints(1, 1)), flow.float32, 1.0),
    "square": (lambda: flow.square(bools(True, False)), flow.int64, [1, 0]),
    "sign": (lambda: flow.sign(bools(True, False)), flow.bool, [True, False]),
    "prod": (lambda: bools(True, True).prod(), flow.int64, 1),
    "prod of bool": (lambda: bools(True, False).prod(dtype=flow.bool), flow.bool, False),
    "scatter_add": (lambda: flow.zeros(3, dtype=flow.bool).scatter_add(0, ints(0, 0), bools(True, True)), flow.bool, [True, False, False]),
    "index_add": (lambda: flow.zeros(2, dtype=flow.bool).index_add(0, ints(1, 1), bools(True, True)), flow.bool, [False, True]),
    "tensor of NumPy numbers": (lambda: flow.tensor([np.float64(1.5), 2]), flow.float64, [1.5, 2]),
    "tensor of arrays": (lambda: flow.tensor([np.ones(2), np.zeros(2)]), flow.float64, [[1, 1], [0, 0]]),
    "tensor of tensors": (lambda: flow.tensor([flow.ones(1, dtype=flow.float64)[0]]), flow.float64, [1]),
    "finfo": (lambda: flow.tensor(flow.finfo(flow.float16).max * 2), flow.float32, 131008.0),
    "lerp to the end": (lambda: flow.lerp(flow.tensor(1e30), flow.tensor(1.0), 1.0), flow.float32, 1.0),
    "lerp by tensors": (lambda: flow.lerp(flow.tensor([1e30, 0.0]), flow.tensor([1.0, 4.0]), flow.tensor([1.0, 0.25])), flow.float32, [1, 1]),
    "quantile beside infinity": (lambda: flow.quantile(flow.tensor([1.0, np.inf, -np.inf]), 0.3), flow.float32, -np.inf),
    "scatter": (lambda: ints(2, 5).scatter(0, ints(0, 0), ints(3, 4), reduce="multiply"), flow.int64, [24, 5]),
    "scatter of bool": (lambda: bools(True, True).scatter(0, ints(0), bools(False), reduce="multiply"), flow.bool, [False, True]),
    "repeat_interleave": (lambda: flow.repeat_interleave(ints(1, 2, 3)), flow.int64, [0, 1, 1, 2, 2, 2]),
    "repeat_interleave of slices": (lambda: ints([1, 2], [3, 4]).repeat_interleave(ints(0, 2), 0, output_size=2), flow.int64, [[3, 4], [3, 4]]),
    "repeat_interleave of elements": (lambda: ints([1, 2]).repeat_interleave(2), flow.int64, [1, 1, 2, 2]),
    "meshgrid": (lambda: flow.meshgrid([ints(1, 2), ints(3)], indexing="ij")[0], flow.int64, [[1], [2]]),
    "var_mean": (lambda: flow.var_mean(flow.tensor([1.0, 3.0]), correction=0)[0], flow.float32, 1.0),
    "std_mean": (lambda: flow.std_mean(flow.tensor([1.0, 3.0]), correction=0)[0], flow.float32, 1.0),
    "gaussian_nll_loss": (lambda: F.gaussian_nll_loss(flow.ones(2, 2), flow.zeros(2, 2), flow.ones(1, 2)), flow.float32, 0.5),
    "avg_pool2d": (lambda: F.avg_pool2d(flow.ones(1, 1, 2, 2), (2,), (), (0,)), flow.float32, [[[[1.0]]]]),
    "batch_norm": (lambda: F.batch_norm(flow.ones(0, 2, 3), flow.zeros(2), flow.ones(2), training=True).sum(), flow.float32, 0.0),
}
REFUSED: dict[str, tuple[Call, type[Exception], str]] = {
    "negative repeats": (lambda: flow.repeat_interleave(ints(1, 2), ints(1, -1), 0), flow.ArgumentError, "must not be negative; got -1"),
    "negative count": (lambda: flow.repeat_interleave(ints(1, 2), -1), flow.ArgumentError, "must not be negative; got -1"),
    "fractions": (lambda: flow.repeat_interleave(ints(1, 2), flow.ones(2), 0), flow.DtypeError, "must contain integers"),
    "number of repeats": (lambda: flow.repeat_interleave(ints(1, 2, 3), ints(1, 2), 0), flow.ShapeError, "a vector of 3"),
    "repeats alone": (lambda: flow.repeat_interleave(ints([1, 2])), flow.ShapeError, "repeats must be a vector"),
    "output_size": (lambda: flow.repeat_interleave(ints(1, 2), ints(1, 2), 0, output_size=4), flow.ShapeError, "3 slices, but output_size is 4"),
    "meshgrid": (lambda: flow.meshgrid([1, 2]), flow.DtypeError, "pass tensors, or one list of tensors"),
    "variance": (lambda: F.gaussian_nll_loss(flow.ones(2, 2), flow.zeros(2, 2), flow.ones(2, 3)), flow.ShapeError, "must have the shape of input"),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_and_types_equal_those_of_pytorch(name: str) -> None:
    call, dtype, expected = VALUES[name]
    result = call()
    assert result.dtype is dtype
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", REFUSED)
def test_bad_arguments_are_refused_with_their_values(name: str) -> None:
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        call()
