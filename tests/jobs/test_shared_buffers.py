"""Arguments and results in memory that the ranks share."""

from __future__ import annotations

from typing import Any

import numpy as np
from parts import Begin, Rows, X, declare

import jobflow as flow
import jobflow.typing as tp
from jobflow.engine.compiled import Compiled
from jobflow.engine.job import job_of
from jobflow.engine.session import current_session
from jobflow.program.commands import client_buffers_of


def compiled(declared: Any, *args: Any) -> Compiled:
    shapes = tuple(tuple(x.shape for x in a) if isinstance(a, list) else a.shape for a in args)
    return current_session().compiled(job_of(declared), shapes)


def has_io_buffers(number: int) -> bool:
    world = current_session().world
    assert world is not None
    return number in client_buffers_of(world.ranks[0])


def test_split_whole_and_counted(on: Begin) -> None:
    on(3)  # 4 rows: 2, 1 and 1
    job = declare(lambda x: (x * 2, flow.math.reduce_sum(x)), Rows, gives=tuple[tp.Numpy, tp.Numpy])
    double, total = job(X)
    np.testing.assert_array_equal(double, X * 2)
    np.testing.assert_allclose(total, X.sum(), atol=1e-6)
    assert has_io_buffers(compiled(job, X).number)


def test_one_array_per_device(on: Begin) -> None:
    on(2)
    job = declare(lambda x: x + 1, tp.ListNumpy.Placeholder((4, 6)), gives=tp.ListNumpy)
    results = job([X, -X])
    np.testing.assert_array_equal(results[0], X + 1)
    np.testing.assert_array_equal(results[1], 1 - X)
    assert has_io_buffers(compiled(job, [X, -X]).number)
    uneven = job([X, X[:1]])
    assert [a.shape for a in uneven] == [(4, 6), (1, 6)]
    assert not has_io_buffers(compiled(job, [X, X[:1]]).number)


def test_an_argument_is_not_changed_in_place(on: Begin) -> None:
    on(2)

    @flow.global_function()
    def job(x: Rows) -> tuple[tp.Numpy, tp.Numpy]:
        y = flow.nn.relu(x)
        return x, flow.nn.relu(y - 0.5)

    for _ in range(2):
        same, other = job(X)
        np.testing.assert_array_equal(same, X)
        np.testing.assert_array_equal(other, np.maximum(np.maximum(X, 0) - 0.5, 0))


def test_arguments_may_be_handed_to_each_rank(on: Begin) -> None:
    on(2)
    job = declare(lambda x: x * 3, Rows)
    job(X)
    session, program = current_session(), compiled(job, X)
    assert session.world is not None
    bound = job_of(job).signature.bind((X - 1,), 2)
    (value,) = program.outputs(program.run_on_ranks(session.world, program.feeds(program.arguments(bound, 5))))
    np.testing.assert_array_equal(value, (X - 1) * 3)


def test_one_rank_has_no_shared_buffers(on: Begin) -> None:
    on(1)
    job = declare(lambda x: x * 3, Rows)
    np.testing.assert_array_equal(job(X), X * 3)
    assert not has_io_buffers(compiled(job, X).number)


def test_numbers_without_axes(on: Begin) -> None:
    on(2)
    job = declare(lambda x, y: (x * 2, flow.math.reduce_sum(y) + x), tp.Numpy.Placeholder(()), Rows, gives=tuple[tp.Numpy, tp.Numpy])
    for number in (3.0, -1.0):
        double, total = job(np.array(number, np.float32), X)
        assert (double.shape, float(double)) == ((), 2 * number)
        np.testing.assert_allclose(total, X.sum() + number, atol=1e-5)
    assert has_io_buffers(compiled(job, np.array(0, np.float32), X).number)


def test_one_number_per_device(on: Begin) -> None:
    on(2)
    job = declare(lambda x: x + 1, tp.ListNumpy.Placeholder(()), gives=tp.ListNumpy)
    assert [float(x) for x in job([np.array(1, np.float32), np.array(5, np.float32)])] == [2, 6]
