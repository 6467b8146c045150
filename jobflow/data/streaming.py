"""Batches of samples that come one after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from jobflow.core.errors import DataError, counted
from jobflow.core.types import Array
from jobflow.data.samples import Stream
from jobflow.data.stacking import stacked

At = tuple[int, int]


def streamed(
    stream: Stream, names: Sequence[str], size: int, drop_last: bool, at: At, epochs: int | None
) -> Iterator[tuple[dict[str, Array], int, At, At]]:
    """(arrays, size, where it begins, where the next one does) of each batch; samples before `at` are skipped."""
    epoch, taken = at
    while epochs is None or epoch < at[0] + epochs:
        samples = iter(stream.samples(epoch))
        skipped = sum(1 for _ in islice(samples, taken))
        if skipped < taken:
            raise DataError(f"{stream}: epoch {epoch} has {counted(skipped, 'sample')}, so there is no going on after {taken}")
        rows = list(islice(samples, size))
        if not taken and len(rows) < (size if drop_last else 1):
            left = f", which do not fill a batch of {size} and drop_last leaves out" if drop_last else ""
            raise DataError(f"{stream}: epoch {epoch} has {counted(len(rows), 'sample')}{left}")
        while rows and not (drop_last and len(rows) < size):
            follows = list(islice(samples, size if drop_last else 1))  # whether there is another batch is told with this one
            ends = len(follows) < (size if drop_last else 1)
            after = (epoch + 1, 0) if ends else (epoch, taken + len(rows))
            numbers = range(taken, taken + len(rows))
            yield stacked(rows, stream.fields, names, f"{stream}: epoch {epoch}, sample", numbers), len(rows), (epoch, taken), after
            taken += len(rows)
            rows = follows if drop_last else [*follows, *islice(samples, size - len(follows))] if follows else []
        epoch, taken = epoch + 1, 0
