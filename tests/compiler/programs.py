"""Random programs as text: their statements, their trace, and a comparison of ranks with kernels on whole arrays.

A program is a list of Python statements over the functions of `words`, one op each, with a few lines about ranks and optimizer.  It can be
printed, shortened statement by statement, and run again from a file.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from traced import Bound, Sgd, evaluate, trace

import jobflow.ops
from jobflow import optimizer, scope
from jobflow.compiler.compile import distribute
from jobflow.compiler.front.trace import Tracer
from jobflow.compiler.layouts import shared_variables
from jobflow.core.layout import MAX, MIN, B, P, Partial, Placement, S, Sbp
from jobflow.core.types import TensorType, float64, int64
from jobflow.graph.ir import Graph, Variable
from jobflow.kernels.target import CPU, Target
from jobflow.ops.layout_ops import to_layout
from jobflow.ops.source import Constant
from jobflow.runtime.world.world import World

#: relative to the largest number of a tensor, or to 1
TOLERANCE = 1e-9
STEPS = 2

FUNCTIONS: dict[str, Any] = {}
for module_info in pkgutil.iter_modules(jobflow.ops.__path__):
    module = importlib.import_module(f"jobflow.ops.{module_info.name}")
    if module_info.name == "special":  # kernels of functions that have an op of the same name
        continue
    for name, thing in vars(module).items():  # functions defined in the module, and those generated from a class
        of_class = getattr(thing, "__qualname__", "").endswith("ary_function.<locals>.function")
        if callable(thing) and (of_class or getattr(thing, "__module__", "") == module.__name__):
            FUNCTIONS[name] = thing

_CONSTANT = optimizer.PiecewiseConstantScheduler
OPTIMIZERS: dict[str, Any] = {
    "sgd": Sgd,
    "momentum": lambda: optimizer.SGD(_CONSTANT([], [0.5]), momentum=0.9),
    "adamw": lambda: optimizer.AdamW(_CONSTANT([1], [0.1, 0.05]), weight_decay=0.1),
    "clipped": lambda: optimizer.SGD(optimizer.CosineScheduler(10, 0.5), momentum=0.0, grad_clipping=optimizer.grad_clipping.by_global_norm(0.5)),
}


@dataclass(frozen=True)
class Program:
    """A program: its statements, and the names of the outputs whose means form the loss."""

    lines: tuple[str, ...]
    ends: tuple[str, ...]
    mesh: tuple[int, ...]
    optimizer: str = "sgd"
    seed: int = 0

    @property
    def ranks(self) -> int:
        return int(np.prod(self.mesh))

    def __str__(self) -> str:
        body = "".join(f"{line}\n" for line in self.lines)
        return f"# optimizer {self.optimizer}, mesh {'x'.join(map(str, self.mesh))}, seed {self.seed}\n{body}# ends {' '.join(self.ends)}\n"


def read(text: str) -> Program:
    """Parse a printed program."""
    head, *lines, tail = text.strip().splitlines()
    about = dict(part.strip(" #").split() for part in head.split(","))
    mesh = tuple(int(n) for n in about["mesh"].split("x"))
    return Program(tuple(lines), tuple(tail.removeprefix("# ends").split()), mesh, about["optimizer"], int(about["seed"]))


def words(tracer: Tracer) -> dict[str, Any]:
    """Return the functions that the statements of a program may call."""

    def argument(key: str, *shape: int) -> Any:
        return tracer.input(key, TensorType(shape, float64))

    def indices(key: str, *shape: int) -> Any:
        """Return integers that are 0 or 1."""
        return tracer.input(key, TensorType(shape, int64))

    def weight(name: str, *shape: int, sbp: Sequence[Sbp] = ()) -> Any:
        placement = scope.current().placement or tracer.placement
        each = tuple(sbp) if len(sbp) == len(placement.mesh) else (B,) * len(placement.mesh)
        return tracer.variable(Variable(name, TensorType(shape, float64), Constant(shape, float64, 0.0), placement, each))

    @contextmanager
    def placed_on(*ranks: int, mesh: tuple[int, ...] = ()) -> Iterator[None]:
        with scope.using(placement=Placement("cpu", ranks, mesh)):
            yield

    def drop(x: Any, key: str) -> Any:
        return FUNCTIONS["dropout"](x, 0.4, tracer.run_counter(), key=key, seed=3)

    return {
        **FUNCTIONS,
        "to_layout": to_layout,
        "argument": argument,
        "indices": indices,
        "weight": weight,
        "place": placed_on,
        "drop": drop,
        "float64": float64,
        "B": B,
        "P": P,
        "S": S,
        "PMAX": Partial(MAX),
        "PMIN": Partial(MIN),
    }


def graph_of(program: Program) -> Graph:
    """Return the training graph, which returns all ends; the loss is the sum of their means."""

    def body(tracer: Tracer) -> list[Any]:
        spoken = words(tracer)
        for line in program.lines:
            exec(line, spoken)
        ends = [spoken[name] for name in program.ends]
        base = spoken["weight"]("base", 3)
        loss = FUNCTIONS["reduce_mean"](FUNCTIONS["square"](base))
        for x in ends:
            loss = FUNCTIONS["add"](loss, FUNCTIONS["reduce_mean"](FUNCTIONS["tanh"](x)))
        tracer.trainable = True
        tracer.minimize(OPTIMIZERS[program.optimizer](), [loss])
        return [loss, *ends]

    return trace(body, Placement("cpu", tuple(range(program.ranks)), program.mesh))


def first_values(graph: Graph, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return arguments and variables as a function of the seed and their names."""
    random = np.random.default_rng(1000 + seed)
    values = {name: random.normal(size=v.type.shape) for name, v in sorted(graph.variables.items()) if v.trainable}
    arguments: dict[str, Any] = {}
    for value in graph.inputs:
        if value.dtype.is_float:
            arguments[value.name] = random.normal(size=value.shape)
        else:
            arguments[value.name] = random.integers(0, 2, value.shape) if value.name != "#run" else np.zeros(value.shape, np.int64)
    return arguments, values


