"""Support for tests of redistributions: each one is a program, run on threads and compared with the logical value and the announced bytes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from traced import Bound, world_of

from jobflow.compiler.layouts.box import Reroute, box
from jobflow.core.errors import NOWHERE, SourceLine
from jobflow.core.layout import MAX, MIN, Layout, Partial, Sbp
from jobflow.core.types import TensorType
from jobflow.graph.ir import Graph, Node, Physical, Provenance, Sharded, Value
from jobflow.ops.layout_ops import Copy
from jobflow.ops.source import Input
from jobflow.program.commands import Sent

Array = Any
Pair = tuple[Layout, Layout]

#: Number of runs of a program: the second run starts with the memory of the first.
RUNS = 2


def change(source: Layout, target: Layout, type: TensorType, number: int = 0, where: SourceLine = NOWHERE) -> tuple[Value, Node, Sharded]:
    """Return a program that reads x in layout `source`, and whose reader needs it in layout `target`."""
    read = Node(Input(type.shape, type.dtype, f"x{number}"), (), ((type, f"x{number}", False),), f"x{number}", source.placement)
    (x,) = read.outputs
    copy = Node(Copy(), (x,), ((type, f"y{number}", False),), f"y{number}", target.placement, Provenance(where))
    graph = Graph("job", source.placement, (read, copy), (x,), copy.outputs)
    return x, copy, Sharded(graph, {x: source, copy.outputs[0]: target}, {read: (), copy: (target,)})


def together(parts: list[Sharded]) -> Physical:
    """Merge many programs into one, so that only one world is started and only one plan is bound."""
    graphs = [part.graph for part in parts]
    nodes = tuple(node for graph in graphs for node in graph.nodes)
    whole = Graph("job", graphs[0].placement, nodes, tuple(v for g in graphs for v in g.inputs), tuple(v for g in graphs for v in g.outputs))
    return box(Sharded(whole, {k: v for p in parts for k, v in p.layouts.items()}, {k: v for p in parts for k, v in p.read_layouts.items()}))


def addends(layout: Layout, array: Array, random: np.random.Generator) -> list[Array]:
    """Return the ranks' parts of an array; addends of a partial array all differ, change sign, and none equals the value itself."""
    held = {(): array}
    for sbp, n in zip(layout.sbp, layout.placement.mesh, strict=True):
        held = {(*at, i): part for at, whole in held.items() for i, part in enumerate(parts_along(sbp, n, whole, random))}
    boxes = layout.boxes(array.shape).values()
    return [part[box.slices].copy() for part, box in zip(held.values(), boxes, strict=True)]


def parts_along(sbp: Sbp, n: int, array: Array, random: np.random.Generator) -> list[Array]:
    """Return the parts of n ranks along one mesh dimension, before cuts along the others."""
    if not isinstance(sbp, Partial):
        return [array] * n
    owner = random.integers(0, n, array.shape)
    if array.dtype == np.bool_:
        return [np.where(owner == i, array, sbp.reduce is MIN) for i in range(n)]
    noise = random.integers(1, 9, (n, *array.shape)).astype(array.dtype)
    if sbp.reduce is MAX or sbp.reduce is MIN:
        away = -noise if sbp.reduce is MAX else noise
        return [np.where(owner == i, array, array + away[i]).astype(array.dtype) for i in range(n)]
    noise[::2] = -noise[::2]
    noise[-1] = array - noise[:-1].sum(axis=0, dtype=array.dtype)
    return list(noise)


def agree(n: int, pairs: list[Pair], type: TensorType) -> None:
    """Run all redistributions in one program on n ranks; compare the results with the logical values and the sent bytes with the prediction."""
    random = np.random.default_rng(7)
    value = random.integers(0 if type.dtype.name == "uint8" else -20, 21, type.shape).astype(type.dtype.numpy)
    changes = [change(source, target, type, i) for i, (source, target) in enumerate(pairs)]
    with world_of(n) as world:
        physical = together([sharded for *_, sharded in changes])
        bound = Bound(world, physical)
        feeds: list[dict[str, Array]] = [{} for _ in range(n)]
        for i, (source, _) in enumerate(pairs):
            for rank, part in zip(source.placement.ranks, addends(source, value, random), strict=True):
                feeds[rank][f"x{i}"] = part
        for _ in range(RUNS):
            for (source, target), result in zip(pairs, bound.program.outputs(bound.program.run_on_ranks(world, feeds)), strict=True):
                np.testing.assert_array_equal(result, value, err_msg=f"{source} -> {target} of {type}")
        counted = [sum(traffic.nbytes for traffic in kinds.values()) for kinds in world.call(Sent())]
        predicted = announced(physical)
        assert counted == [RUNS * predicted[rank] for rank in range(n)]


def announced(physical: Physical) -> Counter[int]:
    """Return the bytes that each rank sends in one run, according to the reroutes."""
    total: Counter[int] = Counter()
    for node in physical.graph.nodes:
        if isinstance(node.op, Reroute):
            total.update(node.op.sent(*(value.tensor_type for value in node.inputs)))
    return total
