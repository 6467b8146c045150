"""Several Python threads of one process use tensors concurrently.  Print the names of the cases in which each got the results of a single thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from together import at_once

import jobflow as flow

nn = flow.nn


def placements(number: int) -> None:
    """Create placements of one rank with every number of mesh dimensions, first used by all threads at the same time."""
    for dimensions in range(1, 32):
        placement = flow.placement("cpu", np.zeros((1,) * dimensions, int))
        assert placement.hierarchy == (1,) * dimensions and placement.ranks.shape == (1,) * dimensions
        x = flow.ones(2, placement=placement, sbp=[flow.sbp.broadcast] * dimensions)
        assert x.placement == placement and len(x.sbp) == dimensions
        if dimensions < 4:
            assert (x + x).numpy().tolist() == [2, 2]


def halves(number: int) -> None:
    """Compute with two-byte elements in memory that operations share."""
    x = flow.full((40_000,), float(number), dtype=flow.float16)
    for _ in range(30):
        assert (x * 2 + x).numpy().tolist()[::9_999] == [3.0 * number] * 5


class Scaled(nn.Graph):
    def build(self, x: Any) -> Any:
        return (x * 2).to(flow.float16).sum()


scaled = Scaled()


def graphs(number: int) -> None:
    """Call one graph, for the first time in all threads."""
    x = flow.full((1_000,), float(number))
    for _ in range(50):
        assert scaled(x).item() == 2_000 * number


def layouts(number: int) -> None:
    """Redistribute with memory that was bound at the first redistribution."""
    placement = flow.placement("cpu", [0])
    x = flow.full((20_000,), float(number), placement=placement, sbp=flow.sbp.split(0))
    for _ in range(50):
        y = x.to_global(sbp=flow.sbp.partial_sum).to_global(sbp=flow.sbp.broadcast)
        assert y.numpy().tolist()[::4_999] == [float(number)] * 5


met = threading.Barrier(2)


def modes(number: int) -> None:
    """Use no_grad in one thread while another records; build a graph in one while another computes."""
    x = flow.tensor([1.0], requires_grad=True)
    if number % 2:
        with flow.no_grad():
            met.wait()
            assert not (x * 2).requires_grad
            met.wait()
    else:
        met.wait()
        assert flow.is_grad_enabled()
        (x * 2).sum().backward()
        assert x.grad.item() == 2
        met.wait()


class Slow(nn.Graph):
    def build(self, x: Any) -> Any:
        met.wait()
        y = x + 1
        met.wait()
        return y


def builds(number: int) -> None:
    if number == 0:
        assert Slow()(flow.tensor([1.0])).item() == 2
    else:
        met.wait()
        assert (flow.full((1,), 3.0) * 2).item() == 6
        met.wait()


no_grad = flow.no_grad()
quiet = flow.scope.namespace("a")


def blocks(number: int) -> None:
    """Enter the same `with` objects in all threads."""
    for _ in range(300):
        with quiet, no_grad, quiet:
            assert not flow.is_grad_enabled()
        assert flow.is_grad_enabled()


drawn: list[float] = []


def draws(number: int) -> None:
    """Sample random numbers, which differ between threads."""
    drawn.extend(flow.rand(1, dtype=flow.float64).item() for _ in range(500))


weight = flow.zeros(1, requires_grad=True)


def leaves(number: int) -> None:
    """Add the gradients of many threads in one leaf."""
    for _ in range(200):
        (weight * 1.0).sum().backward()


CASES: dict[str, tuple[Callable[[int], None], int]] = {
    "placements": (placements, 8),
    "halves": (halves, 4),
    "graphs": (graphs, 4),
    "layouts": (layouts, 4),
    "modes": (modes, 2),
    "builds": (builds, 2),
    "blocks": (blocks, 4),
    "draws": (draws, 4),
    "leaves": (leaves, 4),
}

if __name__ == "__main__":
    for name, (case, count) in CASES.items():
        at_once(count, case)
        print(name, flush=True)
    assert len(set(drawn)) == len(drawn) == 2_000
    assert weight.grad.item() == 800
    print("right")
