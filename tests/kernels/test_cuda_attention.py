"""Attention kernels for GPUs, run on the host, equal the operation on arrays in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import host_cuda
import laws
import numpy as np
import nvidia_compiler
import pytest
from on_device import cases, single

from jobflow.core.types import bfloat16, dtype_of, float32, type_of
from jobflow.kernels.cuda.attention_kernels import AttentionKernel
from jobflow.kernels.cuda.attention_text import SHARED, AttentionText, backward_tile, forward_tile
from jobflow.kernels.cuda.pooling_kernels import addresses
from jobflow.kernels.registry import has_own
from jobflow.kernels.target import CPU, target_of
from jobflow.ops.attention import Attention, AttentionGrad
from jobflow.ops.op import types_tuple

needs_compiler = pytest.mark.skipif(host_cuda.COMPILER is None, reason="there is no C++ compiler (g++)")
needs_nvidia = pytest.mark.skipif(bool(nvidia_compiler.missing()), reason=nvidia_compiler.missing() or "nothing is missing")
#: relative to the largest element
TOLERANCE = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}


class Kernels:
    """Kernels that are compiled together, then run and compared."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.runs: list[tuple[str, AttentionText, list[Any], list[Any], int]] = []

    def add(self, op: Any, inputs: list[Any], order: Any = None) -> list[Any] | None:
        """Add an operation; return the expected outputs, computed in float64, or None if the kernel refuses the operands."""
        outputs = laws.empties(types_tuple(op.infer(*map(type_of, inputs))), fill=0)
        arrays = [order[0](a) for a in inputs] if order else inputs
        outputs = [order[1](a) for a in outputs] if order else outputs
        if AttentionKernel().refuses(op, arrays, outputs) is not None:
            return None
        wide = [np.array(a, np.float64) if dtype_of(a.dtype).is_float else a for a in inputs]
        expected = laws.empties(types_tuple(op.infer(*map(type_of, wide))), fill=0)
        with np.errstate(all="ignore"):
            op.kernel(np, *wide, *expected)
        text = AttentionText(op, [*arrays, *outputs], f"attention{len(self.texts)}")
        self.texts.append(text.text())
        self.runs.append((str(op), text, [*arrays, *outputs], expected, len(arrays)))
        return expected

    def check(self, folder: Path) -> None:
        loaded = host_cuda.library(self.texts, folder)
        for what, text, operands, expected, inputs in self.runs:
            pointers = addresses(operands)
            delta = np.full(operands[0].shape[:-1], np.nan, np.float32)
            pointers = pointers if text.is_forward else (*pointers, *addresses([delta]))
            for each in text.launches():
                host_cuda.launch(loaded, each.name, (each.blocks,), (256,), pointers)
            for ours, theirs in zip(operands[inputs:], expected, strict=True):
                kind = dtype_of(operands[0].dtype).name
                np.testing.assert_array_equal(np.isnan(single(ours)), np.isnan(theirs), err_msg=f"{what} {kind} {ours.shape}")
                ours, theirs = np.nan_to_num(single(ours).astype(np.float64)), np.nan_to_num(theirs)
                laws.close(ours, theirs, TOLERANCE[kind], laws.magnitude(theirs), f"{what} {kind} {ours.shape}")


def with_gradient(op: Attention, inputs: list[Any]) -> tuple[AttentionGrad, list[Any]]:
    """Return the gradient operation with inputs that belong together."""
    y, lse = laws.run(op, [a.astype(np.float32) if dtype_of(a.dtype).is_half else a for a in inputs])
    dy = np.random.default_rng(5).standard_normal(y.shape)
    return AttentionGrad(*vars(op).values()), [*inputs[:3], y.astype(inputs[0].dtype), lse, dy.astype(inputs[0].dtype), *inputs[3:]]


@needs_compiler
@pytest.mark.parametrize("gradient", [False, True])
def test_attention_kernels_equal_the_operation(gradient: bool, tmp_path: Path) -> None:
    kernels = Kernels()
    for k, (sample, arrays) in enumerate(cases(Attention)):
        if k % 4:  # float64 is refused
            kernels.add(*(with_gradient(sample.op, list(arrays)) if gradient else (sample.op, list(arrays))), laws.ORDERS[k % 5])
    assert len(kernels.runs) >= 20
    kernels.check(tmp_path)


