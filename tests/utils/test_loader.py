"""Orders that repeat, batches as asked for, threads that end, errors where the batch would have come."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest
from ranks import with_ranks

from jobflow.core import notices
from jobflow.core.errors import ArgumentError
from jobflow.core.layout import P
from jobflow.core.types import float32, int64
from jobflow.data import Field, Order, Samples, samples_of, waiting
from jobflow.engine.placements import placement, sbp
from jobflow.functional import values
from jobflow.utils import global_view
from jobflow.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Subset,
    default_collate,
    random_split,
)


class Squares(Dataset[tuple[np.ndarray[Any, Any], int]]):
    def __init__(self, count: int, bad: int = -1) -> None:
        self.count, self.bad = count, bad

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], int]:
        if index == self.bad:
            raise ValueError(f"sample {index} is torn")
        return np.full(2, index * index, np.float32), index


def flat(lists: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(lists))


def numbers(loader: DataLoader) -> list[list[int]]:
    return [values.tolist(batch[1]) for batch in loader]


@pytest.mark.parametrize("workers", [0, 3])
def test_batches(workers: int) -> None:
    loader = DataLoader(Squares(7), 3, num_workers=workers)
    first = next(iter(loader))
    assert first[0].tensor_type.shape == (3, 2) and str(first[0].tensor_type) == "float32[3,2]" and str(first[1].tensor_type) == "int64[3]"
    assert numbers(loader) == [[0, 1, 2], [3, 4, 5], [6]] and len(loader) == 3
    assert numbers(DataLoader(Squares(7), 3, drop_last=True, num_workers=workers)) == [[0, 1, 2], [3, 4, 5]]
    shuffled = DataLoader(Squares(20), 6, shuffle=True, num_workers=workers)
    one, two = flat(numbers(shuffled)), flat(numbers(shuffled))
    assert sorted(one) == sorted(two) == list(range(20)) and one != two
    assert flat(numbers(DataLoader(Squares(20), 6, shuffle=True, num_workers=workers))) == one


def test_threads_end_with_the_iteration() -> None:
    loader = DataLoader(Squares(50), 2, num_workers=4)
    for batch in loader:
        assert batch
        break
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("reader-", "slow-reads"))]


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_come_where_the_batch_would(workers: int) -> None:
    batches = iter(DataLoader(Squares(6, bad=3), 2, num_workers=workers))
    next(batches)
    with pytest.raises(ValueError, match="sample 3 is torn"):
        next(batches)


def test_streams() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(5))

    assert [values.tolist(batch) for batch in DataLoader(Stream(), 2)] == [[0, 1], [2, 3], [4]]
    with pytest.raises(ArgumentError, match="determines the order"):
        DataLoader(Stream(), 2, shuffle=True)


def test_collate() -> None:
    batch = default_collate([{"a": 1, "b": (True, "x")}, {"a": 2, "b": (False, "y")}])
    assert values.tolist(batch["a"]) == [1, 2] and values.tolist(batch["b"][0]) == [True, False] and batch["b"][1] == ["x", "y"]
    with pytest.raises(ArgumentError, match="sample 1 of the batch has 1 entries, and sample 0 has 2 entries"):
        default_collate([(1, 2), (1,)])
    with pytest.raises(ArgumentError, match="tensors cannot have the element type complex128"):
        default_collate([np.zeros(2, complex)])


def test_subsets() -> None:
    data = ConcatDataset([Squares(3), Squares(4)])
    assert [data[i][1] for i in range(len(data))] == [0, 1, 2, 0, 1, 2, 3] and data[-1][1] == 3
    with pytest.raises(IndexError):
        data[7]
    parts = random_split(Squares(10), [7, 3], seed=1)
    assert sorted(i for part in parts for i in part.indices) == list(range(10)) and Subset(Squares(10), [4])[0][1] == 4
    with pytest.raises(ArgumentError, match="10 samples"):
        random_split(Squares(10), [7, 4])


def test_samplers() -> None:
    assert list(BatchSampler(range(5), 2)) == [[0, 1], [2, 3], [4]] and len(BatchSampler(range(5), 2, True)) == 2
    sampler = RandomSampler(range(6), seed=3)
    first, second = list(sampler), list(sampler)
    sampler.set_epoch(0)
    assert list(sampler) == first != second
    assert [first, second] == [Order(3, 6).indices(epoch, 0, 6).tolist() for epoch in range(2)], "that of the trainer"
    with pytest.raises(ArgumentError, match="an int >= 1"):
        BatchSampler(range(5), 0)


def test_the_distributed_sampler_pads_by_wrapping() -> None:
    assert [list(DistributedSampler(range(9), 2, rank, shuffle=False)) for rank in (0, 1)] == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 0]]
    assert [list(DistributedSampler(range(9), 2, rank, shuffle=False, drop_last=True)) for rank in (0, 1)] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    with pytest.raises(ArgumentError, match="rank 2 is out of range for 2"):
        DistributedSampler(range(9), 2, 2)
    for options, words in (({"rank": "0"}, "rank"), ({"num_replicas": 1.0}, "num_replicas"), ({"seed": None}, "seed"), ({"shuffle": 1}, "shuffle")):
        with pytest.raises(ArgumentError, match=words):
            DistributedSampler(range(9), **options)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="length"):
        DistributedSampler(iter([1]))  # type: ignore[arg-type]


def test_the_distributed_sampler_has_the_order_of_pytorch() -> None:
    """The indices are those of torch.utils.data.DistributedSampler(range(9), 2, rank, seed=5)."""
    recorded = [[[8, 4, 5, 2, 3], [7, 6, 1, 0, 8]], [[8, 0, 1, 4, 3], [2, 5, 6, 7, 8]]]
    for epoch, shares in enumerate(recorded):
        samplers = [DistributedSampler(range(9), 2, rank, seed=5) for rank in range(2)]
        for sampler in samplers:
            sampler.set_epoch(epoch)
        assert [list(sampler) for sampler in samplers] == shares


@with_ranks(2)
def test_structures_between_ranks() -> None:
    here = placement("cpu", [0, 1])
    (batch,) = list(DataLoader(Squares(2), 2))
    whole = global_view.to_global({"x": batch, "n": 3}, here, sbp.split(0))
    assert whole["n"] == 3 and whole["x"][0].tensor_type.shape == (4, 2) and whole["x"][1].sbp == (sbp.split(0),)
    chosen = global_view.to_global([batch[0]], here, lambda _, x: P if x.ndim == 2 else sbp.broadcast)
    assert chosen[0].sbp == (P,)
    np.testing.assert_array_equal(values.numpy(global_view.to_local(whole)["x"][0]), values.numpy(batch[0]))


@pytest.mark.parametrize("workers", [0, 2])
def test_readers_of_files_are_datasets(workers: int) -> None:
    """The samples that the trainer reads, in the batches of a loader: whole reads, and the epoch of the sampler."""

    class Noted(Samples):
        def __init__(self) -> None:
            super().__init__({"x": Field((2,), float32), "epoch": Field((), int64)}, 5)
            self.reads: list[list[int]] = []

        def rows(self, indices: Any, epoch: int, names: Any) -> Any:
            self.reads.append(indices.tolist())
            return {"x": np.stack([indices, indices], 1).astype(np.float32), "epoch": np.full(len(indices), epoch)}

    samples = Noted()
    loader = DataLoader(samples, 2, sampler=RandomSampler(samples, seed=4), num_workers=workers)
    for epoch in range(2):
        samples.reads.clear()
        batches = list(loader)
        assert [str(batch["x"].tensor_type) for batch in batches] == ["float32[2,2]"] * 2 + ["float32[1,2]"]
        assert sorted(values.tolist(batches[-1]["epoch"])) == [epoch] and sorted(flat(samples.reads)) == list(range(5)) and len(samples.reads) == 3
    stream = samples_of({"i": i} for i in range(5))
    assert [values.tolist(batch["i"]) for batch in DataLoader(stream, 2, num_workers=workers)] == [[0, 1], [2, 3], [4]]
    (single,) = (batch for batch in DataLoader(Subset(samples, [3]), None) if batch)
    assert values.tolist(single["x"]) == [3, 3]


def test_samples_that_do_not_collate_raise() -> None:
    with pytest.raises(ArgumentError, match="tensors cannot have the element type <U1"):
        default_collate([np.array(["x"])])
    assert values.tolist(default_collate([1, 2.5])) == [1, 2.5] and str(default_collate([np.float32(1), np.ones(())]).tensor_type) == "float64[2]"


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_of_samplers_come_where_their_batch_would(workers: int) -> None:
    def sampler() -> Iterator[list[int]]:
        yield [0, 1]
        raise ValueError("no more")

    class Ended(Squares):
        def __getitem__(self, index: int) -> Any:
            raise StopIteration

    reading = iter(DataLoader(Squares(4), batch_sampler=sampler(), num_workers=workers))
    assert values.tolist(next(reading)[1]) == [0, 1]
    with pytest.raises(ValueError, match="no more"):
        next(reading)
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        list(DataLoader(Ended(4), num_workers=workers))


def test_waiting_loaders_print_a_notice(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(waiting, "PATIENCE", 0.1)

    class Slow(Squares):
        def __getitem__(self, index: int) -> Any:
            if index == 5:
                time.sleep(0.4)  # it stands here
            return super().__getitem__(index)

    for workers in (0, 1):
        notices.forget()
        assert len(list(DataLoader(Slow(6), 3, num_workers=workers))) == 2
        stderr = capfd.readouterr().err
        assert stderr.count("has waited 0.1 s for samples 3, 4, 5 of the dataset Slow; it reads sample 5 at") == 1, stderr
