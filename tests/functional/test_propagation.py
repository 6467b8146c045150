"""Layouts of the results of functions of global tensors, compared with measurements on two and on two by two ranks.

The layouts equal the measured ones except for recorded differences.  Values and gradients equal those of one rank, and the gradient of
every leaf has the layout of the leaf.

The measurements are those of tests/compiler (`published_layouts.json`); the differences are the rows of a table in docs/internals/decisions.
A partial input is the measured one: along each partial dimension of the mesh every rank but the last holds x / 4 + 1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deliberate import differences, idle
from ranks import on_ranks

from jobflow.core.layout import B, Layout, P, Partial, Placement, S, Sbp
from jobflow.core.types import TensorType, bool_, dtype_named, int32, type_of
from jobflow.functional import binary_functions as ar
from jobflow.functional import (
    casting,
    comparing,
    creation,
    gradients,
    joining,
    nn_activations,
    nn_classes,
    nn_conv,
    nn_embedding,
    nn_linear,
    nn_losses,
    nn_norm,
    nn_pool,
    nn_shapes,
    reductions,
    selecting,
    shapes,
    sorting,
)
from jobflow.functional import unary_functions as elementwise
from jobflow.functional.tensor_class import Tensor
from jobflow.ops.loss import SparseSoftmaxCrossEntropy
from jobflow.tensors.run import run
from jobflow.tensors.state import state

TESTS = Path(__file__).parents[1]
RECORD = next((TESTS.parent / "docs" / "internals" / "decisions").glob("*-layouts-at-once.md"))
PUBLISHED = json.loads((TESTS / "compiler" / "data" / "published_layouts.json").read_text(encoding="utf-8"))
MESHES = {"1d": Placement("cpu", (0, 1)), "2d": Placement("cpu", (0, 1, 2, 3), (2, 2))}
MARKS: dict[str, Sbp] = {"B": B, "P": P, **{f"S{axis}": S(axis) for axis in range(4)}}


def written(x: Tensor, y: Tensor) -> Tensor:
    z = gradients.clone(x)
    z[1:3] = y[1:3]
    return z


OPS: dict[str, Callable[..., Tensor]] = {
    "matmul_tb": lambda a, b: a @ b.t(),
    "linear_bias": nn_linear.linear,
    "add": ar.add,
    "div": ar.div,
    "maximum": ar.maximum,
    "greater": comparing.gt,
    "mul_row_1x6": ar.mul,
    "sub_col_4x1": ar.sub,
    "add_3d_2d": ar.add,
    "add_row_vector": ar.add,
    "add_scalar": lambda x: x + 2.0,
    "mul_scalar": lambda x: x * 2.0,
    "div_scalar": lambda x: x / 2.0,
    "pow2": lambda x: x**2,
    "abs": elementwise.abs,
    "log": elementwise.log,
    "sqrt": elementwise.sqrt,
    "floor": elementwise.floor,
    "tanh": nn_activations.tanh,
    "sigmoid": nn_activations.sigmoid,
    "relu": nn_activations.relu,
    "gelu": nn_activations.gelu,
    "silu": nn_activations.silu,
    "clamp": lambda x: elementwise.clamp(x, 0.8, 1.2),
    "cast_i32": lambda x: casting.cast(x, int32),
    "detach": gradients.detach,
    "zeros_like": creation.zeros_like,
    "ones_like": creation.ones_like,
    "dropout_p0_train": lambda x: nn_linear.dropout(x, 0.0, True),
    "dropout_eval": lambda x: nn_linear.dropout(x, 0.5, False),
    "add_inplace": lambda x, y: gradients.clone(x).add_(y),
    "masked_fill": lambda x, m: selecting.masked_fill(x, m, -1.5),
    "logical_not": comparing.logical_not,
    "softmax_last": lambda x: nn_activations.softmax(x, -1),
    "softmax_dim0": lambda x: nn_activations.softmax(x, 0),
    "log_softmax_last": lambda x: nn_activations.log_softmax(x, -1),
    "group_norm_noaffine": lambda x: nn_norm.group_norm(x, 2),
    "sum_1_keep": lambda x: reductions.sum(x, 1, keepdim=True),
    "sum_all": reductions.sum,
    "sum_0": lambda x: reductions.sum(x, 0),
    "sum_neg1_3d": lambda x: reductions.sum(x, (-2, -1)),
    "mean_all": reductions.mean,
    "max_all": reductions.max,
    "max_0": lambda x: reductions.max(x, 0)[0],
    "max_1": lambda x: reductions.max(x, 1)[0],
    "min_1": lambda x: reductions.min(x, 1)[0],
    "prod_1": lambda x: reductions.prod(x, 1),
    "argmax_0": lambda x: reductions.argmax(x, 0),
    "argmax_1": lambda x: reductions.argmax(x, 1),
    "norm_all": reductions.norm,
    "norm_1": lambda x: reductions.norm(x, dim=1),
    "cumsum_0": lambda x: reductions.cumsum(x, 0),
    "topk": lambda x: sorting.topk(x, 2)[0],
    "sort_1": lambda x: sorting.sort(x, 1)[0],
    "reshape_4x6_to_24": lambda x: shapes.reshape(x, 24),
    "reshape_4x6_to_2x2x6": lambda x: shapes.view(x, 2, 2, 6),
    "flatten_img": lambda x: shapes.flatten(x, 1),
    "transpose_01": lambda x: shapes.transpose(x, 0, 1),
    "permute_210": lambda x: shapes.permute(x, 2, 1, 0),
    "unsqueeze_0": lambda x: shapes.unsqueeze(x, 0),
    "unsqueeze_1": lambda x: shapes.unsqueeze(x, 1),
    "squeeze": lambda x: shapes.squeeze(x, 1),
    "expand_col": lambda x: shapes.expand(x, 4, 6),
    "slice_1": lambda x: x[:, 1:4],
    "slice_full_step": lambda x: x[::2],
    "index_int": lambda x: x[1],
    "narrow_1": lambda x: joining.narrow(x, 1, 1, 3),
    "chunk_1": lambda x: joining.chunk(x, 2, 1)[0],
    "triu": selecting.triu,
    "flip_0": lambda x: shapes.flip(x, [0]),
    "tile": lambda x: shapes.tile(x, 1, 2),
    "pad_last": lambda x: nn_shapes.pad(x, (1, 1)),
    "index_select_0": lambda x, i: selecting.index_select(x, 0, i),
    "flow_gather_op": lambda w, i: nn_embedding.embedding(i, w),
    "embedding": lambda w, i: nn_embedding.embedding(i, w),
    "masked_select": selecting.masked_select,
    "conv2d": lambda x, w: nn_conv.conv2d(x, w, padding=1),
    "adaptive_avg_pool2d": lambda x: nn_pool.adaptive_avg_pool2d(x, 1),
    "cross_entropy_mean": nn_classes.cross_entropy,
    "cross_entropy_sum": lambda x, t: nn_classes.cross_entropy(x, t, reduction="sum"),
    "cross_entropy_none": lambda x, t: nn_classes.cross_entropy(x, t, reduction="none"),
    "nll_loss_mean": nn_classes.nll_loss,
    "sparse_softmax_xent": lambda x, t: run(SparseSoftmaxCrossEntropy(), x, t)[0],
    "mse_loss_mean": nn_losses.mse_loss,
    "mse_loss_none": lambda x, y: nn_losses.mse_loss(x, y, reduction="none"),
    "smooth_l1_mean": nn_losses.smooth_l1_loss,
    "bce_logits_mean": nn_losses.binary_cross_entropy_with_logits,
    "kl_div_mean": nn_losses.kl_div,
    "setitem_slice": written,
}
#: what the measured system refused, an axis of two elements on four ranks, lies so here
REFUSED = {"embedding": [f"{table} S0,S0" for table in map(",".join, product(("S0", "S1", "B", "P"), repeat=2))]}


def type_named(printed: str) -> TensorType:
    name, sizes = re.fullmatch(r"(\w+)\[([\d,]*)\]", printed).groups()  # type: ignore[union-attr]
    return TensorType(tuple(map(int, filter(None, sizes.split(",")))), dtype_named(name))


@cache
def drawn(mesh: str, op: str) -> tuple[np.ndarray[Any, Any], ...]:
    """Return the logical inputs: distinct positive numbers, and indices."""
    types = [type_named(printed) for printed in PUBLISHED[mesh][op]["types"]]
    random = np.random.default_rng(len(op))
    most = types[0].shape[0] if op in ("index_select_0", "embedding", "flow_gather_op") else types[0].shape[-1]
    return tuple(
        random.integers(0, most, type.shape)
        if type.dtype.is_integer
        else random.random(type.shape) > 0.4
        if type.dtype is bool_
        else random.uniform(0.5, 1.5, type.shape).astype(np.float32)
        for type in types
    )


def leaf(array: np.ndarray[Any, Any], layout: Layout | None) -> Tensor:
    """Return a tensor with this logical value."""
    piece = array if layout is None else held(array, layout)
    x = Tensor(type_of(array), layout, np.array(piece))
    x.requires_grad = array.dtype.kind == "f"
    return x


def held(array: np.ndarray[Any, Any], layout: Layout) -> np.ndarray[Any, Any]:
    """Return this rank's piece of a tensor."""
    rank = state().rank.index
    piece = array
    for sbp, n, at in zip(layout.sbp, layout.placement.mesh, layout.placement.coordinates(rank), strict=True):
        if isinstance(sbp, Partial) and piece.dtype == bool:
            piece = piece & (np.arange(piece.size).reshape(piece.shape) % n == at)
        elif isinstance(sbp, Partial):
            addend = np.full_like(piece, 3) if piece.dtype.kind == "i" else (0.25 * piece + 1).astype(piece.dtype)
            piece = addend if at < n - 1 else piece - (n - 1) * addend
    return piece[layout.box(array.shape, rank).slices]


