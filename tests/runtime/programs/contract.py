"""Laws of all communicators; run by `test_comm_laws.py` on threads, and by the programs under mpiexec.

Each law is a command for a world (`law(rank, argument)`), and compares with NumPy on data that every rank can generate for all ranks.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any

import numpy as np

from jobflow.core.errors import AbortedError, PlacementError, PlanError
from jobflow.core.layout import MAX, MIN, SUM, Reduction
from jobflow.ops.op import Call
from jobflow.runtime.world.world import Rank

#: number of elements of a whole operation: nothing, fewer than the ranks, uneven, a small message, a larger one, one in halves
SIZES = (0, 1, 3, 37, 5000, 20_001, 200_003)
DTYPES = ("float32", "float64", "int32", "int64", "uint8", "float16")
#: where arrays lie: memory that peers can read, or not
PLACES = ("shared", "private", "in place")


def groups(size: int) -> Iterator[tuple[int, ...]]:
    """Return every group of ranks, and the whole world in reverse; of more than three ranks, all pairs and one group of each larger size."""
    for n in range(1 if size <= 3 else 2, size + 1):
        every = itertools.combinations(range(size), n)
        yield from every if size <= 3 or n == 2 else itertools.islice(every, 1, 2) if n < size else every
    if size > 1:
        yield tuple(reversed(range(size)))


@lru_cache(maxsize=32)
def data(rank: int, step: int, count: int, dtype: str) -> np.ndarray[Any, Any]:
    """Return the data of a rank in a step: small numbers, so that sums are exact in every type."""
    result = ((np.arange(count) * (rank + 2) + 3 * rank + 7 * step) % 13).astype(dtype)
    result.flags.writeable = False
    return result


def check_same(result: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    """Compare as assert_array_equal does, in a tenth of the time."""
    if not np.array_equal(result, expected):
        np.testing.assert_array_equal(result, expected)


def uneven(total: int, n: int, shift: int = 0) -> list[int]:
    """Split `total` into n different counts, with a zero among them."""
    weights = [(i + shift) % n for i in range(n)]
    counts = [total * w // max(sum(weights), 1) for w in weights]
    counts[-1] += total - sum(counts)
    return counts


def run(calls: list[Call]) -> None:
    for function, arguments in calls:
        function(*arguments)


class Arrays:
    """A factory of the arrays of one operation, at one of the PLACES."""

    def __init__(self, rank: Rank, location: str) -> None:
        self.rank = rank
        self.location = location

    def make(self, count: int, dtype: str) -> np.ndarray[Any, Any]:
        nbytes = count * np.dtype(dtype).itemsize
        raw = np.zeros(nbytes, np.uint8) if self.location == "private" else self.rank.comm.allocate(nbytes)
        return raw.view(dtype)


def all_reduce(rank: Rank, case: tuple[int, str, str, Reduction]) -> None:
    total, dtype, location, reduce = case
    for ranks in groups(rank.size):
        source = Arrays(rank, location).make(total, dtype)
        target = source if location == "in place" else Arrays(rank, location).make(total, dtype)
        calls = rank.comm.bind_all_reduce(ranks, source, target, reduce, name="law") if rank.index in ranks else []
        rank.comm.seal()
        for step in range(3 if calls else 0):
            source[:] = data(rank.index, step, total, dtype)
            run(calls)
            expected = reduce.ufunc.reduce([data(r, step, total, dtype) for r in ranks]).astype(dtype)
            check_same(target, expected)


def all_gather(rank: Rank, case: tuple[int, str, str]) -> None:
    total, dtype, location = case
    for ranks in groups(rank.size):
        counts = uneven(total, len(ranks))
        target = Arrays(rank, location).make(total, dtype)
        calls: list[Call] = []
        if rank.index in ranks:
            me = ranks.index(rank.index)
            start = sum(counts[:me])
            source = target[start : start + counts[me]] if location == "in place" else Arrays(rank, location).make(counts[me], dtype)
            calls = rank.comm.bind_all_gather(ranks, source, target, counts)
        elif location == "shared":
            Arrays(rank, location).make(0, dtype)  # allocating is collective
        rank.comm.seal()
        for step in range(3 if calls else 0):
            target[:] = 0
            source[:] = data(rank.index, step, counts[me], dtype)
            run(calls)
            check_same(target, np.concatenate([data(r, step, n, dtype) for r, n in zip(ranks, counts, strict=True)]))


def reduce_scatter(rank: Rank, case: tuple[int, str, str, Reduction]) -> None:
    total, dtype, location, reduce = case
    for ranks in groups(rank.size):
        counts = uneven(total, len(ranks), 1)
        source = Arrays(rank, location).make(total, dtype)
        calls: list[Call] = []
        if rank.index in ranks:
            me = ranks.index(rank.index)
            piece = slice(sum(counts[:me]), sum(counts[: me + 1]))
            target = source[piece] if location == "in place" else Arrays(rank, location).make(counts[me], dtype)
            calls = rank.comm.bind_reduce_scatter(ranks, source, target, counts, reduce)
        elif location == "shared":
            Arrays(rank, location).make(0, dtype)
        rank.comm.seal()
        for step in range(3 if calls else 0):
            source[:] = data(rank.index, step, total, dtype)
            run(calls)
            expected = reduce.ufunc.reduce([data(r, step, total, dtype) for r in ranks]).astype(dtype)
            check_same(target, expected[piece])


def no_number(rank: Rank, case: tuple[str, str, Reduction]) -> None:
    """Check that a NaN on one rank is a NaN in the maximum and minimum on every rank."""
    dtype, location, reduce = case
    for ranks in groups(rank.size):
        source, target = (Arrays(rank, location).make(37 if rank.index in ranks else 0, dtype) for _ in range(2))
        calls = rank.comm.bind_all_reduce(ranks, source, target, reduce) if rank.index in ranks else []
        rank.comm.seal()
        for step, r in enumerate(ranks if calls else ()):
            source[:] = data(rank.index, step, 37, dtype)
            if rank.index == r:
                source[5] = np.nan
            run(calls)
            assert np.flatnonzero(np.isnan(target.astype(np.float64))).tolist() == [5], f"rank {rank.index}, where rank {r} of {ranks} has none"


def all_to_all(rank: Rank, case: tuple[int, str, str]) -> None:
    total, dtype, location = case
    for ranks in groups(rank.size):
        n = len(ranks)
        table = [uneven(total + 3 * i, n, i) for i in range(n)]
        me = ranks.index(rank.index) if rank.index in ranks else None
        counts = [] if me is None else table[me]
        receives = [] if me is None else [row[me] for row in table]
        source = Arrays(rank, location).make(sum(counts), dtype)
        target = Arrays(rank, location).make(sum(receives), dtype)
        if location == "in place" and me is not None:  # two windows on the same memory
            both = Arrays(rank, location).make(max(sum(counts), sum(receives)), dtype)
            source, target = both[: sum(counts)], both[: sum(receives)]
        elif location == "in place":
            Arrays(rank, location).make(0, dtype)
        calls = [] if me is None else rank.comm.bind_all_to_all(ranks, source, target, counts, receives)
        rank.comm.seal()
        for step in range(3 if calls else 0):
            source[:] = data(rank.index, step, source.size, dtype)
            run(calls)
            pieces = []
            for i, r in enumerate(ranks):
                start = sum(table[i][:me])
                pieces.append(data(r, step, sum(table[i]), dtype)[start : start + table[i][me]])
            check_same(target, np.concatenate(pieces))


def transfer(rank: Rank, case: tuple[int, str, str]) -> None:
    """Transfer between every pair in both directions, bound together and run three times; all start before any wait."""
    total, dtype, location = case
    posts: list[Call] = []
    waits: list[Call] = []
    sent, got = [], []
    for a, b in itertools.permutations(range(rank.size), 2):
        array = Arrays(rank, location).make(total, dtype)
        if rank.index == a:
            ends = rank.comm.bind_send(b, array, name=f"{a} to {b}")
            sent.append(array)
        elif rank.index == b:
            ends = rank.comm.bind_receive(a, array)
            got.append((a, array))
        if rank.index in (a, b):
            posts += ends.start
            waits += ends.wait
    rank.comm.seal()
    for step in range(3):
        for array in sent:
            array[:] = data(rank.index, step, total, dtype)
        run(posts)
        run(waits)
        for array in sent:
            array[:] = 99
        for a, array in got:
            check_same(array, data(a, step, total, dtype))


def transfers_and_sums(rank: Rank, case: tuple[int, str]) -> None:
    """Start a send and a receive, sum with a neighbour, and then wait; several transfers overlap."""
    total, location = case
    if rank.size == 1:
        return
    right, left = (rank.index + 1) % rank.size, (rank.index - 1) % rank.size
    sent, got = ([Arrays(rank, location).make(total, "float32") for _ in range(3)] for _ in range(2))
    both = [rank.comm.allocate(4 * total).view("float32") for _ in range(2)]
    receives = [rank.comm.bind_receive(left, array) for array in got]
    sums = rank.comm.bind_all_reduce(range(rank.size), both[0], both[1], SUM)
    sends = [rank.comm.bind_send(right, array) for array in sent]
    rank.comm.seal()
    for step in range(4):
        run([call for ends in receives for call in ends.start])
        for number, (array, ends) in enumerate(zip(sent, sends, strict=True)):
            array[:] = data(rank.index, step + number, total, "float32")
            run(ends.start)
        both[0][:] = rank.index + step
        run(sums)
        assert (both[1] == sum(range(rank.size)) + step * rank.size).all()
        for number, (array, ends) in enumerate(zip(got, receives, strict=True)):
            run(ends.wait)
            check_same(array, data(left, step + number, total, "float32"))
        for array, ends in zip(sent, sends, strict=True):
            run(ends.wait)
            array[:] = -1


#: steps of `no_race` in which a rank is late
LATE = 6


def no_race(rank: Rank, steps: int) -> None:
    """Overwrite sources as soon as the call returns, with new values at every step; one rank after another is late."""
    world = tuple(range(rank.size))
    sizes = (5, 3000, 40_000)
    sources = [rank.comm.allocate(4 * n).view("float32") for n in sizes]
    sums = [rank.comm.allocate(4 * n).view("float32") for n in sizes]
    gathered = [np.zeros(rank.size * n, np.float32) for n in sizes]
    calls = []
    for source, total, whole in zip(sources, sums, gathered, strict=True):
        calls.append(rank.comm.bind_all_reduce(world, source, total, SUM))
        calls.append(rank.comm.bind_all_gather(world, source, whole, [source.size] * rank.size))
    rank.comm.seal()
    for step in range(steps):
        for i, source in enumerate(sources):
            if step < LATE and step % rank.size == rank.index:
                time.sleep(0.002)
            source[:] = step * 10 + rank.index
            run(calls[2 * i])
            source[:] = step * 10 + rank.index + 1000
            run(calls[2 * i + 1])
            source[:] = -1
            assert (sums[i] == step * 10 * rank.size + sum(world)).all(), (step, i)
            assert (gathered[i].reshape(rank.size, -1) == step * 10 + 1000 + np.arange(rank.size)[:, None]).all(), (step, i)


def same_bits(rank: Rank, sizes: tuple[int, ...]) -> None:
    """Compare the bits of order-dependent sums on all ranks."""
    world = tuple(range(rank.size))
    for n in sizes:
        source = rank.comm.allocate(4 * n).view("float32")
        source[:] = np.random.default_rng(rank.index).standard_normal(n)
        target = rank.comm.allocate(4 * n).view("float32")
        calls = rank.comm.bind_all_reduce(world, source, target, SUM)
        rank.comm.seal()
        run(calls)
        everybody = rank.comm.exchange(target.tobytes())
        assert all(other == everybody[0] for other in everybody)
        expected = np.sum([np.random.default_rng(r).standard_normal(n).astype("float32") for r in world], axis=0, dtype=np.float64)
        np.testing.assert_allclose(target, expected, rtol=1e-5, atol=1e-5)


def exchange(rank: Rank, argument: None) -> None:
    for step in range(5):
        got = rank.comm.exchange({"rank": rank.index, "step": step})
        assert got == [{"rank": r, "step": step} for r in range(rank.size)]
        rank.comm.barrier()


def counting(rank: Rank, total: int) -> None:
    """Check that traffic is counted once per run, in exact bytes, even for dead operations."""
    world, n, me = tuple(range(rank.size)), rank.size, rank.index
    pieces = uneven(total, n)
    before = rank.comm.sent()
    whole, other, mine = np.zeros(total), np.zeros(total), np.zeros(pieces[me])
    back = [pieces[me]] * n
    received = np.zeros(sum(pieces))
    calls = [
        *rank.comm.bind_all_reduce(world, whole, other, SUM),
        *rank.comm.bind_all_gather(world, mine, whole, pieces),
        *rank.comm.bind_reduce_scatter(world, whole, mine, pieces, SUM),
        *rank.comm.bind_all_to_all(world, np.zeros(sum(back)), received, back, pieces),
    ]
    if n > 1 and me < 2:
        ends = rank.comm.bind_send(1, whole) if me == 0 else rank.comm.bind_receive(0, whole)
        calls += [*ends.start, *ends.wait]
        del ends
    rank.comm.seal()
    for _ in range(3):
        run(calls)
    del calls
    rank.comm.seal()
    balanced = total // n + (me < total % n)
    expected = {
        "all_reduce": total - balanced + balanced * (n - 1),
        "all_gather": pieces[me] * (n - 1),
        "reduce_scatter": total - pieces[me],
        "all_to_all": pieces[me] * (n - 1),
        "transfer": total if n > 1 and me == 0 else 0,
    }
    after = rank.comm.sent()
    for kind, elements in expected.items():
        sent = after.get(kind, (0, 0))[1] - before.get(kind, (0, 0))[1]
        assert sent == (3 * 8 * elements if n > 1 else 0), (kind, sent, elements)


def disagreement(rank: Rank, argument: None) -> None:
    """Check that the bound operations of ranks are compared before they run, and that every rank raises."""
    if rank.size == 1:
        return
    world = tuple(range(rank.size))
    array = np.zeros(8, np.float32)
    if rank.index == 0:
        rank.comm.bind_all_reduce(world, array, array, SUM, name="fc2.grad")
    else:
        rank.comm.bind_all_reduce(world, array, array, MAX, name="x")
    try:
        rank.comm.seal()
    except PlanError as error:
        first, second, *_ = rank.comm.members
        assert "fc2.grad" in str(error) and f"ranks {first} and {second} bound different" in str(error), error
    else:
        raise AssertionError("ranks that bound different operations were not told")


def abort_wakes(rank: Rank, argument: None) -> str:
    """Abort on the last rank while the others wait for it in different operations; all raise, now and later.

    The abort may come while they leave `seal`; then they raise there.
    """
    if rank.size == 1:
        return ""
    world = tuple(range(rank.size))
    array = np.zeros(8, np.float32)
    other = np.zeros(8, np.float32)
    calls = rank.comm.bind_all_reduce(world, array, other, SUM)
    if rank.index == rank.size - 1:
        rank.comm.seal()
        rank.comm.abort("gave up")
        return "gave up"
    try:
        rank.comm.seal()
    except AbortedError as error:
        assert "gave up" in str(error)
        calls = [(rank.comm.barrier, ())]
    for _ in range(2):
        try:
            run(calls) if rank.index % 2 == 0 else rank.comm.barrier()
        except AbortedError as error:
            assert "gave up" in str(error)
        else:
            raise AssertionError("a rank waited for one that had given up, and came back")
    return "woken"


def abort_wakes_transfers(rank: Rank, argument: None) -> str:
    """Abort on the first rank before it sends or receives; ranks that wait for either raise."""
    if rank.size == 1:
        return ""
    array = rank.comm.allocate(4 * 10_000).view("float32")
    if rank.index == 0:
        bound = [rank.comm.bind_send(r, array) if r % 2 else rank.comm.bind_receive(r, array) for r in range(1, rank.size)]
        rank.comm.seal()
        rank.comm.abort("gave up")
        return "gave up" if len(bound) == rank.size - 1 else "lost"
    ends = rank.comm.bind_receive(0, array) if rank.index % 2 else rank.comm.bind_send(0, array)
    try:
        rank.comm.seal()
        run([*ends.start, *ends.wait])
    except AbortedError as error:
        assert "gave up" in str(error)
        return "woken"
    raise AssertionError("a rank waited for one that had given up, and came back")


def shapes(size: int) -> Iterator[tuple[int, ...]]:
    """Return overlapping groups, in all orders of ranks, of one rank and of all."""
    if size > 1:
        yield 1, 0
    if size > 2:
        yield from ((2, 0), (1, 2))
    if size > 3:
        yield from ((3, 0, 1), (2, 1, 3), (2, 3))
    yield (size - 1,)
    yield tuple(range(size))


def in_groups(rank: Rank, case: tuple[Any, Any]) -> None:
    """Check a law in groups of ranks while other ranks run other operations."""
    law, argument = case
    for members in shapes(rank.size):
        if rank.index in members:
            group = rank.comm.group(members)
            assert group is rank.comm.group(list(members)) and (len(members) < rank.size or members[0] or group is rank.comm)
            assert (group.members, group.size, members[group.rank]) == (members, len(members), rank.index)
            law(Rank(group.rank, group.size, rank.device, group), argument)


def group_of_a_group(rank: Rank, argument: None) -> None:
    for members in shapes(rank.size):
        backwards = range(len(members))[::-1]
        if rank.index in members:
            assert rank.comm.group(members).group(backwards) is rank.comm.group(members[::-1])
    for wrong in ((0, 0), (rank.size,), (-1,), tuple(r for r in range(rank.size) if r != rank.index)):
        try:
            rank.comm.group(wrong)
        except PlacementError as error:
            assert f"{list(wrong)}" in str(error)
        else:
            raise AssertionError(f"there is no group of {wrong} for rank {rank.index}")


def groups_in_turns(rank: Rank, steps: int) -> None:
    """Run operations of overlapping groups in any common order; the world counts their traffic."""
    bound = []
    before = rank.comm.sent().get("all_reduce", (0, 0))
    for members in shapes(rank.size):
        if rank.index in members:
            comm = rank.comm.group(members)
            arrays = [comm.allocate(4 * n).view("float32") for n in (5, 40_000)]
            sums = [np.zeros_like(array) for array in arrays]
            bind = partial(comm.bind_all_reduce, range(comm.size), reduce=SUM)
            calls = [call for array, total in zip(arrays, sums, strict=True) for call in bind(array, total)]
            comm.seal()
            bound.append((members, arrays, sums, calls))
    for step in range(steps):
        for members, arrays, sums, calls in bound[:: 1 if step % 2 else -1]:
            for array in arrays:
                array[:] = step + rank.index
            rank.comm.group(members).compare_digests(step, lambda: "a sum")
            run(calls)
            assert all((total == step * len(members) + sum(members)).all() for total in sums), (members, step)
    runs = sum(steps * len(arrays) for members, arrays, _, _ in bound if len(members) > 1 or rank.size == 1)
    assert rank.comm.sent().get("all_reduce", (0, 0))[0] - before[0] == runs


def agreeing(rank: Rank, argument: None) -> None:
    """Compare digests of any 64 bits."""
    for digest in (0, 1, -1, 1 << 63, (1 << 64) - 1, *range(100)):
        rank.comm.compare_digests(digest, lambda digest=digest: f"number {digest}")  # type: ignore[misc]


def all_cases(pairs: bool = False) -> Iterator[tuple[Any, Any]]:
    """Return (law, argument) for all laws that leave a communicator usable.

    With `pairs`, return only some sizes in all places, and reductions in one type.
    """
    for (number, total), location in itertools.product(enumerate(SIZES), PLACES):
        if pairs and total not in (37, 20_001) and location != PLACES[number % len(PLACES)]:
            continue
        for dtype in DTYPES if total == 37 and location == "shared" else ("float32",):
            yield all_gather, (total, dtype, location)
            yield all_to_all, (total, dtype, location)
            yield transfer, (total, dtype, location)
            for reduce in (SUM, MAX, MIN) if location == "shared" and total == 37 and not (pairs and dtype != "int32") else (SUM,):
                yield all_reduce, (total, dtype, location, reduce)
                yield reduce_scatter, (total, dtype, location, reduce)
    for dtype, location, reduce in itertools.product(("float16", "float32", "float64"), ("shared", "private"), (MAX, MIN)):
        yield no_number, (dtype, location, reduce)
    for total, location in itertools.product(SIZES, ("shared", "private")):
        yield transfers_and_sums, (total, location)
    yield no_race, 50
    yield same_bits, (100, 20_001, 200_003)
    yield exchange, None
    yield from ((counting, total) for total in (0, 1, 37, 20_001))
    yield disagreement, None
    yield agreeing, None
    yield from ((in_groups, case) for case in _cases_in_groups())
    yield group_of_a_group, None
    yield groups_in_turns, 6


def _cases_in_groups() -> Iterator[tuple[Any, Any]]:
    for total, location in ((37, "shared"), (200_003, "private"), (20_001, "in place")):
        yield all_gather, (total, "float32", location)
        yield all_to_all, (total, "int64", location)
        yield transfer, (total, "float32", location)
        yield all_reduce, (total, "float16" if total == 37 else "float32", location, SUM)
        yield reduce_scatter, (total, "float32", location, MAX)
    yield transfers_and_sums, (20_001, "shared")
    yield no_race, 10
    yield same_bits, (100, 20_001)
    yield exchange, None
    yield counting, 37
    yield disagreement, None
    yield agreeing, None
