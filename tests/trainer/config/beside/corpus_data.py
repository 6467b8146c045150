"""Samples for the corpus."""

from __future__ import annotations


def samples(epoch: int, *, count: int = 10) -> list[float]:
    return [0.5] * count
