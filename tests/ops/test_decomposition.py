"""Decompositions compute the same outputs as their ops, and preserve splits."""

from __future__ import annotations

from typing import Any

import laws
import numpy as np
import pytest

from jobflow import scope
from jobflow.ops.op import Op, Sample

WRITTEN = [cls for cls in laws.concrete_ops() if cls.decompose is not Op.decompose]
CASES = [sample for cls in WRITTEN for sample in cls.samples()]


def test_ops_with_a_whole_axis_have_decompositions() -> None:
    names = {cls.__name__ for cls in WRITTEN}
    assert {"Softmax", "LogSoftmax", "CausalSoftmax", "SparseSoftmaxCrossEntropy", "SoftmaxCrossEntropy", "LayerNorm", "L2Normalize"} <= names
    assert {"SoftmaxGrad", "LogSoftmaxGrad", "SoftmaxCrossEntropyGrad", "LayerNormGrad", "RowStatisticsGrad", "L2NormalizeGrad"} <= names


def written(sample: Sample) -> list[Any]:
    with scope.using(interpreter=laws.Immediate()):
        return [output.array for output in sample.op.decompose(*map(laws.Result, sample.arrays)) or ()]  # type: ignore[attr-defined]


@pytest.mark.parametrize("sample", CASES, ids=str)
def test_decompositions_equal_their_ops(sample: Sample) -> None:
    expected = laws.run(sample.op, sample.arrays)
    outputs = written(sample)
    assert len(outputs) == len(expected)
    for ours, theirs in zip(outputs, expected, strict=True):
        laws.close(ours, theirs, 1e-12, laws.magnitude(theirs), str(sample))


def test_fully_masked_rows_are_zero() -> None:
    blind = [s for s in CASES if "sees nothing" in str(s)]
    assert {type(s.op).__name__ for s in blind} == {"CausalSoftmax", "Softmax"}
    for sample in blind:
        (y,) = written(sample)
        assert np.isfinite(y).all() and (y == 0).all(axis=-1).sum() == 1
