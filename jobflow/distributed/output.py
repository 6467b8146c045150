"""The output of ranks as whole lines prefixed with the rank; the first error is repeated at the end."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

#: number of last lines of standard error that are stored per rank
KEPT = 400
#: an incomplete line is printed after this number of bytes
LONGEST = 1 << 20

_BEGIN = b"Traceback (most recent call last):"
#: separators of the tracebacks of one chain
_CHAIN = (b"The above exception was the direct cause", b"During handling of the above exception")


class Splitter:
    """A splitter of a rank's output into lines; carriage returns, as printed by progress bars, also end a line."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that `data` completes, without their ends."""
        text = (self._rest + data).replace(b"\r\n", b"\n")
        held = text.endswith(b"\r")  # may be the first half of \r\n
        *lines, rest = (text[:-1] if held else text).split(b"\n")
        self._rest = rest + b"\r" * held
        if len(self._rest) > LONGEST:
            lines, self._rest = [*lines, self._rest], b""
        return [part for line in lines for part in _parts(line)]

    def close(self) -> list[bytes]:
        """Return a list with the incomplete last line of the output, which has ended; [] if there is no such line."""
        rest, self._rest = self._rest, b""
        return _parts(rest) if rest else []


def _parts(line: bytes) -> list[bytes]:
    return [part for part in line.split(b"\r") if part] or [b""]


def last_traceback(lines: Iterable[bytes]) -> list[bytes]:
    """Return the last traceback and the lines after it, beginning with the first exception of its chain; [] without a traceback."""
    tail = list(lines)
    begins = [i for i, line in enumerate(tail) if _BEGIN in line]
    while len(begins) > 1 and any(line.startswith(_CHAIN) for line in tail[begins[-2] : begins[-1]]):
        del begins[-1]
    return tail[begins[-1] :] if begins else []


class Output:
    """The destination of one rank's standard output or error: the same stream of this process, a file, or both."""

    def __init__(self, rank: int, stream: BinaryIO | None, file: BinaryIO | None) -> None:
        self.prefix = b"[rank %d] " % rank
        self.stream, self.file = stream, file
        self.last: deque[bytes] = deque(maxlen=KEPT)
        self._splitter = Splitter()

    def feed(self, data: bytes) -> int:
        """Write the lines that `data` completes, or the incomplete last line if `data` is empty.

        Return the number of lines written to the stream of this process, 0 without a stream.
        """
        return self._write(self._splitter.feed(data) if data else self._splitter.close())

    def _write(self, lines: Sequence[bytes]) -> int:
        self.last.extend(lines)
        if self.file is not None and lines:
            self.file.write(b"".join(line + b"\n" for line in lines))
            self.file.flush()
        if self.stream is None or not lines:
            return 0
        # one write and a flush, so that lines of ranks do not interleave
        self.stream.write(b"".join(self.prefix + line + b"\n" for line in lines))
        self.stream.flush()
        return len(lines)


class Screen:
    """The outputs of the ranks of this node.

    With `logdir`, they are written to `logdir/rank_N/stdout` and `logdir/rank_N/stderr`.  With `redirect`, they are not printed in this process.
    """

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
        """Write new `data` of the stream `name` ("stdout" or "stderr") of a rank; empty data ends the stream."""
        if self.outputs[rank, name].feed(data):
            self._last_shown = rank

    def repeat(self, rank: int) -> None:
        """Print the last traceback of a rank again, unless the last printed output is from this rank."""
        output = self.outputs[rank, "stderr"]
        lines = last_traceback(output.last)
        if lines and (self._redirect or self._last_shown != rank):
            sys.stderr.buffer.write(b"".join(output.prefix + line + b"\n" for line in lines))
            sys.stderr.buffer.flush()

    def close(self) -> None:
        for file in self._files:
            file.close()


def drop_output() -> None:
    """Discard all further output because the reader of this process's output has exited."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nowhere, number)
    os.close(nowhere)
