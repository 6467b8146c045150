"""Multi-head attention."""

from __future__ import annotations

from typing import Any

from jobflow.core.errors import ArgumentError, ShapeError, user_line
from jobflow.functional import nn_attention as F
from jobflow.functional.creation import empty
from jobflow.functional.nn_base import flag
from jobflow.functional.nn_linear import linear
from jobflow.functional.reductions import mean
from jobflow.functional.shapes import squeeze, unsqueeze
from jobflow.functional.tensor_class import Tensor
from jobflow.nn import init
from jobflow.nn.modules.checked_layers import check_layers
from jobflow.nn.modules.linear_layers import Linear
from jobflow.nn.modules.module import Module
from jobflow.nn.parameter import Parameter

__all__ = ["MultiheadAttention"]


class MultiheadAttention(Module):
    """Multi-head attention with `num_heads` heads of embed_dim / num_heads features each (Vaswani et al. 2017).

    A linear map is applied to the joined outputs of the heads. Tensors are [length, batch, features], or [batch, length, features] with
    `batch_first`, or [length, features]. `kdim` and `vdim` are the features of key and value, by default `embed_dim`.
    `add_bias_kv` appends a learned key and value, and `add_zero_attn` a key and value of zeros.
    Raises: ArgumentError unless `num_heads` divides `embed_dim`.

    Examples:
        >>> layer = nn.MultiheadAttention(32, 4, batch_first=True)
        >>> x = flow.randn(2, 10, 32)
        >>> output, weights = layer(x, x, x)
        >>> output.shape, weights.shape
        (jobflow.Size([2, 10, 32]), jobflow.Size([2, 10, 10]))
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
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
        self.add_zero_attn = flag("MultiheadAttention", "add_zero_attn", add_zero_attn)
        with_rows = flag("MultiheadAttention", "add_bias_kv", add_bias_kv)
        for name in ("bias_k", "bias_v"):
            self.register_parameter(name, Parameter(empty(1, 1, embed_dim, **place)) if with_rows else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize weights with `xavier_uniform_`, biases with zeros, and the added key and value with `xavier_normal_`."""
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                init.xavier_uniform_(weight)
        for bias in (self.in_proj_bias, self.out_proj.bias):
            if bias is not None:
                init.zeros_(bias)
        for row in (self.bias_k, self.bias_v):
            if row is not None:
                init.xavier_normal_(row)

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
        mapped, rate = self._mapped(*self._batched(query, key, value)), self.dropout if self.training else 0.0
        causal = is_causal and attn_mask is None
        joined, weights = F.attend(mapped, self.num_heads, attn_mask, key_padding_mask, causal, rate, self.bias_k, self.bias_v, self.add_zero_attn)
        output = self.out_proj(joined)
        shown = None if not need_weights else mean(weights, 1) if average_attn_weights else weights
        if query.ndim == 2:
            return squeeze(output, 0), None if shown is None else squeeze(shown, 0)
        return output if self.batch_first else F.swap_first_axes(output), shown


check_layers(globals())
