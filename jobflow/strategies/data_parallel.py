"""Data parallelism: every rank computes the whole model on its part of the batch."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from jobflow.graph.traced import Traced
from jobflow.strategies.hints import Hints
from jobflow.strategies.strategy_class import Strategy


@dataclass(frozen=True)
class data_parallel(Strategy):
    """Arguments S(0), variables B.

    Bytes per rank and step: 2 psi (n-1)/n, with psi the bytes of all gradients, for their all_reduce.
    """

    size: int | None = None

    def hints(self, program: Traced, n: int, split: Mapping[str, AbstractSet[int]]) -> Hints:
        return Hints(cuts_arguments=True, read={})
