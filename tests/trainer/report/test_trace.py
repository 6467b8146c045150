"""Traces: the trace event format, separate computing, communication and waiting, and no effect on results."""

from __future__ import annotations

import copy
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import processes
import pytest
from trace_format import check_trace

import jobflow as flow
import jobflow.typing as tp
from jobflow.engine.session import current_session
from jobflow.program.commands import executors_of
from jobflow.runtime import timing
from jobflow.runtime.timing import offset
from jobflow.runtime.world.world import Rank
from jobflow.trainer.chrome_trace import Tracing, joined

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
#: by how much the clock of each rank is ahead
AHEAD = (0.0, 5.0, -3.0)


def job() -> Any:
    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((8, 6)), labels: tp.Numpy.Placeholder((8,), dtype=flow.int64)) -> tp.Numpy:
        first = flow.layers.dense(x, 16, activation=flow.nn.relu, kernel_initializer=flow.xavier_uniform_initializer(), name="first")
        logits = flow.layers.dense(first, 4, kernel_initializer=flow.xavier_uniform_initializer(), name="second")
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
        return loss

    @flow.global_function()
    def evaluate(x: tp.Numpy.Placeholder((8, 6))) -> tp.Numpy:
        return flow.math.reduce_sum(x)

    return train, evaluate


X = np.random.RandomState(0).rand(8, 6).astype(np.float32)
LABELS = np.arange(8) % 4


def losses(path: Path | None, devices: int, steps: int = 8) -> tuple[list[float], Tracing | None]:
    """Train, traced if a path is passed; another job runs in between."""
    flow.clear_default_session()
    flow.config.cpu_device_num(devices)
    train, evaluate = job()
    tracing = None if path is None else Tracing(path, first=3, steps=4)
    history = []
    for step in range(1, steps + 1):
        if tracing is not None:
            tracing.before(step)
        history.append(float(train(X, LABELS).mean()))
        if step in (4, 5):
            evaluate(X)
        if tracing is not None:
            tracing.after(step)
    if tracing is not None:
        tracing.close()
    return history, tracing


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_a_trace_of_threads_is_right(tmp_path: Path, devices: int) -> None:
    bare, _ = losses(None, devices)
    traced, tracing = losses(tmp_path / "deep" / "trace.json", devices)
    assert traced == bare, "recording changes no number"
    assert tracing is not None and tracing.traced is not None
    slices = check_trace(tmp_path / "deep" / "trace.json", devices, [3, 4, 5, 6])
    assert {event["cat"] for event in slices} >= ({"step", "compute", "communication"} if devices > 1 else {"step", "compute"})
    others = [event["name"] for event in slices if event["cat"] == "step" and "evaluate" in event["name"] and event["tid"] == 0]
    assert others == ["evaluate: run 1", "evaluate: run 2"]


def test_the_tables_add_up(tmp_path: Path) -> None:
    _, tracing = losses(tmp_path / "trace.json", 2)
    assert tracing is not None and tracing.traced is not None
    traced, rows = tracing.traced, tracing.traced.slowest(None)
    whole = sum(s.seconds for s in traced.slices if s.category == "step" and s.name.startswith("train"))
    parts = traced.parts()
    assert sum(sum(own.values()) for own in parts.values()) == pytest.approx(whole, rel=1e-6)
    computing = sum(row.seconds for row in rows if row.timed.category == "compute")
    assert computing == pytest.approx(sum(own["compute"] for own in parts.values()))
    assert sum(row.waiting for row in rows) == pytest.approx(sum(own["waiting"] for own in parts.values()))
    assert sum(row.share for row in rows) <= 1.0 and rows == sorted(rows, key=lambda row: -row.seconds)
    assert "matmul" in {row.timed.kernel for row in rows} and all(row.calls % 4 == 0 for row in rows), "4 steps, of ranks whose regions may differ"
    first = next(row for row in rows if "first" in row.timed.name).timed
    assert first.where.startswith("test_trace.py:")
    text = traced.text(top=5)
    assert "waiting" in text and f"{rows[0].timed.kernel}" in text and len(text.split("\n\n")[1].splitlines()) == 7


