"""Tests that passes do not change their input, for all examples."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest

import jobflow as flow
from jobflow.compiler import compile as stages
from jobflow.compiler.rank.local import LocalInstruction, LocalValue, RankProgram
from jobflow.compiler.rank.order import Ordered
from jobflow.engine.job import Job, job_of
from jobflow.graph.graph_text import graph_text, physical_text, sharded_text
from jobflow.graph.ir import Graph, Node, Physical, Sharded, Value
from jobflow.graph.traced import Traced
from jobflow.tools.explain import laid_out, load_job

EXAMPLES = Path(__file__).parents[2] / "examples"
STAGES = """prepared lower_precision differentiate unroll guard simplify pipeline recompute shard box bucket
    divide_updates view_shared_arguments lower write zero_copy_feeds fuse order overlap plan_memory"""


def snapshot(whole: Any) -> Any:
    """Return a comparable copy of the whole input of a stage."""
    if isinstance(whole, Traced):
        values = (getattr(whole, each.name) for each in fields(whole))
        return [copy(value) if isinstance(value, dict) else value for value in values]
    if isinstance(whole, Physical):
        return physical_text(whole), dict(whole.layouts), snapshot(whole.graph)
    if isinstance(whole, Sharded):
        return sharded_text(whole), dict(whole.layouts), dict(whole.read_layouts), snapshot(whole.graph)
    if isinstance(whole, Graph):
        return graph_text(whole), whole.nodes, dict(whole.variables), dict(whole.reads), dict(whole.updates)
    if isinstance(whole, RankProgram):
        return whole.steps, [repr(item) for step in whole.steps for item in (*step.inputs, *step.outputs)], dict(whole.reads), dict(whole.updates)
    if isinstance(whole, Ordered):
        return whole.body, whole.epilogue, snapshot(whole.program)
    if isinstance(whole, list | tuple):
        return list(map(snapshot, whole))
    return str(whole)


@pytest.fixture
def counted_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """Count the runs of each stage; fail if a stage changes its input."""
    counts = dict.fromkeys(STAGES.split(), 0)

    def counting(name: str, stage: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            before = [snapshot(one) for one in arguments]
            result = stage(*arguments, **named)
            assert [snapshot(one) for one in arguments] == before, f"{name} has changed its input"
            counts[name] += 1
            return result

        return run

    for name in counts:
        monkeypatch.setattr(stages, name, counting(name, getattr(stages, name)))
    yield counts


def jobs() -> Iterator[Job]:
    for name in ("hybrid_mlp", "hybrid_mlp_optimizer"):
        yield load_job(f"{EXAMPLES}/{name}.py:train_job")
    gpt = runpy.run_path(str(EXAMPLES / "gpt.py"))
    size = gpt["Size"](length=8, width=16, heads=2, blocks=2, words=32, checkpointing=True)
    yield job_of(gpt["make_train_job"](size, strategy=flow.strategies.named("2x2"), microbatches=3))
    yield job_of(halves(gpt, size))


def halves(gpt: dict[str, Any], size: Any) -> Any:
    """Return a program in half precision with a dynamic loss scale and watches."""
    config = flow.function_config()
    config.enable_auto_mixed_precision(True)

    @flow.global_function("train", config)
    def job(words: flow.typing.Numpy.Placeholder((8, 8), dtype=flow.int32)) -> flow.typing.Numpy:  # type: ignore[valid-type]
        loss = flow.math.reduce_mean(gpt["gpt"](words, size))
        flow.watch(loss)
        flow.watch_diff(loss)
        scale = flow.optimizer.loss_scale.dynamic_loss_scale(increment_period=3)
        flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), loss_scale_policy=scale).minimize(loss)
        return loss

    return job


@pytest.mark.parametrize(
    "kind", [Traced, Value, Node, Graph, Sharded, Physical, LocalValue, LocalInstruction, RankProgram, Ordered], ids=lambda kind: kind.__name__
)
def test_inputs_and_outputs_of_passes_are_frozen(kind: Any) -> None:
    some = object.__new__(kind)
    with pytest.raises(FrozenInstanceError):
        setattr(some, fields(kind)[0].name, None)


def test_no_pass_changes_its_input(counted_runs: dict[str, int]) -> None:
    for job in jobs():
        flow.clear_default_session()
        runs = laid_out(job, 4)
        stages.distribute(runs.logical)
        runs.plan(1)
    flow.clear_default_session()
    assert all(counted_runs.values()), counted_runs
