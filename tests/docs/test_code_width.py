"""Code blocks of README and docs fit the content column of the site: 88 columns, at the width of the theme with the sizes in jobflow.css."""

from __future__ import annotations

import re

import pages
from pages import DOCS, ROOT

WIDTH = 88
#: a block that is what a command prints, an excerpt of a file, or a command that tests and readers take as one line
AS_PRINTED = re.compile(r"<!-- (stage: \w+|from \S+|run|test) -->\s*\Z")
STYLES = (ROOT / "scripts" / "site" / "theme" / "stylesheets" / "jobflow.css").read_text(encoding="utf-8")


def long_lines() -> list[str]:
    lines = []
    for path in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        for block in pages.FENCE.finditer(text):
            if not AS_PRINTED.search(text[: block.start()]):
                first = text[: block.start()].count("\n") + 2
                numbered = enumerate(block[2].splitlines(), first)
                lines += [f"{path.relative_to(ROOT)}:{number}: {len(line)} columns" for number, line in numbered if len(line) > WIDTH]
    return lines


def test_code_blocks_fit_their_column() -> None:
    """Break the line, move its comment above it, or continue a command with a backslash."""
    lines = long_lines()
    assert not lines, "\n".join(lines)


def test_the_column_is_as_wide_as_stated() -> None:
    """A rem has 20 px. Two sidebars have 12.1 rem each, margins 1.2 rem, and a character has 0.602 of the font size."""
    font = float(re.search(r"code \{ font-size: (\.\d+)em", STYLES)[1]) * 0.8 * 20  # type: ignore[index]
    grid = min(float(re.search(r"max-width: (\d+)rem", STYLES)[1]) * 20, 1280 - 15)  # type: ignore[index]
    column = grid - 2 * 12.1 * 20 - 2 * 1.2 * 20 - 2 * 1.1764 * font
    assert column / (font * 0.602) >= WIDTH
