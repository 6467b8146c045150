"""Tables of deliberate differences, in the records of decisions; whatever differs must be in one, and whatever is in one must differ."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

#: an op, how its inputs lie, and how its output lies here
Case = tuple[str, str, str]


@dataclass(frozen=True)
class Difference:
    """A row of a table: ops, and patterns of how inputs and the output lie."""

    ops: tuple[str, ...]
    inputs: str
    here: str

    def covers(self, op: str, inputs: str, ours: str) -> bool:
        return op in self.ops and fnmatchcase(inputs, self.inputs) and fnmatchcase(ours, self.here)


def differences(record: Path, known: Collection[str], least: int) -> list[Difference]:
    """The rows of the table in a record whose first column names known ops; there are at least so many."""
    found = []
    for line in record.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        ops = tuple(cells[0].replace("`", "").split(", "))
        if len(cells) == 5 and all(op in known for op in ops):
            found.append(Difference(ops, cells[1].strip("`"), cells[3].strip("`")))
    assert len(found) >= least, "the table was not found"
    return found


def idle(rows: list[Difference], cases: list[Case]) -> list[str]:
    """What is in a table and does not differ."""
    return [f"{op}: {row}" for row in rows for op in row.ops if not any(row.covers(*case) for case in cases if case[0] == op)]
