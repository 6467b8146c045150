"""Tests that compiled recurrences over time, and their gradients, agree with the kernels of the operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from jobflow.core.types import type_of
from jobflow.kernels import registry
from jobflow.kernels.eager_calls import eager_calls
from jobflow.kernels.target import CPU, target_of
from jobflow.ops.op import types_tuple
from jobflow.ops.recurrent import Gru, Lstm, Recurrence, RecurrenceGrad, Rnn
from jobflow.runtime.device.numpy_device import CpuDevice

Array = np.ndarray[Any, Any]


def results_of(op: Recurrence | RecurrenceGrad, arrays: Sequence[Array], tier: str) -> dict[str, Array]:
    """Return the outputs by name, computed by the implementation that the tier selects."""
    outputs = [np.full(type.shape, np.nan, type.dtype.numpy) for type in types_tuple(op.infer(*map(type_of, arrays)))]
    target = CPU if tier == "numpy" else target_of("cpu", "llvm")
    name = registry.choose(op, target, arrays, outputs).implementation.name
    assert name == ("kernel" if tier == "numpy" else "recurrence gradient" if isinstance(op, RecurrenceGrad) else "recurrence")
    for function, arguments in registry.bind(op, target, CpuDevice(), arrays, outputs):
        function(*arguments)
    return dict(zip(op.results(), outputs, strict=True))


def agree(op: Recurrence | RecurrenceGrad, arrays: Sequence[Array], lengths: Array | None) -> dict[str, Array]:
    """Check that the compiled loop agrees with the kernel; return the results."""
    ours, expected = (results_of(op, arrays, tier) for tier in ("llvm", "numpy"))
    for name, values in expected.items():
        computed = ours[name]
        if name == "gates" and lengths is not None:  # activations after the last step of a sample are not read
            inside = (np.arange(len(values))[:, None] < lengths)[:, :, None]
            values, computed = np.where(inside, values, 0), np.where(inside, computed, 0)
        tolerance = (1e-12 if values.dtype == np.float64 else 2e-5) * max(1.0, float(np.abs(values).max()))
        np.testing.assert_allclose(computed, values, rtol=0, atol=tolerance, err_msg=f"{op} {name}")
    return expected


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        (Lstm(), "float32"),
        (Lstm(True, True, True), "float64"),
        (Gru(False, True, biased=True), "float32"),
        (Gru(True, True, True, True), "float64"),
        (Rnn(), "float32"),
        (Rnn(False, True, True, relu=True), "float64"),
    ],
    ids=lambda value: str(value),
)
def test_compiled_recurrences_agree_with_the_kernels(op: Recurrence, dtype: str) -> None:
    for steps, n, hidden in ((5, 13, 35), (1, 40, 64)):
        arrays = [a.astype(dtype) * 0.4 if a.dtype.kind == "f" else a for a in op.sample_inputs(steps, n, hidden)]
        lengths = np.random.default_rng(1).integers(1, steps + 1, n).astype(np.int32) if op.masked else None
        if lengths is not None:
            arrays[op.inputs().index("lengths")] = lengths
        results = agree(op, arrays, lengths)
        at = dict(zip(op.inputs(), arrays, strict=True)) | results
        for of in (("dy", "dh"), ("dh",)):
            gradient = op.gradient(of)
            at |= {name: np.random.default_rng(2).standard_normal(at[name[1:]].shape).astype(dtype) for name in of}
            agree(gradient, [at[name] for name in gradient.inputs()], lengths)


def test_eager_recurrences_are_compiled_at_their_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    op = Lstm()
    arrays = [a.astype(np.float32) for a in op.sample_inputs(5, 13, 35)]
    types = types_tuple(op.infer(*map(type_of, arrays)))
    expected = results_of(op, arrays, "llvm")
    monkeypatch.setattr(Lstm, "kernel", None)
    calls = eager_calls(op, target_of("cpu", "llvm"), [type_of(a) for a in arrays], types)
    for _ in range(3):
        outputs = [np.zeros(type.shape, np.float32) for type in types]
        calls.run(CpuDevice(), arrays, outputs)
        for name, values in zip(op.results(), outputs, strict=True):
            np.testing.assert_array_equal(values, expected[name])


def test_recurrences_of_few_elements_are_computed_by_numpy() -> None:
    arrays = [a.astype(np.float32) for a in Lstm().sample_inputs(3, 2, 4)]
    outputs = [np.zeros(type.shape, np.float32) for type in types_tuple(Lstm().infer(*map(type_of, arrays)))]
    chosen = registry.choose(Lstm(), target_of("cpu", "llvm"), arrays, outputs)
    assert chosen.implementation.name == "kernel"
    assert ("recurrence", "24 elements; loops are compiled for at least 1024") in chosen.refused
