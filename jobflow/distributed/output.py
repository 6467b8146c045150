"""The output of ranks as whole lines with the rank in front, and the first error again at the end."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

#: lines of standard error that are kept of each rank
KEPT = 400
#: bytes after which a line is shown though it has not ended
LONGEST = 1 << 20

_BEGIN = b"Traceback (most recent call last):"
#: between the tracebacks of one chain
_CHAIN = (b"The above exception was the direct cause", b"During handling of the above exception")


class Splitter:
    """Cuts what a rank prints into lines; a carriage return, by which progress bars begin anew, ends one too."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without their ends."""
        text = (self._rest + data).replace(b"\r\n", b"\n")
        held = text.endswith(b"\r")  # it may belong to a line feed that has not come yet
        *lines, rest = (text[:-1] if held else text).split(b"\n")
        self._rest = rest + b"\r" * held
        if len(self._rest) > LONGEST:
            lines, self._rest = [*lines, self._rest], b""
        return [part for line in lines for part in _parts(line)]

    def close(self) -> list[bytes]:
        """What is left when the output has ended."""
        rest, self._rest = self._rest, b""
        return _parts(rest) if rest else []


def _parts(line: bytes) -> list[bytes]:
    return [part for part in line.split(b"\r") if part] or [b""]


def last_traceback(lines: Iterable[bytes]) -> list[bytes]:
    """The last traceback and what follows it, from the first of the chain on; empty if there is none."""
    kept = list(lines)
    begins = [i for i, line in enumerate(kept) if _BEGIN in line]
    while len(begins) > 1 and any(line.startswith(_CHAIN) for line in kept[begins[-2] : begins[-1]]):
        del begins[-1]
    return kept[begins[-1] :] if begins else []


class Output:
    """Where the lines of one rank's standard output or error go: to the same of this process, to a file, or to both."""

    def __init__(self, rank: int, stream: BinaryIO | None, file: BinaryIO | None) -> None:
        self.prefix = b"[rank %d] " % rank
        self.stream, self.file = stream, file
        self.last: deque[bytes] = deque(maxlen=KEPT)
        self._splitter = Splitter()

    def feed(self, data: bytes) -> int:
        """Show the lines that `data` completes; how many were shown."""
        return self._write(self._splitter.feed(data) if data else self._splitter.close())

    def _write(self, lines: Sequence[bytes]) -> int:
        self.last.extend(lines)
        if self.file is not None and lines:
            self.file.write(b"".join(line + b"\n" for line in lines))
            self.file.flush()
        if self.stream is None or not lines:
            return 0
        # in one piece, and before anybody else writes
        self.stream.write(b"".join(self.prefix + line + b"\n" for line in lines))
        self.stream.flush()
        return len(lines)


class Screen:
    """All ranks' outputs.  Files are `logdir/rank_N/stdout` and `stderr`; with `redirect` they are all there is."""

    def __init__(self, ranks: Sequence[int], logdir: Path | None, redirect: bool) -> None:
        self._files: list[BinaryIO] = []
        self.outputs: dict[tuple[int, str], Output] = {}
        for rank in ranks:
            for name, stream in (("stdout", sys.stdout.buffer), ("stderr", sys.stderr.buffer)):
                self.outputs[rank, name] = Output(rank, None if redirect else stream, self._open(logdir, rank, name))
        self._redirect = redirect
        self._last_shown = -1

    def _open(self, logdir: Path | None, rank: int, name: str) -> BinaryIO | None:
        if logdir is None:
            return None
        folder = logdir / f"rank_{rank}"
        folder.mkdir(parents=True, exist_ok=True)
        self._files.append((folder / name).open("wb"))
        return self._files[-1]

    def feed(self, rank: int, name: str, data: bytes) -> None:
        """`data` has come, or, if it is empty, the end."""
        if self.outputs[rank, name].feed(data):
            self._last_shown = rank

    def repeat(self, rank: int) -> None:
        """Show the traceback of a rank again, unless it is what was shown last."""
        output = self.outputs[rank, "stderr"]
        lines = last_traceback(output.last)
        if lines and (self._redirect or self._last_shown != rank):
            sys.stderr.buffer.write(b"".join(output.prefix + line + b"\n" for line in lines))
            sys.stderr.buffer.flush()

    def close(self) -> None:
        for file in self._files:
            file.close()


def drop_output() -> None:
    """Whoever read this process's output is gone: let what is still printed, at its end too, go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nowhere, number)
    os.close(nowhere)
