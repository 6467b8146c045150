"""Ranks read only the rows that their layouts need; values equal one process that reads all."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parts import declare
from processes import run

import jobflow as flow
import jobflow.typing as tp
from jobflow import scope
from jobflow.core.errors import ArgumentError
from jobflow.core.layout import Box
from jobflow.data import Batches, Order, Position, per_device
from jobflow.data.python_source import samples_of
from jobflow.data.samples import Subset
from jobflow.engine.job import job_of
from jobflow.engine.session import Session, current_session
from jobflow.program.arguments import ArgumentPart
from jobflow.typing.lazy import Lazy

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "programs"))

from sharded import COUNT, REST, SIZE, Noted, losses_of, train_job  # noqa: E402


@pytest.fixture
def session() -> Iterator[Session]:
    """A session of four ranks on threads that nobody has touched."""
    with scope.using(root=scope.Root()):
        flow.config.cpu_device_num(4)
        yield current_session()
        flow.clear_default_session()


def rows_read(samples: Noted, name: str) -> list[int]:
    rows = [number for _, number in samples.read_rows[name]]
    samples.read_rows[name].clear()
    return rows


def fed(session: Session, job: Any, batch: Any, rank: int) -> dict[str, Any]:
    """Return the arguments of a batch for a rank that is alone in its process."""
    session.start()
    declared = job_of(job)
    arguments = tuple(batch.arguments.values())
    bound = declared.signature.bind(arguments, 4)
    compiled = session.compiled(declared, declared.declared_shapes(session))
    feeds = compiled.feeds(compiled.arguments(bound, 0), (rank,))
    assert [bool(feed) for feed in feeds] == [i == rank for i in range(4)]
    return {part.argument: feeds[rank][part.key] for part in compiled.parts[rank]}


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("rank", range(4))
def test_a_rank_reads_its_rows_once_and_ahead(session: Session, rank: int, prefetch: int) -> None:
    job, samples, order = train_job(SIZE), Noted(), Order(1, COUNT)
    with Batches(samples, order, SIZE, drop_last=True, prefetch=prefetch, sharded=True).start(epochs=3) as reading:
        for step, batch in enumerate(reading):
            assert isinstance(batch.arguments["images"], Lazy)
            own = order.indices(step // 2, step % 2 * SIZE + rank * 2, step % 2 * SIZE + rank * 2 + 2)
            arrays = fed(session, job, batch, rank)
            assert np.array_equal(arrays["images"], samples.images[own]) and np.array_equal(arrays["labels"], samples.labels[own])
    expected = [(epoch, int(i)) for epoch in range(3) for start in (0, SIZE) for i in order.indices(epoch, start + rank * 2, start + rank * 2 + 2)]
    assert sorted(samples.read_rows["images"]) == sorted(samples.read_rows["labels"]) == sorted(expected)


@pytest.mark.parametrize(
    ("rows", "box", "slices"),
    [
        (None, None, np.s_[0:8, 0:6]),
        (slice(2, 6), None, np.s_[2:6, 0:6]),
        (None, Box(((0, 8), (4, 5)), (8, 6)), np.s_[0:8, 4:5]),
        (slice(4, 8), Box(((2, 4), (0, 3)), (4, 6)), np.s_[6:8, 0:3]),
        (slice(4, 8), Box(((4, 4), (0, 6)), (4, 6)), np.s_[8:8, 0:6]),
    ],
    ids=["all", "microbatch", "columns", "part of a microbatch", "nothing"],
)
def test_parts_of_any_layout_are_read(rows: slice | None, box: Box | None, slices: tuple[slice, ...]) -> None:
    samples, part = Noted(), ArgumentPart("images", "images", rows, box)
    with Batches(samples, None, SIZE, sharded=True, prefetch=0).start() as reading:
        lazy = next(reading).arguments["images"]
    whole = samples.images[:SIZE]
    assert np.array_equal(part.of(lazy), whole[slices]) and np.array_equal(part.of(whole), whole[slices])
    assert rows_read(samples, "images") == list(range(slices[0].start, slices[0].stop))


def test_requested_rows_are_prefetched() -> None:
    samples = Noted()
    with Batches(samples, None, 4, prefetch=2, sharded=True).start() as reading:
        batch = next(reading)
        assert rows_read(samples, "images") == [], "nobody knows yet which rows will be needed"
        assert np.asarray(batch.arguments["images"])[1:3].shape == (2, 6) and len(batch.arguments["labels"][2:4]) == 2
        wait_until(lambda: len(samples.read_rows["images"]) == 12 and len(samples.read_rows["labels"]) == 6)
        assert sorted(rows_read(samples, "images")) == list(range(12)), "all rows of this batch and of the two after it"
        assert sorted(rows_read(samples, "labels")) == [2, 3, 6, 7, 10, 11]
        batch = next(reading)
        wait_until(lambda: len(samples.read_rows["images"]) == 4 and len(samples.read_rows["labels"]) == 2)
        assert np.array_equal(batch.arguments["labels"][2:4], samples.labels[6:8])
        assert sorted(samples.read_rows["labels"]) == [(0, 14), (0, 15)], "of the fourth batch, and nothing twice"


def test_a_second_pass_prefetches_the_rows_of_the_first() -> None:
    samples = Noted()
    batches = Batches(samples, None, SIZE, prefetch=1, sharded=True)
    for begun in range(2):
        with batches.start(epochs=1) as reading:
            for batch in reading:
                if begun and not batch.position.sample:
                    wait_until(lambda: len(samples.read_rows["labels"]) >= 10)
                assert len(batch.arguments["labels"][:2]) == 2
    assert sorted(rows_read(samples, "labels")) == sorted([0, 1, 8, 9, 16, 17] * 2) and rows_read(samples, "images") == []


def wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not done() and time.monotonic() < deadline:
        time.sleep(0.002)


def test_a_rank_that_needs_one_field_reads_no_other(session: Session) -> None:
    samples = Noted()
    with Batches(samples, None, SIZE, sharded=True).start() as reading:
        for _ in range(3):
            batch = next(reading)
            assert np.asarray(batch.arguments["labels"]).shape == (batch.size,)
    assert rows_read(samples, "images") == []


def test_parts_are_parts(session: Session) -> None:
    samples = Noted()
    with Batches(samples, Order(2, COUNT), SIZE, sharded=True, prefetch=0).start((0, 8)) as reading:
        lazy = next(reading).arguments["images"]
    whole = samples.images[Order(2, COUNT).indices(0, 8, 16)]
    assert isinstance(lazy, Lazy) and len(lazy) == SIZE and "float32[8,6] to be read" in repr(lazy)
    assert np.array_equal(lazy[2:5, 1:3], whole[2:5, 1:3]) and np.array_equal(np.asarray(lazy), whole)
    assert lazy[3:3].shape == (0, 6) and np.array_equal(np.asarray(lazy, np.float64), whole.astype(np.float64))
    parts = per_device(lazy, 3)
    assert np.array_equal(np.concatenate([np.asarray(part) for part in parts]), whole)
    assert [part.fingerprint.removeprefix(lazy.fingerprint) for part in parts if isinstance(part, Lazy)] == ["[0:3]", "[3:6]", "[6:8]"]


def fingerprints(samples: Noted, seed: int, at: tuple[int, int]) -> list[str]:
    with Batches(samples, Order(seed, COUNT), SIZE, sharded=True, prefetch=0).start(at) as reading:
        return [value.fingerprint for value in next(reading).arguments.values() if isinstance(value, Lazy)]


def test_fingerprints_tell_fields_and_positions_apart() -> None:
    samples = Noted()
    assert fingerprints(samples, 0, (0, 8)) == fingerprints(Noted(), 0, (0, 8))
    assert rows_read(samples, "images") == [], "to compare, nothing is read"
    different = [fingerprints(samples, *each) for each in ((0, (0, 8)), (0, (0, 0)), (0, (1, 8)), (1, (0, 8)))]
    assert len({each for pair in different for each in pair}) == 8


def test_one_client_reads_whole_batches(session: Session) -> None:
    """Lazy arguments are read for ranks that are threads, too; by default such a program gets arrays."""
    samples, arrays, order = Noted(), Noted(), Order(3, COUNT)
    assert not Batches(samples, order, SIZE).sharded
    job = train_job(SIZE)
    with Batches(samples, order, SIZE, sharded=True, prefetch=0).start() as lazy, Batches(arrays, order, SIZE).start() as reading:
        first = job(*next(lazy).arguments.values())
        other = job(*next(reading).arguments.values())
    assert first.shape == other.shape == (SIZE,)
    assert rows_read(samples, "images")[:SIZE] == order.indices(0, 0, SIZE).tolist()


def test_lazy_arguments_are_checked(session: Session) -> None:
    job = train_job(SIZE)
    samples = Noted()
    with Batches(samples, None, REST, sharded=True, prefetch=0).start() as reading:
        lazy = next(reading).arguments
    for arguments, message in (
        ((lazy["images"], lazy["labels"]), r'"images" is float32\[4,6\]; the job declares float32\[8,6\]'),
        ((lazy["labels"], lazy["labels"]), r'"images" is int32\[4\]; the job declares'),
    ):
        with pytest.raises(ArgumentError, match=message):
            job(*arguments)

    floats = declare(lambda labels: flow.math.relu(labels), tp.Numpy.Placeholder((REST,)), name="floats")
    with pytest.raises(ArgumentError, match=r"int32\[4\] that is read lazily; the job declares float32.*Declare the element type of the file"):
        floats(lazy["labels"])
    assert rows_read(samples, "labels") == []


def test_limits_hold_for_what_a_rank_reads(session: Session) -> None:
    samples = Noted()
    samples.labels[5] = 7
    with Batches(samples, None, SIZE, sharded=True, prefetch=0).start() as reading:
        batch = next(reading)
    job = train_job(SIZE)
    fed(session, job, batch, 1)
    with pytest.raises(ArgumentError, match=r'argument "labels" holds 7 at .* accepts 0 to 2'):
        fed(session, job, batch, 2)


def test_mirrored_jobs_take_a_part_for_each_device(session: Session) -> None:
    each = declare(lambda images: flow.math.relu(images), tp.ListNumpy.Placeholder((2, 6)), gives=tp.ListNumpy, name="each")
    samples = Noted()
    with Batches(samples, None, SIZE, sharded=True, prefetch=0, fields=["images"]).start() as reading:
        parts = per_device(next(reading).arguments["images"], 4)
    assert np.array_equal(np.concatenate(each(parts)), samples.images[:SIZE])


@pytest.mark.mpi
def test_clients_read_their_rows_and_train_as_one(tmp_path: Path) -> None:
    ended = run(HERE / "programs" / "sharded.py", str(tmp_path), ranks=2, limit=100)
    assert ended.code != 0 and 'argument "labels" holds 7' in ended.err, ended.err
    results = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    order = Order(3, COUNT)
    batches = [(epoch, start, min(start + SIZE, COUNT)) for epoch in range(2) for start in range(0, COUNT, SIZE)]
    for rank, each in enumerate(results):
        halves = [(epoch, start, (start + stop) // 2) if rank == 0 else (epoch, (start + stop) // 2, stop) for epoch, start, stop in batches]
        expected = [[epoch, int(i)] for epoch, start, stop in halves for i in order.indices(epoch, start, stop)]
        assert sorted(each["rows"]["images"]) == sorted(each["rows"]["labels"]) == sorted(expected), f"rank {rank} read other rows"
    with scope.using(root=scope.Root()):
        alone = losses_of({rows: train_job(rows) for rows in (SIZE, REST)}, Noted())
        flow.clear_default_session()
    for each in results:
        for ours, theirs in zip(each["losses"], alone, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    for rank in range(2):
        assert 'argument "images" differs between ranks' in (tmp_path / f"differs{rank}").read_text()


def test_positions_are_pairs() -> None:
    assert Position(2, 5)._asdict() == {"epoch": 2, "sample": 5} and Position() == (0, 0)


class Changing:
    """Samples whose fields hold the number of the read, as random augmentation of an image and its mask would."""

    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, number: int) -> dict[str, int]:
        self.reads += 1
        return {"image": self.reads, "mask": self.reads}


@pytest.mark.parametrize("prefetch", [0, 2])
def test_fields_of_a_sample_come_from_one_read(prefetch: int) -> None:
    data = Changing()
    samples = Subset(samples_of(data), range(COUNT))
    data.reads = 0
    batches = Batches(samples, Order(1, COUNT), SIZE, drop_last=True, prefetch=prefetch, sharded=True)
    requests = [("mask", 2, 4), ("image", 0, 3), ("image", 3, 8), ("image", 2, 4), ("mask", 0, 8)]
    with batches.start(epochs=2) as reading:
        for batch in reading:
            read = {request: batch.arguments[request[0]].part((slice(*request[1:]),)) for request in requests}
            whole = read["mask", 0, 8]
            assert all(np.array_equal(rows, whole[start:stop]) for (_, start, stop), rows in read.items())
    assert data.reads == 2 * (COUNT // SIZE) * SIZE
