"""Diverging ranks; run by `test_partings.py` on threads, and by `diverging.py` under mpiexec.

Each case is a command `case(rank)` in which ranks wait for each other in a deadlock, or call different collectives.  All of them must raise.  The
command returns the text of this rank's error, or "" if it may continue.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import contract
import numpy as np

from jobflow.core.errors import DivergedError
from jobflow.core.layout import SUM
from jobflow.runtime.world.world import Rank

Case = Callable[[Rank], str]


def error_of(doing: Callable[[], Any]) -> str:
    try:
        doing()
    except DivergedError as error:
        return str(error)
    return ""


def other_op(rank: Rank) -> str:
    """Call another operation on rank 1 at the third collective, and the same operations on all ranks later."""
    same = ("relu(x)", "x.sum()", "x.numpy()")
    for i, text in enumerate(same[:2]):
        rank.comm.compare_digests(i, lambda text=text: text)  # type: ignore[misc]
    mine = 8 if rank.index == 1 else 7
    result = error_of(lambda: rank.comm.compare_digests(mine, lambda: f"{'x.to_global(B)' if mine == 8 else same[2]} at train.py:{10 + mine}"))
    for i in range(5):
        rank.comm.compare_digests(i - 2, lambda: "all the same")
    return result


def other_op_in_a_group(rank: Rank) -> str:
    if rank.index not in (1, 0):
        return ""
    group = rank.comm.group((1, 0))
    return error_of(lambda: group.compare_digests(rank.index, lambda: f"the op of rank {rank.index}"))


def other_order_of_groups(rank: Rank) -> str:
    """Begin with a collective of the pair on rank 0, and with one of the world on the other ranks."""
    first = rank.comm.group((1, 0)) if rank.index == 0 else rank.comm
    return error_of(lambda: first.compare_digests(3, lambda: f"the op of rank {rank.index}"))


def ring(rank: Rank) -> str:
    """Wait on each rank for the next one, all in different groups that were used before."""
    n = rank.size
    pairs = [tuple(sorted({i, (i + 1) % n})) for i in range(n)]
    for pair in dict.fromkeys(pairs):
        if rank.index in pair:
            rank.comm.group(pair).compare_digests(1, lambda: "all the same")
    mine = rank.comm.group(pairs[rank.index])
    return error_of(lambda: mine.compare_digests(2, lambda: f"the op of rank {rank.index}"))


def agree_or_meet(rank: Rank) -> str:
    """Call a barrier on rank 0, an exchange on rank 1, and a digest comparison on the others."""
    rank.comm.compare_digests(1, lambda: "all the same")
    where = (rank.comm.barrier, lambda: rank.comm.exchange(1), lambda: rank.comm.compare_digests(5, lambda: "an op"))
    return error_of(where[min(rank.index, 2)])


def sums_in_other_order(rank: Rank) -> str:
    """Sum in the world and in a group on ranks 0 and 1, in different orders."""
    calls = []
    for comm in (rank.comm.group((1, 0)) if rank.index < 2 else None, rank.comm):
        if comm is not None and rank.index < 2:
            source = comm.allocate(4 * 20_000).view(np.float32)
            calls.append(comm.bind_all_reduce((0, 1), source, np.zeros_like(source), SUM, name=f"sum {len(calls)}"))
        elif comm is not None:
            comm.allocate(0)
        if comm is not None:
            comm.seal()
    return error_of(lambda: [contract.run(one) for one in (calls if rank.index else calls[::-1])])


def both_receive(rank: Rank) -> str:
    """Wait on ranks 0 and 1 for data that the other sends later; the other ranks wait for rank 0."""
    peer = 1 - rank.index if rank.index < 2 else 0
    got, gave = np.zeros(9), np.ones(9)
    if rank.index < 2:
        receive, send = rank.comm.bind_receive(peer, got, name="first"), rank.comm.bind_send(peer, gave, name="second")
        others = [rank.comm.bind_send(r, gave) for r in range(2, rank.size)] if rank.index == 0 else []
        rank.comm.seal()
        return error_of(lambda: contract.run([*receive.start, *receive.wait, *send.start, *(call for ends in others for call in ends.start)]))
    receive = rank.comm.bind_receive(0, got)
    rank.comm.seal()
    return error_of(lambda: contract.run([*receive.start, *receive.wait]))


def slow_but_right(rank: Rank) -> str:
    """Arrive late repeatedly at collectives of many overlapping groups, without a false alarm."""
    order, mine = random.Random(5), random.Random(rank.index)
    groups = [ranks for ranks in contract.groups(rank.size) if len(ranks) > 1]
    for step in range(12):
        ranks = order.choice(groups)
        if mine.random() < 0.4:
            time.sleep(0.25 * mine.random())
        if rank.index in ranks:
            comm = rank.comm.group(ranks)
            comm.compare_digests(step, lambda: "all the same")
            assert comm.exchange(rank.index) == list(ranks)
            comm.barrier()
            source, target = comm.allocate(4 * 20_000).view(np.float32), np.zeros(20_000, np.float32)
            source[:] = rank.index
            calls = comm.bind_all_reduce(range(comm.size), source, target, SUM)
            comm.seal()
            contract.run(calls)
            assert (target == sum(ranks)).all()
    return ""


#: each case, and which of n ranks are told
CASES: dict[Case, Callable[[int], set[int]]] = {
    other_op: lambda n: set(range(n)),
    other_op_in_a_group: lambda n: {0, 1},
    other_order_of_groups: lambda n: set(range(n)),
    ring: lambda n: set(range(n)) if n > 2 else set(),
    agree_or_meet: lambda n: set(range(n)),
    sums_in_other_order: lambda n: {0, 1},
    both_receive: lambda n: set(range(n)),
    slow_but_right: lambda n: set(),
}