def test_executors_get_their_own_calls_back(tmp_path: Path) -> None:
    flow.config.cpu_device_num(2)
    train, _ = job()
    train(X, LABELS)
    world = current_session().world
    assert world is not None
    before = [dict(executors_of(rank)) for rank in world.ranks]
    bodies = [[copy.copy(executor.body) for executor in own.values()] for own in before]
    tracing = Tracing(tmp_path / "trace.json", first=1, steps=2)
    tracing.before(2)
    assert all(type(executor) is timing.TimedExecutor for rank in world.ranks for executor in executors_of(rank).values())
    train(X, LABELS)
    tracing.after(2)
    tracing.close()  # before its last step
    assert tracing.traced is not None and tracing.traced.steps == 1
    after = [executors_of(rank) for rank in world.ranks]
    assert all(mine[number] is executor for own, mine in zip(before, after, strict=True) for number, executor in own.items())
    assert [[executor.body for executor in own.values()] for own in after] == bodies
    tracing.before(9)
    assert not tracing.recording, "once"


def test_calls_on_a_gpu_are_timed_until_it_has_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    _, evaluate = job()
    evaluate(X)
    world = current_session().world
    assert world is not None
    plain = next(executor for executor in executors_of(world.ranks[0]).values() if executor.plan.job == "evaluate")
    finished: list[int] = []
    monkeypatch.setattr(plain, "device", SimpleNamespace(tag="gpu", synchronize=lambda: finished.append(1)))
    timed = timing.TimedExecutor(plain)
    for function, arguments in timed.body:
        function(*arguments)
    assert len(finished) == len(timed.body) == len(plain.body) > 0


def test_what_was_never_begun_ends_without_a_file(tmp_path: Path) -> None:
    tracing = Tracing(tmp_path / "trace.json", first=100)
    tracing.before(1)
    tracing.after(1)
    tracing.close()
    assert tracing.traced is None and not (tmp_path / "trace.json").exists()


def test_a_failed_step_is_not_in_the_track_of_its_rank(tmp_path: Path) -> None:
    flow.config.cpu_device_num(2)

    @flow.global_function()
    def check(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        return flow.math.relu(x)

    check(np.ones(4, np.float32))
    world = current_session().world
    assert world is not None
    tracing = Tracing(tmp_path / "trace.json", first=1, steps=3)
    tracing.before(1)
    check(np.ones(4, np.float32))
    executor = next(iter(executors_of(world.ranks[1]).values()))
    body = list(executor.body)
    executor.body[:] = [(_fail, ())]
    with pytest.raises(flow.errors.JobflowError, match="planned"):
        check(np.ones(4, np.float32))
    executor.body[:] = body
    check(np.ones(4, np.float32))
    tracing.after(2)
    tracing.close()
    slices = check_trace(tmp_path / "trace.json", 2, None)
    assert len([event for event in slices if event["tid"] == 1 and event["cat"] == "step"]) == 2


def _fail() -> None:
    raise ValueError("planned")


def _offset(rank: Rank, machine: str | None) -> float:
    return offset(rank.comm, machine or "one", lambda: time.perf_counter() + AHEAD[rank.index])


def test_clocks_of_machines_are_aligned() -> None:
    flow.config.cpu_device_num(3)
    world = current_session().start()
    offsets = world.call(_offset, ["here", "there", "elsewhere"])
    np.testing.assert_allclose(offsets, [-ahead for ahead in AHEAD], atol=0.02)
    assert world.call(_offset) == [0.0, 0.0, 0.0], "one machine has one clock"


def test_consecutive_waits_are_merged() -> None:
    assert list(joined([(0.0, 0.1), (0.1000001, 0.2), (0.5, 0.9)], stop=0.8)) == [(0.0, 0.2), (0.5, 0.8)]
    assert list(joined([], stop=1.0)) == []


def test_the_checker_refuses_what_is_wrong(tmp_path: Path) -> None:
    losses(tmp_path / "trace.json", 2)
    right = json.loads((tmp_path / "trace.json").read_text())
    last = next(i for i, e in enumerate(right["traceEvents"]) if e.get("cat") == "compute")
    for change in ({"ph": "Y"}, {"dur": -1.0}, {"dur": 1e9}, {"ts": float("nan")}, {"tid": 7}, {"cat": "waiting"}, {"name": 3}):
        wrong = copy.deepcopy(right)
        wrong["traceEvents"][last].update(change)
        (tmp_path / "wrong.json").write_text(json.dumps(wrong))
        with pytest.raises(AssertionError):
            check_trace(tmp_path / "wrong.json", 2, [3, 4, 5, 6])


@pytest.mark.mpi
@pytest.mark.parametrize("clients", ["single", "multi"])
def test_a_trace_of_processes_is_right(tmp_path: Path, clients: str) -> None:
    done = processes.run(HERE / "programs" / "traced_ranks.py", tmp_path / "trace.json", clients, ranks=2)
    assert (done.code, done.out) == (0, "checked 0\n"), done.err
