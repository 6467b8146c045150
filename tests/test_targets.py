"""Operations know no device, and the compiler no CPU: what is particular to one is in `kernels`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "jobflow"
#: what only those know who compute on a CPU: how NumPy is told from CuPy, BLAS, blocks that fit a cache
KNOWS_CPUS = re.compile(r"\bxp is (not )?np\b|\bblas\b|kernels\.cpu|\bBLOCK\b")


def knowing(folder: str) -> set[str]:
    return {path.stem for path in (PACKAGE / folder).rglob("*.py") if KNOWS_CPUS.search(path.read_text("utf-8"))}


@pytest.mark.parametrize("folder", ["ops", "compiler"])
def test_operations_and_the_compiler_know_no_cpu(folder: str) -> None:
    assert knowing(folder) == set()


WITHOUT = """
import sys
sys.modules["jobflow.kernels.cpu"] = None  # an ImportError for who asks
import numpy as np
import jobflow as flow
import jobflow.typing as tp

flow.config.kernels("reference")

@flow.global_function(type="train")
def step(x: tp.Numpy.Placeholder((8, 6)), labels: tp.Numpy.Placeholder((8,), dtype=flow.int32)) -> tp.Numpy:
    hidden = flow.layers.dense(x, 5, activation=flow.nn.relu, kernel_initializer=flow.random_normal_initializer(), name="a")
    logits = flow.layers.dense(hidden, 3, kernel_initializer=flow.random_normal_initializer(), name="b")
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.5]), momentum=0).minimize(loss)
    return loss

x = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
losses = [step(x, np.arange(8, dtype=np.int32) % 3).mean() for _ in range(20)]
assert losses[-1] < 0.5 * losses[0], losses
"""


def test_jobs_run_without_what_is_for_cpus() -> None:
    """The tier "reference" imports nothing of it."""
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
