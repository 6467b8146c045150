"""Batches: every sample once, resumed anywhere, read ahead, and threads that end."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobflow.core.errors import ArgumentError, DataError
from jobflow.core.types import float32, int64
from jobflow.data import Batches, Columns, Field, Order, Position, Samples, Stream, Subset, ahead, open_reader, order_of, per_device, samples_of

Array = np.ndarray[Any, Any]


class Squares(Samples):
    """Sample i is i and its square; reads are noted, and may be slow or fail."""

    def __init__(self, count: int, seconds: float = 0.0, bad: int = -1) -> None:
        super().__init__({"x": Field((2,), float32), "i": Field((), int64)}, count)
        self.seconds, self.bad = seconds, bad
        self.reads: list[list[int]] = []

    def rows(self, rows: Array, epoch: int, names: Sequence[str]) -> dict[str, Array]:
        self.reads.append(rows.tolist())
        time.sleep(self.seconds)
        if self.bad in rows:
            raise OSError(f"sample {self.bad} is torn")
        fields = {"x": np.stack([rows**2, np.full_like(rows, epoch)], 1).astype(np.float32), "i": rows}
        return {name: fields[name] for name in names}


class Counting(Stream):
    """The numbers below `count`, one after another."""

    def __init__(self, count: int) -> None:
        self.count, self.fields = count, {"i": Field((), int64)}

    def samples(self, epoch: int) -> Iterator[Mapping[str, Array]]:
        return ({"i": np.int64(100 * epoch + i)} for i in range(self.count))


def positions_and_rows(batches: Batches, position: Collection[int] = (0, 0), epochs: int | None = 1) -> list[tuple[Position, Position, list[int]]]:
    with batches.start(Position(*position), epochs) as reading:
        return [(batch.position, batch.position_after, batch.arguments["i"].tolist()) for batch in reading]


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_an_epoch_has_every_sample_once_in_its_order(prefetch: int) -> None:
    order = Order(1, 23)
    batches = positions_and_rows(Batches(Squares(23), order, 5, prefetch=prefetch), epochs=2)
    assert [len(rows) for *_, rows in batches] == [5, 5, 5, 5, 3] * 2
    assert [i for *_, rows in batches for i in rows] == [*order.indices(0, 0, 23).tolist(), *order.indices(1, 0, 23).tolist()]
    assert batches[4][1] == Position(1, 0) and batches[3][1] == Position(0, 20)


@settings(max_examples=20)
@given(st.integers(1, 12), st.booleans(), st.booleans(), st.integers(12, 25))
def test_iteration_from_any_position_yields_the_rest(size: int, drop_last: bool, shuffle: bool, count: int) -> None:
    batches = Batches(Squares(count), Order(3, count, shuffle), size, drop_last, prefetch=0)
    whole = positions_and_rows(batches, epochs=2)
    for i, (position, after, _) in enumerate(whole):
        assert positions_and_rows(batches, position, 2 - position.epoch) == whole[i:]
        assert after == (whole[i + 1][0] if i + 1 < len(whole) else Position(2, 0))
    assert len(whole) == 2 * len(batches)


@pytest.mark.parametrize(("count", "drop_last"), [(1, False), *((count, drop_last) for count in (7, 8, 9, 16) for drop_last in (False, True))])
def test_streams_resume_at_any_position(count: int, drop_last: bool) -> None:
    batches = Batches(Counting(count), None, 4, drop_last)
    whole = positions_and_rows(batches, epochs=2)
    last = count - count % 4 if drop_last else count
    assert [i for *_, rows in whole for i in rows] == [100 * epoch + i for epoch in range(2) for i in range(last)]
    for i, (position, *_) in enumerate(whole):
        assert positions_and_rows(batches, position, 2 - position.epoch) == whole[i:]
    assert whole[-1][1] == Position(2, 0) and sum(after.epoch > begin.epoch for begin, after, _ in whole) == 2


def test_batches_are_endless_without_a_number_of_epochs() -> None:
    with Batches(Squares(4), Order(0, 4), 4).start((2, 0)) as reading:
        batches = [next(reading) for _ in range(5)]
    assert [batch.position for batch in batches] == [Position(epoch, 0) for epoch in range(2, 7)]
    assert all(batch.ends_epoch and batch.size == 4 for batch in batches)
    assert [batch.arguments["x"][0, 1] for batch in batches] == [2, 3, 4, 5, 6], "a sample may differ from epoch to epoch"
    assert next(reading, None) is None, "a reading that was closed has no more"


def test_a_batch_has_the_numbers_of_its_samples() -> None:
    with Batches(Squares(10), Order(8, 10), 3, fields=["i"]).start((1, 3)) as reading:
        batch = next(reading)
    assert list(batch.arguments) == ["i"] and np.array_equal(batch.numbers, batch.arguments["i"])
    with Batches(Counting(10), None, 3).start((1, 3)) as reading:
        assert next(reading).numbers.tolist() == [3, 4, 5]


def test_prefetching_reads_at_most_the_requested_number_of_batches() -> None:
    samples = Squares(100)
    with Batches(samples, None, 5, prefetch=3).start() as reading:
        next(reading)
        deadline = time.monotonic() + 2
        while len(samples.reads) < 4 and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(0.05)
        assert len(samples.reads) == 4, "one in use and three ahead"


def test_reading_goes_on_while_a_batch_is_used() -> None:
    waited = []
    for prefetch in (0, 2):
        with Batches(Squares(80, seconds=0.02), None, 10, prefetch=prefetch).start(epochs=1) as reading:
            for _ in reading:
                time.sleep(0.03)
        waited.append(reading.waited)
    assert waited[0] > 0.15 and waited[1] < waited[0] / 2, "all but the first batch were there"


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_error_is_raised_where_the_batch_would_have_come(prefetch: int) -> None:
    with Batches(Squares(30, bad=17), None, 5, prefetch=prefetch).start() as reading:
        assert [next(reading).position.sample for _ in range(3)] == [0, 5, 10]
        with pytest.raises(DataError, match="sample 17: OSError: sample 17 is torn"):
            next(reading)
        assert next(reading, None) is None


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("reader-")]


def test_threads_end_when_an_iterator_is_closed_or_collected() -> None:
    began = time.monotonic()
    reading = Batches(Squares(1000, seconds=0.05), None, 1, prefetch=50).start()
    next(reading)
    assert readers()
    reading.close()
    assert not readers() and time.monotonic() - began < ahead.PATIENCE
    reading = Batches(Squares(1000, seconds=0.05), None, 1, prefetch=50).start()
    next(reading)
    del reading
    gc.collect()
    assert not readers()


def test_a_program_exits_without_waiting_for_prefetched_batches() -> None:
    program = """
