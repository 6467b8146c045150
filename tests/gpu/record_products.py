"""Recorder of the matrix products of GPT-2 in data/gpt2_products.txt: what is one call of cublasLt, in the plan of a training step in bfloat16.

    python tests/gpu/record_products.py          print the table
    python tests/gpu/record_products.py --write  and write it

Plans need neither a GPU nor CuPy.  A row is a product of one layer, or of the rest of the model.  It has the number of calls, the phase, the
operation, the element types and shapes of the operands, and the leading dimensions of the matrices.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "benchmarks" / "gpu")]

from jobflow_models import job  # noqa: E402
from workloads import Gpt2  # noqa: E402

import jobflow as flow  # noqa: E402
from jobflow.compiler.compile import distribute, logical  # noqa: E402
from jobflow.engine.job import job_of, returned_values  # noqa: E402
from jobflow.engine.session import current_session  # noqa: E402
from jobflow.kernels.cuda.cublas_products import matrices  # noqa: E402
from jobflow.kernels.cuda.epilogue_product import PRODUCTS, EpilogueProduct  # noqa: E402
from jobflow.kernels.region import Region  # noqa: E402
from jobflow.kernels.registry import at  # noqa: E402
from jobflow.kernels.target import FusionLimits, Target  # noqa: E402
from jobflow.ops.activation import GeluTanh  # noqa: E402
from jobflow.ops.matmul import AxisSum, BatchMatMul, BiasAdd  # noqa: E402
from jobflow.ops.op import Op  # noqa: E402
from jobflow.ops.pointwise import ElementwiseGrad  # noqa: E402
from jobflow.plan.plan import Compute, Plan, Slot  # noqa: E402
from jobflow.program.program import ALONE, Program  # noqa: E402

TABLE = Path(__file__).with_name("data") / "gpt2_products.txt"
#: a GPU with cublasLt, and one without
WITH = Target("cuda", "nvrtc", alignment=256, tables="jobflow.kernels.cuda.product_patterns", fusion=FusionLimits())
WITHOUT = replace(WITH, tables="jobflow.kernels.cuda.image_patterns")
#: GPT-2 with its own number of words, which is odd
SIZE = Gpt2(words=50257, blocks=2)


def plan_of(size: Gpt2, target: Target) -> Plan:
    """Return the plan of a training step of one sequence in bfloat16."""
    flow.clear_default_session()
    declared, session = job_of(job(size, 1, "bfloat16")), current_session()
    program, results = declared.trace(session, declared.placement(session), declared.declared_shapes(session))
    graph = logical(program, returned_values(results), target).graph
    flow.clear_default_session()
    return Program(distribute(graph), ALONE, target).plan(0, 1)


def computed(plan: Plan) -> Iterator[Compute]:
    return (i for i in plan.instructions if isinstance(i, Compute))


def is_product(op: Op) -> bool:
    return isinstance(op, EpilogueProduct) or type(op) in PRODUCTS


def leading(slot: Slot) -> int | None:
    """Return the leading dimension of the matrices in a slot, in elements; None for a vector or for rows that are no matrix."""
    if slot.type.ndim < 2:
        return None
    size = slot.type.dtype.itemsize
    layout = matrices(at(slot.type, slot.strides, 1 << 40), rows=slot.type.ndim == 3) or matrices(at(slot.type, slot.strides, 1 << 40))
    assert layout is not None
    rows, columns = layout.leading, layout.transposed.leading
    distance = rows if rows is not None else columns
    assert distance is not None and distance * size > 0
    return distance


def row(instruction: Compute) -> str:
    slots = [*instruction.inputs, *instruction.outputs]
    shown = [f"{slot.type.dtype.name}{list(slot.type.shape)}" for slot in slots]
    distances = " ".join(str(leading(slot) or "-") for slot in slots)
    arrow = len(instruction.inputs)
    return f"{instruction.phase} | {instruction.op} | {' '.join(shown[:arrow])} -> {' '.join(shown[arrow:])} | {distances}"


def products(plan: Plan) -> Counter[str]:
    return Counter(row(i) for i in computed(plan) if is_product(i.op))


def parts(op: Op) -> Iterator[Op]:
    """Yield the operations of an instruction: the members of a region, or the operation itself."""
    if isinstance(op, Region):
        for member in op.members:
            yield from parts(member.op)
    else:
        yield op


def separate(plan: Plan) -> Counter[str]:
    """Return the instructions other than products that compute a bias, a GELU, its derivative, or the gradient of a bias."""
    names: Counter[str] = Counter()
    for instruction in computed(plan):
        for op in () if is_product(instruction.op) else parts(instruction.op):
            if isinstance(op, BiasAdd | AxisSum | GeluTanh) or (isinstance(op, ElementwiseGrad) and isinstance(op.op, GeluTanh)):
                names[type(op).__name__] += 1
    return names


def phases(rows: Counter[str]) -> str:
    """Return the numbers of products without batches, by phase."""
    counted: Counter[str] = Counter()
    for text, number in rows.items():
        if BatchMatMul.__name__ not in text:
            counted[text.partition(" | ")[0]] += number
    return ", ".join(f"{number} {phase}" for phase, number in sorted(counted.items(), reverse=True))


def unaligned(plan: Plan) -> int:
    """Return the number of matrices of products whose leading dimension is no multiple of 8 elements."""
    slots = [slot for i in computed(plan) if is_product(i.op) for slot in (*i.inputs, *i.outputs)]
    return sum(distance % 8 != 0 for slot in slots if (distance := leading(slot)) is not None)


def lines() -> list[str]:
    larger = replace(SIZE, blocks=SIZE.blocks + 1)
    small, large = plan_of(SIZE, WITH), plan_of(larger, WITH)
    plain, plain_large = plan_of(SIZE, WITHOUT), plan_of(larger, WITHOUT)
    layer = products(large) - products(small)
    rest = products(small)
    for text, number in layer.items():
        rest[text] -= SIZE.blocks * number
    text_lines = ["# matrix products of GPT-2 with one sequence of 1,024 tokens in bfloat16; made by record_products.py"]
    text_lines.append(
        f"a layer has {phases(layer)} products without those of attention; without cublasLt {phases(products(plain_large) - products(plain))}"
    )
    others, plain_others = separate(large) - separate(small), separate(plain_large) - separate(plain)
    text_lines.append(f"separate kernels of a layer: {_named(others)}; without cublasLt {_named(plain_others)}")
    text_lines.append(f"leading dimensions that are no multiple of 8: {unaligned(large)}; without cublasLt {unaligned(plain_large)}")
    text_lines.append(f"instructions of a layer: {_length(large) - _length(small)}; without cublasLt {_length(plain_large) - _length(plain)}")
    text_lines += [f"layer {number} | {text}" for text, number in layer.items()]
    text_lines += [f"rest {number} | {text}" for text, number in rest.items() if number]
    return text_lines


def _length(plan: Plan) -> int:
    return sum(1 for _ in computed(plan))


def _named(names: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(names.items())) or "none"


if __name__ == "__main__":
    print("\n".join(table := lines()))
    if "--write" in sys.argv:
        TABLE.write_text("\n".join(table) + "\n")
