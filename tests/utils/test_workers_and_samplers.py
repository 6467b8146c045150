"""Workers, generators, samplers and datasets of `utils.data`; the expected values are those of PyTorch, except for random orders."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import jobflow as flow
from jobflow.core.errors import ArgumentError
from jobflow.utils.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_convert,
    get_worker_info,
    random_split,
)


class Share(IterableDataset[int]):
    """A stream that yields the part of its worker."""

    def __init__(self, begin: int, end: int) -> None:
        self.begin, self.end = begin, end

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(self.begin + first, self.end, step))


class Whole(Share):
    """A stream that ignores its worker, with a length."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.begin, self.end))

    def __len__(self) -> int:
        return self.end - self.begin


class Tagged(Dataset[int]):
    """Samples that contain the number of their worker; 9 without a worker."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> int:
        info = get_worker_info()
        return index * 10 + (9 if info is None else info.id)


def restrict(worker: int) -> None:
    """Restrict the dataset of a worker to three samples."""
    info = get_worker_info()
    assert info is not None and info.id == worker
    info.dataset.begin, info.dataset.end = 3 * worker, 3 * worker + 3


def lists(*arguments: Any, **options: Any) -> list[Any]:
    return [batch.tolist() for batch in DataLoader(*arguments, **options)]


@pytest.mark.parametrize(
    ("workers", "shares", "wholes", "tagged"),
    [
        (0, [[0, 1], [2, 3], [4, 5], [6]], [[0, 1], [2]], [[9, 19], [29, 39], [49, 59], [69]]),
        (1, [[0, 1], [2, 3], [4, 5], [6]], [[0, 1], [2]], [[0, 10], [20, 30], [40, 50], [60]]),
        (2, [[0, 2], [1, 3], [4, 6], [5]], [[0, 1], [0, 1], [2], [2]], [[0, 10], [21, 31], [40, 50], [61]]),
        (3, [[0, 3], [1, 4], [2, 5], [6]], [[0, 1]] * 3 + [[2]] * 3, [[0, 10], [21, 31], [42, 52], [60]]),
    ],
)
def test_workers_read_every_nth_batch(workers: int, shares: Any, wholes: Any, tagged: Any) -> None:
    assert lists(Share(0, 7), 2, num_workers=workers) == shares and lists(Whole(0, 3), 2, num_workers=workers) == wholes
    assert lists(Tagged(), 2, num_workers=workers) == tagged and get_worker_info() is None
    assert lists(Share(0, 7), 2, drop_last=True, num_workers=workers) == [batch for batch in shares if len(batch) == 2]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("reader-")]


def test_worker_init_fn_configures_the_dataset_of_its_worker() -> None:
    data, calls = Whole(0, 9), []
    assert lists(data, 2, num_workers=3, worker_init_fn=restrict) == [[0, 1], [3, 4], [6, 7], [2], [5], [8]] and (data.begin, data.end) == (0, 9)
    lists(Tagged(), 2, num_workers=2, worker_init_fn=calls.append)
    assert sorted(calls) == [0, 1]
    lists(Tagged(), 2, worker_init_fn=calls.append)
    assert len(calls) == 2, "not called without workers"

    def fail(worker: int) -> None:
        raise KeyError(worker)

    with pytest.raises(KeyError):
        lists(Tagged(), num_workers=1, worker_init_fn=fail)


def test_a_generator_determines_order_and_seeds_of_workers() -> None:
    def epochs(seed: int) -> list[Any]:
        seeds: set[int] = set()

        def note(worker: int) -> None:
            info = get_worker_info()
            assert info is not None
            seeds.add(info.seed)

        loader = DataLoader(range(40), 8, shuffle=True, num_workers=2, worker_init_fn=note, generator=flow.Generator().manual_seed(seed))
        orders = [[i for batch in loader for i in batch.tolist()] for _ in range(2)]
        return [*orders, sorted(seeds)]

    first, second, seeds = epochs(3)
    assert [first, second, seeds] == epochs(3) != epochs(4) and sorted(first) == sorted(second) == list(range(40)) and first != second
    assert len(seeds) == 4


def test_samplers() -> None:
    generator = flow.Generator().manual_seed(5)
    for sampler, indices in (
        (RandomSampler(range(9), generator=generator), range(9)),
        (SubsetRandomSampler([4, 2, 7], generator=generator), (2, 4, 7)),
    ):
        assert sorted(sampler) == list(indices) and len(sampler) == len(indices)
    longer = list(RandomSampler(range(5), num_samples=12, seed=1))
    assert sorted(longer[:5]) == sorted(longer[5:10]) == list(range(5)) and longer[:5] != longer[5:10] and len(longer) == 12
    assert list(RandomSampler(range(5), num_samples=3, seed=1)) == longer[:3]
    repeated = RandomSampler(range(5), replacement=True, num_samples=5000, seed=2)
    assert np.abs(np.bincount(list(repeated)) / 5000 - 0.2).max() < 0.03 and list(repeated) != list(repeated)
    assert list(BatchSampler(SequentialSampler(range(5)), 2, True)) == [[0, 1], [2, 3]]


def test_weighted_samples_follow_the_weights() -> None:
    weights = [0.0, 1.0, 3.0, 0.0, 4.0, 0.0]
    sampler = WeightedRandomSampler(weights, 8000, seed=3)
    counts = np.bincount(list(sampler), minlength=6) / 8000
    assert np.abs(counts - np.array(weights) / 8).max() < 0.02 and len(sampler) == 8000 and sampler.weights.tolist() == weights
    firsts = [0] * 6
    for seed in range(2000):
        picked = list(WeightedRandomSampler(flow.tensor(weights), 3, replacement=False, seed=seed))
        assert sorted(picked) == [1, 2, 4]
        firsts[picked[0]] += 1
    assert np.abs(np.array(firsts) / 2000 - np.array(weights) / 8).max() < 0.04
    generator = flow.Generator().manual_seed(1)
    one = list(WeightedRandomSampler(weights, 20, generator=generator))
    assert (
        one
        == list(WeightedRandomSampler(weights, 20, generator=generator.manual_seed(1)))
        != list(WeightedRandomSampler(weights, 20, generator=generator))
    )


@pytest.mark.parametrize(
    ("size", "lengths", "sizes"),
    [
        (10, [0.5, 0.3, 0.2], [5, 3, 2]),
        (11, [0.5, 0.3, 0.2], [6, 3, 2]),
        (7, [1 / 3] * 3, [3, 2, 2]),
        (5, [0.9, 0.1], [5, 0]),
        (4, [1], [4]),
        (4, [3, 1], [3, 1]),
    ],
)
def test_random_split_accepts_fractions(size: int, lengths: list[float], sizes: list[int]) -> None:
    parts = random_split(range(size), lengths, flow.Generator().manual_seed(2))
    assert [len(part) for part in parts] == sizes and sorted(i for part in parts for i in part.indices) == list(range(size))
    again = random_split(range(size), lengths, generator=flow.Generator().manual_seed(2))
    assert [part.indices for part in again] == [part.indices for part in parts]


def test_datasets_combine_the_samples_of_others() -> None:
    assert lists(ChainDataset([Share(0, 3), Share(5, 9)]), 3) == [[0, 1, 2], [5, 6, 7], [8]] and lists(Share(0, 2) + Share(7, 8)) == [[0], [1], [7]]
    assert len(ChainDataset([Whole(0, 3), Whole(0, 4)])) == 7
    assert [len(DataLoader(Whole(0, 9), 2, drop_last=drop)) for drop in (False, True)] == [5, 4] and len(DataLoader(Whole(0, 9), None)) == 9
    assert StackDataset([1, 2], [3, 4])[1] == (2, 4) and len(StackDataset([1, 2])) == 2
    (batch,) = DataLoader(StackDataset(a=[1, 2], b=[3, 4]), 2)
    assert batch["a"].tolist() == [1, 2] and batch["b"].tolist() == [3, 4]
    assert ConcatDataset([[1, 2], [3]]).cumulative_sizes == [2, 3] and Subset(np.arange(9), [3, 4, 5])[[0, 2]].tolist() == [3, 5]

    class Several(Tagged):
        def __getitems__(self, indices: list[int]) -> list[int]:
            return [-i for i in indices]

    assert lists(Several(), 4) == [[0, -1, -2, -3], [-4, -5, -6]]


def test_default_convert_replaces_arrays_by_tensors() -> None:
    text = np.array(["a"])
    result = default_convert({"x": [np.arange(2), np.float32(2)], "y": (1, "a", None), "z": text})
    assert result["x"][0].tolist() == [0, 1] and str(result["x"][1].tensor_type) == "float32[]" and result["y"] == (1, "a", None)
    assert result["z"] is text
    assert [x.tolist() for x in DataLoader(np.arange(3), None)] == [0, 1, 2]
    with pytest.raises(ArgumentError, match=r"default_convert at .*element type complex128"):
        default_convert(np.zeros(2, complex))


GENERATOR = flow.Generator()
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "workers": (lambda: DataLoader([1], num_workers=1.5), "num_workers must be an int >= 0; got 1.5"),
    "negative workers": (lambda: DataLoader([1], num_workers=-1), "num_workers must be an int >= 0; got -1"),
    "batch size": (lambda: DataLoader([1], "2"), "batch_size must be an int >= 1; got '2'"),
    "batch size of a stream": (lambda: DataLoader(Share(0, 3), 0), "batch_size must be an int >= 1; got 0"),
    "prefetch": (lambda: DataLoader([1], num_workers=1, prefetch_factor=0), "prefetch_factor must be an int >= 1; got 0"),
    "prefetch without workers": (lambda: DataLoader([1], prefetch_factor=2), "prefetch_factor=2 needs workers"),
    "persistent without workers": (lambda: DataLoader([1], persistent_workers=True), "persistent_workers=True needs workers"),
    "timeout": (lambda: DataLoader([1], timeout=-1), "timeout must be a number of seconds >= 0; got -1"),
    "context": (lambda: DataLoader([1], num_workers=1, multiprocessing_context="thread"), "multiprocessing_context must be one of .*; got 'thread'"),
    "init": (lambda: DataLoader([1], worker_init_fn=3), "worker_init_fn must be a function or None; got 3"),
    "collate": (lambda: DataLoader([1], collate_fn="f"), "collate_fn must be a function or None; got 'f'"),
    "shuffle": (lambda: DataLoader([1], shuffle="yes"), "shuffle must be True or False; got 'yes'"),
    "pin": (lambda: DataLoader([1], pin_memory=1), "pin_memory must be True or False; got 1"),
    "pin device": (lambda: DataLoader([1], pin_memory_device=None), "pin_memory_device must be a text; got None"),
    "generator": (lambda: DataLoader([1], generator=3), "generator must be a jobflow.Generator or None; got 3; pass an integer as seed="),
    "sampler": (lambda: DataLoader([1], sampler=3), "sampler must be an iterable of indices; got 3"),
    "drop_last": (lambda: DataLoader([1], None, drop_last=True), "omit drop_last"),
    "replacement": (lambda: RandomSampler([1], 3), "RandomSampler at .*replacement must be True or False; got 3"),
    "num_samples": (lambda: RandomSampler([1], num_samples=0), "num_samples must be an int >= 1; got 0"),
    "no samples": (lambda: RandomSampler([], num_samples=2), "data_source has no samples"),
    "no length": (lambda: RandomSampler(3), "data_source must have a length; got int"),
    "seed": (lambda: RandomSampler([1], seed="a"), "seed must be an integer or None; got 'a'"),
    "both": (lambda: RandomSampler([1], generator=GENERATOR, seed=1), "pass either generator or seed=1, not both"),
    "indices": (lambda: SubsetRandomSampler(5), "SubsetRandomSampler at .*indices must be a sequence; got 5"),
    "batches": (lambda: BatchSampler(3, 2), "BatchSampler at .*sampler must be an iterable of indices; got 3"),
    "drop": (lambda: BatchSampler([3], 2, "no"), "drop_last must be True or False; got 'no'"),
    "weights": (lambda: WeightedRandomSampler([1, -1], 2), r"weights must be finite and >= 0, and not all zero; got \[ 1. -1.\]"),
    "no weights": (lambda: WeightedRandomSampler([], 2), r"weights must be a sequence of numbers; got the shape \(0,\)"),
    "weights of text": (lambda: WeightedRandomSampler("ab", 2), "weights must be a sequence of numbers; got 'ab'"),
    "few weights": (lambda: WeightedRandomSampler([1, 0, 2], 3, False), "num_samples=3 exceeds the 2 weights other than zero"),
    "chain": (lambda: ChainDataset([[1]]), "must contain only IterableDatasets; got a list; use ConcatDataset"),
    "concat": (lambda: ConcatDataset([]), "at least one dataset"),
    "concat of streams": (lambda: ConcatDataset([Share(0, 1)]), "use ChainDataset"),
    "stack": (lambda: StackDataset([1], a=[2]), "either by position or by name; got 1 by position and 1 by name"),
    "stack of lengths": (lambda: StackDataset([1], [2, 3]), r"the same length; got \[1, 2\]"),
    "stack of numbers": (lambda: StackDataset(1), "each dataset must have a length; got int"),
    "tensors": (lambda: TensorDataset([1]), "the arguments must be tensors; got a list"),
    "subset": (lambda: Subset([1], 0), "Subset at .*indices must be a sequence; got 0"),
    "fractions": (lambda: random_split([1, 2], [0.5, 0.6]), r"lengths \[0.5, 0.6\] add up to 1.1, but the dataset has 2 samples"),
    "negative fraction": (lambda: random_split([1, 2], [1.5, -0.5]), "lengths must be numbers of samples, or fractions"),
    "text": (lambda: random_split([1, 2], "ab"), "lengths must be a sequence; got 'ab'"),
    "seed as generator": (lambda: random_split([1, 2], [1, 1], 3), "generator must be a jobflow.Generator or None; got 3"),
}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_arguments_raise(case: str) -> None:
    call, message = WRONG[case]
    with pytest.raises(ArgumentError, match=message) as caught:
        call()
    assert f" at {__file__.rsplit('/', 1)[-1]}:" in str(caught.value)
