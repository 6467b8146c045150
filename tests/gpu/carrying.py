"""Checks of every communicator of GPUs, as commands for a world; the laws of tests/runtime check host memory.

`carry(rank, case)` binds every operation for every group of ranks on device memory, runs it three times, and compares with NumPy.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from jobflow.core.layout import MAX, MIN, SUM
from jobflow.ops.op import Call
from jobflow.runtime.world.world import Rank

DTYPES = ("float32", "float64", "int32", "int64", "uint8", "float16", "bool")
#: elements per rank: the same, and not the same
SHAPES = ("even", "uneven")


def groups(size: int) -> list[tuple[int, ...]]:
    return [*itertools.chain(*(itertools.combinations(range(size), n) for n in range(1, size + 1))), tuple(reversed(range(size)))]


def data(rank: int, step: int, count: int, dtype: str) -> Any:
    """Small numbers, so that sums are exact in every type."""
    return ((np.arange(count) * (rank + 2) + 3 * rank + 7 * step) % 13).astype(dtype)


def counts(kind: str, n: int) -> list[int]:
    return [5] * n if kind == "even" else [3 * i for i in range(n)]


class Bound:
    """One operation of one rank, its arrays, and what NumPy says that it gives."""

    def __init__(self, rank: Rank, source: int, target: int, dtype: str) -> None:
        self.rank, self.dtype = rank, dtype
        self.source, self.target = (self._room(n) for n in (source, target))
        self.calls: list[Call] = []

    def _room(self, count: int) -> Any:
        dtype = np.dtype(self.dtype)
        raw = self.rank.comm.allocate(count * dtype.itemsize)
        return raw.view(dtype) if count else self.rank.device.xp.empty(0, dtype)

    def check(self, values: Any, expected: Any, what: str) -> None:
        self.rank.device.upload(self.source, values)
        for function, arguments in self.calls:
            function(*arguments)
        self.rank.device.synchronize()
        np.testing.assert_array_equal(self.rank.device.to_host(self.target), expected, err_msg=what)


def carry(rank: Rank, case: tuple[str, str]) -> int:
    """All operations in this element type and these counts; how many were run."""
    return sum(_in_group(rank, ranks, *case) for ranks in groups(rank.size))


def _in_group(rank: Rank, ranks: tuple[int, ...], dtype: str, kind: str) -> int:
    each = counts(kind, len(ranks))
    total, inside = sum(each), rank.index in ranks
    me = ranks.index(rank.index) if inside else 0
    own = each[me]
    reductions = (SUM,) if dtype == "bool" else (SUM, MAX, MIN)
    # rank i gives each[(i + j) % n] elements to rank j
    gives, takes = ([each[(me + j) % len(ranks)] for j in range(len(ranks))] for _ in range(2))
    reduced = [Bound(rank, total, total, dtype) for _ in reductions]
    scattered = [Bound(rank, total, own, dtype) for _ in reductions]
    gathered, exchanged = Bound(rank, own, total, dtype), Bound(rank, total, total, dtype)
    if inside:
        comm = rank.comm
        for bound, reduce in zip(reduced, reductions, strict=True):
            bound.calls = comm.bind_all_reduce(ranks, bound.source, bound.target, reduce)
        for bound, reduce in zip(scattered, reductions, strict=True):
            bound.calls = comm.bind_reduce_scatter(ranks, bound.source, bound.target, each, reduce)
        gathered.calls = comm.bind_all_gather(ranks, gathered.source, gathered.target, each)
        exchanged.calls = comm.bind_all_to_all(ranks, exchanged.source, exchanged.target, gives, takes)
    rank.comm.seal()
    for step in range(3 if inside else 0):
        whole = [data(r, step, total, dtype) for r in ranks]
        cut = np.cumsum([0, *each])
        for both in zip(reductions, reduced, scattered, strict=True):
            reduce, bound, piece = both
            result = reduce.ufunc.reduce(whole).astype(dtype)
            bound.check(whole[me], result, f"all_reduce {reduce} of {ranks}")
            piece.check(whole[me], result[cut[me] : cut[me + 1]], f"reduce_scatter {reduce} of {ranks}")
        gathered.check(whole[me][:own], np.concatenate([w[:n] for w, n in zip(whole, each, strict=True)]), f"all_gather of {ranks}")
        starts = [np.cumsum([0, *(each[(i + j) % len(ranks)] for j in range(len(ranks)))]) for i in range(len(ranks))]
        received = [w[s[me] : s[me + 1]] for w, s in zip(whole, starts, strict=True)]
        exchanged.check(whole[me], np.concatenate(received), f"all_to_all of {ranks}")
    return (len(reductions) * 2 + 2) * 3 if inside else 0


def relay(rank: Rank, _: Any) -> int:
    """Every rank sends to the next one, in a ring without its last link."""
    sent, got = Bound(rank, 7, 0, "float32"), Bound(rank, 0, 7, "float32")
    if rank.index > 0:
        ends = rank.comm.bind_receive(rank.index - 1, got.target)
        got.calls = [*ends.start, *ends.wait]
    if rank.index < rank.size - 1:
        ends = rank.comm.bind_send(rank.index + 1, sent.source)
        sent.calls = [*ends.start, *ends.wait]
    rank.comm.seal()
    for step in range(3):
        if got.calls:
            got.check(np.empty(0, np.float32), data(rank.index - 1, step, 7, "float32"), "a transfer")
        if sent.calls:
            sent.check(data(rank.index, step, 7, "float32"), np.empty(0, np.float32), "a transfer")
    return rank.size


def in_groups(rank: Rank, _: Any) -> None:
    """The same in communicators of some ranks."""
    for members in ((2, 0), (1, 0), (2, 1, 0), (1,)):
        if rank.index in members:
            group = rank.comm.group(members)
            assert group is rank.comm.group(members) and (type(group) is type(rank.comm)) == (len(members) > 1)
            group.compare_digests(len(members), lambda: "an op")
            inside = Rank(group.rank, group.size, rank.device, group)
            assert (carry(inside, ("float32", "uneven")), relay(inside, None)) > (7, 0)


def one_stays_away(rank: Rank, _: Any) -> None:
    """The last rank fails before its part of an all_reduce."""
    bound = Bound(rank, 5, 5, "float32")
    bound.calls = rank.comm.bind_all_reduce(tuple(range(rank.size)), bound.source, bound.target, SUM)
    rank.comm.seal()
    if rank.index == rank.size - 1:
        raise ArithmeticError("it fails")
    bound.check(np.zeros(5, np.float32), np.zeros(5, np.float32), "cannot come")
