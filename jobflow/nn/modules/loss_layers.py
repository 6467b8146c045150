"""Loss modules, which call functions of `jobflow.functional` with their attributes as options."""

from __future__ import annotations

from dataclasses import InitVar, field
from typing import Any, ClassVar

from jobflow.functional import nn_classes, nn_ctc, nn_losses
from jobflow.functional.nn_base import one_of
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.modules.option_modules import WithOptions

__all__ = [
    "BCELoss", "BCEWithLogitsLoss", "CTCLoss", "CosineEmbeddingLoss", "CrossEntropyLoss", "GaussianNLLLoss", "HingeEmbeddingLoss", "HuberLoss",
    "KLDivLoss", "L1Loss", "MSELoss", "MarginRankingLoss", "NLLLoss", "PoissonNLLLoss", "SmoothL1Loss", "SoftMarginLoss", "TripletMarginLoss",
]  # fmt: skip


class _Loss(WithOptions):
    """Base class of losses, which compute function(*tensors, **options) with attributes as options."""

    #: options that are tensors and move with the module
    tensors: ClassVar[tuple[str, ...]] = ()
    reductions: ClassVar[tuple[str, ...]] = ("mean", "sum", "none")

    def __post_init__(self, *tensors: Tensor | None) -> None:
        super().__post_init__()
        one_of(type(self).__name__, "reduction", self._options()["reduction"], self.reductions)
        for name, tensor in zip(self.tensors, tensors, strict=True):
            self.register_buffer(name, tensor)

    def forward(self, *tensors: Tensor) -> Tensor:
        return type(self).function(*tensors, **{name: getattr(self, name) for name in self.tensors}, **self._options())

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self._options().items() if name != "reduction")


class MSELoss(_Loss, function=nn_losses.mse_loss):
    reduction: str = "mean"


class L1Loss(_Loss, function=nn_losses.l1_loss):
    reduction: str = "mean"


class SmoothL1Loss(_Loss, function=nn_losses.smooth_l1_loss):
    reduction: str = "mean"
    beta: float = 1.0


class HuberLoss(_Loss, function=nn_losses.huber_loss):
    reduction: str = "mean"
    delta: float = 1.0


class BCELoss(_Loss, function=nn_losses.binary_cross_entropy):
    tensors = ("weight",)
    weight: InitVar[Tensor | None] = None
    reduction: str = "mean"


class BCEWithLogitsLoss(_Loss, function=nn_losses.binary_cross_entropy_with_logits):
    tensors = ("weight", "pos_weight")
    weight: InitVar[Tensor | None] = None
    reduction: str = "mean"
    pos_weight: InitVar[Tensor | None] = None


class KLDivLoss(_Loss, function=nn_losses.kl_div):
    reductions = ("mean", "sum", "none", "batchmean")
    reduction: str = "mean"
    log_target: bool = False


class SoftMarginLoss(_Loss, function=nn_losses.soft_margin_loss):
    reduction: str = "mean"


class HingeEmbeddingLoss(_Loss, function=nn_losses.hinge_embedding_loss):
    margin: float = 1.0
    reduction: str = "mean"


class MarginRankingLoss(_Loss, function=nn_losses.margin_ranking_loss):
    margin: float = 0.0
    reduction: str = "mean"


class CosineEmbeddingLoss(_Loss, function=nn_losses.cosine_embedding_loss):
    margin: float = 0.0
    reduction: str = "mean"


class TripletMarginLoss(_Loss, function=nn_losses.triplet_margin_loss):
    margin: float = 1.0
    p: float = 2.0
    eps: float = 1e-6
    swap: bool = False
    reduction: str = "mean"


class GaussianNLLLoss(_Loss, function=nn_losses.gaussian_nll_loss):
    full: bool = field(default=False, kw_only=True)
    eps: float = field(default=1e-6, kw_only=True)
    reduction: str = field(default="mean", kw_only=True)


class PoissonNLLLoss(_Loss, function=nn_losses.poisson_nll_loss):
    log_input: bool = True
    full: bool = False
    eps: float = 1e-8
    reduction: str = "mean"


class NLLLoss(_Loss, function=nn_classes.nll_loss):
    tensors = ("weight",)
    weight: InitVar[Tensor | None] = None
    ignore_index: int = -100
    reduction: str = "mean"


class CrossEntropyLoss(_Loss, function=nn_classes.cross_entropy):
    tensors = ("weight",)
    weight: InitVar[Tensor | None] = None
    ignore_index: int = -100
    reduction: str = "mean"
    label_smoothing: float = 0.0


class CTCLoss(_Loss, function=nn_ctc.ctc_loss):
    blank: int = 0
    reduction: str = "mean"
    zero_infinity: bool = False

    def forward(self, log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any) -> Tensor:  # type: ignore[override]
        return type(self).function(log_probs, targets, input_lengths, target_lengths, **self._options())