def large_cases() -> Iterator[tuple[Attention, list[Any]]]:
    """Yield operations with several tiles, the last one incomplete."""
    random = np.random.default_rng(3)

    def operands(heads: int, groups: int, queries: int, keys: int, e: int, f: int, dtype: Any = np.float32) -> list[Any]:
        shapes = ((1, heads, queries, e), (1, groups, keys, e), (1, groups, keys, f))
        return [random.standard_normal(shape).astype(dtype) for shape in shapes]

    yield Attention(0.3, 0), operands(2, 1, 70, 70, 24, 17)
    yield Attention(0.3, -60), operands(1, 1, 70, 75, 8, 8)
    yield Attention(0.3, -60, masked=False), operands(1, 1, 70, 75, 8, 8)
    yield Attention(0.3), operands(1, 1, 33, 100, 128, 64, bfloat16.numpy)
    rows = 90 * np.arange(40).reshape(1, 1, 40)
    yield Attention(0.3, 50, rate=0.4, key="drop", first_key=7), [*operands(1, 1, 40, 83, 16, 16), rows, np.array([3])]
    yield Attention(0.3, 0, -1e4), operands(1, 1, 70, 70, 16, 16)
    low = operands(1, 1, 70, 70, 16, 16)
    low[0][0, 0, 66:], low[1] = 40.0, -np.ceil(abs(low[1]))  # the scores of these queries are below the score beyond the diagonal
    yield Attention(0.25, 0, -64.0), low


@needs_compiler
@pytest.mark.parametrize("gradient", [False, pytest.param(True, marks=pytest.mark.full)])
def test_tiles_of_attention_are_combined(gradient: bool, tmp_path: Path) -> None:
    kernels = Kernels()
    for op, inputs in large_cases():
        with np.errstate(invalid="ignore"):  # some queries have no keys
            assert kernels.add(*(with_gradient(op, inputs) if gradient else (op, inputs))) is not None
    kernels.check(tmp_path)


@needs_compiler
def test_queries_without_keys_are_nan_unless_they_are_masked(tmp_path: Path) -> None:
    q, k, v = (np.ones((1, 2, 8), np.float32) for _ in range(3))
    mask = np.array([[0, -np.inf], [-np.inf, -np.inf]], np.float32)
    kernels = Kernels()
    for masked in (True, False):
        kernels.add(Attention(1.0, has_mask=True, masked=masked), [q, k, v, mask])
    loaded = host_cuda.library(kernels.texts, tmp_path)
    for (_, text, operands, _, _), value in zip(kernels.runs, (0.0, math.nan), strict=True):
        host_cuda.launch(loaded, text.name, (text.launches()[0].blocks,), (256,), addresses(operands))
        assert np.array_equal(operands[4], np.stack([np.ones(8), np.full(8, value)])[None], equal_nan=True)


def test_unsupported_operands_have_a_reason() -> None:
    def reason(op: Attention, *shapes: tuple[int, ...], dtype: Any = float32) -> str | None:
        inputs = [np.zeros(shape, dtype.numpy) for shape in shapes]
        return AttentionKernel().refuses(op, inputs, laws.empties(op.infer(*map(type_of, inputs)), fill=0))

    small, wide = (2, 3, 8), (2, 3, 256)
    assert reason(Attention(1.0), small, small, small) is None
    assert reason(Attention(1.0), wide, wide, wide) == "heads of 256 and 256 elements are not of 1 to 128"
    assert reason(Attention(1.0), small, small, small, dtype=type_of(np.zeros(1)).dtype) == (
        "elements of type float64 are not float32, float16 or bfloat16"
    )


def test_only_gpus_with_compiled_kernels_have_attention() -> None:
    assert has_own(Attention, target_of("gpu"))
    assert not any(has_own(Attention, target) for target in (CPU, target_of("cpu", "llvm"), target_of("gpu", "numpy"), target_of("cpu", "reference")))


def test_tiles_fit_into_shared_memory() -> None:
    for e in range(1, 129):
        for f in (1, 64, e, 128):
            m, n = forward_tile(e, f)
            assert 4 * (m * (e | 1) + n * (max(e, f) | 1) + m * (n | 1) + 1) <= SHARED
            m, n = backward_tile(e, f)
            assert 4 * ((m + n) * ((e | 1) + (f | 1)) + 2 * m * (n | 1) + 1) <= SHARED


@needs_nvidia
@pytest.mark.full
@pytest.mark.parametrize("size", [64, 128])
def test_attention_kernels_compile_without_a_gpu(size: int) -> None:
    q = np.zeros((1, 2, 1024, size), np.float16)
    y, lse, op = q, np.zeros((1, 2, 1024), np.float32), Attention(0.125, 0)
    rows, counter = np.zeros((1, 2, 1024), np.int64), np.zeros(1, np.int64)
    assert nvidia_compiler.compiled(AttentionText(op, [q, q, q, y, lse], "attention").text(), "sm_90").startswith(b"\x7fELF")
    dropped = replace(op, rate=0.1, key="a")
    gradient = AttentionText(AttentionGrad(*vars(dropped).values()), [q, q, q, y, lse, y, rows, counter, q, q, q], "attention")
    assert nvidia_compiler.compiled(gradient.text(), "sm_90").startswith(b"\x7fELF")
