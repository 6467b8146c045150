"""Operations of jobflow, timed on order: "TIER CASE SIZE PASS" is a compiled graph of equal ones, without what surrounds its calls.

python ops_ours.py [--eager]        with --eager, "CASE" is the operation on small tensors, at once
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import op_cases
import worker
from op_cases import CASES, FLOATS, SIZES, Case

import jobflow as flow
import jobflow.nn.functional as F
from jobflow.functional.tensor_class import Tensor
from jobflow.ops.arithmetic import Add
from jobflow.ops.op import apply
from jobflow.tensors.state import state

BY_NAME = {case.name: case for case in CASES}


def gradients(y: Tensor, dy: Any, variables: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of y for each of `variables`, from the traced operations and dy."""
    building: Any = state().building
    shares: dict[Any, Any] = {y.traced: dy.traced}
    for node in reversed(tuple(building.tracer.nodes)):
        output_gradients = [shares.get(output) for output in node.outputs]
        if any(g is not None for g in output_gradients):
            for value, share in zip(node.inputs, node.op.grad(*node.inputs, *node.outputs, *output_gradients), strict=True):
                if share is not None:
                    shares[value] = apply(Add(), shares[value], share) if value in shares else share
    return [Tensor(x.tensor_type, x.layout, None, traced=shares[x.traced]) for x in variables]


class Equal(flow.nn.Graph):
    """The operation on each group of inputs; with the gradients of each that has one."""

    def __init__(self, case: Case, groups: list[list[Tensor]], seeds: list[Tensor]) -> None:
        super().__init__()
        self.case, self.groups, self.seeds = case, groups, seeds

    def build(self) -> Any:
        building: Any = state().building
        results = []
        for group, seed in zip(self.groups, self.seeds or [None] * len(self.groups), strict=True):
            # tensors that have their own memory, and keep their numbers from run to run
            group = [building.known(x) for x in group]
            y = self.case.call(flow, F, *group)
            results.append(y)
            if seed is not None:
                results += gradients(y, building.known(seed), [x for x, kind in zip(group, self.case.inputs, strict=True) if kind in FLOATS])
        return results


def compiled(order: str) -> Callable[[int], dict[str, Any]]:
    """Seconds of an operation: of a run of the graph's calls, over how many there are."""
    tier, name, size, way = order.split("|")
    case, copies = BY_NAME[name], SIZES[size][1]
    flow.config.kernels(tier)
    groups = [[flow.tensor(a) for a in group] for group in op_cases.inputs(case, size, copies)]
    seeds = [flow.tensor(np.ones(case.call(flow, F, *groups[0]).shape, np.float32)) for _ in groups] if way == "both" else []
    graph = Equal(case, groups, seeds)
    graph()
    (bound,) = graph._bounds.values()
    calls = [*bound.executor.body, *bound.executor.epilogue]

    def run(times: int) -> dict[str, Any]:
        durations = []
        with np.errstate(all="ignore"):
            for _ in range(times):
                start = time.perf_counter()
                for f, a in calls:
                    f(*a)
                durations.append((time.perf_counter() - start) / copies)
        return {"seconds": durations, "instructions": len(bound.executor.plan.body)}

    return run


def at_once(order: str) -> Callable[[int], dict[str, Any]]:
    case = BY_NAME[order]
    (group,) = op_cases.inputs(case, "eager", 1)
    tensors = [flow.tensor(a) for a in group]
    return lambda calls: {"seconds": worker.means(lambda: case.call(flow, F, *tensors), calls)}


class Latest(dict[str, Any]):
    """Makes what is asked for, and keeps the last of each tier: all would not have room."""

    def __init__(self, make: Callable[[str], Any]) -> None:
        super().__init__()
        self.make = make

    def __missing__(self, order: str) -> Any:
        for other in [key for key in self if key.split("|")[0] == order.split("|")[0]]:
            del self[other]
        self[order] = self.make(order)
        return self[order]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--eager", action="store_true")
    worker.obey(Latest(at_once if parser.parse_args().eager else compiled))


if __name__ == "__main__":
    main()
