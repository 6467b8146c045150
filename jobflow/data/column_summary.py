"""Summaries of columns: type, missing cells, range, distinct values, and the cells that do not fit the type."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import field
from datetime import date, datetime
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array
from jobflow.data.number_text import MISSING, parsed

#: distinct values that a summary counts, and wrong texts that it lists; both are only counted beyond
DISTINCT, LISTED = 1000, 20
#: a column with at least this share of numbers or dates is a column of numbers or dates, and its other cells are wrong
MOST = 0.8
_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ].*)?")
_COMMA = re.compile(r"[+-]?[0-9.]*,[0-9]+")


@dataclass
class Summary:
    """The cells of one column, or the elements of one field, counted block by block."""

    name: str
    #: the type of a field or of a column of a typed file; "" for text, whose type follows from the cells
    type: str = ""
    cells: int = 0
    missing: int = 0
    numeric: int = 0
    dates: int = 0
    whole: bool = True
    low: float = math.inf
    high: float = -math.inf
    first_date: str = ""
    last_date: str = ""
    distinct: Counter[str] = field(default_factory=Counter)
    #: {text: (first row, number of cells)} of cells that are neither numbers nor dates
    texts: dict[str, tuple[int, int]] = field(default_factory=dict)
    #: the same of numbers, listed if most cells are dates
    number_cells: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, texts: Iterable[Any], first: int) -> None:
        """Count cells: texts, dates, or None; `first` is the row of the first one."""
        for row, cell in enumerate(texts, first):
            self._add_cell(cell, row)

    def add_array(self, values: Array, missing: int = 0, *, distinct: bool = True) -> None:
        """Count the elements of an array of numbers, and `missing` absent ones; NaN is missing.  With `distinct`, count equal elements."""
        flat = np.asarray(values).reshape(-1)
        elements = flat.astype(np.float64) if flat.dtype.kind not in "biu" else flat
        absent = np.isnan(elements) if elements.dtype.kind == "f" else np.zeros(len(flat), bool)
        present = elements[~absent]
        self.cells += len(flat) + missing
        self.missing += int(absent.sum()) + missing
        self.numeric += len(present)
        if len(present):
            self.low, self.high = min(self.low, present.min().item()), max(self.high, present.max().item())
            self.whole = self.whole and (present.dtype.kind in "biu" or bool((present == np.trunc(present)).all()))
            if distinct and len(self.distinct) <= DISTINCT:
                values, counts = np.unique(present, return_counts=True)
                for value, count in zip(values[: DISTINCT + 1].tolist(), counts.tolist(), strict=False):
                    self.distinct[plain(value)] += count

    def _add_cell(self, cell: Any, row: int) -> None:
        self.cells += 1
        text = "" if cell is None else cell.isoformat() if isinstance(cell, date) else str(cell).strip()
        if text in MISSING:
            self.missing += 1
            return
        if len(self.distinct) <= DISTINCT or text in self.distinct:
            self.distinct[text] += 1
        value = parsed(text, exact=False)
        if value is not None:
            self.numeric += 1
            self.whole = self.whole and float(value).is_integer()
            self.low, self.high = min(self.low, value), max(self.high, value)
            _count(self.number_cells, text, row)
        elif is_date(text):
            self.dates += 1
            self.first_date, self.last_date = min(self.first_date or text, text), max(self.last_date, text)
        else:
            _count(self.texts, text, row)

    @property
    def present(self) -> int:
        return self.cells - self.missing

    @property
    def kind(self) -> str:
        """The kind of most cells: "number", "date", "text", or "empty" without cells."""
        if not self.present:
            return "empty"
        if self.numeric >= MOST * self.present:
            return "number"
        return "date" if self.dates >= MOST * self.present else "text"

    @property
    def is_class(self) -> bool:
        """True for a column with few distinct values, each of which occurs twice on average."""
        return 0 < len(self.distinct) <= DISTINCT and 2 * len(self.distinct) <= max(self.present, 2) and (self.kind == "text" or self.whole)

    @property
    def shown_type(self) -> str:
        own = {"number": "whole numbers" if self.whole else "numbers", "date": "dates", "text": "texts", "empty": "empty"}[self.kind]
        return self.type or own

    @property
    def range(self) -> str:
        """The smallest and the largest number or date; "" for texts."""
        if self.kind == "number" and self.numeric:
            return f"{plain(self.low)} to {plain(self.high)}"
        return f"{self.first_date} to {self.last_date}" if self.kind == "date" else ""

    def wrong(self) -> list[tuple[int, str, int]]:
        """Return (first row, reason, number of cells) of the listed texts that do not fit the kind of most cells."""
        if self.kind == "text" or self.type:
            return []
        odd = self.texts if self.kind == "number" else self.texts | self.number_cells
        advice = no_date if self.kind == "date" else no_number
        return sorted((row, f'column "{self.name}" is "{printable(text)}", {advice(text)}', count) for text, (row, count) in odd.items())

    @property
    def wrong_cells(self) -> int:
        """The number of all cells that do not fit the kind of most cells."""
        if self.type or self.kind in ("text", "empty"):
            return 0
        return self.present - (self.numeric if self.kind == "number" else self.dates)

    @property
    def is_free_text(self) -> bool:
        """True for texts that are mostly different, so that they are no classes."""
        return self.kind == "text" and not self.type and not self.is_class

    def json(self) -> dict[str, Any]:
        """Return the summary in JSON types."""
        span = {"low": self.low, "high": self.high} if self.numeric and math.isfinite(self.low) and math.isfinite(self.high) else {}
        classes = {"classes": dict(self.most_common())} if self.is_class else {}
        return {"name": self.name, "type": self.shown_type, "missing": self.missing, "wrong": self.wrong_cells, **span, **classes}

    def most_common(self) -> Sequence[tuple[str, int]]:
        """Return the distinct values with counts, the most frequent first."""
        return sorted(self.distinct.items(), key=lambda entry: (-entry[1], entry[0]))


def _count(cells: dict[str, tuple[int, int]], text: str, row: int) -> None:
    if text in cells or len(cells) < LISTED:
        first, count = cells.get(text, (row, 0))
        cells[text] = first, count + 1


def no_number(text: str) -> str:
    """Return the reason why a cell of a column of numbers is wrong, and what corrects it."""
    if _COMMA.fullmatch(text):
        return "which is not a number; write decimals with a point"
    return "which is not a number; correct the cell, leave it empty and set missing, or add the column to categories"


def no_date(_text: str) -> str:
    """Return the reason why a cell of a column of dates is wrong, and what corrects it."""
    return "which is not a date; write dates as YYYY-MM-DD, or leave the cell empty and set missing"


def printable(text: str) -> str:
    """Return the first 60 characters of a text, with escape sequences in place of control characters."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text[:60])


def is_date(text: str) -> bool:
    """Return True for a date, or a date and time, in ISO 8601."""
    if _DATE.fullmatch(text) is None:
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def plain(value: float) -> str:
    """Format a number: whole numbers without a point, others with six digits."""
    return str(int(value)) if math.isfinite(value) and float(value).is_integer() and abs(value) < 1e15 else f"{value:.6g}"
