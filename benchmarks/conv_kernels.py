"""Convolution and pooling on one thread: times and errors of each variant, and PyTorch's times if it is installed.

    python benchmarks/conv_kernels.py [--only NAME] [--rounds 15]     milliseconds of y, dx and dw, and who computes them
    python benchmarks/conv_kernels.py --each                          the same of every implementation that can
    python benchmarks/conv_kernels.py --errors                        largest errors in float32: jobflow/kernels/cpu/convolution_costs.py, ERRORS
    python benchmarks/conv_kernels.py --constants                     what products, copies and loops cost: the same file, COSTS

With JOBFLOW_CPU=avx2 OPENBLAS_CORETYPE=Haswell NPY_DISABLE_CPU_FEATURES="X86_V4 AVX512_ICL AVX512_SPR" (what of AVX-512 `numpy.show_config()`
finds) a CPU with AVX-512 computes as one without.

Every round runs each variant once, one after the other, so that a busy machine slows all of them alike.  Prints the least CPU times, and
their ratio to PyTorch's in its default order (below 1: faster than it).  Our tensors have the layout of a plan.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from jobflow.core.types import DType, TensorType, dtype_of
from jobflow.kernels import registry
from jobflow.kernels.cpu import convolution_costs
from jobflow.kernels.cpu.convolution_costs import COSTS, Algorithm, Costs
from jobflow.kernels.machine_class import machine_class
from jobflow.kernels.target import Target, Tier, target_of
from jobflow.ops.conv import ConvOp, conv_op
from jobflow.ops.pool import AvgPool, AvgPoolGrad, MaxPool, MaxPoolGrad

Run = Callable[[], Any]
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
PARTS = ("y", "dx", "dw")


@dataclass(frozen=True)
class Case:
    """A convolution with the same kernel, stride, padding and dilation along every axis."""

    name: str
    shape: tuple[int, ...]
    filters: int
    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1

    @property
    def dims(self) -> int:
        return len(self.shape) - 2

    @property
    def filter_shape(self) -> tuple[int, ...]:
        return (self.filters, self.shape[1] // self.groups, *(self.kernel,) * self.dims)

    def op(self, dtype: DType, algorithm: Any = "auto") -> ConvOp:
        pads = ((self.padding, self.padding),) * self.dims
        types = TensorType(self.shape, dtype), TensorType(self.filter_shape, dtype)
        return conv_op(*types, self.stride, pads, self.dilation, self.groups, algorithm)


CASES = [
    Case("lenet conv1", (100, 1, 28, 28), 32, 5, 1, 2),
    Case("lenet conv2", (100, 32, 14, 14), 64, 5, 1, 2),
    Case("3x3 16@32", (32, 16, 32, 32), 16, 3, 1, 1),
    Case("3x3 64@28", (8, 64, 28, 28), 64, 3, 1, 1),
    Case("3x3 128@14", (8, 128, 14, 14), 128, 3, 1, 1),
    Case("3x3 256@14", (8, 256, 14, 14), 256, 3, 1, 1),
    Case("3x3 512@7", (8, 512, 7, 7), 512, 3, 1, 1),
    Case("3x3/2 16@32", (32, 16, 32, 32), 32, 3, 2, 1),
    Case("3x3/2 64@28", (8, 64, 28, 28), 128, 3, 2, 1),
    Case("1x1 64@28", (8, 64, 28, 28), 256, 1),
    Case("1x1/2 64@28", (8, 64, 28, 28), 128, 1, 2),
    Case("stem 7x7/2", (8, 3, 64, 64), 64, 7, 2, 3),
    Case("stem 3x3", (32, 3, 32, 32), 32, 3, 1, 1),
    Case("depthwise 32@32", (16, 32, 32, 32), 32, 3, 1, 1, 1, 32),
    Case("depthwise/2 64@32", (16, 64, 32, 32), 64, 3, 2, 1, 1, 64),
    Case("depthwise 256@14", (8, 256, 14, 14), 256, 3, 1, 1, 1, 256),
    Case("4 groups 64@28", (8, 64, 28, 28), 64, 3, 1, 1, 1, 4),
    Case("dilated 32@32", (8, 32, 32, 32), 32, 3, 1, 2, 2),
    Case("1-D TCN 32@256", (16, 32, 256), 32, 3, 1, 4, 4),
    Case("1-D WaveNet 64@1024", (4, 64, 1024), 64, 2, 1, 8, 8),
    Case("1-D 1@1024", (16, 1, 1024), 16, 3, 1, 1),
    Case("1-D k9 16@512", (16, 16, 512), 16, 9, 1, 4),
    Case("1-D depthwise 64@256", (16, 64, 256), 64, 5, 1, 2, 1, 64),
    Case("U-net up 64@14", (8, 32, 28, 28), 64, 2, 2),
    Case("one sample 32@32", (1, 32, 32, 32), 32, 3, 1, 1),
    Case("two samples 64@56", (2, 64, 56, 56), 64, 3, 1, 1),
    Case("3-D 8@16", (4, 8, 16, 16, 16), 16, 3, 1, 1),
]
#: filters of 3 and 5 along one axis and two, by channels
ERROR_CASES = [
    Case(f"{'x'.join([str(kernel)] * len(image))}, {channels} channels", (16, channels, *image), channels, kernel, 1, kernel // 2)
    for image in ((196,), (14, 14))
    for kernel in (3, 5)
    for channels in (32, 64, 128, 256)
]
POOLS = [("pool 2x2 32@28", (100, 32, 28, 28)), ("pool 2x2 64@56", (8, 64, 56, 56)), ("pool 2 64@256", (16, 64, 256))]


#: how many of [m,k] @ [k,n], as convolutions have them
PRODUCTS = [(1, 16, 144, 2048), (1, 64, 576, 512), (1, 32, 27, 2048), (1, 128, 1152, 512), (16, 16, 36, 512), (64, 1, 9, 2048)]
PRODUCTS += [(36, 64, 64, 32), (36, 16, 16, 512), (36, 128, 128, 32), (64, 24, 18, 64), (384, 6, 6, 112), (384, 24, 18, 8), (384, 6, 6, 32)]


class Cpu:
    """The attributes of a device that `bind` reads."""

    xp = np

    def scratch(self, shape: tuple[int, ...], dtype: DType) -> Any:
        return np.zeros(shape, dtype.numpy)


def running(calls: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]]) -> Run:
    def run() -> None:
        for function, arguments in calls:
            function(*arguments)

    return run


def stored(values: Any, target: Target) -> Any:
    """Return images in the memory order of a plan: the batch axis is innermost if there are enough samples."""
    if len(values) < target.patterns.formats.fewest_samples:
        return values
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(values, 0, -1)), -1, 0)


def ours(ops: dict[str, tuple[Any, tuple[Any, ...], Any]], target: Target, each: bool) -> dict[str, dict[str, Run]]:
    """By implementation and part, or those that the target chooses, with their names by part."""
    runs_by_name: dict[str, dict[str, Run]] = {}
    for part, (op, inputs, output) in ops.items():
        chosen = registry.choose(op, target, inputs, (output,)).implementation
        for one in registry.candidates(type(op), target) if each else (chosen,):
            able = op if one is chosen else replace(op, algorithm="winograd") if isinstance(op, ConvOp) else op
            if one is chosen or (one.refuses(able, inputs, (output,)) or "estimated").startswith("estimated"):
                name = (one.name if "Winograd" in one.name else one.name.split()[0]) if each else "jobflow"
                runs_by_name.setdefault(name, {})[part] = running(registry.refined(target, one.bind(op, Cpu(), inputs, (output,))))
    return runs_by_name


def conv_ops(case: Case, dtype: Any = np.float32, order: Callable[[Any], Any] = np.asarray, algorithm: Any = "auto") -> dict[str, Any]:
    """Return the op, the inputs and the output for each of y, dx and dw."""
    rng, op = np.random.default_rng(0), case.op(dtype_of(np.dtype(dtype)), algorithm)
    x, w = (rng.standard_normal(shape).astype(np.float32).astype(dtype) for shape in (case.shape, case.filter_shape))
    out = op.window(w.shape[2:]).out_sizes("conv", x.shape[2:])
    dy = rng.standard_normal((len(x), case.filters, *out)).astype(np.float32).astype(dtype)
    return {
        "y": (op, (order(x), w), order(np.empty_like(dy))),
        "dx": (op._input_gradient(x.shape[2:]), (order(dy), w), order(np.empty_like(x))),
        "dw": (op._weight_gradient(w.shape[2:]), (order(x), order(dy)), np.empty_like(w)),
    }


def torch_runs(case: Case, ops: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    import torch

    torch.set_num_threads(1)
    x, w, dy = (torch.from_numpy(np.ascontiguousarray(a)) for a in (*ops["y"][1], ops["dx"][1][0]))
    every = [[n] * case.dims for n in (case.stride, case.padding, case.dilation)]

    def backward(i: int) -> Any:
        mask = [i == 0, i == 1, False]
        return torch.ops.aten.convolution_backward(dy, x, w, [0], *every, False, [0] * case.dims, case.groups, mask)[i]

    forward = lambda: torch.ops.aten.convolution(x, w, None, *every, False, [0] * case.dims, case.groups)  # noqa: E731
    return {"y": forward, "dx": lambda: backward(0), "dw": lambda: backward(1)}


def pool_ops(shape: tuple[int, ...], target: Target) -> dict[str, Any]:
    dims = len(shape) - 2
    attributes: Any = ((2,) * dims, (2,) * dims, ((0, 0),) * dims)
    x = stored(np.random.default_rng(0).standard_normal(shape).astype(np.float32), target)
    y = stored(np.empty((*shape[:2], *(n // 2 for n in shape[2:])), np.float32), target)
    MaxPool(*attributes).kernel(np, x, y)
    return {
        "max": (MaxPool(*attributes), (x,), y.copy("K")),
        "max dx": (MaxPoolGrad(*attributes), (x, y, y.copy("K")), x.copy("K")),
        "mean": (AvgPool(*attributes), (x,), y.copy("K")),
        "mean dx": (AvgPoolGrad(*attributes, spatial=shape[2:]), (y,), x.copy("K")),
    }


def torch_pool_runs(shape: tuple[int, ...]) -> dict[str, Run]:
    import torch

    torch.set_num_threads(1)
    dims = len(shape) - 2
    pool, aten = torch.nn.functional, torch.ops.aten
    x = torch.randn(shape if dims > 1 else (*shape[:2], 1, shape[2]))
    window = [2, 2] if dims > 1 else [1, 2]
    y, at = pool.max_pool2d(x, window, return_indices=True)
    return {
        "max": lambda: pool.max_pool2d(x, window),
        "max dx": lambda: aten.max_pool2d_with_indices_backward(y, x, window, window, [0, 0], [1, 1], False, at),
        "mean": lambda: pool.avg_pool2d(x, window),
        "mean dx": lambda: aten.avg_pool2d_backward(y, x, window, window, [0, 0], False, False, None),
    }


def least(variants: dict[str, dict[str, Run]], rounds: int) -> dict[str, dict[str, float]]:
    """Return the minimum milliseconds of each variant, from interleaved rounds."""
    times: dict[str, dict[str, float]] = {name: dict.fromkeys(runs, np.inf) for name, runs in variants.items()}
    for _ in range(rounds + 1):
        for part in dict.fromkeys(part for runs in variants.values() for part in runs):
            for name, runs in variants.items():
                if part in runs:
                    start = time.thread_time()
                    runs[part]()
                    times[name][part] = min(times[name][part], (time.thread_time() - start) * 1e3)
    return times


def table(title: str, rows: dict[str, dict[str, float]], note: str = "") -> float:
    """Print a table of times; return the time of the first row relative to PyTorch's."""
    peer = rows.get("torch")
    parts = list(peer or next(iter(rows.values())))
    print(f"\n{title}   {note}\n{'':22}" + "".join(f"{part:>16}" for part in [*parts, "sum"]))
    for name, row in rows.items():
        cells = [(row.get(part, np.nan), peer[part] if peer else np.nan) for part in parts]
        cells.append((sum(ms for ms, _ in cells), sum(ms for _, ms in cells)))
        print(f"{name:22}" + "".join(f"{ms:10.3f}{ms / of:6.2f}" for ms, of in cells), flush=True)
    return sum(next(iter(rows.values())).values()) / sum(peer.values()) if peer else np.nan


