"""Cases of transformers, written for any library with PyTorch's names; kinds of inputs as in `nn_cases`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nn_cases import Case, _Called

SOURCE, TARGET = ("x", (3, 4, 8)), ("x", (3, 5, 8))


def _decoder(call: Callable[..., Any], norm_first: bool = False, **options: Any) -> Callable[[Any, Any], Any]:
    def make(nn: Any, F: Any) -> Any:
        return _Called(nn.TransformerDecoderLayer(8, 2, 12, 0.0, norm_first=norm_first, batch_first=True, **options), call)

    return make


def _decoders(nn: Any, F: Any) -> Any:
    layer = nn.TransformerDecoderLayer(8, 4, 12, 0.0, F.gelu, 1e-3, norm_first=True, bias=False)
    return _Called(nn.TransformerDecoder(layer, 2, nn.LayerNorm(8)), lambda m, y, x, u: m(y, x, tgt_mask=u, tgt_is_causal=True))


def _transformer(nn: Any, F: Any) -> Any:
    def call(m: Any, x: Any, y: Any, u: Any, hidden: Any) -> Any:
        return m(x, y, tgt_mask=u, src_key_padding_mask=hidden, memory_key_padding_mask=hidden)

    return _Called(nn.Transformer(8, 2, 1, 1, 12, 0.0, batch_first=True), call)


def _masked(m: Any, y: Any, x: Any, *masks: Any) -> Any:
    return m(y, x, **dict(zip(("tgt_mask", "memory_mask", "tgt_key_padding_mask", "memory_key_padding_mask"), masks, strict=True)))


def _grouped(nn: Any, F: Any) -> Any:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True, scale=0.3)


TRANSFORMERS = [
    Case("decoder", _decoder(lambda m, y, x: m(y, x)), (TARGET, SOURCE)),
    Case("decoder_masks", _decoder(_masked), (TARGET, SOURCE, ("u", (5, 5)), ("h", (6, 5, 4)), ("h", (3, 5)), ("h", (3, 4)))),
    Case("decoder_added", _decoder(_masked, True), (TARGET, SOURCE, ("f", (5, 5)), ("f", (5, 4)), ("f", (3, 5)), ("f", (3, 4)))),
    Case("decoder_unbatched", _decoder(_masked, True), (("x", (5, 8)), ("x", (4, 8)), ("u", (5, 5)), ("h", (5, 4)), ("h", (5,)), ("h", (4,)))),
    Case("decoders", _decoders, (("x", (5, 3, 8)), ("x", (4, 3, 8)), ("u", (5, 5)))),
    Case("transformer", _transformer, (SOURCE, TARGET, ("u", (5, 5)), ("h", (3, 4)))),
    Case("sdpa_groups", _grouped, (("x", (3, 4, 5, 6)), ("x", (3, 2, 4, 6)), ("x", (3, 2, 4, 2)))),
]
MODELS = TRANSFORMERS
