"""Every program of README and docs runs as a reader would run it: in a file and a process of its own.

Programs with printed output and programs without a record run alone, but only one of those that call the trainer. Programs about devices also
run on two threads, those about ranks on two ranks. With --full all run in every way.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pages
import pytest
from pages import ROOT, Block

from jobflow.distributed import mpiexec

PROGRAMS = pages.programs()
#: words -> those programs run so in every suite
DEVICES, RANKS = ("device_num",), ("placement", "get_rank")
#: these ask for four devices, on which their meshes lie, and have them as threads when they run alone
FOUR = ("strategies.md",)


def reader_folder(folder: Path) -> Path:
    """Return a folder with the files of a reader in a checkout."""
    for name in ("configs", "examples", "scripts", "benchmarks"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def environment(**more: str) -> dict[str, str]:
    """For a process of a reader who has installed jobflow in the environment of the tests."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **more}


def run(block: Block, folder: Path, *launcher: str, **more: str) -> str:
    script = reader_folder(folder) / f"{Path(block.page).stem}_{block.line}.py"
    script.write_text(block.text, encoding="utf-8")
    command = [*launcher, sys.executable, script.name]
    done = subprocess.run(command, cwd=folder, env=environment(**more), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
    assert block.output in (None, done.stdout)
    return done.stdout


def chosen(words: tuple[str, ...]) -> list[object]:
    """All programs that may run so, but not if each rank would print the shown output.

    Programs without any of the words run only with --full, and so do programs with a record, which run as several ranks there.
    """
    free = [block for block in PROGRAMS if block.page not in FOUR and (block.output is None or any(word in block.text for word in words))]
    return [pytest.param(b, id=str(b), marks=() if any(w in b.text for w in words) and not _recorded(b) else pytest.mark.full) for b in free]


def _recorded(block: Block) -> bool:
    return block.output is None and pages.COMPILES.search(block.text) is not None


def _trains_again(block: Block) -> bool:
    """Return True for a program that calls the trainer, except for the first one; tests/trainer covers the trainer."""
    training = [other for other in PROGRAMS if other.output is None and "train(" in other.text]
    return block in training[1:]


@pytest.mark.parametrize("block", [pytest.param(b, id=str(b), marks=pytest.mark.full if _recorded(b) or _trains_again(b) else ()) for b in PROGRAMS])
def test_alone(block: Block, tmp_path: Path) -> None:
    run(block, tmp_path)


@pytest.mark.full
def test_a_program_for_oneflow_prints_the_same(tmp_path: Path) -> None:
    (before,) = (block for block in pages.blocks() if block.library == "oneflow")
    after = next(block for block in PROGRAMS if block.page == before.page)
    script = reader_folder(tmp_path) / "before.py"
    script.write_text(before.text, encoding="utf-8")
    command = [sys.executable, "-m", "jobflow.compat", script.name]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == after.output


@pytest.mark.full
@pytest.mark.parametrize("block", chosen(DEVICES))
def test_on_two_threads(block: Block, tmp_path: Path) -> None:
    run(block, tmp_path, JOBFLOW_DEVICES="2")


@pytest.mark.mpi
@pytest.mark.parametrize("block", chosen(RANKS))
def test_on_two_ranks(block: Block, tmp_path: Path) -> None:
    launcher = mpiexec.find()
    assert launcher is not None, "there is no mpiexec: pip install mpich"
    run(block, tmp_path, launcher, "-n", "2")


def test_all_ranks_print_the_same_numbers(tmp_path: Path) -> None:
    first = next(block for block in PROGRAMS if block.page == "global_tensors.md")
    printed = run(first, tmp_path, mpiexec.find() or "mpiexec", "-n", "2").split()
    assert len(printed) == 2 and len(set(printed)) == 1


def test_a_damaged_checkpoint_is_reported(tmp_path: Path) -> None:
    damaged = next(block for block in PROGRAMS if block.page == "checkpoints.md" and "problems" in block.text)
    assert "is damaged: its content, box" in run(damaged, tmp_path)


def test_a_placement_of_ranks_that_do_not_exist_says_how_to_start_them(tmp_path: Path) -> None:
    program = 'import jobflow as flow\n\nflow.placement("cpu", ranks=[0, 1])\n'
    script = tmp_path / "script.py"
    script.write_text(program)
    done = subprocess.run([sys.executable, script.name], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60)
    message = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    for fact in ("script.py:3", "rank 1 of [0, 1] does not exist", "mpiexec -n 2 python script.py", "jobflow launch --nproc_per_node 2 script.py"):
        assert fact in message


def test_every_block_says_what_it_is() -> None:
    known = {"python", "bash", "yaml", "text"}
    assert [str(block) for block in pages.blocks() if block.language not in known] == []
    assert len(PROGRAMS) > 15, "the pages have lost their programs"


@pytest.mark.parametrize("block", [b for b in pages.blocks() if b.excerpt], ids=str)
def test_excerpts_are_in_their_files(block: Block) -> None:
    assert block.excerpt is not None
    lines = [line.strip() for line in (ROOT / block.excerpt).read_text(encoding="utf-8").splitlines()]
    excerpt = [line.strip() for line in block.text.splitlines() if line.strip()]
    starts = [i for i, line in enumerate(lines) if line == excerpt[0]]
    assert any([line for line in lines[i:] if line][: len(excerpt)] == excerpt for i in starts), f"{block.excerpt} has other lines"


@pytest.mark.parametrize("page", ["configuration.md", "training.md"])
def test_configurations_are_whole(page: str, tmp_path: Path) -> None:
    """Blocks that begin with a file name are files in one folder, beside configs/; other configurations are excerpts of files in configs/."""
    configurations = [b for b in pages.blocks() if b.page == page and b.language == "yaml"]
    assert configurations
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    for block in pages.blocks():
        if block.page == page and block.language == "python" and (name := pages.SAVED.match(block.text)):
            (tmp_path / name[1]).write_text(block.text, encoding="utf-8")
    for block in configurations:
        first = block.text.splitlines()[0]
        (tmp_path / (first.removeprefix("# ") if first.endswith(".yaml") else "shown.yaml")).write_text(block.text, encoding="utf-8")
    files = sorted(path.name for path in tmp_path.glob("*.yaml"))
    command = [sys.executable, "-m", "jobflow", "config", "check", *files]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
