"""Loss curves of programs in processes of their own, on pretended GPUs or on those that are there."""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from processes import run_command, under_mpiexec

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("programs") / "pretended.py"
PROGRAMS = ("hybrid_mlp_with_optimizer", "consistent_lenet", "gpt", "mirrored_mlp", "relay_lenet", "batch_norm", "SGDW")
#: those that compute in float64
DOUBLE = {"SGDW"}
#: relative loss tolerances after six steps.  GPUs sum in another order, and functions differ by 1-2 ULP.  The tiers of kernels on CPUs differ in
#: the same ways, by 3.5e-8 in float32 and 2e-16 in float64.
TOLERANCE, TOLERANCE_DOUBLE = 1e-4, 1e-9
#: tolerance on the simulated GPU
TOLERANCE_PRETENDED = 1e-5
NOTICE = 'jobflow: there is no GPU: "gpu" placements run on CPU ranks'


@functools.cache
def curves_of(
    gpus: int | str | None, devices: int, processes: int = 1, programs: tuple[str, ...] = PROGRAMS, kernels: str = ""
) -> tuple[dict[str, Any], str]:
    """Return the curves of the programs and their standard error; `gpus` None means the real GPUs, "first" one GPU of rank 0.

    Simulated GPUs run array operations by default, because compiling kernels with g++ is slow.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "curves.json"
        launcher = under_mpiexec(processes) if processes > 1 else []
        there = "real" if gpus is None else str(gpus)
        strict = ["-W", "error"] if gpus is not None else []  # CuPy may warn of its own affairs
        command = [*launcher, sys.executable, *strict, str(PROGRAM), str(out), there, str(devices), *programs]
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {"PYTHONPATH": os.pathsep.join(paths), "JOBFLOW_KERNELS": kernels or ("auto" if gpus is None else "numpy")}
        ended = run_command(command, limit=300, environment=environment)
        assert ended.code == 0, ended.err
        return json.loads(out.read_text()), ended.err


def distance_from_cpu(name: str, curves: dict[str, Any], programs: tuple[str, ...] = PROGRAMS) -> float:
    """Return the largest relative distance between the GPU's and the CPU's losses; the CPU runs `programs`."""
    expected, _ = curves_of(0, 1, programs=programs)
    assert expected["world"]["tags"] == ["cpu"]
    ours, theirs = np.array(curves[name]), np.array(expected[name])
    assert ours.shape == theirs.shape
    return float(np.max(np.abs(ours - theirs) / np.abs(theirs)))


def same_as_on_the_cpu(name: str, curves: dict[str, Any]) -> None:
    assert distance_from_cpu(name, curves) <= (TOLERANCE_DOUBLE if name in DOUBLE else TOLERANCE_PRETENDED)
