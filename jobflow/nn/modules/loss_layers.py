"""Loss modules, which call functions of `jobflow.functional` with their attributes as options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import InitVar, field
from inspect import signature
from typing import Any, ClassVar

from jobflow.core.errors import ArgumentError, user_line
from jobflow.functional import nn_classes, nn_ctc, nn_losses
from jobflow.functional import nn_margin_losses as margins
from jobflow.functional.nn_base import chosen_reduction, one_of
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.modules.checked_layers import check_layers
from jobflow.nn.modules.option_modules import WithOptions

__all__ = [
    "BCELoss", "BCEWithLogitsLoss", "CTCLoss", "CosineEmbeddingLoss", "CrossEntropyLoss", "GaussianNLLLoss", "HingeEmbeddingLoss", "HuberLoss",
    "KLDivLoss", "L1Loss", "MSELoss", "MarginRankingLoss", "MultiLabelMarginLoss", "MultiLabelSoftMarginLoss", "MultiMarginLoss", "NLLLoss",
    "NLLLoss2d", "PoissonNLLLoss", "SmoothL1Loss", "SoftMarginLoss", "TripletMarginLoss",
    "TripletMarginWithDistanceLoss",
]  # fmt: skip


class _Loss(WithOptions):
    """Base class of losses, which compute function(*tensors, **options) with attributes as options."""

    #: options that are tensors and move with the module
    tensors: ClassVar[tuple[str, ...]] = ()
    reductions: ClassVar[tuple[str, ...]] = ("mean", "sum", "none")

    reduction: str

    def __init__(self, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean") -> None:
        """Set `reduction` of a loss that a program defines as a subclass."""
        super().__init__()
        word = type(self).__name__
        self.reduction = one_of(word, "reduction", chosen_reduction(word, size_average, reduce, reduction), self.reductions)

    def __post_init__(self, *initial: Any) -> None:
        super().__post_init__()
        names = [name for name in signature(type(self).__init__).parameters if name not in ("self", *self._names)]
        values = dict(zip(names, initial, strict=True))
        word = type(self).__name__
        self.reduction = chosen_reduction(word, values.get("size_average"), values.get("reduce"), self.reduction)
        one_of(word, "reduction", self.reduction, self.reductions)
        for name in self.tensors:
            self.register_buffer(name, values[name])

    def forward(self, *tensors: Tensor) -> Tensor:
        return type(self).function(*tensors, **{name: getattr(self, name) for name in self.tensors}, **self._options())

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self._options().items() if name != "reduction")


class _WeightedLoss(_Loss):
    """Base class of losses that programs define with a buffer `weight`."""

    def __init__(self, weight: Tensor | None = None, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean") -> None:
        super().__init__(size_average, reduce, reduction)
        self.register_buffer("weight", weight)


class MSELoss(_Loss, function=nn_losses.mse_loss):
    job_functions = "jobflow.legacy.loss_functions"
    size_average: InitVar[bool | None] = None
    reduce: InitVar[bool | None] = None
    reduction: str = "mean"


class L1Loss(_Loss, function=nn_losses.l1_loss):
    job_functions = "jobflow.legacy.loss_functions"
    size_average: InitVar[bool | None] = None
    reduce: InitVar[bool | None] = None
    reduction: str = "mean"


class SmoothL1Loss(_Loss, function=nn_losses.smooth_l1_loss):
    size_average: InitVar[bool | None] = None
    reduce: InitVar[bool | None] = None
    reduction: str = "mean"
    beta: float = 1.0


class HuberLoss(_Loss, function=nn_losses.huber_loss):
    reduction: str = "mean"
    delta: float = 1.0


class BCELoss(_Loss, function=nn_losses.binary_cross_entropy):
    job_functions = "jobflow.legacy.loss_functions"
    tensors = ("weight",)
    weight: InitVar[Tensor | None] = None
    size_average: InitVar[bool | None] = None
    reduce: InitVar[bool | None] = None
    reduction: str = "mean"


class BCEWithLogitsLoss(_Loss, function=nn_losses.binary_cross_entropy_with_logits):
    job_functions = "jobflow.legacy.loss_functions"
    tensors = ("weight", "pos_weight")
    weight: InitVar[Tensor | None] = None
    size_average: InitVar[bool | None] = None
    reduce: InitVar[bool | None] = None
    reduction: str = "mean"
    pos_weight: InitVar[Tensor | None] = None


class KLDivLoss(_Loss, function=nn_losses.kl_div):
    job_functions = "jobflow.legacy.loss_functions"
    reductions = ("mean", "sum", "none", "batchmean")
    size_average: InitVar[bool | None] = None
    reduce: InitVar[bool | None] = None
    reduction: str = "mean"
    log_target: bool = False


class SoftMarginLoss(_Loss, function=nn_losses.soft_margin_loss):
    size_average: InitVar[bool | None] = None
    reduce: InitVar[bool | None] = None
    reduction: str = "mean"


class HingeEmbeddingLoss(_Loss, function=nn_losses.hinge_embedding_loss):
    margin: float = 1.0
    size_average: InitVar[bool | None] = None
    reduce: InitVar[bool | None] = None
    reduction: str = "mean"


class MarginRankingLoss(_Loss, function=nn_losses.margin_ranking_loss):
    job_functions = "jobflow.legacy.loss_functions"
    margin: float = 0.0
    size_average: InitVar[bool | None] = None
    reduce: InitVar[bool | None] = None
    reduction: str = "mean"


class CosineEmbeddingLoss(_Loss, function=nn_losses.cosine_embedding_loss):
    margin: float = 0.0
    size_average: InitVar[bool | None] = None
    reduce: InitVar[bool | None] = None
    reduction: str = "mean"


class TripletMarginLoss(_Loss, function=nn_losses.triplet_margin_loss):
    job_functions = "jobflow.legacy.loss_functions"
    margin: float = 1.0
    p: float = 2.0
    eps: float = 1e-6
    swap: bool = False
    size_average: InitVar[bool | None] = None
    reduce: InitVar[bool | None] = None
    reduction: str = "mean"


class GaussianNLLLoss(_Loss, function=nn_losses.gaussian_nll_loss):
    full: bool = field(default=False, kw_only=True)
    eps: float = field(default=1e-6, kw_only=True)
    reduction: str = field(default="mean", kw_only=True)


class PoissonNLLLoss(_Loss, function=nn_losses.poisson_nll_loss):
    log_input: bool = True
    full: bool = False
    size_average: InitVar[bool | None] = None
    eps: float = 1e-8
    reduce: InitVar[bool | None] = None
    reduction: str = "mean"


class NLLLoss(_Loss, function=nn_classes.nll_loss):
    tensors = ("weight",)
    weight: InitVar[Tensor | None] = None
    size_average: InitVar[bool | None] = None
    ignore_index: int = -100
    reduce: InitVar[bool | None] = None
    reduction: str = "mean"


class CrossEntropyLoss(_Loss, function=nn_classes.cross_entropy):
    tensors = ("weight",)
    weight: InitVar[Tensor | None] = None
    size_average: InitVar[bool | None] = None
    ignore_index: int = -100
    reduce: InitVar[bool | None] = None
    reduction: str = "mean"
    label_smoothing: float = 0.0


class NLLLoss2d(NLLLoss):
    """NLLLoss under its older name for images."""


class MultiMarginLoss(_Loss, function=margins.multi_margin_loss):
    tensors = ("weight",)
    p: int = 1
    margin: float = 1.0
    weight: InitVar[Tensor | None] = None
    size_average: InitVar[bool | None] = None
    reduce: InitVar[bool | None] = None
    reduction: str = "mean"

    def __post_init__(self, *initial: Any) -> None:
        super().__post_init__(*initial)
        if not isinstance(self.p, int | float) or self.p not in (1, 2):
            raise ArgumentError(f"MultiMarginLoss at {user_line()}: p must be 1 or 2; got {self.p!r}")


class MultiLabelMarginLoss(_Loss, function=margins.multilabel_margin_loss):
    size_average: InitVar[bool | None] = None
    reduce: InitVar[bool | None] = None
    reduction: str = "mean"


class MultiLabelSoftMarginLoss(_Loss, function=margins.multilabel_soft_margin_loss):
    tensors = ("weight",)
    weight: InitVar[Tensor | None] = None
    size_average: InitVar[bool | None] = None
    reduce: InitVar[bool | None] = None
    reduction: str = "mean"


class TripletMarginWithDistanceLoss(_Loss, function=margins.triplet_margin_with_distance_loss):
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = field(default=None, kw_only=True)
    margin: float = field(default=1.0, kw_only=True)
    swap: bool = field(default=False, kw_only=True)
    reduction: str = field(default="mean", kw_only=True)


class CTCLoss(_Loss, function=nn_ctc.ctc_loss):
    blank: int = 0
    reduction: str = "mean"
    zero_infinity: bool = False

    def forward(self, log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any) -> Tensor:  # type: ignore[override]
        return type(self).function(log_probs, targets, input_lengths, target_lengths, **self._options())


check_layers(globals(), "_Loss")
