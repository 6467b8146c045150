"""A reader that is slow for one sample, and builders for it; notices come early here."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from failing import plain

from jobflow.data import waiting
from jobflow.runtime.comm import message_queue

waiting.PATIENCE = message_queue.PATIENCE = 0.3
LATE = 27
__all__ = ["plain", "stream", "table", "unready"]


def sample(number: int) -> dict[str, Any]:
    if number == LATE and int(os.environ.get("SLOW", "1")):
        time.sleep(1.5)  # the reader is here
    return {"images": np.zeros((1, 8, 8), np.float32), "labels": np.int32(number % 10)}


class Table:
    def __len__(self) -> int:
        return 40

    def __getitem__(self, number: int) -> dict[str, Any]:
        return sample(number)


def table() -> Table:
    return Table()


def unready() -> Table:
    time.sleep(1.5)  # it is being opened here
    return Table()


def stream(epoch: int) -> Iterator[dict[str, Any]]:
    return map(sample, range(40))
