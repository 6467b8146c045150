"""Tables, drawn as text by rich: whole, plain and a line per row in files and pipes; on a terminal folded to its width."""

from __future__ import annotations

import io
import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from jobflow.core.dataclass import dataclass

if TYPE_CHECKING:
    from rich.table import Table

#: columns of an output for which nothing is too wide
UNLIMITED = 1 << 20
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class TextTable:
    """Rows under headings, of which there may be none; the columns whose positions are in `right` are right-aligned.

    A page shows those in `code` in the typeface of programs.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    right: Collection[int] = ()
    code: Collection[int] = ()

    def __str__(self) -> str:
        """As plain text, two spaces between columns."""
        from rich.console import Console

        out = io.StringIO()
        Console(file=out, width=UNLIMITED, color_system=None, force_terminal=False, force_jupyter=False).print(self._drawn(fold=False))
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines())

    def print(self) -> None:
        """On a terminal with bold headings and long cells folded, elsewhere plain."""
        from rich.console import Console

        console = Console()
        console.print(self._drawn(fold=True)) if console.is_terminal else print(self)

    def _drawn(self, fold: bool) -> Table:
        from rich.table import Table
        from rich.text import Text

        cells = [[_visible(str(entry)) for entry in row] for row in self.rows]
        found = Table(box=None, pad_edge=False, padding=(0, 1), show_header=bool(self.head), header_style="bold")
        for i, title in enumerate(self.head or (cells[0] if cells else ())):
            found.add_column(Text(title if self.head else ""), justify="right" if i in self.right else "left", overflow="fold")
        joined = [["\n".join(column) for column in zip(*cells, strict=True)]] if cells else []  # drawn in a quarter of the time
        for row in cells if fold else joined:
            found.add_row(*map(Text, row))
        return found


def _visible(text: str) -> str:
    r"""Control characters, which a terminal would act on, as \x1b."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)
