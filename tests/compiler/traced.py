"""Small programs without a public API: trace some ops, compile them, run them on a world of threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from ranks import world_of as new_world_of

from jobflow import scope
from jobflow.compiler.compile import distribute, logical
from jobflow.compiler.front.trace import Tracer
from jobflow.core.errors import NOWHERE
from jobflow.core.layout import B, Layout, Local, Placement, Sbp
from jobflow.core.types import DType, TensorType, float32
from jobflow.graph.graph_text import graph_text
from jobflow.graph.ir import Graph, Physical, Value, Variable
from jobflow.graph.training import Parameter
from jobflow.kernels.target import CPU, Target
from jobflow.ops.op import apply
from jobflow.ops.optimizer_updates import SgdUpdate
from jobflow.ops.source import Constant, External, Input
from jobflow.program.arguments import argument_parts
from jobflow.program.client import ClientProgram
from jobflow.program.commands import WriteVariables
from jobflow.program.program import StorageChoice
from jobflow.runtime.world.world import World

Array = Any
Body = Callable[[Tracer], Any]


def on(*ranks: int) -> Placement:
    return Placement("cpu", ranks)


def first(n: int) -> Placement:
    """Return a placement of ranks 0 to n - 1."""
    return on(*range(n))


def type_(*shape: int, dtype: DType = float32) -> TensorType:
    return TensorType(shape, dtype)


def variable(tracer: Tracer, name: str, *shape: int, sbp: Sbp = B, dtype: DType = float32, trainable: bool = True, **more: Any) -> Value:
    """Declare and read a variable that starts as zeros."""
    return tracer.variable(Variable(name, TensorType(shape, dtype), Constant(shape, dtype, 0.0), tracer.placement, (sbp,), trainable, **more))


@dataclass(frozen=True)
class Sgd:
    """An optimizer for every variable: w - rate * gradient."""

    rate: float = 1.0
    loss_scale: float = 1.0
    dynamic_loss_scale: Any = None

    def selects(self, names: Sequence[str]) -> Sequence[str]:
        return names

    def update(self, parameters: Sequence[Parameter], step: Value, slots: Any) -> dict[str, Value]:
        rates = {p.value.dtype: apply(Constant((1,), p.value.dtype, self.rate)) for p in parameters}
        return {p.variable.name: apply(SgdUpdate(), p.value, p.gradient, rates[p.value.dtype]) for p in parameters}


def trace(
    body: Body,
    placement: Placement | None = None,
    *,
    view: scope.View = "consistent",
    train: bool = False,
    optimizer: Any = None,
    half: DType | None = None,
    **options: Any,
) -> Graph:
    """Return the logical graph of a body that returns one or more values; with `train`, they are the losses."""
    tracer = Tracer(name="job", placement=placement or first(1), trainable=train, **options)
    with scope.using(interpreter=tracer, placement=tracer.placement, view=view, namespace=()):
        returned = body(tracer)
        outputs = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
        if train:
            tracer.minimize(optimizer or Sgd(), outputs)
        return logical(replace(tracer.traced(outputs), half=half), outputs).graph


def text(graph: Graph) -> str:
    """Return the printed graph, without the lines of this file."""
    return plain(graph_text(graph))


def plain(printed: str) -> str:
    """Return printed lines without the user's line at their end."""
    return "\n".join(line.split("  # ")[0] for line in printed.splitlines()) + "\n"


def world_of(n: int) -> AbstractContextManager[World]:
    """Start n ranks on threads, or use the calling thread alone."""
    return new_world_of(0 if n == 1 else n)


@dataclass
class Bound:
    """A compiled graph on the ranks of a world."""

    world: World
    physical: Physical
    number: int = 0
    #: True to store variables, arguments and results in common memory if possible
    common: bool = False
    target: Target = CPU

    def __post_init__(self) -> None:
        programs = (self.physical,) * self.world.size
        self.program = ClientProgram(self.physical.graph.name, NOWHERE, self.number, programs, argument_parts(programs), (), ())
        self.program.bind(self.world, StorageChoice(share=self.common, io_buffers=self.common), self.target)

    def write(self, values: dict[str, Array]) -> None:
        """Set variables from whole arrays."""
        each: list[dict[str, Array]] = [{} for _ in range(self.world.size)]
        for name, value in values.items():
            layout = self.physical.graph.variables[name].layout
            for rank, shard in zip(layout.placement.ranks, layout.shards(value), strict=True):
                each[rank][name] = shard
        self.world.call(WriteVariables(), each)

    def read(self, name: str) -> Array:
        """Return a whole variable."""
        variable = self.physical.graph.variables[name]
        shards = [self.world.ranks[rank].memory["state"].read(name) for rank in variable.placement.ranks]
        return variable.layout.assemble(shards, variable.type)

    def run(self, **arguments: Array) -> list[Array]:
        """Run once; return whole outputs (mirrored ones as a list)."""
        return self.program.run(self.world, arguments)

    def close(self) -> None:
        self.program.release(self.world)
        for rank in self.world.ranks:
            rank.memory.pop("state", None)


def run(
    n: int, body: Body, *, view: scope.View = "consistent", train: bool = False, variables: dict[str, Array] | None = None, **arguments: Array
) -> Any:
    """Return the outputs of one step on n ranks; with `train`, also the variables after it."""
    graph = trace(body, first(n), view=view, train=train)
    with world_of(n) as world:
        bound = Bound(world, distribute(graph))
        bound.write(variables or {})
        outputs = bound.run(**arguments)
        return (outputs, {name: bound.read(name) for name in variables or {}}) if train else outputs


def evaluate(graph: Graph, arguments: dict[str, Array], variables: dict[str, Array]) -> tuple[list[Array], dict[str, Array]]:
    """Compute outputs and new variables of a logical graph by running every kernel once on whole arrays, as the reference for compiled plans."""
    arrays: dict[Value, Array] = {}
    for node in graph.nodes:
        if isinstance(node.op, External):
            feeds = arguments if isinstance(node.op, Input) else variables
            (value,) = node.outputs
            arrays[value] = feeds[node.op.key] if node.op.key in feeds else np.zeros(value.shape, value.dtype.numpy)
            continue
        outputs = [np.full(v.shape, 77, v.dtype.numpy) for v in node.outputs]
        node.op.kernel(np, *(arrays[v] for v in node.inputs), *outputs)
        arrays.update(zip(node.outputs, outputs, strict=True))
    return [arrays[v] for v in graph.outputs], {name: arrays[value] for name, value in graph.updates.items()}


def layout_text(layouts: dict[Value, Layout | Local], value: Value) -> str:
    """Return the S/B/P of a value as text."""
    layout = layouts[value]
    return "local" if isinstance(layout, Local) else ",".join(map(str, layout.sbp))


def arrays_like(*types: TensorType, seed: int = 0) -> list[Array]:
    random = np.random.default_rng(seed)
    return [random.normal(size=t.shape).astype(t.dtype.numpy) for t in types]
