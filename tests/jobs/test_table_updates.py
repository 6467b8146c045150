"""Large tables, whole or split, on one device and several, in both views: trained by the rows that were read, with the numbers of dense gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from parts import constant

import jobflow as flow
import jobflow.typing as tp
from jobflow.compiler.front import row_updates
from jobflow.engine.session import current_session
from jobflow.ops.row_update import RowUpdate

SIZE, WIDTH = 4096, 16
IDS = np.array([[3, SIZE - 1], [3, 0], [2050, 3], [8, 8], [1000, 7], [3, 3000], [0, 4], [9, 2048]], np.int32)
split, broadcast = flow.distribute.split, flow.distribute.broadcast
Begin = Callable[[int], None]

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: flow.optimizer.SGD(constant(50.0), momentum=0.0),
    "adam": lambda: flow.optimizer.Adam(constant(0.1), do_bias_correction=True),
    "adamw": lambda: flow.optimizer.AdamW(constant(0.1), weight_decay=0.1, do_bias_correction=True),
    "lazy adam": lambda: flow.optimizer.LazyAdam(constant(0.1)),
    "loss scale": lambda: flow.optimizer.SGD(constant(50.0), momentum=0.9, loss_scale_policy=flow.optimizer.loss_scale.static_loss_scale(8.0)),
}


def train(
    optimizer: str, view: str = "consistent", distribute: Any = None, configured: Callable[[Any], Any] | None = None
) -> tuple[Any, dict[str, Any]]:
    """Losses of three steps, and the variables after them; `distribute` is one for a mesh of one dimension, or several."""
    config = flow.function_config()
    if configured is not None:
        configured(config)
    config.default_data_type(flow.float64)
    config.default_logical_view(flow.scope.mirrored_view() if view == "mirrored" else flow.scope.consistent_view())

    @flow.global_function(type="train", function_config=config)
    def job(ids: tp.Numpy.Placeholder(IDS.shape, dtype=flow.int32)) -> tp.Numpy:  # type: ignore[valid-type]
        normal = flow.random_normal_initializer()
        laid = {"parallel_distribution": distribute} if isinstance(distribute, list) else {"distribute": distribute or broadcast()}
        table = flow.get_variable("table", (SIZE, WIDTH), dtype=flow.float64, initializer=normal, **laid)
        loss = flow.math.square(flow.gather(table, ids) - 1.0)
        OPTIMIZERS[optimizer]().minimize(loss)
        return loss

    losses = [np.mean(job((IDS + step) % SIZE)) for step in range(3)]
    return losses, {name: value.numpy() for name, value in flow.get_all_variables().items()}


def by_rows() -> int:
    """How many updates by rows the compiled job has."""
    ops = [node.op for compiled in current_session()._compiled.values() for node in compiled.programs[0].graph.nodes]
    return sum(isinstance(op, RowUpdate) for op in ops)


def same(made: tuple[Any, dict[str, Any]], expected: tuple[Any, dict[str, Any]], what: str) -> None:
    assert by_rows() == 1, what
    np.testing.assert_allclose(made[0], expected[0], rtol=1e-10, err_msg=what)
    assert made[1].keys() == expected[1].keys()
    for name, value in made[1].items():
        np.testing.assert_allclose(value, expected[1][name], rtol=1e-9, atol=1e-12, err_msg=f"{name}: {what}")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_numbers_are_those_of_dense_gradients(on: Begin, optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on(1)
    with monkeypatch.context() as patch:
        patch.setattr(row_updates, "LEAST", SIZE * WIDTH + 1)
        losses, dense = train(optimizer)
        assert not by_rows()
    ways = [(1, "consistent", None), *((n, view, None) for n in (2, 4) for view in ("consistent", "mirrored"))]
    ways += [(n, "consistent", split(axis)) for n, axis in ((2, 0), (4, 0), (2, 1))]
    for devices, view, distribute in ways:
        on(devices)
        same(train(optimizer, view, distribute), (losses, dense), f"{devices} devices, {view}, {distribute}")


def accumulated(config: Any) -> None:
    config.train.num_gradient_accumulation_steps(2)


def on_a_mesh(config: Any) -> None:
    config.default_placement_scope(flow.scope.placement("cpu", "0:0-3", (2, 2)))


WAYS: list[tuple[int, Callable[[Any], Any], Any]] = [
    (1, accumulated, None),
    (2, accumulated, None),
    *((4, on_a_mesh, each) for each in (["S(0)", "S(1)"], ["B", "S(0)"], ["S(0)", "S(0)"])),
    *((2, lambda config, stage=stage: config.strategy(flow.strategies.zero(stage)), None) for stage in (1, 3)),
]


def test_microbatches_meshes_and_strategies(on: Begin) -> None:
    on(1)
    expected = train("adamw")
    for devices, configured, distribute in WAYS:
        on(devices)
        same(train("adamw", distribute=distribute, configured=configured), expected, f"{configured.__name__} {distribute}")
