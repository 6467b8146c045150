"""Expressions as the text of CUDA kernels.

    extern "C" __global__ void fused(pointers of inputs and outputs, sizes of the axes, strides in elements)

Without rows, each thread computes elements in a grid-stride loop.  With rows, LANES threads share a row.  Each thread reads every LANES-th element,
once per level of `row_sum`, `row_product` and `row_max`, and once more for the outputs.  A tree reduction combines the partial results of a row, in
an order that depends only on the width of the row.

Sums of columns are computed in blocks of 64 rows.  The threads of a row iterate over the 64 rows and store the sums of the block in scratch memory.
A second kernel adds the sums in the order of the blocks.  There are no atomic additions, so equal inputs give equal bits for any number of threads.

                 threads ->
    rows |  0 1 2 ... 15 0 1 2 ... 15 0 1 ..    LANES = 16: a thread reads every sixteenth element of its row
         v  0 1 2 ... 15 0 1 2 ... 15 0 1 ..    the next row belongs to the next sixteen threads of a block of 256
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from jobflow.core.dataclass import dataclass
from jobflow.expressions.language import Expression, in_order
from jobflow.expressions.on_arrays import BLOCK, LANES
from jobflow.kernels.cuda.primitives import FUNCTIONS, PRINTED, from_memory, literal, stored_type, to_memory, value_type
from jobflow.kernels.loop_space import NON_CONTIGUOUS, LoopForm, OperandAccess
from jobflow.kernels.row_phases import Phase, combined, of_columns, phases, position, start

#: threads of a block
THREADS = 256
#: name of the kernel; the kernel that adds up columns is fused_columns
NAME = "fused"


@dataclass(frozen=True)
class KernelForm:
    """The properties of operands on which the text of a kernel depends."""

    loop: LoopForm
    #: threads that share a row; 0 without rows
    lanes: int
    #: True if sizes and strides need 64 bits
    wide: bool = False

    @property
    def index(self) -> str:
        return "long long" if self.wide else "int"


def lanes_of(width: int, columns: bool) -> int:
    """Return the number of threads that share a row.

    Short rows use the sixteen partial sums of the reference, longer rows a warp, and the longest rows a block.  If `columns` are summed, no row uses
    a warp.  The number of threads does not depend on the number of rows, so that the sum of a row does not depend on it.
    """
    if width <= 32 * LANES:
        return LANES
    return 32 if width <= 64 * 32 and not columns else THREADS


REDUCED = """template <typename T, int LANES, typename Together> static __device__ T reduced(T mine, Together together) {
  if (LANES > 32) {
    static __shared__ T parts[LANES];
    parts[threadIdx.x] = mine;
    __syncthreads();
    for (int half = LANES / 2; half >= 32; half /= 2) {
      if (threadIdx.x < half) parts[threadIdx.x] = together(parts[threadIdx.x], parts[threadIdx.x + half]);
      __syncthreads();
    }
    mine = parts[threadIdx.x % 32];
    __syncthreads();
  }
  for (int half = LANES > 32 ? 16 : LANES / 2; half > 0; half /= 2)
    mine = together(mine, T(__shfl_xor_sync(0xffffffff, mine, half)));
  return mine;
}"""
SUM = """struct Sum {
  template <typename T> __device__ T operator()(T a, T b) const { return a + b; }
};"""
PRODUCT = """struct Product {
  template <typename T> __device__ T operator()(T a, T b) const { return a * b; }
};"""
LARGEST = """struct Largest {
  template <typename T> __device__ T operator()(T a, T b) const { return larger<T>(a, b); }
};"""


_TOGETHER = {"row_sum": "Sum", "row_product": "Product", "row_max": "Largest"}


def print_kernel(outputs: Sequence[Expression], form: KernelForm, name: str = NAME) -> str:
    """Print the text of the kernel for lowered outputs and, if columns are summed, of the kernel that adds up the sums of blocks."""
    kernel = _Kernel(outputs, form, name)
    body = "\n\n".join(kernel.texts()) + "\n"
    return "\n\n".join([*functions_for(body), body])


def functions_for(body: str) -> list[str]:
    """Return the device functions that `body` calls, each after the functions that it calls itself."""
    parts = {"reduced": REDUCED, "Sum": SUM, "Product": PRODUCT, "Largest": LARGEST}
    result: dict[str, str] = {}

    def collect(text: str) -> None:
        for function in (*FUNCTIONS, *parts):
            if function not in result and re.search(rf"\b{function}\b[<({{]", text):
                source = FUNCTIONS.get(function) or parts[function]
                result[function] = ""  # reserves the name while its callees are collected first
                collect(source.partition("\n")[2])
                del result[function]
                result[function] = source

    collect(body)
    return list(result.values())


class _Kernel:
    def __init__(self, outputs: Sequence[Expression], form: KernelForm, name: str) -> None:
        self.outputs, self.form, self.name = outputs, form, name
        order = in_order(outputs)
        per_column = of_columns(order)
        self.operands = [*form.loop.inputs, *form.loop.outputs]
        self.pointers = [f"x{k}" for k in range(len(form.loop.inputs))] + [f"y{k}" for k in range(len(outputs))]
        #: outputs with a value per element, per column, and per row
        self.stores = [k for k, a in enumerate(form.loop.outputs) if a.inner != "splat" and outputs[k] not in per_column]
        self.column_stores = [k for k, x in enumerate(outputs) if x in per_column]
        self.row_stores = [k for k in range(len(outputs)) if k not in (*self.stores, *self.column_stores)]

        def splat(x: Expression) -> bool:
            return form.loop.inputs[position(x)].inner == "splat" and form.lanes > 0

        # on a GPU, recomputing is cheaper than storing to scratch memory
        self.phases = phases(outputs, [outputs[k] for k in self.stores], splat, ())
        self.names: dict[Expression, str] = {}
        self.lines: list[str] = []
        self.depth = 1

    # -------------------------------------------------------------------------------------- the whole

    def texts(self) -> Iterator[str]:
        with_rows = self.form.lanes > 0
        self._once()
        if with_rows:
            self._rows()
        else:
            self._elements()
        yield self._function(self.name, [*range(len(self.operands))])
        if self.column_stores:
            self.names, self.lines = {}, []
            self._once()
            self._columns()
            first = len(self.form.loop.inputs)
            scalars = [k for k, a in enumerate(self.form.loop.inputs) if a.inner == "number"]
            yield self._function(f"{self.name}_columns", [*scalars, *(first + k for k in self.column_stores)])

    def _function(self, name: str, operands: Sequence[int]) -> str:
        index = self.form.index
        inputs = len(self.form.loop.inputs)
        words = [self._parameter(k, k < inputs) for k in operands]
        words += [f"{value_type(x.dtype)} *sums{n}" for n, x in enumerate(self.phases.columns)]
        words += [f"{index} columns", *(f"{index} n{axis}" for axis in range(self.form.loop.outer))]
        for k in operands:
            kind = "long long" if self.operands[k].counted else index
            words += [f"{kind} {self.pointers[k]}_{axis}" for axis in self._axes(self.operands[k])]
        return "\n".join([f'extern "C" __global__ void __launch_bounds__({THREADS}) {name}(', f"    {', '.join(words)}) {{", *self.lines, "}"])

    def _parameter(self, k: int, read: bool) -> str:
        access, pointer = self.operands[k], self.pointers[k]
        return f"long long {pointer}" if access.counted else f"{'const ' if read else ''}{stored_type(access.dtype)} *{pointer}"

    def _axes(self, access: OperandAccess) -> list[str]:
        """Return the axes whose strides are parameters of the kernel."""
        if access.inner == "number":
            return []
        return [*map(str, range(self.form.loop.outer)), *(["k"] if access.inner in NON_CONTIGUOUS else []), *(["t"] if access.table else [])]

    def _line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def _open(self, text: str) -> None:
        self._line(f"{text} {{")
        self.depth += 1

    def _close(self) -> None:
        self.depth -= 1
        self._line("}")

    def _once(self) -> None:
        for x in self.phases.once:
            if x.primitive == "number":
                self._name(x, from_memory(f"*x{position(x)}", x.dtype))
            else:
                self._value(x)

    # -------------------------------------------------------------------------------------- threads

    def _elements(self) -> None:
        index, outer = self.form.index, self.form.loop.outer
        sizes = ["columns", *(f"n{axis}" for axis in range(outer))]
        self._line(f"const {index} count = {' * '.join(sizes)};")
        thread, threads = f"({index})blockIdx.x * {THREADS} + threadIdx.x", f"({index})gridDim.x * {THREADS}"
        self._open(f"for ({index} i = {thread}; i < count; i += {threads})")
        self._line(f"const {index} k = {'i % columns' if outer else 'i'};")
        self._row_index("i / columns")
        (phase,) = self.phases.passes
        self._pass(phase, self.stores)
        self._close()

    def _row_index(self, row: str) -> None:
        """Print the indices of a row along the outer axes."""
        outer = self.form.loop.outer
        if outer:
            self._line(f"{self.form.index} rest = {row};")
        for axis in reversed(range(1, outer)):
            self._line(f"const {self.form.index} i{axis} = rest % n{axis};")
            self._line(f"rest /= n{axis};")
        if outer:
            self._line(f"const {self.form.index} i0 = rest;")

    def _rows(self) -> None:
        index, lanes = self.form.index, self.form.lanes
        groups = THREADS // lanes
        sizes = [f"n{axis}" for axis in range(self.form.loop.outer)] or ["1"]
        self._line(f"const {index} rows = {' * '.join(sizes)};")
        units = "rows"
        if self.phases.columns:
            self._line(f"const {index} blocks = (rows + {BLOCK - 1}) / {BLOCK};")
            units = "blocks"
        self._open(f"for ({index} first = ({index})blockIdx.x * {groups}; first < {units}; first += ({index})gridDim.x * {groups})")
        if self.phases.columns:
            self._line(f"const {index} block = first + threadIdx.y;")
            self._clear()
            self._open(f"for (int step = 0; step < {BLOCK}; ++step)")
            self._line(f"const {index} at = block * {BLOCK} + step;")
        else:
            self._line(f"const {index} at = first + threadIdx.y;")
        # threads without a row continue too, because a warp exchanges partial results
        self._line("const bool there = at < rows;")
        self._line(f"const {index} width = there ? columns : 0;")
        self._row_index("there ? at : 0")
        for number, phase in enumerate(self.phases.passes):
            self._row_pass(phase, self.stores if number == len(self.phases.passes) - 1 else [])
        for k in self.row_stores:
            self._line(f"if (there && threadIdx.x == 0) {self._element(k + len(self.form.loop.inputs), '')} = {self._out(k)};")
        if self.phases.columns:
            self._close()
        self._close()

    def _row_pass(self, phase: Phase, stores: Sequence[int]) -> None:
        for x in phase.row:
            if x.primitive in ("element", "looked_up"):
                self._name(x, self._read(x, ""))
            else:
                self._value(x)
        if not (stores or phase.reductions or phase.columns):
            return
        results = {x: f"r{len(self.names)}_{n}" for n, x in enumerate(phase.reductions)}
        for x, name in results.items():
            self._line(f"{value_type(x.dtype)} {name} = {literal(start(x), x.dtype)};")
        self._open(f"for ({self.form.index} k = threadIdx.x; k < width; k += {self.form.lanes})")
        outside = dict(self.names)
        self._pass(phase, stores)
        for x, name in results.items():
            both = combined(x)
            self._line(f"{name} = {PRINTED[both.primitive](both, [name, self._text(x.arguments[0])])};")
        self._close()
        self.names = outside
        for x, name in results.items():
            self._name(x, f"reduced<{value_type(x.dtype)}, {self.form.lanes}>({name}, {_TOGETHER[x.primitive]}{{}})")

    def _pass(self, phase: Phase, stores: Sequence[int]) -> None:
        """Print the computation of one element; all reads come before the writes, because outputs may share memory with inputs."""
        if self.form.lanes == 0:
            for x in phase.row:
                self._value(x)
        for x in phase.elements:
            if x.primitive in ("element", "looked_up"):
                self._name(x, self._read(x, "k"))
            else:
                self._value(x)
        for n, x in enumerate(self.phases.columns):
            if x in phase.columns:
                total = f"sums{n}[block * columns + k]"
                self._line(f"{total} = {total} + {self._text(x.arguments[0])};")
        for k in stores:
            self._line(f"{self._element(k + len(self.form.loop.inputs), 'k')} = {self._out(k)};")

    # -------------------------------------------------------------------------------------- sums of columns

    def _clear(self) -> None:
        """Print the zeroing of column sums; each thread clears the columns that it adds to."""
        self._open(f"if (block < blocks) for ({self.form.index} k = threadIdx.x; k < columns; k += {self.form.lanes})")
        for n, x in enumerate(self.phases.columns):
            self._line(f"sums{n}[block * columns + k] = {literal(-0.0, x.dtype)};")
        self._close()

    def _columns(self) -> None:
        index = self.form.index
        sizes = [f"n{axis}" for axis in range(self.form.loop.outer)] or ["1"]
        self._line(f"const {index} blocks = ({' * '.join(sizes)} + {BLOCK - 1}) / {BLOCK};")
        self._open(f"for ({index} k = ({index})blockIdx.x * {THREADS} + threadIdx.x; k < columns; k += ({index})gridDim.x * {THREADS})")
        for n, x in enumerate(self.phases.columns):
            self._line(f"{value_type(x.dtype)} total{n} = {literal(-0.0, x.dtype)};")
            self._line(f"{value_type(x.dtype)} lost{n} = {literal(-0.0, x.dtype)};")
            self._open(f"for ({index} block = 0; block < blocks; ++block)")
            self._line(f"const {value_type(x.dtype)} taken = sums{n}[block * columns + k] - lost{n}, after = total{n} + taken;")
            self._line(f"lost{n} = (after - total{n}) - taken;")
            self._line(f"if (lost{n} != lost{n}) lost{n} = {literal(0.0, x.dtype)};")
            self._line(f"total{n} = after;")
            self._close()
            self.names[x] = f"total{n}"
        for x in self.phases.per_column:
            if x not in self.names:
                self._value(x)
        for k in self.column_stores:
            operand = k + len(self.form.loop.inputs)
            offset = self._offset(operand, "k", [])
            self._line(f"{self.pointers[operand]}[{offset}] = {self._out(k)};")
        self._close()

    # -------------------------------------------------------------------------------------- values

    def _offset(self, operand: int, along: str, outer: Sequence[int]) -> str:
        pointer, access = self.pointers[operand], self.operands[operand]
        terms = [f"i{axis} * {pointer}_{axis}" for axis in outer]
        if along and access.inner != "splat":
            terms.append(f"{along} * {pointer}_k" if access.inner in NON_CONTIGUOUS else along)
        return " + ".join(terms) or "0"

    def _read(self, x: Expression, along: str) -> str:
        """Return the text of an element of an input or table, or of the address that is the value of an index operand."""
        operand = position(x)
        if x.primitive == "looked_up":
            offset = self._offset(operand, along, range(self.form.loop.outer))
            pointer = self.pointers[operand]
            return from_memory(f"{pointer}[{offset} + {self._text(x.arguments[0])} * {pointer}_t]", x.dtype)
        if self.operands[operand].counted:
            offset = re.sub(r"\b(i\d+|k) \*", r"(long long)\1 *", self._offset(operand, along, range(self.form.loop.outer)))
            return f"{self.pointers[operand]} + {offset}"
        return from_memory(self._element(operand, along), x.dtype)

    def _element(self, operand: int, along: str) -> str:
        """Return the text of an operand's element at index `along` of the row, or of its value for the whole row."""
        return f"{self.pointers[operand]}[{self._offset(operand, along, range(self.form.loop.outer))}]"

    def _out(self, k: int) -> str:
        return to_memory(self._text(self.outputs[k]), self.outputs[k].dtype)

    def _text(self, x: Expression) -> str:
        return literal(x.attribute, x.dtype) if x.primitive == "constant" else self.names[x]  # type: ignore[arg-type]

    def _value(self, x: Expression) -> None:
        if x.primitive == "constant":
            return
        if x.primitive == "columns":
            self._name(x, "(double)columns")
        else:
            self._name(x, PRINTED[x.primitive](x, [self._text(y) for y in x.arguments]))

    def _name(self, x: Expression, text: str) -> None:
        self.names[x] = name = f"v{len(self.names)}"
        self._line(f"const {value_type(x.dtype)} {name} = {text};")
