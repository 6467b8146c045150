"""Counts of training steps compiled for a GPU, without CuPy: calls, casts, and bytes of their plans.

    python tests/gpu/plan_counts.py            print the table of all models
    python tests/gpu/plan_counts.py --write    write it to data/plan_counts.txt

Calls are instructions that compute, each one kernel or product.  Casts are calls that only convert elements.  Casts of weights read a variable, or
an update reads their result.  Operands are the megabytes of all operands, counted once per call.  The last number is the most megabytes in use at
once, without variables.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TARGET = HERE / "data" / "plan_counts.txt"
if __name__ == "__main__":
    sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[1] / "examples")]

import gpt  # noqa: E402

import jobflow as flow  # noqa: E402
import jobflow.typing as tp  # noqa: E402
from jobflow.engine.job import job_of  # noqa: E402
from jobflow.kernels.multi_tensor import MultiTensor  # noqa: E402
from jobflow.kernels.region import Region  # noqa: E402
from jobflow.kernels.target import target_of  # noqa: E402
from jobflow.ops.op import Op  # noqa: E402
from jobflow.ops.scalar import Cast  # noqa: E402
from jobflow.plan.footprint import footprint  # noqa: E402
from jobflow.plan.plan import Compute, Plan, Slot  # noqa: E402
from jobflow.program.program import Program, StorageChoice  # noqa: E402
from jobflow.tools.explain import laid_out  # noqa: E402

SMALL = gpt.Size(batch=2, length=32, width=64, heads=4, blocks=2, words=128)
GPT2_124M = gpt.Size(batch=1, length=1024, width=768, heads=12, blocks=12, words=50257)


def gpt_job(size: gpt.Size, half: Any, clipping: Any = None) -> Any:
    """Return a job that trains `examples/gpt.py`, with products in the type `half` unless it is None."""
    config = flow.function_config()
    if half is not None:
        config.mixed_precision(half)
    shape = (size.batch, size.length)

    @flow.global_function("train", config)
    def step(words: tp.Numpy.Placeholder(shape, dtype=flow.int32), following: tp.Numpy.Placeholder(shape, dtype=flow.int32)) -> tp.Numpy:
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(flow.reshape(following, [-1]), gpt.gpt(words, size))
        schedule = flow.optimizer.PiecewiseConstantScheduler([], [1e-3])
        flow.optimizer.AdamW(schedule, do_bias_correction=True, weight_decay=0.1, grad_clipping=clipping).minimize(loss)
        return loss

    return step


@dataclass(frozen=True)
class Counts:
    calls: int
    casts: int
    casts_of_weights: int
    operands: float
    in_use: float


def counts(plan: Plan) -> Counts:
    calls = [instruction for instruction in plan.instructions if isinstance(instruction, Compute)]
    casts = [call for call in calls if only_casts(call)]
    gradients = [slot for call in calls if call.op.alias for slot in call.inputs]
    variables = list(plan.variables.values())
    of_weights = [call for call in casts if _within(call.inputs, variables) or _within(call.outputs, gradients)]
    nbytes = sum(slot.type.nbytes for call in calls for slot in {*call.inputs, *call.outputs})
    return Counts(len(calls), len(casts), len(of_weights), round(nbytes / 1e6, 1), round(footprint(plan).needed / 1e6, 1))


def _within(slots: Sequence[Slot], others: Sequence[Slot]) -> bool:
    """Return True if one of the slots is a part of the memory of another one."""
    return any(a.buffer == b.buffer and b.offset <= a.offset < b.stop for a in slots for b in others)


def only_casts(call: Compute) -> bool:
    return _all_are_casts(call.op)


def _all_are_casts(op: Op) -> bool:
    return all(_all_are_casts(member.op) for member in op.members) if isinstance(op, Region | MultiTensor) else isinstance(op, Cast)


def gpu_plan(job: Any, tables: str) -> Plan:
    """Return the plan of a job on one GPU with the patterns in the module `tables`, whether or not cublasLt is installed."""
    flow.clear_default_session()
    target = replace(target_of("gpu"), tables=f"jobflow.kernels.{tables}")
    program = Program(laid_out(job_of(job), 1, target=target).physical, StorageChoice(share=False, io_buffers=False), target)
    plan = program.plan(0, 1)
    flow.clear_default_session()
    return plan


SIZES = {"GPT, 2 blocks": SMALL, "GPT-2 124M, 1 x 1,024": GPT2_124M}
TYPES = {"float32": None, "bfloat16": flow.bfloat16}
TABLES = {"cublas": "cuda.image_patterns", "cublasLt": "cuda.product_patterns"}
#: a model, its element type of products, and the library of products
MODELS = tuple(product(SIZES, TYPES, TABLES))


def line(name: str, dtype: str, library: str) -> str:
    columns = asdict(counts(gpu_plan(gpt_job(SIZES[name], TYPES[dtype]), TABLES[library])))
    return "; ".join([f"{name}, {dtype}, {library}", *(f"{column.replace('_', ' ')} {value:,}" for column, value in columns.items())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table")
    options = parser.parse_args()
    lines = [line(*model) for model in MODELS]
    print("\n".join(lines))
    if options.write:
        TARGET.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
