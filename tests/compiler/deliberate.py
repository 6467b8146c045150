"""Tables of deliberate differences in the decision records; a table must list exactly the actual differences."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

#: an op, the layouts of its inputs, and the layout of its output
Case = tuple[str, str, str]


@dataclass(frozen=True)
class Difference:
    """A row of a table: ops, and patterns of the layouts of inputs and output."""

    ops: tuple[str, ...]
    inputs: str
    here: str

    def covers(self, op: str, inputs: str, ours: str) -> bool:
        return op in self.ops and fnmatchcase(inputs, self.inputs) and fnmatchcase(ours, self.here)


def differences(record: Path, known: Collection[str], least: int) -> list[Difference]:
    """Return the rows of the table whose first column names known ops; assert a minimum number of them."""
    rows = []
    for line in record.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        ops = tuple(cells[0].replace("`", "").split(", "))
        if len(cells) == 5 and all(op in known for op in ops):
            rows.append(Difference(ops, cells[1].strip("`"), cells[3].strip("`")))
    assert len(rows) >= least, "the table was not found"
    return rows


def idle(rows: list[Difference], cases: list[Case]) -> list[str]:
    """Return the rows of a table that match no difference."""
    return [f"{op}: {row}" for row in rows for op in row.ops if not any(row.covers(*case) for case in cases if case[0] == op)]