def speeds(options: argparse.Namespace) -> None:
    target, shares = target_of("cpu", options.kernels), []
    with_torch = importlib.util.find_spec("torch") is not None
    for case in CASES:
        if options.only in case.name:
            ops = conv_ops(case, np.float32, lambda a: stored(a, target), options.algorithm)
            variants = ours(ops, target, options.each)
            if with_torch:
                variants["torch"] = torch_runs(case, ops)
            who = [registry.choose(op, target, inputs, (output,)).implementation.name for op, inputs, output in ops.values()]
            shares.append(table(f"{case}", least(variants, options.rounds), ", ".join(who)))
    for title, shape in POOLS:
        if options.only in title:
            variants = ours(pool_ops(shape, target), target, options.each)
            if with_torch:
                variants["torch"] = torch_pool_runs(shape)
            shares.append(table(f"{title} {shape}", least(variants, options.rounds)))
    if not options.each:
        print(f"\ngeometric mean of sums to PyTorch's: {np.exp(np.mean(np.log(shares))):.2f}, worst {max(shares):.2f}")


def errors() -> None:
    """The largest error of each way in float32, relative to the largest element, against float64, and as a multiple of PyTorch's."""
    print("| filters | way | y | dx | dw |\n|---|---|---|---|---|")
    for case in ERROR_CASES:
        exact = conv_ops(case, np.float64)
        ops = conv_ops(case, algorithm="winograd")
        for op, inputs, output in exact.values():
            op.kernel(np, *inputs, output)
        peers = {part: run().numpy() for part, run in torch_runs(case, ops).items()}
        ours_by_way: dict[str, dict[str, Any]] = {"PyTorch": peers}
        for part, (op, inputs, output) in ops.items():
            for tier in ("numpy", "llvm"):
                target = target_of("cpu", tier)
                implementations = {one.name: one for one in reversed(registry.candidates(type(op), target))}  # the best of each name
                for name, one in implementations.items():
                    if name.startswith(("im2col", "Winograd")) and (case.kernel, name) != (3, "Winograd, 3 outputs"):
                        result = np.empty_like(output)
                        running(registry.refined(target, one.bind(op, Cpu(), inputs, (result,))))()
                        ours_by_way.setdefault(f"{tier}: {name.split(' of ')[0]}", {})[part] = result
        for way, result in ours_by_way.items():
            erred = [float(np.abs(result[part] - exact[part][2]).max() / np.abs(exact[part][2]).max()) for part in PARTS]
            base = [float(np.abs(peers[part] - exact[part][2]).max() / np.abs(exact[part][2]).max()) for part in PARTS]
            cells = " | ".join(f"{e:.1e} ({e / b:.1f})" for e, b in zip(erred, base, strict=True))
            print(f"| {case.name} | {way} | {cells} |", flush=True)


