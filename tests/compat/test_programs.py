"""Programs as they were written for OneFlow, run by `python -m jobflow.compat`; in processes of their own, since `oneflow` is found there only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jobflow.compat.__main__ import main

PROGRAMS = Path(__file__).parent / "programs"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "jobflow.compat", *words], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("words", "printed"),
    [(("imports_and_training.py", "--batch", "4"), "True [3.]\n"), (("tests_of_its_own.py",), ""), (("removed_names.py",), "")],
)
def test_a_program_runs_as_it_is(words: tuple[str, ...], printed: str) -> None:
    done = run(str(PROGRAMS / words[0]), *words[1:])
    assert (done.returncode, done.stdout) == (0, printed), done.stderr


def test_programs_of_each_namespace_run_and_missing_names_raise() -> None:
    """Run many programs in one process; access to a missing name raises with the nearest name and the page that lists all."""
    done = run(str(PROGRAMS / "each_namespace.py"))
    assert done.returncode == 0, done.stderr
    names = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    page = "in jobflow (docs/compatibility.md lists every name); did you mean"
    assert len(names) == 13 and [line.strip() for line in done.stdout.splitlines() if line.startswith(" ")] == [
        f"oneflow has no 'global_functoin' {page} \"global_function\"?",
        f"oneflow.layers has no 'dens' {page} \"dense\"?",
        f"oneflow.layers has no 'conv2' {page} \"conv2d\"?",
        f"oneflow.typing has no 'Numpi' {page} \"Numpy\"?",
        f"oneflow.core.operator.op_conf_pb2 has no 'kRelo' {page} \"kRelu\"?",
        "jobflow has no module 'python.test' for 'oneflow.python.test'; docs/compatibility.md lists every name",
    ]


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_readers_models_and_tools(devices: int) -> None:
    done = run(str(PROGRAMS / "readers_models_and_tools.py"), str(devices))
    assert (done.returncode, len(done.stdout.split())) == (0, 7), done.stderr


def test_without_a_program_it_says_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    for words, code in (([], 2), (["--help"], 0), (["-m"], 2)):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == code and capsys.readouterr().out.startswith("usage: ")
