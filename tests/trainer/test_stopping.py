"""Stopping: early stopping, clocks of allocations, signals, and the exchange between ranks."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from short_runs import CONFIG, check_same, loaded, run, write_config

from jobflow.trainer import stopping
from jobflow.trainer.callbacks import Callback
from jobflow.trainer.stopping import Agreement, Clock, Early, Request, Signals, end_of_allocation
from jobflow.trainer.training_run import AGAIN, INTERRUPTED, Outcome, StepReport, TrainingRun

# -------------------------------------------------------------------- early stopping


@pytest.mark.parametrize(
    "mode, delta, values, stops",
    [
        ("min", 0.0, [3, 2, 2, 1, 1, 1], 6),
        ("min", 0.0, [3, 4, 5], 3),
        ("min", 0.5, [3, 2.6, 2.4, 2.0, 1.95], 5),
        ("max", 0.0, [0.1, 0.2, 0.2, 0.1], 4),
        ("min", 0.0, [float("nan"), float("nan")], 2),
        ("min", 0.0, [float("nan"), 3, 2, 1], None),
    ],
)
def test_early_stopping_without_improvement(mode: str, delta: float, values: list[float], stops: int | None) -> None:
    early = Early("validation/loss", mode, patience=2, min_delta=delta)
    assert next((i for i, value in enumerate(values, 1) if early.heed(value)), None) == stops
    other = Early("validation/loss", mode, patience=2, min_delta=delta)
    other.restore(early.state())
    assert other == early and other.is_over == (stops is not None)


# -------------------------------------------------------------------- clocks


def test_the_end_of_an_allocation() -> None:
    assert end_of_allocation({}) is None
    assert end_of_allocation({"SLURM_JOB_END_TIME": "1700000000"}) == 1.7e9
    assert end_of_allocation({"PBS_JOBID": "7", "PBS_WALLTIME": "600"}, started=1000.0) == 1600.0
    assert end_of_allocation({"PBS_WALLTIME": "600"}) is None, "a variable that is left over in a shell"
    began = end_of_allocation({"PBS_JOBID": "7", "PBS_WALLTIME": "0"})
    assert began is not None and -2 < time.time() - began < 24 * 3600, "else from the start of this process, to the second"


def test_a_clock_ends_early_enough_to_save() -> None:
    now = [0.0]
    clock = Clock(deadline=1000.0, reserve=10.0, now=lambda: now[0])
    clock.saved(20.0)
    clock.saved(4.0)
    clock.stepped(2.0)
    clock.evaluated(5.0)
    # one and a half of the longest save, an evaluation, five steps, and the reserve
    last = 1000 - 30 - 5 - 5 * 2 - 10
    for now[0], up in ((last - 1.0, False), (last, True), (2000.0, True)):
        assert clock.is_up(5) is up
    clock.stepped(0.5)
    assert clock.step == 1.8, "a long step is forgotten slowly"
    assert not Clock(deadline=None).is_up(10**9)


def test_the_nearest_end_counts() -> None:
    allocation = {"SLURM_JOB_END_TIME": str(int(time.time()) + 100)}
    end = pytest.approx(time.monotonic() + 100, abs=2)
    assert Clock.of(None, {}).deadline is None
    assert Clock.of(None, allocation).deadline == end
    assert Clock.of(3600.0 * 48, allocation).deadline == end
    short = Clock.of(1.0, allocation)
    assert short.deadline is not None and short.deadline < time.monotonic() + 2 and short.reserve == 0.1


@pytest.mark.parametrize("jump", [-1e6, 1e6])
def test_a_change_of_the_system_time_does_not_change_a_time_limit(jump: float, monkeypatch: pytest.MonkeyPatch) -> None:
    long, short = Clock.of(3600.0 * 48, {}), Clock.of(0.01, {})
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + jump)
    assert not long.is_up() and short.is_up()


# -------------------------------------------------------------------- agreement


class Together:
    """A world whose other ranks send the test's requests."""

    multi = True

    def __init__(self, *others: Request) -> None:
        self.others = others
        self.calls = 0

    def start(self) -> Together:
        return self

    def call(self, command: Any) -> list[Request]:
        self.calls += 1
        return [command.item, *self.others]


@pytest.mark.parametrize(
    "mine, others, stop, why",
    [
        ("", [Request()], "", ""),
        ("terminated", [Request()], "terminated", "I"),
        ("", [Request("terminated", "rank 1")], "terminated", "rank 1"),
        ("terminated", [Request("interrupt", "rank 1")], "interrupt", "rank 1"),
        ("interrupt", [Request("terminated", "rank 1"), Request()], "interrupt", "I"),
    ],
)
def test_a_request_of_one_rank_stops_all(mine: str, others: list[Request], stop: str, why: str) -> None:
    world: Any = Together(*others)
    assert Agreement(world, Clock(), lambda: (mine, "I" if mine else "")).ask(1) == Request(stop, why, True)


