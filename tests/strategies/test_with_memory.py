"""Strategies beside gradient accumulation, activation checkpointing and mixed precision; and what they save."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gpt
import numpy as np
import pytest
import trained

import jobflow as flow
import jobflow.typing as tp
from jobflow import strategies as st
from jobflow.compiler.compile import plan_rank
from jobflow.compiler.layouts.box import Reroute
from jobflow.engine.session import current_session
from jobflow.kernels.target import CPU
from jobflow.plan.footprint import Footprint, footprint
from jobflow.plan.storage import RankMemory, place_variables

SIZE = trained.GPT
STRATEGIES = ("dp", "tp", "pp", "2x2", "zero=1,least=1", "zero=2,least=1", "zero=3,least=1", "tensor=2,zero=3,least=1", "pipeline=2,zero=2,least=1")


def curve(strategy: str | None, devices: int, checkpointing: bool = False, options: Callable[[Any], None] = lambda config: None) -> list[float]:
    """Three losses of the GPT in which every block is a region, or none is."""
    trained.begin(devices)
    config = flow.function_config()
    if strategy is not None:
        config.strategy(st.named(strategy))
    options(config)
    words_type = tp.Numpy.Placeholder((SIZE.batch, SIZE.length), dtype=flow.int32)
    block = gpt.block

    def region(x: Any, size: gpt.Size, name: str) -> Any:
        with flow.experimental.scope.config(checkpointing=checkpointing):
            return block(x, size, name)

    @flow.global_function("train", config)
    def train(words: words_type, following: words_type) -> tp.Numpy:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gpt, "block", region)
            logits = gpt.gpt(words, SIZE)
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(flow.reshape(following, [-1]), logits)
        flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.01])).minimize(loss)
        return loss

    batches = [trained.words(step, SIZE) for step in range(3)]
    return [float(train(words[:, :-1], words[:, 1:]).mean()) for words in batches]


@functools.cache
def expected() -> list[float]:
    return curve(None, 1)


def some(*chosen: str) -> list[Any]:
    """These strategies, and with --full all."""
    return [name if name in chosen else pytest.param(name, marks=pytest.mark.full) for name in STRATEGIES]


@pytest.mark.parametrize("strategy", some("tp", "pp", "2x2", "zero=3,least=1"))
def test_checkpointing(strategy: str) -> None:
    np.testing.assert_allclose(curve(strategy, 4, checkpointing=True), expected(), rtol=1e-5)


def test_the_output_of_a_stage_is_sent_once() -> None:
    """To the next stage and back; in the second pass of a region it is where it arrived."""

    def point_to_point(checkpointing: bool) -> list[str]:
        curve("pp", 4, checkpointing)
        (compiled,) = current_session()._compiled.values()
        nodes = compiled.programs[0].graph.nodes
        return sorted(f"{node.inputs[0].name} {node.op}" for node in nodes if isinstance(node.op, Reroute) and node.op.name == "move")

    once, again = point_to_point(False), point_to_point(True)
    assert len(once) == len(again) > 6, f"{again} is more than {once}"


@pytest.mark.parametrize("strategy", some("dp", "zero=1,least=1", "zero=2,least=1", "tensor=2,zero=3,least=1", "pipeline=2,zero=2,least=1"))
def test_accumulation(strategy: str) -> None:
    def in_two(config: Any) -> None:
        config.train.num_gradient_accumulation_steps(2)

    np.testing.assert_allclose(curve(strategy, 4, options=in_two), expected(), rtol=1e-5)


@pytest.mark.parametrize("strategy", ["dp", "tp", "pp", "zero=3,least=1", "tensor=2,zero=2,least=1"])
def test_half_precision(strategy: str) -> None:
    """Numbers are rounded to eight bits wherever they cross a layer, so that sums in another order show in the third digit."""

    def half(config: Any) -> None:
        config.mixed_precision(flow.bfloat16)

    np.testing.assert_allclose(curve(strategy, 4, options=half), expected(), rtol=1e-2)


def footprints(strategy: str) -> list[Footprint]:
    """Return the memory of each of 4 ranks."""
    curve(strategy, 4)
    (compiled,) = current_session()._compiled.values()
    plans = []
    for rank in range(4):
        slots, _ = place_variables(compiled.variables.values(), rank)
        plans.append(footprint(plan_rank(compiled.programs[rank], RankMemory(rank, slots), CPU)))
    return plans


def stored(each: Footprint) -> int:
    return each.at_peak["variables"] + each.at_peak["optimizer state"]


def test_zero_stores_a_quarter() -> None:
    whole, parts = footprints("dp")[0], footprints("zero=1,least=1")
    assert all(stored(part) < stored(whole) / 4 * 1.3 for part in parts), "but for the alignment of small variables"


def test_stage_3_drops_what_it_has_gathered() -> None:
    """Stages 1 and 2 are fullest where the backward pass begins, with all variables whole."""
    first, second, third = (footprints(f"zero={stage},least=1")[0].needed for stage in (1, 2, 3))
    assert third < second * 0.75 <= first * 0.75


def test_tensor_parallel_ranks_hold_parts_of_layers() -> None:
    whole, parts = footprints("dp")[0], footprints("tp")
    assert all(stored(part) < stored(whole) / 2 for part in parts), "the tables and the norms are whole"


def test_pipeline_ranks_hold_some_layers() -> None:
    whole, parts = footprints("dp")[0], footprints("pp")
    assert max(map(stored, parts)) < stored(whole) / 2
