"""Tests of every redistribution, run on threads: the result is the logical value, and the sent bytes equal the announced ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from boxed import Pair, agree
from traced import evaluate, first, on, run, trace

from jobflow.compiler.compile import distribute
from jobflow.compiler.front.trace import Tracer
from jobflow.compiler.rank.format import memory_orders
from jobflow.compiler.rank.lower import lower
from jobflow.core.layout import MAX, MIN, B, Layout, P, Partial, Placement, S, Sbp
from jobflow.core.types import DType, TensorType, float32, float64, int32
from jobflow.ops.activation import relu
from jobflow.ops.conv import conv
from jobflow.ops.layout_ops import to_layout
from jobflow.plan.storage import RankMemory


def kinds(ndim: int) -> list[Sbp]:
    return [B, P, Partial(MAX), Partial(MIN), *(S(axis) for axis in range(ndim))]


def everything(placement: Placement, ndim: int) -> Iterator[Pair]:
    for source, target in product(kinds(ndim), repeat=2):
        yield Layout(placement, (source,)), Layout(placement, (target,))


SHAPES = [(), (0,), (7,), (1,), (5, 3), (2, 9), (0, 3), (3, 0), (4, 1, 6), (3, 2, 2)]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_conversion_on_one_placement_keeps_values_and_announced_bytes(n: int, shape: tuple[int, ...]) -> None:
    agree(n, list(everything(first(n), len(shape))), TensorType(shape, float64))


@pytest.mark.parametrize("dtype", [float32, int32], ids=str)
def test_conversions_of_other_element_types_keep_values(dtype: DType) -> None:
    agree(3, list(everything(first(3), 2)), TensorType((5, 2), dtype))


def layouts(placement: Placement, each: Sequence[Sbp]) -> list[Layout]:
    """Return every layout on a mesh."""
    return [Layout(placement, sbp) for sbp in product(each, repeat=len(placement.mesh))]


def sampled(sources: list[Layout], targets: list[Layout], n: int) -> list[Pair]:
    """Return all pairs, or a random sample of n pairs."""
    pairs = list(product(sources, targets))
    if len(pairs) <= n:
        return pairs
    return [pairs[i] for i in np.random.default_rng(len(pairs)).choice(len(pairs), n, replace=False)]


def grid(*mesh: int) -> Placement:
    return Placement("cpu", tuple(range(math.prod(mesh))), mesh)


@pytest.mark.parametrize("shape", [(7, 5), (3, 4)], ids=str)
def test_every_conversion_on_a_2x2_mesh_keeps_values(shape: tuple[int, ...]) -> None:
    every = layouts(grid(2, 2), [B, P, S(0), S(1)])
    agree(4, list(product(every, every)), TensorType(shape, float64))


@pytest.mark.parametrize("mesh", [(2, 2), (3, 2), (2, 3), (2, 1, 2), (2, 2, 2)], ids=str)
@pytest.mark.parametrize("shape", [(), (5,), (1, 2), (7, 5), (0, 3), (3, 2, 9)], ids=str)
def test_conversions_on_larger_meshes_keep_values(mesh: tuple[int, ...], shape: tuple[int, ...]) -> None:
    every = layouts(grid(*mesh), kinds(len(shape)))
    agree(math.prod(mesh), sampled(every, every, 12), TensorType(shape, float64))


PLACEMENTS = {
    "disjoint": (on(0, 1), on(2, 3)),
    "subset": (first(4), on(1, 2)),
    "superset": (on(2), first(4)),
    "one to one": (on(3), on(0)),
    "overlap": (on(0, 1, 2), on(1, 2, 3)),
    "permuted": (first(3), on(2, 0, 1)),
    "gathered": (first(4), on(3)),
}


@pytest.mark.parametrize("case", PLACEMENTS)
@pytest.mark.parametrize("shape", [(), (0, 2), (7,), (5, 3), (1, 2)], ids=str)
def test_conversions_between_placements_keep_values(case: str, shape: tuple[int, ...]) -> None:
    before, after = PLACEMENTS[case]
    pairs = [(Layout(before, (a,)), Layout(after, (b,))) for a, b in product(kinds(len(shape)), repeat=2)]
    agree(4, pairs, TensorType(shape, float64))


MESHES = {
    "flat to square": (first(4), grid(2, 2)),
    "square to flat": (grid(2, 2), first(4)),
    "turned": (grid(2, 3), Placement("cpu", (0, 3, 1, 4, 2, 5), (3, 2))),
    "deeper": (grid(2, 4), grid(2, 2, 2)),
    "stages": (Placement("cpu", (0, 1, 2, 3), (2, 2)), Placement("cpu", (4, 5, 6, 7), (2, 2))),
    "overlap": (Placement("cpu", (0, 1, 2, 3, 4, 5), (3, 2)), Placement("cpu", (2, 3, 4, 5), (2, 2))),
    "one to square": (on(5), grid(2, 2)),
    "square to one": (grid(2, 2), on(1)),
}


@pytest.mark.parametrize("case", MESHES)
@pytest.mark.parametrize("shape", [(), (7,), (5, 3)], ids=str)
def test_conversions_between_meshes_keep_values(case: str, shape: tuple[int, ...]) -> None:
    before, after = MESHES[case]
    each = kinds(len(shape))
    agree(1 + max(*before.ranks, *after.ranks), sampled(layouts(before, each), layouts(after, each), 12), TensorType(shape, float64))


@pytest.mark.parametrize("n", [2, 3])
def test_conversions_of_images_with_the_batch_innermost_keep_values(n: int) -> None:
    """Redistribute the output of a convolution, which is stored as c, h, w, n; routes still transfer logical pieces."""
    random = np.random.default_rng(1)
    x, w = random.normal(size=(9 * n - 1, 2, 4, 4)), random.normal(size=(3, 2, 3, 3))

    def body(tracer: Tracer) -> tuple[Any, ...]:
        image = tracer.input("x", TensorType(x.shape, float64))
        y = relu(conv(image, tracer.input("w", TensorType(w.shape, float64), split=False), padding="same_lower"))
        return tuple(to_layout(to_layout(y, a), b) for a, b in product(kinds(4), repeat=2))

    graph = trace(body, first(n))
    assert any(order == (1, 2, 3, 0) for order in memory_orders(lower(distribute(graph), RankMemory(0, {}))).values()), "nothing is stored so"
    (expected, *_), _ = evaluate(graph, {"x": x, "w": w}, {})
    for result in run(n, body, x=x, w=w):
        np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)
