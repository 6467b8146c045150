"""Tensors on "cuda" use the host with one notice if there is no GPU; tests/gpu tests tensors of a GPU."""

from __future__ import annotations

import os
from pathlib import Path

from processes import ROOT, STRICT, run

PROGRAMS = Path(__file__).with_name("programs")
NO_GPU = Path(__file__).with_name("no_gpu")
WAYS = ["cuda()", "to", "device=", "placement", "cuda() of a global tensor", "module", "copy", "pickle"]


def modules_of(folder: Path) -> dict[str, str]:
    """Return variables that let a program import the modules of a folder before others."""
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


def test_cuda_tensors_use_the_host_without_a_gpu() -> None:
    ended = run(PROGRAMS / "devices.py", environment=STRICT | modules_of(NO_GPU))
    assert ended.code == 0, ended.err
    assert ended.out.splitlines() == [*(f"{way} True 1.0" for way in WAYS), "False [2.0, 2.0]"]
    assert len(ended.err.splitlines()) == 1 and "there is no GPU" in ended.err
