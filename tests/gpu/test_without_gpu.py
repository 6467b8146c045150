"""The real CuPy where there is no GPU: what it refuses, what it launches, and whether the kernels that it writes can be compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_step_counts import TABLE
from without_gpu import host_runtime

SCRIPT = Path(__file__).parents[2] / "scripts" / "cupy_without_gpu"

needs_cupy = pytest.mark.skipif(bool(host_runtime.missing()), reason=host_runtime.missing() or "nothing is missing")


def output_of_script(name: str, **environment: str) -> str:
    done = subprocess.run([sys.executable, str(SCRIPT), "--only", name], env=os.environ | environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_cupy
def test_cupy_takes_what_every_op_gives_it() -> None:
    assert ", 0 refused" in output_of_script("bindings")


@needs_cupy
def test_two_ranks_share_a_gpu(tmp_path: Path) -> None:
    assert "two ranks on ['gpu', 'gpu']" in output_of_script("threads", JOBFLOW_CACHE=str(tmp_path))
    assert not list(tmp_path.iterdir()), "what stands for binary code was kept where a GPU would find it"


@needs_cupy
def test_steps_have_the_recorded_counts() -> None:
    table = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    assert output_of_script("steps").splitlines()[: len(table)] == table, "write intended changes with scripts/cupy_without_gpu --only steps --write"


@needs_cupy
@pytest.mark.full
def test_every_kernel_can_be_compiled() -> None:
    assert ", 0 failed" in output_of_script("compile")
