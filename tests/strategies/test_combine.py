"""Strategies put together, and strategies by name."""

from __future__ import annotations

from typing import Any

import pytest

import jobflow as flow
from jobflow import strategies as st
from jobflow.core.errors import ConfigError, PlacementError
from jobflow.core.layout import Placement
from jobflow.strategies.apply_hints import stage_placements


def placement(count: int) -> Placement:
    return Placement("cpu", tuple(range(count)))


@pytest.mark.parametrize(
    ("strategy", "mesh"),
    [
        (st.data_parallel(), (8,)),
        (st.combine(st.data_parallel(), st.tensor_parallel(2)), (4, 2)),
        (st.mesh(tensor=2, pipeline=2), (2, 2, 2)),
        (st.mesh(data=2, tensor=4, zero=1), (2, 4)),
        (st.combine(st.mesh(pipeline=2, data=2), st.tensor_parallel(2)), (2, 2, 2)),
    ],
)
def test_ranks_are_a_grid(strategy: st.Strategy, mesh: tuple[int, ...]) -> None:
    assert strategy.placement(placement(8)).mesh == mesh


def test_stages_are_parts_of_the_grid() -> None:
    outer = stage_placements(st.mesh(pipeline=2, tensor=2, data=1).dimensions, placement(4))
    assert [(part.ranks, part.mesh) for part in outer] == [((0, 1), (2,)), ((2, 3), (2,))]
    inner = stage_placements(st.combine(st.data_parallel(2), st.pipeline(2)).dimensions, placement(4))
    assert [(part.ranks, part.mesh) for part in inner] == [((0, 2), (2,)), ((1, 3), (2,))]


@pytest.mark.parametrize("strategy", [st.mesh(data=3), st.combine(st.data_parallel(), st.tensor_parallel()), st.tensor_parallel(16)], ids=str)
def test_sizes_that_do_not_fill_the_ranks(strategy: st.Strategy) -> None:
    with pytest.raises(PlacementError, match="the sizes do not match the 8 ranks of the job"):
        strategy.placement(placement(8))


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("dp", st.data_parallel()),
        ("tp4", st.tensor_parallel(4)),
        ("pp2", st.pipeline(2)),
        ("zero3", st.zero(3)),
        ("mirrored", st.mirrored()),
        ("2x3", st.combine(st.data_parallel(2), st.tensor_parallel(3))),
        ("2x2x2", st.combine(st.pipeline(2), st.data_parallel(2), st.tensor_parallel(2))),
        ("data=2,tensor=2,zero=1", st.combine(st.zero(1, 2), st.tensor_parallel(2))),
        ("pipeline=2,data=1,stages=4,schedule=interleaved,microbatches=8", st.pipeline(2, 8, "interleaved", 4)),
        ("tensor=2,zero=3,least=1", st.combine(st.zero(3, least=1), st.tensor_parallel(2))),
    ],
)
def test_names(text: str, strategy: st.Strategy) -> None:
    assert st.named(text) == strategy


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: st.named("zero4"), "unknown strategy 'zero4'; did you mean"),
        (lambda: st.named("data=two"), "unknown part 'data=two'"),
        (lambda: st.named("dtaa=2"), "did you mean"),
        (lambda: st.pipeline(2, schedule="2f2b"), "unknown pipeline schedule '2f2b'; use 1f1b, gpipe, interleaved"),
        (lambda: st.zero(4), "stage must be 1, 2 or 3, not 4"),
        (lambda: st.combine(), "pass at least one strategy"),
        (lambda: st.combine(st.zero, st.tensor_parallel(2)), "arguments must be strategies such as data_parallel(2)"),  # type: ignore[arg-type]
        (lambda: st.mesh(data=2, microbatches=4), "set train.num_gradient_accumulation_steps"),
        (lambda: st.mesh(data=2, columns=("a",)), "require tensor=2 or more"),
        (lambda: flow.function_config().strategy("dp"), "the value must be a strategy such as strategies.data_parallel(); got 'dp'"),
        (lambda: flow.function_config().strategy(st.zero), "the value must be a strategy"),
        (lambda: flow.function_config().strategy(), "called without a value; pass a value"),
    ],
)
def test_mistakes(make: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert message in str(caught.value)