def test_a_checkpoint_is_complete_when_all_ranks_are_done() -> None:
    for one in (True, False):
        for other in (True, False):
            world: Any = Together(Request(done=other))
            decision = Agreement(world, Clock(), lambda: ("", "")).ask(1, done=one)
            assert decision is not None and decision.done is (one and other)


def test_ranks_exchange_requests_every_fifth_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(stopping.time, "monotonic", lambda: now[0])
    world: Any = Together()
    agreement = Agreement(world, Clock(), lambda: ("", ""))
    steps_of_requests = []
    for step in range(1, 1001):
        now[0] += 0.001
        if agreement.ask(step) is not None:
            steps_of_requests.append(step)
    gaps = np.diff(steps_of_requests)
    assert gaps[0] == 1 and 199 <= gaps.max() <= 200 and world.calls == len(steps_of_requests) < 20
    # steps that have become slow are noticed with the next answer
    for step in range(1001, 1500):
        now[0] += 1.0
        if agreement.ask(step) is not None:
            break
    assert agreement.ask(step + 1) is not None


def test_the_end_of_the_time_is_a_reason_to_stop() -> None:
    world: Any = Together()
    agreement = Agreement(world, Clock(deadline=0.0), lambda: ("", ""))
    assert agreement.ask(1) == Request("terminated", "the time limit is near", True)


# -------------------------------------------------------------------- signals


class At(Callback):
    """A callback that sends this process signals after a step."""

    def __init__(self, step: int, *signals: int) -> None:
        self.when, self.signals = step, signals

    def on_step(self, run: TrainingRun, report: StepReport) -> None:
        if report.step == self.when:
            for number in self.signals:
                os.kill(os.getpid(), number)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("runs"), CONFIG.replace("every_steps: 1, keep_last: 99", "every_epochs: 9"))


@pytest.mark.parametrize("number, stopped, code", [(signal.SIGINT, "interrupt", INTERRUPTED), (signal.SIGTERM, "terminated", AGAIN)])
def test_a_signal_finishes_the_step_and_saves(number: int, stopped: str, code: int, file: Path, tmp_path: Path) -> None:
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    # step 4 ends an epoch: its evaluation is left for the run that goes on
    outcome, recorder = run(loaded(file, tmp_path / "a"), At(4, number))
    assert (outcome.step, outcome.stopped, outcome.exit_code) == (4, stopped, code)
    assert recorder.saves == ["step-00000004"] and not recorder.evaluations
    assert signal.Signals(number).name in outcome.message
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
    end, rest = run(loaded(file, tmp_path / "a"))
    whole, all_steps = run(loaded(file, tmp_path / "b"))
    assert list(rest.evaluations) == [4, 8, 9] == list(all_steps.evaluations)
    check_same(rest, all_steps, range(5, 10))
    assert end.metrics == pytest.approx(whole.metrics, rel=1e-6)


def test_the_second_ctrl_c_exits_at_once(file: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(loaded(file, tmp_path), At(2, signal.SIGINT, signal.SIGINT))
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_sigterm_twice_still_saves(file: Path, tmp_path: Path) -> None:
    outcome, _ = run(loaded(file, tmp_path), At(2, signal.SIGTERM, signal.SIGTERM, signal.SIGINT))
    assert (outcome.step, outcome.stopped) == (2, "terminated")


def test_the_time_limit_saves_in_time(file: Path, tmp_path: Path) -> None:
    outcome, recorder = run(loaded(file, tmp_path), time_limit=1e-6)
    assert (outcome.step, outcome.stopped, outcome.exit_code) == (1, "terminated", AGAIN)
    assert outcome.message == "the time limit is near" and recorder.saves == ["step-00000001"]


def test_other_threads_get_no_handlers() -> None:
    import threading

    without_request: list[bool] = []

    def enter() -> None:
        with Signals() as signals:
            without_request.append(signals.request == "" and signals.announced == "")

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert without_request == [True]


def test_outcomes_have_exit_codes() -> None:
    codes = {stopped: Outcome(1, 0, {}, stopped).exit_code for stopped in ("end", "early", "interrupt", "terminated", "nan")}
    assert codes == {"end": 0, "early": 0, "interrupt": 130, "terminated": 75, "nan": 3}
