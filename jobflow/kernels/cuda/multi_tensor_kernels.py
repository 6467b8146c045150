"""One launch for elementwise operations with one formula on several tensors.

The arguments of each member are one row of a table in device memory, which is sent to the GPU when the plan is bound.  A block finds its row by
bisection of the first blocks.  Members whose operands have another form, such as another memory order, are another launch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array
from jobflow.kernels.cuda import fused
from jobflow.kernels.cuda.compiled_text import compiler
from jobflow.kernels.cuda.element_text import ElementText
from jobflow.kernels.cuda.fused import PreparedKernel, launched, placeholders
from jobflow.kernels.cuda.kernel_form import THREADS
from jobflow.kernels.cuda.kernel_text import NAME, with_functions
from jobflow.kernels.cuda.launches import KernelLaunch
from jobflow.kernels.cuda.primitives import NATIVE
from jobflow.kernels.decompositions import lowered
from jobflow.kernels.loop_operands import expression_of, views_in_space
from jobflow.kernels.multi_tensor import MultiTensor
from jobflow.kernels.registry import PerTarget, bind, register
from jobflow.kernels.target import Target
from jobflow.ops.op import Binder, Call, Op


class TableText(ElementText):
    """A kernel of elements whose arguments are in the row of its block: first block, number of blocks, then the arguments of the kernel."""

    block, blocks = "block", "blocks"

    def _function(self) -> str:
        parameters = self._parameters()
        types = [re.sub(r"(__restrict__ )?\w+$", "", parameter) for parameter in parameters]
        arguments = [f"({type})row[{k + 2}]" for k, type in enumerate(types)]
        # the compiler cannot derive that addresses read from a table are in global memory
        spaces = [
            f"  __builtin_assume(__isGlobal({pointer}));" for pointer, access in zip(self.pointers, self.operands, strict=True) if not access.counted
        ]
        body, words = "\n".join([*spaces, *self.lines]), len(parameters) + 2
        return f"""static __device__ void member(
    const unsigned int block, const unsigned int blocks, {", ".join(parameters)}) {{
{body}
}}

extern "C" __global__ void __launch_bounds__({THREADS}) {self.name}(
    const long long *__restrict__ table, int members) {{
  int first = 0, last = members - 1;
  while (first < last) {{
    const int middle = (first + last + 1) / 2;
    if (table[middle * {words}] <= (long long)blockIdx.x) first = middle; else last = middle - 1;
  }}
  const long long *__restrict__ row = table + first * {words};
  member(blockIdx.x - (unsigned int)row[0], (unsigned int)row[1], {", ".join(arguments)});
}}"""


def table_text(ready: PreparedKernel, name: str = NAME) -> str:
    """Print the kernel for members with the form of `ready`."""
    return with_functions(TableText(lowered(ready.outputs, NATIVE)[0], ready.form, name).text() + "\n")


@dataclass(frozen=True)
class TableLaunch:
    """A launch for members of one form: the text of the kernel, the table of arguments, and the number of blocks."""

    text: str
    table: Array
    blocks: int


def launches(ready: Sequence[PreparedKernel], most: int) -> list[TableLaunch]:
    """Return the launches of prepared kernels, one per form; each has about `most` blocks at most, and at least one per member."""
    by_text: dict[str, list[PreparedKernel]] = {}
    for each in ready:
        by_text.setdefault(table_text(each), []).append(each)
    result: list[TableLaunch] = []
    for text, members in by_text.items():
        shapes = [launched(each) for each in members]
        total = sum(blocks for blocks, *_ in shapes)
        blocks = [max(1, count * most // total) if total > most else count for count, *_ in shapes]
        starts = accumulate(blocks, initial=0)
        rows = [[start, count, *map(int, arguments)] for start, count, (*_, arguments) in zip(starts, blocks, shapes, strict=False)]
        result.append(TableLaunch(text, np.array(rows, np.int64), sum(blocks)))
    return result


@dataclass(frozen=True)
class TableKernels(PerTarget):
    """An implementation of multi-tensor operations by one launch for each form of operands."""

    name: str = "table of tensors"
    exact: bool = False

    def on(self, target: Target) -> TableKernels:
        return TableKernels(exact=target.tier == "exact")

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        assert isinstance(op, MultiTensor)
        for member, read, written in op.operands(placeholders(inputs), placeholders(outputs)):
            expressions, views = expression_of(member.op, read), views_in_space(member.op, read, written)
            if expressions is None or views is None:
                return f"{member.op.word()} has no expression for these operands"
            why = fused.refuses(expressions, *views)
            if why is not None:
                return why
        return None

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        assert isinstance(op, MultiTensor)
        ready: list[PreparedKernel] = []
        for member, read, written in op.operands(placeholders(inputs), placeholders(outputs)):
            expressions, views = expression_of(member.op, read), views_in_space(member.op, read, written)
            assert expressions is not None and views is not None
            ready += fused.prepared(expressions, *views, allocate=device.scratch)
        here, calls = compiler(int(outputs[0].device.id)), list[Call]()
        constants: Any = device
        for each in launches(ready, here.blocks):
            function = here.module(each.text, self.exact).function(NAME)
            table = constants.constant(each.table)
            calls.append((KernelLaunch(function, (*inputs, *outputs, table)), ((each.blocks,), (THREADS,), (table, np.int32(len(each.table))))))
        return calls


@dataclass(frozen=True)
class MembersAlone(PerTarget):
    """An implementation by one call for each member, for operands that no common launch accepts."""

    target: Target
    name: str = "one call per tensor"

    def on(self, target: Target) -> MembersAlone:
        return MembersAlone(target)

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        return None

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        assert isinstance(op, MultiTensor)
        return [call for member, read, written in op.operands(inputs, outputs) for call in bind(member.op, self.target, device, read, written)]


register(MultiTensor, "cuda", "nvrtc", TableKernels())
register(MultiTensor, "cuda", "nvrtc", MembersAlone(Target("cuda", "nvrtc")), rank=-1)
