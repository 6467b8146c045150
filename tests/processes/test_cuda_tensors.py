"""Tensors on "cuda" live on the host where there is no GPU, with one notice; where there is one that they cannot use, they are refused."""

from __future__ import annotations

from pathlib import Path

from fresh import run

GPU = str(Path(__file__).with_name("one_gpu"))
WAYS = ["cuda()", "to", "device=", "placement", "cuda() of a global tensor", "module", "copy", "pickle"]


def test_without_a_gpu() -> None:
    ended = run("devices.py", path=str(Path(__file__).with_name("no_gpu")))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [*(f"{way} True 1.0" for way in WAYS), "False [2.0, 2.0]"]
    assert len(ended.stderr.splitlines()) == 1 and "there is no GPU" in ended.stderr


def test_with_a_gpu_that_they_cannot_use() -> None:
    ended = run("devices.py", path=GPU)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [*(f"{way} refused True" for way in WAYS), "True [2.0, 2.0]"]
    assert ended.stderr == ""
