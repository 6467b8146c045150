"""Training with little shared memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from jobflow.core.errors import ConfigError
from jobflow.distributed import mpiexec
from jobflow.distributed.processes import finished
from jobflow.runtime.comm import shared_memory

pytestmark = pytest.mark.mpi

#: a training of a dense network with Adam; the argument is the width of its hidden layer
PROGRAM = """
import sys
import numpy as np
import jobflow as flow
import jobflow.typing as tp

@flow.global_function(type="train")
def train_job(x: tp.Numpy.Placeholder((32, 64)), y: tp.Numpy.Placeholder((32,), dtype=flow.int32)) -> tp.Numpy:
    init = flow.truncated_normal(0.1)
    hidden = flow.layers.dense(x, int(sys.argv[1]), activation=flow.nn.relu, kernel_initializer=init, name="hidden")
    logits = flow.layers.dense(hidden, 10, kernel_initializer=init, name="output")
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
    flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.001])).minimize(loss)
    return loss

flow.env.client("single")
random = np.random.default_rng(0)
x, y = random.standard_normal((32, 64)).astype(np.float32), random.integers(0, 10, 32).astype(np.int32)
print(*[float(train_job(x, y).mean()) for _ in range(3)], flush=True)
"""
#: the widths of hidden layers by the MiB of variables, with their Adam moments
WIDTHS = {0.1: 116, 1: 1165, 14: 16384, 55: 64000}
#: MiB of /dev/shm; MPI itself needs 2.1
SIZES = ["3", "8", "11", "12", "13", "14", "16", "20", "24", "32", "48", "64"]
LIMITS = ["0", "0.05", "1.1", "2", "4", "6", "12", "20", "30", "40", "70"]
LIMIT = 60


def trained(way: str, width: int, limit: str = "", size: str = "") -> tuple[int, str, str]:
    """Train on two ranks, with `limit` MiB for tensors or a private /dev/shm of `size` MiB; return exit code, output and errors."""
    words = [sys.executable, "-c", PROGRAM, str(width)]
    if way == "mpiexec":
        words = mpiexec.ranks(mpiexec.find() or "mpiexec", 2, words)
    else:
        words = [sys.executable, "-m", "jobflow.distributed.launch", "--nproc_per_node", "2", "--no_python", *words]
    if size:
        words = ["unshare", "-Urm", "sh", "-c", f'mount -t tmpfs -o size={size}m shm /dev/shm && exec "$@"', "sh", *words]
    root = str(Path(__file__).parents[2])
    environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "OMP_NUM_THREADS": "1", "PYTHONPATH": root, shared_memory.LIMIT: limit}
    result = finished(words, LIMIT, env=environment, stderr=subprocess.STDOUT)
    lines = result.stdout.splitlines()
    losses = [line.split("] ")[-1] for line in lines if line.split("] ")[-1].count(".") == 3 and "MiB" not in line]
    return result.returncode, "\n".join(losses), result.stdout


@pytest.mark.parametrize(("before", "after"), [(None, "^sm"), ("^posix", "^posix"), ("tcp", "tcp")])
def test_transports_of_the_user_stay_the_same_on_several_nodes(before: str | None, after: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "_selected", {})
    monkeypatch.setattr(shared_memory, "size", lambda: shared_memory.UCX_SHARE - 1)
    monkeypatch.setattr(shared_memory, "available", lambda: shared_memory.UCX_SHARE - 1)
    monkeypatch.setenv(shared_memory.TRANSPORTS, before or "")  # restored after the test
    if before is None:
        monkeypatch.delenv(shared_memory.TRANSPORTS)
    shared_memory.prepare_mpi(1)
    assert os.environ[shared_memory.TRANSPORTS] == (before or "^posix")
    shared_memory.prepare_nodes()
    assert os.environ[shared_memory.TRANSPORTS] == after


@cache
def expected(width: int) -> list[float]:
    """Return the losses with enough shared memory."""
    code, out, err = trained("mpiexec", width)
    assert code == 0 and shared_memory.LIMIT not in err, err
    return [float(word) for word in out.split()]


@cache
def namespaces() -> bool:
    """Return True if this user may mount a private /dev/shm."""
    if shutil.which("unshare") is None:
        return False
    return (
        subprocess.run(["unshare", "-Urm", "mount", "-t", "tmpfs", "shm", "/dev/shm"], capture_output=True, timeout=10, check=False).returncode == 0
    )


def check(way: str, width: int, limit: str = "", size: str = "") -> str:
    code, out, err = trained(way, width, limit, size)
    assert code == 0, err
    assert [float(word) for word in out.split()] == pytest.approx(expected(width), rel=1e-5), err
    assert err.count("too little shared memory") <= 1, err
    return err


@pytest.mark.parametrize(("limit", "way"), [("0", "launch"), ("6", "mpiexec"), ("12", "mpiexec")])
def test_losses_are_equal_with_little_shared_memory(limit: str, way: str) -> None:
    assert "too little shared memory: /dev/shm has" in check(way, WIDTHS[14], limit)


@pytest.mark.parametrize(("size", "way"), [("3", "mpiexec"), ("20", "launch")])
def test_losses_are_equal_in_a_small_dev_shm(size: str, way: str) -> None:
    if not namespaces():
        pytest.skip("this user may not mount a private /dev/shm")
    check(way, WIDTHS[14], size=size)


@pytest.mark.full
@pytest.mark.parametrize("way", ["mpiexec", "launch"])
@pytest.mark.parametrize("width", WIDTHS.values())
@pytest.mark.parametrize("limit", LIMITS)
def test_losses_are_equal_with_every_limit(limit: str, width: int, way: str) -> None:
    check(way, width, limit)


@pytest.mark.full
@pytest.mark.parametrize("way", ["mpiexec", "launch"])
@pytest.mark.parametrize("width", WIDTHS.values())
@pytest.mark.parametrize("size", SIZES)
def test_losses_are_equal_with_every_size_of_dev_shm(size: str, width: int, way: str) -> None:
    if not namespaces():
        pytest.skip("this user may not mount a private /dev/shm")
    check(way, width, size=size)


@pytest.mark.parametrize("way", ["mpiexec", "launch"])
def test_a_dev_shm_too_small_for_mpi_is_an_error(way: str) -> None:
    if not namespaces():
        pytest.skip("this user may not mount a private /dev/shm")
    code, _, err = trained(way, WIDTHS[0.1], size="1")
    assert code == 1 and "start of MPI: /dev/shm has 1.0 MiB free, but MPI needs 2.1 MiB for 2 ranks; enlarge /dev/shm" in err, err


@pytest.mark.parametrize("text", ["-1", "nan", "much"])
def test_a_limit_that_is_not_a_number_is_an_error(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(shared_memory.LIMIT, text)
    with pytest.raises(ConfigError, match=f"JOBFLOW_SHARED_MIB={text} is not a number"):
        shared_memory.limit()
