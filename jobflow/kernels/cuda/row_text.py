"""Texts of kernels with reductions of rows.

LANES threads share a row.  Each thread reads every LANES-th element, or every LANES-th vector of eight elements.  It does so once per level of
`row_sum`, `row_product` and `row_max`, and once more for the outputs.  Vectors that several passes need stay in registers.  Long rows that are no
whole number of vectors end with single elements.  A tree reduction combines
the partial results of a row.  Its order depends only on the width of the row and on the layout of the operands.

                 threads ->
    rows |  0 1 2 ... 15 0 1 2 ... 15 0 1 ..    LANES = 16: a thread reads every sixteenth element of its row
         v  0 1 2 ... 15 0 1 2 ... 15 0 1 ..    the next row belongs to the next sixteen threads of a block of 256
"""

from __future__ import annotations

from collections.abc import Sequence

from jobflow.expressions.language import Expression
from jobflow.kernels.cuda.kernel_form import THREADS
from jobflow.kernels.cuda.primitives import PRINTED, literal, value_type
from jobflow.kernels.cuda.text_parts import KernelText
from jobflow.kernels.row_phases import Phase, combined, start

REDUCED = f"""template <typename T, int LANES, typename Together> static __device__ T reduced(T mine, Together together) {{
  for (int half = LANES > 32 ? 16 : LANES / 2; half > 0; half /= 2)
    mine = together(mine, T(__shfl_xor_sync(0xffffffff, mine, half)));
  if (LANES > 32) {{
    static __shared__ T parts[{THREADS // 32}];
    const int warp = (threadIdx.y * LANES + threadIdx.x) / 32, first = warp / (LANES / 32) * (LANES / 32);
    if (threadIdx.x % 32 == 0) parts[warp] = mine;
    __syncthreads();
    mine = parts[first];
    for (int k = 1; k < LANES / 32; ++k) mine = together(mine, parts[first + k]);
    __syncthreads();
  }}
  return mine;
}}"""
SUM = """struct Sum {
  template <typename T> __device__ T operator()(T a, T b) const { return a + b; }
};"""
PRODUCT = """struct Product {
  template <typename T> __device__ T operator()(T a, T b) const { return a * b; }
};"""
LARGEST = """struct Largest {
  template <typename T> __device__ T operator()(T a, T b) const { return larger<T>(a, b); }
};"""
#: functions that texts with rows call
ROW_FUNCTIONS = {"reduced": REDUCED, "Sum": SUM, "Product": PRODUCT, "Largest": LARGEST}
_TOGETHER = {"row_sum": "Sum", "row_product": "Product", "row_max": "Largest"}


class RowText(KernelText):
    """Rows, each of which LANES threads share."""

    _results: dict[Expression, str]

    def body(self) -> None:
        index, lanes = self.form.index, self.form.lanes
        groups = THREADS // lanes
        self._line(f"const {index} rows = {self._row_count()};")
        self._open(f"for ({index} first = ({index})blockIdx.x * {groups}; first < rows; first += ({index})gridDim.x * {groups})")
        self._line(f"const {index} at = first + threadIdx.y;")
        # threads without a row continue too, because a warp exchanges partial results
        self._line("const bool there = at < rows;")
        self._line(f"const {index} width = there ? columns : 0;")
        self._line(f"const {index} row = there ? at : 0;")
        self._row_index("row")
        self._keep()
        for number, phase in enumerate(self.phases.passes):
            self._row_pass(phase, self.stores if number == len(self.phases.passes) - 1 else [])
        for k in self.row_stores:
            self._line(f"if (there && threadIdx.x == 0) {self._element(k + self.first_output, '')} = {self._out(k)};")
        self._close()

    def _keep(self) -> None:
        """Print the loads of the vectors that stay in registers."""
        if not self.form.resident:
            return
        for k in self.form.resident:
            self._line(f"{self._vector(k)} c{k}[{self.form.chunks}];")
        self._chunks(True)
        for k in self.form.resident:
            self._line(f"c{k}[c] = loaded<{self.form.vector}>({self._address(k)});")
        self._close()
        self._close()

    def _chunks(self, resident: bool) -> None:
        """Open a loop over the vectors of a thread; with `resident` it is unrolled, so that arrays of vectors stay in registers."""
        index, lanes, vector = self.form.index, self.form.lanes, self.form.vector
        if resident:
            self._unrolled(f"for (int c = 0; c < {self.form.chunks}; ++c)")
            self._line(f"const {index} k = (threadIdx.x + c * {lanes}) * {vector};")
            self._open("if (k < width)")
        else:
            end = f"width - width % {vector}" if self.form.rest else "width"
            self._open(f"for ({index} k = threadIdx.x{'' if vector == 1 else f' * {vector}'}; k < {end}; k += {lanes * vector})")

    def _row_pass(self, phase: Phase, stores: Sequence[int]) -> None:
        self._row_values(phase)
        if not (stores or phase.reductions):
            return
        results = self._results = {x: f"r{len(self.names)}_{n}" for n, x in enumerate(phase.reductions)}
        for x, name in results.items():
            self._line(f"{value_type(x.dtype)} {name} = {literal(start(x), x.dtype)};")
        resident = bool(self.form.resident)
        self._chunks(resident)
        outside = dict(self.names)
        if self.form.vector == 1:
            self._single(phase, stores)
        else:
            self._chunk(phase, stores, "c")
        self._close()
        if resident:
            self._close()
        self.names = outside
        if self.form.rest:
            self.names = dict(outside)
            self._open(f"for ({self.form.index} k = width - width % {self.form.vector} + threadIdx.x; k < width; k += {self.form.lanes})")
            self._single(phase, stores)
            self._close()
            self.names = outside
        for x, name in results.items():
            self._name(x, f"reduced<{value_type(x.dtype)}, {self.form.lanes}>({name}, {_TOGETHER[x.primitive]}{{}})")

    def added(self, phase: Phase) -> None:
        for x, name in self._results.items():
            both = combined(x)
            self._line(f"{name} = {PRINTED[both.primitive](both, [name, self._text(x.arguments[0])])};")
