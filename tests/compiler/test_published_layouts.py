"""Tests that layouts equal those measured on the legacy system, on two devices and on two by two, except for recorded differences.

`data/published_layouts.json` contains the measurements: layouts of the inputs -> layout of the output.  "S0,B" is S(0) along the outer and B
along the inner mesh dimension.  The differences are the rows of a table in docs/internals/decisions/0006.  Every row must still differ.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from deliberate import differences, idle
from traced import layout_text

from jobflow import scope
from jobflow.compiler.front.trace import Tracer
from jobflow.compiler.layouts.shard import Decision, Sharding
from jobflow.core.layout import B, Layout, P, Placement, S, Sbp
from jobflow.core.types import TensorType, dtype_named, int32
from jobflow.graph.ir import Graph, Node
from jobflow.ops import activation, arithmetic, axes, broadcast, compare, conv, index, loss, reduce, scalar, slices, softmax
from jobflow.ops import matmul as linalg
from jobflow.ops import transcendental as functions
from jobflow.ops.elementwise_loss import sigmoid_cross_entropy, smooth_l1
from jobflow.ops.source import Input

HERE = Path(__file__).parent
RECORD = HERE.parents[1] / "docs" / "internals" / "decisions" / "0006-layout-choice.md"
PUBLISHED = json.loads((HERE / "data" / "published_layouts.json").read_text(encoding="utf-8"))
MESHES = {"1d": Placement("cpu", (0, 1)), "2d": Placement("cpu", (0, 1, 2, 3), (2, 2))}
MARKS: dict[str, Sbp] = {"B": B, "P": P, **{f"S{axis}": S(axis) for axis in range(4)}}


def mean(x: Any) -> Any:
    return reduce.reduce_mean(x)


#: the measured ops that jobflow supports, as the same chain of core ops
OPS: dict[str, Callable[..., Any]] = {
    "matmul_tb": lambda a, b: linalg.matmul(a, b, transpose_b=True),
    "add": arithmetic.add,
    "div": arithmetic.divide,
    "maximum": arithmetic.maximum,
    "greater": compare.greater,
    "mul_row_1x6": arithmetic.multiply,
    "sub_col_4x1": arithmetic.subtract,
    "add_3d_2d": arithmetic.add,
    "add_row_vector": arithmetic.add,
    "add_scalar": lambda x: scalar.shift(x, 2.0),
    "mul_scalar": lambda x: scalar.scale(x, 2.0),
    "div_scalar": lambda x: scalar.scale(x, 0.5),
    "pow2": functions.square,
    "abs": functions.absolute,
    "log": functions.log,
    "sqrt": functions.sqrt,
    "tanh": activation.tanh,
    "sigmoid": activation.sigmoid,
    "relu": activation.relu,
    "gelu": activation.gelu,
    "silu": activation.swish,
    "clamp": lambda x: scalar.clip(x, -1.0, 1.0),
    "floor": scalar.floor,
    "cast_i32": lambda x: scalar.cast(x, int32),
    "detach": scalar.detach,
    "zeros_like": lambda x: scalar.fill_like(x, 0.0),
    "ones_like": lambda x: scalar.fill_like(x, 1.0),
    "dropout_eval": scalar.identity,
    "logical_not": compare.logical_not,
    "softmax_last": softmax.softmax,
    "softmax_dim0": lambda x: softmax.softmax(x, 0),
    "log_softmax_last": softmax.log_softmax,
    "sum_1_keep": lambda x: reduce.reduce_sum(x, (1,), True),
    "sum_all": reduce.reduce_sum,
    "sum_0": lambda x: reduce.reduce_sum(x, (0,)),
    "sum_neg1_3d": lambda x: reduce.reduce_sum(x, (1, 2)),
    "mean_all": mean,
    "max_all": reduce.reduce_max,
    "max_0": lambda x: reduce.reduce_max(x, (0,)),
    "max_1": lambda x: reduce.reduce_max(x, (1,)),
    "min_1": lambda x: reduce.reduce_min(x, (1,)),
    "prod_1": lambda x: reduce.reduce_prod(x, (1,)),
    "argmax_0": lambda x: reduce.argmax(x, 0),
    "argmax_1": lambda x: reduce.argmax(x, 1),
    "norm_all": lambda x: functions.sqrt(reduce.square_sum(x)),
    "reshape_4x6_to_24": lambda x: axes.reshape(x, (24,)),
    "reshape_4x6_to_2x2x6": lambda x: axes.reshape(x, (2, 2, 6)),
    "flatten_img": lambda x: axes.reshape(x, (4, 150)),
    "transpose_01": lambda x: axes.transpose(x, (1, 0)),
    "permute_210": lambda x: axes.transpose(x, (2, 1, 0)),
    "unsqueeze_0": lambda x: axes.expand_dims(x, 0),
    "unsqueeze_1": lambda x: axes.expand_dims(x, 1),
    "squeeze": lambda x: axes.squeeze(x, (1,)),
    "expand_col": lambda x: broadcast.broadcast_to(x, (4, 6)),
    "slice_1": lambda x: slices.slice_(x, (None, 1), (None, 4)),
    "slice_full_step": lambda x: slices.slice_(x, (0, 0), (4, 6), (2, 1)),
    "index_int": lambda x: axes.squeeze(slices.slice_(x, (1, None), (2, None)), (0,)),
    "narrow_1": lambda x: slices.slice_(x, (None, 1), (None, 4)),
    "chunk_1": lambda x: slices.slice_(x, (None, 0), (None, 3)),
    "flip_0": lambda x: slices.flip(x, (0,)),
    "tile": lambda x: axes.tile(x, (1, 2)),
    "pad_last": lambda x: slices.pad(x, [(0, 0), (1, 1)]),
    "index_select_0": index.gather,
    "flow_gather_op": index.gather,
    "embedding": index.gather,
    "conv2d": lambda x, w: conv.conv(x, w, padding="same"),
    "adaptive_avg_pool2d": lambda x: scalar.scale(reduce.reduce_sum(x, (2, 3), True), 1 / 25),
    "sparse_softmax_xent": loss.sparse_softmax_cross_entropy,
    "mse_loss_none": arithmetic.squared_difference,
    "mse_loss_mean": lambda x, y: mean(arithmetic.squared_difference(x, y)),
    "smooth_l1_mean": lambda x, y: mean(smooth_l1(x, y)),
    "bce_logits_mean": lambda x, y: mean(sigmoid_cross_entropy(x, y)),
}
#: measured but not compared: ops that jobflow does not have, and compositions of other ops
ABSENT = {
    "masked_select": "results whose shape depends on data are for eager tensors",
    "cumsum_0": "no such core op",
    "topk": "no such core op",
    "sort_1": "no such core op",
    "setitem_slice": "tensors in jobs are not written",
    "triu": "its diagonal is counted from the other side, and the measured op moves everything to one device group first",
    "add_inplace": "tensors in jobs are not written",
    "linear_bias": "one op there, a product and a sum here",
    "dropout_p0_train": "drops by the run counter, a second input",
    "masked_fill": "made of a fill and a selection, so that three inputs vote",
    "norm_1": "another composition",
    "group_norm_noaffine": "another composition",
    "kl_div_mean": "another composition",
    "nll_loss_mean": "another composition",
    "cross_entropy_mean": "another composition",
    "cross_entropy_sum": "another composition",
    "cross_entropy_none": "another composition",
}


class FixedArgumentLayouts(Sharding):
    """Layout inference of a graph whose arguments have fixed layouts."""

    def __init__(self, graph: Graph, layouts: dict[str, Layout]) -> None:
        super().__init__(graph)
        self.argument_layouts = layouts

    def decide(self, node: Node) -> Decision | None:
        return Decision((), (self.argument_layouts[node.op.key],)) if isinstance(node.op, Input) else super().decide(node)


def type_named(printed: str) -> TensorType:
    name, sizes = re.fullmatch(r"(\w+)\[([\d,]*)\]", printed).groups()  # type: ignore[union-attr]
    return TensorType(tuple(map(int, filter(None, sizes.split(",")))), dtype_named(name))


@cache
def traced(op: str, types: tuple[str, ...], mesh: str) -> Graph:
    tracer = Tracer("job", MESHES[mesh])
    with scope.using(interpreter=tracer, placement=tracer.placement):
        return tracer.graph((OPS[op](*(tracer.input(f"x{i}", type_named(printed)) for i, printed in enumerate(types))),))


def chosen(op: str, types: Sequence[str], mesh: str, inputs: Sequence[str]) -> str:
    """Return the layout of the output."""
    graph = traced(op, tuple(types), mesh)
    layouts = {f"x{i}": Layout(MESHES[mesh], tuple(MARKS[mark] for mark in text.split(","))) for i, text in enumerate(inputs)}
    sharded = FixedArgumentLayouts(graph, layouts).sharded()
    return re.sub(r"S\((\d)\)", r"S\1", layout_text(sharded.layouts, sharded.graph.outputs[0]))


def mismatches(mesh: str, op: str) -> list[tuple[str, str, str]]:
    """Return (inputs, published layout, layout of jobflow) for every difference."""
    row, differences = PUBLISHED[mesh][op], []
    for line in row["chosen"]:
        inputs, published = line.split(" -> ")
        ours = chosen(op, row["types"], mesh, inputs.split())
        if ours != published:
            differences.append((inputs, published, ours))
    return differences


CASES = [(mesh, op) for mesh, table in PUBLISHED.items() for op in table if op not in ABSENT]


@pytest.mark.parametrize(("mesh", "op"), CASES)
def test_layouts_equal_the_measured_ones(mesh: str, op: str) -> None:
    rows = differences(RECORD, OPS, 7)
    unexplained = [case for case in mismatches(mesh, op) if not any(row.covers(op, case[0], case[2]) for row in rows)]
    assert not unexplained, f"{op} (inputs, published, ours): {unexplained}"


def test_every_measured_op_is_compared_or_listed() -> None:
    measured = {op for table in PUBLISHED.values() for op in table}
    assert measured == OPS.keys() | ABSENT.keys() and not OPS.keys() & ABSENT.keys()


def test_every_recorded_difference_still_differs() -> None:
    differing = [(op, inputs, ours) for mesh, op in CASES for inputs, _, ours in mismatches(mesh, op)]
    assert idle(differences(RECORD, OPS, 7), differing) == []
