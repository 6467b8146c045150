"""Cases of transformers and of bags of embeddings, written for any library with PyTorch's names; kinds of inputs as in `nn_cases`."""

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


def _bag(**options: Any) -> Callable[[Any, Any], Any]:
    """Return bags of vectors of indices; the second input has the sizes of the bags, except for the last one."""

    def make(nn: Any, F: Any) -> Any:
        def call(m: Any, ids: Any, sizes: Any, *weights: Any) -> Any:
            return m(ids, sizes.cumsum(0) - sizes, *weights)

        return _Called(nn.EmbeddingBag(9, 4, **options), call)

    return make


def _table(name: str, **options: Any) -> Callable[[Any, Any], Any]:
    return lambda nn, F: getattr(nn, name)(9, 4, **options)


_IDS, _SIZES, _ROWS = ("i9", (8,)), ("i3", (5,)), ("i9", (5, 3))
BAGS = [
    *(Case(f"bag_{mode}", _bag(mode=mode), (_IDS, _SIZES)) for mode in ("sum", "mean", "max")),
    *(Case(f"bag_{mode}_padded", _bag(mode=mode, padding_idx=2), (("i4", (8,)), _SIZES)) for mode in ("sum", "mean", "max")),
    *(Case(f"bag_{mode}_rows", _table("EmbeddingBag", mode=mode, padding_idx=-8), (("i4", (5, 3)),)) for mode in ("sum", "mean", "max")),
    Case("bag_weighted", _bag(mode="sum", include_last_offset=True), (_IDS, _SIZES, ("x", (8,)))),
    Case("bag_limited", _bag(mode="sum", max_norm=1.1), (_IDS, _SIZES)),
    Case("embedding_by_frequency", _table("Embedding", scale_grad_by_freq=True, padding_idx=1), (("i4", (5, 3)),)),
    Case("embedding_limited", _table("Embedding", max_norm=1.2, norm_type=1.5), (_ROWS,)),
]
MODELS = [*TRANSFORMERS, *BAGS]
