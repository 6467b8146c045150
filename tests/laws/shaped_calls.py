"""Calls of functions with shapes of named sizes: the rows of `test_layout_laws`, which runs each of them in any layout on 1 to 4 ranks.

A row has the public name of a function, its tensors, and further arguments.  A tensor is `kind:axes`; a letter is an axis of a named size, and a
digit is a length.  `"x:ab x:b3"` are two tensors; the second one has the last axis of the first one, and an axis of length 3.  Kinds are

    x  different numbers between -2 and 2   p  between 0.3 and 2        u  between 0.1 and 0.9   n  numbers, some of them NaN, without gradients
    z  -1, 0 and 1, without gradients       i  integers from -9 to 9    d  integers, not 0       k  integers from 0 to 4
    b  truth values                         o  ascending numbers        @a  indices of an axis of size a
    c  as x, without gradients
    q  regular matrices                     s  symmetric positive definite matrices              l  lower triangular, regular matrices

Names start with `F` for `nn.functional`, and with `x` for methods of the first tensor.  The reference of a row is the call with local tensors, which
tests/conformance compares with PyTorch.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import function_table
import numpy as np

import jobflow as flow

Array = np.ndarray[Any, Any]
F = flow.nn.functional
#: lengths of the axes: not divisible by the number of ranks, below the number of ranks, 1, and 0
SIZES: Mapping[str, Mapping[str, int]] = {
    "uneven": {"a": 5, "b": 3, "c": 7, "d": 2},
    "short": {"a": 2, "b": 1, "c": 3, "d": 2},
    "ones": {"a": 1, "b": 1, "c": 1, "d": 1},
    "empty": {"a": 0, "b": 3, "c": 2, "d": 1},
    "empty last": {"a": 3, "b": 0, "c": 1, "d": 2},
}
#: kinds with gradients
FLOATS = "xpuqsl"


@dataclass(frozen=True, eq=False)
class Row:
    """A call of `function` with tensors of these kinds and axes."""

    name: str
    function: Callable[..., Any]
    tensors: tuple[tuple[str, str], ...]
    scale: tuple[tuple[float, float], ...] = ()
    #: the other arguments of a row of `function_table`
    more: tuple[Any, ...] | None = None

    def shape(self, i: int, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(int(axis) if axis.isdigit() else sizes[axis] for axis in self.tensors[i][1])

    def arrays(self, sizes: Mapping[str, int]) -> list[Array]:
        """Return the values of the tensors, which depend on the name of the row and on the sizes."""
        random = np.random.default_rng(zlib.crc32(f"{self.name} {sorted(sizes.items())}".encode()))
        arrays = [_values(random, kind, self.shape(i, sizes), sizes) for i, (kind, _) in enumerate(self.tensors)]
        return [(a + 2) / 4 * (high - low) + low for a, (low, high) in zip(arrays, self.scale, strict=True)] if self.scale else arrays


def _values(random: np.random.Generator, kind: str, shape: tuple[int, ...], sizes: Mapping[str, int]) -> Array:
    """Return the values of a tensor."""
    if kind[0] == "@":
        return random.integers(0, max(sizes.get(kind[1:], 0) or int(kind[1:].isdigit() and kind[1:]), 1), shape)
    if kind in "idk":
        low, high = {"i": (-9, 10), "d": (1, 6), "k": (0, 5)}[kind]
        drawn = random.integers(low, high, shape)
        return drawn * random.choice([-1, 1], shape) if kind == "d" else drawn
    if kind == "b":
        return random.random(shape) < 0.5
    if kind == "z":
        return random.integers(-1, 2, shape).astype(float)
    size = int(np.prod(shape))
    x = ((random.permutation(size) + random.uniform(0.1, 0.9, size)) / max(size, 1) * 4 - 2).reshape(shape)
    if kind == "n":
        return np.where(random.random(shape) < 0.3, np.nan, x)
    if kind == "o":
        return np.sort(x)
    if kind in "qsl":
        eye = np.eye(shape[-1])
        return {"q": lambda: x + 5 * eye, "s": lambda: x @ x.swapaxes(-1, -2) + eye, "l": lambda: np.tril(x / 4) + 2 * eye}[kind]()
    return {"x": x, "c": x, "p": (x + 2) * 0.425 + 0.3, "u": (x + 2) * 0.2 + 0.1}[kind]


def public(name: str) -> Callable[..., Any]:
    """Return the function of a name."""
    where, _, word = name.rpartition(".")
    if where == "x":
        return lambda x, *more, **options: getattr(x, word)(*more, **options)
    return getattr({"": flow, "F": F, "linalg": flow.linalg, "special": flow.special, "rnn": flow.nn.utils.rnn}[where], word)


def row(name: str, tensors: str, *more: Any, joined: bool = False, **options: Any) -> Row:
    """Return the row of a function; `joined`: the function accepts a list of the tensors."""
    function = public(name)
    call = (lambda *x: function(list(x), *more, **options)) if joined else (lambda *x: function(*x, *more, **options))
    return Row(f"{name} {tensors} {more or ''}{options or ''}", call, _parsed(tensors))


def _parsed(tensors: str) -> tuple[tuple[str, str], ...]:
    return tuple((kind, axes) for kind, _, axes in (each.partition(":") for each in tensors.split()))


def of(name: str, tensors: str, function: Callable[..., Any]) -> Row:
    """Return the row of a function that calls the public one."""
    return Row(f"{name} {tensors}", function, _parsed(tensors))


def _called(function: Callable[..., Any], more: tuple[Any, ...], *tensors: Any) -> Any:
    return function(*tensors, *more)


def _of_tables() -> list[Row]:
    """Return the rows of the functions of numbers, with broadcasting and with tensors without axes."""
    rows = []
    for each in (*function_table.UNARY, *function_table.ACTIVATIONS, *function_table.WITH_ARGUMENTS, *function_table.BINARY):
        name = each.names[0] if each.names else ""
        if not name:
            continue
        word = name if "." in name or hasattr(flow, name) else f"F.{name}"
        for axes in (("ab",), ("",)) if len(each.domain) == 1 else (("ab", "b"), ("b", "ab"), ("", "ab"), ("a1", "b")):
            if axes[0] or not each.options or name not in ("softmax", "log_softmax", "softmin"):
                call = partial(_called, public(word), each.options)
                rows.append(
                    Row(
                        f"{word} {axes} {each.options or ''}",
                        call,
                        tuple(("c" if i in each.constant else "x", a) for i, a in enumerate(axes)),
                        each.domain,
                        each.options,
                    )
                )
    return rows


ELEMENTWISE = (
    *_of_tables(),
    row("bitwise_left_shift", "i:ab k:b"),
    row("bitwise_right_shift", "i:b k:ab"),
    row("gcd", "i:ab i:b"),
    row("lcm", "d:b d:ab"),
    row("heaviside", "z:ab x:b"),
    row("nextafter", "x:ab x:b"),
    row("fmax", "n:ab x:b"),
    row("fmin", "x:b n:ab"),
    *(row(name, "x:ab") for name in ("signbit", "isneginf", "isposinf", "special.i1", "special.i1e", "special.expit", "special.round")),
    of("polygamma", "p:ab", lambda x: flow.polygamma(2, x)),
    of("mvlgamma", "p:ab", lambda x: flow.mvlgamma(x + 2, 3)),
    of("special.multigammaln", "p:a", lambda x: flow.special.multigammaln(x + 2, 2)),
    row("special.logsumexp", "x:abc", (0, 2)),
    row("special.logit", "u:ab", eps=0.2),
    row("softmax", "x:abc", 1, dtype=flow.float64),
    row("log_softmax", "x:ab", 0, dtype=flow.float64),
)
LINEAR_ALGEBRA = (
    row("linalg.inv", "q:abb"),
    row("inverse", "q:aa"),
    row("linalg.det", "q:abb"),
    row("det", "q:bb"),
    row("linalg.slogdet", "q:abb"),
    row("slogdet", "q:aa"),
    row("logdet", "s:abb"),
    row("linalg.solve", "q:abb x:abd"),
    row("linalg.solve", "q:aa x:a"),
    row("linalg.solve", "q:bb x:abd"),
    row("linalg.solve", "q:aa x:ab", left=True),
    row("linalg.solve", "q:bb x:ab", left=False),
    of("linalg.solve_ex", "q:abb x:abd", lambda a, b: flow.linalg.solve_ex(a, b)[0]),
    of("linalg.inv_ex", "q:abb", lambda a: flow.linalg.inv_ex(a)[0]),
    row("linalg.solve_triangular", "l:abb x:abd", upper=False),
    row("linalg.solve_triangular", "l:bb x:ab", upper=False, left=False),
    row("linalg.cholesky", "s:abb"),
    row("cholesky", "s:aa", True),
    of("linalg.cholesky_ex", "s:abb", lambda a: flow.linalg.cholesky_ex(a)[0]),
    row("cholesky_inverse", "l:abb"),
    row("cholesky_solve", "x:abd l:abb"),
    row("linalg.qr", "x:acb"),
    row("qr", "x:ca"),
    of("linalg.qr", "x:bd", lambda a: flow.linalg.qr(a, "r")[1]),
    of("linalg.eigh", "s:abb", lambda a: (flow.linalg.eigh(a)[0], flow.linalg.eigh(a)[1].square())),
    row("linalg.eigvalsh", "s:aa"),
    of("linalg.svd", "x:acb", lambda a: [y.square() for y in flow.linalg.svd(a, False)]),
    of("svd", "x:ac", lambda a: [y.square() for y in flow.svd(a)]),
    row("linalg.svdvals", "x:ab"),
    row("linalg.pinv", "x:acb"),
    row("pinverse", "x:ab"),
    of("linalg.lstsq", "x:cb x:ca", lambda a, b: flow.linalg.lstsq(a, b)[0]),
    row("linalg.matrix_rank", "x:acb"),
    row("linalg.matrix_power", "q:abb", 3),
    row("matrix_power", "q:aa", -2),
    row("linalg.matrix_exp", "x:abb"),
    row("matrix_exp", "x:aa"),
    row("linalg.multi_dot", "x:ab x:bc x:c", joined=True),
    row("chain_matmul", "x:ab x:bc x:cd"),
    *(row("linalg.norm", "x:ab", *more) for more in ((), ("fro",), ("nuc",), (1,), (-float("inf"),), (2,))),
    row("linalg.norm", "x:abc", None, 1),
    *(row("linalg.matrix_norm", "x:abc", kind, (0, 2)) for kind in ("fro", float("inf"), -1)),
    *(row("linalg.vector_norm", "x:abc", kind, axes) for kind, axes in ((2, None), (3, 1), (0, (0, 2)), (float("inf"), 0), (-1, 2), (0.5, (1, 2)))),
    *(row("linalg.cond", "q:abb", kind) for kind in (None, "fro", 1)),
    of("linalg.tensorinv", "q:aa", lambda a: flow.linalg.tensorinv(a, 1)),
    row("linalg.tensorsolve", "q:aa x:a"),
    row("linalg.vander", "x:ab", N=4),
    row("linalg.vecdot", "x:ab x:b"),
    row("linalg.vecdot", "x:abc x:abc", dim=1),
    row("linalg.cross", "x:a3 x:13"),
    row("linalg.cross", "x:3ab x:31b", dim=0),
    row("cross", "x:ab3 x:ab3"),
    row("linalg.diagonal", "x:abc", offset=1),
    row("x.trace", "x:ab"),
)
PRODUCTS = (
    row("cov", "x:ab"),
    row("cov", "x:a", correction=0),
    of("cov", "x:bc k:c p:c", lambda x, f, a: flow.cov(x, fweights=f + 1, aweights=a)),
    row("corrcoef", "x:bc"),
    row("addbmm", "x:ab x:cad x:cdb", beta=0.5, alpha=2),
    row("addbmm", "x:b x:cad x:cdb"),
    row("addmv", "x:a x:ab x:b", beta=2, alpha=-1),
    row("addr", "x:ab x:a x:b", beta=-1, alpha=0.5),
    row("addr", "x:b x:a x:b", beta=0),
    row("inner", "x:ab x:cb"),
    row("inner", "x:acb x:b"),
    row("inner", "x:ab x:"),
    row("vdot", "x:a x:a"),
    row("kron", "x:ab x:cd"),
    row("kron", "x:a x:bcd"),
    row("tensordot", "x:abc x:bcd"),
    row("tensordot", "x:abc x:dba", dims=([0, 1], [2, 1])),
    row("tensordot", "x:ab x:c", dims=0),
    *(row("cdist", "x:ab x:cb", p) for p in (2.0, 1.0, 3.0, float("inf"), 0.0)),
    row("cdist", "x:dab x:1cb"),
    row("dist", "x:ab x:b", 3),
    row("dist", "x:ab x:ab", float("inf")),
    row("block_diag", "x:ab x:cd x:a"),
    row("trapezoid", "x:ab"),
    row("trapezoid", "x:ab x:b"),
    row("trapz", "x:abc", dx=0.5, dim=1),
    row("cumulative_trapezoid", "x:ab x:ab", dim=0),
    row("cumulative_trapezoid", "x:abc", dim=1),
    of("einsum", "x:ab x:cb", lambda a, b: flow.einsum("ij,kj->ki", a, b)),
    of("einsum", "x:abc x:cb", lambda a, b: flow.einsum("...ij,ji", a, b)),
)
REARRANGED = (
    row("gradient", "x:5c"),
    row("gradient", "x:45", edge_order=2),
    of("gradient", "x:b5 o:5", lambda x, t: flow.gradient(x, spacing=(t,), dim=1)),
    row("renorm", "x:ab", 2, 0, 1.0),
    row("renorm", "x:abc", 1, 2, 0.5),
    of("as_strided", "x:67", lambda x: x.as_strided((3, 4), (5, 2), 1)),
    *(row(name, "x:ab") for name in ("atleast_1d", "atleast_2d", "atleast_3d", "ravel", "flipud", "fliplr", "diagflat", "msort")),
    *(row(name, "x:") for name in ("atleast_1d", "atleast_3d", "ravel")),
    row("cartesian_prod", "x:a x:b x:c"),
    row("combinations", "x:a"),
    row("combinations", "x:c", 3, True),
    row("column_stack", "x:ab x:a", joined=True),
    row("dstack", "x:ab x:ab", joined=True),
    row("row_stack", "x:b x:ab", joined=True),
    row("diag_embed", "x:ab"),
    row("diag_embed", "x:abc", -1, 0, 2),
    row("diff", "x:abc"),
    row("diff", "x:ab", 2, 0),
    of("diff", "x:ab x:ad x:ac", lambda x, p, e: flow.diff(x, prepend=p, append=e)),
    row("rot90", "x:abc", 1, (0, 2)),
    row("rot90", "x:ab", 3),
    row("hsplit", "x:a6", 3),
    row("vsplit", "x:ab", (1, 2)),
    row("dsplit", "x:ab4", (1, 3)),
    row("tensor_split", "x:ab", 3),
    row("tensor_split", "x:abc", (1, 4), 2),
    row("x.unfold", "x:a7", 1, 3, 2),
    row("x.unfold", "x:6ab", 0, 2, 3),
    row("take_along_dim", "x:ab @a:cb", 0),
    row("take_along_dim", "x:ab @b:ad", 1),
    of("take_along_dim", "x:5b", lambda x: flow.take_along_dim(x, x.flatten().argsort().clamp(max=0))),
    row("trace", "x:ab"),
    row("repeat_interleave", "x:ab k:b", 1),
    row("repeat_interleave", "x:ab", 3, dim=0),
    row("repeat_interleave", "x:ab", 2),
    row("x.diagflat", "x:a", 2),
    row("x.tensor_split", "x:ab", 2, dim=-1),
    of("mH", "x:abc", lambda x: x.mH),
    of("H", "x:ab", lambda x: x.H),
)
ORDERED = (
    row("aminmax", "x:abc", dim=1),
    row("aminmax", "x:ab", dim=0, keepdim=True),
    row("aminmax", "x:ab"),
    *(row(name, "x:abc", axis) for name in ("cummax", "cummin", "logcumsumexp") for axis in (0, 1, -1)),
    row("cummax", "n:ab", 0),
    row("cummin", "z:ab", 1),
    *(row("quantile", "x:abc", 0.3, axis) for axis in (0, 2)),
    row("quantile", "x:ab", 0.7, interpolation="nearest"),
    row("quantile", "x:ab u:d", 1, True),
    row("quantile", "x:ab u:d", 0, interpolation="midpoint"),
    row("nanquantile", "n:ab", 0.4, 1),
    row("nanquantile", "n:ab u:d", 0),
    row("nanmean", "n:ab", 0),
    row("nanmean", "x:abc", (0, 2), True),
    row("nanmean", "n:ab"),
    row("nanmedian", "n:ab"),
    row("nanmedian", "n:ab", 1),
    row("nanmedian", "x:ab", 0),
    row("mode", "z:ab", 0),
    row("mode", "x:ab"),
    row("histc", "x:ab", 4, -1, 1),
    row("histc", "x:ab", 3),
    row("x.histogram", "x:ab", 4, range=(-1, 1), density=True),
    of("histogram", "x:ab o:c", lambda x, e: flow.histogram(x, e)),
    of("histogram", "x:ab p:ab", lambda x, w: flow.histogram(x, 3, weight=w)),
    row("bucketize", "x:ab o:c"),
    row("bucketize", "x:ab o:c", right=True, out_int32=True),
    row("searchsorted", "o:ac x:ab", side="left"),
    row("searchsorted", "o:c x:ab", right=True),
    of("searchsorted", "x:c x:ab", lambda e, x: flow.searchsorted(e, x, sorter=e.argsort())),
    row("isin", "i:ab i:c"),
    row("isin", "i:ab i:c", assume_unique=False, invert=True),
    row("unique_consecutive", "z:a"),
    row("unique_consecutive", "z:ab", True, True),
    row("unique_consecutive", "z:ab", dim=0),
    row("bincount", "k:a"),
    row("bincount", "k:c p:c", minlength=9),
    row("var_mean", "x:abc", 1, correction=0),
    row("std_mean", "x:ab", (0, 1), correction=2),
    row("median", "x:ab", 0),
    row("kthvalue", "x:3ab", 2, 0),
)
UPDATES = (
    row("select_scatter", "x:5b x:b", 0, 3),
    row("select_scatter", "x:ab x:a", 1, -1),
    row("slice_scatter", "x:6b x:2b", 0, 1, 6, 3),
    row("slice_scatter", "x:a5 x:a3", 1, 2),
    row("diagonal_scatter", "x:a44 x:a3", -1, 1, 2),
    row("diagonal_scatter", "x:cc x:c"),
    of("put", "x:ab @a:c x:c", lambda x, i, v: x.put(i, v, True)),
    of("put", "x:5b @b:1 x:1", lambda x, i, v: x.put(i, v)),
    *(
        of(f"scatter_reduce {word} {own}", "x:ab @a:cb x:cb", lambda x, i, v, w=word, s=own: flow.scatter_reduce(x, 0, i, v, w, include_self=s))
        for word in ("sum", "prod", "mean", "amax", "amin")
        for own in (True, False)
    ),
    of("scatter_reduce", "x:ab @b:ad x:ad", lambda x, i, v: x.scatter_reduce(1, i, v, "sum")),
    *(
        of(f"index_reduce {word} {own}", "x:ab @a:c x:cb", lambda x, i, v, w=word, s=own: x.index_reduce(0, i, v, w, include_self=s))
        for word in ("prod", "mean", "amax", "amin")
        for own in (True, False)
    ),
    of("index_reduce", "x:ab @b:c x:ac", lambda x, i, v: x.index_reduce(1, i, v, "mean")),
    of("index_copy", "x:ab x:1b", lambda x, v: x.index_copy(0, v[:, :1].flatten().argsort(), v)),
    of("index_copy", "x:3b @1:1 x:1b", lambda x, i, v: x.index_copy(0, i, v)),
    of("index_copy", "x:a4 @2:1 x:a1", lambda x, i, v: x.index_copy(1, i, v)),
    of("index_put", "x:ab @a:c x:cb", lambda x, i, v: x.index_put((i,), v, True)),
    of("index_put", "x:ab @a:c @b:c x:c", lambda x, i, j, v: x.index_put((i, j), v, True)),
    of("index_put", "x:ab b:a x:", lambda x, m, v: x.index_put((m,), v)),
    of("masked_scatter", "x:ab b:ab x:cab", lambda x, m, v: x.masked_scatter(m, v)),
    of("masked_scatter", "x:ab b:b x:ab", lambda x, m, v: x.masked_scatter(m, v)),
    of("fill_diagonal_", "x:ab", lambda x: x.clone().fill_diagonal_(3)),
    of("fill_diagonal_ wrap", "x:c2", lambda x: x.clone().fill_diagonal_(3, True)),
    of("squeeze_", "x:a1b", lambda x: x.clone().squeeze_(1)),
    of("unsqueeze_", "x:ab", lambda x: x.clone().unsqueeze_(1)),
    of("t_", "x:ab", lambda x: x.clone().t_()),
    of("transpose_", "x:abc", lambda x: x.clone().transpose_(0, 2)),
    of("swapaxes_", "x:abc", lambda x: x.clone().swapaxes_(0, 1)),
    of("swapdims_", "x:abc", lambda x: x.clone().swapdims_(1, 2)),
    of("cumsum_", "x:ab", lambda x: x.clone().cumsum_(0)),
    of("cumprod_", "x:ab", lambda x: x.clone().cumprod_(1)),
    of("nan_to_num_", "n:ab", lambda x: x.clone().nan_to_num_(2.0)),
)


def pooled(name: str, rank: int, *more: Any, **options: Any) -> Row:
    """Return the row of a function of images with `rank` axes of lengths 7, 6 and 5."""
    return row(f"F.{name}", f"x:ad{'765'[:rank]}", *more, **options)


def unpooled(rank: int) -> Row:
    pool, unpool = getattr(F, f"max_pool{rank}d"), getattr(F, f"max_unpool{rank}d")
    return of(f"F.max_unpool{rank}d", f"x:ad{'765'[:rank]}", lambda x: unpool(*pool(x, 2, return_indices=True), 2, output_size=x.shape))


def packed_and_padded(x: Any) -> Any:
    """Return sequences of different lengths, packed and padded again."""
    rnn = flow.nn.utils.rnn
    lengths = [1 + i * 5 % 6 for i in range(x.shape[1])]
    return rnn.pad_packed_sequence(rnn.pack_padded_sequence(x, lengths, enforce_sorted=False), True, -1.5)[0]


LAYERS = (
    *(pooled(f"max_pool{rank}d_with_indices", rank, 3, 2, 1) for rank in (1, 2, 3)),
    *(pooled(f"adaptive_max_pool{rank}d_with_indices", rank, 3) for rank in (1, 2, 3)),
    *(pooled(f"lp_pool{rank}d", rank, 2, 3, 2) for rank in (1, 2, 3)),
    *(unpooled(rank) for rank in (1, 2, 3)),
    pooled("max_pool2d", 2, 2, 1, 0, (2, 3), ceil_mode=True),
    pooled("unfold", 2, (3, 2), dilation=(1, 2), padding=1, stride=2),
    row("F.fold", "x:a89", (4, 4), 2),
    pooled("local_response_norm", 2, 3, 0.3, 0.6, 1.5),
    *(row("F.local_response_norm", f"x:{axes}", 2) for axes in ("acb",)),
    row("F.channel_shuffle", "x:a67", 3),
    row("F.channel_shuffle", "x:a4b5", 2),
    *(pooled("interpolate", 2, (4, 9), mode=mode) for mode in ("bicubic", "area", "nearest-exact", "nearest", "bilinear")),
    *(pooled("interpolate", 2, scale_factor=0.6, mode=mode, antialias=True) for mode in ("bicubic", "bilinear")),
    pooled("interpolate", 1, 5, mode="linear", align_corners=True),
    pooled("interpolate", 3, 3, mode="trilinear"),
    row("F.upsample", "x:ad34", scale_factor=2),
    row("F.upsample_nearest", "x:ad34", (5, 5)),
    row("F.upsample_bilinear", "x:ad34", (5, 5)),
    *(pooled("pad", 2, (1, 2, 0, 3), mode=mode) for mode in ("circular", "reflect", "replicate")),
    pooled("pad", 3, (1, 0, 2, 1, 0, 1), mode="reflect"),
    of("F.affine_grid", "x:a23", lambda x: F.affine_grid(x, (x.shape[0], 3, 4, 5), align_corners=False)),
    of("F.affine_grid", "x:a34", lambda x: F.affine_grid(x, (x.shape[0], 1, 2, 3, 4), align_corners=True)),
    *(
        row("F.grid_sample", "x:ad56 x:ab42", mode, padding, corners)
        for mode, padding, corners in (("bilinear", "zeros", False), ("bicubic", "reflection", True), ("nearest", "border", False))
    ),
    row("F.grid_sample", "x:ad543 x:ab243", "bilinear", "border", True),
    row("F.pdist", "x:ab"),
    row("F.pdist", "x:ab", 1.0),
    *(row("F.multi_margin_loss", "x:a5 @5:a", reduction=how) for how in ("none", "mean", "sum")),
    of("F.multi_margin_loss", "x:a5 @5:a p:5", lambda x, t, w: F.multi_margin_loss(x, t, 2, 0.5, w)),
    *(row("F.multilabel_margin_loss", "x:a5 @5:a5", reduction=how) for how in ("none", "mean")),
    *(row("F.multilabel_soft_margin_loss", "x:ab u:ab", reduction=how) for how in ("none", "mean", "sum")),
    of("F.multilabel_soft_margin_loss", "x:ab u:ab p:b", lambda x, t, w: F.multilabel_soft_margin_loss(x, t, w)),
    row("F.triplet_margin_with_distance_loss", "x:ab x:ab x:ab", margin=2.0, swap=True),
    row("F.triplet_margin_loss", "x:ab x:ab x:ab", swap=True, reduction="none"),
    *(
        of(f"F.{name} weight", "x:ab x:ab p:ab", lambda x, t, w, n=name: getattr(F, n)(x, t, weight=w))
        for name in ("mse_loss", "l1_loss", "huber_loss")
    ),
    *(of(f"F.embedding_bag {mode}", "@c:ab x:cd", lambda i, w, m=mode: F.embedding_bag(i, w, mode=m)) for mode in ("sum", "mean", "max")),
    of("F.embedding_bag padded", "@c:ab x:cd", lambda i, w: F.embedding_bag(i, w, padding_idx=0)),
    of("F.embedding_bag weighted", "@c:ab x:cd x:ab", lambda i, w, s: F.embedding_bag(i, w, mode="sum", per_sample_weights=s)),
    of("F.embedding frequency", "@c:ab x:cd", lambda i, w: F.embedding(i, w, scale_grad_by_freq=True, padding_idx=0)),
    of("F.embedding limited", "@c:ab x:cd", lambda i, w: F.embedding(i, w.clone().detach(), max_norm=0.8)),
    of(
        "F.scaled_dot_product_attention groups",
        "x:a4b5 x:a2c5 x:a2c3",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3, enable_gqa=True),
    ),
    row("F.scaled_dot_product_attention", "x:adb5 x:adb5 x:adb3", is_causal=True),
    row("F.scaled_dot_product_attention", "x:adb5 x:adc5 x:adc3 x:bc"),
    of("rnn.pad_sequence", "x:ab x:cb x:2b", lambda *x: flow.nn.utils.rnn.pad_sequence(x, True, 0.5)),
    of("rnn.pack_sequence", "x:6b x:4b x:1b", lambda *x: flow.nn.utils.rnn.pack_sequence(x).data),
    of("rnn.pad_packed_sequence", "x:6cb", packed_and_padded),
    of("F.celu_", "x:ab", lambda x: F.celu_(x.clone(), 0.5)),
    of("F.hardtanh_", "x:ab", lambda x: F.hardtanh_(x.clone())),
    of("F.threshold_", "x:ab", lambda x: F.threshold_(x.clone(), 0.2, -3.0)),
)
TABLES: Mapping[str, tuple[Row, ...]] = {
    "elementwise": ELEMENTWISE,
    "linear algebra": LINEAR_ALGEBRA,
    "products": PRODUCTS,
    "rearranged": REARRANGED,
    "ordered": ORDERED,
    "updates": UPDATES,
    "layers": LAYERS,
}
