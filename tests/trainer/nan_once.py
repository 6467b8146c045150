"""Samples with one NaN in the first field, at the first read only."""

from __future__ import annotations

from typing import Any

import numpy as np
from short_runs import SAMPLES, samples


class Once:
    def __init__(self, number: int) -> None:
        self.number, self.data, self.reads = number, samples(SAMPLES, 0), 0

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> dict[str, Any]:
        sample = {name: rows[number].copy() for name, rows in self.data.items()}
        if number == self.number:
            self.reads += 1
            if self.reads == 1:
                sample["x"][2] = np.nan
        return sample


def nan_once(number: int) -> Once:
    return Once(number)
