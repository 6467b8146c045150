"""Scaled dot-product attention, softmax(q k^T / sqrt(size) + mask) v (Vaswani et al. 2017).

Masks can hide all keys from a query, or add -inf to all scores of a query.  The weights, output and gradients of this query are zero: in
every function and module, eager or in graphs, on any number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

import jobflow.core.scope as scope
from jobflow.core.errors import ArgumentError, DtypeError, ShapeError, user_line
from jobflow.core.types import DType, TensorType, bool_, float32, int64
from jobflow.core.types import Tensor as Value
from jobflow.functional.nn_base import composed, draw_for, real
from jobflow.functional.nn_linear import dropout
from jobflow.functional.promotion import cast, rounded_once
from jobflow.functional.typed import Tensor
from jobflow.kernels import registry
from jobflow.kernels.target import Target
from jobflow.ops import elementwise as ew
from jobflow.ops import shape as sh
from jobflow.ops import slices as sl
from jobflow.ops.attention import Attention
from jobflow.ops.attention_dropout import WeightRows
from jobflow.ops.broadcast import broadcast_to
from jobflow.ops.matmul import matmul
from jobflow.ops.softmax import causal_softmax, softmax
from jobflow.ops.source import constant
from jobflow.ops.triangle import tril
from jobflow.tensors.gpus import gpu_of
from jobflow.tensors.run import Running, run
from jobflow.tensors.state import state

__all__ = ["scaled_dot_product_attention"]


def _check(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[int, ...]:
    """Return the common leading axes of query, key and value; raise ShapeError or DtypeError for arguments that do not match."""
    q, k, v = query.tensor_type, key.tensor_type, value.tensor_type
    what = "scaled_dot_product_attention"
    try:
        lead = np.broadcast_shapes(*(t.shape[:-2] for t in (q, k, v)))
    except ValueError:
        lead = None
    if lead is None or min(q.ndim, k.ndim, v.ndim) < 2 or k.shape[-2] != v.shape[-2] or q.shape[-1] != k.shape[-1]:
        raise ShapeError(f"{what} at {user_line()}: query {q}, key {k} and value {v} must have the shapes [..., l, e], [..., s, e] and [..., s, f]")
    if mask is None:
        return lead
    if mask.tensor_type.dtype is not bool_ and not mask.tensor_type.dtype.is_float:
        raise DtypeError(f"{what} at {user_line()}: attn_mask {mask.tensor_type} must be bool (True for visible keys), or floating point to be added")
    scores, shape = (*lead, q.shape[-2], k.shape[-2]), mask.tensor_type.shape
    missing = len(scores) - len(shape)
    if missing < 0 or any(n not in (1, m) for n, m in zip(shape, scores[missing:], strict=True)):
        raise ShapeError(
            f"{what} at {user_line()}: attn_mask {mask.tensor_type} does not broadcast to the weights {list(scores)}, [..., queries, keys]"
        )
    return lead


@composed
def attention_weights(query: Tensor, key: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Value:
    """Return softmax(scale * q k^T + mask), [..., queries, keys]; a bool mask is True for visible keys."""
    scores = matmul(query, key, transpose_b=True)
    if causal and mask is None:
        return causal_softmax(scores, scale)
    scores = ew.scale(scores, scale)
    if causal:
        scores = tril(scores, 0, -math.inf)
    if mask is not None and mask.tensor_type.dtype is bool_:
        scores = ew.where(mask, scores, ew.fill_like(scores, -math.inf))
    elif mask is not None:
        scores = ew.add(scores, mask)
    return softmax(scores, -1, masked=causal or mask is not None)


@composed
def _repeated(x: Tensor, lead: tuple[int, ...]) -> Value:
    """Return x expanded to the leading axes `lead`, with its last two axes unchanged."""
    return broadcast_to(x, (*lead, *x.tensor_type.shape[-2:]))


@composed
def _grouped_heads(x: Tensor, times: int) -> Value:
    """Return x with each head, on axis -3, repeated `times` times in a row."""
    *lead, heads, length, size = x.tensor_type.shape
    repeated = broadcast_to(sh.reshape(x, (*lead, heads, 1, length, size)), (*lead, heads, times, length, size))
    return sh.reshape(repeated, (*lead, heads * times, length, size))


def _with_heads_of(query: Tensor, x: Tensor) -> Tensor:
    """Return the key or value x with as many heads as the query; raise ShapeError unless its number of heads divides that of the query."""
    q, heads = query.tensor_type, x.tensor_type.shape[-3] if x.tensor_type.ndim > 2 else 0
    if q.ndim < 3 or heads == 0 or q.shape[-3] % heads:
        raise ShapeError(
            f"scaled_dot_product_attention at {user_line()}: enable_gqa requires [..., heads, length, size], where the heads of key and value divide "
            f"the heads of query {q}; got {x.tensor_type}"
        )
    return x if q.shape[-3] == heads else _grouped_heads(x, q.shape[-3] // heads)


@composed
def weighted_values(weights: Tensor, value: Tensor) -> Value:
    """Return the weighted sums of the values, weights @ value."""
    return matmul(weights, value)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return softmax(scale * q k^T + mask) v with dropout of probability `dropout_p` on the weights (Vaswani et al. 2017).

    Shapes: query [..., l, e], key [..., s, e], value [..., s, f] -> [..., l, f]; leading axes broadcast.  `scale` defaults to 1 / sqrt(e).
    A bool mask is True for visible keys; a floating point mask is added to the scores.  With `is_causal`, query i attends to keys 0 to i.
    The output of a query without visible keys is zero.  With `enable_gqa`, consecutive heads (axis -3) of the query use one head of key and value.
    Raises: ShapeError, DtypeError for arguments that do not match.

    Examples:
        >>> q = k = v = flow.randn(2, 4, 10, 8)  # batch, heads, positions, features
        >>> nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).shape
        jobflow.Size([2, 4, 10, 8])
    """
    if enable_gqa:
        key, value = _with_heads_of(query, key), _with_heads_of(query, value)
    lead = _check(query, key, value, attn_mask)
    query, key, value = (_repeated(x, lead) for x in (query, key, value))
    factor = 1.0 / math.sqrt(query.tensor_type.shape[-1] or 1) if scale is None else real("scaled_dot_product_attention", "scale", scale)
    y = one_operation(query, key, value, attn_mask, is_causal, factor, dropout_p)
    return _chain(query, key, value, attn_mask, is_causal, factor, dropout_p) if y is None else y


