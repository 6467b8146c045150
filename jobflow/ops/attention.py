"""Attention as one operation, y = softmax(scale q k^T) v, and its gradients, without a value of [..., queries, keys].

A target with a kernel for `Attention` computes tiles of the weights, and computes them again for the gradients.  The forward pass keeps the
logarithm of each row's sum of exponentials, one number per query.  `jobflow.compiler.front.merge_attention` replaces chains of products, softmax
and dropout by this operation; other targets run the chains.

Queries are [..., heads, l, e], keys [..., groups, s, e] and values [..., groups, s, f].  Consecutive heads share the keys of one group.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jobflow.core.errors import ArgumentError, DtypeError, ShapeError
from jobflow.core.layout import B, Box, P, Rule, S, Sbp, Signature
from jobflow.core.types import Array, Tensor, TensorType, Xp, bool_, int64
from jobflow.ops.arithmetic import add, divide, multiply, subtract, where
from jobflow.ops.attention_dropout import KeepWeights, weight_factors
from jobflow.ops.axes import reshape
from jobflow.ops.broadcast import broadcast_to
from jobflow.ops.compare import equal
from jobflow.ops.derivative import through
from jobflow.ops.masked import masked_fill
from jobflow.ops.matmul import matmul
from jobflow.ops.op import LETTERS, Grads, Op, Sample, apply, sample
from jobflow.ops.pointwise import FLOATS, check_dtypes, sample_data
from jobflow.ops.reduce import reduce_max, reduce_sum
from jobflow.ops.scalar import cast, clip, detach, fill_like, scale
from jobflow.ops.transcendental import exp, log
from jobflow.ops.triangle import tril


class AttentionBase(Op):
    """Base class of attention and its gradients.

    scale      factor of the scores
    diagonal   query i sees keys 0 to i + diagonal; None for all keys
    fill       score of the keys beyond the diagonal
    has_mask   an operand broadcasts to the scores: bool, true for visible keys, or floating point, added to the scores
    masked     a query without visible keys has the result 0, and NaN otherwise
    rate       dropout probability of the weights; `key` and `seed` identify their random numbers
    first_key  index of the first key in the logical tensor

    Optional operands follow the others: the mask, then for dropout the row numbers of `WeightRows` and the run counter.
    """

    abstract = True
    precision = "half"
    scale: float
    diagonal: int | None = None
    fill: float = -math.inf
    has_mask: bool = False
    masked: bool = True
    rate: float = 0.0
    key: str = ""
    seed: int = 0
    first_key: int = 0

    def check(self, q: TensorType, k: TensorType, v: TensorType, *more: TensorType) -> None:
        """Raise ShapeError, DtypeError or ArgumentError unless the operands fit."""
        check_dtypes(self.word(), FLOATS, q, k, v)
        if min(q.ndim, k.ndim, v.ndim) < 3 or not q.ndim == k.ndim == v.ndim:
            raise ShapeError(f"{self.word()}: query {q}, key {k} and value {v} must have the same number of axes, at least [heads, length, size]")
        axes = {
            "leading axes": q.shape[:-3] == k.shape[:-3] == v.shape[:-3],
            "heads": k.shape[-3] == v.shape[-3] and q.shape[-3] % max(k.shape[-3], 1) == 0,
            "keys": k.shape[-2] == v.shape[-2],
            "size": q.shape[-1] == k.shape[-1],
        }
        if differing := [name for name, fits in axes.items() if not fits]:
            what = f"query {q}, key {k} and value {v} differ in {' and '.join(differing)}"
            raise ShapeError(f"{self.word()}: {what}; pass [..., heads, l, e], [..., groups, s, e] and [..., groups, s, f]")
        if not 0 <= self.rate < 1:
            raise ArgumentError(f"{self.word()}: rate {self.rate} must be in [0, 1)")
        self._check_optional(self.scores_shape(q, k), q, more)

    def _check_optional(self, scores: tuple[int, ...], q: TensorType, more: Sequence[TensorType]) -> None:
        if len(more) != self.has_mask + 2 * (self.rate > 0):
            raise ShapeError(f"{self.word()}: {len(more)} optional operands; pass a mask with has_mask, and rows and a run counter with a rate")
        mask = more[0] if self.has_mask else None
        if mask is not None and mask.dtype is not bool_ and mask.dtype is not q.dtype:
            raise DtypeError(f"{self.word()}: mask {mask} must be bool, or of the type of query {q}; cast it")
        pairs = [] if mask is None else zip(reversed(mask.shape), reversed(scores), strict=False)
        if mask is not None and (mask.ndim > len(scores) or any(n not in (1, m) for n, m in pairs)):
            raise ShapeError(f"{self.word()}: mask {mask} does not broadcast to the scores {list(scores)}")
        expected = [TensorType(scores[:-1], int64), TensorType((1,), int64)]
        if self.rate and list(more[-2:]) != expected:
            raise ShapeError(f"{self.word()}: row numbers {more[-2]} and run counter {more[-1]} must be {expected[0]} and {expected[1]}")

    def flops(self, q: TensorType, k: TensorType, v: TensorType, *more: TensorType) -> float:
        """Return the multiplications and additions of the products, including those of hidden keys."""
        own = (1, 1) if isinstance(self, Attention) else (3, 2)
        return 2.0 * math.prod(self.scores_shape(q, k)) * (own[0] * q.shape[-1] + own[1] * v.shape[-1])

    @staticmethod
    def scores_shape(q: TensorType, k: TensorType) -> tuple[int, ...]:
        return (*q.shape[:-1], k.shape[-2])

    def optional(self, more: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        """Return the mask or None, and the operands of the dropout."""
        return (more[0] if self.has_mask else None), more[self.has_mask :]

    def words(self, keys: str, q: TensorType, k: TensorType, more: Sequence[TensorType]) -> tuple[dict[str, str], list[str]]:
        """Return the rule letters of the tensors, by name, and of the optional operands; `keys` is the letter of the keys' axis."""
        lead = LETTERS[: q.ndim - 3]
        grouped = q.shape[-3] != k.shape[-3]
        heads, groups = ("H", "G") if grouped else ("h", "h")
        named = {"q": f"{lead}{heads}lE", "k": f"{lead}{groups}{keys}E", "v": f"{lead}{groups}{keys}F", "o": f"{lead}{heads}lF"}
        named["lse"] = f"{lead}{heads}l"
        optional = []
        mask, dropped = self.optional(more)
        if mask is not None:
            scores, shape = f"{lead}{heads}l{keys}", self.scores_shape(q, k)
            first = len(shape) - mask.ndim
            optional.append("".join(scores[first + i] if n == shape[first + i] else "1" for i, n in enumerate(mask.shape)) or "1")
        return named, optional + ([named["lse"], "1"] if dropped else [])

    def by_groups(self, q: TensorType, k: TensorType, inputs: Sequence[str], outputs: Sequence[str]) -> tuple[Signature, ...]:
        """Return the signature that splits heads of the queries together with the groups of their keys."""
        if q.shape[-3] == k.shape[-3]:
            return ()

        def split(word: str) -> Sbp:
            return next((S(i) for i, axis in enumerate(word) if axis in "HG"), B)

        return (Signature(tuple(map(split, inputs)), tuple(map(split, outputs)), divides=k.shape[-3]),)

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        rows, columns = inputs[0].start[-2], inputs[1].start[-2]
        diagonal = None if self.diagonal is None else self.diagonal + rows - columns
        return replace(self, diagonal=diagonal, first_key=self.first_key + columns)

    # ---------------------------------------------------------------- by arrays

    def hidden(self, xp: Xp, scores: Array) -> Array | None:
        """Return True for the elements of the last two axes beyond the diagonal, or None."""
        return None if self.diagonal is None else ~xp.tri(*scores.shape[-2:], self.diagonal, dtype=bool)

    def scores(self, xp: Xp, q: Array, k: Array, mask: Array | None) -> Array:
        """Return the scores of the keys, k with the heads of q."""
        scores = xp.matmul(q, k.swapaxes(-1, -2)) * q.dtype.type(self.scale)
        hidden = self.hidden(xp, scores)
        if hidden is not None:
            scores = xp.where(hidden, scores.dtype.type(self.fill), scores)
        if mask is not None:
            scores = xp.where(mask, scores, scores.dtype.type(-math.inf)) if mask.dtype == bool else scores + mask.astype(scores.dtype)
        return scores

    def dropout_factors(self, xp: Xp, dropped: Sequence[Array], like: Array) -> Array:
        """Return the factors of the weights: 1 / (1 - rate), and 0 for dropped weights."""
        result = xp.empty(like.shape, like.dtype)
        rows, counter = dropped
        self._keep(like.shape[-1], like.dtype).kernel(xp, rows, counter, result)
        return result

    def _keep(self, columns: int, dtype: Any) -> KeepWeights:
        return KeepWeights(self.rate, self.key, self.seed, columns, self.first_key, dtype)

    # ---------------------------------------------------------------- by operations

    def applied_scores(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        scores = scale(matmul(q, k, transpose_b=True), self.scale)
        if self.diagonal is not None:
            scores = tril(scores, self.diagonal, self.fill)
        if mask is None:
            return scores
        if mask.tensor_type.dtype is bool_:
            return where(mask, scores, fill_like(scores, -math.inf))
        return add(scores, cast(mask, scores.tensor_type.dtype))

    def applied_dropout(self, dropped: Sequence[Tensor], weights: Tensor) -> Tensor:
        """Return the weights times the factors of the dropout."""
        if not dropped:
            return weights
        type = weights.tensor_type
        return multiply(weights, weight_factors(self._keep(type.shape[-1], type.dtype), *dropped))


def _with_heads(x: Array, heads: int, xp: Xp) -> Array:
    return x if x.shape[-3] == heads else xp.repeat(x, heads // x.shape[-3], axis=-3)


def _by_group(x: Array, groups: int) -> Array:
    """Return the sums of x [..., heads, s, e] over the heads of each group."""
    *lead, heads, length, size = x.shape
    return x if heads == groups else x.reshape(*lead, groups, heads // groups, length, size).sum(axis=-3)


def _applied_heads(x: Tensor, heads: int) -> Tensor:
    *lead, groups, length, size = x.tensor_type.shape
    if groups == heads:
        return x
    repeated = broadcast_to(reshape(x, (*lead, groups, 1, length, size)), (*lead, groups, heads // groups, length, size))
    return reshape(repeated, (*lead, heads, length, size))


def _applied_groups(x: Tensor, groups: int) -> Tensor:
    *lead, heads, length, size = x.tensor_type.shape
    if groups == heads:
        return x
    return reduce_sum(reshape(x, (*lead, groups, heads // groups, length, size)), (len(lead) + 1,))


class Attention(AttentionBase):
    """Attention, y = softmax(scale q k^T + mask) v.  Outputs: y, and the logarithm of each row's sum of exponentials, in float32 for half precision.

    Inputs: q [..., heads, l, e], k [..., groups, s, e], v [..., groups, s, f] and the optional operands.
    """

    def infer(self, *types: TensorType) -> tuple[TensorType, TensorType]:
        q, _, v, *_ = types
        self.check(*types)
        return q.with_shape((*q.shape[:-1], v.shape[-1])), TensorType(q.shape[:-1], q.dtype.arithmetic)

    def rule(self, *types: TensorType) -> Rule:
        q, k, _, *more = types
        named, optional = self.words("K", q, k, more)
        inputs, outputs = [named["q"], named["k"], named["v"], *optional], [named["o"], named["lse"]]
        of_values = [Signature((B, B, sbp, *[B] * len(optional)), (sbp, B)) for sbp in (S(q.ndim - 1), P)]
        return Rule(f"{','.join(inputs)}->{','.join(outputs)}", also=(*self.by_groups(q, k, inputs, outputs), *of_values))

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        q, k, v, *more, y, lse = arrays
        q, k, v = (x.astype(lse.dtype) for x in (q, k, v))  # a GPU gets half precision
        mask, dropped = self.optional(more)
        k, v = (_with_heads(x, q.shape[-3], xp) for x in (k, v))
        if not k.shape[-2]:
            y[...] = lse[...] = 0.0 if self.masked else math.nan
            return
        scores = self.scores(xp, q, k, mask)
        top = scores.max(axis=-1, keepdims=True)
        if self.masked:
            top = xp.where(top == -math.inf, scores.dtype.type(0), top)
        weights = xp.exp(scores - top)
        total = weights.sum(axis=-1, keepdims=True)
        if self.masked:
            total = xp.maximum(total, scores.dtype.type(1))
        lse[...] = (top + xp.log(total))[..., 0]
        weights /= total
        if dropped:
            weights *= self.dropout_factors(xp, dropped, weights)
        y[...] = xp.matmul(weights, v).astype(y.dtype)

    def grad(self, *tensors: Any) -> Grads:
        count = len(tensors) - 4
        inputs, (y, lse), (dy, dlse) = tensors[:count], tensors[count : count + 2], tensors[count + 2 :]
        if dlse is not None:
            return through(self.decompose, inputs, (dy, dlse))
        if dy is None:
            return (None,) * count
        q, k, v, *more = inputs
        gradients: list[Tensor | None] = [*apply(AttentionGrad(*vars(self).values()), q, k, v, y, lse, dy, *more), *[None] * len(more)]
        if self.has_mask and more[0].tensor_type.dtype is not bool_:  # unused gradients are dropped
            gradients[3] = through(self.decompose, inputs, (dy, None))[3]
        return gradients

    def decompose(self, *inputs: Any) -> tuple[Tensor, ...]:
        q, k, v, *more = inputs
        mask, dropped = self.optional(more)
        type = q.tensor_type
        q, k, v = (cast(x, type.dtype.arithmetic) for x in (q, k, v))
        k, v = (_applied_heads(x, type.shape[-3]) for x in (k, v))
        scores = self.applied_scores(q, k, mask)
        last = type.ndim - 1
        top = detach(reduce_max(scores, last, keepdims=True))
        if self.masked:
            top = masked_fill(top, equal(top, fill_like(top, -math.inf)), 0.0)
        weights = exp(subtract(scores, top))
        total = reduce_sum(weights, last, keepdims=True)
        if self.masked:
            total = clip(total, 1.0)
        y = matmul(self.applied_dropout(dropped, divide(weights, total)), v)
        return cast(y, type.dtype), reshape(add(top, log(total)), type.shape[:-1])

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from _samples(lambda op, *arrays, **options: sample(op, *arrays, **options))


class AttentionGrad(AttentionBase):
    """Gradients of Attention with respect to q, k and v, from weights that are computed again.

    Inputs: q, k, v, the output y, the logarithm of the sums, the gradient dy and the optional operands.

        p = exp(scale q k^T + mask - lse),  dp = dy v^T,  ds = scale p (dp - sum dy y),  dq = ds k,  dk = ds^T q,  dv = p^T dy
    """

    def infer(self, *types: TensorType) -> tuple[TensorType, TensorType, TensorType]:
        q, k, v, y, lse, dy, *more = types
        self.check(q, k, v, *more)
        result, logarithms = q.with_shape((*q.shape[:-1], v.shape[-1])), TensorType(q.shape[:-1], q.dtype.arithmetic)
        if (y, lse, dy) != (result, logarithms, result):
            raise (DtypeError if lse.dtype is not logarithms.dtype else ShapeError)(
                f"{self.word()}: output {y} and its gradient {dy} must be {result}, and the logarithms {lse} must be {logarithms}"
            )
        return q, k, v

    def rule(self, *types: TensorType) -> Rule:
        q, k, *_ = types
        named, optional = self.words("s", q, k, types[6:])
        inputs = [*(named[name] for name in ("q", "k", "v", "o", "lse", "o")), *optional]
        outputs = [named[name] for name in "qkv"]
        return Rule(f"{','.join(inputs)}->{','.join(outputs)}", linear=((5,),), also=self.by_groups(q, k, inputs, outputs))

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        q, k, v, y, lse, dy, *more, dq, dk, dv = arrays
        q, k, v, y, dy = (x.astype(lse.dtype) for x in (q, k, v, y, dy))
        mask, dropped = self.optional(more)
        groups = k.shape[-3]
        k, v = (_with_heads(x, q.shape[-3], xp) for x in (k, v))
        scores = self.scores(xp, q, k, mask)
        weights = xp.exp(scores - lse[..., None])
        dweights = xp.matmul(dy, v.swapaxes(-1, -2))
        used = weights
        if dropped:
            factors = self.dropout_factors(xp, dropped, weights)
            used, dweights = weights * factors, dweights * factors
        dv[...] = _by_group(xp.matmul(used.swapaxes(-1, -2), dy), groups).astype(dv.dtype)
        dscores = weights * (dweights - (dy * y).sum(axis=-1, keepdims=True)) * q.dtype.type(self.scale)
        hidden = self.hidden(xp, scores)
        if hidden is not None:
            dscores = xp.where(hidden, dscores.dtype.type(0), dscores)
        dq[...] = xp.matmul(dscores, k).astype(dq.dtype)
        dk[...] = _by_group(xp.matmul(dscores.swapaxes(-1, -2), q), groups).astype(dk.dtype)

    def grad(self, *tensors: Any) -> Grads:
        return through(self.decompose, tensors[:-6], tensors[-3:])

    def decompose(self, *inputs: Any) -> tuple[Tensor, ...]:
        q, k, v, y, lse, dy, *more = inputs
        mask, dropped = self.optional(more)
        type, groups = q.tensor_type, k.tensor_type.shape[-3]
        q, k, v, y, dy = (cast(x, type.dtype.arithmetic) for x in (q, k, v, y, dy))
        k, v = (_applied_heads(x, type.shape[-3]) for x in (k, v))
        scores = self.applied_scores(q, k, mask)
        weights = exp(subtract(scores, reshape(lse, (*type.shape[:-1], 1))))
        dweights = self.applied_dropout(dropped, matmul(dy, v, transpose_b=True))
        dv = matmul(self.applied_dropout(dropped, weights), dy, transpose_a=True)
        dscores = scale(multiply(weights, subtract(dweights, reduce_sum(multiply(dy, y), type.ndim - 1, keepdims=True))), self.scale)
        if self.diagonal is not None:
            dscores = tril(dscores, self.diagonal)
        dk = matmul(dscores, q, transpose_a=True)
        results = matmul(dscores, k), _applied_groups(dk, groups), _applied_groups(dv, groups)
        return tuple(cast(x, type.dtype) for x in results)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        def case(op: Attention, *arrays: Any, **options: Any) -> Sample:
            q, k, v, *more = map(np.asarray, arrays)
            y, lse = np.empty((*q.shape[:-1], v.shape[-1])), np.empty(q.shape[:-1])
            op.kernel(np, q, k, v, *more, y, lse)
            dy = sample_data(9, *y.shape)
            options.setdefault("differentiable", (0, 1, 2, 3, 4, 5))
            return sample(cls(*vars(op).values()), q, k, v, y, lse, dy, *more, **options)

        yield from _samples(case)


def _samples(case: Any) -> Iterator[Sample]:
    """Yield cases of both operations: sizes, diagonals, masks, groups, dropout."""
    q, k, v = sample_data(1, 2, 2, 3, 4), sample_data(2, 2, 2, 5, 4), sample_data(3, 2, 2, 5, 3)
    yield case(Attention(0.5), q, k, v)
    yield case(Attention(0.7, 0, masked=False), q[0], k[0], v[0], note=" causal")
    yield case(Attention(0.7, -1), q, k, v, differentiable=(0, 1, 2), note=" a query without keys")
    yield case(Attention(0.4, 1, -1.5), q, k, v, note=" a finite score beyond the diagonal")
    many = sample_data(4, 2, 4, 3, 4)
    yield case(Attention(0.5, 0), many, k, v, note=" groups")
    visible = sample_data(5, 1, 3, 5) > -0.5
    yield case(Attention(0.5, 2, has_mask=True), many, k, v, visible, note=" a mask of keys")
    yield case(Attention(0.5, has_mask=True), q, k, v, sample_data(6, 2, 1, 3, 1), note=" added mask")
    rows, counter = 5 * np.arange(2 * 4 * 3).reshape(2, 4, 3), np.array([2])
    yield case(Attention(0.5, 1, rate=0.3, key="drop", seed=7), many, k, v, rows, counter, note=" dropout")
