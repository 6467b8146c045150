"""Ops with a formula over an index space: their costs, the layout of their operands, and their three implementations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import laws
import numpy as np
import pytest

import jobflow as flow
import jobflow.nn.functional as F
from jobflow import nn
from jobflow.core.types import TensorType, float32, int64, type_of
from jobflow.expressions import language as f
from jobflow.expressions.cost import cost, flops_per_element
from jobflow.expressions.index_space import LOOKED_UP, IndexSpace, broadcasting, space_of
from jobflow.kernels import compiled_loops, half
from jobflow.kernels.cpu.row_calls import row_calls
from jobflow.ops.indexed import Indexed
from jobflow.ops.norm import LayerNorm
from jobflow.ops.op import types_tuple
from jobflow.ops.softmax import Softmax
from jobflow.runtime.device.numpy_device import CpuDevice

X = TensorType((4, 6), float32)


def test_cost_of_expressions() -> None:
    x = f.element(0, float32)
    assert flops_per_element([x]) == 0
    assert cost([x * f.sigmoid(x)], 1000, [TensorType((1000,), float32)] * 2) == cost([x * f.sigmoid(x)], 1000, [TensorType((2000,), float32)])
    assert cost([x * x, x * x + 1.0], 10, [X]).flops == 20, "what two outputs share counts once"
    assert cost([x], 24, [X, X]).bytes == 2 * 4 * 24
    formula = Softmax(1).expression(X)
    assert formula is not None
    assert 20 < flops_per_element(formula) < 40


def test_letters_determine_the_axes_of_operands() -> None:
    space = space_of("nchw->c", [TensorType((2, 3, 4, 5), float32), TensorType((3,), float32)], last="c")
    assert (space.sizes, space.operands) == ((2, 4, 5, 3), ((0, 3, 1, 2), (3,)))
    x = np.arange(120.0).reshape(2, 3, 4, 5)
    view = space.view(0, x)
    assert view is not None
    assert np.shares_memory(view, x)
    np.testing.assert_array_equal(view, x.transpose(0, 2, 3, 1))
    assert broadcasting(TensorType((3, 1), float32), X.with_shape((5, 3, 4))).operands == ((1, None), (0, 1, 2))


def test_a_row_of_two_axes_is_merged_if_strides_allow() -> None:
    space = LayerNorm(1).index_space(*(TensorType(shape, float32) for shape in ((3, 2, 4), (2, 4), (2, 4))))
    assert isinstance(space, IndexSpace)
    assert space.shape == (3, 8)
    x = np.arange(24.0, dtype=np.float32).reshape(3, 2, 4)
    view = space.view(0, x)
    assert view is not None
    assert view.shape == (3, 8)
    turned = np.asfortranarray(x)
    assert space.view(0, turned) is None
    np.testing.assert_array_equal(space.read(0, turned), x.reshape(3, 8))


def test_an_index_is_counted_from_the_last_axis() -> None:
    assert f.index(-1).dtype is int64
    with pytest.raises(Exception, match="the axis must be negative"):
        f.index(0)


@pytest.mark.parametrize("entries", [1, 5])
def test_the_axis_of_a_table_is_no_part_of_a_row(entries: int) -> None:
    """The case of looked-up elements that are summed afterwards."""
    table = np.arange(6.0 * entries).reshape(2, entries, 3)
    space = IndexSpace((2, 3), ((0, LOOKED_UP, 1), (0, 1)), row=2)
    values = space.read(0, table)
    assert values.shape == (6, entries) and values[4].tolist() == table[1, :, 1].tolist()
    assert space.view(1, np.zeros((2, 3))).shape == (6,)  # type: ignore[union-attr]


TABLE, PLACES = np.random.default_rng(3).standard_normal((20, 16)), np.arange(70) * 7 % 20


@pytest.mark.parametrize(
    "reduced", [lambda x: x.sum(-1), lambda x: x.abs().amax(-1), lambda x: x.sum(0), lambda x: x.softmax(-1).sum(0), lambda x: x.sum()]
)
def test_rows_of_a_table_without_a_row_axis_in_the_indices(reduced: Callable[[Any], Any]) -> None:
    """The indices of the lookup have no axis for the row."""

    class Graph(nn.Graph):
        def build(self, table: Any, places: Any) -> Any:
            return reduced(F.embedding(places, table)), reduced(table.t()[:, places])

    table, places = flow.tensor(TABLE), flow.tensor(PLACES)
    for result, expected in zip(Graph()(table, places), (reduced(flow.tensor(TABLE[PLACES])), reduced(flow.tensor(TABLE.T[:, PLACES]))), strict=True):
        np.testing.assert_allclose(result.numpy(), expected.numpy(), 1e-12, 1e-12)


def test_compiled_loops_equal_the_kernels() -> None:
    """In float32 and half precision, up to rounding; every op with an expression has a loop if columns are adjacent."""
    loop = compiled_loops.CompiledLoop(fewest=1)
    samples = [s for cls in laws.concrete_ops() if issubclass(cls, Indexed) for s in cls.samples()]
    assert len(samples) > 50
    strided: set[str] = set()
    for sample in samples:
        for kind, tolerance in (("float32", 3e-6), ("float16", 2e-3)):
            arrays = [a.astype(kind) if a.dtype.kind == "f" else a for a in sample.arrays]
            expected = laws.empties(types_tuple(sample.op.infer(*map(type_of, arrays))), 0)
            outputs = [np.empty_like(y) for y in expected]
            with np.errstate(all="ignore"):
                half.run(sample.op, arrays, expected)
            refused = loop.refuses(sample.op, arrays, outputs)
            if refused is not None and "in memory" in refused:
                strided.add(type(sample.op).__name__)
                continue
            assert refused is None, f"{sample} in {kind}"
            for function, arguments in loop.bind(sample.op, CpuDevice(), arrays, outputs):
                function(*arguments)
            for ours, theirs in zip(outputs, expected, strict=True):
                np.testing.assert_allclose(ours, theirs, tolerance, tolerance, err_msg=f"{sample} in {kind}")
    assert strided == {
        *("AxisSum", "BatchNormalizeSums", "CenteredSums", "NormalizeSums"),  # sums over axes with channels that are not the last axis
        *("ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "SumTo"),  # over the first axis, or axes between others
    }


def test_operands_without_contiguous_rows_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands of every op with their first axis innermost, in the tiers "numpy" and "llvm", without the kernel."""
    monkeypatch.setattr(compiled_loops, "FEWEST", 1)
    loop, device = compiled_loops.CompiledLoopOnCopies(), CpuDevice()
    by_calls: set[str] = set()
    for sample in (s for cls in laws.concrete_ops() if issubclass(cls, Indexed) for s in cls.samples()):
        arrays = [np.array(a, "float32" if a.dtype.kind == "f" else None, order="F") for a in sample.arrays]
        types = tuple(map(type_of, arrays))
        expected = laws.empties(types_tuple(sample.op.infer(*types)), 0)
        formulas, space = sample.op.expression(*types), sample.op.index_space(*types)
        assert formulas is not None
        with np.errstate(all="ignore"):
            half.run(sample.op, arrays, expected)
            outputs = [np.full_like(y, 7, order="F") for y in expected]
            refused = loop.refuses(sample.op, arrays, outputs)
            assert refused in (None, "copying costs more than the computation", "it reads a table, which is not copied"), f"{sample}"
            loops = [] if refused else [loop.bind(sample.op, device, arrays, outputs)]
            implementations = [*loops, row_calls(device, formulas, space, {}, arrays, outputs)]
            for calls in (calls for calls in implementations if calls is not None):
                for function, arguments in calls:
                    function(*arguments)
                for ours, theirs in zip(outputs, expected, strict=True):
                    np.testing.assert_allclose(ours, theirs, 3e-6, 3e-6, err_msg=f"{sample}")
                    ours.fill(7)
        by_calls.update(type(sample.op).__name__ for calls in implementations[-1:] if calls is not None)
    assert {"LayerNorm", "LayerNormGrad", "Softmax", "AxisSum", "BatchNormalize"} <= by_calls, by_calls
