"""flow.comm between ranks that are threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ranks import on_ranks, with_ranks

from jobflow import comm
from jobflow.core.errors import ArgumentError, DivergedError, JobError
from jobflow.core.layout import B, Layout, Placement
from jobflow.core.types import type_of
from jobflow.functional.tensor_class import Tensor


def tensor(values: Any, dtype: Any = np.float64) -> Tensor:
    array = np.array(values, dtype)
    return Tensor(type_of(array), None, array)


def zeros(n: int, *shape: int) -> list[Tensor]:
    return [tensor(np.zeros(shape)) for _ in range(n)]


@with_ranks(1, 2, 3)
def test_collectives_equal_numpy(rank: int, n: int) -> None:
    mine = np.arange(4.0).reshape(2, 2) + 10 * rank
    everyones = [np.arange(4.0).reshape(2, 2) + 10 * i for i in range(n)]
    total = sum(everyones)

    x = tensor(mine)
    comm.all_reduce(x)
    np.testing.assert_array_equal(x.array, total)
    x = tensor(mine)
    comm.all_reduce(x, op="max")
    np.testing.assert_array_equal(x.array, everyones[-1])
    x = tensor(mine)
    comm.reduce(x, dst=n - 1)
    np.testing.assert_array_equal(x.array, total if rank == n - 1 else mine)
    x = tensor(mine)
    comm.broadcast(x, src=n - 1)
    np.testing.assert_array_equal(x.array, everyones[-1])
    results = zeros(n, 2, 2)
    comm.all_gather(results, tensor(mine))
    np.testing.assert_array_equal([y.array for y in results], everyones)
    results = zeros(n, 2, 2)
    comm.gather(tensor(mine), results if rank == 0 else None, dst=0)
    np.testing.assert_array_equal([y.array for y in results], everyones if rank == 0 else np.zeros((n, 2, 2)))
    x = tensor(np.zeros((2, 2)))
    comm.scatter(x, [tensor(y) for y in everyones] if rank == 0 else None, src=0)
    np.testing.assert_array_equal(x.array, mine)
    comm.reduce_scatter(x, [tensor(mine * (i + 1)) for i in range(n)])
    np.testing.assert_array_equal(x.array, total * (rank + 1))
    results = zeros(n, 2)
    comm.all_to_all(results, [tensor([rank, i]) for i in range(n)])
    assert [y.array.tolist() for y in results] == [[i, rank] for i in range(n)]
    comm.barrier()


def test_send_and_receive_between_two_ranks() -> None:
    """Ranks that neither send nor receive a message do not participate."""

    def program(rank: int) -> Any:
        x = tensor([float(rank)] * 3)
        if rank == 2:
            comm.send(x, dst=0)
        elif rank == 0:
            comm.recv(x, src=2)
        return x.array.tolist()

    assert on_ranks(3, program) == [[2.0] * 3, [1.0] * 3, [2.0] * 3]


@with_ranks(2)
def test_invalid_arguments_of_collectives_raise(rank: int) -> None:
    x = tensor([1.0])
    for reason, kind, call in (
        ("rank 7 does not exist", ArgumentError, lambda: comm.broadcast(x, 7)),
        ("op must be one of", ArgumentError, lambda: comm.all_reduce(x, "mean")),
        ("the list must have 2 tensors", ArgumentError, lambda: comm.all_gather([x], x)),
        ("this rank itself", ArgumentError, lambda: comm.send(x, rank)),
        ("to_local", JobError, lambda: comm.all_reduce(Tensor(x.tensor_type, Layout(Placement("cpu", (0, 1)), (B,)), x.array))),
    ):
        with pytest.raises(kind, match=reason):
            call()


def test_diverging_collectives_raise() -> None:
    def program(rank: int) -> None:
        x = tensor([1.0, 2.0])
        if rank == 0:
            comm.all_reduce(x)
        else:
            comm.broadcast(x, 0)

    with pytest.raises(DivergedError, match=r"all_reduce of float64\[2\](.|\n)*broadcast of float64\[2\]"):
        on_ranks(2, program)
