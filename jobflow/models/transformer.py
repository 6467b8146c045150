"""A transformer language model (GPT)."""

from __future__ import annotations

from math import sqrt
from typing import Any

import jobflow.core.scope as scope
import jobflow.legacy.layers as layers
import jobflow.legacy.math as math
import jobflow.nn as nn
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError, user_line
from jobflow.core.types import Tensor, int32
from jobflow.legacy.arrays import cast, gather, matmul, reshape, slice, transpose
from jobflow.legacy.initializers import random_normal_initializer
from jobflow.legacy.variables import get_variable
from jobflow.models.building_blocks import Outputs
from jobflow.models.generation.key_value_cache import JobCache


@dataclass(frozen=True)
class _Shape:
    """The sizes, dropout rate and initial scale shared by all blocks."""

    #: number of positions in a window
    positions: int
    heads: int
    dropout: float
    #: initial standard deviation of a branch's output, relative to its input; all branches together double the variance
    share: float


def _dense(x: Tensor, units: int, name: str, share: float = 1.0, activation: layers.Activation | None = None) -> Tensor:
    """Apply a dense layer with `units` outputs to x; initially, it multiplies the standard deviation by `share`."""
    first = random_normal_initializer(stddev=share / sqrt(x.tensor_type.shape[-1]))
    return layers.dense(x, units, activation=activation, kernel_initializer=first, name=name)


def _attention(x: Tensor, shape: _Shape, name: str, cache: Any = None) -> Tensor:
    """Return causal attention, softmax(q k^T / sqrt(d)) v per head, also to the tokens in the cache; x and the result are [n * positions, width].

    One layer computes all queries, keys and values.  Its columns are query, key and value of the first head, then of the second head, and so on.
    Heads can therefore be split over devices.
    """
    width = x.tensor_type.shape[1]
    each = width // shape.heads
    qkv = reshape(_dense(x, 3 * width, f"{name}-qkv"), [-1, shape.positions, shape.heads, 3 * each])
    query, key, value = (transpose(slice(qkv, [None, None, None, index * each], [None, None, None, each]), perm=[0, 2, 1, 3]) for index in range(3))
    if cache is None:
        scores = matmul(query, key, transpose_b=True)
        weights = nn.fused_scale_tril_softmax_dropout(scores, fill_value=-1e30, scale=1 / sqrt(each), rate=shape.dropout, name=f"{name}-weights")
        values = matmul(weights, value)
    else:
        values = cache.attend(query, key, value, 1 / sqrt(each))
    mixed = transpose(values, perm=[0, 2, 1, 3])
    return _dense(reshape(mixed, [-1, width]), width, f"{name}-out", shape.share)


def _block(x: Tensor, shape: _Shape, name: str, cache: Any = None) -> Tensor:
    """Return y + feed_forward(norm(y)) for y = x + attention(norm(x)); the feed-forward layer is four times as wide."""
    y = _attention(layers.layer_norm(x, name=f"{name}-norm1"), shape, name, cache)
    x = math.add(x, nn.dropout(y, rate=shape.dropout, name=f"{name}-dropout1"))
    wide = _dense(layers.layer_norm(x, name=f"{name}-norm2"), 4 * x.tensor_type.shape[1], f"{name}-up", activation=math.gelu)
    y = _dense(wide, x.tensor_type.shape[1], f"{name}-down", shape.share)
    return math.add(x, nn.dropout(y, rate=shape.dropout, name=f"{name}-dropout2"))


def gpt(
    tokens: Tensor,
    targets: Tensor | None = None,
    *,
    words: int = 256,
    length: int = 128,
    width: int = 128,
    heads: int = 4,
    blocks: int = 4,
    dropout: float = 0.0,
    recompute: bool = False,
    cache: JobCache | None = None,
) -> Outputs:
    """Build a transformer like GPT-2.  Tokens are integers below `words` (256 for bytes), [n, positions], with at most `length` positions.

    The loss [n] is the mean over a window of -log p(targets), in nats per token.  The scores [n, positions, words] at a position predict
    the next token.  Windows may be padded on the right, because attention is causal.  `recompute` saves only the inputs of each block and
    recomputes the other activations in the backward pass.  With a `cache`, the tokens continue those that the cache contains.
    """
    positions = tokens.tensor_type.shape[1]
    _check(positions, length, width, heads)
    x = nn.dropout(_embedded(tokens, words, length, width, cache), rate=dropout, name="dropout")
    shape = _Shape(positions, heads, dropout, 1 / sqrt(2 * max(blocks, 1)))
    block = scope.checkpointed(_block) if recompute else _block
    for index in range(1, blocks + 1):
        more = () if cache is None else (cache[index],)
        x = block(x, shape, f"block{index}", *more)
    scores = _dense(layers.layer_norm(x, name="norm"), words, "head")
    if targets is None:
        return {"scores": reshape(scores, [-1, positions, words])}
    losses = nn.sparse_softmax_cross_entropy_with_logits(reshape(cast(targets, int32), [-1]), scores, name="loss")
    return {"loss": math.reduce_mean(reshape(losses, [-1, positions]), axis=1)}


def _check(positions: int, length: int, width: int, heads: int) -> None:
    if positions > length:
        raise ArgumentError(f"gpt at {user_line()}: windows of {positions} tokens exceed length {length}; increase length")
    if width % heads:
        raise ArgumentError(f"gpt at {user_line()}: width {width} must be divisible by heads {heads}")


def _embedded(tokens: Tensor, words: int, length: int, width: int, cache: JobCache | None) -> Tensor:
    """Return the sum of token and position embeddings, [n * positions, width]."""
    positions, first = tokens.tensor_type.shape[1], random_normal_initializer(stddev=0.1)
    places = get_variable("positions", (length, width), initializer=first)
    if cache is not None:
        places = gather(places, cache.extend(positions))
    else:
        places = reshape(slice(places, [0, 0], [positions, width]) if positions < length else places, [1, positions, width])
    table = get_variable("tokens", (words, width), initializer=first)
    return reshape(math.add(gather(table, cast(tokens, int32)), places), [-1, width])
