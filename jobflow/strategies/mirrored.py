"""The strategy of the mirrored view: every rank has its own tensors; variables are copies, and gradients are added up."""

from __future__ import annotations

from dataclasses import dataclass

from jobflow.core.scope import View
from jobflow.strategies.strategy_class import Strategy


@dataclass(frozen=True)
class mirrored(Strategy):
    """The job's body is traced in the mirrored view: what it says, it says about one rank."""

    size: int | None = None

    @property
    def view(self) -> View | None:
        return "mirrored"
