"""Text of Winograd's transforms, y = D x A' for each small image x of some channels and samples, with constant D and A.

    for each channel; for as many samples as a vector has lanes
        for each column of x:              its transform by D, to scratch memory in the first-level cache
        for each row of the result:        its transform by A, to y

Elements outside an image are read as zeros, and not written.  Rows of a matrix for points p and -p differ only in signs.  Their results are the sum
and the difference of shared products, which halves the multiplications.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from jobflow.core.dataclass import dataclass
from jobflow.kernels.llvm.instructions import literal
from jobflow.kernels.llvm.machine_code import NAME
from jobflow.kernels.llvm.vector_function import VectorFunction, Vectors

Rows: TypeAlias = tuple[tuple[float, ...], ...]
#: the offset of a row or column in bytes, and the condition that it is inside the image
Line: TypeAlias = tuple[str, str]
#: the words of the argument block: addresses of the first element, which may be outside the image; strides in bytes; rows and columns inside it
WORDS = (
    *("x", "y", "channels", "samples"),
    *(f"{operand}.{what}" for operand in "xy" for what in ("channel", "row", "column", "top", "bottom", "left", "right")),
)
#: fraction of a matrix's largest magnitude below which a value is zero with rounding errors; relative difference of equal values
NOTHING, EQUAL = 1e-12, 1e-9


@dataclass(frozen=True)
class TransformForm(Vectors):
    """The vectors and the constant matrices of a transform."""

    down: Rows
    along: Rows


def print_transform(form: TransformForm) -> str:
    """Print the module with `loop` for this pair of matrices."""
    at = VectorFunction(form, f"void @{NAME}(ptr %args)")
    width, height = len(form.along[0]), len(form.down)
    at.write(f"%scratch = alloca [{width * height} x {form.vector}], align {form.aligned}")
    at.write(f"%outside = alloca {form.vector}, align {form.aligned}")
    at.write(f"%zeros = alloca {form.vector}, align {form.aligned}")
    at.write(f"store {form.vector} zeroinitializer, ptr %zeros, align {form.aligned}")
    for index, name in enumerate(WORDS):
        at.write(f"%{name} = load {'ptr' if index < 2 else 'i64'}, ptr {at.at('%args', index * 8)}")
    rows = [(at.value(f"mul i64 %x.row, {k}"), _inside(at, k, "x.top", "x.bottom")) for k in range(len(form.down[0]))]
    columns = [(at.value(f"mul i64 %y.column, {k}"), _inside(at, k, "y.left", "y.right")) for k in range(len(form.along))]
    with (
        at.repeated("c", "%channels", 1, x=("%x", "%x.channel"), y=("%y", "%y.channel")),
        at.repeated("n", "%samples", form.lanes, x=("%c.x", form.aligned), y=("%c.y", form.aligned)),
    ):
        left = at.value("sub i64 %samples, %n")
        mask = at.first(left)
        at.write(f"br i1 {at.value(f'icmp sge i64 {left}, {form.lanes}')}, label %whole, label %rest")
        for name, chosen in (("whole", ""), ("rest", mask)):  # masked stores are slow on most processors
            at.label(name)
            _images(at, form, name, rows, columns, chosen)
            at.write("br label %made")
        at.label("made")
    at.write("ret void")
    return "\n".join([*at.text(), *sorted(at.declared), ""])


def _images(at: VectorFunction, form: TransformForm, name: str, rows: Sequence[Line], columns: Sequence[Line], mask: str) -> None:
    """Print the transform of one vector of samples: the loops over columns and rows, whose names start with `name`."""
    width, height, q, p = len(form.along[0]), len(form.down), f"{name}.q", f"{name}.p"
    with at.repeated(q, str(width), 1, x=("%n.x", "%x.column"), to=("%scratch", form.aligned)):
        exists = _inside(at, f"%{q}", "x.left", "x.right")
        vectors = [at.load(_address_or(at, f"%{q}.x", row, exists, "%zeros"), mask) for row in rows]
        for i, value in enumerate(_products(at, form, form.down, vectors)):
            at.store(value, at.at(f"%{q}.to", i * width * form.aligned))
    with at.repeated(p, str(height), 1, y=("%n.y", "%y.row"), of=("%scratch", width * form.aligned)):
        exists = _inside(at, f"%{p}", "y.top", "y.bottom")
        vectors = [at.load(at.at(f"%{p}.of", k * form.aligned)) for k in range(width)]
        for column, value in zip(columns, _products(at, form, form.along, vectors), strict=True):
            at.store(value, _address_or(at, f"%{p}.y", column, exists, "%outside"), mask)


def _inside(at: VectorFunction, k: int | str, low: str, high: str) -> str:
    """Return the condition %low <= k < %high, under which row or column k is inside the image."""
    return at.value(f"and i1 {at.value(f'icmp sge i64 {k}, %{low}')}, {at.value(f'icmp slt i64 {k}, %{high}')}")


def _address_or(at: VectorFunction, base: str, line: Line, exists: str, instead: str) -> str:
    distance, there = line
    return at.value(f"select i1 {at.value(f'and i1 {exists}, {there}')}, ptr {at.at(base, distance)}, ptr {instead}")


def _products(at: VectorFunction, form: TransformForm, matrix: Rows, vectors: Sequence[str]) -> list[str]:
    """Return, for each row i of the matrix, the sum over k of matrix[i][k] vectors[k]."""
    results: dict[int, str] = {}
    for i, other in _pairs(matrix):
        if other is None:
            results[i] = _sum(at, form, list(zip(matrix[i], vectors, strict=True)))
            continue
        terms = list(zip(matrix[i], matrix[other], vectors, strict=True))
        same, opposite = (_sum(at, form, [(a, x) for a, b, x in terms if (a == b) is equal]) for equal in (True, False))
        results[i], results[other] = (at.value(f"{how} {form.vector} {same}, {opposite}") for how in ("fadd", "fsub"))
    return [results[i] for i in range(len(matrix))]


def _pairs(matrix: Rows) -> Iterator[tuple[int, int | None]]:
    """Yield pairs of rows with the same magnitudes, in which some but not all signs differ; a row without a partner is paired with None."""
    left = list(range(len(matrix)))
    while left:
        row = matrix[i := left.pop(0)]
        differ = ((k, [a == b for a, b in zip(row, matrix[k], strict=True) if a or b]) for k in left if [*map(abs, matrix[k])] == [*map(abs, row)])
        other = next((k for k, equal in differ if any(equal) and not all(equal)), None)
        if other is not None:
            left.remove(other)
        yield i, other


def _sum(at: VectorFunction, form: TransformForm, terms: Sequence[tuple[float, str]]) -> str:
    total = ""
    for factor, x in terms:
        number = literal(factor, form.dtype, form.lanes)
        if factor:
            total = at.multiplied(number, x, total) if total else x if factor == 1 else at.value(f"fmul {form.vector} {number}, {x}")
    return total or "zeroinitializer"


def constants(matrix: Sequence[Sequence[float]]) -> Rows:
    """Return the matrix without rounding errors: tiny elements become 0, and nearly equal magnitudes become equal."""
    known = [0.0]
    least = NOTHING * max(abs(x) for row in matrix for x in row)

    def exact(x: float) -> float:
        size = next((y for y in known if abs(abs(x) - y) <= max(least, EQUAL * y)), abs(x))
        known.append(size)
        return size if x > 0 else -size if size else 0.0

    return tuple(tuple(exact(float(x)) for x in row) for row in matrix)
