"""Helpers of tests of readers: jobs that read, and files of tokens."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import jobflow as flow
import jobflow.typing as tp


def results_of_job(body: Callable[[], Any], runs: int = 1, annotation: Any = tp.Bundle[tp.Numpy]) -> list[Any]:
    """Return the results of `runs` runs of a job with this body."""

    def job() -> Any:
        return body()

    job.__annotations__["return"] = annotation
    declared = flow.global_function()(job)
    return [declared() for _ in range(runs)]


#: of documents, in tokens
LENGTHS = [5, 9, 1, 12, 7, 3, 8, 11]


def megatron(folder: Path, kind: int = 8, lengths: list[int] = LENGTHS) -> str:
    """Write files of documents whose tokens are 0, 1, 2 ... one after another; return their prefix."""
    tokens = np.arange(sum(lengths)).astype({8: np.uint16, 5: np.int64}[kind])
    places = (np.cumsum(lengths) - lengths) * tokens.itemsize
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, kind, len(lengths), len(lengths) + 1)
    index = np.array(lengths, np.int32).tobytes() + places.astype(np.int64).tobytes() + np.arange(len(lengths) + 1).tobytes()
    (folder / "text.bin").write_bytes(tokens.tobytes())
    (folder / "text.idx").write_bytes(head + index)
    return str(folder / "text")
