"""Training in separate processes: ranks under mpiexec, and Ctrl-C from outside."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import processes
import pytest
from short_runs import CONFIG, check_same, loaded, run, write_config
from test_callbacks import EVENTS

LIMIT = 120
PATHS = {"PYTHONPATH": os.pathsep.join([str(processes.ROOT), str(Path(__file__).parent)])}


@pytest.mark.mpi
def test_two_ranks_stop_together_and_one_resumes(tmp_path: Path) -> None:
    file = write_config(tmp_path, CONFIG.replace("every_steps: 1, keep_last: 99", "every_steps: 100"))
    program = Path(__file__).with_name("stopped_by_rank_one.py")
    done = processes.run(program, file, f"output={tmp_path / 'ranks'}", ranks=2, environment=PATHS)
    assert done.code == 75, done.out + done.err
    assert done.out.split("\n")[:2] == ["SIGTERM was sent to rank 1"] * 2, "both ranks are clients, and both know"
    (saved,) = (tmp_path / "ranks" / "checkpoints").iterdir()
    assert saved.name in ("step-00000003", "step-00000004"), "ranks ask each other after a step or two"
    _, rest = run(loaded(file, tmp_path / "ranks"))
    _, whole = run(loaded(file, tmp_path / "whole"))
    assert list(rest.steps) == list(range(int(saved.name[5:]) + 1, 10))
    check_same(rest, whole, list(rest.steps))


@pytest.mark.full
@pytest.mark.mpi
def test_callbacks_on_two_ranks_make_equal_requests(tmp_path: Path) -> None:
    file = write_config(tmp_path, CONFIG + "callbacks:\n  - {callback: stopping_callbacks:Changer, arguments: {last: 8}}\n")
    program = Path(__file__).with_name("stopped_by_rank_one.py")
    done = processes.run(program, file, f"output={tmp_path / 'ranks'}", "callbacks.0.arguments.last=5", ranks=2, environment=PATHS)
    assert done.code == 75, done.out + done.err  # SIGTERM in the third step of rank 1
    report = ("--set", "logging.report=true", "--set", "logging.progress=plain")
    done = processes.run("-m", "jobflow", "train", file, "--output", tmp_path / "ranks", *report, ranks=2, environment=PATHS)
    assert done.code == 0 and "stopping_callbacks:Changer stopped the run" in done.err, done.out + done.err
    assert done.out.count("report: ") == 1, "rank 0 alone writes the report"
    _, whole = run(loaded(file, tmp_path / "whole"))
    lines = [json.loads(line) for line in (tmp_path / "ranks" / "metrics.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["train/loss"] for line in lines if "train/loss" in line}
    assert losses == pytest.approx(whole.losses, rel=1e-5)
    wrong = 'callbacks=[{callback: "stopping_callbacks:Raiser", arguments: {event: on_evaluation}}]'
    done = processes.run("-m", "jobflow", "train", file, "--output", tmp_path / "wrong", "--set", wrong, ranks=2, environment=PATHS)
    assert done.code == 1 and "callback stopping_callbacks:Raiser: on_evaluation at stopping_callbacks.py:" in done.err


@pytest.mark.full
@pytest.mark.mpi
def test_a_callback_that_raises_ends_all_ranks_with_its_line(tmp_path: Path) -> None:
    file = write_config(tmp_path, CONFIG.replace("steps: 9", "steps: 5"))
    program, events = Path(__file__).with_name("raising_on_ranks.py"), EVENTS
    done = processes.run(program, file, tmp_path / "ranks", *events, ranks=2, environment=PATHS)
    for rank in "01":
        lines = [line for line in done.out.splitlines() if line.startswith(rank)]
        assert len(lines) == len(events), done.out + done.err
        for event, line in zip(events, lines, strict=True):
            assert re.search(
                rf"callback stopping_callbacks:Raiser: {event} at stopping_callbacks.py:\d+ raised LookupError at .*: nothing here", line
            )
    for event in ("on_step", "on_evaluation"):
        observer = f'callbacks=[{{callback: "stopping_callbacks:Observing", arguments: {{event: {event}}}}}]'
        done = processes.run("-m", "jobflow", "train", file, "--output", tmp_path / event, "--set", observer, ranks=2, environment=PATHS)
        assert done.code == 1 and f"callback stopping_callbacks:Observing: {event} at stopping_callbacks.py:" in done.err, done.out + done.err


def test_ctrl_c_from_outside(tmp_path: Path) -> None:
    file = write_config(tmp_path, CONFIG.replace("every_steps: 1, keep_last: 99", "every_steps: 1000000").replace("steps: 9", "steps: 900000"))
    output = tmp_path / "out"
    command = [sys.executable, "-m", "jobflow", "train", str(file), "--set", f"output={output}"]
    with subprocess.Popen(command, env={**os.environ, **processes.ONE_THREAD, **PATHS}, stderr=subprocess.PIPE, text=True) as process:
        try:
            deadline = time.monotonic() + LIMIT
            while not (output / "metrics.jsonl").is_file() or not (output / "metrics.jsonl").stat().st_size:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=LIMIT)
        finally:
            process.kill()
    assert process.returncode == 130, stderr
    assert "finishing the step and saving" in stderr and "SIGINT was sent" in stderr
    (saved,) = (output / "checkpoints").iterdir()
    last = (output / "metrics.jsonl").read_text().splitlines()[-1]
    assert f'"step": {int(saved.name[5:])},' in last, "the checkpoint is of the last step that was done"


@pytest.mark.parametrize(
    ("ranks", "dies"), [(0, 0), pytest.param(2, 0, marks=[pytest.mark.mpi, pytest.mark.full]), pytest.param(2, 1, marks=pytest.mark.mpi)]
)
def test_a_run_that_exits_silently_is_unfinished(tmp_path: Path, ranks: int, dies: int) -> None:
    """The exit code shows it if a process is left to return one.

    The report and `ckpt ls` always show it, until the run is finished.
    """
    text = CONFIG.replace("report: false", "report: true").replace("evaluation: {every_epochs: 1}", "evaluation: {every_steps: 100}")
    file, output = write_config(tmp_path, text.replace("every_steps: 1, keep_last: 99", "every_steps: 2")), tmp_path / "out"
    program = Path(__file__).with_name("dies_in_step.py")
    done = processes.run(program, dies, file, f"output={output}", ranks=ranks, environment=PATHS)
    if ranks:
        assert done.code == 1 and f"rank {dies} ended without a report" in done.err, done
    assert ">unfinished<" in (output / "report.html").read_text()
    ls = [sys.executable, "-m", "jobflow", "ckpt", "ls", str(output / "checkpoints")]
    listed = processes.run_command(ls, environment=PATHS).out
    assert "not finished: step 4 of 9" in listed, listed
    train = [sys.executable, "-m", "jobflow", "train", str(file), "--set", f"output={output}"]
    assert processes.run_command(train, environment=PATHS).code == 0
    assert "unfinished" not in (output / "report.html").read_text()
    done = processes.run_command(ls, environment=PATHS)
    assert done.code == 0 and "unfinished" not in done.out
