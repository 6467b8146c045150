"""Ranks with different versions of jobflow, NumPy or Python raise instead of training together."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from processes import MPIEXEC, ROOT, crowd, free_port, variables

from jobflow.core.errors import JobError
from jobflow.runtime.world import versions

pytestmark = pytest.mark.mpi

#: a program whose rank 1 has the version that its arguments name
PROGRAM = """
import os, platform, sys
import numpy
if os.environ.get("PMI_RANK", os.environ.get("RANK")) == "1":
    if sys.argv[1] == "numpy":
        numpy.__version__ = sys.argv[2]
    if sys.argv[1] == "python":
        platform.python_version = lambda: sys.argv[2]
import jobflow as flow
total = flow.ones(4, 2, placement=flow.placement.all("cpu"), sbp=flow.sbp.split(0)).sum()
if flow.env.get_rank() == 0:
    print(total.item(), flush=True)
else:
    total.item()
"""
PYTHON, NUMPY = sys.version.split()[0], np.__version__


@pytest.fixture(scope="module")
def other_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of jobflow with one changed source file."""
    root = tmp_path_factory.mktemp("changed")
    shutil.copytree(ROOT / "jobflow", root / "jobflow")
    file = root / "jobflow/ops/loss.py"
    file.write_text(file.read_text() + "\n# another formula\n")
    return root


def run(way: str, words: list[str], roots: list[Path], more: dict[str, str]) -> tuple[int, str, str]:
    """Run PROGRAM on two ranks, each with the jobflow of its root; return the largest exit code, the output and the errors."""
    command = [sys.executable, "-P", "-c", PROGRAM, *words]
    with crowd() as jobs:
        if way == "mpiexec":
            parts = [["-n", "1", "env", f"PYTHONPATH={root}", *command] for root in roots]
            jobs.start([MPIEXEC, *parts[0], ":", *parts[1]], more)
        else:
            port = free_port()
            for rank, root in enumerate(roots):
                jobs.start(command, variables(rank, 2, port) | more | {"PYTHONPATH": str(root)})
        ended = jobs.wait()
    return max(one.code for one in ended), "".join(one.out for one in ended), "".join(one.err for one in ended)


@pytest.mark.parametrize("way", ["mpiexec", "by hand"])
def test_ranks_with_one_changed_source_file_raise(way: str, other_package: Path, tmp_path: Path) -> None:
    code, out, err = run(way, ["same", ""], [ROOT, other_package], {"JOBFLOW_CACHE": str(tmp_path)})
    assert code == 1 and out == "", (out, err)
    shown = [
        f"{i} on {versions.own_versions()['host']}: jobflow 0.1.0 (sources {versions.source_hash(root / 'jobflow')})"
        for i, root in ((0, ROOT), (1, other_package))
    ]
    assert "Traceback" not in err
    for text in ("start of 2 ranks: their versions differ", versions.ACCEPT, *(f"rank {line}" for line in shown)):
        assert text in err, err


def test_an_environment_variable_accepts_different_sources(other_package: Path, tmp_path: Path) -> None:
    code, out, err = run("mpiexec", ["same", ""], [ROOT, other_package], {versions.ACCEPT: "1", "JOBFLOW_CACHE": str(tmp_path)})
    assert (code, out) == (0, "8.0\n"), err
    assert err.count("the versions of the ranks differ") == 1, err


#: the library, its version on rank 1, and the exit code
OTHERS = [
    ("numpy", ".".join([*NUMPY.split(".")[:2], "99"]), 0),
    ("numpy", "1.26.4", 1),
    ("python", ".".join([*PYTHON.split(".")[:2], "99"]), 0),
    ("python", "3.99.1", 1),
]


@pytest.mark.parametrize(("library", "version", "expected"), OTHERS)
def test_another_minor_version_raises_and_another_patch_version_is_one_notice(library: str, version: str, expected: int) -> None:
    code, out, err = run("mpiexec", [library, version], [ROOT, ROOT], {})
    own = {"numpy": NUMPY, "python": PYTHON}[library]
    assert (code, out) == (expected, "" if expected else "8.0\n"), err
    assert err.count(f"{library} {version}") == 1 and err.count(f"{library} {own}") == 1, err
    assert err.count("the versions of the ranks differ") == 1 - expected, err


def test_equal_versions_print_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    own = versions.own_versions()
    versions.compare([own, {**own, "host": "other"}], 0)
    assert capsys.readouterr().err == ""


def test_the_error_joins_ranks_of_one_host_and_version() -> None:
    own = versions.own_versions()
    other = {**own, "host": "b", "numpy": "1.0.1"}
    with pytest.raises(JobError, match=r"ranks 1, 2 on b: numpy 1\.0\.1"):
        versions.compare([own, other, other], 2)


def test_the_hash_follows_every_edit_and_survives_a_broken_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBFLOW_CACHE", str(tmp_path / "cache"))
    package = tmp_path / "package"
    (package / "inner").mkdir(parents=True)
    file = package / "inner" / "a.py"
    file.write_text("a = 1\n")
    first = versions.source_hash(package)
    assert versions.source_hash(package) == first
    before = file.stat()
    file.write_text("a = 2\n")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    second = versions.source_hash(package)
    assert second != first
    for entry in (tmp_path / "cache/sources").iterdir():
        entry.write_bytes(b"\xff")
    assert versions.source_hash(package) == second
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("JOBFLOW_CACHE", str(tmp_path / "file"))
    assert versions.source_hash(package) == second
