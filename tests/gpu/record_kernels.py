"""Recorder of the kernels that compute each operation on a GPU, in data/op_kernels.txt.

    python tests/gpu/record_kernels.py            print the counts; the exit code is 1 if the record differs
    python tests/gpu/record_kernels.py --write    write the record

Neither a GPU nor CuPy is needed: implementations choose by types, shapes and strides.  A line is an operation and the implementations of its samples
in float32 and bfloat16.  CuPy's array functions compute the operations of the last lines, and some samples of others, for the stated reason.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TARGET = HERE / "data" / "op_kernels.txt"
if __name__ == "__main__":
    sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent / "ops"), str(HERE)]

from on_device import OPS, cases  # noqa: E402

from jobflow.core.types import TensorType, bfloat16, contiguous_strides, float32, type_of  # noqa: E402
from jobflow.kernels import registry  # noqa: E402
from jobflow.kernels.cuda.assertion_kernels import assertion_text  # noqa: E402
from jobflow.kernels.target import target_of  # noqa: E402
from jobflow.ops.op import Op, types_tuple  # noqa: E402
from jobflow.ops.runtime_assertions import RuntimeAssertion  # noqa: E402

#: implementations by array functions
ARRAY_FUNCTIONS = ("kernel",)
SOLVER = "cuSOLVER factorizes matrices"
_UNKNOWN_SIZE = "the size of its result depends on the elements"
#: operations without a printed kernel -> the reason
REASONS = {
    **dict.fromkeys(
        ("Det", "Cofactor", "SlogDet", "MatrixExp", "Inverse", "Solve", "PseudoInverse", "Cholesky", "QR", "SVD", "Eigh", "Lu", "PivotMatrix"),
        SOLVER,
    ),
    **dict.fromkeys(("UniqueWithCounts", "Argwhere", "OrdinalCodes"), _UNKNOWN_SIZE),
    "UserGradient": "no plan contains it",
}


def chosen(cls: type[Op]) -> Iterator[tuple[str, str]]:
    """Yield the implementation of each sample of an operation on dense arrays with elements, and why the best one refused it."""
    target = target_of("gpu")
    for case, arrays in cases(cls):
        dtypes = {type_of(a).dtype for a in arrays if type_of(a).dtype.is_float} or {float32}
        types = types_tuple(case.op.infer(*map(type_of, arrays)))
        if isinstance(case.op, RuntimeAssertion):  # a run binds its launches without the registry
            text = assertion_text(case.op, type_of(arrays[0]).dtype, types[0].dtype)
            yield (ARRAY_FUNCTIONS[0], "") if text is None else ("assertion", "")
        elif dtypes <= {float32, bfloat16} and all(type.size for type in types):
            inputs = [placeholder(type_of(a), k) for k, a in enumerate(arrays)]
            outputs = [inputs[case.op.alias[k]] if k in case.op.alias else placeholder(type, 99 + k) for k, type in enumerate(types)]
            choice = registry.choose(case.op, target, inputs, outputs)
            yield choice.implementation.name, choice.refused[0][1] if choice.refused else ""


def placeholder(type: TensorType, number: int) -> Any:
    return registry.at(type, contiguous_strides(type.shape, type.dtype.itemsize), (number + 1) << 40)


@cache
def table() -> dict[str, tuple[str, str]]:
    """Return the implementations of each operation of the package, and why array functions compute some or all of its samples."""
    rows = {}
    for name, cls in OPS.items():
        if cls.__module__.startswith("jobflow.ops."):
            choices = list(chosen(cls))
            names = sorted({one for one, _ in choices} - set(ARRAY_FUNCTIONS))
            reasons = sorted({why for one, why in choices if one in ARRAY_FUNCTIONS and why})
            rows[name] = ", ".join(names), "; ".join(reasons) if names else REASONS.get(name.partition(".")[2], "no reason")
    return rows


def recorded() -> list[str]:
    """Return the lines of the record."""
    rows = table()
    count = sum(bool(names) for names, _ in rows.values())
    lines = [f"# {count} of {len(rows)} operations have a printed kernel or a call of cuBLAS; made by record_kernels.py"]
    lines += [f"{name}: {names}" + (f"; array functions: {why}" if why else "") for name, (names, why) in rows.items() if names]
    lines += [f"{name}: array functions: {why}" for name, (names, why) in rows.items() if not names]
    return lines


def main() -> int:
    lines = recorded()
    print(lines[0].removeprefix("# "))
    if "--write" in sys.argv[1:]:
        TARGET.write_text("\n".join(lines) + "\n")
        return 0
    before = TARGET.read_text().splitlines() if TARGET.exists() else []
    for line in (*(f"- {x}" for x in before if x not in lines), *(f"+ {x}" for x in lines if x not in before)):
        print(line)
    return int(before != lines)


if __name__ == "__main__":
    sys.exit(main())
