"""Compiled functions with collectives of local tensors run eagerly, and communicate exactly once per call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import jobflow as flow
import jobflow.distributed as dist
from jobflow import nn
from jobflow.core.errors import JobError
from tests.support.ranks import on_ranks, with_ranks

CALLS = 3
Cases = dict[str, Callable[[Any, Any, int], Any]]


def _gathered(x: Any) -> Any:
    parts = [flow.zeros(1), flow.zeros(1)]
    dist.all_gather(parts, x)
    return flow.cat(parts)


def _objects(rank: int) -> float:
    items = [0, 0]
    dist.all_gather_object(items, rank + 1)
    return float(sum(items))


def _message(x: Any, rank: int) -> Any:
    if rank == 0:
        dist.send(x, 1)
    else:
        dist.recv(x, 0)
    return x


def _later_message(x: Any, rank: int) -> Any:
    (dist.isend(x, 1) if rank == 0 else dist.irecv(x, 0)).wait()
    return x


#: functions of an input, a captured tensor and the rank
COLLECTIVES: Cases = {
    "all_reduce": lambda x, state, rank: (dist.all_reduce(x), x * 2)[1],
    "all_reduce of a captured tensor": lambda x, state, rank: (dist.all_reduce(state), x + state)[1],
    "all_reduce of a result": lambda x, state, rank: (flow.comm.all_reduce(y := x * 2), y)[1],
    "comm.all_reduce": lambda x, state, rank: (flow.comm.all_reduce(x, "max"), x)[1],
    "reduce": lambda x, state, rank: (dist.reduce(x, 0), x + 0)[1],
    "broadcast": lambda x, state, rank: (dist.broadcast(x, 1), x + 0)[1],
    "all_gather": lambda x, state, rank: _gathered(x),
    "all_gather_object": lambda x, state, rank: x * _objects(rank),
    "send and recv": lambda x, state, rank: _message(x, rank),
    "isend and irecv": lambda x, state, rank: _later_message(x, rank),
    "barrier": lambda x, state, rank: (state.add_(1), dist.barrier(), x + state)[2],
}


def _values(function: Callable[..., Any], rank: int) -> list[Any]:
    state, values = flow.tensor([rank + 1.0]), []
    for _ in range(CALLS):
        x = flow.tensor([rank + 1.0])
        values += [function(x, state, rank).tolist(), x.tolist(), state.tolist()]
    return values


@pytest.mark.parametrize("name", COLLECTIVES)
def test_compiled_collectives_equal_eager_collectives(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    eager = on_ranks(2, lambda rank: _values(COLLECTIVES[name], rank))
    assert on_ranks(2, lambda rank: _values(flow.compile(COLLECTIVES[name]), rank)) == eager
    assert capfd.readouterr().err.count("ranks cannot communicate") <= 2


@with_ranks(2)
def test_collectives_raise_with_fullgraph(rank: int) -> None:
    for name, function in COLLECTIVES.items():
        with pytest.raises(JobError, match=r"at test_compile_collectives.py:\d+: ranks cannot communicate"):
            flow.compile(function, fullgraph=True)(flow.ones(1), flow.ones(1), rank)
            pytest.fail(name)


@with_ranks(2)
def test_a_compiled_wait_receives_a_message_that_began_before(rank: int) -> None:
    x = flow.tensor([rank + 1.0])
    work = dist.isend(x, 1) if rank == 0 else dist.irecv(x, 0)
    flow.compile(lambda y: (work.wait(), y * 2)[1])(flow.ones(1))
    assert x.tolist() == [1.0]


@with_ranks(2)
def test_groups_without_this_rank_and_queries_are_compiled(rank: int) -> None:
    first = dist.new_group([0])
    function = flow.compile(lambda x: x * (dist.get_rank() + dist.get_group_rank(dist.group.WORLD, 1) + 1), fullgraph=True)
    assert [function(flow.ones(1)).item() for _ in range(CALLS)] == [rank + 2.0] * CALLS
    if rank == 1:
        outside = flow.compile(lambda x: (dist.all_reduce(x, group=first), x + 1)[1], fullgraph=True)
        assert [outside(flow.ones(1)).item() for _ in range(CALLS)] == [2.0] * CALLS


@with_ranks(2)
def test_graphs_refuse_collectives_of_local_tensors(rank: int) -> None:
    class Reduced(nn.Graph):
        def build(self, x: Any) -> Any:
            dist.all_reduce(x)
            return x

    with pytest.raises(JobError, match="ranks cannot communicate local tensors or objects while"):
        Reduced()(flow.ones(1))
