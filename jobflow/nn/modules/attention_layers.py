"""Multi-head attention and the layers of transformer encoders."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

from jobflow.core.errors import ArgumentError, ShapeError, user_line
from jobflow.functional import nn_attention as F
from jobflow.functional.binary_functions import add
from jobflow.functional.creation import empty
from jobflow.functional.nn_activations import gelu, relu
from jobflow.functional.nn_base import one_of
from jobflow.functional.nn_linear import dropout, linear
from jobflow.functional.reductions import mean
from jobflow.functional.shapes import squeeze, unsqueeze
from jobflow.functional.tensor_class import Tensor
from jobflow.nn import init
from jobflow.nn.modules.container import ModuleList
from jobflow.nn.modules.linear_layers import Dropout, Linear
from jobflow.nn.modules.module import Module
from jobflow.nn.modules.norm_layers import LayerNorm
from jobflow.nn.parameter import Parameter

__all__ = ["MultiheadAttention", "TransformerEncoder", "TransformerEncoderLayer"]


class MultiheadAttention(Module):
    """Multi-head attention with `num_heads` heads of embed_dim / num_heads features each (Vaswani et al. 2017).

    A linear map is applied to the joined outputs of the heads. Tensors are [length, batch, features], or [batch, length, features] with
    `batch_first`, or [length, features]. `kdim` and `vdim` are the features of key and value, by default `embed_dim`.
    Raises: ArgumentError unless `num_heads` divides `embed_dim`.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads:
            raise ArgumentError(f"MultiheadAttention at {user_line()}: embed_dim {embed_dim} must be a multiple of num_heads {num_heads}")
        self.embed_dim, self.num_heads, self.dropout, self.batch_first = embed_dim, num_heads, dropout, batch_first
        self.head_dim = embed_dim // num_heads
        self.kdim, self.vdim = (embed_dim if size is None else size for size in (kdim, vdim))
        self.one_table = self.kdim == self.vdim == embed_dim
        place = {"device": device, "dtype": dtype}
        self.register_parameter("in_proj_weight", Parameter(empty(3 * embed_dim, embed_dim, **place)) if self.one_table else None)
        for name, size in (("q_proj_weight", embed_dim), ("k_proj_weight", self.kdim), ("v_proj_weight", self.vdim)):
            self.register_parameter(name, None if self.one_table else Parameter(empty(embed_dim, size, **place)))
        self.register_parameter("in_proj_bias", Parameter(empty(3 * embed_dim, **place)) if bias else None)
        self.out_proj = Linear(embed_dim, embed_dim, bias, **place)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize weights with `xavier_uniform_` and biases with zeros."""
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                init.xavier_uniform_(weight)
        for bias in (self.in_proj_bias, self.out_proj.bias):
            if bias is not None:
                init.zeros_(bias)

    def _mapped(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Return linear maps of query, key and value, [batch, length, embed_dim]; the heads are not yet split."""
        if self.one_table and query is key and key is value:
            together = linear(query, self.in_proj_weight, self.in_proj_bias)
            return [F.thirds(together, i, 2) for i in range(3)]
        if self.one_table:
            weights = [F.thirds(self.in_proj_weight, i, 0) for i in range(3)]
        else:
            weights = [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]
        biases = [None if self.in_proj_bias is None else F.thirds(self.in_proj_bias, i, 0) for i in range(3)]
        return [linear(x, weight, bias) for x, weight, bias in zip((query, key, value), weights, biases, strict=True)]

    def _batched(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Return query, key and value as [batch, length, features]; identical arguments remain one tensor."""
        if {x.ndim for x in (query, key, value)} not in ({2}, {3}):
            listed = f"query {query.tensor_type}, key {key.tensor_type} and value {value.tensor_type}"
            raise ShapeError(f"MultiheadAttention at {user_line()}: {listed} must have 3 axes each, or 2 without a batch")
        batched: dict[int, Tensor] = {}
        for x in (query, key, value):
            if id(x) not in batched:
                batched[id(x)] = unsqueeze(x, 0) if x.ndim == 2 else x if self.batch_first else F.swap_first_axes(x)
        return [batched[id(x)] for x in (query, key, value)]

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output, with the shape of `query` and `embed_dim` features, and the attention weights if `need_weights`, else None.

        `key_padding_mask` is [batch, keys], `attn_mask` is [queries, keys] or [batch * heads, queries, keys]. True hides a key; numbers are added to
        the scores. With `is_causal`, query i attends to keys up to i, unless `attn_mask` is passed. A query without visible keys has zero weights.
        Weights are [batch, queries, keys], averaged over the heads, or [batch, heads, queries, keys] with average_attn_weights=False.
        """
        if key_padding_mask is not None and query.ndim == 2:
            key_padding_mask = unsqueeze(key_padding_mask, 0)
        q, k, v = (F.split_heads(x, self.num_heads) for x in self._mapped(*self._batched(query, key, value)))
        mask = F.combined_mask(attn_mask, key_padding_mask, q, k)
        weights = F.attention_weights(q, k, mask, is_causal and attn_mask is None, 1.0 / math.sqrt(self.head_dim))
        weights = dropout(weights, self.dropout, self.training)
        output = self.out_proj(F.join_heads(F.weighted_values(weights, v)))
        shown = None if not need_weights else mean(weights, 1) if average_attn_weights else weights
        if query.ndim == 2:
            return squeeze(output, 0), None if shown is None else squeeze(shown, 0)
        return output if self.batch_first else F.swap_first_axes(output), shown


_ACTIVATIONS: dict[str, Callable[..., Tensor]] = {"relu": relu, "gelu": gelu}


class TransformerEncoderLayer(Module):
    """A transformer encoder layer: self-attention with `nhead` heads, then two linear maps per position, each with a residual connection.

    The linear maps have `dim_feedforward` features between them. A LayerNorm follows each residual connection, or precedes self-attention and
    linear maps with `norm_first`.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        place = {"device": device, "dtype": dtype}
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first, **place)
        self.linear1 = Linear(d_model, dim_feedforward, bias, **place)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, **place)
        self.norm_first = norm_first
        self.norm1 = LayerNorm(d_model, layer_norm_eps, bias=bias, **place)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, bias=bias, **place)
        self.dropout1, self.dropout2 = Dropout(dropout), Dropout(dropout)
        if isinstance(activation, str):
            activation = _ACTIVATIONS[one_of("TransformerEncoderLayer", "activation", activation, tuple(_ACTIVATIONS))]
        self.activation = activation

    def forward(self, src: Tensor, src_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        if self.norm_first:
            x = add(src, self._attended(self.norm1(src), src_mask, src_key_padding_mask, is_causal))
            return add(x, self._fed(self.norm2(x)))
        x = self.norm1(add(src, self._attended(src, src_mask, src_key_padding_mask, is_causal)))
        return self.norm2(add(x, self._fed(x)))

    def _attended(self, x: Tensor, mask: Tensor | None, padding: Tensor | None, causal: bool) -> Tensor:
        output, _ = self.self_attn(x, x, x, key_padding_mask=padding, need_weights=False, attn_mask=mask, is_causal=causal)
        return self.dropout1(output)

    def _fed(self, x: Tensor) -> Tensor:
        return self.dropout2(self.linear2(self.dropout(self.activation(self.linear1(x)))))


class TransformerEncoder(Module):
    """A sequence of `num_layers` copies of `encoder_layer`, followed by `norm` if it is passed."""

    def __init__(self, encoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers = ModuleList([copy.deepcopy(encoder_layer) for _ in range(num_layers)])
        self.num_layers = num_layers
        self.norm = norm

    def forward(self, src: Tensor, mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, is_causal)
        return src if self.norm is None else self.norm(src)