import time
from jobflow.data import Batches, samples_of
class Slow:
    def __len__(self): return 1000
    def __getitem__(self, i):
        time.sleep(0.02 if i < 8 else 0.3)
        return {"x": float(i)}
reading = Batches(samples_of(Slow()), None, 4, prefetch=100).start()
print(next(reading).arguments["x"].tolist(), flush=True)
"""
    began = time.monotonic()
    root = Path(__file__).parents[2]
    ended = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60, cwd=root)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "[0.0, 1.0, 2.0, 3.0]\n", "")
    assert time.monotonic() - began < 10


def test_wrong_arguments_of_batches_raise() -> None:
    ten = Squares(10)
    with pytest.raises(ArgumentError, match="batch_size must be at least 1"):
        Batches(ten, None, 0)
    with pytest.raises(ArgumentError, match="order has 9 samples, but samples has 10"):
        Batches(ten, Order(0, 9), 5)
    with pytest.raises(ArgumentError, match="do not fill a batch of 11"):
        Batches(ten, None, 11, drop_last=True)
    with pytest.raises(ArgumentError, match=r"epoch=0, sample=11\) is out of range; an epoch has 10 samples"):
        Batches(ten, None, 5).start((0, 11))
    with pytest.raises(ArgumentError, match=r'field "y" does not exist. There are x, i'):
        Batches(ten, None, 5, fields=["y"])
    with pytest.raises(ArgumentError, match="sample 10 is out of range; the number of samples is 10"):
        ten.read([3, 10])


def test_streams_ignore_the_order() -> None:
    assert order_of(Counting(3), 0, shuffle=False) is None
    assert order_of(Squares(3), 5, shuffle=True) == Order(5, 3)
    with pytest.raises(ArgumentError, match="cannot be shuffled"):
        order_of(Counting(3), 0, shuffle=True)
    with pytest.raises(ArgumentError, match="omit order"):
        Batches(Counting(3), Order(0, 3), 1)
    with pytest.raises(TypeError, match="a stream has no length"):
        len(Batches(Counting(3), None, 1))
    with pytest.raises(DataError, match="epoch 0 has 3 samples, so reading cannot resume after sample 5"):
        positions_and_rows(Batches(Counting(3), None, 1), (0, 5))
    for count, drop_last, message in ((0, False, "has 0 samples"), (3, True, "do not fill a batch of 4")):
        with pytest.raises(DataError, match=message):
            positions_and_rows(Batches(Counting(count), None, 4, drop_last))


def test_a_batch_is_divided_among_devices() -> None:
    assert [len(part) for part in per_device(np.zeros((10, 2)), 4)] == [3, 3, 2, 2]
    with pytest.raises(ArgumentError, match="3 samples cannot be split over 4 devices"):
        per_device(np.zeros((3, 2)), 4)


def test_single_samples_and_subsets() -> None:
    some = Subset(Squares(10), [7, 3, 5])
    assert len(some) == 3 and some[1]["x"].tolist() == [9, 0] and [int(sample["i"]) for sample in some] == [7, 3, 5]
    assert positions_and_rows(Batches(some, Order(0, 3, shuffle=False), 2)) == [((0, 0), (0, 2), [7, 3]), ((0, 2), (1, 0), [5])]


def test_real_digits_and_real_text_in_batches() -> None:
    digits = open_reader("digits", split="validation")
    assert isinstance(digits, Columns)
    with Batches(digits, Order(0, len(digits)), 64).start(epochs=1) as reading:
        batches = [(batch.arguments["images"], batch.arguments["labels"]) for batch in reading]
    assert sum(len(labels) for _, labels in batches) == 200 and np.bincount(np.concatenate([labels for _, labels in batches])).min() > 10
    assert all(images.shape[1:] == (1, 28, 28) and images.dtype == np.float32 and 0.9 < images.max() <= 1 for images, _ in batches)


# -------------------------------------------------------------------- what Python gives


def test_dicts_of_arrays_sequences_and_tuples_are_samples() -> None:
    table = samples_of({"a": np.arange(6).reshape(3, 2), "b": [1.5, 2.5, 3.5]})
    assert {name: str(field) for name, field in table.fields.items()} == {"a": "int64[2]", "b": "float64[]"}
    rows = samples_of([{"a": np.ones(2, np.float32), "b": 1}, {"a": np.zeros(2, np.float32), "b": 2}])
    assert isinstance(rows, Samples) and rows.read([1, 0])["b"].tolist() == [2, 1]
    pairs = samples_of([(0.5, 1), (1.5, 2)], ["x", "y"])
    assert isinstance(pairs, Samples) and pairs.read([0, 1])["x"].dtype == np.float32
    assert samples_of(rows) is rows


def test_an_iterator_serves_one_epoch() -> None:
    once = samples_of({"i": i} for i in range(3))
    assert isinstance(once, Stream)
    assert positions_and_rows(Batches(once, None, 2)) == [((0, 0), (0, 2), [0, 1]), ((0, 2), (1, 0), [2])]
    with pytest.raises(DataError, match="an iterator supports one epoch only"):
        positions_and_rows(Batches(once, None, 2))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([{"a": np.ones(2)}, {"a": np.ones(3)}], r'sample 1, field "a" has shape \[3\], but the first sample has \[2\]'),
        ([{"a": 1}, {"aa": 1}], r'sample 1 has no field "a"; did you mean "aa"\?'),
        ([{"a": 1}, {"a": 1.5}], 'sample 1, field "a" is float64, but int64 in the first sample'),
        ([{"a": 1}, 5], "sample 1 is a int"),
        ([(1, 2)], "set names for its 2 entries"),
        ([{"a": "x"}], "field \"a\" is a str: 'x'; convert it to numbers"),
        ([{"a": np.ones(2, np.uint16)}], "tensors do not support uint16"),
        ([], "there are no samples"),
        ({"a": np.ones(2), "b": np.ones(3)}, "different numbers of samples: a 2, b 3"),
        ({"a": np.array(["x"])}, "return an array of numbers"),
        (iter(()), "there are no samples"),
        (5, "is a int; return a dict of arrays"),
    ],
)
def test_wrong_samples_raise(data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        samples = samples_of(data)
        assert isinstance(samples, Samples)
        samples.read(np.arange(len(samples)))


def test_a_hanging_read_does_not_block_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "PATIENCE", 0.1)
    go_on = threading.Event()

    class Stuck(Squares):
        def rows(self, rows: Array, epoch: int, names: Sequence[str]) -> dict[str, Array]:
            if rows[0] >= 4:
                go_on.wait(30)
            return super().rows(rows, epoch, names)

    with Batches(Stuck(100), None, 4, prefetch=2).start() as reading:
        assert next(reading).size == 4
        began = time.monotonic()
    assert time.monotonic() - began < 1 and readers()
    go_on.set()