class Mismatch(AssertionError):
    """An error raised if results of ranks differ from those of the kernels on whole arrays."""


def compare(what: str, ours: Any, theirs: Any) -> None:
    scale = max(1.0, float(np.max(np.abs(theirs), initial=0.0)))
    difference = float(np.max(np.abs(np.asarray(ours, float) - theirs), initial=0.0)) if np.shape(ours) == np.shape(theirs) else np.inf
    if not difference <= TOLERANCE * scale:
        raise Mismatch(f"{what} differs by {difference:.3g} (scale {scale:.3g})")


@contextmanager
def any_size() -> Iterator[None]:
    """Apply optimizations for large tensors to tensors of all sizes."""
    before = shared_variables.CHEAPER, shared_variables.FAR_CHEAPER
    shared_variables.CHEAPER = shared_variables.FAR_CHEAPER = 0
    try:
        yield
    finally:
        shared_variables.CHEAPER, shared_variables.FAR_CHEAPER = before


def check(world: World, program: Program, graph: Graph | None = None, target: Target = CPU) -> None:
    """Raise Mismatch unless two steps on the ranks equal two steps of the kernels on whole arrays, for all ends and variables.

    The ranks run once with private memory and once with shared memory.
    """
    graph = graph_of(program) if graph is None else graph
    _check(world, program, graph, target, common=False)
    if program.ranks > 1:
        with any_size():
            _check(world, program, graph, target, common=True)


def _check(world: World, program: Program, graph: Graph, target: Target, common: bool) -> None:
    arguments, values = first_values(graph, program.seed)
    bound = Bound(world, distribute(graph), common=common, target=target)
    how = "in common memory" if common else "in own memory"
    try:
        bound.write(values)
        for step in range(STEPS):
            outputs, new = evaluate(graph, arguments, values)
            for name, ours, theirs in zip(("loss", *program.ends), bound.run(**arguments), outputs, strict=True):
                compare(f"{how}, step {step}: {name}", ours, theirs)
            values = values | new
            for name, value in values.items():
                compare(f"{how}, step {step}: variable {name}", bound.read(name), value)
    finally:
        bound.close()
