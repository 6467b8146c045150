"""Operations bound for a GPU, on a simulated CuPy whose kernels g++ compiles, equal NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_nvrtc
import host_cuda
import numpy as np
import pytest
from on_device import OPS, Bench, bound, cases, check_op, host_results, put

from jobflow.core.types import type_of
from jobflow.ops.op import Sample, types_tuple

pytestmark = pytest.mark.skipif(host_cuda.COMPILER is None, reason="there is no C++ compiler (g++)")

FULL = pytest.mark.full
BOUND = (
    *("ctc.CtcGreedyDecoder", "ctc.CtcLoss", "ctc.CtcLossGrad", "ctc.CtcPaths"),
    *("axes.Transpose", "index.BatchSegmentSum", "index.DimScatterAdd", "index.UnsortedSegmentSum", "layout_ops.PackPieces", "move.PadEdgesGrad"),
    *("move.Roll", "random_tensors.RandomInt", "random_tensors.RandomNormal", "random_tensors.TruncatedNormal", "row_update.RowUpdate"),
    *("running_extremes.CumExtreme", "scan.CumProdTail", "scan.CumSum", "scatter.Scatter", "scatter_reduce.ScatterMax", "search.SearchSorted"),
    *("recurrent.Gru", "recurrent.GruGrad", "recurrent.Lstm", "recurrent.LstmGrad", "recurrent.Rnn", "recurrent.RnnGrad"),
    *("slice_update.SliceWrite", "slices.Concat", "slices.SliceGrad", "source.Literal", "triangle.Tril", "cached_attention.WriteRows"),
    *("cached_attention.CachedAttention", "pool.MaxPoolPick", "sampled_classes.SampleClasses"),
)


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    monkeypatch.setenv("JOBFLOW_CACHE", str(tmp_path))
    with fake_nvrtc.installed(monkeypatch) as cupy:
        yield cupy


@pytest.mark.full
@pytest.mark.parametrize("name", BOUND)
def test_operation_equals_numpy(name: str, cupy: Any) -> None:
    check_op(cupy, OPS[name], "auto")


def first_case(name: str, **attributes: Any) -> tuple[Sample, list[Any]]:
    """Return the first sample of an operation in float32 with these attributes."""
    return next(
        (case, arrays)
        for case, arrays in cases(OPS[name])
        if all(vars(case.op)[key] == value for key, value in attributes.items()) and all(a.dtype != np.float64 for a in arrays)
    )


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("source.Literal", {}),
        pytest.param("index.UnsortedSegmentSum", {}, marks=FULL),
        pytest.param("row_update.RowUpdate", {"lazy": True}, marks=FULL),
    ],
)
def test_first_case_equals_numpy(name: str, attributes: dict[str, Any], cupy: Any) -> None:
    case, arrays = first_case(name, **attributes)
    expected = host_results(case.op, arrays)
    inputs = [put(cupy, a, np.copy) for a in arrays]
    types = types_tuple(case.op.infer(*map(type_of, arrays)))
    outputs = [inputs[case.op.alias[k]] if k in case.op.alias else cupy.empty(type.shape, type.dtype.numpy) for k, type in enumerate(types)]
    bound(case.op, Bench(cupy), inputs, outputs, "auto")
    for ours, theirs in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(ours.get(), theirs, 1e-5)
