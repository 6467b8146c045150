"""Batches of samples that come one after another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import numpy as np

from jobflow.core.errors import DataError, counted
from jobflow.core.types import Array
from jobflow.data.batch import Batch, Position
from jobflow.data.samples import Stream
from jobflow.data.stacking import stacked


def streamed(stream: Stream, names: Sequence[str], size: int, drop_last: bool, at: Position, epochs: int | None) -> Iterator[Batch]:
    """The batches from a position on; samples before it are skipped."""
    epoch, taken = at
    while epochs is None or epoch < at.epoch + epochs:
        samples = iter(stream.samples(epoch))
        skipped = sum(1 for _ in islice(samples, taken))
        if skipped < taken:
            raise DataError(f"{stream}: epoch {epoch} has {counted(skipped, 'sample')}, so it cannot continue after {taken}")
        rows = list(islice(samples, size))
        if not taken and len(rows) < (size if drop_last else 1):
            left = f", which do not fill a batch of {size} and drop_last leaves out" if drop_last else ""
            raise DataError(f"{stream}: epoch {epoch} has {counted(len(rows), 'sample')}{left}")
        while rows and not (drop_last and len(rows) < size):
            follows = list(islice(samples, size if drop_last else 1))  # whether there is another batch is told with this one
            ends = len(follows) < (size if drop_last else 1)
            after = Position(epoch + 1, 0) if ends else Position(epoch, taken + len(rows))
            yield _batch(stream, rows, names, Position(epoch, taken), after)
            taken += len(rows)
            rows = follows if drop_last else [*follows, *islice(samples, size - len(follows))] if follows else []
        epoch, taken = epoch + 1, 0


def _batch(stream: Stream, rows: Sequence[Mapping[str, Array]], names: Sequence[str], begin: Position, after: Position) -> Batch:
    what, numbers = f"{stream}: epoch {begin.epoch}, sample", range(begin.sample, begin.sample + len(rows))
    arguments = stacked(rows, stream.fields, names, what, numbers)
    return Batch(arguments, len(rows), begin, after, lambda: np.asarray(numbers), lambda row: f"{what} {numbers[row]}")
