"""docs/reports.md: its program runs, its options exist, and its lines look like the printed lines."""

from __future__ import annotations

import io
import re
from pathlib import Path

from watched_run import drive, end, info

from jobflow.cli.command_table import COMMANDS
from jobflow.trainer.callbacks import Callback
from jobflow.trainer.chrome_trace import COMMUNICATION, COMPUTE, STEP, WAITING
from jobflow.trainer.progress import Progress

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reports.md").read_text(encoding="utf-8")


def test_the_callback_of_the_page_runs(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, type[Callback]] = {}
    exec(program, names)
    callback, run = names["Slowest"](), info(tmp_path)
    drive(callback, run)
    end(callback, run)
    assert vars(callback) == {"seconds": 0.01}


def test_categories_and_options_are_named() -> None:
    assert all(f"| `{category}` |" in PAGE for category in (STEP, COMPUTE, COMMUNICATION, WAITING))
    assert "train" in COMMANDS and all(option in (ROOT / "jobflow" / "cli" / "train_command.py").read_text() for option in ("--dry-run", "--profile"))


def test_a_plain_line_looks_like_that_of_the_page(tmp_path: Path) -> None:
    out = io.StringIO()
    drive(Progress("plain", 50, out), info(tmp_path))
    (shown,) = re.findall(r"^step .*$", PAGE, re.MULTILINE)
    printed = next(line for line in out.getvalue().splitlines() if re.match(r"step +100/", line))
    assert re.sub(r"[\d,.:]+", "0", shown).split() == re.sub(r"[\d,.:]+", "0", printed).split()