def performed(op: str, arrays: tuple[np.ndarray[Any, Any], ...], layouts: list[Layout | None]) -> tuple[Tensor, list[Tensor | None]]:
    """Return the output, and the gradients of the inputs for a weighted sum of the output."""
    inputs = [leaf(array, layout) for array, layout in zip(arrays, layouts, strict=True)]
    y = OPS[op](*inputs)
    if y.requires_grad:
        weights = np.random.default_rng(7).uniform(-1, 1, y.shape).astype(np.float32)
        w = leaf(weights, None if y.layout is None else Layout(y.layout.placement, (B,) * len(y.layout.sbp)))
        w.requires_grad = False
        (y * w).sum().backward()
    return y, [x.grad for x in inputs]


Result = tuple[Layout | None, TensorType, Any]


def plain(x: Tensor | None) -> Result | None:
    return None if x is None else (x.layout, x.tensor_type, np.array(x.array))


def program(rank: int, mesh: str, op: str, cases: list[str]) -> list[list[Result | None]]:
    results = []
    for case in cases:
        layouts: list[Layout | None] = [Layout(MESHES[mesh], tuple(MARKS[mark] for mark in text.split(","))) for text in case.split()]
        y, grads = performed(op, drawn(mesh, op), layouts)
        results.append([plain(y), *map(plain, grads)])
    return results


