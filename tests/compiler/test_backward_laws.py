"""Outputs and gradients of every op on ranks equal those on whole tensors, for each of its signatures.

All signatures of a sample are in one graph.  The inputs are redistributed to the layouts of the signature, and the op is called.
Its gradient is computed for cotangents in other layouts.  Then the graph is compiled and run.
"""

from __future__ import annotations

import importlib
import pkgutil
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from traced import Bound, evaluate, trace, world_of

import jobflow.ops
from jobflow.compiler.compile import distribute
from jobflow.compiler.front.trace import Tracer
from jobflow.core.errors import JobError
from jobflow.core.layout import B, P, Placement, S, Sbp, Signature
from jobflow.core.types import type_of
from jobflow.graph.ir import Graph
from jobflow.ops.layout_ops import ViewConversion, to_layout
from jobflow.ops.op import Op, Sample, all_ops, apply
from jobflow.ops.parts import Part

for module in pkgutil.iter_modules(jobflow.ops.__path__):
    importlib.import_module(f"jobflow.ops.{module.name}")

MESHES = ((2,), (3,), (2, 2))
#: ops with gradients, except those that update an input, which bodies of jobs cannot call
OPS = {
    cls.__name__: cls
    for cls in all_ops()
    if cls.__module__.startswith("jobflow.ops.")
    and cls.grad is not Op.grad
    and not cls.external
    and not cls.alias
    and not issubclass(cls, (ViewConversion, Part))
}


def combinations(sample: Sample, mesh: Sequence[int], pairs: int, random: np.random.Generator) -> list[tuple[Signature, ...]]:
    """Return combinations of signatures, one signature per mesh dimension.

    On two dimensions these are random pairs; on two ranks, only signatures that three ranks cannot have.
    """
    ranks = int(np.prod(mesh))
    legal = [s for s in sample.op.rule(*map(type_of, sample.arrays)).signatures() if s.legal(ranks) and not (ranks == 2 and s.legal(3))]
    if len(mesh) == 1 or not legal:
        return [(s,) for s in legal]
    chosen = random.integers(0, len(legal), (pairs, len(mesh)))
    return list(dict.fromkeys(tuple(legal[i] for i in row) for row in chosen))


def some_sbp(ndim: int, mesh: Sequence[int], random: np.random.Generator) -> tuple[Sbp, ...]:
    kinds = [B, P, *(S(axis) for axis in range(ndim))]
    return tuple(kinds[int(random.integers(len(kinds)))] for _ in mesh)


def forward_and_backward(tracer: Tracer, sample: Sample, mark: str, mesh: Sequence[int], pairs: int) -> tuple[list[Any], dict[str, Any]]:
    """Return outputs and gradients for every combination of signatures, and the required arguments."""
    random = np.random.default_rng(zlib.crc32(str(sample).encode()))
    arguments = {f"{mark}x{i}": a for i, a in enumerate(sample.arrays)}
    inputs = [tracer.input(key, type_of(a), split=False) for key, a in arguments.items()]
    results: list[Any] = []
    cotangents: list[Any] = []
    for signatures in combinations(sample, mesh, pairs, random):
        xs = [to_layout(x, *(s.inputs[i] for s in signatures)) for i, x in enumerate(inputs)]
        outputs = apply(sample.op, *xs)
        ys = outputs if isinstance(outputs, tuple) else (outputs,)
        if not cotangents:
            for k, y in enumerate(ys):
                if y.dtype.is_float:
                    arguments[f"{mark}c{k}"] = random.normal(size=y.shape).astype(y.dtype.numpy)
            cotangents = [tracer.input(f"{mark}c{k}", y.tensor_type, split=False) if y.dtype.is_float else None for k, y in enumerate(ys)]
        cs = [None if c is None else to_layout(c, *some_sbp(c.ndim, mesh, random)) for c in cotangents]
        results += ys
        if any(c is not None for c in cs):
            results += gradients(sample.op, xs, ys, cs)
    return results, arguments


def gradients(op: Op, *tensors: list[Any]) -> list[Any]:
    """Return all gradients that are not None; some ops have gradients for some attributes only."""
    try:
        return [gradient for gradient in op.grad(*(x for row in tensors for x in row)) if gradient is not None]
    except JobError as error:
        assert "has no gradient" in str(error)
        return []


def graph_of(cls: type[Op], mesh: tuple[int, ...], pairs: int) -> tuple[Graph, dict[str, Any]]:
    """Return one graph with all samples of an op."""
    arguments: dict[str, Any] = {}

    def body(tracer: Tracer) -> list[Any]:
        results: list[Any] = []
        for number, sample in enumerate(cls.samples()):
            values, more = forward_and_backward(tracer, sample, f"s{number}", mesh, pairs)
            results += values
            arguments.update(more)
        return results

    return trace(body, Placement("cpu", tuple(range(int(np.prod(mesh)))), mesh)), arguments


def compare(cls: type[Op], mesh: tuple[int, ...], pairs: int) -> int:
    """Compare the values; return the number of comparisons."""
    graph, arguments = graph_of(cls, mesh, pairs)
    if not graph.outputs:
        return 0
    expected, _ = evaluate(graph, arguments, {})
    with world_of(int(np.prod(mesh))) as world:
        bound = Bound(world, distribute(graph))
        for value, ours, theirs in zip(graph.outputs, bound.run(**arguments), expected, strict=True):
            where = f"{value.node.op} {value.name} = {', '.join(map(str, value.node.inputs))}"
            if not isinstance(value.node.op, cls):  # a part of a partial gradient may be 0, and 0 times an infinite slope is no number
                infinite = ~np.isfinite(ours) & ~np.isfinite(theirs)
                ours, theirs = np.where(infinite, 0, ours), np.where(infinite, 0, theirs)
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9, err_msg=where)
        bound.close()
    return len(graph.outputs)


@pytest.mark.parametrize("pairs", [2, pytest.param(8, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", OPS)
def test_gradients_in_all_layouts_equal_those_of_whole_tensors(name: str, pairs: int) -> None:
    """Run every third op on the two-dimensional mesh, because layouts combine in the same way for all ops; with --full, run all."""
    meshes = MESHES if pairs > 2 or list(OPS).index(name) % 3 == 1 else MESHES[:2]
    compared = {mesh: compare(OPS[name], mesh, pairs) for mesh in meshes}
    assert all(compared[mesh] for mesh in meshes if mesh != (2,)), compared
