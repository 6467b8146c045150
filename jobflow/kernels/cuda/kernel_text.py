"""Expressions as the text of CUDA kernels.

    extern "C" __global__ void fused(pointers of inputs and outputs, sizes of the axes, multipliers of divisors, strides in elements)

`kernel_form` describes the kinds of kernels; `element_text`, `row_text` and `column_text` print them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from jobflow.expressions.language import Expression
from jobflow.kernels.cuda.column_text import ColumnText, TileText, TotalText
from jobflow.kernels.cuda.element_text import ElementText
from jobflow.kernels.cuda.kernel_form import THREADS as THREADS
from jobflow.kernels.cuda.kernel_form import KernelForm, Kind
from jobflow.kernels.cuda.primitives import FUNCTIONS
from jobflow.kernels.cuda.row_text import ROW_FUNCTIONS, RowText, WalkText
from jobflow.kernels.cuda.text_parts import KernelText

#: name of a kernel
NAME = "fused"
_TEXTS: dict[Kind, type[KernelText]] = {"elements": ElementText, "rows": RowText, "tiles": ColumnText, "walks": WalkText, "totals": TotalText}


def print_kernel(outputs: Sequence[Expression], form: KernelForm, name: str = NAME, passed: Sequence[Expression] = ()) -> str:
    """Print the text of the kernel for lowered outputs, with the functions that it calls; the constants `passed` are its last parameters."""
    body = (TileText if form.down else _TEXTS[form.kind])(outputs, form, name, passed).text() + "\n"
    return with_functions(body)


def with_functions(body: str) -> str:
    """Return the text with the device functions that it calls before it, each after the functions that it calls itself."""
    result: dict[str, str] = {}

    def collect(text: str) -> None:
        for function in (*FUNCTIONS, *ROW_FUNCTIONS):
            if function not in result and re.search(rf"\b{function}\b[<({{]", text):
                source = FUNCTIONS.get(function) or ROW_FUNCTIONS[function]
                result[function] = ""  # reserves the name while its callees are collected first
                collect(source.partition("\n")[2])
                del result[function]
                result[function] = source

    collect(body)
    return "\n\n".join([*result.values(), body])