#: convolutions, and what the ways to compute them take
Measured = list[tuple[ConvOp, dict[Algorithm, float]]]
TIERS: tuple[Tier, ...] = ("numpy", "llvm")
NAMES = tuple(field.name for field in fields(Costs))


def constants(rounds: int) -> None:
    """Fit COSTS to least CPU times of products, copies and every variant of every case; print the cost of choosing by them.

    The variants run in interleaved order.
    """
    machine, runs_by_case = machine_class(), dict[tuple[str, str, str], tuple[ConvOp, dict[Algorithm, Run]]]()
    runs: dict[Any, Run] = dict(_copies())
    for tier in TIERS:
        target = target_of("cpu", tier)
        runs |= {(tier, *shape): _product_run(*shape, target) for shape in PRODUCTS}
        for case in CASES:
            for part, (op, inputs, output) in conv_ops(case, np.float32, lambda a, target=target: stored(a, target)).items():
                whole = replace(op, logical=(case.shape, case.filter_shape))
                runs_by_case[tier, case.name, part] = whole, _variants(whole, inputs, output, target)
    took = _nanoseconds(runs | {(*at, way): run for at, (_, case_runs) in runs_by_case.items() for way, run in case_runs.items()}, rounds)
    for tier in TIERS:
        each = [(op, {way: took[(*at, way)] for way in case_runs}) for at, (op, case_runs) in runs_by_case.items() if at[0] == tier]
        before, costs = COSTS[machine, tier], _fitted(each, took, tier)
        print(f"the way that is chosen / the fastest, {machine}, {tier}: geometric mean and worst: {_chosen_to_best(each, costs)}", end=" ")
        print(f'(by the table: {_chosen_to_best(each, before)})\n\n    ("{machine}", "{tier}"): Costs(')
        for name in NAMES:
            print(f"        {name}={getattr(costs, name):.3g},  # before: {getattr(before, name):.3g}")
        print("    ),\n")


