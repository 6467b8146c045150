"""Functions of vectors and matrices with references of NumPy: cases for `everywhere.compare`, which runs them in every layout."""

from __future__ import annotations

from typing import Any

import numpy as np

import jobflow as flow

L = flow.linalg


def random(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).uniform(-1, 1, shape)


def regular(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    return random(seed, *shape) + 3 * np.eye(*shape[-2:])


def positive(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    x = random(seed, *shape)
    return x @ np.swapaxes(x, -1, -2) + np.eye(shape[-1])


def constant_of(x: Any, data: Any) -> Any:
    """Return data as a tensor on the placement of x."""
    where = {"placement": x.placement, "sbp": flow.sbp.broadcast} if x.is_global else {}
    return flow.tensor(np.asarray(data), **where)


def multiplied(p: Any, lower: Any, upper: Any) -> Any:
    return p @ lower @ upper


def symmetric(x: Any) -> Any:
    return x + (x.mT if isinstance(x, flow.Tensor) else np.swapaxes(x, -1, -2))


BATCH, MATRIX, TALL, WIDE, VECTOR = regular(1, 4, 3, 3), regular(2, 4, 4), random(3, 4, 3, 2), random(4, 2, 4), random(5, 4)
EDGES, ROWS = np.array([-0.5, 0.0, 0.5]), random(6, 4, 6)
FREQUENCIES, PLACES = np.array([1, 2, 1, 3, 1, 1]), np.array([0.0, 1.0, 3.0, 4.0, 4.5, 6.0])

#: function of tensors, the same function of NumPy, and arguments
LINEAR_ALGEBRA = (
    (L.inv, np.linalg.inv, (BATCH,)),
    (L.det, np.linalg.det, (BATCH,)),
    (lambda x: L.slogdet(x)[1], lambda x: np.linalg.slogdet(x)[1], (MATRIX,)),
    (L.solve, lambda a, b: np.linalg.solve(a, b), (BATCH, TALL[:, :, :2])),
    (L.solve, np.linalg.solve, (MATRIX, VECTOR)),
    (L.cholesky, np.linalg.cholesky, (positive(7, 4, 2, 2),)),
    (lambda x: L.cholesky(x, upper=True), lambda x: np.linalg.cholesky(x).T, (positive(8, 3, 3),)),
    (lambda x: L.qr(x)[1], lambda x: np.linalg.qr(x)[1], (TALL,)),
    (lambda x: L.qr(x)[0], lambda x: np.linalg.qr(x)[0], (WIDE,)),
    (lambda x: L.eigh(symmetric(x))[0], lambda x: np.linalg.eigh(symmetric(x))[0], (BATCH,)),
    (lambda x: L.eigh(symmetric(x))[1].square(), lambda x: np.linalg.eigh(symmetric(x))[1] ** 2, (BATCH,)),
    (lambda x: multiplied(*L.lu(x)), lambda x: x, (TALL[:, ::-1].copy(),)),
    (lambda x, b: L.lu_solve(*L.lu_factor(x), b), np.linalg.solve, (BATCH[:, ::-1].copy(), TALL)),
    (L.svdvals, lambda x: np.linalg.svd(x, compute_uv=False), (TALL,)),
    (lambda x: L.svd(x, False)[2].square(), lambda x: np.linalg.svd(x, False)[2] ** 2, (WIDE,)),
    (L.pinv, np.linalg.pinv, (TALL,)),
    (lambda a, b: L.lstsq(a, b)[0], lambda a, b: np.linalg.lstsq(a, b, rcond=None)[0], (random(9, 4, 2), random(10, 4, 3))),
    (L.matrix_rank, np.linalg.matrix_rank, (np.ones((2, 3, 3)),)),
    (lambda x: L.matrix_power(x, -3), lambda x: np.linalg.matrix_power(x, -3), (BATCH,)),
    (lambda a, b, c: L.multi_dot([a, b, c]), lambda a, b, c: a @ b @ c, (random(11, 2, 4), MATRIX, VECTOR)),
    (lambda x: L.norm(x, "nuc"), lambda x: np.linalg.norm(x, "nuc"), (MATRIX,)),
    (lambda x: L.norm(x, 1), lambda x: np.linalg.norm(x, 1), (MATRIX,)),
    (lambda x: L.vector_norm(x, 3, 1), lambda x: np.linalg.norm(x, 3, 1), (MATRIX,)),
    (L.cond, np.linalg.cond, (BATCH,)),
    (lambda x: L.matrix_exp(x * 0), lambda x: np.broadcast_to(np.eye(3), x.shape), (BATCH,)),
)
PRODUCTS = (
    (flow.inner, np.inner, (MATRIX, random(12, 3, 4))),
    (flow.kron, np.kron, (random(13, 2, 3), random(14, 3, 2))),
    (lambda a, b: flow.tensordot(a, b, ([0, 1], [1, 0])), lambda a, b: np.tensordot(a, b, ([0, 1], [1, 0])), (random(15, 2, 3, 4), random(16, 3, 2))),
    (flow.trace, np.trace, (MATRIX,)),
    (flow.cdist, lambda a, b: np.sqrt(((a[:, None] - b[None]) ** 2).sum(-1)), (random(17, 4, 3), random(18, 2, 3))),
    (L.cross, np.cross, (random(19, 4, 3), random(20, 4, 3))),
    (flow.block_diag, lambda a, b: np.block([[a, np.zeros((2, 3))], [np.zeros((4, 2)), b]]), (random(21, 2, 2), random(22, 4, 3))),
    (flow.addmv, lambda x, a, b: x + a @ b, (VECTOR, MATRIX, random(23, 4))),
    (flow.addr, lambda x, a, b: x + np.outer(a, b), (MATRIX, VECTOR, random(24, 4))),
    (flow.addbmm, lambda x, a, b: x + (a @ b).sum(0), (random(25, 2, 2), random(26, 4, 2, 3), random(27, 4, 3, 2))),
    (flow.cov, np.cov, (ROWS,)),
    (
        lambda x, w: flow.cov(x, correction=0, aweights=w.abs(), fweights=constant_of(x, FREQUENCIES)),
        lambda x, w: np.cov(x, ddof=0, aweights=np.abs(w), fweights=FREQUENCIES),
        (ROWS, random(28, 6)),
    ),
    (flow.corrcoef, np.corrcoef, (ROWS,)),
    (lambda x: flow.gradient(x, dim=1)[0], lambda x: np.gradient(x, axis=1), (ROWS,)),
    (lambda x: flow.gradient(x, spacing=2.0, edge_order=2)[0], lambda x: np.gradient(x, 2.0, edge_order=2)[0], (ROWS,)),
    (
        lambda x: flow.gradient(x, spacing=(constant_of(x, PLACES),), dim=1, edge_order=2)[0],
        lambda x: np.gradient(x, PLACES, axis=1, edge_order=2),
        (ROWS,),
    ),
    (lambda x: flow.renorm(x, 2, 0, 1.0), lambda x: x * np.minimum(1, 1 / np.linalg.norm(x, axis=1, keepdims=True)), (ROWS,)),
    (flow.trapezoid, lambda y: np.trapezoid(y) if hasattr(np, "trapezoid") else np.trapz(y), (ROWS,)),
)
REARRANGED = (
    (flow.diag_embed, lambda x: np.stack([np.diag(row) for row in x]), (ROWS,)),
    (flow.diff, np.diff, (ROWS,)),
    (flow.rot90, np.rot90, (ROWS,)),
    (lambda x: flow.tensor_split(x, 4, 1)[1], lambda x: np.array_split(x, 4, 1)[1], (ROWS,)),
    (lambda x: x.unfold(1, 3, 2), lambda x: np.lib.stride_tricks.sliding_window_view(x, 3, 1)[:, ::2], (ROWS,)),
    (lambda a, b: flow.column_stack([a, b]), lambda a, b: np.column_stack([a, b]), (ROWS, VECTOR)),
    (lambda x: flow.combinations(x), lambda x: np.stack([x[[0, 0, 0, 1, 1, 2]], x[[1, 2, 3, 2, 3, 3]]], 1), (VECTOR,)),
    (lambda a, b: flow.cartesian_prod(a, b), lambda a, b: np.stack(np.meshgrid(a, b, indexing="ij"), -1).reshape(-1, 2), (VECTOR, EDGES)),
)


def searched(edges: np.ndarray[Any, Any], x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.stack([np.searchsorted(*both, "right") for both in zip(edges, x, strict=True)])


def mode(row: np.ndarray[Any, Any]) -> float:
    values, counts = np.unique(row, return_counts=True)
    return float(values[counts.argmax()])


ORDERED = (
    (lambda x: x.cummax(1)[0], lambda x: np.maximum.accumulate(x, 1), (ROWS,)),
    (lambda x: x.cummin(0)[0], lambda x: np.minimum.accumulate(x, 0), (ROWS,)),
    (lambda x: x.logcumsumexp(1), lambda x: np.logaddexp.accumulate(x, 1), (ROWS,)),
    (lambda x: x.quantile(0.3, 1), lambda x: np.quantile(x, 0.3, 1), (ROWS,)),
    (lambda x: x.nanquantile(constant_of(x, [0.3, 0.9]), 0), lambda x: np.nanquantile(x, [0.3, 0.9], 0), (ROWS,)),
    (lambda x: x.aminmax(dim=1)[1], lambda x: x.max(1), (ROWS,)),
    (lambda x: x.nanmean(1), lambda x: np.nanmean(x, 1), (ROWS,)),
    (lambda x: (x * 3).round().mode(1)[0], lambda x: np.array([mode(row) for row in np.round(x * 3)]), (ROWS,)),
    (lambda x: x.histc(4, -1, 1), lambda x: np.histogram(x, 4, (-1, 1))[0].astype(float), (ROWS,)),
    (lambda x: x.histogram(4, range=(-1, 1))[0], lambda x: np.histogram(x, 4, (-1, 1))[0].astype(float), (ROWS,)),
    (lambda x, e: flow.bucketize(x, e), lambda x, e: np.searchsorted(e, x), (ROWS, EDGES)),
    (
        lambda e, x: flow.searchsorted(e, x, side="right"),
        searched,
        (np.sort(np.round(ROWS * 64)), np.round(ROWS[:, :2] * 64)),
    ),
    (flow.isin, np.isin, (np.array([[1, 2, 3], [4, 5, 6]]), np.array([2, 5, 9]))),
    (lambda x: flow.unique_consecutive(x), lambda x: np.array([1, 2, 1]), (np.array([1, 1, 2, 2, 1]),)),
    (flow.bincount, np.bincount, (np.array([1, 1, 4, 0]),)),
)


INDICES = np.array([[0, 2, 2, 1], [3, 0, 3, 3]])


def reduced(function: np.ufunc) -> Any:
    def call(x: Any, v: Any) -> Any:
        y = x.copy()
        function.at(y, (np.arange(2)[:, None], INDICES), v)
        return y

    return call


def indices(x: Any) -> Any:
    """Return the indices as a tensor on the placement of x."""
    return constant_of(x, INDICES)


def put(x: np.ndarray[Any, Any], at: Any, values: Any) -> np.ndarray[Any, Any]:
    y = x.copy()
    np.add.at(y, at, values)
    return y


UPDATES = (
    *(
        (lambda x, v, word=word: x.scatter_reduce(1, indices(x), v, word), reduced(function), (random(30, 2, 4), random(31, 2, 4)))
        for word, function in (("sum", np.add), ("prod", np.multiply), ("amax", np.maximum), ("amin", np.minimum))
    ),
    (lambda x: x.take_along_dim(indices(x), 1), lambda x: np.take_along_axis(x, INDICES, 1), (random(32, 2, 4),)),
    (lambda x, v: x.index_copy(0, indices(x)[0, :2], v), lambda x, v: np.stack([v[0], x[1], v[1]]), (random(33, 3, 4), random(34, 2, 4))),
    (lambda x, v: x.index_put((indices(x)[1],), v, True), lambda x, v: put(x, INDICES[1], v), (random(35, 4, 2), random(36, 4, 2))),
    (
        lambda x, v: x.put(constant_of(x, [5, 0, -4]), v),
        lambda x, v: np.array([[v[1], x[0, 1], v[2]], [x[1, 0], x[1, 1], v[0]]]),
        (random(39, 2, 3), random(40, 3)),
    ),
    (
        lambda x, v: x.slice_scatter(v, 1, 0, 9, 2),
        lambda x, v: np.stack([v[:, 0], x[:, 1], v[:, 1], x[:, 3]], 1),
        (random(41, 3, 4), random(42, 3, 2)),
    ),
    (lambda x, v: x.select_scatter(v, 0, -1), lambda x, v: np.stack([x[0], x[1], v]), (random(43, 3, 4), random(44, 4))),
    (lambda x, v: x.diagonal_scatter(v, 1), lambda x, v: x * (1 - np.eye(3, 4, 1)) + np.diag(v, 1)[:3], (random(45, 3, 4), random(46, 3))),
    (
        lambda x: x.as_strided((3, 2), (1, 4), 1),
        lambda x: np.lib.stride_tricks.as_strided(x.reshape(-1)[1:], (3, 2), (x.itemsize, 4 * x.itemsize)),
        (random(47, 3, 4),),
    ),
    (lambda x, v: x.masked_scatter(x > 0, v), lambda x, v: masked(x, v), (random(37, 3, 4), random(38, 12))),
)


def masked(x: np.ndarray[Any, Any], v: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    y = x.copy()
    y[x > 0] = v[: (x > 0).sum()]
    return y
