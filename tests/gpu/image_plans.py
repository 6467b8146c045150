"""Calls of a training step of ResNet-50 compiled for a GPU, by kind of operation, without CuPy.

    python tests/gpu/image_plans.py            print the table
    python tests/gpu/image_plans.py --write    write it to data/image_plans.txt

The model is that of the comparison with PyTorch, in bfloat16, with 2 images.  A call is one kernel, several kernels of one reduction, or one call of
a library.  Copies only move elements.  Images are values [n, c, h, w] of the batch, without the argument.  The operations of a region are in
parentheses, those of several tensors in one call follow their number.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TARGET = HERE / "data" / "image_plans.txt"
sys.path.append(str(HERE.parents[1] / "benchmarks" / "gpu"))
if __name__ == "__main__":
    sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[1] / "examples")]

import jobflow_models  # noqa: E402
import workloads  # noqa: E402

import jobflow as flow  # noqa: E402
from jobflow.compiler.compile import distribute, logical  # noqa: E402
from jobflow.core.types import float32  # noqa: E402
from jobflow.engine.job import job_of, returned_values  # noqa: E402
from jobflow.engine.session import current_session  # noqa: E402
from jobflow.kernels.multi_tensor import MultiTensor  # noqa: E402
from jobflow.kernels.region import Region  # noqa: E402
from jobflow.kernels.target import target_of  # noqa: E402
from jobflow.ops.layout_ops import Copy  # noqa: E402
from jobflow.ops.op import Op, ViewOp  # noqa: E402
from jobflow.plan.plan import Compute, Plan  # noqa: E402
from jobflow.program.program import ALONE, Program  # noqa: E402

BATCH = 2


def plan_of(job: Any) -> Plan:
    """Return the plan of a job on one GPU with cublasLt, whether or not it is installed."""
    flow.clear_default_session()
    target = replace(target_of("gpu"), tables="jobflow.kernels.cuda.product_patterns")
    declared, session = job_of(job), current_session()
    program, results = declared.trace(session, declared.placement(session), declared.declared_shapes(session))
    graph = logical(program, returned_values(results), target).graph
    flow.clear_default_session()
    return Program(distribute(graph), ALONE, target).plan(0, 1)


def resnet50() -> Plan:
    return plan_of(jobflow_models.job(workloads.ResNet50(), BATCH, "bfloat16"))


def calls(plan: Plan) -> list[Compute]:
    return [instruction for instruction in plan.instructions if isinstance(instruction, Compute)]


def copies(plan: Plan) -> list[Compute]:
    return [call for call in calls(plan) if only_copies(call.op)]


def copied_images(plan: Plan) -> list[Compute]:
    return [call for call in copies(plan) if any(slot.type.ndim == 4 and slot.type.shape[0] == BATCH for slot in call.outputs)]


def only_copies(op: Op) -> bool:
    return all(only_copies(member.op) for member in op.members) if isinstance(op, Region | MultiTensor) else isinstance(op, ViewOp | Copy)


def kind(op: Op) -> str:
    if isinstance(op, MultiTensor):
        return f"{len(op.members)} x {kind(op.members[0].op)}"
    return f"({' '.join(type(member.op).__name__ for member in op.members)})" if isinstance(op, Region) else type(op).__name__


def images(plan: Plan) -> list[Any]:
    """Return the slots of images, without those of the argument."""
    fed = [feed.slot for feed in plan.feeds]
    slots = dict.fromkeys(slot for call in calls(plan) for slot in (*call.inputs, *call.outputs))
    return [slot for slot in slots if slot.type.ndim == 4 and slot.type.shape[0] == BATCH and slot.type.shape[2:] != (1, 1) and slot not in fed]


def lines(plan: Plan) -> Iterator[str]:
    single = [slot for slot in images(plan) if slot.type.dtype is float32]
    others = [slot for slot in images(plan) if slot.strides[1] != slot.type.dtype.itemsize]
    yield f"calls {len(calls(plan))}; copies {len(copies(plan))}; copied images {len(copied_images(plan))}"
    yield f"float32 images {len(single)}; images without channels innermost {len(others)}"
    for what, count in sorted(Counter(kind(call.op) for call in calls(plan)).items(), key=lambda item: (-item[1], item[0])):
        yield f"{count}; {what}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table")
    options = parser.parse_args()
    text = "\n".join(lines(resnet50())) + "\n"
    print(text, end="")
    if options.write:
        TARGET.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