def alone(rank: int, mesh: str, op: str) -> list[Result | None]:
    arrays = drawn(mesh, op)
    y, grads = performed(op, arrays, [None] * len(arrays))
    return [plain(y), *map(plain, grads)]


def text(layout: Layout) -> str:
    return ",".join(re.sub(r"S\((\d)\)", r"S\1", str(sbp)) for sbp in layout.sbp)


def cases_of(mesh: str, op: str) -> dict[str, str | None]:
    """Return the measured layout of the output by layouts of the inputs; None if the measured system raised an error."""
    measured: dict[str, str | None] = dict(line.split(" -> ") for line in PUBLISHED[mesh][op]["chosen"])
    return measured | dict.fromkeys(REFUSED.get(op, []) if mesh == "2d" else [])


def check(case: str, expected: list[Result | None], everywhere: list[list[Result | None]]) -> str:
    """Return the layout of the output, after comparing its values and gradients."""
    leaves = [None, *case.split()]
    for mine, alone_, lies in zip(zip(*everywhere, strict=True), expected, leaves, strict=True):
        assert (mine[0] is None) == (alone_ is None), case
        if mine[0] is None or alone_ is None:
            continue
        layout, type, _ = mine[0]
        assert layout is not None and all(other is not None and other[:2] == (layout, type) for other in mine)
        assert type == alone_[1], case
        if lies is not None:
            assert text(layout) == lies, f"{case}: a gradient lies {text(layout)}"
        whole = layout.assemble([other[2] for other in mine if other is not None], type)
        np.testing.assert_allclose(whole, alone_[2], rtol=2e-4, atol=2e-5, err_msg=f"{case}{' gradient' if lies else ''}")
    assert everywhere[0][0] is not None and everywhere[0][0][0] is not None
    return text(everywhere[0][0][0])


@cache
def ours(mesh: str, op: str) -> dict[str, str]:
    """Return the layouts of the outputs here."""
    cases = list(cases_of(mesh, op))
    (expected,) = on_ranks(1, alone, mesh, op)
    by_rank = on_ranks(MESHES[mesh].size, program, mesh, op, cases)
    return {case: check(case, expected, [results[i] for results in by_rank]) for i, case in enumerate(cases)}


def mismatches(mesh: str, op: str) -> list[tuple[str, str, str]]:
    """Return (inputs, measured, ours) for each difference."""
    results = ours(mesh, op)
    return [(case, measured, results[case]) for case, measured in cases_of(mesh, op).items() if measured is not None and results[case] != measured]


CASES = [(mesh, op) for mesh, table in PUBLISHED.items() for op in table]


@pytest.mark.parametrize(("mesh", "op"), CASES)
def test_functions_lie_as_measured_and_give_the_numbers_of_one_rank(mesh: str, op: str) -> None:
    rows = differences(RECORD, OPS, 5)
    unexplained = [case for case in mismatches(mesh, op) if not any(row.covers(op, case[0], case[2]) for row in rows)]
    assert not unexplained, f"{op} (inputs, measured, ours): {unexplained}"


def test_no_difference_on_record_is_idle() -> None:
    results = [(op, inputs, lies) for mesh, op in CASES for inputs, _, lies in mismatches(mesh, op)]
    assert idle(differences(RECORD, OPS, 5), results) == []


def test_counts() -> None:
    cases = sum(len(cases_of(mesh, op)) for mesh, op in CASES)
    refused = sum(measured is None for mesh, op in CASES for measured in cases_of(mesh, op).values())
    assert (cases, refused, OPS.keys()) == (1110, 16, {op for table in PUBLISHED.values() for op in table})
