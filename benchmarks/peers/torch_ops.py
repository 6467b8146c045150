"""Operations of PyTorch, timed on order, as ops_ours.py does: python torch_ops.py [--eager], in an environment of its own."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import op_cases
import torch
import torch.nn.functional as F
import worker
from op_cases import CASES, FLOATS, SIZES

BY_NAME = {case.name: case for case in CASES}


def repeated(order: str) -> Callable[[int], dict[str, Any]]:
    """Return the seconds of one of as many operations as jobflow's graph has; results live as long as in the graph."""
    _, name, size, way = order.split("|")
    case, copies = BY_NAME[name], SIZES[size][1]
    groups = [[torch.from_numpy(a) for a in group] for group in op_cases.inputs(case, size, copies)]
    variables = [[x for x, kind in zip(group, case.inputs, strict=True) if kind in FLOATS] for group in groups]
    seeds = [torch.ones_like(case.call(torch, F, *group), dtype=torch.float32) for group in groups] if way == "both" else []
    for x in (x for group in variables for x in group if way == "both"):
        x.requires_grad_()

    def forward() -> Any:
        with torch.no_grad():
            return [case.call(torch, F, *group) for group in groups]

    def both() -> Any:
        results = []
        for group, xs, seed in zip(groups, variables, seeds, strict=True):
            y = case.call(torch, F, *group)
            results.append((y.detach(), torch.autograd.grad(y, xs, seed.to(y.dtype))))
        return results

    step = both if way == "both" else forward

    def run(times: int) -> dict[str, Any]:
        durations = []
        for _ in range(times):
            start = time.perf_counter()
            results = step()
            durations.append((time.perf_counter() - start) / copies)
            del results
        return {"seconds": durations}

    return run


def at_once(order: str) -> Callable[[int], dict[str, Any]]:
    case = BY_NAME[order]
    (group,) = op_cases.inputs(case, "eager", 1)
    tensors = [torch.from_numpy(a) for a in group]
    return lambda calls: {"seconds": worker.means(lambda: case.call(torch, F, *tensors), calls)}


class Latest(dict[str, Any]):
    """Makes what is asked for, and keeps nothing else."""

    def __init__(self, make: Callable[[str], Any]) -> None:
        super().__init__()
        self.make = make

    def __missing__(self, order: str) -> Any:
        self.clear()
        self[order] = self.make(order)
        return self[order]


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--eager", action="store_true")
    worker.obey(Latest(at_once if parser.parse_args().eager else repeated))


if __name__ == "__main__":
    main()