def _variants(op: ConvOp, inputs: tuple[Any, ...], output: Any, target: Target) -> dict[Algorithm, Run]:
    """All that can be taken and are accurate enough, as they run."""
    assert op.logical is not None
    case_runs, costs = dict[Algorithm, Run](), convolution_costs.estimates(op, op.logical, True, COSTS[machine_class(), target.tier])
    for one in registry.candidates(type(op), target):
        word, *rest = one.name.split()
        way: Any = int(rest[0]) if word == "Winograd," else word
        if costs.get(way, math.inf) < math.inf:
            case_runs.setdefault(way, running(registry.refined(target, one.bind(op, Cpu(), inputs, (output,)))))
    return case_runs


def _product_run(times: int, m: int, k: int, n: int, target: Target) -> Run:
    a, b, y = (np.ones(shape, np.float32) for shape in ((times, m, k), (times, k, n), (times, m, n)))
    return running(registry.refined(target, [(np.matmul, (a, b, y))]))


def _copies() -> dict[Any, Run]:
    """Return the timed calls and copies."""
    few, large, y = np.ones((4, 4), np.float32), np.ones((64, 34, 34, 8), np.float32), np.empty((4, 4), np.float32)
    target, short = np.empty((64, 32, 32, 8), np.float32), np.empty((64, 32, 32, 4), np.float32)
    long, wide = target.reshape(64, 32, 256), large.reshape(64, 34, 272)[:, 1:33, 8:264]
    filters, turned = np.ones((128, 128, 3, 3), np.float32), np.empty((128, 128, 3, 3), np.float32)
    return {
        "call": lambda: np.matmul(few, few, y),
        "copy": lambda: np.copyto(long, wide),
        "run": lambda: np.copyto(short, large[:, 1:33, 1:33, :4]),
        "add": lambda: np.add(long, wide, long),
        "gather": lambda: np.copyto(turned, filters[..., ::-1, ::-1].swapaxes(0, 1)),
    }


