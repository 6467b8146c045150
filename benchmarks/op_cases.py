"""The operations that `ops.py` times: one table for both sides, which call their functions by the same names.

A case is called as call(f, F, *inputs): f is jobflow or torch, F its nn.functional.  A letter stands for each input:

    x  any numbers     p  positive ones     u  between -1 and 1     g  above 1      [rows, columns]
    r  one row         v  one column        i  whole numbers        b  truth values
    l  a column's number for each row       s  a row's number for each row
    m  images [rows / 10, 10, 10, columns / 10]                     c  one number for each channel
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
#: [rows, columns], and how many equal operations one program has
SIZES: dict[str, tuple[tuple[int, int], int]] = {"eager": ((4, 6), 1), "1e4": ((100, 100), 20), "1e6": ((1000, 1000), 4), "1e7": ((10000, 1000), 1)}
#: letters of inputs that have gradients
FLOATS = frozenset("xpugrvmc")


@dataclass(frozen=True)
class Case:
    name: str
    inputs: str
    call: Callable[..., Any]
    #: whether its gradient is timed as well
    backward: bool = True
    #: why it may take more than one and a half times as long as PyTorch
    reason: str = ""


def array(kind: str, size: tuple[int, int], random: np.random.RandomState) -> Array:
    rows, columns = size
    match kind:
        case "i":
            return random.randint(-100, 100, size)
        case "b":
            return random.random_sample(size) < 0.5
        case "l" | "s":
            return random.randint(0, columns if kind == "l" else rows, rows)
    shapes = {"r": (columns,), "v": (rows, 1), "m": (max(rows // 10, 2), 10, 10, max(columns // 10, 2)), "c": (10,)}
    shape = shapes.get(kind, size)
    ends = {"p": (0.1, 3.0), "u": (-0.99, 0.99), "g": (1.01, 3.0)}
    values = random.uniform(*ends[kind], shape) if kind in ends else random.standard_normal(shape)
    return values.astype(np.float32)


def inputs(case: Case, size: str, copies: int) -> list[list[Array]]:
    """Return the inputs of each of the equal operations: equal numbers in separate memory."""
    random = np.random.RandomState(5)
    group = [array(kind, SIZES[size][0], random) for kind in case.inputs]
    return [group, *([a.copy() for a in group] for _ in range(copies - 1))]


def _named(kind: str, names: str, backward: bool = True) -> list[Case]:
    def calling(name: str) -> Callable[..., Any]:
        return lambda f, F, *x: getattr(f, name)(*x)

    return [Case(name, kind, calling(name), backward) for name in names.split()]


def _activation(names: str) -> list[Case]:
    def calling(name: str) -> Callable[..., Any]:
        return lambda f, F, x: getattr(F, name)(x)

    return [Case(name, "x", calling(name)) for name in names.split()]


SORTS = "NumPy sorts"
PAGES = "2.5 ns an element in the cache or in huge pages; in pages of 4 KB up to 3.7, where addresses are translated slowly"
#: there is no such tensor in a compiled program: what is written is what is timed
VIEW = "with gradients: PyTorch's is a view of fewer numbers, ours is written"
SAME = "with gradients: PyTorch's are what came in, or views of it; ours are written"

CASES = [
    *_named("x", "abs neg exp expm1 square sin cos tan atan tanh sinh cosh asinh erf erfc sigmoid"),
    *_named("p", "log log2 log10 log1p sqrt rsqrt reciprocal"),
    *_named("u", "asin acos atanh"),
    *_named("g", "acosh"),
    *_named("x", "floor ceil round trunc sign isnan", backward=False),
    *_activation("relu relu6 leaky_relu elu celu selu gelu silu mish softplus softsign hardtanh hardsigmoid hardswish"),
    *_activation("hardshrink softshrink tanhshrink logsigmoid"),
    Case("gelu tanh", "x", lambda f, F, x: F.gelu(x, approximate="tanh")),
    Case("glu", "x", lambda f, F, x: F.glu(x, -1)),
    Case("prelu", "mc", lambda f, F, x, w: F.prelu(x, w)),
    *_named("xx", "mul maximum minimum atan2"),
    Case("add", "xx", lambda f, F, x, y: x + y, reason=SAME),
    Case("sub", "xx", lambda f, F, x, y: x - y, reason=SAME),
    Case("div", "xp", lambda f, F, x, y: x / y),
    Case("pow", "px", lambda f, F, x, y: f.pow(x, y), reason=PAGES),
    Case("pow 3", "x", lambda f, F, x: x**3),
    Case("fmod", "xp", lambda f, F, x, y: f.fmod(x, y), backward=False),
    Case("add number", "x", lambda f, F, x: x + 2.0, reason=SAME),
    Case("mul row", "xr", lambda f, F, x, y: x * y),
    Case("add column", "xv", lambda f, F, x, y: x + y),
    Case("add transposed", "xx", lambda f, F, x, y: x + y.reshape(y.shape[1], y.shape[0]).t(), backward=False),
    Case("lerp", "xx", lambda f, F, x, y: f.lerp(x, y, 0.3)),
    Case("addcmul", "xxx", lambda f, F, x, y, z: f.addcmul(x, y, z)),
    Case("clamp", "x", lambda f, F, x: f.clamp(x, -0.5, 0.5)),
    Case("where", "bxx", lambda f, F, c, x, y: f.where(c, x, y)),
    Case("masked_fill", "xb", lambda f, F, x, c: f.masked_fill(x, c, 0.5)),
    Case("lt", "xx", lambda f, F, x, y: x < y, backward=False),
    Case("logical_and", "bb", lambda f, F, x, y: f.logical_and(x, y), backward=False),
    Case("integers add", "ii", lambda f, F, x, y: x + y, backward=False),
    Case("integers floor_divide", "ii", lambda f, F, x, y: f.floor_divide(x, f.abs(y) + 1), backward=False),
    Case("to float64", "x", lambda f, F, x: x.to(f.float64)),
    Case("to float16", "x", lambda f, F, x: x.to(f.float16)),
    Case("to int32", "x", lambda f, F, x: x.to(f.int32), backward=False),
    Case("sum", "x", lambda f, F, x: x.sum(), reason=VIEW),
    Case("sum of rows", "x", lambda f, F, x: f.sum(x, dim=1), reason=VIEW),
    Case("sum of columns", "x", lambda f, F, x: f.sum(x, dim=0), reason=VIEW),
    Case("mean of rows", "x", lambda f, F, x: f.mean(x, dim=1)),
    Case("amax of rows", "x", lambda f, F, x: f.amax(x, 1)),
    Case("argmax of rows", "x", lambda f, F, x: f.argmax(x, 1), backward=False),
    Case("var of rows", "x", lambda f, F, x: f.var(x, dim=1)),
    Case("logsumexp", "x", lambda f, F, x: f.logsumexp(x, 1)),
    Case("cumsum", "x", lambda f, F, x: f.cumsum(x, 1)),
    Case("softmax", "x", lambda f, F, x: F.softmax(x, -1)),
    Case("log_softmax", "x", lambda f, F, x: F.log_softmax(x, -1)),
    Case("layer_norm", "xrr", lambda f, F, x, w, b: F.layer_norm(x, (x.shape[-1],), w, b)),
    Case("rms_norm", "xr", lambda f, F, x, w: F.rms_norm(x, (x.shape[-1],), w)),
    Case("group_norm", "mcc", lambda f, F, x, w, b: F.group_norm(x, 5, w, b)),
    Case("batch_norm", "mcc", lambda f, F, x, w, b: F.batch_norm(x, None, None, w, b, True)),
    Case("normalize", "x", lambda f, F, x: F.normalize(x, dim=-1)),
    Case("cross_entropy", "xl", lambda f, F, x, labels: F.cross_entropy(x, labels)),
    Case("mse_loss", "xx", lambda f, F, x, y: F.mse_loss(x, y)),
    Case("l1_loss", "xx", lambda f, F, x, y: F.l1_loss(x, y)),
    Case("smooth_l1_loss", "xx", lambda f, F, x, y: F.smooth_l1_loss(x, y)),
    Case("bce_with_logits", "xx", lambda f, F, x, y: F.binary_cross_entropy_with_logits(x, y)),
    Case("kl_div", "xp", lambda f, F, x, y: F.kl_div(x, y, reduction="batchmean")),
    Case("dropout", "x", lambda f, F, x: F.dropout(x, 0.1, True)),
    Case("transpose", "x", lambda f, F, x: x.t() * 1.0, reason="PyTorch's result lies in memory as its input does; ours is turned round"),
    Case("cat", "xx", lambda f, F, x, y: f.cat([x, y], 1), reason=SAME),
    Case("index_select", "xs", lambda f, F, x, s: f.index_select(x, 0, s), reason="positions are checked, and may count from the end"),
    Case("embedding", "xs", lambda f, F, x, s: F.embedding(s, x)),
    Case("one_hot", "l", lambda f, F, labels: F.one_hot(labels, 1000), backward=False),
    Case("flip", "x", lambda f, F, x: f.flip(x, [1])),
    Case("roll", "x", lambda f, F, x: f.roll(x, 3, 1)),
    Case("tril", "x", lambda f, F, x: f.tril(x)),
    Case("pad", "x", lambda f, F, x: F.pad(x, (1, 1))),
    Case("sort", "x", lambda f, F, x: f.sort(x, 1)[0], backward=False, reason=SORTS),
    Case("topk", "x", lambda f, F, x: f.topk(x, 5, 1)[0], backward=False),
    Case("linear", "xr", lambda f, F, x, w: F.linear(x, w.reshape(1, -1))),
    Case("matmul", "xx", lambda f, F, x, y: x[: x.shape[1]].t() @ y[: x.shape[1]]),
    Case("max_pool2d", "m", lambda f, F, x: F.max_pool2d(x, 2)),
    Case("avg_pool2d", "m", lambda f, F, x: F.avg_pool2d(x, 2)),
]  # fmt: skip
