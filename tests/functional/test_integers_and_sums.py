"""Integers in losses, einsum and matrix products of tensors: values and types as in PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

import jobflow as flow
from jobflow import nn
from jobflow.core.errors import DtypeError, JobflowError


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({}, 2 / 3),
        ({"reduction": "sum"}, 2.0),
        ({"reduction": "none"}, [2.0, 0.0, 0.0]),
        ({"margin": 0.5}, 1.0),
        ({"margin": 0.5, "reduction": "none"}, [2.5, 0.5, 0.0]),
    ],
)
@pytest.mark.parametrize("dtype", [flow.int32, flow.int64])
def test_margin_ranking_loss_of_integers_is_a_float(options: dict[str, Any], value: Any, dtype: Any) -> None:
    a, b, t = (flow.tensor(x, dtype=dtype) for x in ([1, 2, 3], [3, 2, 1], [1, -1, 1]))
    loss = nn.functional.margin_ranking_loss(a, b, t, **options)
    assert loss.dtype is flow.float32
    assert loss.numpy().tolist() == pytest.approx(value)


@pytest.mark.parametrize("loss", ["mse_loss", "l1_loss"])
def test_the_error_about_a_mean_of_integers_names_the_loss(loss: str) -> None:
    function, x = getattr(nn.functional, loss), flow.tensor([1, 2])
    with pytest.raises(DtypeError, match=rf"{loss} at test_integers_and_sums.py:\d+: the losses int64\[2\] .* have no mean; cast input and target"):
        function(x, x + 1)
    assert function(x, x + 1, reduction="sum").item() == 2


@pytest.mark.parametrize(
    ("equation", "count", "value", "dtype"),
    [
        ("ij->", 1, 800, "int64"),
        ("ij->j", 1, [400, 400], "int64"),
        ("ii->", 1, 400, "int64"),
        ("ii->i", 1, [200, 200], "uint8"),
        ("ij,kl->", 2, 640000, "int64"),
        ("ij,kl->ik", 2, [[160000, 160000], [160000, 160000]], "int64"),
        ("ij,kl->il", 2, [[160000, 160000], [160000, 160000]], "int64"),
        ("ij,jk->ik", 2, [[128, 128], [128, 128]], "uint8"),
        ("ij,ij->ij", 2, [[64, 64], [64, 64]], "uint8"),
    ],
)
def test_einsum_widens_integers_where_sum_does(equation: str, count: int, value: Any, dtype: str) -> None:
    results = flow.einsum(equation, *[flow.full((2, 2), 200, dtype=flow.uint8)] * count)
    assert results.dtype is getattr(flow, dtype)
    assert results.numpy().tolist() == value


def test_linalg_matmul_of_tensors_has_the_conventions_of_tensors() -> None:
    assert flow.linalg.matmul(flow.ones(2), flow.ones(2)).item() == 2
    assert flow.linalg.matmul(flow.ones(2, 2), flow.ones(2)).numpy().tolist() == [2, 2]
    assert flow.linalg.matmul(flow.ones(3, 2, 2), flow.ones(2, 2)).shape == (3, 2, 2)


@pytest.mark.parametrize("padding_idx", [1.0, 1.5, "1"])
def test_padding_idx_of_embedding_is_an_integer(padding_idx: Any) -> None:
    with pytest.raises(JobflowError, match="padding_idx"):
        nn.functional.embedding(flow.tensor([0, 1]), flow.ones(3, 2), padding_idx=padding_idx)


@pytest.mark.parametrize("ids", [[0.0, 1.0], [0.5, 1.7], [True, False]])
def test_embedding_raises_for_indices_that_are_not_integers(ids: Any) -> None:
    with pytest.raises(JobflowError, match="must be integers"):
        nn.functional.embedding(flow.tensor(ids), flow.ones(3, 2))
