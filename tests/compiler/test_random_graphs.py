"""Random programs with random layout wishes, forward and backward: on any number of ranks they give what their kernels give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from traced import Bound, Sgd, evaluate, first, on, text, trace, variable, world_of

from jobflow import optimizer, scope
from jobflow.compiler.compile import distribute
from jobflow.compiler.trace import Tracer
from jobflow.graph.ir import Graph
from jobflow.layout import B, P, Placement, S
from jobflow.ops.activation import relu, sigmoid, tanh
from jobflow.ops.arithmetic import add, maximum, multiply, subtract
from jobflow.ops.axes import expand_dims, reshape, transpose
from jobflow.ops.index import gather
from jobflow.ops.layout_ops import to_layout
from jobflow.ops.linalg import bias_add, matmul
from jobflow.ops.loss import sparse_softmax_cross_entropy
from jobflow.ops.norm import layer_norm
from jobflow.ops.random import dropout
from jobflow.ops.reduce import reduce_max, reduce_mean, reduce_sum
from jobflow.ops.slices import concat, slice_
from jobflow.ops.softmax import softmax
from jobflow.runtime.world.base import World
from jobflow.types import TensorType, float64, int64

Random = np.random.Generator
PROGRAMS = 20  # for each number of ranks


class Program:
    """Grows a graph op by op: every choice comes from `random`, so a seed is a program."""

    def __init__(self, tracer: Tracer, random: Random) -> None:
        self.tracer, self.random = tracer, random
        self.sizes = [int(n) for n in random.integers(1, 8, 3)]
        self.weights = 0
        self.pool: list[Any] = [
            tracer.input("x", TensorType((self.size(), self.size()), float64)),
            tracer.input("y", TensorType((self.size(), self.size(), self.size()), float64)),
            self.weight(self.size(), self.size()),
        ]

    def size(self) -> int:
        return int(self.random.choice(self.sizes))

    def weight(self, *shape: int) -> Any:
        self.weights += 1
        axes = [B, *(S(axis) for axis in range(len(shape)))]
        return variable(self.tracer, f"w{self.weights}", *shape, dtype=float64, sbp=axes[int(self.random.integers(len(axes)))])

    def grow(self) -> None:
        x = self.pool[int(self.random.integers(len(self.pool)))]
        step = STEPS[int(self.random.integers(len(STEPS)))]
        with scope.using(placement=self.place()):
            y = step(self, x)
            if self.random.random() < 0.3:
                y = self.wish(y)
        if y.type.size <= 4000:
            self.pool.append(y)

    def place(self) -> Placement:
        """All ranks, mostly; else some of them in any order."""
        ranks = self.tracer.placement.ranks
        if self.random.random() < 0.8:
            return self.tracer.placement
        chosen = self.random.permutation(len(ranks))[: int(self.random.integers(1, len(ranks) + 1))]
        return on(*(ranks[i] for i in chosen))

    def wish(self, x: Any) -> Any:
        kinds = [B, P, *(S(axis) for axis in range(x.ndim))]
        asked, back = (kinds[int(self.random.integers(len(kinds)))] for _ in range(2))
        return to_layout(x, asked, grad=(back,) if self.random.random() < 0.5 else None)

    def losses(self) -> tuple[Any, ...]:
        """Two scalars that every value that nobody reads contributes to, and one tensor more."""
        total = reduce_sum(self.pool[2])
        for x in self.pool[-4:]:
            total = add(total, reduce_mean(tanh(x)))
        return total, add(reduce_mean(self.pool[2]), reduce_sum(sigmoid(self.pool[-1])))


def _axis(p: Program, x: Any) -> int:
    return int(p.random.integers(x.ndim))


def _matmul(p: Program, x: Any) -> Any:
    if x.ndim < 2:
        return tanh(x)
    flip = bool(p.random.random() < 0.5)
    n = p.size()
    w = p.weight(*((n, x.shape[-1]) if flip else (x.shape[-1], n)))
    return tanh(matmul(x, w, transpose_b=flip))


def _self_product(p: Program, x: Any) -> Any:
    return tanh(matmul(x, x, transpose_a=True)) if x.ndim == 2 else relu(x)


def _partner(p: Program, x: Any) -> Any:
    """Something of the shape of x, of a shape that broadcasts to it, or x itself."""
    same = [y for y in p.pool if y.shape == x.shape]
    choice = p.random.random()
    if choice < 0.4 or not x.ndim:
        return same[int(p.random.integers(len(same)))] if same else x
    shape = tuple(n if p.random.random() < 0.6 else 1 for n in x.shape)
    return p.weight(*shape[int(p.random.integers(len(shape))) :])


def _joined(p: Program, x: Any) -> Any:
    return concat([x, tanh(x), x], axis=_axis(p, x)) if x.ndim else x


def _sliced(p: Program, x: Any) -> Any:
    if not x.ndim:
        return x
    starts = [int(p.random.integers(n)) if p.random.random() < 0.5 else 0 for n in x.shape]
    stops = [int(p.random.integers(a + 1, n + 1)) for a, n in zip(starts, x.shape, strict=True)]
    return slice_(x, starts, stops)


def _flat(p: Program, x: Any) -> Any:
    if x.ndim < 2:
        return expand_dims(x, 0)
    axis = int(p.random.integers(x.ndim - 1))
    return reshape(x, (*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :]))


def _gathered(p: Program, x: Any) -> Any:
    if not x.ndim or x.shape[0] < 2:
        return x
    ids = p.tracer.inputs["ids"] if "ids" in p.tracer.inputs else p.tracer.input("ids", TensorType((5,), int64))
    return gather(x, ids)


def _normed(p: Program, x: Any) -> Any:
    if x.ndim < 2:
        return x
    result = layer_norm(x, p.weight(x.shape[-1]), p.weight(x.shape[-1]), x.ndim - 1, 1e-5)
    return result[0] if isinstance(result, tuple) else result


def _dropped(p: Program, x: Any) -> Any:
    return dropout(x, 0.4, p.tracer.run_counter(), key=f"drop{len(p.tracer.nodes)}", seed=3)


def _lost(p: Program, x: Any) -> Any:
    """Cross entropy of rows, spread over their columns again."""
    if x.ndim != 2 or x.shape[0] != 5 or "ids" not in p.tracer.inputs:
        return sigmoid(x)
    return multiply(x, expand_dims(sparse_softmax_cross_entropy(concat([x, x, x], 1), p.tracer.inputs["ids"]), 1))


STEPS: tuple[Callable[[Program, Any], Any], ...] = (
    _matmul,
    _matmul,
    _self_product,
    lambda p, x: add(x, _partner(p, x)),
    lambda p, x: multiply(x, _partner(p, x)),
    lambda p, x: subtract(tanh(x), _partner(p, x)),
    lambda p, x: maximum(x, _partner(p, x)),
    lambda p, x: relu(x),
    lambda p, x: softmax(x, _axis(p, x)) if x.ndim else x,
    lambda p, x: reduce_sum(x, (_axis(p, x),), bool(p.random.random() < 0.5)) if x.ndim > 1 else x,
    lambda p, x: reduce_mean(x, (_axis(p, x),)) if x.ndim > 1 else x,
    lambda p, x: reduce_max(x, (_axis(p, x),)) if x.ndim > 1 else x,
    lambda p, x: transpose(x, [int(i) for i in p.random.permutation(x.ndim)]) if x.ndim > 1 else x,
    lambda p, x: bias_add(x, p.weight(x.shape[-1]), x.ndim - 1) if x.ndim > 1 else x,
    _joined,
    _sliced,
    _flat,
    _gathered,
    _normed,
    _dropped,
    _lost,
)

OPTIMIZERS: tuple[Callable[[], Any], ...] = (
    Sgd,
    lambda: optimizer.SGD(optimizer.PiecewiseConstantScheduler([], [0.5]), momentum=0.9),
    lambda: optimizer.AdamW(optimizer.PiecewiseConstantScheduler([1], [0.1, 0.05]), weight_decay=0.1),
    lambda: optimizer.SGD(optimizer.CosineScheduler(10, 0.5), momentum=0.0, grad_clipping=optimizer.grad_clipping.by_global_norm(0.5)),
)


def program(seed: int, n: int) -> Graph:
    """The training graph of one random program; the same logical one for any n."""

    def body(tracer: Tracer) -> tuple[Any, ...]:
        made = Program(tracer, np.random.default_rng(seed))
        for _ in range(int(made.random.integers(5, 16))):
            made.grow()
        return made.losses()

    return trace(body, first(n), train=True, optimizer=OPTIMIZERS[seed % len(OPTIMIZERS)]())


def first_values(graph: Graph, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments and variables that depend on the seed alone."""
    random = np.random.default_rng(1000 + seed)
    values = {name: random.normal(size=v.type.shape) for name, v in sorted(graph.variables.items()) if v.trainable}
    made: dict[str, Any] = {
        "#run": lambda size: np.zeros(size, np.int64),
        "x": random.normal,
        "y": random.normal,
        "ids": lambda size: random.integers(0, 2, size),
    }
    arguments = {name: draw(size=v.shape) for name, draw in made.items() for v in graph.inputs if v.name == name}
    return arguments, values


def check(world: World, graph: Graph, seed: int) -> None:
    """Two steps of the compiled graph against two of its kernels on whole arrays."""
    arguments, values = first_values(graph, seed)
    bound = Bound(world, distribute(graph))
    bound.write(values)
    for _ in range(2):
        outputs, new = evaluate(graph, arguments, values)
        for ours, theirs in zip(bound.run(**arguments), outputs, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)
        values = values | new
        for name, value in values.items():
            np.testing.assert_allclose(bound.read(name), value, rtol=1e-9, atol=1e-9, err_msg=name)
    bound.close()


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_random_programs_are_what_their_kernels_give(n: int) -> None:
    with world_of(n) as world:
        for seed in (100 * n + i for i in range(PROGRAMS)):
            graph = program(seed, n)
            try:
                check(world, graph, seed)
            except Exception as error:
                error.add_note(f"seed {seed} on {n} ranks\n{text(graph)}")
                raise
