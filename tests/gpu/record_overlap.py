"""Communication of data parallel training steps on 8 GPUs, from their plans: when gradients are reduced, and how long kernels wait for them.

    python tests/gpu/record_overlap.py          print the table
    python tests/gpu/record_overlap.py --write  write it to data/overlap.txt

Plans need neither a GPU nor CuPy.  Times are estimates, not measurements:

* An instruction takes the longer of two times: its operations at 790 TFLOP/s, and the bytes that it reads and writes at 3.0 TB/s.  These are
  estimates of the fastest products and copies of an H100 (`jobflow/kernels/cuda/call_floors.py`).  Slower kernels hide more communication.
* A collective takes 20 microseconds, and the bytes of the ring algorithm at 370 GB/s, the rate of an all_reduce of 8 H100 on NVLink.
* Kernels run in order on one stream, collectives in order on another one.  They do not slow each other down.  The host does not delay them.

The exposed time is the time of the step minus the time of its kernels alone, relative to the latter.  "Late" is the same plan with all reductions
after the backward pass.  Memory is the peak of values without variables.  Models are replicated, and batch normalization is local, as in
PyTorch's DistributedDataParallel.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
TARGET = HERE / "data" / "overlap.txt"
sys.path[:0] = [str(HERE.parents[1] / "benchmarks" / "gpu")]

import jobflow_models  # noqa: E402
import workloads  # noqa: E402

import jobflow as flow  # noqa: E402
from jobflow.compiler.compile import distribute, logical  # noqa: E402
from jobflow.engine.job import job_of, returned_values  # noqa: E402
from jobflow.engine.session import current_session  # noqa: E402
from jobflow.kernels.cuda.call_floors import H100_IN_PRACTICE, floor_of  # noqa: E402
from jobflow.kernels.target import CPU, FusionLimits, Target  # noqa: E402
from jobflow.plan.footprint import footprint  # noqa: E402
from jobflow.plan.plan import Collective, Completion, Compute, Plan  # noqa: E402
from jobflow.plan.traffic import handed  # noqa: E402
from jobflow.program.program import ALONE, Program  # noqa: E402

RANKS = 8
GPU = Target("cuda", "nvrtc", alignment=256, tables="jobflow.kernels.cuda.product_patterns", fusion=FusionLimits())
BUS, LATENCY = 370e9, 20e-6
#: a model, the strategy, and the samples of each rank
MODELS = {
    "gpt2": ("gpt2", flow.strategies.mirrored(), 8),
    "gpt2 with ZeRO 1": ("gpt2", flow.strategies.zero(1), 8),
    "resnet50": ("resnet50", flow.strategies.mirrored(), 32),
}


def plan_of(name: str, early: bool = True) -> Plan:
    """Return the plan of rank 0; unless `early`, gradients are reduced after the backward pass."""
    model, strategy, samples = MODELS[name]
    job = jobflow_models.job(workloads.FULL[model], RANKS * samples, "bfloat16")
    flow.clear_default_session()
    flow.config.cpu_device_num(RANKS)
    declared, session = job_of(job).with_strategy(strategy), current_session()
    program, results = declared.trace(session, declared.placement(session), declared.declared_shapes(session))
    graph = logical(program, returned_values(results), GPU).graph
    flow.clear_default_session()
    return Program(distribute(graph, GPU if early else CPU), ALONE, GPU).plan(0, RANKS)


# -------------------------------------------------------------------- times


def seconds(call: Compute) -> float:
    return floor_of(call, H100_IN_PRACTICE).seconds


def communication(each: Collective, rank: int) -> float:
    counts = (sum(each.counts),) if each.kind == "all_reduce" else each.counts
    nbytes = handed(each.kind, counts, each.ranks.index(rank), len(each.ranks)) * each.input.type.dtype.itemsize
    return LATENCY + nbytes / BUS


def step_seconds(plan: Plan) -> tuple[float, float]:
    """Return the time of a step, and the time of its kernels alone."""
    kernels = stream = alone = 0.0
    done: dict[int, float] = {}
    for instruction in plan.instructions:
        match instruction:
            case Compute():
                kernels += seconds(instruction)
                alone += seconds(instruction)
            case Collective(order=order):
                done[order] = stream = max(kernels, stream) + communication(instruction, plan.rank)
                if not instruction.concurrent:
                    kernels = stream
            case Completion(order=order):
                kernels = max(kernels, done[order])
    return kernels, alone


def exposed(plan: Plan) -> float:
    step, alone = step_seconds(plan)
    return step / alone - 1


# -------------------------------------------------------------------- order


@dataclass(frozen=True)
class Order:
    """The reductions of gradients among the backward products: each with its bytes and the number of products before it."""

    products: int
    reductions: tuple[tuple[str, int, int], ...]

    @property
    def nbytes(self) -> int:
        return sum(nbytes for _, nbytes, _ in self.reductions)


def order_of(plan: Plan) -> Order:
    products, reductions = 0, []
    for instruction in plan.body:
        if isinstance(instruction, Compute) and instruction.phase == "backward" and floor_of(instruction, H100_IN_PRACTICE).operations:
            products += 1
        elif isinstance(instruction, Collective) and instruction.phase == "update":
            reductions.append((instruction.name, instruction.input.type.nbytes, products))
    return Order(products, tuple(reductions))


def lines(name: str) -> Iterator[str]:
    early, late = plan_of(name), plan_of(name, early=False)
    order = order_of(early)
    *rest, last = order.reductions
    count, before = order.products, sum(nbytes for _, nbytes, _ in rest)
    step, alone = step_seconds(early)
    yield f"{name}: {RANKS} ranks, {MODELS[name][2]} samples each, bfloat16, reductions in float32"
    yield f"  reductions of gradients: {len(order.reductions)}, {order.nbytes / 1e6:.1f} MB; late {len(order_of(late).reductions)}"
    first = next(at for _, nbytes, at in order.reductions if nbytes > order.nbytes // 100)
    yield f"  backward products before the first reduction: {first} of {count}, {first / count:.1%}"
    yield f"  last reduction: {last[0].removesuffix(':B')}, {last[1] / 1e6:.1f} MB"
    yield f"  other gradients reduced before the last backward product: {sum(n for _, n, at in rest if at < count) / before:.1%}"
    yield f"  collectives that kernels wait for at once: {waits(early)}"
    yield f"  kernels {alone * 1e3:.2f} ms, step {step * 1e3:.2f} ms: exposed {exposed(early):.2%}; late {exposed(late):.2%}"
    yield f"  memory: {footprint(early).needed / 1e6:,.1f} MB; late {footprint(late).needed / 1e6:,.1f} MB"


def waits(plan: Plan) -> int:
    """Return the number of collectives that are not concurrent."""
    return sum(isinstance(each, Collective) and not each.concurrent for each in plan.instructions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table")
    options = parser.parse_args()
    text = "".join(f"{line}\n" for name in MODELS for line in lines(name))
    print(text, end="")
    if options.write:
        TARGET.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
