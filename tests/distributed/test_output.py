"""Output lines of several ranks."""

from __future__ import annotations

import io

import pytest

from jobflow.distributed.output import Output, Splitter, last_traceback


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ([b"a\nb\n"], [b"a", b"b"]),
        ([b"a", b"b\nc", b"\n"], [b"ab", b"c"]),
        ([b"no end"], [b"no end"]),
        ([b"\n\n"], [b"", b""]),
        ([b"one\r\ntwo\r", b"\n"], [b"one", b"two"]),
        ([b"\r 10%", b"\r 20%\r", b" 30%\n"], [b" 10%", b" 20%", b" 30%"]),
        ([b"x" * (3 << 20)], [b"x" * (3 << 20)]),
    ],
)
def test_output_is_split_into_lines(pieces: list[bytes], lines: list[bytes]) -> None:
    splitter = Splitter()
    assert [line for piece in pieces for line in splitter.feed(piece)] + splitter.close() == lines


def test_each_line_has_the_rank_and_files_have_none() -> None:
    screen, file = io.BytesIO(), io.BytesIO()
    output = Output(3, screen, file)
    assert [output.feed(piece) for piece in (b"a\nb", b"c\n", b"d", b"")] == [1, 1, 0, 1]
    assert screen.getvalue() == b"[rank 3] a\n[rank 3] bc\n[rank 3] d\n"
    assert file.getvalue() == b"a\nbc\nd\n"


class TestLastTraceback:
    begin = b"Traceback (most recent call last):"

    def test_output_without_a_traceback_has_none(self) -> None:
        assert last_traceback([b"warning"]) == []

    def test_the_last_of_two_tracebacks_is_returned(self) -> None:
        assert last_traceback([self.begin, b"KeyError", b"caught", self.begin, b"ValueError"]) == [self.begin, b"ValueError"]

    def test_chained_exceptions_are_one_traceback(self) -> None:
        chain = [self.begin, b"KeyError", b"", b"During handling of the above exception, another exception occurred:", b"", self.begin, b"ValueError"]
        assert last_traceback([self.begin, b"caught", *chain]) == chain
