"""Tutorials work as written: in a fresh folder, files are saved and commands are run in the order of the page, with the shown output.

Only --full runs them. Every suite checks that files compile, configurations are valid, and commands have these options.
"""

from __future__ import annotations

import resource
import shlex
import subprocess
from pathlib import Path

import pytest
import tutorials
from test_programs import environment
from tutorials import Action

from jobflow import cli
from jobflow.cli.command_table import COMMANDS
from jobflow.trainer.config import load

#: processor seconds of all commands of all pages, which is at least their time on free cores
MOST = 600
ALL = [step for page in tutorials.pages() for step in tutorials.steps_of(page)]


def test_there_are_tutorials() -> None:
    assert len(tutorials.pages()) > 4 and sum(step.output is not None for step in ALL) > 10


@pytest.mark.parametrize("page", tutorials.pages(), ids=lambda page: page.stem)
def test_files_are_valid(page: Path, tmp_path: Path) -> None:
    earlier = tutorials.before(page)
    for step in [*(tutorials.steps_of(earlier) if earlier else []), *tutorials.steps_of(page)]:
        if step.file is not None:
            (tmp_path / step.file).parent.mkdir(exist_ok=True)
            (tmp_path / step.file).write_text(step.text, encoding="utf-8")
            if step.file.endswith(".py"):
                compile(step.text, str(step), "exec")
            else:
                load(tmp_path / step.file, look_outside=False)


def test_commands_have_these_options() -> None:
    parser, count = cli.parser(COMMANDS.values()), 0
    for step in ALL:
        for line in tutorials.lines_of(step.text) if step.file is None else ():
            words = shlex.split(line.removeprefix("mpiexec -n 2 ").partition(" | ")[0])
            if words[0] == "jobflow":
                count += 1
                try:
                    parser.parse_args(words[1:])
                except SystemExit:
                    pytest.fail(f"{step}: {line}")
    assert count > 20


@pytest.mark.parametrize(
    ("shown", "printed", "equal"),
    [
        ("loss 9.1 after 3", "loss 9.12 after 3", True),
        ("loss 9.1 after 3", "loss 9.12 after 4", False),
        ("loss 9.1 after 3", "loss 19.1 after 3", False),
        ("a\n...\nd", "a\nb\nc\nd", True),
        ("a\n...\nd", "a\nd", True),
        ("a\nd", "a\nb\nd", False),
        ("a b\n  c d\ne", "a b c d\ne", True),
        ("step 3, ..., mae 1.5", "step 3, 0:01, r2 0.3, mae 1.6", True),
        ("step 3, ..., mae 1.5", "step 3, 0:01, r2 0.3, mae 16", False),
    ],
)
def test_output_matches_within_the_precision_of_a_training(shown: str, printed: str, equal: bool) -> None:
    assert tutorials.matches(shown, printed) is equal


def processor_seconds() -> float:
    """Return the processor time of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def follow(steps: list[Action], folder: Path) -> float:
    """Save files, run commands and compare output in the order of a page; return the processor seconds of the commands."""
    start = processor_seconds()
    for step in steps:
        if step.file is not None:
            (folder / step.file).parent.mkdir(exist_ok=True)
            (folder / step.file).write_text(step.text, encoding="utf-8")
            continue
        command = ["bash", "-e", "-o", "pipefail", "-c", step.text]
        where = {"cwd": folder, "env": environment(HOME=str(folder)), "text": True, "timeout": 3 * MOST}
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **where)
        assert (done.returncode != 0) is step.fails, f"{step}\n{step.text}\n{done.stdout}"
        assert step.output is None or tutorials.matches(step.output, done.stdout, about=step.about), (
            f"{step}: the page shows other output than\n{done.stdout}"
        )
    return processor_seconds() - start


@pytest.mark.full
@pytest.mark.mpi
def test_all_tutorials_within_ten_minutes(tmp_path: Path) -> None:
    """In one test, so that their time is measured together."""
    seconds = {}
    for page in sorted(tutorials.pages(), key=lambda page: tutorials.before(page) is not None):
        steps = tutorials.steps_of(page)
        folder = tmp_path / (tutorials.before(page) or page).stem
        folder.mkdir(exist_ok=True)
        seconds[page.name] = follow(steps, folder)
    print({name: f"{value:.0f} s" for name, value in seconds.items()})
    assert sum(seconds.values()) < MOST, seconds
