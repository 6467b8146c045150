"""Ops that can be written in smaller ones give the same in them, and what the smaller ones split along is kept."""

from __future__ import annotations

from typing import Any

import laws
import numpy as np
import pytest

from jobflow import scope
from jobflow.ops.op import Op, Sample

WRITTEN = [cls for cls in laws.concrete_ops() if cls.decompose is not Op.decompose]
CASES = [sample for cls in WRITTEN for sample in cls.samples()]


def test_the_ops_that_keep_an_axis_whole_are_written() -> None:
    names = {cls.__name__ for cls in WRITTEN}
    assert {"Softmax", "LogSoftmax", "CausalSoftmax", "SparseSoftmaxCrossEntropy", "SoftmaxCrossEntropy", "LayerNorm", "L2Normalize"} <= names
    assert {"SoftmaxGrad", "LogSoftmaxGrad", "SoftmaxCrossEntropyGrad", "LayerNormGrad", "RowStatisticsGrad", "L2NormalizeGrad"} <= names


def written(sample: Sample) -> list[Any]:
    with scope.using(interpreter=laws.Immediate()):
        return [made.array for made in sample.op.decompose(*map(laws.Result, sample.arrays)) or ()]  # type: ignore[attr-defined]


@pytest.mark.parametrize("sample", CASES, ids=str)
def test_the_same_in_smaller_ops(sample: Sample) -> None:
    expected = laws.run(sample.op, sample.arrays)
    made = written(sample)
    assert len(made) == len(expected)
    for ours, theirs in zip(made, expected, strict=True):
        laws.close(ours, theirs, 1e-12, laws.magnitude(theirs), str(sample))


def test_rows_that_see_nothing_stay_zero() -> None:
    blind = [s for s in CASES if "sees nothing" in str(s)]
    assert {type(s.op).__name__ for s in blind} == {"CausalSoftmax", "Softmax"}
    for sample in blind:
        (y,) = written(sample)
        assert np.isfinite(y).all() and (y == 0).all(axis=-1).sum() == 1
