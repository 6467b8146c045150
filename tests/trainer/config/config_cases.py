"""Reader of the corpus: texts with the expected problems behind their lines.

    === name of a case
    optimizer:
      lerning_rate: 0.1  #! 3 optimizer.lerning_rate: did you mean "lr"

`#! COLUMN KEY: PART OF THE MESSAGE`; several are separated by `#!`. `#! FILE:LINE:COLUMN KEY: PART` is for another place.

The text is used without the marks. `#= KEY: VALUE` in good cases is the final value of a key, as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
_MARK = re.compile(r"(?:(\S+):(\d+):)?(\d+) (\S*): (.*)")


@dataclass(frozen=True)
class Expected:
    """An expected problem; an empty file means the case itself."""

    file: str
    line: int
    column: int
    key: str
    part: str


@dataclass
class Case:
    """A text with its expected problems or values."""

    name: str
    lines: list[str] = field(default_factory=list)
    problems: list[Expected] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    def add(self, line: str) -> None:
        plain, *marks = re.split(r"\s*#!\s*", line)
        plain, *values = re.split(r"\s*#=\s*", plain)
        self.lines.append(plain)
        for mark in marks:
            match = _MARK.fullmatch(mark)
            assert match is not None, f"{self.name}: {mark!r} is no mark"
            file, at, column, key, part = match.groups()
            self.problems.append(Expected(file or "", int(at or len(self.lines)), int(column), key, part))
        for value in values:
            key, _, message = value.partition(": ")
            self.values[key] = json.loads(message)


def cases(folder: str) -> Iterator[Case]:
    """Return all cases of the files in a folder."""
    paths = sorted((HERE / folder).glob("*.txt"))
    assert paths, f"there are no cases in {folder}"
    for path in paths:
        case: Case | None = None
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("=== "):
                if case is not None:
                    yield case
                case = Case(f"{path.stem}: {line[4:]}")
            elif case is not None:
                case.add(line)
        assert case is not None, f"{path} has no cases"
        yield case
