"""Regularizers of variables: the gradient of w becomes g + l1 * sign(w) + l2 * w, before clipping.  The loss value is not changed."""

from __future__ import annotations

from jobflow.core.dataclass import dataclass


@dataclass(frozen=True)
class Regularizer:
    """g += l1 * sign(w) + l2 * w."""

    l1: float = 0.0
    l2: float = 0.0


def l1_l2(l1: float = 0.01, l2: float = 0.01) -> Regularizer:
    """g += l1 * sign(w) + l2 * w."""
    return Regularizer(float(l1), float(l2))


def l1(l: float = 0.01) -> Regularizer:  # noqa: E741 - the published name of the argument
    """g += l * sign(w)."""
    return Regularizer(l1=float(l))


def l2(l: float = 0.01) -> Regularizer:  # noqa: E741 - the published name of the argument
    """g += l * w."""
    return Regularizer(l2=float(l))
