"""The strategy of the consistent view: layouts are what the program asks for and inference chooses."""

from __future__ import annotations

from dataclasses import dataclass

from jobflow.strategies.strategy_class import Strategy


@dataclass(frozen=True)
class consistent(Strategy):
    """The program as it is written: arguments are cut along their first axis, everything else follows."""

    size: int | None = None
