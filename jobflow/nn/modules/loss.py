"""Losses as modules: functions of `jobflow.functional`, with their options as attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from jobflow.eager.tensor import Tensor
from jobflow.functional import nn_classes, nn_losses
from jobflow.functional.nn_base import one_of
from jobflow.nn.modules.module import Module


class _Loss(Module):
    """function(*tensors, *options, reduction)"""

    function: ClassVar[Callable[..., Tensor]]
    options: ClassVar[tuple[str, ...]] = ()
    #: options that are tensors, and move with the module
    tensors: ClassVar[tuple[str, ...]] = ()
    reductions: ClassVar[tuple[str, ...]] = ("mean", "sum", "none")

    def __init__(self, reduction: str = "mean", **options: Any) -> None:
        super().__init__()
        self.reduction = one_of(type(self).__name__, "reduction", reduction, self.reductions)
        for name, value in options.items():
            if name in self.tensors:
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def forward(self, *tensors: Tensor) -> Tensor:
        named = {name: getattr(self, name) for name in (*self.tensors, *self.options)}
        return type(self).function(*tensors, **named, reduction=self.reduction)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self.options)


class MSELoss(_Loss):
    """(x - t)^2"""

    function = staticmethod(nn_losses.mse_loss)


class L1Loss(_Loss):
    """|x - t|"""

    function = staticmethod(nn_losses.l1_loss)


class SmoothL1Loss(_Loss):
    """d^2 / (2 beta) where d = |x - t| < beta, else d - beta / 2"""

    function = staticmethod(nn_losses.smooth_l1_loss)
    options = ("beta",)

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction, beta=beta)


class HuberLoss(_Loss):
    """d^2 / 2 where d = |x - t| < delta, else delta (d - delta / 2)"""

    function = staticmethod(nn_losses.huber_loss)
    options = ("delta",)

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction, delta=delta)


class BCELoss(_Loss):
    """-weight (t log x + (1 - t) log(1 - x)), x being probabilities"""

    function = staticmethod(nn_losses.binary_cross_entropy)
    tensors = ("weight",)

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean") -> None:
        super().__init__(reduction, weight=weight)


class BCEWithLogitsLoss(_Loss):
    """BCELoss of sigmoid(x), the t = 1 part times pos_weight"""

    function = staticmethod(nn_losses.binary_cross_entropy_with_logits)
    tensors = ("weight", "pos_weight")

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean", pos_weight: Tensor | None = None) -> None:
        super().__init__(reduction, weight=weight, pos_weight=pos_weight)


class KLDivLoss(_Loss):
    """t (log t - x), or e^t (t - x) with `log_target`; "batchmean" divides the sum by the first size"""

    function = staticmethod(nn_losses.kl_div)
    options = ("log_target",)
    reductions = ("mean", "sum", "none", "batchmean")

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(reduction, log_target=log_target)


class SoftMarginLoss(_Loss):
    """ln(1 + e^(-t x)), t being 1 or -1"""

    function = staticmethod(nn_losses.soft_margin_loss)


class HingeEmbeddingLoss(_Loss):
    """x where t is 1, max(0, margin - x) where t is -1"""

    function = staticmethod(nn_losses.hinge_embedding_loss)
    options = ("margin",)

    def __init__(self, margin: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(reduction, margin=margin)


class MarginRankingLoss(_Loss):
    """max(0, margin - t (x1 - x2))"""

    function = staticmethod(nn_losses.margin_ranking_loss)
    options = ("margin",)

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction, margin=margin)


class CosineEmbeddingLoss(_Loss):
    """1 - c where t is 1, max(0, c - margin) where t is -1, c being the cosine of the vectors"""

    function = staticmethod(nn_losses.cosine_embedding_loss)
    options = ("margin",)

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction, margin=margin)


class TripletMarginLoss(_Loss):
    """max(0, d(anchor, positive) - d(anchor, negative) + margin), d being the p-norm of the difference plus eps"""

    function = staticmethod(nn_losses.triplet_margin_loss)
    options = ("margin", "p", "eps", "swap")

    def __init__(self, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6, swap: bool = False, reduction: str = "mean") -> None:
        super().__init__(reduction, margin=margin, p=p, eps=eps, swap=swap)


class GaussianNLLLoss(_Loss):
    """(log v + (x - t)^2 / v) / 2 of input, target and var, v = max(var, eps)"""

    function = staticmethod(nn_losses.gaussian_nll_loss)
    options = ("full", "eps")

    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction, full=full, eps=eps)


class PoissonNLLLoss(_Loss):
    """e^x - t x, or x - t log(x + eps) if not `log_input`"""

    function = staticmethod(nn_losses.poisson_nll_loss)
    options = ("log_input", "full", "eps")

    def __init__(self, log_input: bool = True, full: bool = False, eps: float = 1e-8, reduction: str = "mean") -> None:
        super().__init__(reduction, log_input=log_input, full=full, eps=eps)


class NLLLoss(_Loss):
    """-weight[t] x[n, t, ...] of log-probabilities; 0 where t is `ignore_index`"""

    function = staticmethod(nn_classes.nll_loss)
    tensors = ("weight",)
    options = ("ignore_index",)

    def __init__(self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__(reduction, weight=weight, ignore_index=ignore_index)


class CrossEntropyLoss(_Loss):
    """-weight[t] log softmax(x)[n, t, ...] with the classes on axis 1; labels are numbers of classes, or probabilities of all"""

    function = staticmethod(nn_classes.cross_entropy)
    tensors = ("weight",)
    options = ("ignore_index", "label_smoothing")

    def __init__(self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0) -> None:
        super().__init__(reduction, weight=weight, ignore_index=ignore_index, label_smoothing=label_smoothing)
