"""Programs as they were written for OneFlow, run by `python -m jobflow.compat`; in processes of their own, since `oneflow` is found there only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "jobflow.compat", *words], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("words", "printed"),
    [(("imports_and_training.py", "--batch", "4"), "True [3.]\n"), (("tests_of_its_own.py",), "")],
)
def test_a_program_runs_as_it_is(words: tuple[str, ...], printed: str) -> None:
    done = run(str(PROGRAMS / words[0]), *words[1:])
    assert (done.returncode, done.stdout) == (0, printed), done.stderr


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("flow.global_functoin", "jobflow has no 'global_functoin' (docs/compatibility.md lists every name); did you mean \"global_function\"?"),
        ("flow.layers.dens", "jobflow does not have it; docs/compatibility.md lists every name"),
        ("import oneflow.python.ops", "jobflow has no module 'python.ops' for 'oneflow.python.ops'; docs/compatibility.md lists every name"),
    ],
)
def test_a_missing_name_is_told_with_the_page_that_lists_all(line: str, said: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"import oneflow as flow\n{line}\n")
    done = run(str(program))
    assert done.returncode == 1 and said in done.stderr and f'{program}", line 2' in done.stderr


def test_without_a_program_it_says_how_it_is_used() -> None:
    assert run().returncode == 2 and run("--help").stdout.startswith("usage: ")
