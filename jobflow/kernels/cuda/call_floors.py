"""Lower bounds of the times of calls on a GPU.  They follow from the bytes and operations of a plan.

    floor_of(call, H100, tf32=False).seconds

The bound is the longer of two times.  One is the bytes divided by the rate of the memory.  The other one is the operations divided by the rate
of their element type.
It needs neither a GPU nor CuPy.  Launches, and gaps between calls, are not included.  Operands in the cache of the GPU may be read faster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jobflow.core.types import TensorType
from jobflow.kernels.cuda.epilogue_product import PRODUCTS, EpilogueProduct
from jobflow.kernels.region import Region
from jobflow.ops.attention import AttentionBase
from jobflow.ops.conv import Conv, ConvGradInput, ConvGradWeight, ConvOp
from jobflow.ops.index import LookUp
from jobflow.ops.matmul import Product, RowsMatMul
from jobflow.ops.op import Op
from jobflow.ops.row_update import RowUpdate
from jobflow.plan.plan import Compute, Slot


class Card(NamedTuple):
    """The rates of a GPU: bytes of memory per second, and operations per second by element type of the factors."""

    name: str
    memory: float
    operations: Mapping[str, float]
    tf32: float


#: NVIDIA H100 Tensor Core GPU Datasheet, column H100 SXM.  Rates of tensor cores are half of those with sparsity; float32 is the rate without them
H100 = Card("H100 SXM", 3.35e12, {"float16": 989.5e12, "bfloat16": 989.5e12, "float32": 67e12, "float64": 67e12}, 494.7e12)
#: estimates of the rates of its fastest products and copies, for times instead of bounds
H100_IN_PRACTICE = H100._replace(memory=3.0e12, operations={**H100.operations, "float16": 790e12, "bfloat16": 790e12})


class CallFloor(NamedTuple):
    """The bytes and operations of a call, and the two times that bound it, in seconds."""

    nbytes: int
    operations: float
    memory_time: float
    operation_time: float

    @property
    def seconds(self) -> float:
        return max(self.memory_time, self.operation_time)

    @property
    def bound(self) -> str:
        """The longer time: "memory" or "operations"."""
        return "operations" if self.operation_time > self.memory_time else "memory"


def floor_of(call: Compute, card: Card, tf32: bool = False) -> CallFloor:
    """Return the bound of a call on a card; with `tf32`, factors of float32 products are rounded to TF32."""
    inputs, outputs = [slot.type for slot in call.inputs], [slot.type for slot in call.outputs]
    nbytes, operations = bytes_of(call), operations_of(call.op, inputs, outputs)
    if not operations:
        return CallFloor(nbytes, 0.0, nbytes / card.memory, 0.0)
    element = inputs[0].dtype.name
    rate = card.tf32 if tf32 and element == "float32" else card.operations.get(element, math.inf)
    return CallFloor(nbytes, operations, nbytes / card.memory, operations / rate)


def bytes_of(call: Compute) -> int:
    """Return the bytes that a call reads and writes, each once; a table is read only at the rows of its indices."""
    inputs, outputs = [slot.type for slot in call.inputs], [slot.type for slot in call.outputs]
    read = read_bytes(call.op, inputs, outputs)
    written = [type.nbytes for type in outputs]
    if isinstance(call.op, RowUpdate) and call.op.lazy:
        written = [min(n, m) for n, m in zip(written, read[: call.op.count], strict=True)]
    reads = {slot: min(nbytes, stored_bytes(slot)) for slot, nbytes in zip(call.inputs, read, strict=True)}
    writes = dict(zip(call.outputs, written, strict=True))
    return sum(reads.values()) + sum(writes.values())


def stored_bytes(slot: Slot) -> int:
    """Return the bytes of a slot in memory, where the elements along a broadcast axis are one."""
    return slot.type.dtype.itemsize * math.prod(n for n, stride in zip(slot.type.shape, slot.strides, strict=True) if stride or not n)


def read_bytes(op: Op, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> list[int]:
    """Return the bytes that an operation reads of each input."""
    sizes = [type.nbytes for type in inputs]
    if isinstance(op, LookUp):
        sizes[0] = min(sizes[0], outputs[0].size * inputs[0].dtype.itemsize)
    elif isinstance(op, RowUpdate) and op.lazy:
        rows = inputs[op.count]
        sizes[: op.count] = [min(type.nbytes, rows.size * type.dtype.itemsize) for type in inputs[: op.count]]
    elif isinstance(op, Region):
        results = op.types(*inputs)
        tables = {member.reads[0]: result[0].size for member, result in zip(op.members, results, strict=True) if isinstance(member.op, LookUp)}
        whole = {read for member in op.members for n, read in enumerate(member.reads) if n or not isinstance(member.op, LookUp)}
        for read, size in tables.items():
            if isinstance(read, int) and read not in whole:
                sizes[read] = min(sizes[read], size * inputs[read].dtype.itemsize)
    return sizes


def operations_of(op: Op, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> float:
    """Return the multiplications and additions of a product, a convolution or attention; 0 for other operations."""
    if isinstance(op, ConvOp):
        filters, result = {Conv: (inputs[1], outputs[0]), ConvGradInput: (inputs[1], inputs[0]), ConvGradWeight: (outputs[0], inputs[1])}[type(op)]
        return 2.0 * result.size * filters.size / max(filters.shape[0], 1)
    if isinstance(op, EpilogueProduct):
        op, inputs = op.product, inputs[:2]
    if isinstance(op, AttentionBase):
        return op.flops(*inputs) * visible(op, *op.scores_shape(*inputs[:2])[-2:])
    if not isinstance(op, PRODUCTS):
        return 0.0
    factor = inputs[0]
    columns = factor.shape[-2 if isinstance(op, Product) and op.transpose_a else -1]
    summed = factor.size // max(columns, 1) if isinstance(op, RowsMatMul) else columns
    return 2.0 * outputs[0].size * summed


def visible(op: AttentionBase, queries: int, keys: int) -> float:
    """Return the share of the scores that the diagonal does not hide; a finite score beyond the diagonal hides no key."""
    if op.diagonal is None or op.fill != -math.inf or not queries * keys:
        return 1.0
    return sum(min(max(query + op.diagonal + 1, 0), keys) for query in range(queries)) / (queries * keys)