@rounded_once
def _chain(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float, rate: float) -> Tensor:
    if mask is not None and mask.dtype is not bool_:
        mask = cast(mask, query.dtype)
    return weighted_values(dropout(attention_weights(query, key, mask, causal, scale), rate), value)


def one_operation(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float, rate: float) -> Tensor | None:
    """Return attention computed by one operation, for eager tensors on a GPU with a kernel for these operands; None for others.

    The condition is that of `compiler.front.merge_attention`: float64, heads of more than 128 elements and tensors of two axes use the chain.
    """
    if not state().gpus or not 0.0 <= real("dropout", "p", rate) < 1.0 or not _run_at_once(query, key, value):
        return None
    gpu, half = gpu_of(query.array), scope.current().autocast
    if gpu is None or query.ndim < 3 or not query.dtype is key.dtype is value.dtype:
        return None
    dtype = half if half is not None and query.dtype is float32 else query.dtype
    if mask is not None and mask.dtype is not bool_:
        mask = cast(mask, dtype)
    op = Attention(scale, 0 if causal else None, has_mask=mask is not None, masked=causal or mask is not None, rate=float(rate))
    types = [x.tensor_type.with_dtype(dtype) for x in (query, key, value)] + ([] if mask is None else [mask.tensor_type])
    rows = WeightRows(key.shape[-2])
    types += [rows.infer(types[0]), TensorType((1,), int64)] if rate else []
    if not _accepted(op, gpu.target, *types):
        return None
    operands: list[Any] = [query, key, value, *([] if mask is None else [mask])]
    if rate:
        name, seed, counter = draw_for(query)
        op = replace(op, key=name, seed=seed)
        operands += [run(rows, query.detach()), counter]
    y: Tensor = run(op, *operands)[0]
    return y


def _run_at_once(*inputs: Tensor) -> bool:
    """Return True if operations of these local tensors run eagerly."""
    now = scope.current()
    return (now.interpreter is None or isinstance(now.interpreter, Running)) and all(x.layout is None and x.traced is None for x in inputs)


@lru_cache(1024)
def _accepted(op: Attention, target: Target, *types: TensorType) -> bool:
    return registry.accepts(op, target, types, op.infer(*types))


# -------------------------------------------------------------------- heads


