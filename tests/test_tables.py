"""Tables: whole and plain where programs read them, folded where people do."""

from __future__ import annotations

import io
import re
import sys

import pytest

from jobflow.core.tables import TextTable

TABLE = TextTable(["name", "bytes"], [["a" * 200, 1], ["[bold]b[/] :smile:", 22], ["日本", 333], ["\x1b[31mred\nnext", 4]], right=(1,))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_text_is_whole_plain_and_has_a_line_per_row(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in {"COLUMNS": "40", "FORCE_COLOR": "1", "TERM": "xterm-256color"}.items():
        monkeypatch.setenv(name, value)
    assert str(TABLE).splitlines() == [
        f"{'name':200}  bytes",
        f"{'a' * 200}      1",
        f"{'[bold]b[/] :smile:':200}     22",
        f"{'日本':198}    333",
        "\\x1b[31mred\\nnext".ljust(200) + "      4",
    ]
    monkeypatch.delenv("FORCE_COLOR")
    TABLE.print()
    assert capsys.readouterr().out == f"{TABLE}\n"


def test_without_headings_or_rows() -> None:
    assert str(TextTable([], [["MPI", "MPICH"], ["BLAS", ""]])) == "MPI   MPICH\nBLAS"
    assert str(TextTable(["name", "bytes"], [])) == "name  bytes" and str(TextTable([], [])) == ""


@pytest.mark.parametrize("no_colour", ["", "1"])
def test_a_terminal_gets_all_of_it_in_its_width(no_colour: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"COLUMNS": "40", "TERM": "xterm-256color", "NO_COLOR": no_colour}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", out := Terminal())
    TABLE.print()
    text = re.sub(r"\x1b\[[\d;]*m", "", out.getvalue())
    assert max(map(len, text.splitlines())) <= 40 and text.count("a") == 201 and "\x1b[31m" not in out.getvalue() and "…" not in text
    assert re.search(r"\[bold\]b\[/\]", text) and text.splitlines()[0].split() == ["name", "bytes"]
