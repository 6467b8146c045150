"""Loading of batches, prefetched by threads.

The workers are threads, because a program that has started MPI must not fork.  NumPy and file reading release the interpreter lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count, repeat
from typing import TYPE_CHECKING, Any

from jobflow.core.errors import ArgumentError, user_line
from jobflow.data.ahead import END, Pending, Pool, Reading
from jobflow.data.samples import Samples, Stream
from jobflow.data.waiting import Coming, numbered, one_by_one
from jobflow.functional.sampling import Generator
from jobflow.functional.tensor_class import Tensor
from jobflow.tensors.gpus import gpu_of, open_gpu
from jobflow.tensors.state import refuse_tracing, state
from jobflow.tensors.structures import replaced
from jobflow.utils.data import checks
from jobflow.utils.data.collate import as_tensor, default_collate, default_convert
from jobflow.utils.data.dataset import IterableDataset
from jobflow.utils.data.sampler import BatchSampler, RandomSampler, SequentialSampler, batched, number_of
from jobflow.utils.data.workers import Turns, Worker, within, workers

if TYPE_CHECKING:
    from jobflow.tensors.eager_gpu import EagerGpu


class DataLoader:
    """An iterable of batches of `dataset`.

    `sampler` or `shuffle` order the samples, `batch_sampler` groups them into batches, `batch_size=None` returns single samples.  `collate_fn`
    makes a batch of a list of samples, by default `default_collate`.  `drop_last` drops an incomplete last batch.
    `num_workers` threads read batch 0, 1, 2 ... in turn, up to `prefetch_factor` (2) batches each ahead; with 0, the calling thread reads.  Each
    thread calls `worker_init_fn(id)` first.  In a thread, `get_worker_info()` returns its number.  Each worker iterates over its own copy of an
    `IterableDataset`, which must yield the worker's part.  Other iterables have one worker.
    The iteration raises an error of a worker in place of the batch that the worker read.  `generator` determines the order of `shuffle` and the
    seeds of the workers.  With a `timeout`, a batch that takes a worker more seconds raises DataError.
    With `pin_memory` and a GPU, the tensors of batches are in page-locked memory, from which to("cuda", non_blocking=True) copies without waiting.
    The workers share the memory of the program, so `pin_memory_device`, `persistent_workers` and `multiprocessing_context` have no effect; batches
    are always `in_order`.
    Raises: ArgumentError for arguments that contradict each other or are out of range, and for an object that is not a dataset.

    Examples:
        >>> from jobflow.utils.data import DataLoader, TensorDataset
        >>> data = TensorDataset(flow.randn(10, 3), flow.arange(10))
        >>> for x, y in DataLoader(data, batch_size=4, shuffle=True):
        ...     print(x.shape)
        ...
        jobflow.Size([4, 3])
        jobflow.Size([4, 3])
        jobflow.Size([2, 3])
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[Sequence[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        generator: Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
    ) -> None:
        what = f"DataLoader at {user_line()}"
        self.streams = isinstance(dataset, Stream | IterableDataset) or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__")
        if self.streams and not isinstance(dataset, Stream) and not hasattr(dataset, "__iter__"):
            raise ArgumentError(f"{what}: the dataset {type(dataset).__name__} must have __getitem__ and __len__, or __iter__")
        checks.flags(
            what, shuffle=shuffle or False, pin_memory=pin_memory, drop_last=drop_last, persistent_workers=persistent_workers, in_order=in_order
        )
        checks.callables(what, collate_fn=collate_fn, worker_init_fn=worker_init_fn)
        checks.order(what, self.streams, batch_size, shuffle, sampler, batch_sampler, drop_last)
        checks.workers(what, num_workers, prefetch_factor, persistent_workers, timeout, multiprocessing_context)
        checks.generator(what, generator)
        if not isinstance(pin_memory_device, str):
            raise ArgumentError(f"{what}: pin_memory_device must be a text; got {pin_memory_device!r}")
        self.dataset, self.batch_size, self.drop_last = dataset, batch_size, drop_last
        self.num_workers, self.prefetch_factor = num_workers, 2 if prefetch_factor is None and num_workers else prefetch_factor
        self.worker_init_fn, self.generator, self.in_order = worker_init_fn, generator, in_order
        self.timeout, self.multiprocessing_context = timeout, multiprocessing_context
        self.pin_memory, self.pin_memory_device, self.persistent_workers = pin_memory, pin_memory_device, persistent_workers
        self.sampler = sampler
        if sampler is None and not self.streams:
            self.sampler = RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
        self.batch_sampler = batch_sampler
        if batch_sampler is None and batch_size is not None and not self.streams:
            self.batch_sampler = BatchSampler(self.sampler, batch_size, drop_last)
        #: the GPU that copies the batches, with `pin_memory`
        self._gpu: EagerGpu | None = None
        #: number of started epochs, for datasets whose samples differ between epochs
        self._begun = 0
        self.collate_fn = collate_fn or (default_collate if self.batch_sampler is not None or batch_size is not None else default_convert)

    def __len__(self) -> int:
        if not self.streams:
            return len(self.batch_sampler if self.batch_sampler is not None else self.sampler)
        if not hasattr(self.dataset, "__len__"):
            raise TypeError("len(DataLoader): the dataset has no length; count the batches while iterating")
        samples = len(self.dataset)
        return samples if self.batch_size is None else number_of(samples, self.batch_size, self.drop_last)

    def __iter__(self) -> Iterator[Any]:
        refuse_tracing("DataLoader", "data cannot be read", "pass batches as arguments")
        epoch = getattr(self.sampler, "epoch", self._begun)
        self._begun += 1
        self._gpu = open_gpu(state(), None, f"DataLoader at {user_line()}") if self.pin_memory else None
        numbers = None if self.streams else iter(self.sampler if self.batch_sampler is None else self.batch_sampler)
        several = numbers is not None or isinstance(self.dataset, IterableDataset)
        threads = self.num_workers if several else min(self.num_workers, 1)
        pool, team = Pool(threads, separate=True), self._workers(threads)
        ahead = self.prefetch_factor or 0
        if numbers is not None:
            reads = self._planned(numbers, epoch, pool, team)
            limit = self.timeout if team else 0
            return Reading((within(read, limit) for read in reads), threads * ahead, pool)
        if not team:
            return Reading(self._streamed(epoch, pool), 0, pool)
        what, batches = f"the next samples of the dataset {type(self.dataset).__name__}", partial(self._batches, epoch)
        return Reading(self._turns(lambda: Turns(team, pool, ahead, batches, lambda: what, self.timeout)), 0, pool)

    def _workers(self, threads: int) -> list[Worker]:
        if not threads:
            return []
        copies = self.worker_init_fn is not None or isinstance(self.dataset, IterableDataset)
        return workers(threads, self.dataset, checks.seed(self.generator, self._begun), self.worker_init_fn, copies)

    def _planned(self, numbers: Iterator[Any], epoch: int, pool: Pool, team: Sequence[Worker]) -> Iterator[Coming[Any]]:
        for i, own in zip(count(), numbers, strict=False):
            call = partial(self._read, own, epoch)
            run = partial(team[i % len(team)].run, call) if team else partial(call, self.dataset)
            yield pool.ask(run, partial(self._text, own), i)

    def _text(self, numbers: Any) -> str:
        return f"{numbered([numbers] if self.batch_sampler is None else numbers)} of the dataset {type(self.dataset).__name__}"

    def _read(self, numbers: Any, epoch: int, dataset: Any) -> Any:
        if self.batch_sampler is None:
            return self._pinned(self.collate_fn(dataset[numbers]))
        if isinstance(dataset, Samples) and self.collate_fn is default_collate:  # these datasets read many samples faster in one call
            return self._pinned({name: as_tensor(rows) for name, rows in dataset.read(numbers, epoch).items()})
        several = getattr(dataset, "__getitems__", None)
        samples = several(numbers) if several else [dataset[number] for _, number in one_by_one(numbers, "sample {}".format)]
        try:
            return self._pinned(self.collate_fn(samples))
        except ArgumentError as error:
            if error.row is not None:
                error.args = (f"{error}; it is sample {numbers[error.row]} of the dataset {type(dataset).__name__}",)
            raise

    def _batches(self, epoch: int, dataset: Any) -> Iterator[Any]:
        samples = iter(dataset.samples(epoch) if isinstance(dataset, Stream) else dataset)
        batches = map(self.collate_fn, samples if self.batch_size is None else batched(samples, self.batch_size, self.drop_last))
        return batches if self._gpu is None else map(self._pinned, batches)

    def _pinned(self, batch: Any) -> Any:
        """Return a batch with its tensors in page-locked memory, if `pin_memory` is set and there is a GPU; tensors on a GPU are unchanged."""
        gpu = self._gpu
        if gpu is None:
            return batch

        def pinned(x: Tensor) -> Tensor:
            local = x.layout is None and x.traced is None and gpu_of(x.array) is None and not x._needs_gradient
            return Tensor(x.tensor_type, None, gpu.pinned(x.array)) if local else x

        return replaced(batch, Tensor, pinned)

    def _streamed(self, epoch: int, pool: Pool) -> Iterator[Pending[Any]]:
        batches = self._batches(epoch, self.dataset)
        while True:
            yield pool.ask(partial(next, batches, END), lambda: f"the next samples of the dataset {type(self.dataset).__name__}")

    @staticmethod
    def _turns(start: Callable[[], Turns]) -> Iterator[Pending[Any]]:
        yield from repeat(start())
