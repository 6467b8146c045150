"""Dry runs: their figures equal the plans of the ranks, and nothing starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jobflow.engine.session import Session
from jobflow.plan.footprint import footprint
from jobflow.plan.traffic import planned
from jobflow.program.commands import executors_of
from jobflow.trainer import preview
from jobflow.trainer.config import load
from jobflow.trainer.figures import environment
from jobflow.trainer.jobs import prepared
from jobflow.trainer.preview import Preview, Schedule, preview_of, strategy_text, warnings_of

MODEL = """\
name: small
model:
  layers: [{flatten: {}}, {dense: {units: 32, activation: relu}}, {dense: {units: 10}}]
  loss: softmax_cross_entropy
data:
  train: {reader: digits, split: train, edge: 8}
  batch_size: BATCH
optimizer: {name: adam, lr: 1e-3}
training: {epochs: 2}
strategy: STRATEGY
"""
SAMPLES = 1300


def loaded(folder: Path, strategy: str = "{devices: 2}", batch: int = 52) -> Any:
    (folder / "small.yaml").write_text(MODEL.replace("STRATEGY", strategy).replace("BATCH", str(batch)))
    return load(folder / "small.yaml")


@pytest.fixture
def no_world(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(session: Session) -> None:
        raise AssertionError("a dry run has started its ranks")

    monkeypatch.setattr(Session, "start", refuse)


def test_a_preview_has_sizes_and_steps(tmp_path: Path, no_world: None) -> None:
    plan = preview.preview(loaded(tmp_path))
    weights, biases = 64 * 32 + 32 * 10, 32 + 10
    assert plan.figures.parameters == weights + biases
    assert plan.figures.operations == 2 * 52 * (2 * 64 * 32 + 3 * 32 * 10), "forward, gradients of weights, and of the inner input"
    assert plan.figures.variable_bytes == pytest.approx(3 * 4 * (weights + biases), abs=64), "with the two moments of adam, and some scalars"
    assert plan.schedule == Schedule(SAMPLES, 52, 25, 50, None)
    assert len(plan.figures.ranks) == 2 and plan.figures.kinds() != []
    assert not (tmp_path / "runs").exists()


def test_the_text_has_all_figures(tmp_path: Path, no_world: None) -> None:
    plan = preview.preview(loaded(tmp_path, batch=51))
    text = plan.text()
    for words in (
        "small: 2 ranks: every batch is split over 2 ranks (data parallel)",
        "2,410",
        "1,300 for training, 51 in a batch",
        "52: 2 epochs of 26",
        "optimizer state",
        "peak at",
        "0-1",
        "a batch of 51 does not divide into 2 equal parts",
        "This was a dry run; no step was executed.",
    ):
        assert words in text
    assert max(map(len, text.splitlines())) < 170
    assert plan.schedule.last == SAMPLES % 51


@pytest.mark.parametrize(
    "strategy", ["{devices: 1}", "{devices: 2}", "{devices: 2, tensor: 2}", "{devices: 2, view: mirrored}", "{devices: 4, data: 2, tensor: 2}"]
)
def test_figures_equal_the_plans_of_the_ranks(tmp_path: Path, strategy: str) -> None:
    config = loaded(tmp_path, strategy)
    with prepared(config, only=("train",)) as run:
        preview_plan = preview_of(run)
        job = run.train(52)
        batch = run.samples["train"].read(np.arange(52))
        run.call(job, batch)
        assert run.session.world is not None
        plans = [next(e.plan for e in executors_of(rank).values()) for rank in run.session.world.ranks]
        for plan, figure in zip(plans, preview_plan.figures.ranks, strict=True):
            bound = footprint(plan)
            assert figure.traffic == planned(plan)
            for category in ("variables", "optimizer state"):
                assert figure.memory.at_peak[category] == bound.at_peak[category]
            # tests/runtime/test_allocated_memory.py compares what binding adds to the plan
            assert bound.total <= figure.memory.total + 4096


STRATEGY = SimpleNamespace(
    view="consistent", data=None, tensor=1, pipeline=1, zero=0, accumulation=1, microbatches=None, recompute=False, precision="float32"
)


def changed(**values: Any) -> SimpleNamespace:
    return SimpleNamespace(**{**vars(STRATEGY), **values})


@pytest.mark.parametrize(
    ("strategy", "ranks", "words"),
    [
        (changed(), 1, ["one rank"]),
        (changed(), 4, ["4 ranks: every batch is split over 4 ranks (data parallel)"]),
        (changed(tensor=4), 4, ["4 ranks: tensors of the model are split over 4 ranks (tensor parallel)"]),
        (changed(tensor=2, zero=1), 4, ["split over 2 groups of ranks", "split over 2 ranks", "optimizer state is sharded (ZeRO 1)"]),
        (changed(pipeline=2, microbatches=4), 2, ["2 pipeline stages", "4 microbatches"]),
        (changed(view="mirrored"), 2, ["mirrored view"]),
        (
            changed(accumulation=3, recompute=True, precision="bfloat16"),
            1,
            ["over 3 parts", "recomputed in the backward pass", "products in bfloat16"],
        ),
    ],
)
def test_strategies_in_words(strategy: SimpleNamespace, ranks: int, words: list[str]) -> None:
    assert all(word in strategy_text(strategy, ranks) for word in words)


SCHEDULE = Schedule(samples=1000, batch_size=64, steps_per_epoch=16, steps=160, last=40)


@pytest.mark.parametrize(
    ("schedule", "strategy", "words"),
    [
        (SCHEDULE, changed(), []),
        (replace(SCHEDULE, batch_size=6), changed(), ["gives each of 2 parts 3 samples"]),
        (replace(SCHEDULE, batch_size=65), changed(), ["does not divide into 2 equal parts"]),
        (replace(SCHEDULE, batch_size=64), changed(accumulation=16), ["gives each of 32 parts 2 samples"]),
        (replace(SCHEDULE, batch_size=64), changed(tensor=2), []),
        (replace(SCHEDULE, last=1), changed(), ["the last batch of an epoch has 1 sample", "drop_last"]),
        (replace(SCHEDULE, samples=32, last=32), changed(), ["larger than the data set of 32 samples"]),
        (replace(SCHEDULE, samples=None, last=None), changed(), []),
    ],
)
def test_unsuitable_batch_sizes_give_warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schedule: Schedule, strategy: SimpleNamespace, words: list[str]
) -> None:
    monkeypatch.setattr(preview, "usable_cores", lambda: range(64))
    warnings = list(warnings_of(small(tmp_path).figures, schedule, strategy))
    assert len(warnings) == bool(words) and all(word in warnings[0] for word in words)


def test_unsuitable_machines_and_ranks_give_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preview, "usable_cores", lambda: {0})
    monkeypatch.setattr(preview, "host_memory", lambda: 1000)
    ranks = small(tmp_path).figures.ranks
    idle = replace(small(tmp_path).figures, ranks=(ranks[0], replace(ranks[1], computing=0)))
    warnings = list(warnings_of(idle, SCHEDULE, changed()))
    assert (
        len(warnings) == 3
        and "rank 1 without computation" in warnings[0]
        and "2 ranks for 1 cores" in warnings[1]
        and "this machine has 1000 B" in warnings[2]
    )


def test_too_little_shared_memory_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preview, "usable_cores", lambda: range(64))
    monkeypatch.setenv("JOBFLOW_SHARED_MIB", "0.01")
    (warning,) = warnings_of(small(tmp_path).figures, SCHEDULE, changed())
    assert "too little shared memory: /dev/shm has" in warning and "JOBFLOW_SHARED_MIB allows 0.01 MiB" in warning


def small(folder: Path) -> Preview:
    if not _SMALL:
        _SMALL.append(preview.preview(loaded(folder)))
    return _SMALL[0]


_SMALL: list[Preview] = []


def test_the_environment_is_named() -> None:
    facts = environment(2)
    assert facts["NumPy"] == np.__version__ and "usable of" in facts["cores"] and facts["ranks"] == "2 (threads)" and facts["BLAS"]
    assert "ranks" not in environment()
