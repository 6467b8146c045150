"""Callbacks: their events, their requests on several ranks and in resumed runs, and their errors."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from short_runs import CONFIG, check_same, loaded, run, write_config
from stopping_callbacks import Changer

from jobflow.core.errors import ConfigError
from jobflow.storage import store
from jobflow.trainer import Callback, TrainingRun, train
from jobflow.trainer.callback_requests import CHANGING
from jobflow.trainer.learning_rate_finder import LearningRateFinder
from jobflow.trainer.training_run import CallbackError, EvaluationReport, Outcome, StepReport

HERE = Path(__file__).parent
CHANGER = "callbacks:\n  - {callback: stopping_callbacks:Changer, arguments: {last: 8}}\n"
SHORT = CONFIG.replace("steps: 9", "steps: 1").replace("every_steps: 1, keep_last", "every_steps: 5, keep_last")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(HERE)
        path = tmp_path_factory.mktemp("callbacks")
        write_config(path / "changed", CONFIG + CHANGER)
        write_config(path / "short", SHORT)
        yield path


def test_requests_are_equal_on_ranks_and_after_a_resume(folder: Path) -> None:
    file = folder / "changed" / "run.yaml"
    whole, all_steps = run(loaded(file, folder / "whole"))
    assert (whole.step, whole.stopped, whole.exit_code) == (8, "callback", 0)
    assert re.fullmatch(r"stopping_callbacks:Changer stopped the run: loss [\d.]+ in process \d+", whole.message)
    assert whole.metrics["own/count"] == 8 and whole.metrics["own/bias"] > 1
    rates = [report.rate for report in all_steps.steps.values()]
    unchanged = [0.025, 0.0375, *(0.05 * 0.5 * (1 + math.cos(math.pi * step / 9)) for step in range(2, 8))]
    assert rates == pytest.approx([rate * (1 if step < 3 else 0.5) for step, rate in enumerate(unchanged)])
    assert all_steps.steps[5].loss != pytest.approx(all_steps.steps[4].loss)
    run(loaded(file, folder / "parts", "training.steps=5", "optimizer.schedule.steps=9"))
    part, rest = run(loaded(file, folder / "parts", "strategy.devices=2"))
    assert list(rest.steps) == [6, 7, 8] and part.metrics["own/count"] == 8 and part.stopped == "callback"
    check_same(rest, all_steps, [6, 7, 8])


def test_a_stopped_run_is_complete_until_its_callback_changes(folder: Path) -> None:
    file = folder / "changed" / "run.yaml"
    run(loaded(file, folder / "stopped", "callbacks.0.arguments.last=2"))
    again, rest = run(loaded(file, folder / "stopped", "callbacks.0.arguments.last=2"))
    assert (again.step, again.stopped) == (2, "callback") and not rest.steps
    assert "stopped by a callback at step 2 of 9" in again.message and "omit the callback stopping_callbacks:Changer" in again.message
    longer, rest = run(loaded(file, folder / "stopped", "callbacks.0.arguments.last=3"))
    assert (longer.step, longer.stopped) == (3, "callback") and list(rest.steps) == [3]
    without, rest = run(loaded(file, folder / "stopped", "callbacks=[]", "training.steps=4", "optimizer.schedule.steps=9"))
    assert (without.step, without.stopped) == (4, "end") and list(rest.steps) == [4]


class Events(Callback):
    """Record events; try a request at each."""

    def __init__(self, request: Callable[[TrainingRun], Any]) -> None:
        self.request, self.refused, self.events = request, dict[str, str](), list[str]()

    def _at(self, run: TrainingRun, event: str) -> None:
        self.events.append(event)
        try:
            self.request(run)
        except CallbackError as error:
            self.refused[event] = str(error)

    def on_start(self, run: TrainingRun) -> None:
        self._at(run, "on_start")

    def on_step(self, run: TrainingRun, report: StepReport) -> None:
        self._at(run, "on_step")

    def on_evaluation(self, run: TrainingRun, report: EvaluationReport) -> None:
        self._at(run, "on_evaluation")

    def on_checkpoint(self, run: TrainingRun, path: Any) -> None:
        self._at(run, "on_checkpoint")

    def on_end(self, run: TrainingRun, outcome: Outcome) -> None:
        self._at(run, "on_end")


def set_rate(run: TrainingRun) -> None:
    run.lr = 0.01


REQUESTS: dict[str, tuple[Callable[[TrainingRun], Any], tuple[str, ...]]] = {
    "read": (lambda run: run.read(run.parameters[0]), (*CHANGING, "on_checkpoint", "on_end")),
    "write": (lambda run: run.write("dense1-bias", np.zeros(12)), CHANGING),
    "lr": (set_rate, CHANGING),
    "stop": (lambda run: run.stop(), (*CHANGING, "on_checkpoint")),
    "log": (lambda run: run.log("own", 1), ("on_step", "on_evaluation")),
}


@pytest.mark.parametrize("names", [("read", "write", "lr", "log"), ("stop",)], ids=" ".join)
def test_requests_are_accepted_at_their_events(names: tuple[str, ...], folder: Path, tmp_path: Path) -> None:
    callbacks = {what: Events(REQUESTS[what][0]) for what in names}
    ended = train(loaded(folder / "short" / "run.yaml", tmp_path), callbacks=[*callbacks.values()])
    for what, callback in callbacks.items():
        assert set(callback.refused) == set(callback.events) - set(REQUESTS[what][1]), what
        assert all(f"run.{what} at test_callbacks.py:" in text and f"{event} cannot use it" in text for event, text in callback.refused.items())
    steps = [] if names == ("stop",) else ["on_step", "on_evaluation"]
    assert callbacks[names[0]].events == ["on_start", *steps, "on_checkpoint", "on_end"]
    assert (ended.stopped, ended.step) == (("callback", 0) if names == ("stop",) else ("end", 1))


WRONG: dict[str, tuple[Callable[[TrainingRun], Any], str]] = {
    "a name": (lambda run: run.read("dense1-bia"), r'the model has no variable "dense1-bia"; did you mean "dense1-bias"\?'),
    "a shape": (lambda run: run.write("dense1-bias", [1.0]), r'variable "dense1-bias" has shape \[12\], and the value \[1\]; pass the same shape'),
    "a value": (lambda run: run.write("dense1-bias", ["a"] * 12), r'the value of "dense1-bias" is no array of numbers'),
    "complex": (lambda run: run.write("dense1-bias", np.ones(12) * 1j), r'the value of "dense1-bias" is no array of numbers: it is complex; write'),
    "a large value": (
        lambda run: run.write("dense1-bias", np.full(12, 1e300)),
        r'"dense1-bias" has 1e\+300, beyond the range of float32; pass smaller',
    ),
    "a batch": (lambda run: run.predict(None), r"the batch is None; pass a dict of arrays by field"),  # type: ignore[arg-type]
    "a count": (lambda run: run.examples(-1), r"the count is -1; pass a whole number of 1 or more"),
    "a rate": (lambda run: setattr(run, "lr", -1.0), r"the learning rate must be a finite number that is not negative, not -1.0"),
    "a reason": (lambda run: run.stop(3), r"the reason must be a text, not 3"),  # type: ignore[arg-type]
    "a number": (lambda run: run.log("own", "1"), r"pass a name and a number, not 'own' and '1'"),  # type: ignore[arg-type]
    "a column": (lambda run: run.log("rate", 1.0), r'"rate" is a value of the trainer; choose another name, such as "own/rate"'),
    "letters": (lambda run: run.log("a\nb", 1.0), r"is no name of a value; write letters"),
}
#: requests that only on_start may use
WRONG_AT_START: dict[str, tuple[Callable[[TrainingRun], Any], str]] = {
    "a metric": (lambda run: run.keep_best("zz", "min", 1), 'the evaluations measure no metric "zz"'),
    "a mode": (lambda run: run.keep_best("validation/loss", "mid", 1), "mode is 'mid'; pass \"min\" if smaller values are better"),
    "no checkpoints": (lambda run: run.keep_best("validation/loss", "min", 0), "the count is 0; pass a whole number of 1 or more"),
}


def test_wrong_requests_are_refused(folder: Path) -> None:
    wrong = {name: ("on_step", *one) for name, one in WRONG.items()} | {name: ("on_start", *one) for name, one in WRONG_AT_START.items()}
    callbacks = {name: Events(request) for name, (_, request, _) in wrong.items()}
    train(loaded(folder / "short" / "run.yaml", folder / "wrong"), callbacks=[*callbacks.values()])
    for name, (event, _, message) in wrong.items():
        assert re.search(rf"run\.\w+ at test_callbacks.py:\d+: .*{message}", callbacks[name].refused[event], re.DOTALL), callbacks[name].refused


class Generator(Callback):
    def on_step(self, run: TrainingRun, report: StepReport) -> Any:
        yield


def test_a_generator_is_no_method_of_a_callback(folder: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"callback .*Generator: on_step at test_callbacks.py:\d+ contains yield, so a call would not run it; remove"
    ):
        train(loaded(folder / "short" / "run.yaml", folder / "generator"), callbacks=[Generator()])


class Exiting(Callback):
    def on_start(self, run: TrainingRun) -> None:
        sys.exit(0)


def test_a_callback_that_exits_is_an_error(folder: Path) -> None:
    with pytest.raises(CallbackError, match=r"Exiting: on_start at test_callbacks.py:\d+ raised SystemExit at the start: 0; call run.stop\(\)"):
        train(loaded(folder / "short" / "run.yaml", folder / "exiting"), callbacks=[Exiting()])


EVENTS = ("the constructor", "on_start", "on_step", "on_epoch", "on_evaluation", "on_checkpoint", "on_end", "state_dict")


@pytest.mark.parametrize("event", EVENTS)
def test_an_exception_ends_the_run_with_the_line_of_the_callback(event: str, folder: Path, tmp_path: Path) -> None:
    raiser = f'callbacks=[{{callback: "stopping_callbacks:Raiser", arguments: {{event: "{event}", note: "{tmp_path / "note"}"}}}}]'
    line = next(number for number, text in enumerate((HERE / "stopping_callbacks.py").read_text().splitlines(), 1) if "the line of Raiser" in text)
    message = rf"callback stopping_callbacks:Raiser: {event} at stopping_callbacks.py:{line} raised LookupError at .*: nothing here; correct"
    with pytest.raises(CallbackError, match=message) as error:
        train(loaded(folder / "short" / "run.yaml", tmp_path / "out", raiser, "data.batch_size=26"))
    assert isinstance(error.value.__cause__, LookupError)
    assert event == "the constructor" or (tmp_path / "note").read_text() == "CallbackError\n"


def test_an_exception_of_load_state_dict_names_the_callback(folder: Path, tmp_path: Path) -> None:
    raiser = 'callbacks=[{callback: "stopping_callbacks:Raiser", arguments: {event: load_state_dict}}]'
    train(loaded(folder / "short" / "run.yaml", tmp_path, raiser))
    with pytest.raises(CallbackError, match=r"Raiser: load_state_dict at stopping_callbacks.py:\d+ raised LookupError at step 1: nothing here"):
        train(loaded(folder / "short" / "run.yaml", tmp_path, raiser, "training.steps=2", "optimizer.schedule.steps=9"))


def test_states_are_trees_of_json(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CallbackError, match=r"stopping_callbacks:Raiser: state_dict returned a tree that JSON changes .* is not JSON serializable"):
        train(loaded(folder / "short" / "run.yaml", tmp_path, 'callbacks=[{callback: "stopping_callbacks:Raiser", arguments: {event: state}}]'))


def test_a_checkpoint_has_the_state_of_its_step_although_a_list_grows(folder: Path, tmp_path: Path) -> None:
    class Growing(Callback):
        steps: ClassVar[list[int]] = []

        def on_step(self, run: TrainingRun, report: StepReport) -> None:
            self.steps.append(report.step)

        def state_dict(self) -> dict[str, Any]:
            return {"steps": self.steps}

    train(loaded(folder / "changed" / "run.yaml", tmp_path, "callbacks=[]", "checkpoint.asynchronous=true"), callbacks=[Growing()])
    for step in range(1, 10):
        (state,) = store.load(tmp_path / "checkpoints" / f"step-{step:08d}").extra["callbacks"].values()
        assert state == {"steps": list(range(1, step + 1))}


def test_errors_of_on_exception_do_not_replace_the_cause(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = 'callbacks=[{callback: "stopping_callbacks:Raiser", arguments: {event: on_exception}}, {callback: "stopping_callbacks:Raiser", arguments: {event: on_step}}]'  # noqa: E501
    with pytest.raises(CallbackError, match=r"callback stopping_callbacks:Raiser \(2\): on_step"):
        train(loaded(folder / "short" / "run.yaml", tmp_path, settings))
    assert "callback stopping_callbacks:Raiser: on_exception at stopping_callbacks.py" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [Changer, "stopping_callbacks:Changer"], ids=["class", "text"])
def test_other_objects_are_refused(wrong: Any, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train at test_callbacks.py:\d+: callbacks has .*Changer.*; a callback is an object of a class derived"):
        train(loaded(folder / "short" / "run.yaml", tmp_path), callbacks=[wrong])


def test_train_returns_the_run_with_its_history(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ("logging.progress=plain", "logging.report=true", "training.steps=3", "checkpoint.every_steps=2")
    ended = train(loaded(folder / "short" / "run.yaml", tmp_path, *settings))
    assert re.fullmatch(r"<TrainingRun run: done, step 3 of 3, train/loss [\d.]+, validation/loss [\d.]+>", repr(ended))
    assert ended.report == tmp_path / "report.html" and ended.report.is_file()
    assert ended.checkpoint == tmp_path / "checkpoints" / "step-00000003"
    assert (ended.stopped, ended.exit_code, ended.message, ended.step) == ("end", 0, "", 3)
    output = capsys.readouterr().out
    assert "step 3/3" in output and "done: step 3" in output and f"report: {ended.report}" in output
    history = ended.history
    assert list(history["step"]) == [1, 2, 3] and history["train/loss"][-1] == pytest.approx(ended.metrics["train/loss"])
    assert history["validation/loss"][-1] == pytest.approx(ended.metrics["validation/loss"]) and np.isnan(history["validation/loss"][0])
    assert all(len(column) == 3 for column in history.values())
    again = train(loaded(folder / "short" / "run.yaml", tmp_path, *settings))
    assert list(again.history["rate"]) == list(history["rate"]) and "is complete" in again.message
    with pytest.raises(CallbackError, match=r"run.lr at test_callbacks.py:\d+: the run has ended"):
        ended.lr = 0.1


def test_a_logger_that_fails_is_named(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobflow.trainer.metrics.Lines.add", lambda self, line: 1 / 0)
    with pytest.raises(CallbackError, match=r"logger JsonLines: on_step at .* raised ZeroDivisionError at step 1: .*; correct the cause, or turn"):
        train(loaded(folder / "short" / "run.yaml", tmp_path))


FINDER = 'callbacks=[{callback: "jobflow.trainer.learning_rate_finder:LearningRateFinder", arguments: {lowest: 0.001, highest: 0.1, steps: 5}}]'


def test_the_rate_rises_until_a_suggestion(folder: Path, tmp_path: Path) -> None:
    settings = ("training.steps=9", "checkpoint.every_steps=1")
    outcome, recorder = run(loaded(folder / "short" / "run.yaml", tmp_path / "whole", *settings, FINDER))
    rates = [report.rate for report in recorder.steps.values()]
    assert rates == pytest.approx([0.001 * 100 ** (step / 4) for step in range(5)]) and outcome.stopped == "callback"
    suggested = re.fullmatch(r"jobflow.*LearningRateFinder stopped the run: the suggested learning rate is ([\d.e-]+)", outcome.message)
    assert suggested is not None and 0.001 <= float(suggested[1]) <= 0.1
    run(loaded(folder / "short" / "run.yaml", tmp_path / "parts", "training.steps=2", "optimizer.schedule.steps=9", FINDER))
    again, rest = run(loaded(folder / "short" / "run.yaml", tmp_path / "parts", *settings, FINDER))
    assert again.message == outcome.message and [report.rate for report in rest.steps.values()] == pytest.approx(rates[2:])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lowest": 0.0}, "lowest is 0.0; pass a number above 0"),
        ({"lowest": 2.0}, "highest is 1.0; pass .* lowest, 2"),
        ({"steps": 2}, "steps is 2"),
    ],
)
def test_a_search_without_a_range_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"LearningRateFinder at test_callbacks.py:\d+: {message}"):
        LearningRateFinder(**options)
