"""Losses as modules: functions of `jobflow.functional`, with their options as attributes."""

from __future__ import annotations

from dataclasses import InitVar, field
from typing import ClassVar

from jobflow.eager.tensor import Tensor
from jobflow.functional import nn_classes, nn_losses
from jobflow.functional.nn_base import one_of
from jobflow.nn.modules.option_modules import WithOptions

__all__ = [
    "BCELoss", "BCEWithLogitsLoss", "CosineEmbeddingLoss", "CrossEntropyLoss", "GaussianNLLLoss", "HingeEmbeddingLoss", "HuberLoss", "KLDivLoss",
    "L1Loss", "MSELoss", "MarginRankingLoss", "NLLLoss", "PoissonNLLLoss", "SmoothL1Loss", "SoftMarginLoss", "TripletMarginLoss",
]  # fmt: skip


class _Loss(WithOptions):
    """function(*tensors, **options)"""

    #: options that are tensors, and move with the module
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
    """(x - t)^2"""

    reduction: str = "mean"


class L1Loss(_Loss, function=nn_losses.l1_loss):
    """|x - t|"""

    reduction: str = "mean"


class SmoothL1Loss(_Loss, function=nn_losses.smooth_l1_loss):
    """d^2 / (2 beta) where d = |x - t| < beta, else d - beta / 2"""

    reduction: str = "mean"
    beta: float = 1.0


class HuberLoss(_Loss, function=nn_losses.huber_loss):
    """d^2 / 2 where d = |x - t| < delta, else delta (d - delta / 2)"""

    reduction: str = "mean"
    delta: float = 1.0


class BCELoss(_Loss, function=nn_losses.binary_cross_entropy):
    """-weight (t log x + (1 - t) log(1 - x)), x being probabilities"""

    tensors = ("weight",)
    weight: InitVar[Tensor | None] = None
    reduction: str = "mean"


class BCEWithLogitsLoss(_Loss, function=nn_losses.binary_cross_entropy_with_logits):
    """BCELoss of sigmoid(x), the t = 1 part times pos_weight"""

    tensors = ("weight", "pos_weight")
    weight: InitVar[Tensor | None] = None
    reduction: str = "mean"
    pos_weight: InitVar[Tensor | None] = None


class KLDivLoss(_Loss, function=nn_losses.kl_div):
    """t (log t - x), or e^t (t - x) with `log_target`; "batchmean" divides the sum by the first size"""

    reductions = ("mean", "sum", "none", "batchmean")
    reduction: str = "mean"
    log_target: bool = False


class SoftMarginLoss(_Loss, function=nn_losses.soft_margin_loss):
    """ln(1 + e^(-t x)), t being 1 or -1"""

    reduction: str = "mean"


class HingeEmbeddingLoss(_Loss, function=nn_losses.hinge_embedding_loss):
    """x where t is 1, max(0, margin - x) where t is -1"""

    margin: float = 1.0
    reduction: str = "mean"


class MarginRankingLoss(_Loss, function=nn_losses.margin_ranking_loss):
    """max(0, margin - t (x1 - x2))"""

    margin: float = 0.0
    reduction: str = "mean"


class CosineEmbeddingLoss(_Loss, function=nn_losses.cosine_embedding_loss):
    """1 - c where t is 1, max(0, c - margin) where t is -1, c being the cosine of the vectors"""

    margin: float = 0.0
    reduction: str = "mean"


class TripletMarginLoss(_Loss, function=nn_losses.triplet_margin_loss):
    """max(0, d(anchor, positive) - d(anchor, negative) + margin), d being the p-norm of the difference plus eps"""

    margin: float = 1.0
    p: float = 2.0
    eps: float = 1e-6
    swap: bool = False
    reduction: str = "mean"


class GaussianNLLLoss(_Loss, function=nn_losses.gaussian_nll_loss):
    """(log v + (x - t)^2 / v) / 2 of input, target and var, v = max(var, eps)"""

    full: bool = field(default=False, kw_only=True)
    eps: float = field(default=1e-6, kw_only=True)
    reduction: str = field(default="mean", kw_only=True)


class PoissonNLLLoss(_Loss, function=nn_losses.poisson_nll_loss):
    """e^x - t x, or x - t log(x + eps) if not `log_input`"""

    log_input: bool = True
    full: bool = False
    eps: float = 1e-8
    reduction: str = "mean"


class NLLLoss(_Loss, function=nn_classes.nll_loss):
    """-weight[t] x[n, t, ...] of log-probabilities; 0 where t is `ignore_index`"""

    tensors = ("weight",)
    weight: InitVar[Tensor | None] = None
    ignore_index: int = -100
    reduction: str = "mean"


class CrossEntropyLoss(_Loss, function=nn_classes.cross_entropy):
    """-weight[t] log softmax(x)[n, t, ...] with the classes on axis 1; labels are numbers of classes, or probabilities of all"""

    tensors = ("weight",)
    weight: InitVar[Tensor | None] = None
    ignore_index: int = -100
    reduction: str = "mean"
    label_smoothing: float = 0.0
