"""The drawings of layouts and boxing in the README, as text, generated from jobflow's layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jobflow.compiler.layouts import paths
from jobflow.core.layout import B, Layout, P, Placement, S, layout
from jobflow.core.types import TensorType, float32

Array = np.ndarray[Any, Any]
X = np.arange(16).reshape(4, 4)
#: x = A @ W: each rank multiplies a column of A by a row of W, and the addends of the two ranks are partial sums
A, W = np.array([[i, 1] for i in range(4)]), np.array([[4, 4, 4, 4], [0, 1, 2, 3]])
NAMES = {S(0): "split(0)", S(1): "split(1)", B: "broadcast", P: "partial_sum"}
TWO, FOUR = Placement("cpu", (0, 1)), Placement("cpu", (0, 1, 2, 3), (2, 2))


def held(where: Layout, rank: int) -> list[str]:
    """The lines of a frame with the numbers that a rank stores; a point stands for a number that it does not store."""
    if where.is_partial:
        texts = [[str(n) for n in row] for row in np.outer(A[:, rank], W[rank])]
    else:
        stored = np.zeros(X.shape, bool)
        stored[where.box(X.shape, rank).slices] = True
        texts = [[str(n) if there else "·" for n, there in zip(*rows, strict=True)] for rows in zip(X, stored, strict=True)]
    body = ["│" + "".join(f"{text:>3}" for text in row) + " │" for row in texts]
    edge = "─" * (len(body[0]) - 2)
    return [f"┌{edge}┐", *body, f"└{edge}┘"]


def side_by_side(title: str, frames: list[list[str]], between: str = "  ") -> list[str]:
    """Frames in a row, with a title at the left of their middle."""
    lines = [between.join(parts) for parts in zip(*frames, strict=True)]
    return [f"{title if i == len(lines) // 2 - 1 else '':<7}{line}" for i, line in enumerate(lines)]


def heading(titles: list[str], width: int) -> str:
    return " " * 7 + "  ".join(title.center(width) for title in titles).rstrip()


def layouts() -> str:
    """A 4 x 4 tensor in four layouts on two ranks."""
    all_of_them = [layout(TWO, sbp) for sbp in NAMES]
    lines = [heading(list(NAMES.values()), len(held(all_of_them[0], 0)[0]))]
    for rank in TWO.ranks:
        lines += side_by_side(f"rank {rank}", [held(where, rank) for where in all_of_them])
    return "\n".join(lines)


def boxing() -> str:
    """The changes of layout of the tensor on two ranks, with the bytes that each rank sends."""
    type = TensorType(X.shape, float32)
    lines = []
    for source, target in ((S(0), B), (P, B), (P, S(0)), (S(0), S(1)), (B, S(0))):
        name = paths.direct(layout(TWO, source), layout(TWO, target))
        sent = paths.sent(name, layout(TWO, source), layout(TWO, target), type)
        each = {sent.get(rank, 0) for rank in TWO.ranks}
        lines.append(f"{NAMES[source]:<11} ──{name.replace('_', '-'):─<15}▶ {NAMES[target]:<11} {each.pop():>3} bytes")
    return "\n".join(lines)


DRAWINGS: dict[str, Callable[[], str]] = {"layouts": layouts, "boxing": boxing}
