"""Stages of nodes, pipeline order, and transfers that overlap with computation: each rank executes its row of the schedule."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp
from jobflow.compiler.compile import plan_rank
from jobflow.compiler.front.pipeline_order import Pipeline, pipeline_of
from jobflow.compiler.front.schedule import SCHEDULES
from jobflow.compiler.rank.lower import lower
from jobflow.core.errors import JobError, PlacementError
from jobflow.engine.session import current_session
from jobflow.graph.ir import Physical
from jobflow.kernels.target import CPU
from jobflow.ops.op import Op, ViewOp
from jobflow.plan.footprint import footprint
from jobflow.plan.plan import Compute, Plan, Transfer, Wait
from jobflow.plan.storage import RankMemory, place_variables


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


models = load(Path(__file__).parents[1] / "jobs" / "programs" / "pipelines.py")
models.STEPS = 1  # type: ignore[attr-defined] # the compiled program matters, not the training


@cache
def compiled(name: str, size: int, schedule: str, microbatches: int = 5) -> Physical:
    models.on_ranks(size, schedule, name, microbatches)
    (job,) = current_session()._compiled.values()
    return job.programs[0]


def plan_of(physical: Physical, rank: int) -> Plan:
    return plan_rank(physical, RankMemory(rank, place_variables(physical.graph.variables.values(), rank)[0]), CPU)


def pipeline_of_graph(physical: Physical, schedule: str) -> Pipeline:
    pipeline = pipeline_of(physical.graph, schedule)
    assert pipeline is not None
    return pipeline


def work(physical: Physical, rank: int) -> list[str]:
    """Return the passes and microbatches that a rank computes, in order."""
    program = lower(physical, RankMemory(rank, place_variables(physical.graph.variables.values(), rank)[0]), CPU)
    steps = [step for step in program.steps if isinstance(step.action, Op) and not isinstance(step.action, ViewOp) and step.microbatch is not None]
    return changes([f"{step.phase} {step.microbatch}" for step in steps])


def changes(each: list[str]) -> list[str]:
    """Yield the elements that differ from the preceding one; a rank may run two of its stages one after the other."""
    return [now for before, now in zip(["", *each], each, strict=False) if now != before]


#: one model with every schedule, the others with one each; with --full, all with all
ROWS = [("transformer", 4), ("transformer", 2), ("skips", 4), ("tied", 2), ("there_and_back", 3)]
TURNS = [*(("transformer", 4, schedule) for schedule in SCHEDULES), ("transformer", 2, "interleaved"), ("skips", 4, "1f1b"), ("tied", 2, "gpipe")]
TURNS += [("there_and_back", 3, "1f1b")]
REST = [pytest.param(*row, schedule, marks=pytest.mark.full) for row in ROWS for schedule in SCHEDULES if (*row, schedule) not in TURNS]


@pytest.mark.parametrize(("name", "size", "schedule"), [*TURNS, *REST])
def test_ranks_execute_their_schedule_rows(name: str, size: int, schedule: str) -> None:
    physical = compiled(name, size, schedule)
    pipeline = pipeline_of_graph(physical, schedule)
    assert len(pipeline.rows) == size
    for rank, row in enumerate(pipeline.rows):
        assert work(physical, rank) == changes([f"{task.direction} {task.microbatch}" for task in row])


def test_a_placement_used_twice_has_two_stages() -> None:
    assert pipeline_of_graph(compiled("there_and_back", 3, "1f1b"), "1f1b").form.groups == (0, 1, 2, 0)
    assert pipeline_of_graph(compiled("transformer", 2, "1f1b"), "1f1b").form.groups == (0, 1, 0, 1)


def test_one_placement_is_one_stage() -> None:
    """Treat gradient accumulation as a pipeline of one stage, in which a microbatch is finished before the next."""
    physical = compiled("straight", 1, "1f1b", 3)
    assert pipeline_of_graph(physical, "1f1b").form.groups == (0,)
    assert work(physical, 0) == [f"{way} {i}" for i in range(3) for way in ("forward", "backward")]


@cache
def needed(name: str, size: int, schedule: str, microbatches: int) -> list[int]:
    physical = compiled(name, size, schedule, microbatches)
    plans = [plan_of(physical, rank) for rank in range(size)]
    for plan in plans:
        assert plan.buffers["arena"] + plan.buffers["shared"] <= 1.25 * footprint(plan).needed
    return [footprint(plan).needed for plan in plans]


def test_1f1b_needs_less_memory_than_gpipe() -> None:
    """Run ten microbatches in four stages: they store 4, 3, 2 and 1 activations instead of 10 each."""
    less = [a / b for a, b in zip(needed("transformer", 4, "1f1b", 10), needed("transformer", 4, "gpipe", 10), strict=True)]
    assert less == sorted(less, reverse=True)
    assert less[0] < 0.65 and less[3] < 0.35


def test_activations_of_1f1b_do_not_grow_with_the_microbatches() -> None:
    """Run twice as many microbatches of half the rows.

    The last stage, which stores one activation, needs less memory; with gpipe it stores all.
    """
    assert needed("transformer", 4, "1f1b", 10)[3] < 0.8 * needed("transformer", 4, "1f1b", 5)[3]
    assert needed("transformer", 4, "gpipe", 10)[3] > 0.9 * needed("transformer", 4, "gpipe", 5)[3]


def test_ranks_compute_during_transfers() -> None:
    """Run the first of two stages by 1f1b: it computes the second microbatch while the activation of the first is transferred."""
    physical = compiled("straight", 2, "gpipe", 5)
    instructions = plan_of(physical, 0).body
    posts = {i.order: at for at, i in enumerate(instructions) if isinstance(i, Transfer) and i.sends}
    waits = {i.order: at for at, i in enumerate(instructions) if isinstance(i, Wait) and i.sends}
    assert posts and posts.keys() == waits.keys()
    between = [sum(not isinstance(i, Transfer | Wait) for i in instructions[posts[order] : waits[order]]) for order in posts]
    assert sum(count >= 2 for count in between) > len(between) * 3 / 4
    for at, instruction in enumerate(instructions):
        if isinstance(instruction, Wait) and not instruction.sends:
            reader = next(i for i in instructions[at:] if isinstance(i, Compute))
            assert (instruction.slot.buffer, instruction.slot.offset) in {(slot.buffer, slot.offset) for slot in reader.inputs}
    early = [order for order, at in first(instructions, Transfer).items() if first(instructions, Wait)[order] > at + 1]
    assert len(early) > 3 / 4 * len(first(instructions, Transfer))


def first(instructions: Sequence[Any], kind: type) -> dict[int, int]:
    """Return the positions of the posts or the waits of receives."""
    return {i.order: at for at, i in enumerate(instructions) if isinstance(i, kind) and not i.sends}


# -------------------------------------------------------------------- stages that programs name


def hinted(stages: tuple[int, int], placed: bool, schedule: str = "1f1b") -> list[float]:
    """Return two layers with `pipeline_stage_id_hint`, with or without placements."""
    flow.clear_default_session()
    flow.config.cpu_device_num(2)
    config = flow.function_config()
    config.default_data_type(flow.double)
    config.train.num_gradient_accumulation_steps(3)
    config.pipeline_schedule(schedule)

    def at(number: int) -> Any:
        return flow.experimental.scope.config(pipeline_stage_id_hint=stages[number])

    def on(number: int) -> Any:
        return flow.scope.placement("cpu", f"0:{number}" if placed else "0:0-1")

    @flow.global_function("train", config)
    def train_job(x: tp.Numpy.Placeholder((6, 4), dtype=flow.double)) -> tp.Numpy:
        with on(0), at(0):
            y = flow.math.tanh(flow.matmul(x, models.variable("w", 4, 5)))
        with on(1), at(1):
            loss = flow.math.reduce_mean(flow.math.square(flow.matmul(y, models.variable("v", 5, 2))), axis=1)
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0.0).minimize(loss)
        return loss

    data = np.arange(24.0).reshape(6, 4) / 24
    return [float(loss) for _ in range(3) for loss in train_job(data)]


def test_stage_hints_define_stages() -> None:
    expected = hinted((0, 1), placed=False)
    assert hinted((0, 1), placed=True) == pytest.approx(expected, rel=1e-12)
    (job,) = current_session()._compiled.values()
    assert pipeline_of_graph(job.programs[0], "1f1b").form.groups == (0, 1)


def test_stage_hints_without_placements_are_one_stage() -> None:
    hinted((0, 1), placed=False)
    (job,) = current_session()._compiled.values()
    assert pipeline_of_graph(job.programs[0], "1f1b").form.groups == (0,)


def test_stages_that_form_a_cycle_raise() -> None:
    with pytest.raises(PlacementError) as error:
        hinted((1, 0), placed=True)
    text = str(error.value)
    assert "is in stage 0 of the pipeline but reads" in text and "of stage 1" in text and "form a cycle" in text
    assert text.count("test_pipeline.py:") == 2 and "pipeline_stage_id_hint=1 or more" in text


def test_an_unknown_schedule_raises() -> None:
    with pytest.raises(
        JobError, match=r"pipeline_schedule\('zigzag'\) at .*test_pipeline.py:\d+: the schedule does not exist; use one of 1f1b, gpipe, "
    ):
        hinted((0, 1), placed=True, schedule="zigzag")
