"""Eager operations on 1 to 3 ranks: the layouts of jobs, the values of one rank, gradients in the layouts of the leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ranks import on_ranks, with_ranks

from jobflow.core.errors import PlacementError
from jobflow.core.layout import B, Layout, P, S
from jobflow.core.types import float64
from jobflow.engine.placements import placement, sbp
from jobflow.functional.global_tensors import to_global, to_local
from jobflow.functional.values import numpy
from jobflow.ops.arithmetic import Add
from jobflow.ops.matmul import MatMul
from jobflow.ops.random_tensors import RandomNormal
from jobflow.ops.reduce import ReduceSum
from jobflow.tensors import run
from jobflow.tensors.backward import backward
from jobflow.tensors.state import Generator


def drawn(shape: tuple[int, ...], layout: Layout, number: int) -> Any:
    return run.source(RandomNormal(shape, float64, "draw"), layout, Generator(0, number))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_forward_and_backward_pass_equals_one_rank(n: int) -> None:
    def program(rank: int) -> Any:
        here = placement("cpu", range(n))
        x, w = drawn((4, 5), Layout(here.core, (S(0),)), 0), drawn((5, 8), Layout(here.core, (B,)), 1)
        w.requires_grad = True
        y = run.run(MatMul(), x, w)
        split = to_global(y, sbp=sbp.split(1))
        total = run.run(Add(), run.run(ReduceSum((0, 1)), y), run.run(ReduceSum((0, 1)), split))
        backward([total], [None])
        return y.sbp, total.sbp, numpy(total), w.grad.sbp, numpy(w.grad), numpy(x), numpy(w)

    first = on_ranks(1, program) if n == 1 else on_ranks(n, program)
    for y_sbp, total_sbp, total, grad_sbp, grad, x, w in first:
        assert grad_sbp == (B,)
        if n > 1:
            assert (y_sbp, total_sbp) == ((S(0),), (P,))
        np.testing.assert_allclose(total, 2 * (x @ w).sum())
        np.testing.assert_allclose(grad, 2 * np.repeat(x.sum(axis=0)[:, None], 8, axis=1))


@pytest.mark.parametrize("how", [S(0), S(1), B, P])
def test_local_tensors_become_a_global_tensor(how: Any) -> None:
    def program(rank: int) -> Any:
        here = placement("cpu", [0, 1])
        mine = run.source(RandomNormal((3 - rank if how == S(0) else 2, 2 if how == S(1) else 3), float64, f"of {rank}"), None, Generator())
        mine.requires_grad = True
        whole = to_global(mine, placement=here, sbp=how)
        backward([run.run(ReduceSum((0, 1)), whole)], [None])
        return np.array(mine.array), numpy(whole), np.array(to_local(whole).array), np.array(mine.grad.array)

    (a, whole, piece, grad), (b, again, other, other_grad) = on_ranks(2, program)
    np.testing.assert_array_equal(whole, again)
    expected = {S(0): lambda: np.concatenate([a, b]), S(1): lambda: np.concatenate([a, b], 1), B: lambda: a, P: lambda: a + b}[how]()
    np.testing.assert_array_equal(whole, expected)
    np.testing.assert_array_equal(piece, a)
    np.testing.assert_array_equal(other, a if how == B else b)
    np.testing.assert_array_equal(grad, np.ones_like(a))
    np.testing.assert_array_equal(other_grad, np.zeros_like(b) if how == B else np.ones_like(b))


@with_ranks(2)
def test_invalid_placements_raise_at_construction() -> None:
    for ranks, reason in (([0, 0], "occurs twice"), ([0, 5], "does not exist"), ([], "process numbers"), ([0.5], "process numbers")):
        with pytest.raises(PlacementError, match=reason):
            placement("cpu", ranks)
    with pytest.raises(PlacementError, match="unknown type"):
        placement("gpu", [0])
    assert repr(placement("cuda", {0: [0, 1]})) == 'jobflow.placement(type="cuda", ranks=[0, 1])'
    assert placement("cpu", [[1, 0]]).ranks.tolist() == [[1, 0]] and placement("cpu", [[1, 0]]) != placement("cpu", [1, 0])