@composed
def split_heads(x: Tensor, heads: int) -> Value:
    """Return [batch, length, heads * size] as [batch, heads, length, size]."""
    n, length, width = x.tensor_type.shape
    return sh.transpose(sh.reshape(x, (n, length, heads, width // heads)), (0, 2, 1, 3))


@composed
def join_heads(x: Tensor) -> Value:
    """Return [batch, heads, length, size] as [batch, length, heads * size], the inverse of split_heads."""
    n, heads, length, size = x.tensor_type.shape
    return sh.reshape(sh.transpose(x, (0, 2, 1, 3)), (n, length, heads * size))


@composed
def swap_first_axes(x: Tensor) -> Value:
    """Return x with its first two axes swapped."""
    return sh.transpose(x, (1, 0, *range(2, x.tensor_type.ndim)))


@composed
def thirds(x: Tensor, which: int, axis: int) -> Value:
    """Return part `which`, 0 to 2, of three equal parts of x along an axis."""
    size = x.tensor_type.shape[axis] // 3
    front = (None,) * axis
    return sl.slice_(x, (*front, which * size), (*front, (which + 1) * size))


# -------------------------------------------------------------------- attention of several heads


@composed
def _with_row(x: Tensor, row: Tensor | None) -> Value:
    """Return x [batch, length, features] with one more position: `row` [1, 1, features], or zeros for None."""
    n, _, width = x.tensor_type.shape
    last = constant(0.0, (n, 1, width), x.tensor_type.dtype) if row is None else broadcast_to(row, (n, 1, width))
    return sl.concat([x, last], 1)


@composed
def _widened(mask: Tensor, count: int) -> Value:
    """Return the mask of keys with `count` more visible keys."""
    return sl.pad(mask, [*((0, 0),) * (mask.tensor_type.ndim - 1), (0, count)])


def attend(
    mapped: Sequence[Tensor],
    heads: int,
    attention: Tensor | None,
    padding: Tensor | None,
    causal: bool,
    dropout_p: float,
    bias_k: Tensor | None = None,
    bias_v: Tensor | None = None,
    zero_key: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the joined outputs of the heads, [batch, queries, features], and the weights, [batch, heads, queries, keys].

    `mapped` are query, key and value, [batch, length, features].  `bias_k` and `bias_v`, and then a key and a value of zeros with `zero_key`,
    are appended to keys and values, visible to all queries.  `attention` and `padding` are the masks of `combined_mask`.
    """
    q, k, v = mapped
    more: list[tuple[Tensor | None, Tensor | None]] = [(bias_k, bias_v)] if bias_k is not None else []
    more += [(None, None)] if zero_key else []
    for row_k, row_v in more:
        k, v = _with_row(k, row_k), _with_row(v, row_v)
    if more and causal:
        raise ArgumentError(f"attention at {user_line()}: is_causal cannot be combined with add_bias_kv or add_zero_attn; pass a causal attn_mask")
    attention, padding = (_widened(mask, len(more)) if more and mask is not None else mask for mask in (attention, padding))
    q, k, v = (split_heads(x, heads) for x in (q, k, v))
    mask = combined_mask(attention, padding, q, k)
    weights = attention_weights(q, k, mask, causal, 1.0 / math.sqrt(q.tensor_type.shape[-1] or 1))
    weights = dropout(weights, dropout_p)
    return join_heads(weighted_values(weights, v)), weights


def combined_mask(attention: Tensor | None, padding: Tensor | None, queries: Tensor, keys: Tensor) -> Tensor | None:
    """Combine the masks of attention modules into a bool mask of visible keys, or an additive mask; None without masks.

    The result broadcasts to [batch, heads, queries, keys].  In the arguments, True hides a key.  `attention` is [queries, keys] or
    [batch * heads, queries, keys], `padding` is [batch, keys].  Masks are bool or floating point, which is cast to the type of the queries
    [batch, heads, queries, size].
    """
    batch, heads, count, _ = queries.tensor_type.shape
    length = keys.tensor_type.shape[2]
    masks = []
    if attention is not None:
        attention = _mask_of_type("attn_mask", attention, queries.dtype, (count, length), (batch * heads, count, length))
        masks.append(
            _reshaped(attention, (batch if attention.tensor_type.ndim == 3 else 1, heads if attention.tensor_type.ndim == 3 else 1, count, length))
        )
    if padding is not None:
        padding = _mask_of_type("key_padding_mask", padding, queries.dtype, (batch, length))
        masks.append(_reshaped(padding, (batch, 1, 1, length)))
    if not masks:
        return None
    if all(mask.tensor_type.dtype is bool_ for mask in masks):
        return _visible(masks[0], masks[1] if len(masks) > 1 else None)
    return _added(queries, *masks)


def _mask_of_type(name: str, mask: Tensor, dtype: DType, *legal: tuple[int, ...]) -> Tensor:
    """Return a bool mask unchanged, and a floating point mask in the type `dtype`; raise ShapeError or DtypeError for other masks."""
    if mask.tensor_type.shape not in legal:
        raise ShapeError(
            f"attention at {user_line()}: {name} {mask.tensor_type} must have the shape {' or '.join(str(list(shape)) for shape in legal)}"
        )
    if mask.tensor_type.dtype is not bool_ and not mask.tensor_type.dtype.is_float:
        raise DtypeError(f"attention at {user_line()}: {name} {mask.tensor_type} must be bool (True for hidden keys), or floating point to be added")
    return mask if mask.tensor_type.dtype is bool_ else cast(mask, dtype)


@composed
def _reshaped(mask: Tensor, shape: tuple[int, ...]) -> Value:
    return sh.reshape(mask, shape)


@composed
def _visible(hidden: Tensor, more: Tensor | None) -> Value:
    return ew.logical_not(hidden if more is None else ew.logical_or(hidden, more))


@composed
def _added(like: Tensor, first: Tensor, second: Tensor | None = None) -> Value:
    """Combine the masks into one additive mask in the type of `like`, with -inf for hidden keys."""
    parts: list[Value] = []
    for mask in (first, second):
        if mask is not None and mask.tensor_type.dtype is bool_:
            zero = ew.fill_like(mask, 0.0, dtype=like.tensor_type.dtype)
            parts.append(ew.where(mask, ew.fill_like(zero, -math.inf), zero))
        elif mask is not None:
            parts.append(mask)
    return parts[0] if len(parts) == 1 else ew.add(*parts)
