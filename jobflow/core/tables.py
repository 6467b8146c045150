"""Text tables, rendered by rich: unwrapped plain text in files and pipes, folded to the width of a terminal."""

from __future__ import annotations

import io
import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from jobflow.core.dataclass import dataclass

if TYPE_CHECKING:
    from rich.table import Table

#: width of an output without folding
UNLIMITED = 1 << 20
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class TextTable:
    """A text table with optional headings; the columns with indices in `right` are right-aligned.

    Documentation pages set the columns in `code` in a monospaced font.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    right: Collection[int] = ()
    code: Collection[int] = ()

    def __str__(self) -> str:
        """Return plain text with two spaces between columns."""
        from rich.console import Console

        out = io.StringIO()
        Console(file=out, width=UNLIMITED, color_system=None, force_terminal=False, force_jupyter=False).print(self._drawn(fold=False))
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines())

    def print(self) -> None:
        """Print the table: on a terminal with bold headings and folded cells, else as plain text."""
        from rich.console import Console

        console = Console()
        console.print(self._drawn(fold=True)) if console.is_terminal else print(self)

    def _drawn(self, fold: bool) -> Table:
        from rich.table import Table
        from rich.text import Text

        cells = [[_visible(str(entry)) for entry in row] for row in self.rows]
        table = Table(box=None, pad_edge=False, padding=(0, 1), show_header=bool(self.head), header_style="bold")
        for i, title in enumerate(self.head or (cells[0] if cells else ())):
            table.add_column(Text(title if self.head else ""), justify="right" if i in self.right else "left", overflow="fold")
        joined = [["\n".join(column) for column in zip(*cells, strict=True)]] if cells else []  # one cell per column renders four times faster
        for row in cells if fold else joined:
            table.add_row(*map(Text, row))
        return table


def _visible(text: str) -> str:
    r"""Replace control characters, which a terminal would interpret, by escape sequences such as \x1b."""
    return _CONTROL.sub(lambda match: repr(match[0])[1:-1], text)
