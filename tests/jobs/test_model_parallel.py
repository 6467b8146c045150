"""Layers split over devices in the legacy API: no large tensor is gathered, and results equal one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp
from jobflow.compiler.layouts.box import Reroute
from jobflow.core.layout import B, Split
from jobflow.engine.session import current_session

ROWS, INSIDE, WIDE = 6, 5, 70
X = np.random.default_rng(0).standard_normal((ROWS, INSIDE)).astype(np.float64)
LABELS = np.array([3, 69, 0, 41, 7, 20], np.int32)
#: bytes from which a tensor is large: what has WIDE numbers per row or per input
LARGE = 8 * min(ROWS, INSIDE) * WIDE
split, broadcast = flow.distribute.split, flow.distribute.broadcast
normal = flow.random_normal_initializer(stddev=0.3)


def variable(name: str, *shape: int, **more: Any) -> Any:
    return flow.get_variable(name, shape, dtype=flow.float64, initializer=normal, **more)


def columns_by_model_distribute(x: Any, labels: Any) -> Any:
    """Split the units of a dense layer, and the classes of the loss."""
    logits = flow.layers.dense(x, WIDE, kernel_initializer=normal, model_distribute=split(0), name="out")
    return flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


def columns_by_hint(x: Any, labels: Any) -> Any:
    w = variable("w", WIDE, INSIDE, distribute=split(0))
    logits = flow.matmul(x.with_distribute(broadcast()), w.with_distribute(split(0)), transpose_b=True)
    return flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits.with_distribute(split(1)))


def columns_then_rows(x: Any, labels: Any) -> Any:
    """Apply two layers with tensor parallelism, without communication between them."""
    h = flow.layers.dense(x, WIDE, activation=flow.math.tanh, kernel_initializer=normal, model_distribute=split(0), name="up")
    y = flow.matmul(h, variable("down", WIDE, 4, distribute=split(0)))
    return flow.math.reduce_mean(flow.math.square(y))


def vocabulary(x: Any, labels: Any) -> Any:
    """Split a table by rows; use it for lookups and for scores."""
    table = variable("table", WIDE, INSIDE, distribute=split(0))
    embedded = flow.gather(table, labels)
    return flow.nn.sparse_softmax_cross_entropy_with_logits(labels, flow.matmul(embedded + x, table, transpose_b=True))


def layer_norm_over_what_is_split(x: Any, labels: Any) -> Any:
    h = flow.layers.dense(x, WIDE, kernel_initializer=normal, model_distribute=split(0), name="up")
    return flow.math.reduce_mean(flow.math.square(flow.layers.layer_norm(h.with_distribute(split(1)), name="ln") + h))


def classes_by_the_function_of_that_name(x: Any, labels: Any) -> Any:
    w = variable("w", INSIDE, WIDE, distribute=split(1))
    return flow.nn.distributed_sparse_softmax_cross_entropy_with_logits(labels, flow.matmul(x, w))


MODELS = [
    columns_by_model_distribute, columns_by_hint, columns_then_rows, vocabulary, layer_norm_over_what_is_split, classes_by_the_function_of_that_name,
]  # fmt: skip


def train(model: Callable[[Any, Any], Any], hierarchy: tuple[int, ...] | None = None) -> tuple[list[Any], dict[str, Any]]:
    """Return the losses of three steps, and the variables after them."""
    devices = f"0:0-{int(np.prod(hierarchy)) - 1}" if hierarchy else None
    config = flow.function_config()
    config.default_data_type(flow.float64)
    if devices is not None:
        config.default_placement_scope(flow.scope.placement("cpu", devices, hierarchy))

    @flow.global_function(type="train", function_config=config)
    def job(
        x: tp.Numpy.Placeholder(X.shape, dtype=flow.float64),  # type: ignore[valid-type]
        labels: tp.Numpy.Placeholder(LABELS.shape, dtype=flow.int32),  # type: ignore[valid-type]
    ) -> tp.Numpy:
        loss = model(x, labels)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.5]), momentum=0.9).minimize(loss)
        return loss

    losses = [job(X, LABELS) for _ in range(3)]
    return losses, {name: value.numpy() for name, value in flow.get_all_variables().items()}


def put_together() -> list[str]:
    """Return the large tensors that the compiled job gathers."""
    copies = []
    for compiled in current_session()._compiled.values():
        for node in compiled.programs[0].graph.nodes:
            if isinstance(node.op, Reroute) and any(
                isinstance(a, Split) and b == B for a, b in zip(node.op.source.sbp, node.op.target.sbp, strict=True)
            ):
                copies += [f"{value.name} {value.tensor_type} {node.op}" for value in node.inputs if value.tensor_type.nbytes >= LARGE]
    return copies


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_split_layers_train_as_whole_ones(on: Callable[[int], None], model: Callable[[Any, Any], Any]) -> None:
    on(1)
    losses, state = train(model)
    for devices in (2, 3, 4):
        on(devices)
        ours, variables = train(model)
        assert put_together() == [], f"on {devices} devices"
        np.testing.assert_allclose(ours, losses, rtol=1e-10, atol=1e-12, err_msg=f"{devices} devices")
        for name, value in variables.items():
            np.testing.assert_allclose(value, state[name], rtol=1e-9, atol=1e-12, err_msg=f"{name} on {devices} devices")


def hybrid(x: Any, labels: Any) -> Any:
    """Split samples along the outer mesh dimension, units and classes along the inner one."""
    x = flow.hierarchical_parallel_cast(x, ["S(0)", "B"])
    w = variable("w", WIDE, INSIDE, parallel_distribution=["B", "S(0)"])
    h = flow.nn.bias_add(flow.matmul(x, w, transpose_b=True), variable("b", WIDE, parallel_distribution=["B", "S(0)"]))
    logits = flow.hierarchical_parallel_cast(flow.math.tanh(h), ["S(0)", "S(1)"])
    return flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


def test_samples_and_classes_on_a_mesh(on: Callable[[int], None]) -> None:
    on(1)
    losses, state = train(hybrid_on_one_dimension)
    on(4)
    ours, variables = train(hybrid, (2, 2))
    assert put_together() == []
    np.testing.assert_allclose(ours, losses, rtol=1e-10)
    for name, value in variables.items():
        np.testing.assert_allclose(value, state[name], rtol=1e-9, atol=1e-12, err_msg=name)


def hybrid_on_one_dimension(x: Any, labels: Any) -> Any:
    h = flow.nn.bias_add(flow.matmul(x, variable("w", WIDE, INSIDE), transpose_b=True), variable("b", WIDE))
    return flow.nn.sparse_softmax_cross_entropy_with_logits(labels, flow.math.tanh(h))
