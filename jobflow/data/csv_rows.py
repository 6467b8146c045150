"""Rows of CSV files: the positions at which they begin, without parsing the cells."""

from __future__ import annotations

import numpy as np

from jobflow.core.types import Array

BLOCK = 1 << 22
NEW_LINE, RETURN, QUOTE = 10, 13, 34


def row_starts(content: Array, begin: int, delimiter: int) -> tuple[Array, int | None]:
    """Return the position of each row from `begin` on, with the end of the last one, and the position of a quote that is never closed.

    Lines end with LF, CR LF or CR.  A line end within quotes ends no row, and empty lines are no rows.
    """
    found, quotes = [np.array([begin], np.int64)], Quotes(content, begin, delimiter)
    for start in range(begin, len(content), BLOCK):
        stop = min(start + BLOCK, len(content))
        was_open, ends = quotes.is_open, line_ends(content, start, stop)
        marks = quotes.counted(np.flatnonzero(content[start:stop] == QUOTE) + start)
        outside = (np.searchsorted(marks, ends) + was_open) % 2 == 0
        found.append(ends[outside] + 1)
    starts = np.concatenate(found)
    starts = starts[starts < len(content)]
    filled = starts[~np.isin(content[starts], (NEW_LINE, RETURN))]  # an empty line is the tail of the row before it
    return np.append(filled, len(content)), quotes.last if quotes.is_open else None


def line_ends(content: Array, start: int, stop: int) -> Array:
    """The positions from `start` to `stop` at which lines end; of CR LF, that of LF."""
    block = np.asarray(content[start:stop])
    ends, returns = np.flatnonzero(block == NEW_LINE) + start, np.flatnonzero(block == RETURN) + start
    if not returns.size:
        return ends
    after = content[np.minimum(returns + 1, len(content) - 1)]
    alone = returns[(after != NEW_LINE) | (returns + 1 == len(content))]
    return np.sort(np.concatenate([ends, alone])) if alone.size else ends


class Quotes:
    """The quotes that open and close cells, in turn; a quote within a cell that does not begin with one is text."""

    def __init__(self, content: Array, begin: int, delimiter: int) -> None:
        self._content, self._begin, self._before = content, begin, np.array([delimiter, NEW_LINE, RETURN], np.uint8)
        self.is_open = False
        #: position of the last quote that opened or closed a cell
        self.last = -1

    def counted(self, marks: Array) -> Array:
        """Those of the next quotes that open or close cells."""
        if not marks.size:
            return marks
        begins = np.isin(self._content[marks - 1], self._before) | (marks == self._begin)
        follows = np.diff(marks, prepend=self.last) == 1  # a doubled quote opens what it has closed
        opens = (np.arange(len(marks)) + self.is_open) % 2 == 0
        wrong = np.flatnonzero(opens & ~begins & ~follows)
        if wrong.size:
            marks = self._without_texts(marks, begins, int(wrong[0]))
        if marks.size:
            self.is_open, self.last = bool((len(marks) + self.is_open) % 2), int(marks[-1])
        return marks

    def _without_texts(self, marks: Array, begins: Array, first: int) -> Array:
        """The same, where the quote at `first` is the first that is text."""
        kept = marks[:first].tolist()
        last, is_open = kept[-1] if kept else self.last, False
        for mark, begin in zip(marks[first:].tolist(), begins[first:].tolist(), strict=True):
            if is_open or begin or last == mark - 1:
                kept.append(mark)
                last, is_open = mark, not is_open
        return np.array(kept, np.int64)
