"""The tables of the documents have every reader, strategy, optimizer, schedule and exit code that there is."""

from __future__ import annotations

import re

from pages import ROOT

import jobflow as flow
import jobflow.strategies as strategies
from jobflow.cli import CODES
from jobflow.core import errors
from jobflow.data import READERS
from jobflow.optim import lr_scheduler
from jobflow.trainer.training_run import ENDS


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_every_reader() -> None:
    table = page("data.md").partition("| reader | reads |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == list(READERS)


def test_every_strategy() -> None:
    text = page("strategies.md")
    assert [name for name in strategies.__all__ if name[0].islower() and f"`{name}(" not in text] == []


def test_every_optimizer_and_schedule() -> None:
    ours = {name for name in vars(flow.optim) if isinstance(getattr(flow.optim, name), type)} - {"Optimizer"}
    schedules = {name for name, kind in vars(lr_scheduler).items() if isinstance(kind, type) and name.endswith("LR")}
    theirs = {name for name in flow.optimizer.__all__ if name[0].isupper()} - {"Schedule", "CustomScheduler", "PolynomialSchduler"}
    listed = set(re.findall(r"`(\w+)", page("jobs_and_tensors.md")))
    assert sorted((ours | schedules | theirs) - listed) == []


def test_every_kind_of_error() -> None:
    listed = re.findall(r"^\| `(\w+Error)`", page("errors.md"), re.MULTILINE)
    assert sorted(["JobflowError", *listed]) == errors.__all__


def test_the_shown_divergence_is_one() -> None:
    shown = page("errors.md").partition("shows both:\n\n```text\n")[2].partition("```")[0]
    messages = (ROOT / "tests" / "wrong" / "messages.txt").read_text(encoding="utf-8")
    assert shown and shown in messages.replace("other_shapes_on_other_ranks.py", "train.py")


def test_every_exit_code_of_training() -> None:
    table = page("training.md").partition("| | exit code |")[2].partition("\n\n")[0]
    codes = {int(code) for code in re.findall(r"\| (\d+) \|$", table, re.MULTILINE)}
    own = {1, 2, *(code for code, _, _ in ENDS.values())}
    assert codes == own == set(CODES) - {141}
