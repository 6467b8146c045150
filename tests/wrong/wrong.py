"""Wrong programs, kept as data: each is run as users run it, and gives an error or a message."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from ranks import on_ranks

import jobflow as flow
import jobflow.typing as tp
from jobflow import cli, nn

HERE = Path(__file__).parent
TABLE = HERE / "messages.txt"
ARGUMENT = {"np": np, "flow": flow, "tp": tp, "nn": nn, "Path": Path}
#: what is printed about the time, the process and the machine
VARYING = (
    (re.compile(r"(?s)^usage: .*\n(?=jobflow)"), ""),
    (re.compile(r"0x[0-9a-f]{6,}"), "<address>"),
    (re.compile(r"\d+\.\d+ s\b"), "<seconds>"),
    (re.compile(r"(mpiexec -n \d+ python|--nproc_per_node \d+) [^\s,]+"), r"\1 <script>"),
    (re.compile(r"#\d+\b"), "#<number>"),
    (re.compile(r"\bStep_\d+"), "Step_<number>"),
)


@dataclass(frozen=True)
class Report:
    """The public name of the error, or the exit code, and the whole message."""

    kind: str
    message: str


@dataclass(frozen=True)
class Case:
    name: str
    says: list[str]
    #: a program and the error that it raises,
    program: str = ""
    raises: str = ""
    ranks: int = 1
    #: or a command line, the files that it finds, and how it ends
    command: str = ""
    code: int = 0
    files: dict[str, str] = field(default_factory=dict)

    @property
    def expected_kind(self) -> str:
        return self.raises or f"exit code {self.code}"

    @property
    def line(self) -> str:
        """The line that must be told, "" for none."""
        marked = [number for number, line in enumerate(self.program.splitlines(), 1) if line.endswith("# here")]
        return f"{self.name}.py:{marked[0]}" if marked else ""

    def run(self, folder: Path) -> list[Report]:
        """Return the error report of each rank; `folder` is an empty folder for programs."""
        if self.command:
            return [report_of_command(self, folder)]
        if self.ranks == 1:
            return [self._raised(folder, 0)]
        return on_ranks(self.ranks, lambda rank: self._raised(folder, rank), anew=True)

    def _raised(self, folder: Path, rank: int) -> Report:
        namespace = {**ARGUMENT, "X": np.ones((2, 3), np.float32), "rank": rank, "path": lambda name: str(folder / name), "__name__": self.name}
        if self.ranks > 1:
            namespace["P"] = flow.placement.all("cpu")
        try:
            exec(compile(self.program, f"{self.name}.py", "exec"), namespace)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller compares it
            return Report(public_name(error), plain(str(error), folder))
        return Report("nothing", "")


def public_name(error: Exception) -> str:
    """Return the nearest public class of the exception, by which programs catch it."""
    names = (kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins" or getattr(flow, kind.__name__, None) is kind)
    return next(names)


def report_of_command(case: Case, folder: Path) -> Report:
    for name, text in case.files.items():
        (folder / name).write_text(text)
    printed = io.StringIO()
    program, *words = shlex.split(case.command)
    assert program == "jobflow"
    with contextlib.chdir(folder), contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()):
        try:
            code: Any = cli.main(words)
        except SystemExit as end:
            code = end.code
    return Report(f"exit code {code}", plain(printed.getvalue(), folder))


def plain(message: str, folder: Path) -> str:
    """Without what is different on every machine."""
    message = message.replace(f"{folder}/", "").replace(str(folder), "<folder>")
    for pattern, word in VARYING:
        message = pattern.sub(word, message)
    return message.strip()


def cases() -> Iterator[Case]:
    for path in sorted(HERE.glob("*.yaml")):
        for name, entry in yaml.safe_load(path.read_text(encoding="utf-8")).items():
            yield Case(name, **entry)


def section(case: Case, report: Report) -> str:
    return f"== {case.name}\n{report.kind}: {report.message}\n"
