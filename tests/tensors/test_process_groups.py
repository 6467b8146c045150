"""PyTorch's collectives and process groups, between ranks that are threads."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ranks import on_ranks, with_ranks

import jobflow as flow
import jobflow.distributed as dist
from jobflow.core.errors import DivergedError, JobflowError

Op = dist.ReduceOp
#: reduction -> the same of NumPy
REDUCTIONS: dict[Any, Callable[[Any], Any]] = {
    Op.SUM: lambda rows: rows.sum(0),
    Op.AVG: lambda rows: rows.mean(0),
    Op.MIN: lambda rows: rows.min(0),
    Op.MAX: lambda rows: rows.max(0),
    Op.PRODUCT: lambda rows: rows.prod(0),
    Op.BAND: np.bitwise_and.reduce,
    Op.BOR: np.bitwise_or.reduce,
    Op.BXOR: np.bitwise_xor.reduce,
}


def rows(n: int, op: Any = Op.SUM) -> Any:
    """Return the values of all ranks."""
    values = np.arange(4.0 * n).reshape(n, 4) % 5 + 1
    return values.astype(np.int64) if op in (Op.BAND, Op.BOR, Op.BXOR) else values


@with_ranks(1, 2, 3)
def test_reductions_equal_numpy(rank: int, n: int) -> None:
    for op, reference in REDUCTIONS.items():
        values = rows(n, op)
        x = flow.tensor(values[rank])
        work = dist.all_reduce(x, op, async_op=True)
        assert work.wait() and work.is_completed() and work.result()[0] is x
        np.testing.assert_array_equal(x.numpy(), reference(values), err_msg=str(op))
        whole = np.stack([values + i for i in range(n)], 1)  # rank, part, element
        part = flow.zeros(4, dtype=x.dtype)
        dist.reduce_scatter(part, [flow.tensor(each) for each in whole[rank]], op)
        np.testing.assert_array_equal(part.numpy(), reference(whole[:, rank]), err_msg=str(op))
        dist.reduce_scatter_tensor(part, flow.tensor(whole[rank].reshape(-1)), op)
        np.testing.assert_array_equal(part.numpy(), reference(whole[:, rank]), err_msg=str(op))
    x = flow.tensor(rows(n)[rank])
    dist.reduce(x, n - 1, Op.SUM)
    np.testing.assert_array_equal(x.numpy(), rows(n).sum(0) if rank == n - 1 else rows(n)[rank])


@with_ranks(1, 2, 3)
def test_collectives_that_move_data_equal_numpy(rank: int, n: int) -> None:
    values = rows(n)
    x = flow.tensor(values[rank])
    for shape in ((n * 4,), (n, 4)):
        whole = flow.zeros(*shape, dtype=flow.float64)
        dist.all_gather_into_tensor(whole, x)
        np.testing.assert_array_equal(whole.numpy(), values.reshape(shape))
    parts = [flow.zeros(4, dtype=flow.float64) for _ in range(n)]
    dist.all_gather(parts, x)
    np.testing.assert_array_equal([part.numpy() for part in parts], values)
    dist.gather(x, parts if rank == n - 1 else None, dst=n - 1)
    y = flow.zeros(4, dtype=flow.float64)
    dist.scatter(y, [flow.tensor(row) for row in values] if rank == 0 else None, src=0)
    np.testing.assert_array_equal(y.numpy(), values[rank])
    dist.broadcast(y, n - 1)
    np.testing.assert_array_equal(y.numpy(), values[n - 1])
    sent = flow.tensor(np.arange(float(n)) + 10 * rank)
    received = flow.zeros(n, dtype=flow.float64)
    dist.all_to_all_single(received, sent)
    np.testing.assert_array_equal(received.numpy(), np.arange(n) * 10.0 + rank)


@with_ranks(1, 2, 3)
def test_objects_are_exchanged(rank: int, n: int) -> None:
    items: list[Any] = [None] * n
    dist.all_gather_object(items, {"rank": rank})
    assert items == [{"rank": i} for i in range(n)]
    dist.gather_object(rank, items if rank == 0 else None)
    assert items == (list(range(n)) if rank == 0 else [{"rank": i} for i in range(n)])
    names = ["a", "b"] if rank == n - 1 else [None, None]
    dist.broadcast_object_list(names, src=n - 1)
    assert names == ["a", "b"]
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, [f"of {i}" for i in range(n)] if rank == 0 else None)
    assert mine == [f"of {rank}"]
    dist.barrier()
    dist.monitored_barrier()


def test_groups_of_some_ranks_communicate_alone() -> None:
    def program(rank: int) -> Any:
        dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=30), world_size=3, rank=rank)
        outer, middle = dist.new_group([0, 2], backend="gloo"), dist.new_group([1])
        x = flow.tensor([float(rank)])
        dist.all_reduce(x, group=outer)
        dist.broadcast(x, src=1, group=middle)
        items = [None] * dist.get_world_size(outer)
        if rank != 1:
            dist.all_gather_object(items, rank, group=outer)
            assert outer.size() == 2 and dist.get_group_rank(outer, 2) == 1 and dist.get_global_rank(outer, 1) == 2
            assert dist.get_backend(outer) == "gloo" and dist.get_process_group_ranks(outer) == [0, 2]
        y = flow.tensor([float(rank)])
        dist.broadcast(y, group=outer, group_src=1)
        assert dist.get_backend() == "nccl" and dist.is_initialized() and dist.get_rank(dist.group.WORLD) == dist.get_rank() == rank
        dist.destroy_process_group()
        assert not dist.is_initialized()
        return x.item(), items, y.item(), dist.get_rank(outer), dist.get_world_size(middle)

    assert on_ranks(3, program) == [(2.0, [0, 2], 2.0, 0, -1), (1.0, [], 1.0, -1, 1), (2.0, [0, 2], 2.0, 1, -1)]


def test_messages_reach_the_other_rank() -> None:
    def program(rank: int) -> Any:
        n = 3
        x, y = flow.tensor([float(rank)]), flow.zeros(1)
        ring = [dist.P2POp(dist.isend, x, (rank + 1) % n), dist.P2POp(dist.irecv, y, (rank - 1) % n)]
        for work in dist.batch_isend_irecv(ring):
            work.wait()
        z = flow.zeros(1)
        if rank == 0:
            dist.send(x + 5, 1, tag=3)
        elif rank == 1:
            assert dist.recv(z, 0, tag=3) == 0
        return y.item(), z.item()

    assert on_ranks(3, program) == [(2.0, 0.0), (0.0, 5.0), (1.0, 0.0)]


@pytest.mark.parametrize(
    "other",
    [
        lambda x: dist.all_gather_object([None, None], 1),
        lambda x: dist.broadcast(x, 0),
        lambda x: dist.all_reduce(x, Op.MAX),
        lambda x: dist.barrier(),
        lambda x: dist.new_group([0]),
        lambda x: dist.all_reduce(flow.zeros(3)),
    ],
)
def test_different_collectives_raise_on_all_ranks(other: Callable[[Any], Any]) -> None:
    def program(rank: int) -> None:
        x = flow.zeros(2)
        with pytest.raises(DivergedError):
            other(x) if rank else dist.all_reduce(x)

    on_ranks(2, program, anew=True)


X = flow.zeros(2)
#: a call with an invalid argument, and words of its message
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "backend": (lambda: dist.init_process_group("tcp"), "'tcp'"),
    "backend type": (lambda: dist.init_process_group(3), "got 3"),  # type: ignore[arg-type]
    "init_method": (lambda: dist.init_process_group("gloo", init_method="here"), "env://"),
    "timeout": (lambda: dist.init_process_group("gloo", timeout=30), "timedelta"),  # type: ignore[arg-type]
    "world_size": (lambda: dist.init_process_group("gloo", world_size=2), "--nproc_per_node 2"),
    "rank": (lambda: dist.init_process_group("gloo", rank=1), "rank 0"),
    "rank type": (lambda: dist.init_process_group("gloo", rank="0"), "rank must"),  # type: ignore[arg-type]
    "group": (lambda: dist.all_reduce(X, group=3), "new_group"),
    "op": (lambda: dist.all_reduce(X, op="median"), "median"),
    "average of integers": (lambda: dist.all_reduce(flow.zeros(2, dtype=flow.int64), Op.AVG), "floating point"),
    "bits of floats": (lambda: dist.all_reduce(X, Op.BOR), "integer"),
    "no tensor": (lambda: dist.all_reduce([1.0]), "tensor"),  # type: ignore[arg-type]
    "an unknown rank": (lambda: dist.broadcast(X, 4), "rank"),
    "a missing rank": (lambda: dist.broadcast(X), "src is missing"),
    "two ranks": (lambda: dist.broadcast(X, 0, group_src=0), "not both"),
    "an incomplete list": (lambda: dist.all_gather([], X), "one per rank"),
    "a tensor instead of a list": (lambda: dist.reduce_scatter(X, X), "one per rank"),  # type: ignore[arg-type]
    "another shape": (lambda: dist.all_gather([flow.zeros(3)], X), "float32\\[3\\]"),
    "no list": (lambda: dist.all_gather(3, X), "list"),  # type: ignore[arg-type]
    "another whole": (lambda: dist.all_gather_into_tensor(flow.zeros(3), X), "output_tensor"),
    "another part": (lambda: dist.reduce_scatter_tensor(X, flow.zeros(3)), "input"),
    "unequal parts": (lambda: dist.all_to_all_single(X, X, [1], [1]), "equal"),
    "ranks": (lambda: dist.new_group([5]), "rank 5"),
    "no ranks": (lambda: dist.new_group(3), "list"),  # type: ignore[arg-type]
    "equal ranks": (lambda: dist.new_group([0, 0]), "different"),
    "objects": (lambda: dist.all_gather_object((None,), 1), "list"),  # type: ignore[arg-type]
    "pickles": (lambda: dist.all_gather_object([None], lambda: 1), "object of rank 0 cannot be pickled"),
    "this rank": (lambda: dist.send(X, 0), "itself"),
    "any sender": (lambda: dist.recv(X), "src is missing"),
    "P2POp": (lambda: dist.P2POp(print, X, 0), "isend"),
    "no messages": (lambda: dist.batch_isend_irecv([]), "P2POp"),
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_arguments_raise(name: str) -> None:
    call, words = WRONG[name]
    with pytest.raises(JobflowError, match=words):
        call()
