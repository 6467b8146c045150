"""Transformers: layers and stacks of encoders and decoders (Vaswani et al. 2017)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

from jobflow.core.errors import ArgumentError, ShapeError, user_line
from jobflow.functional.binary_functions import add
from jobflow.functional.creation import full
from jobflow.functional.nn_activations import gelu, relu
from jobflow.functional.nn_base import one_of, real, whole
from jobflow.functional.selecting import triu
from jobflow.functional.tensor_class import Tensor
from jobflow.nn import init
from jobflow.nn.modules.attention_layers import MultiheadAttention
from jobflow.nn.modules.checked_layers import check_layers
from jobflow.nn.modules.container import ModuleList
from jobflow.nn.modules.linear_layers import Dropout, Linear
from jobflow.nn.modules.module import Module
from jobflow.nn.modules.norm_layers import LayerNorm

__all__ = ["Transformer", "TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder", "TransformerEncoderLayer"]

Activation = str | Callable[[Tensor], Tensor]

_ACTIVATIONS: dict[str, Callable[..., Tensor]] = {"relu": relu, "gelu": gelu}


def _activation(what: str, activation: Any) -> Callable[[Tensor], Tensor]:
    """Return a function of tensors from its name or from the function itself; raise ArgumentError for other values."""
    if isinstance(activation, str):
        return _ACTIVATIONS[one_of(what, "activation", activation, tuple(_ACTIVATIONS))]
    if not callable(activation):
        raise ArgumentError(f"{what} at {user_line()}: activation must be {' or '.join(map(repr, _ACTIVATIONS))} or a function; got {activation!r}")
    return activation


class _Layer(Module):
    """Common parts of encoder and decoder layers: self-attention, and two linear maps per position with an activation between them."""

    #: the number of residual connections
    connections: int

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        what = type(self).__name__
        for name, size in (("d_model", d_model), ("nhead", nhead), ("dim_feedforward", dim_feedforward)):
            whole(what, name, size)
        for name, number in (("dropout", dropout), ("layer_norm_eps", layer_norm_eps)):
            real(what, name, number)
        options = {"device": device, "dtype": dtype}
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first, **options)
        if self.connections == 3:
            self.multihead_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first, **options)
        self.linear1 = Linear(d_model, dim_feedforward, bias, **options)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, **options)
        self.norm_first = norm_first
        for i in range(1, self.connections + 1):
            setattr(self, f"norm{i}", LayerNorm(d_model, layer_norm_eps, bias=bias, **options))
        for i in range(1, self.connections + 1):
            setattr(self, f"dropout{i}", Dropout(dropout))
        self.activation = _activation(what, activation)

    def _connected(self, x: Tensor, i: int, branch: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the output of residual connection `i` around `branch`, with the norm and the dropout of this connection."""
        norm, dropout = getattr(self, f"norm{i}"), getattr(self, f"dropout{i}")
        if self.norm_first:
            return add(x, dropout(branch(norm(x))))
        y: Tensor = norm(add(x, dropout(branch(x))))
        return y

    def _fed(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear2(self.dropout(self.activation(self.linear1(x))))
        return y


def _attended(attention: Module, x: Tensor, memory: Tensor, mask: Tensor | None, padding: Tensor | None, causal: bool) -> Tensor:
    output: Tensor = attention(x, memory, memory, key_padding_mask=padding, need_weights=False, attn_mask=mask, is_causal=causal)[0]
    return output


class TransformerEncoderLayer(_Layer):
    """A transformer encoder layer: self-attention with `nhead` heads, then two linear maps per position, each with a residual connection.

    The linear maps have `dim_feedforward` features between them. A LayerNorm follows each residual connection, or precedes self-attention and
    linear maps with `norm_first`.
    """

    connections = 2

    def forward(self, src: Tensor, src_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Return the output of the layer, with the shape of `src`; `MultiheadAttention` describes the masks and `is_causal`."""
        x = self._connected(src, 1, lambda x: _attended(self.self_attn, x, x, src_mask, src_key_padding_mask, is_causal))
        return self._connected(x, 2, self._fed)


class TransformerDecoderLayer(_Layer):
    """A transformer decoder layer: self-attention, attention to the output `memory` of an encoder, then two linear maps per position.

    Each of the three has a residual connection. A LayerNorm follows each residual connection, or precedes its branch with `norm_first`.
    """

    connections = 3

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Return the output of the layer, with the shape of `tgt`; `MultiheadAttention` describes the masks."""
        x = self._connected(tgt, 1, lambda x: _attended(self.self_attn, x, x, tgt_mask, tgt_key_padding_mask, tgt_is_causal))
        x = self._connected(x, 2, lambda x: _attended(self.multihead_attn, x, memory, memory_mask, memory_key_padding_mask, memory_is_causal))
        return self._connected(x, 3, self._fed)


class _Stack(Module):
    """A sequence of copies of a layer, followed by a norm if it is passed."""

    def __init__(self, layer: Module, num_layers: int, norm: Module | None) -> None:
        super().__init__()
        what = type(self).__name__
        if not isinstance(layer, Module):
            raise ArgumentError(f"{what} at {user_line()}: the layer must be an nn.Module; got {type(layer).__name__}")
        if norm is not None and not isinstance(norm, Module):
            raise ArgumentError(f"{what} at {user_line()}: norm must be an nn.Module or None; got {type(norm).__name__}")
        if whole(what, "num_layers", num_layers) < 0:
            raise ArgumentError(f"{what} at {user_line()}: num_layers must not be negative; got {num_layers}")
        self.layers = ModuleList([copy.deepcopy(layer) for _ in range(num_layers)])
        self.num_layers = num_layers
        self.norm = norm


class TransformerEncoder(_Stack):
    """A sequence of `num_layers` copies of `encoder_layer`, followed by `norm` if it is passed.

    `enable_nested_tensor` and `mask_check` select faster kernels in PyTorch, and have no effect here.
    """

    def __init__(
        self, encoder_layer: Module, num_layers: int, norm: Module | None = None, enable_nested_tensor: bool = True, mask_check: bool = True
    ) -> None:
        super().__init__(encoder_layer, num_layers, norm)
        self.enable_nested_tensor, self.mask_check = enable_nested_tensor, mask_check

    def forward(self, src: Tensor, mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None, is_causal: bool | None = None) -> Tensor:
        """Return the output of the last layer; all layers use the same masks."""
        for layer in self.layers:
            src = layer(src, src_mask=mask, src_key_padding_mask=src_key_padding_mask, is_causal=bool(is_causal))
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(_Stack):
    """A sequence of `num_layers` copies of `decoder_layer`, followed by `norm` if it is passed."""

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__(decoder_layer, num_layers, norm)

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Return the output of the last layer; all layers use the same `memory` and masks."""
        for layer in self.layers:
            tgt = layer(
                tgt,
                memory,
                tgt_mask=tgt_mask,
                memory_mask=memory_mask,
                tgt_key_padding_mask=tgt_key_padding_mask,
                memory_key_padding_mask=memory_key_padding_mask,
                tgt_is_causal=bool(tgt_is_causal),
                memory_is_causal=memory_is_causal,
            )
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(Module):
    """A transformer of an encoder and a decoder, each followed by a LayerNorm (Vaswani et al. 2017).

    `custom_encoder` and `custom_decoder` replace the stacks of `num_encoder_layers` and `num_decoder_layers` layers; `TransformerEncoderLayer`
    describes the other arguments. Tensors are [length, batch, features], or [batch, length, features] with `batch_first`, or [length, features].
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        custom_encoder: Any = None,
        custom_decoder: Any = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        sizes = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias, device, dtype)

        def norm() -> LayerNorm:
            return LayerNorm(d_model, layer_norm_eps, bias=bias, device=device, dtype=dtype)

        if custom_encoder is None:
            custom_encoder = TransformerEncoder(TransformerEncoderLayer(*sizes), num_encoder_layers, norm())
        if custom_decoder is None:
            custom_decoder = TransformerDecoder(TransformerDecoderLayer(*sizes), num_decoder_layers, norm())
        self.encoder, self.decoder = custom_encoder, custom_decoder
        self._reset_parameters()
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first

    def _reset_parameters(self) -> None:
        for p in self.parameters():
            if p.ndim > 1:
                init.xavier_uniform_(p)

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Return the output of the decoder for the target `tgt` and the encoded source `src`, with the shape of `tgt`.

        `memory_mask` and `memory_key_padding_mask` hide positions of the source from the decoder; `MultiheadAttention` describes all masks.
        Raises: ShapeError unless `src` and `tgt` have `d_model` features and batches of one size.
        """
        self._check(src, tgt)
        memory = self.encoder(src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal)
        output: Tensor = self.decoder(
            tgt,
            memory,
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            tgt_is_causal=tgt_is_causal,
            memory_is_causal=memory_is_causal,
        )
        return output

    def _check(self, src: Tensor, tgt: Tensor) -> None:
        what = f"Transformer at {user_line()}: src {src.tensor_type} and tgt {tgt.tensor_type}"
        if {src.ndim, tgt.ndim} not in ({2}, {3}):
            raise ShapeError(f"{what} must have 3 axes each, or 2 without a batch")
        batch = 0 if self.batch_first else 1
        if src.ndim == 3 and src.shape[batch] != tgt.shape[batch]:
            raise ShapeError(f"{what} must have the same batch size on axis {batch}, because batch_first={self.batch_first}")
        if not src.shape[-1] == tgt.shape[-1] == self.d_model:
            raise ShapeError(f"{what} must have d_model={self.d_model} features on their last axis")

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: Any = None, dtype: Any = None) -> Tensor:
        """Return an additive causal mask [sz, sz]: -inf above the diagonal, 0 elsewhere.  Raises: ArgumentError for a size that is negative."""
        if whole("Transformer.generate_square_subsequent_mask", "sz", sz) < 0:
            raise ArgumentError(f"Transformer.generate_square_subsequent_mask at {user_line()}: sz must not be negative; got {sz}")
        return triu(full((sz, sz), -math.inf, device=device, dtype=dtype), 1)


check_layers(globals())
