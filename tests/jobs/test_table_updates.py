"""Large tables, whole or split, on one and several devices, in both views: updates by rows equal dense gradients."""

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
    """Return the losses of three steps and the variables after them; `distribute` is one for a mesh of one dimension, or several."""
    config = flow.function_config()
    if configured is not None:
        configured(config)
    config.default_data_type(flow.float64)
    config.default_logical_view(flow.scope.mirrored_view() if view == "mirrored" else flow.scope.consistent_view())

    @flow.global_function(type="train", function_config=config)
    def job(ids: tp.Numpy.Placeholder(IDS.shape, dtype=flow.int32)) -> tp.Numpy:  # type: ignore[valid-type]
        normal = flow.random_normal_initializer()
        layout = {"parallel_distribution": distribute} if isinstance(distribute, list) else {"distribute": distribute or broadcast()}
        table = flow.get_variable("table", (SIZE, WIDTH), dtype=flow.float64, initializer=normal, **layout)
        loss = flow.math.square(flow.gather(table, ids) - 1.0)
        OPTIMIZERS[optimizer]().minimize(loss)
        return loss

    losses = [np.mean(job((IDS + step) % SIZE)) for step in range(3)]
    return losses, {name: value.numpy() for name, value in flow.get_all_variables().items()}


def by_rows() -> int:
    """Return the number of updates by rows in the compiled job."""
    ops = [node.op for compiled in current_session()._compiled.values() for node in compiled.programs[0].graph.nodes]
    return sum(isinstance(op, RowUpdate) for op in ops)


def same(results: tuple[Any, dict[str, Any]], expected: tuple[Any, dict[str, Any]], what: str) -> None:
    assert by_rows() == 1, what
    np.testing.assert_allclose(results[0], expected[0], rtol=1e-10, err_msg=what)
    assert results[1].keys() == expected[1].keys()
    for name, value in results[1].items():
        np.testing.assert_allclose(value, expected[1][name], rtol=1e-9, atol=1e-12, err_msg=f"{name}: {what}")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_row_updates_equal_dense_gradients(on: Begin, optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on(1)
    with monkeypatch.context() as patch:
        patch.setattr(row_updates, "LEAST", SIZE * WIDTH + 1)
        losses, dense = train(optimizer)
        assert not by_rows()
    layouts = [(1, "consistent", None), *((n, view, None) for n in (2, 4) for view in ("consistent", "mirrored"))]
    layouts += [(n, "consistent", split(axis)) for n, axis in ((2, 0), (4, 0), (2, 1))]
    for devices, view, distribute in layouts:
        on(devices)
        same(train(optimizer, view, distribute), (losses, dense), f"{devices} devices, {view}, {distribute}")


LAZY: dict[str, Callable[[], Any]] = {
    "sgdw": lambda: flow.optimizer.SGDW(constant(0.1), momentum=0.9, weight_decay=0.1),
    "lazy adam": lambda: flow.optimizer.LazyAdam(constant(0.1)),
    "rmsprop": lambda: flow.optimizer.RMSProp(constant(0.1)),
}


def train_lazily(optimizer: str, view: str = "consistent", distribute: Any = None) -> dict[str, Any]:
    """Return the variables after two steps of a job with rows that a step does not read.

    In view "uneven" the parts have different lengths.
    """
    config = flow.function_config()
    config.indexed_slices_optimizer_conf({"include_op_names": {"op_name": ["table"]}})
    config.default_logical_view(flow.scope.consistent_view() if view == "consistent" else flow.scope.mirrored_view())
    declared = tp.ListNumpy if view == "uneven" else tp.Numpy

    @flow.global_function(type="train", function_config=config)
    def job(ids: declared.Placeholder((4, 2), dtype=flow.int32)) -> tp.Numpy:  # type: ignore[name-defined]
        table = flow.get_variable("table", (12, 3), flow.float64, flow.random_normal_initializer(), distribute=distribute or broadcast())
        loss = flow.math.reduce_sum(flow.math.square(flow.gather(table, ids)), [1, 2])
        LAZY[optimizer]().minimize(loss)
        return loss

    for step in range(2):
        ids = np.array([[1, 5], [1, 2], [7, 1], [2, 9]], np.int32) + step
        job(np.split(ids, [3]) if view == "uneven" else ids)
    return {name: value.numpy() for name, value in flow.get_all_variables().items()}


@pytest.mark.parametrize("optimizer", LAZY)
def test_rows_without_reads_do_not_change(on: Begin, optimizer: str) -> None:
    on(1)
    expected = train_lazily(optimizer)
    untouched = [0, 4, 11]
    first = sorted(set(range(12)) - set(untouched))
    slots = {name: value for name, value in expected.items() if name.startswith("table-")}
    assert slots and all((value[untouched] == 0).all() and (value[first] != 0).all() for value in slots.values())
    for devices, view, distribute in ((2, "consistent", None), (2, "consistent", split(0)), (2, "mirrored", None), (2, "uneven", None)):
        on(devices)
        variables = train_lazily(optimizer, view, distribute)
        for name, value in expected.items():
            np.testing.assert_allclose(variables[name], value, rtol=1e-12, err_msg=f"{name}: {view}, {distribute}")


def test_a_lazy_update_of_a_dense_gradient_prints_a_notice(on: Begin, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    on(1)
    monkeypatch.setitem(LAZY, "lamb", lambda: flow.optimizer.LAMB(constant(0.1)))
    train_lazily("lamb")
    assert "indexed_slices_optimizer_conf names table, but all rows are updated" in capsys.readouterr().err
    on(1)
    config = flow.function_config()
    config.indexed_slices_optimizer_conf({"op_name": ["table"]})
    flow.global_function(type="train", function_config=config)(lambda: None)
    with pytest.raises(flow.JobError, match=r"must have the form .*include_op_names"):
        flow.get_all_variables()


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
