"""Random programs of 10 to 40 ops: a random generator chooses each statement, so a seed determines a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from programs import OPTIMIZERS, Program, words

from jobflow import scope
from jobflow.compiler.front.trace import Tracer
from jobflow.core.layout import Placement

MESHES: tuple[tuple[int, ...], ...] = ((1,), (2,), (3,), (4,), (2, 2), (3, 2), (2, 1), (2, 2, 2))
#: maximum number of elements of values that later statements read
LARGEST = 3000


class Growth:
    """A program that grows statement by statement; the statements are traced, so their shapes are known."""

    def __init__(self, seed: int, meshes: tuple[tuple[int, ...], ...] = MESHES) -> None:
        self.seed = seed
        self.random = np.random.default_rng(seed)
        self.mesh = meshes[int(self.random.integers(len(meshes)))]
        self.ranks = int(np.prod(self.mesh))
        self.sizes = [int(n) for n in self.random.integers(1, 8, 3)]
        self.lines: list[str] = []
        self.pool: list[str] = []
        self.tracer = Tracer(name="job", placement=Placement("cpu", tuple(range(self.ranks)), self.mesh))
        self.words = words(self.tracer)

    # ---------------------------------------------------------------- choices

    def chance(self, probability: float) -> bool:
        return bool(self.random.random() < probability)

    def one(self, choices: Any) -> Any:
        return choices[int(self.random.integers(len(choices)))]

    def size(self) -> int:
        return int(self.one(self.sizes))

    def axis(self, x: str) -> int:
        return int(self.random.integers(len(self.shape(x))))

    def shape(self, x: str) -> tuple[int, ...]:
        return tuple(self.words[x].shape)

    def pick(self, *ndims: int) -> str:
        """Return a float value, if possible with one of these numbers of axes; recent values have a higher probability."""
        candidates = [x for x in self.pool if not ndims or len(self.shape(x)) in ndims]
        if not candidates:
            return self.weight(*(self.size() for _ in range(ndims[0])))
        return str(candidates[-1 - int(len(candidates) * self.random.random() ** 2)])

    def marks(self, ndim: int, dimensions: int, partial: bool = True) -> str:
        """Return one S/B/P per mesh dimension, as text."""
        kinds = ["B", *(f"S({axis})" for axis in range(ndim))] + (["P", "P"] if partial else [])
        result = [self.one(kinds) for _ in range(dimensions)]
        if partial and dimensions == 1 and self.chance(0.05):
            result = [self.one(["PMAX", "PMIN"])]
        return ", ".join(result)

    # ---------------------------------------------------------------- statements

    def say(self, expression: str, mark: str = "t", placement: str = "") -> str:
        """Append `name = expression`; return the name."""
        name = f"{mark}{len(self.lines)}"
        line = f"{placement}{name} = {expression.replace('@', name)}"
        with scope.using(interpreter=self.tracer, placement=self.tracer.placement, view="consistent", namespace=()):
            exec(line, self.words)
        self.lines.append(line)
        return name

    def weight(self, *shape: int) -> str:
        sbp = f", sbp=({self.marks(len(shape), len(self.mesh), partial=False)},)" if self.chance(0.5) else ""
        sizes = "".join(f", {n}" for n in shape)
        return self.say(f'weight("@"{sizes}{sbp})', "w")

    def distinct(self, x: str) -> str:
        """Add noise to x, so that no two elements are equal up to rounding: maxima and signs are then the same on all ranks."""
        return self.say(f"add({x}, {self.weight(*self.shape(x))})")

    def placement(self) -> str:
        """Return all ranks in most cases, otherwise some of them in any order, in a mesh of one or two dimensions."""
        if self.ranks == 1 or self.chance(0.85):
            return ""
        chosen = [int(r) for r in self.random.permutation(self.ranks)[: int(self.random.integers(1, self.ranks + 1))]]
        half = len(chosen) // 2
        mesh = f", mesh=(2, {half})" if len(self.mesh) > 1 and len(chosen) % 2 == 0 and self.chance(0.5) else ""
        return f"with place({', '.join(map(str, chosen))}{mesh}): "

    def grow(self) -> None:
        expression = self.one(STEPS)(self)
        if expression is None:
            return
        result = self.say(expression, placement=self.placement())
        if not self.words[result].dtype.is_float:
            return
        if self.chance(0.25):
            ndim = len(self.shape(result))
            grad = f", grad=({self.marks(ndim, len(self.mesh))},)" if self.chance(0.5) else ""
            result = self.say(f"to_layout({result}, {self.marks(ndim, len(self.mesh))}{grad})")
        if self.words[result].tensor_type.size <= LARGEST:
            self.pool.append(result)


def grown(seed: int, meshes: tuple[tuple[int, ...], ...] = MESHES) -> Program:
    """Return the random program of a seed."""
    g = Growth(seed, meshes)
    for mark, ndim in (("x", 2), ("y", 3)):
        sizes = ", ".join(str(g.size()) for _ in range(ndim))
        g.pool.append(g.say(f'argument("@", {sizes})', mark))
    g.pool.append(g.weight(g.size(), g.size()))
    aim = int(g.random.integers(10, 41))
    while ops(g.lines) < aim:
        g.grow()
    used = " ".join(line.partition("=")[2] for line in g.lines)
    ends = tuple(x for x in g.pool if not _mentions(used, x)) or (g.pool[-1],)
    return Program(tuple(g.lines), ends, g.mesh, sorted(OPTIMIZERS)[seed % len(OPTIMIZERS)], seed)


def ops(lines: Any) -> int:
    """Return the number of statements, without sources."""
    return sum(not any(f"= {word}(" in line for word in ("weight", "argument", "indices")) for line in lines)


def _mentions(text: str, name: str) -> bool:
    return name in text.replace("(", " ").replace(")", " ").replace(",", " ").replace("[", " ").replace("]", " ").split()


# Statements: each function returns an expression, or None if no value of the program fits. --------


def _unary(g: Growth) -> str:
    kinds = "tanh sigmoid gelu softplus swish softsign negate square sin cos erf mish elu atan identity"
    word = g.one(kinds.split())
    x = g.pick()
    return f"tanh(square({x}))" if word == "square" else f"{word}({x})"


def _kinked(g: Growth) -> str:
    word = g.one(["relu({})", "leaky_relu({})", "absolute({})", "hard_tanh({})", "clip({}, -0.5, 0.7)", "relu6({})"])
    return str(word.format(g.distinct(g.pick())))


def _scalar(g: Growth) -> str:
    return str(g.one(["scale({}, -1.5)", "shift({}, 0.3)", "log(shift(square({}), 1.0))", "sqrt(shift(square({}), 1.0))"]).format(g.pick()))


def _partner(g: Growth, x: str) -> str:
    """Return a value of the shape of x, a value that broadcasts to it, or x itself."""
    shape = g.shape(x)
    same = [y for y in g.pool if g.shape(y) == shape]
    if not shape or g.chance(0.4):
        return str(g.one(same)) if same else x
    small = [n if g.chance(0.6) else 1 for n in shape]
    return g.weight(*small[int(g.random.integers(len(small))) :])


def _binary(g: Growth) -> str:
    x = g.pick()
    y = _partner(g, x)
    x, y = (x, y) if g.chance(0.5) else (y, x)
    forms = ["add({}, {})", "subtract({}, {})", "multiply({}, {})", "tanh(multiply({}, {}))", "divide({}, shift(square({}), 1.0))"]
    return str(g.one([*forms, "squared_difference(tanh({}), {})"]).format(x, y))


def _choice(g: Growth) -> str:
    x = g.distinct(g.pick())
    return f"{g.one(['maximum', 'minimum'])}({x}, {_partner(g, x)})"


def _where(g: Growth) -> str:
    x = g.distinct(g.pick())
    truth = g.say(f"greater({x}, {g.weight(*g.shape(x))})", "b")
    return f"where({truth}, {x}, tanh({_partner(g, x)}))"


def _matmul(g: Growth) -> str:
    x = g.pick(2)
    flip_x, flip_w = g.chance(0.3), g.chance(0.5)
    k, n = g.shape(x)[0 if flip_x else 1], g.size()
    w = g.weight(*((n, k) if flip_w else (k, n)))
    return f"tanh(matmul({x}, {w}, transpose_a={flip_x}, transpose_b={flip_w}))"


def _pool_matmul(g: Growth) -> str | None:
    """Multiply two values of the pool."""
    x = g.pick(2)
    candidates = [y for y in g.pool if len(g.shape(y)) == 2 and g.shape(y)[0] == g.shape(x)[1]]
    return f"tanh(matmul({x}, {g.one(candidates)}))" if candidates else f"tanh(matmul({x}, {x}, transpose_a=True))"


def _batch_matmul(g: Growth) -> str:
    x = g.pick(3)
    b, _, k = g.shape(x)
    w = g.weight(b, k, g.size()) if g.chance(0.5) else g.weight(k, g.size())
    return f"tanh(matmul({x}, {w}))"


def _bias(g: Growth) -> str:
    x = g.pick(2, 3, 4)
    axis = g.axis(x)
    return f"bias_add({x}, {g.weight(g.shape(x)[axis])}, {axis})"


def _reduce(g: Growth) -> str | None:
    x = g.pick(2, 3, 4)
    word = g.one(["reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "logsumexp", "reduce_variance"])
    x = g.distinct(x) if word in ("reduce_max", "reduce_min") else x
    axes = sorted({g.axis(x) for _ in range(int(g.random.integers(1, 3)))})
    axes = axes[: len(g.shape(x)) - 1]
    return f"tanh({word}({x}, {tuple(axes)}, {g.chance(0.5)}))"


def _softmax(g: Growth) -> str:
    x = g.pick(1, 2, 3)
    return f"{g.one(['softmax', 'log_softmax'])}({x}, {g.axis(x)})"


def _causal(g: Growth) -> str:
    x = g.pick(3)
    n = g.shape(x)[1]
    return f"causal_softmax(matmul({x}, {g.weight(*g.shape(x))}, transpose_b=True), 0.5)" if n else f"tanh({x})"


def _norm(g: Growth) -> str:
    x = g.pick(2, 3)
    width = g.shape(x)[-1]
    gamma, beta = g.weight(width), g.weight(width)
    return f"layer_norm({x}, {gamma}, {beta}, {len(g.shape(x)) - 1}, 0.1)"


def _batch_norm(g: Growth) -> str:
    x = g.pick(2, 4)
    axis = g.axis(x)
    n = g.shape(x)[axis]
    return f"batch_norm_train({x}, {g.weight(n)}, {g.weight(n)}, {axis}, 0.1)[0]"


def _image(g: Growth) -> str:
    """Return a value with a batch, channels and two spatial axes."""
    image = [x for x in g.pool if len(g.shape(x)) == 4 and min(g.shape(x)[2:]) >= 2]
    if image and g.chance(0.7):
        return str(g.one(image))
    x = g.weight(g.size(), int(g.random.integers(1, 5)), int(g.random.integers(3, 7)), int(g.random.integers(3, 7)))
    g.pool.append(x)
    return x


def _conv(g: Growth) -> str:
    x = _image(g)
    channels = g.shape(x)[1]
    groups = channels if g.chance(0.2) else 1
    w = g.weight(groups * int(g.random.integers(1, 4)), channels // groups, 2, int(g.random.integers(1, 3)))
    padding = g.one(['"same"', '"valid"'])
    return f"tanh(conv({x}, {w}, strides={int(g.random.integers(1, 3))}, padding={padding}, groups={groups}))"


def _pooled(g: Growth) -> str:
    x = g.distinct(_image(g))
    word, padding = g.one(["max_pool", "avg_pool"]), g.one(["same", "valid"])
    return f'{word}({x}, 2, {int(g.random.integers(1, 3))}, "{padding}")'


def _reshape(g: Growth) -> str:
    x = g.pick(2, 3, 4)
    shape = list(g.shape(x))
    if g.chance(0.6):
        axis = int(g.random.integers(len(shape) - 1))
        shape[axis : axis + 2] = [shape[axis] * shape[axis + 1]]
    else:
        axis = g.axis(x)
        divisors = [d for d in range(1, shape[axis] + 1) if shape[axis] % d == 0]
        d = int(g.one(divisors))
        shape[axis : axis + 1] = [d, shape[axis] // d]
    return f"reshape({x}, {tuple(shape)})"


def _axes(g: Growth) -> str:
    x = g.pick(1, 2, 3)
    ndim = len(g.shape(x))
    if ndim > 1 and g.chance(0.7):
        return f"transpose({x}, {[int(i) for i in g.random.permutation(ndim)]})"
    return f"expand_dims({x}, {int(g.random.integers(ndim + 1))})"


def _slice(g: Growth) -> str:
    x = g.pick(1, 2, 3)
    starts = [int(g.random.integers(n)) if g.chance(0.5) else 0 for n in g.shape(x)]
    stops = [int(g.random.integers(a + 1, n + 1)) for a, n in zip(starts, g.shape(x), strict=True)]
    steps = [2 if g.chance(0.2) else 1 for _ in starts]
    return f"slice_({x}, {starts}, {stops}, {steps})"


def _joined(g: Growth) -> str:
    x = g.pick(1, 2, 3)
    axis = g.axis(x)
    others = [n for i, n in enumerate(g.shape(x)) if i != axis]
    rest = [y for y in g.pool if len(g.shape(y)) == len(g.shape(x)) and [n for i, n in enumerate(g.shape(y)) if i != axis] == others]
    return f"concat([{x}, tanh({x}), {g.one(rest)}], {axis})"


def _padded(g: Growth) -> str:
    x = g.pick(1, 2, 3)
    if g.chance(0.3):
        return f"flip({x}, [{g.axis(x)}])"
    return f"pad({x}, {[(int(g.random.integers(2)), int(g.random.integers(3))) for _ in g.shape(x)]}, 0.5)"


def _tiled(g: Growth) -> str:
    x = g.pick(1, 2)
    if g.chance(0.5):
        return f"tile({x}, {[int(g.random.integers(1, 3)) for _ in g.shape(x)]})"
    return f"broadcast_to({x}, {(g.size(), *g.shape(x))})"


def _ids(g: Growth, *shape: int) -> str:
    known = [name for name, value in g.words.items() if name.startswith("i") and name[1:].isdigit() and tuple(value.shape) == shape]
    return str(g.one(known)) if known else g.say(f'indices("@", {", ".join(map(str, shape))})', "i")


def _gather(g: Growth) -> str:
    x = g.pick(1, 2, 3)
    axis = g.axis(x)
    ids = _ids(g, *((4,) if g.chance(0.5) else (2, 3)))
    return f"gather({x}, {ids}, {axis})" if g.chance(0.7) else f"unsorted_segment_sum({x}, {_ids(g, g.shape(x)[axis])}, 5, {axis})"


def _triangle(g: Growth) -> str:
    return f"tril({g.pick(2, 3)}, {int(g.random.integers(-1, 2))})"


def _dropped(g: Growth) -> str:
    return f'drop({g.pick()}, "@")'


def _lost(g: Growth) -> str:
    """Return the cross entropy of each row, broadcast to the columns."""
    x = g.pick(2)
    rows, classes = g.shape(x)
    kind = g.one(["sparse", "split", "dense", "sigmoid", "smooth"])
    if kind in ("sparse", "split") and classes >= 2:
        word = "sparse_softmax_cross_entropy" if kind == "sparse" else "split_sparse_softmax_cross_entropy"
        return f"multiply({x}, expand_dims({word}({x}, {_ids(g, rows)}), 1))"
    if kind == "dense":
        return f"softmax_cross_entropy({x}, softmax({g.weight(rows, classes)}, 1))"
    if kind == "smooth":
        return f"smooth_l1({x}, {g.weight(rows, classes)})"
    return f"sigmoid_cross_entropy({x}, sigmoid({g.weight(rows, classes)}))"


STEPS: tuple[Callable[[Growth], str | None], ...] = (
    _unary,
    _kinked,
    _scalar,
    _binary,
    _binary,
    _choice,
    _where,
    _matmul,
    _matmul,
    _pool_matmul,
    _batch_matmul,
    _bias,
    _reduce,
    _reduce,
    _softmax,
    _causal,
    _norm,
    _batch_norm,
    _conv,
    _pooled,
    _reshape,
    _axes,
    _slice,
    _joined,
    _padded,
    _tiled,
    _gather,
    _triangle,
    _dropped,
    _lost,
)