def _fitted(each: Measured, took: dict[Any, float], tier: str) -> Costs:
    """Return the constants whose linear estimates have the least relative error over all times; slow variants weigh less."""
    names = [name for name in NAMES if tier == "llvm" or name not in ("sums", "products", "lone")]
    units = [Costs(**dict.fromkeys(NAMES, 0.0) | {name: 1.0}) for name in names]
    rows = [({"call": 1}, took["call"]), ({"copy": 64 * 32 * 256}, took["copy"]), ({"add": 64 * 32 * 256}, took["add"])]
    rows += [({"copy": 64 * 32 * 32 * 4, "run": 64 * 32 * 32}, took["run"]), ({"gather": 128 * 128 * 9}, took["gather"])]
    for times, m, k, n in PRODUCTS:
        counts = {"call": 1, "product": times, "multiply": times * m * k * n, "pack": times * (m * k + k * n), "write": times * m * n}
        rows.append((counts, took[tier, times, m, k, n]))
    a = [np.array([counts.get(name, 0) for name in names]) / ns for counts, ns in rows]
    b = [1.0] * len(a)
    for op, times in each:
        assert op.logical is not None
        by_unit = [convolution_costs.estimates(op, op.logical, True, unit) for unit in units]
        for way, ns in times.items():
            share = min(times.values()) / ns
            a.append(np.array([unit_seconds[way] for unit_seconds in by_unit]) / ns * share)
            b.append(share)
    return Costs(**{name: float(f"{cost:.3g}") for name, cost in zip(names, _positive_fit(np.array(a), np.array(b)), strict=True)})


def _chosen_to_best(each: Measured, costs: Costs) -> str:
    """Return the time of the variant with the least estimate, over the time of the fastest."""
    shares = []
    for op, times in each:
        assert op.logical is not None
        costs_by_way = convolution_costs.estimates(op, op.logical, True, costs)
        shares.append(times[min(times, key=costs_by_way.__getitem__)] / min(times.values()))
    return f"{np.exp(np.mean(np.log(shares))):.3f}, {max(shares):.2f}"


def _positive_fit(a: Any, b: Any) -> Any:
    """Return the non-negative least squares solution of a x = b; negative unknowns are removed one by one."""
    active, scale = list(range(a.shape[1])), np.abs(a).max(0)
    while True:
        x = np.zeros(a.shape[1])
        x[active] = np.linalg.lstsq(a[:, active] / scale[active], b, rcond=None)[0]
        if (x >= 0).all():
            return x / scale
        active.remove(int(x.argmin()))


def _nanoseconds(runs: dict[Any, Run], rounds: int) -> dict[Any, float]:
    """Return least CPU times.

    Every round runs each variant once (short ones twenty times), so that other load affects all alike.
    """
    best = dict.fromkeys(runs, np.inf)
    for _ in range(rounds + 1):
        for name, run in runs.items():
            for _ in range(20 if best[name] < 1e5 else 1):
                start = time.thread_time_ns()
                run()
                best[name] = min(best[name], time.thread_time_ns() - start)
    return best


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=15)
    arguments.add_argument("--only", default="", help="cases whose name contains this")
    arguments.add_argument("--kernels", default="auto", help="the tier, as in flow.config.kernels")
    arguments.add_argument("--algorithm", default="auto", choices=["auto", "direct", "winograd"])
    for name in ("each", "errors", "constants"):
        arguments.add_argument(f"--{name}", action="store_true")
    options = arguments.parse_args()
    if any(os.environ.get(name) != "1" for name in _THREADS):  # libraries read these when they are loaded: begin again with them set
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | dict.fromkeys(_THREADS, "1"))
    if options.errors:
        errors()
    elif options.constants:
        constants(options.rounds)
    else:
        speeds(options)


if __name__ == "__main__":
    main()
