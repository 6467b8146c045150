"""The program of docs/two_faces.md runs, and the optimizers and schedules that the page names are those that there are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import jobflow as flow
from jobflow import scope
from jobflow.optim import lr_scheduler

PAGE = (Path(__file__).parents[2] / "docs" / "two_faces.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    with scope.using(root=scope.Root()):
        yield
        flow.clear_default_session()


def test_the_program_runs(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    path = tmp_path / "page.py"
    path.write_text(program, encoding="utf-8")
    exec(compile(program, str(path), "exec"), {"__name__": "page", "__file__": str(path)})


def test_every_optimizer_and_schedule_is_on_the_page() -> None:
    ours = {name for name in vars(flow.optim) if isinstance(getattr(flow.optim, name), type)} - {"Optimizer"}
    schedules = {name for name, kind in vars(lr_scheduler).items() if isinstance(kind, type) and name.endswith("LR")}
    theirs = {name for name in flow.optimizer.__all__ if name[0].isupper()} - {"Schedule", "CustomScheduler", "PolynomialSchduler"}
    listed = set(re.findall(r"`(\w+)", PAGE))
    assert sorted((ours | schedules | theirs) - listed) == []
