"""Regularizers of variables, which add l1 * sign(w) + l2 * w to gradients before clipping. The loss value is unchanged."""

from __future__ import annotations

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError, user_line


@dataclass(frozen=True)
class Regularizer:
    """The coefficients of the gradient term l1 * sign(w) + l2 * w."""

    l1: float = 0.0
    l2: float = 0.0


def l1_l2(l1: float = 0.01, l2: float = 0.01) -> Regularizer:
    """Return a regularizer that adds l1 * sign(w) + l2 * w to the gradient."""
    from jobflow.legacy.optimizer.option_ranges import is_number  # most programs have no regularizers

    for name, value in (("l1", l1), ("l2", l2)):
        if not is_number(value):
            raise ConfigError(f"regularizers at {user_line()}: {name} must be a number, not {value!r}")
    return Regularizer(float(l1), float(l2))


def l1(l: float = 0.01) -> Regularizer:  # noqa: E741 - the published name of the argument
    """Return a regularizer that adds l * sign(w) to the gradient."""
    return l1_l2(l, 0.0)


def l2(l: float = 0.01) -> Regularizer:  # noqa: E741 - the published name of the argument
    """Return a regularizer that adds l * w to the gradient."""
    return l1_l2(0.0, l)
