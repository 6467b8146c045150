"""flow.advanced: per-device tensors by hand have equal values, and no tensor moves without need."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from parts import declare

import jobflow as flow
import jobflow.typing as tp
from jobflow import scope
from jobflow.compiler.layouts.box import Reroute
from jobflow.core.errors import PlacementError, ShapeError
from jobflow.engine.job import job_of
from jobflow.tools.explain import laid_out

X = np.arange(35, dtype=np.float32).reshape(7, 5)
Rows = tp.Numpy.Placeholder((7, 5))
RANKS = (1, 2, 3)


@pytest.fixture(params=RANKS)
def ranks(request: pytest.FixtureRequest) -> int:
    """Start a fresh session on this number of devices."""
    count: int = request.param
    with scope.using(root=scope.Root()):
        flow.config.cpu_device_num(count)
        yield count
        flow.clear_default_session()


def run(body: Callable[[object], object]) -> np.ndarray:
    job = declare(body, Rows)
    return job(X)


def test_pieces_are_placed_on_their_devices_and_concatenated(ranks: int) -> None:
    def body(x: object) -> object:
        pieces = flow.advanced.distribute_split(x, axis=1)
        assert len(pieces) == ranks and [piece.node.placement.ranks for piece in pieces] == [(i,) for i in range(ranks)]
        assert sum(piece.shape[1] for piece in pieces) == 5
        return flow.advanced.distribute_concat(pieces, axis=1)

    np.testing.assert_array_equal(run(body), X)


def test_copies_add_up(ranks: int) -> None:
    np.testing.assert_array_equal(run(lambda x: flow.advanced.distribute_add(flow.advanced.distribute_clone(x))), ranks * X)


def test_map_works_on_each_device(ranks: int) -> None:
    np.testing.assert_allclose(run(lambda x: flow.advanced.distribute_map(x, lambda piece: flow.math.square(piece))), X * X)


def test_a_sequence_by_hand_moves_no_bytes_but_its_arguments(ranks: int) -> None:
    job = declare(lambda x: flow.advanced.distribute_map(x, flow.math.relu), Rows)
    layouts = laid_out(job_of(job), ranks)
    assert not [node for node in layouts.physical.graph.nodes if isinstance(node.op, Reroute)]


def test_gradients_of_pieces_equal_gradients_of_the_whole(ranks: int) -> None:
    @flow.global_function(type="train")
    def job(x: Rows) -> tp.Numpy:
        w = flow.get_variable("w", (5, 4), initializer=flow.ones_initializer())
        b = flow.get_variable("b", (4,), initializer=flow.zeros_initializer())
        pieces = flow.advanced.distribute_split(x)
        weights = flow.advanced.distribute_clone(w)
        parts = []
        for i, (piece, weight) in enumerate(zip(pieces, weights, strict=True)):
            with flow.scope.placement("cpu", f"0:{i}"):
                parts.append(flow.math.square(flow.matmul(piece, weight)))
        loss = flow.math.reduce_sum(flow.advanced.distribute_concat(parts) + b)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.001]), momentum=0).minimize(loss)
        return loss

    product = X @ np.ones((5, 4), np.float32)
    np.testing.assert_allclose(job(X), [np.square(product).sum()], rtol=1e-6)
    after = {name: value.numpy() for name, value in flow.get_all_variables().items()}
    np.testing.assert_allclose(after["w"], 1 - 0.001 * (X.T @ (2 * product)), rtol=1e-5)
    np.testing.assert_allclose(after["b"], np.full(4, -0.007), rtol=1e-6)


def test_wrong_counts_and_lengths_are_named(ranks: int) -> None:
    with pytest.raises(ShapeError, match=rf"{ranks + 1} tensors for the {ranks} devices"):
        run(lambda x: flow.advanced.distribute_concat([x] * (ranks + 1)))
    if ranks > 1:
        with pytest.raises(ShapeError, match="not a balanced split"):
            run(lambda x: flow.advanced.distribute_concat(flow.advanced.distribute_split(x)[::-1]))
    if ranks == 2:
        with pytest.raises(PlacementError, match="must have no hierarchy"):

            def body(x: object) -> object:
                with flow.scope.placement("cpu", "0:0-1", (2, 1)):
                    return flow.advanced.distribute_clone(x)[0]

            run(body)
