"""Tables of rows with lookup by index: embeddings, and sums, means or maxima of bags of embeddings."""

from __future__ import annotations

from typing import Any, Self

from jobflow.core.errors import ArgumentError, ShapeError, user_line
from jobflow.functional import nn_embedding as F
from jobflow.functional.creation import empty
from jobflow.functional.nn_base import one_of, real, whole
from jobflow.functional.tensor_class import Tensor
from jobflow.nn import init
from jobflow.nn.modules.checked_layers import check_layers
from jobflow.nn.modules.module import Module
from jobflow.nn.parameter import Parameter
from jobflow.tensors.gpus import fill
from jobflow.tensors.state import state
from jobflow.tensors.tensor import own

__all__ = ["Embedding", "EmbeddingBag"]


def _zero_row(table: Tensor, row: int) -> None:
    """Set the row `row` of a table to zero, on the ranks that store this row."""
    first = 0
    if table.layout is not None:
        rank = state().rank.index
        first = table.layout.box(table.tensor_type.shape, rank).start[0] if rank in table.layout.placement.ranks else 0
    if 0 <= row - first < table.array.shape[0]:
        fill(own(table, "Embedding")[row - first], 0)
        table.wrote()


class _Table(Module):
    """A table of `num_embeddings` rows of `embedding_dim` elements."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None,
        max_norm: float | None,
        norm_type: float,
        scale_grad_by_freq: bool,
        sparse: bool,
        weight: Tensor | None,
        options: dict[str, Any],
    ) -> None:
        super().__init__()
        what = type(self).__name__
        for name, size in (("num_embeddings", num_embeddings), ("embedding_dim", embedding_dim)):
            whole(what, name, size)
        if padding_idx is not None and not -num_embeddings <= whole(what, "padding_idx", padding_idx) < num_embeddings:
            rows = f"{-num_embeddings} to {num_embeddings - 1}"
            raise ArgumentError(f"{what} at {user_line()}: padding_idx {padding_idx} is out of range, {rows}, for {num_embeddings} rows")
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.max_norm = None if max_norm is None else real(what, "max_norm", max_norm)
        self.norm_type, self.scale_grad_by_freq, self.sparse = real(what, "norm_type", norm_type), scale_grad_by_freq, sparse
        if weight is None:
            self.weight = Parameter(empty(num_embeddings, embedding_dim, **options))
            self.reset_parameters()
            return
        if not isinstance(weight, Tensor) or tuple(weight.shape) != (num_embeddings, embedding_dim):
            got = weight.tensor_type if isinstance(weight, Tensor) else type(weight).__name__
            raise ShapeError(f"{what} at {user_line()}: _weight must be a tensor [{num_embeddings}, {embedding_dim}]; got {got}")
        self.weight = Parameter(weight)

    @classmethod
    def _of(cls, embeddings: Tensor, freeze: bool, **options: Any) -> Self:
        """Return a table with the rows `embeddings`, which are not trained if `freeze`."""
        if not isinstance(embeddings, Tensor) or embeddings.ndim != 2:
            got = embeddings.tensor_type if isinstance(embeddings, Tensor) else type(embeddings).__name__
            raise ShapeError(f"{cls.__name__}.from_pretrained at {user_line()}: embeddings must be [rows, features]; got {got}")
        rows, width = embeddings.shape
        result: Self = cls(rows, width, _weight=embeddings, **options)  # type: ignore[call-arg]
        result.weight._needs_gradient = not freeze
        return result

    def reset_parameters(self) -> None:
        """Initialize the rows with samples of N(0, 1), and the row `padding_idx` with zeros."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            _zero_row(self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        options = (("padding_idx", None), ("max_norm", None), ("norm_type", 2.0), ("scale_grad_by_freq", False), ("sparse", False))
        changed = "".join(f", {name}={getattr(self, name)}" for name, default in options if getattr(self, name) != default)
        return f"{self.num_embeddings}, {self.embedding_dim}{changed}"


class Embedding(_Table):
    """A table of `num_embeddings` rows of `embedding_dim` elements, with lookup by index.

    The row `padding_idx` is initialized to zero and receives no gradient. The rows may be split over ranks; each rank looks up the rows that it
    stores. `nn.functional.embedding` describes the other arguments. Raises: ArgumentError for a `padding_idx` out of range.

    Examples:
        >>> table = nn.Embedding(1000, 32)
        >>> table(flow.tensor([[1, 2], [3, 4]])).shape
        jobflow.Size([2, 2, 32])
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Any = None,
        _freeze: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        options = {"device": device, "dtype": dtype}
        super().__init__(num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, _weight, options)
        if _freeze:
            self.weight._needs_gradient = False

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Self:
        """Return an embedding with the rows `embeddings`, which are not trained if `freeze`.  Raises: ShapeError unless `embeddings` has two axes."""
        options = {"padding_idx": padding_idx, "max_norm": max_norm, "norm_type": norm_type}
        return cls._of(embeddings, freeze, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse, **options)

    def forward(self, input: Tensor) -> Tensor:
        return F.embedding(input, self.weight, self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse)


class EmbeddingBag(_Table):
    """A table of `num_embeddings` rows, with sums, means or maxima (`mode`) of the rows of bags of indices.

    `nn.functional.embedding_bag` describes the arguments. Raises: ArgumentError for a `padding_idx` out of range.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: Any = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        options = {"device": device, "dtype": dtype}
        super().__init__(num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, _weight, options)
        self.mode = one_of("EmbeddingBag", "mode", mode, F.MODES)
        self.include_last_offset = include_last_offset

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> Self:
        """Return an EmbeddingBag with the rows `embeddings`, which are not trained if `freeze`.

        Raises: ShapeError unless `embeddings` has two axes.
        """
        options = {"max_norm": max_norm, "norm_type": norm_type, "scale_grad_by_freq": scale_grad_by_freq, "mode": mode, "sparse": sparse}
        return cls._of(embeddings, freeze, include_last_offset=include_last_offset, padding_idx=padding_idx, **options)

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        """Return one row per bag; `input` is a matrix of bags, or a vector whose bags start at the positions `offsets`."""
        return F.embedding_bag(
            input,
            self.weight,
            offsets,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.mode,
            self.sparse,
            per_sample_weights,
            self.include_last_offset,
            self.padding_idx,
        )

    def extra_repr(self) -> str:
        last = ", include_last_offset=True" if self.include_last_offset else ""
        return f"{super().extra_repr()}, mode={self.mode!r}{last}"


check_layers(globals())
