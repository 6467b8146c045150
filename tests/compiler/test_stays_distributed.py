"""Tests that split tensors stay split: no large tensor is gathered, forward or backward, and results equal those of one rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from traced import Bound, arrays_like, evaluate, trace, world_of

from jobflow.compiler.compile import distribute
from jobflow.compiler.front.trace import Tracer
from jobflow.compiler.layouts.box import Reroute
from jobflow.core.layout import B, Layout, Placement, S, Sbp, Split
from jobflow.core.types import TensorType, float64, int32
from jobflow.graph.ir import Graph, Physical, Variable
from jobflow.ops.activation import gelu, relu, tanh
from jobflow.ops.arithmetic import multiply
from jobflow.ops.batch_norm import batch_norm_train
from jobflow.ops.conv import conv
from jobflow.ops.index import gather
from jobflow.ops.layout_ops import to_layout
from jobflow.ops.loss import softmax_cross_entropy, sparse_cross_entropy, sparse_softmax_cross_entropy
from jobflow.ops.matmul import bias_add, matmul
from jobflow.ops.norm import l2_normalize, layer_norm
from jobflow.ops.reduce import reduce_mean, reduce_sum
from jobflow.ops.softmax import causal_softmax, log_softmax, softmax
from jobflow.ops.source import Constant

ROWS, INSIDE, WIDE = 8, 6, 50
MESHES = [(2,), (3,), (4,), (2, 2)]


@dataclass
class Program:
    """The functions of a case; on a mesh of two dimensions, batches are split along the outer and models along the inner one."""

    tracer: Tracer

    def argument(self, name: str, *shape: int, dtype: Any = float64) -> Any:
        return self.tracer.input(name, TensorType(shape, dtype))

    def weight(self, name: str, *shape: int, sbp: Sbp = B) -> Any:
        outer = (B,) * (len(self.tracer.placement.mesh) - 1)
        return self.tracer.variable(
            Variable(name, TensorType(shape, float64), Constant(shape, float64, 0.0), self.tracer.placement, (*outer, sbp), True)
        )

    def hint(self, x: Any, sbp: Sbp) -> Any:
        outer: tuple[Any, ...] = (None,) * (len(self.tracer.placement.mesh) - 1)
        return to_layout(x, *outer, sbp, requested_by="with_distribute")

    def wide(self) -> Any:
        """Return [ROWS, WIDE], split along WIDE: a dense layer whose columns are split."""
        return matmul(self.argument("x", ROWS, INSIDE), self.weight("w", INSIDE, WIDE, sbp=S(1)))


def weighed(p: Program, y: Any) -> Any:
    """Return a loss in which every element has a different weight."""
    return reduce_mean(multiply(y, tanh(y)))


def class_split_cross_entropy(p: Program) -> Any:
    return reduce_mean(sparse_softmax_cross_entropy(p.wide(), p.argument("labels", ROWS, dtype=int32)))


def class_split_cross_entropy_with_hint(p: Program) -> Any:
    return sparse_softmax_cross_entropy(p.hint(p.wide(), S(1)), p.argument("labels", ROWS, dtype=int32))


def class_split_softmax(p: Program) -> Any:
    return weighed(p, softmax(p.hint(p.wide(), S(1))))


def class_split_log_softmax(p: Program) -> Any:
    return weighed(p, log_softmax(p.hint(p.wide(), S(1))))


def class_split_probabilities(p: Program) -> Any:
    return reduce_mean(sparse_cross_entropy(softmax(p.hint(p.wide(), S(1))), p.argument("labels", ROWS, dtype=int32)))


def class_split_distributions(p: Program) -> Any:
    labels = p.hint(softmax(matmul(p.argument("z", ROWS, INSIDE), p.weight("v", INSIDE, WIDE, sbp=S(1)))), S(1))
    return reduce_sum(softmax_cross_entropy(p.hint(p.wide(), S(1)), labels))


def layer_norm_over_a_split_axis(p: Program) -> Any:
    y = layer_norm(p.hint(p.wide(), S(1)), p.weight("gamma", WIDE, sbp=S(0)), p.weight("beta", WIDE), 1)
    return weighed(p, y)


def l2_norm_over_a_split_axis(p: Program) -> Any:
    return weighed(p, l2_normalize(p.hint(p.wide(), S(1)), 1))


def keys_split(p: Program) -> Any:
    scores = matmul(p.argument("q", 2, 5, INSIDE), p.weight("k", INSIDE, WIDE, sbp=S(1)))
    return weighed(p, causal_softmax(p.hint(scores, S(2)), 0.7, 20))


def columns_then_rows(p: Program) -> Any:
    h = relu(bias_add(p.wide(), p.weight("b", WIDE, sbp=S(0))))
    return weighed(p, bias_add(matmul(h, p.weight("v", WIDE, INSIDE, sbp=S(0))), p.weight("c", INSIDE)))


def vocabulary_split_embedding(p: Program) -> Any:
    rows = gather(p.weight("table", 3 * WIDE, INSIDE, sbp=S(0)), p.argument("ids", ROWS, dtype=int32))
    return weighed(p, matmul(rows, p.weight("v", INSIDE, 3)))


def embedding_split_by_columns(p: Program) -> Any:
    rows = gather(p.weight("table", WIDE, 30, sbp=S(1)), p.argument("ids", ROWS, dtype=int32))
    return weighed(p, matmul(rows, p.weight("v", 30, 3, sbp=S(0))))


def tied_vocabulary(p: Program) -> Any:
    """Look up words in a table and score them with the same table."""
    table, ids = p.weight("table", 3 * WIDE, INSIDE, sbp=S(0)), p.argument("ids", ROWS, dtype=int32)
    scores = matmul(tanh(gather(table, ids)), table, transpose_b=True)
    return reduce_mean(sparse_softmax_cross_entropy(scores, ids))


def sequence_split_layer_norm(p: Program) -> Any:
    x = p.hint(p.argument("x", 4, 9, 40), S(1))
    y = gelu(layer_norm(x, p.weight("gamma", 40), p.weight("beta", 40), 2))
    return weighed(p, y)


def channel_split_convolution(p: Program) -> Any:
    y = conv(p.argument("x", 4, 2, 5, 5), p.weight("w", 14, 2, 3, 3, sbp=S(0)), padding="same")
    y, _, _ = batch_norm_train(y, p.weight("gamma", 14, sbp=S(0)), p.weight("beta", 14, sbp=S(0)))
    return weighed(p, conv(relu(y), p.weight("v", 2, 14, 3, 3, sbp=S(1)), padding="same"))


#: the case, and the bytes from which a tensor is large: larger than vectors, batches of INSIDE numbers and data-parallel variables
CASES: list[tuple[Callable[[Program], Any], int]] = [
    (class_split_cross_entropy, 8 * INSIDE * WIDE),
    (class_split_cross_entropy_with_hint, 8 * INSIDE * WIDE),
    (class_split_softmax, 8 * INSIDE * WIDE),
    (class_split_log_softmax, 8 * INSIDE * WIDE),
    (class_split_probabilities, 8 * INSIDE * WIDE),
    (class_split_distributions, 8 * INSIDE * WIDE),
    (layer_norm_over_a_split_axis, 8 * INSIDE * WIDE),
    (l2_norm_over_a_split_axis, 8 * INSIDE * WIDE),
    (keys_split, 8 * INSIDE * WIDE),
    (columns_then_rows, 8 * INSIDE * WIDE),
    (vocabulary_split_embedding, 8 * INSIDE * WIDE),
    (embedding_split_by_columns, 8 * 30 * ROWS),
    (tied_vocabulary, 8 * INSIDE * WIDE),
    (sequence_split_layer_norm, 8 * 9 * 40),
    (channel_split_convolution, 8 * 14 * 2 * 9),
]


def built(case: Callable[[Program], Any], mesh: tuple[int, ...]) -> Graph:
    return trace(lambda tracer: case(Program(tracer)), Placement("cpu", tuple(range(int(np.prod(mesh)))), mesh), train=True)


def put_together(physical: Physical) -> list[tuple[str, int, str]]:
    """Return (value, bytes, route) for every tensor that is gathered."""
    gathered = []
    for node in physical.graph.nodes:
        if isinstance(node.op, Reroute):
            for value in node.inputs:
                before, after = node.op.source, node.op.target
                if any(isinstance(a, Split) and b == B for a, b in zip(before.sbp, after.sbp, strict=True)):
                    gathered.append((value.name, value.tensor_type.nbytes, str(node.op)))
    return gathered


@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: "x".join(map(str, mesh)))
@pytest.mark.parametrize(("case", "large"), CASES, ids=lambda x: getattr(x, "__name__", ""))
def test_no_large_tensor_is_gathered(case: Callable[[Program], Any], large: int, mesh: tuple[int, ...]) -> None:
    physical = distribute(built(case, mesh))
    assert [row for row in put_together(physical) if row[1] >= large] == []
    sizes = [value.tensor_type.nbytes for value in physical.graph.values()]
    split = [
        v for v in physical.graph.values() if isinstance(layout := physical.layouts[v], Layout) and any(isinstance(s, Split) for s in layout.sbp[-1:])
    ]
    assert max(sizes) >= large and any(value.tensor_type.nbytes >= large for value in split), "there is something large, and it is split"


@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: "x".join(map(str, mesh)))
@pytest.mark.parametrize("case", [case for case, _ in CASES], ids=lambda case: case.__name__)
def test_results_equal_those_of_one_rank(case: Callable[[Program], Any], mesh: tuple[int, ...]) -> None:
    graph = built(case, mesh)
    random = np.random.default_rng(1)
    names = [name for name, variable in graph.variables.items() if variable.trainable]
    variables = dict(zip(names, arrays_like(*(graph.variables[name].type for name in names)), strict=True))
    arguments: dict[str, Any] = {}
    for value in graph.inputs:
        whole = value.tensor_type.dtype is int32
        arguments[value.name] = random.integers(0, WIDE, value.shape).astype(np.int32) if whole else random.normal(size=value.shape)
    expected, new = evaluate(graph, arguments, variables)
    with world_of(int(np.prod(mesh))) as world:
        bound = Bound(world, distribute(graph))
        bound.write(variables)
        for ours, theirs in zip(bound.run(**arguments), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11)
        for name in names:
            np.testing.assert_allclose(bound.read(name), new[name], rtol=1e-9, atol=1e-11, err_msg=name)
        bound.close()
