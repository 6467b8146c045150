"""Multi-head attention as one function of tensors (Vaswani et al. 2017)."""

from __future__ import annotations

from jobflow.core.errors import ArgumentError, ShapeError, user_line
from jobflow.functional import nn_attention as attention
from jobflow.functional.nn_base import flag, whole
from jobflow.functional.nn_linear import linear
from jobflow.functional.reductions import mean
from jobflow.functional.shapes import reshape, squeeze, unsqueeze
from jobflow.functional.typed import Tensor

__all__ = ["multi_head_attention_forward"]


def _check(query: Tensor, key: Tensor, value: Tensor, size: int, heads: int) -> None:
    what, types = "multi_head_attention_forward", [x.tensor_type for x in (query, key, value)]
    listed = f"query {types[0]}, key {types[1]} and value {types[2]}"
    if {t.ndim for t in types} not in ({2}, {3}):
        raise ShapeError(f"{what} at {user_line()}: {listed} must be [length, batch, features], or [length, features]")
    if types[0].shape[-1] != whole(what, "embed_dim_to_check", size) or types[1].shape[:-1] != types[2].shape[:-1]:
        raise ShapeError(f"{what} at {user_line()}: {listed} must have {size} features of the query, and as many keys as values")
    if types[0].shape[1:-1] != types[1].shape[1:-1]:
        raise ShapeError(f"{what} at {user_line()}: {listed} must have the same batch size")
    if whole(what, "num_heads", heads) < 1 or size % heads:
        raise ArgumentError(f"{what} at {user_line()}: embed_dim_to_check {size} must be a multiple of num_heads {heads}")


def _joined_static(x: Tensor | None, mapped: Tensor, heads: int) -> Tensor:
    """Return x, static keys or values [batch * heads, length, size], as [batch, length, heads * size]; return `mapped` if x is None."""
    if x is None:
        return mapped
    n, _, width = mapped.tensor_type.shape
    t = x.tensor_type
    if t.ndim != 3 or t.shape[0] != n * heads or t.shape[2] * heads != width:
        raise ShapeError(
            f"multi_head_attention_forward at {user_line()}: static_k and static_v must be [{n * heads}, length, {width // heads}]; got {t}"
        )
    return attention.join_heads(reshape(x, (n, heads, t.shape[1], t.shape[2])))


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return the output and the weights of `nn.MultiheadAttention` with these parameters; weights are None unless `need_weights`.

    Query, key and value are [length, batch, features] or [length, features].  `in_proj_weight` has the three maps in one table; with
    `use_separate_proj_weight`, the tables `q_proj_weight`, `k_proj_weight` and `v_proj_weight` replace it.
    `static_k` and `static_v` replace the mapped keys and values.
    Raises: ShapeError, ArgumentError for arguments that do not match.
    """
    what = "multi_head_attention_forward"
    _check(query, key, value, embed_dim_to_check, num_heads)
    separate = flag(what, "use_separate_proj_weight", use_separate_proj_weight)
    tables = [q_proj_weight, k_proj_weight, v_proj_weight] if separate else [in_proj_weight]
    if any(table is None for table in tables):
        names = "q_proj_weight, k_proj_weight and v_proj_weight" if separate else "in_proj_weight"
        raise ArgumentError(f"{what} at {user_line()}: {names} must be tensors")
    if in_proj_weight is not None and not separate:
        _check_table("in_proj_weight", in_proj_weight, (3 * embed_dim_to_check, embed_dim_to_check))
        tables = [attention.thirds(in_proj_weight, i, 0) for i in range(3)]
    if in_proj_bias is not None:
        _check_table("in_proj_bias", in_proj_bias, (3 * embed_dim_to_check,))
    if (bias_k is None) != (bias_v is None):
        raise ArgumentError(f"{what} at {user_line()}: pass both of bias_k and bias_v, or none")
    bias_k, bias_v = (_row(name, row, embed_dim_to_check) for name, row in (("bias_k", bias_k), ("bias_v", bias_v)))
    biases = [None if in_proj_bias is None else attention.thirds(in_proj_bias, i, 0) for i in range(3)]
    alone = query.tensor_type.ndim == 2
    batched = [unsqueeze(x, 0) if alone else attention.swap_first_axes(x) for x in (query, key, value)]
    q, k, v = (linear(x, table, bias) for x, table, bias in zip(batched, tables, biases, strict=True) if table is not None)
    k, v = _joined_static(static_k, k, num_heads), _joined_static(static_v, v, num_heads)
    if key_padding_mask is not None and alone:
        key_padding_mask = unsqueeze(key_padding_mask, 0)
    causal, rate = flag(what, "is_causal", is_causal) and attn_mask is None, dropout_p if flag(what, "training", training) else 0.0
    zero = flag(what, "add_zero_attn", add_zero_attn)
    joined, weights = attention.attend((q, k, v), num_heads, attn_mask, key_padding_mask, causal, rate, bias_k, bias_v, zero)
    output = linear(joined, out_proj_weight, out_proj_bias)
    shown = None
    if flag(what, "need_weights", need_weights):
        shown = mean(weights, 1) if flag(what, "average_attn_weights", average_attn_weights) else weights
    if alone:
        return squeeze(output, 0), None if shown is None else squeeze(shown, 0)
    return attention.swap_first_axes(output), shown


def _check_table(name: str, table: Tensor, shape: tuple[int, ...]) -> None:
    if table.tensor_type.shape != shape:
        raise ShapeError(f"multi_head_attention_forward at {user_line()}: {name} {table.tensor_type} must have the shape {list(shape)}")


def _row(name: str, row: Tensor | None, size: int) -> Tensor | None:
    """Return a key or a value as [1, 1, features]; raise ShapeError unless it has `size` features."""
    if row is None:
        return None
    if row.tensor_type.shape[-1:] != (size,) or row.tensor_type.size != size:
        raise ShapeError(f"multi_head_attention_forward at {user_line()}: {name} {row.tensor_type} must have {size} elements, one per feature")
    return reshape(row, (1, 1, size))
