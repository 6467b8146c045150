"""The learning rate schedule of stochastic weight averaging."""

from __future__ import annotations

import math
from typing import Any

from jobflow.core.errors import ConfigError, user_line
from jobflow.optim.optimizer import Optimizer
from jobflow.optim.schedule_base import LRScheduler, per_group


class SWALR(LRScheduler):
    """The schedule of stochastic weight averaging: from the current rate to `swa_lr` in `anneal_epochs` steps.

    `anneal_strategy` is "cos" for a cosine, or "linear".
    """

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: float | list[float],
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_epoch: int = -1,
        verbose: Any = None,
    ) -> None:
        what = f"swa_utils.SWALR at {user_line()}"
        rates = per_group("SWALR", optimizer, "swa_lr", swa_lr)
        if anneal_strategy not in ("cos", "linear"):
            raise ConfigError(f'{what}: anneal_strategy must be "cos" or "linear", not {anneal_strategy!r}')
        if isinstance(anneal_epochs, bool) or not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ConfigError(f"{what}: anneal_epochs must be an integer of at least 0, not {anneal_epochs!r}")
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["swa_lr"] = rate
        self.anneal_epochs, self.anneal_strategy = anneal_epochs, anneal_strategy
        super().__init__(optimizer, last_epoch, verbose)

    def _share(self, step: int) -> float:
        """Return the share of `swa_lr` in the rate after `step` steps of this schedule."""
        share = max(0.0, min(1.0, step / max(1, self.anneal_epochs)))
        return (1 - math.cos(math.pi * share)) / 2 if self.anneal_strategy == "cos" else share

    def get_lr(self) -> list[float]:
        """Return the next rate of each group."""
        step = max(self._step_count - 1, 1 if self.anneal_epochs == 0 else 0)
        before, now = self._share(step - 1), self._share(step)
        rates = []
        for group in self.optimizer.param_groups:
            rate, end = group["lr"], group["swa_lr"]
            start = end if before == 1 else (rate - before * end) / (1 - before)
            rates.append(end * now + start * (1 - now))
        return rates
