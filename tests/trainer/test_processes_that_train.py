"""Training in processes of their own: ranks under mpiexec, and Ctrl-C from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from short_runs import CONFIG, check_same, loaded, run, write_config

from jobflow.distributed import mpiexec

ROOT = Path(__file__).resolve().parents[2]
MPIEXEC = mpiexec.find() or "mpiexec"
LIMIT = 120


def environment() -> dict[str, str]:
    here = [str(ROOT), str(Path(__file__).parent)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(here), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@pytest.mark.mpi
def test_two_ranks_stop_together_and_one_goes_on(tmp_path: Path) -> None:
    file = write_config(tmp_path, CONFIG.replace("every_steps: 1, keep_last: 99", "every_steps: 100"))
    program = Path(__file__).with_name("told_by_rank_one.py")
    command = [str(MPIEXEC), "-n", "2", sys.executable, str(program), str(file), f"output={tmp_path / 'ranks'}"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 75, done.stdout + done.stderr
    assert done.stdout.split("\n")[:2] == ["SIGTERM was sent to rank 1"] * 2, "both ranks are clients, and both know"
    (saved,) = (tmp_path / "ranks" / "checkpoints").iterdir()
    assert saved.name in ("step-00000003", "step-00000004"), "ranks ask each other after a step or two"
    _, rest = run(loaded(file, tmp_path / "ranks"))
    _, whole = run(loaded(file, tmp_path / "whole"))
    assert list(rest.steps) == list(range(int(saved.name[5:]) + 1, 10))
    check_same(rest, whole, list(rest.steps))


def test_ctrl_c_from_outside(tmp_path: Path) -> None:
    file = write_config(tmp_path, CONFIG.replace("every_steps: 1, keep_last: 99", "every_steps: 1000000").replace("steps: 9", "steps: 900000"))
    output = tmp_path / "out"
    command = [sys.executable, "-m", "jobflow", "train", str(file), "--set", f"output={output}"]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        try:
            deadline = time.monotonic() + LIMIT
            while not (output / "metrics.jsonl").is_file() or not (output / "metrics.jsonl").stat().st_size:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=LIMIT)
        finally:
            process.kill()
    assert process.returncode == 130, said
    assert "finishing the step and saving" in said and "SIGINT was sent" in said
    (saved,) = (output / "checkpoints").iterdir()
    last = (output / "metrics.jsonl").read_text().splitlines()[-1]
    assert f'"step": {int(saved.name[5:])},' in last, "the checkpoint is of the last step that was done"
