"""Tutorials, taken apart into steps: the files that a reader saves and the commands that a reader runs, in the order of the page."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isclose
from pathlib import Path

from pages import FENCE, ROOT, TUTORIALS

#: <!-- prints --> before a block: the output of the commands above it; <!-- prints about -->: whole numbers may differ, too
PRINTS = re.compile(r"<!-- prints( about)? -->\s*\Z")
#: <!-- not run --> before a block: an installation, which test_commands.py tries for the README
SKIPPED = re.compile(r"<!-- not run -->\s*\Z")
#: <!-- fails --> before a block of commands whose exit code is not 0
FAILS = re.compile(r"<!-- fails -->\s*\Z")
#: the first line of a block that readers save under this name
NAME = re.compile(r"# ([\w./-]+\.(?:py|yaml))\n")
#: on a page that needs the files of another one
CONTINUES = re.compile(r"<!-- continues (\S+) -->")
#: in a shown output, any text
ANY = "..."
#: a number with a fraction, or with an exponent
FLOAT = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
#: largest number of shown lines of a printed line, which a page may wrap
LONGEST = 3
#: how far a number of a training may lie from the shown one, on another class of machine
RELATIVE, ABSOLUTE = 0.15, 0.05
#: how far a whole number may lie from the shown one in an output that is shown about
FAR = 4


@dataclass(frozen=True)
class Action:
    """A file to save (with its name) or a block of commands (with the output that the page shows)."""

    page: str
    line: int
    text: str
    file: str | None = None
    output: str | None = None
    #: True if whole numbers of the output may differ, such as counts of a confusion matrix
    about: bool = False
    #: True if the commands fail
    fails: bool = False

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def steps_of(page: Path) -> list[Action]:
    """Return the steps of a tutorial; a block that is neither a file nor commands nor their output raises."""
    text, steps = page.read_text(encoding="utf-8"), list[Action]()
    for match in FENCE.finditer(text):
        before = text[: match.start()]
        step = Action(page.name, before.count("\n") + 1, match[2], fails=bool(FAILS.search(before)))
        if SKIPPED.search(before):
            continue
        if match[1] == "bash":
            steps.append(step)
        elif match[1] in ("python", "yaml"):
            if (name := NAME.match(match[2])) is None:
                raise ValueError(f"{step}: the first line does not name the file, such as # net.py")
            steps.append(replace(step, file=name[1]))
        elif (prints := PRINTS.search(before)) is not None:
            if steps[-1].file is not None:
                raise ValueError(f"{step}: no commands stand between the file {steps[-1].file} and this output")
            steps[-1] = replace(steps[-1], output=match[2], about=bool(prints[1]))
        elif page.name.startswith("tutorial"):
            raise ValueError(f"{step}: this block is neither a file nor commands, nor is it marked as their output")
    return steps


def pages() -> list[Path]:
    return [ROOT / "docs" / name for name in TUTORIALS]


def before(page: Path) -> Path | None:
    """Return the tutorial whose folder this one continues in, or None for a fresh folder."""
    match = CONTINUES.search(page.read_text(encoding="utf-8"))
    return None if match is None else page.with_name(match[1])


def lines_of(script: str) -> list[str]:
    """Return the commands of a block; lines of here-documents and comments are omitted."""
    text = re.sub(r"<<'(\w+)'(.*)\n(?:.*\n)*?\1\n", r"\2\n", script).replace("\\\n", " ")
    return [line for line in (re.sub(r"\s+#.*", "", line).strip() for line in text.splitlines()) if line and not line.startswith("#")]


def matches(shown: str, printed: str, *, about: bool = False) -> bool:
    """Return True if the output has the shown lines in order; `...` is any text, and a line of it any lines.

    A long line may be wrapped.
    """
    expected, lines = shown.rstrip().splitlines(), printed.rstrip().splitlines()
    return _match_lines(expected, lines, about)


def _match_lines(expected: list[str], lines: list[str], about: bool) -> bool:
    if not expected:
        return not lines
    if expected[0].strip() == ANY:
        return any(_match_lines(expected[1:], lines[start:], about) for start in range(len(lines) + 1))
    wrapped = (" ".join([expected[0], *map(str.strip, expected[1:count])]) for count in range(1, min(LONGEST, len(expected)) + 1))
    return bool(lines) and any(
        same(line, lines[0], about) and _match_lines(expected[count:], lines[1:], about) for count, line in enumerate(wrapped, 1)
    )


def same(shown: str, printed: str, about: bool = False) -> bool:
    """Return True if a line is the shown one; floats may differ as on another class of machine, which also changes widths of columns."""
    kind = NUMBER if about else FLOAT
    parts = [kind.split(part) for part in shown.split(ANY)]
    pattern = r"(.*)".join(r"(-?\d+\.?\d*(?:e[-+]?\d+)?)".join(_text(text) for text in part) for part in parts)
    match = re.fullmatch(pattern, printed.rstrip())
    if match is None:
        return False
    expected = _groups(shown, kind)
    pairs = zip(expected, match.groups(), strict=True)
    return all(
        number is None or isclose(float(number), float(printed_number), rel_tol=RELATIVE, abs_tol=FAR if about else ABSOLUTE)
        for number, printed_number in pairs
    )


def _text(text: str) -> str:
    return re.sub(r"(?:\\ )+", r"\\s+", re.escape(text))


def _groups(shown: str, kind: re.Pattern[str]) -> list[str | None]:
    """Return the shown number of each group of the pattern of a line, and None where any text may stand."""
    parts = [kind.findall(part) for part in shown.split(ANY)]
    groups: list[str | None] = []
    for first, last in pairwise([*parts, None]):
        groups += first or []
        groups += [None] if last is not None else []
    return groups
