"""Masks of attention under all public names, eager and in graphs: fully masked queries, and masks of wrong shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs import graph_of
from ranks import on_ranks

import jobflow as flow

RANDOM = np.random.default_rng(4)
X, Y = RANDOM.standard_normal((3, 4, 8)), RANDOM.standard_normal((3, 5, 8))
#: per batch, which keys are hidden: all of the second
PADDING = np.array([[False, True, False, False, True], [True] * 5, [False] * 5])
LAYOUTS = [flow.sbp.broadcast, flow.sbp.split(0), flow.sbp.split(1)]


def attention(where: Any) -> Any:
    module = flow.nn.MultiheadAttention(8, 2, batch_first=True).double()
    draw = np.random.default_rng(5)
    for p in module.parameters():
        p.array[...] = draw.uniform(-1, 1, tuple(p.shape))
    return module if where is None else module.to_global(placement=where, sbp=flow.sbp.broadcast)


def answered(module: Any, x: Any, y: Any, padding: Any) -> tuple[Any, Any]:
    output, weights = module(x, y, y, key_padding_mask=padding)
    return output, weights


@pytest.mark.parametrize("kind", ["bool", "numbers"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_weights_of_a_fully_masked_query_are_zero(n: int, kind: str) -> None:
    mask = PADDING if kind == "bool" else np.where(PADDING, -np.inf, 0.25)

    def program(rank: int) -> None:
        here = flow.placement("cpu", range(n))
        expected, weights = answered(attention(None), flow.tensor(X), flow.tensor(Y), flow.tensor(mask))
        assert not weights[1].numpy().any() and np.allclose(weights[0].sum(-1).numpy(), 1)
        bias = attention(None).out_proj.bias.numpy()
        np.testing.assert_allclose(expected[1].detach().numpy(), np.broadcast_to(bias, (4, 8)))
        for how in LAYOUTS:
            x, y, hidden = (flow.tensor(a, placement=here, sbp=how) for a in (X, Y, mask))
            module = attention(here)
            for outputs in (answered(module, x, y, hidden), graph_of(lambda *xs, m=module: answered(m, *xs))(x, y, hidden)):
                np.testing.assert_allclose(outputs[0].detach().numpy(), expected.detach().numpy(), atol=1e-12, err_msg=str(how))
                np.testing.assert_allclose(outputs[1].detach().numpy(), weights.detach().numpy(), atol=1e-12, err_msg=str(how))

    on_ranks(n, program)


@pytest.mark.parametrize("n", [1, 2])
def test_a_fully_masked_query_has_no_gradient(n: int) -> None:
    mask_rows = np.ones((4, 5), bool)
    mask_rows[1] = False

    def program(rank: int) -> None:
        here = flow.placement("cpu", range(n))
        for how in LAYOUTS:
            q, k = (flow.tensor(a, placement=here, sbp=how, requires_grad=True) for a in (X, Y))
            mask = flow.tensor(mask_rows, placement=here, sbp=flow.sbp.split(0))
            flow.nn.functional.scaled_dot_product_attention(q, k, k, mask).square().sum().backward()
            for x in (q, k):
                assert np.isfinite(x.grad.numpy()).all()
            assert not q.grad.numpy()[:, 1].any() and q.grad.numpy()[:, 0].any()

    on_ranks(n, program)


def test_a_fully_masked_query_in_half_precision() -> None:
    q = flow.ones(2, 3, 4, dtype=flow.float16)
    hidden = flow.zeros(3, 3, dtype=flow.bool)
    assert not flow.nn.functional.scaled_dot_product_attention(q, q, q, hidden).numpy().any()


@pytest.mark.parametrize(
    ("masks", "facts"),
    [
        ({"key_padding_mask": np.zeros((5, 3), bool)}, ["key_padding_mask", "bool[5,3]", "[3, 5]"]),
        ({"key_padding_mask": np.zeros(5, bool)}, ["key_padding_mask", "bool[5]", "[3, 5]"]),
        ({"key_padding_mask": np.zeros((3, 5), np.int64)}, ["key_padding_mask", "int64[3,5]", "bool"]),
        ({"attn_mask": np.zeros((5, 4), bool)}, ["attn_mask", "bool[5,4]", "[4, 5]", "[6, 4, 5]"]),
        ({"attn_mask": np.zeros((3, 4, 5))}, ["attn_mask", "float64[3,4,5]", "[6, 4, 5]"]),
        ({"attn_mask": np.zeros((4, 5), np.int32)}, ["attn_mask", "int32[4,5]", "floating point"]),
    ],
)
def test_masks_of_the_wrong_shape_raise(masks: dict[str, Any], facts: list[str]) -> None:
    module = attention(None)
    mask_tensors = {name: flow.tensor(mask) for name, mask in masks.items()}
    with pytest.raises((flow.ShapeError, flow.DtypeError)) as raised:
        module(flow.tensor(X), flow.tensor(Y), flow.tensor(Y), **mask_tensors)
    for fact in [*facts, "test_attention.py"]:
        assert fact in str(raised.value)


def test_a_mask_that_would_broadcast_the_weights_raises() -> None:
    q = flow.ones(2, 4, 8)
    for shape in ((7, 2, 4, 4), (3, 4, 4), (4, 2), (4, 1, 4)):
        with pytest.raises(flow.ShapeError, match=r"attn_mask.*broadcast.*\[2, 4, 4\]"):
            flow.nn.functional.scaled_dot_product_attention(q, q, q, flow.ones(*shape, dtype=flow.bool))


@pytest.mark.parametrize("n", [1, 2])
def test_axes_before_the_last_two_broadcast(n: int) -> None:
    q, k, v = (RANDOM.standard_normal(shape) for shape in ((4, 2, 6), (3, 1, 5, 6), (4, 5, 2)))
    mask = RANDOM.standard_normal((3, 1, 2, 5))

    def program(rank: int) -> None:
        here = flow.placement("cpu", range(n))
        operands = [flow.tensor(a, placement=here, sbp=flow.sbp.split(0), requires_grad=True) for a in (q, k, v)]
        result = flow.nn.functional.scaled_dot_product_attention(*operands, flow.tensor(mask, placement=here, sbp=flow.sbp.split(0)))
        scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(6) + mask
        weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        np.testing.assert_allclose(result.detach().numpy(), weights @ v)
        result.sum().backward()
        np.testing.assert_allclose(operands[2].grad.numpy(), np.broadcast_to(weights.sum(-2)[..., None], (3, 4, 5, 2)).sum(0))

    on_ranks(n, program)


def test_halves_are_rounded_once() -> None:
    q, k, v = (RANDOM.standard_normal((2, 9, 16)).astype(np.float16) for _ in range(3))
    wide = flow.nn.functional.scaled_dot_product_attention(*(flow.tensor(a.astype(np.float32)) for a in (q, k, v)))
    result = flow.nn.functional.scaled_dot_product_attention(*map(flow.tensor, (q, k, v)))
    assert result.dtype is flow.float16
    np.testing.assert_array_equal(result.numpy(), wide.numpy().astype(np.float16))
