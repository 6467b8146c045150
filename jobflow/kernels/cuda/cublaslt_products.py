"""Matrix products and their epilogues by cublasLt, written directly to their outputs.

Row-major y = a b is computed as y' = b' a', because cublasLt is column-major, and its epilogues support no other order of D.  Its operand A is
therefore our b, and its sums of A are the sums of our factor b.  A batch with several strides is one call for each matrix of all axes but one.

If cublasLt has no algorithm for an epilogue, the call computes the product, and a compiled kernel computes the rest.  The same happens if sums of a
factor are faster in a kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import PlanError
from jobflow.core.types import Array, dtype_of, type_of
from jobflow.kernels.cuda import cublaslt_library
from jobflow.kernels.cuda.cublas_products import CublasProduct, Matrices, batch_axes, matrices, operands, transposition
from jobflow.kernels.cuda.cublaslt_calls import GpuProducts, Pointers, Problem, ProductCall, alignment, on_gpu
from jobflow.kernels.cuda.epilogue_product import PRODUCTS, EpilogueProduct
from jobflow.kernels.registry import PerTarget, bind, register
from jobflow.kernels.target import Target
from jobflow.ops.matmul import BroadcastMatMul
from jobflow.ops.op import Binder, Call, Op

#: element types of the factors -> of the result
TYPES = {"float32": ("float32",), "float64": ("float64",), "float16": ("float16", "float32"), "bfloat16": ("bfloat16", "float32")}
#: from this version on, an operand that spans `LARGEST` elements makes some algorithms fail
FAILS_ON_LARGE, LARGEST = 130600, 1 << 31
#: largest number of calls of a batch
MOST_CALLS = 256
#: the leading dimension of an epilogue's matrix is a multiple of this number of elements, and its address of this number of bytes
AUX_ELEMENTS, AUX_BYTES = 8, 16
#: our factor -> the operand of cublasLt
OPERAND = {"a": "b", "b": "a"}


@dataclass(frozen=True)
class CublasLtProduct(PerTarget):
    """An implementation of matrix products by cublasLt."""

    target: Target = Target("cuda", "nvrtc")
    name: str = "cublaslt"

    def on(self, target: Target) -> CublasLtProduct:
        return CublasLtProduct(target)

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        return refuses(op, inputs, outputs[0])

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        gpu = on_gpu(int(outputs[0].device.id))
        calls = bound(gpu, self.target, EpilogueProduct(op), inputs, outputs)
        return CublasProduct().bind(op, device, inputs, outputs) if calls is None else calls


@dataclass(frozen=True)
class CublasLtEpilogue(PerTarget):
    """An implementation of products with an epilogue by cublasLt: one call, or a product and compiled kernels."""

    target: Target = Target("cuda", "nvrtc")
    name: str = "cublaslt"

    def on(self, target: Target) -> CublasLtEpilogue:
        return CublasLtEpilogue(target)

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        assert isinstance(op, EpilogueProduct)
        return refuses(op.product, inputs[:2], outputs[0])

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        assert isinstance(op, EpilogueProduct)
        gpu = on_gpu(int(outputs[0].device.id))
        calls = bound(gpu, self.target, op, inputs, outputs)
        if calls is None and op == EpilogueProduct(op.product, op.result):
            listed = ", ".join(str(type_of(x)) for x in (*inputs, *outputs))
            raise PlanError(f"{op}: cublasLt {gpu.library.version_text} has no algorithm for {listed}; set flow.config.kernels('numpy')")
        if calls is None or (op.sums in OPERAND and self.target.products.timed and self._separate_is_faster(op, gpu, device, inputs, outputs)):
            return self._separate(op, device, inputs, outputs)
        return calls

    def _separate(self, op: EpilogueProduct, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        """Return the product in the type of the arithmetic, and the kernels of the epilogue."""
        a, b, *added = inputs
        y, *others = outputs
        result = dtype_of(y.dtype)
        if replace(op, sums="") == EpilogueProduct(op.product, op.result):
            calls = bind(replace(op, sums=""), self.target, device, [a, b], [y])
        else:
            value = device.scratch(tuple(y.shape), result.arithmetic)
            calls = bind(EpilogueProduct(op.product, result.arithmetic), self.target, device, [a, b], [value])
            calls += bind(op.after(result), self.target, device, [value, *added], [y, *others[: op.keeps]])
        if op.sums:
            matrix = y if op.sums == "y" else (a, b)[op.sums == "b"]
            total = op.total(dtype_of(matrix.dtype), type_of(matrix), result)
            calls += bind(total, self.target, device, [matrix], others[-1:])
        return calls

    def _separate_is_faster(self, op: EpilogueProduct, gpu: GpuProducts, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
        """Return True if a kernel sums a factor faster than cublasLt.  Timed calls write to temporary memory."""
        key = f"{op} {[(str(type_of(x)), x.strides) for x in (*inputs, *outputs)]}"

        def alternatives() -> Iterator[list[Call]]:
            temporary = [device.scratch(tuple(x.shape), dtype_of(x.dtype)) for x in outputs]
            together = bound(gpu, self.target, op, inputs, temporary)
            yield self._separate(op, device, inputs, temporary) if together is None else together
            yield self._separate(op, device, inputs, temporary)

        return gpu.fastest_calls(key, self.target.products, alternatives) == 1


def refuses(op: Op, inputs: Sequence[Array], y: Array) -> str | None:
    """Return the reason cublasLt cannot compute y = a b, or None if it can."""
    search = cublaslt_library.find()
    if search.library is None:
        return search.reason
    factors, result = {dtype_of(x.dtype).name for x in inputs}, dtype_of(y.dtype).name
    if len(factors) > 1 or result not in TYPES.get(next(iter(factors)), ()):
        return f"cublasLt has no products of {' and '.join(sorted(factors))} with a result of {result}"
    if any(0 in x.shape for x in (*inputs, y)):
        return "an operand has no elements"
    layouts = operands(op, inputs, [y])
    if layouts is None or any(x.leading is None and x.transposed.leading is None for x in layouts) or layouts[2].leading is None:
        return "neither the rows nor the columns of an operand are contiguous"
    if any(step < 0 for x in layouts for step in x.batch_strides):
        return "a batch is in reverse order"
    if search.library.version >= FAILS_ON_LARGE and any(x.span >= LARGEST for x in layouts):
        return f"cublasLt {search.library.version_text} fails for operands that span {LARGEST} elements"
    axes = batch_axes(layouts)
    calls = 1
    for count in sorted(count for count, _ in axes)[:-1]:
        calls *= count
    return f"a batch with several strides needs {calls} calls" if calls > MOST_CALLS else None


def bound(gpu: GpuProducts, target: Target, op: EpilogueProduct, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call] | None:
    """Return the calls of cublasLt for a product with an epilogue; None if cublasLt has no epilogue or no algorithm for it."""
    named = op.operands(inputs)
    named |= dict(zip(("y", *(("kept",) * op.keeps), *(("sums",) * bool(op.sums))), outputs, strict=True))
    name = epilogue_name(op)
    prepared = None if name is None else _problem(op.product, name, named)
    if prepared is None:
        return None
    problem, pointers = prepared
    choice = gpu.choice(problem, target.products, pointers[0])
    if choice is None:
        return None
    return [(ProductCall(gpu, problem, target.products, each, choice, (*inputs, *outputs)), ()) for each in pointers]


def epilogue_name(op: EpilogueProduct) -> str | None:
    """Return the key of `EPILOGUES` for an operation, "" for a plain product, or None if cublasLt has no such epilogue."""
    match op.gelu, op.keeps, op.sums:
        case "forward", keeps, "":
            return f"gelu{' aux' if keeps else ''}{' bias' if op.bias else ''}"
        case "gradient", False, "" | "y" if not op.bias:
            return "dgelu sums" if op.sums else "dgelu"
        case "", False, "":
            return "bias" if op.bias else ""
        case "", False, "a" | "b" if not (op.bias or op.addend):
            return f"sums {OPERAND[op.sums]}"
    return None


def _problem(op: Op, name: str, named: Mapping[str, Array]) -> tuple[Problem, list[Pointers]] | None:
    """Return the problem, and the addresses of each call; None if cublasLt cannot read an operand of the epilogue.

    `layouts` and `arrays` are in the order of cublasLt: A, B, C, D.
    """
    readable = _matrices(op, named)
    if readable is None:
        return None
    layouts, arrays, swapped = readable
    axes = batch_axes(layouts)
    extra = _epilogue_operands(named, isinstance(op, BroadcastMatMul), whole=not swapped and not axes)
    if extra is None:
        return None
    vector, matrix, aux_leading = extra
    a, b, c, d = layouts
    (transposed_a, leading_a), (transposed_b, leading_b) = transposition(a), transposition(b)
    assert c.leading is not None and d.leading is not None
    batch = max(axes, default=(1, (0, 0, 0, 0)))
    sizes = [x.itemsize for x in arrays]
    addresses = [int(x.data.ptr) for x in arrays]
    offsets = list(_offsets(axes, batch, sizes))
    aligned = [alignment(x, *(each[k] for each in offsets), batch[1][k] * sizes[k]) for k, x in enumerate(addresses)]
    adds = "addend" in named
    problem = Problem(
        *(d.columns, d.rows, b.columns),
        transposed=(bool(transposed_a), bool(transposed_b)),
        leading=(leading_a, leading_b, c.leading, d.leading),
        count=batch[0],
        steps=(batch[1][0], batch[1][1], batch[1][2], batch[1][3]),
        operands=dtype_of(arrays[0].dtype).name,
        result=dtype_of(arrays[3].dtype).name,
        epilogue=name,
        adds=adds,
        in_place=adds and addresses[2] == addresses[3],
        aux_leading=aux_leading,
        alignments=(aligned[0], aligned[1], aligned[2], aligned[3]),
    )
    first, second, third, fourth = addresses
    return problem, [Pointers(first + x, second + y, third + z, fourth + w, vector, matrix) for x, y, z, w in offsets]


def _matrices(op: Op, named: Mapping[str, Array]) -> tuple[tuple[Matrices, Matrices, Matrices, Matrices], tuple[Array, ...], bool] | None:
    """Return the row-major matrices that cublasLt reads as A', B', C' and D', their arrays, and True if it computes the transpose of y.

    Return None if the strides of the addend do not fit those of y.
    """
    layouts = operands(op, [named["a"], named["b"]], [named["y"]])
    plain = matrices(named["y"], rows=isinstance(op, BroadcastMatMul))
    assert layouts is not None and plain is not None, "the strides have been checked"
    first, second, y = layouts
    swapped = plain.leading is None
    factors = (named["a"], named["b"]) if swapped else (named["b"], named["a"])
    if "addend" not in named:
        return (second, first, y, y), (*factors, named["y"], named["y"]), swapped
    added = matrices(named["addend"], rows=isinstance(op, BroadcastMatMul))
    added = added.transposed if added is not None and swapped else added
    if added is None or added.leading is None:
        return None
    return (second, first, added, y), (*factors, named["addend"], named["y"]), swapped


def _epilogue_operands(named: Mapping[str, Array], rows: bool, whole: bool) -> tuple[int, int, int] | None:
    """Return the addresses of the vector and the matrix of an epilogue, and the leading dimension of the matrix, 0 for those that are absent.

    Return None if cublasLt cannot read them: unless `whole`, because y is a batch or column-major, or because of their strides.
    """
    vector, matrix = named.get("bias", named.get("sums")), named.get("before", named.get("kept"))
    if vector is None and matrix is None:
        return 0, 0, 0
    dense = vector is None or vector.size == 1 or vector.strides == (vector.itemsize,)
    if not whole or not dense:
        return None
    address = 0 if vector is None else int(vector.data.ptr)
    if matrix is None:
        return address, 0, 0
    layout = matrices(matrix, rows=rows)
    if layout is None or layout.leading is None or layout.leading % AUX_ELEMENTS or matrix.data.ptr % AUX_BYTES:
        return None
    return address, int(matrix.data.ptr), layout.leading


def _offsets(axes: Sequence[tuple[int, tuple[int, ...]]], batch: tuple[int, tuple[int, ...]], sizes: Sequence[int]) -> Iterator[list[int]]:
    """Yield the byte offset of each operand, for each call: for every position along the axes other than the axis `batch` of the calls."""
    others = [axis for axis in axes if axis is not batch]
    for position in product(*(range(count) for count, _ in others)):
        yield [sum(i * steps[k] * size for i, (_, steps) in zip(position, others, strict=True)) for k, size in enumerate(sizes)]


for _op in PRODUCTS:
    register(_op, "cuda", "nvrtc", CublasLtProduct(), rank=1)
register(EpilogueProduct, "cuda", "nvrtc", CublasLtEpilogue())
