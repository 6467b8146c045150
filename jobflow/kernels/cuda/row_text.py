"""Texts of kernels with reductions of rows.

LANES threads share a row.  Each thread reads every LANES-th element, or every LANES-th vector of eight elements.  It does so once per level of
`row_sum`, `row_product` and `row_max`, and once more for the outputs.  Vectors that several passes need stay in registers.  The rows of a block do
not, so `row_patterns` joins the passes for the maximum and the sum of exponentials.  Long rows that are no whole number of vectors end with single
elements.  A tree reduction combines the partial results of a row.  Its order depends only on the width of the row and on the layout of the operands.

                 threads ->
    rows |  0 1 2 ... 15 0 1 2 ... 15 0 1 ..    LANES = 16: a thread reads every sixteenth element of its row
         v  0 1 2 ... 15 0 1 2 ... 15 0 1 ..    the next row belongs to the next sixteen threads of a block of 256
"""

from __future__ import annotations

from collections.abc import Sequence

from jobflow.expressions.language import Expression
from jobflow.kernels.cuda.column_text import compensated
from jobflow.kernels.cuda.kernel_form import THREADS, KernelForm
from jobflow.kernels.cuda.primitives import PRINTED, literal, value_type
from jobflow.kernels.cuda.row_patterns import Lookup, OnlineSum, lookups, online_sum, restricted
from jobflow.kernels.cuda.text_parts import EACH, FIRST, KernelText
from jobflow.kernels.row_phases import Phase, combined, position, start

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
MAXIMUM = """template <typename T> static __device__ T maximum_of(T a, T b) {  // NaN if one is
  return larger<T>(a, b);
}
#if __CUDA_ARCH__ >= 800
template <> __device__ float maximum_of<float>(float a, float b) {  // one instruction
  float most;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
  return most;
}
#endif"""
#: functions that texts with rows call
ROW_FUNCTIONS = {"reduced": REDUCED, "Sum": SUM, "Product": PRODUCT, "Largest": LARGEST, "maximum_of": MAXIMUM}
#: bytes that a thread of a block loads at once in the joined pass
LOADED = 64
_TOGETHER = {"row_sum": "Sum", "row_product": "Product", "row_max": "Largest"}


class RowText(KernelText):
    """Rows, each of which LANES threads share."""

    #: reductions -> the variable for the partial result of a thread; in a joined pass, the maximum -> the variable for the current element
    _results: dict[Expression, str]
    _current: dict[Expression, str]

    def body(self) -> None:
        index, lanes = self.form.index, self.form.lanes
        groups = THREADS // lanes
        self._line(f"const {index} rows = {self._row_count()};")
        self._open(f"for ({index} first = ({index})blockIdx.x * {groups}; first < rows; first += ({index})gridDim.x * {groups})")
        self._row("rows")
        self._close()

    def _row(self, limit: str) -> None:
        """Print the computation of the row that a thread shares, if it is before `limit`."""
        index = self.form.index
        self._results, self._current = {}, {}
        self._line(f"const {index} at = first + threadIdx.y;")
        # threads without a row continue too, because a warp exchanges partial results
        self._line(f"const bool there = at < {limit};")
        self._line(f"const {index} width = there ? columns : 0;")
        self._line(f"const {index} row = there ? at : 0;")
        self._row_index("row")
        self._keep()
        passes, online = self.phases.passes, online_sum(self.phases.passes)
        if online is not None and self.form.lanes == THREADS and not self.form.resident:
            self._joined_pass(passes[0], online)
            self._row_values(passes[1])
            passes = passes[2:]
        for number, phase in enumerate(passes, 1):
            self._row_pass(phase, self.stores if number == len(passes) else [])
        for k in self.row_stores:
            self._line(f"if (there && threadIdx.x == 0) {self._element(k + self.first_output, '')} = {self._out(k)};")

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
        if not (stores or phase.reductions or phase.columns):
            return
        common, rare = self._without_lookups(phase, [self.outputs[k] for k in stores])
        self._start(phase, rare)
        resident = bool(self.form.resident)
        self._chunks(resident)
        outside = dict(self.names)
        if self.form.vector == 1:
            self._single(phase, stores)
        else:
            self._chunk(common, stores, "c")
            self.names = dict(outside)
            self._lookups(phase, rare)
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
        for x in phase.reductions:
            self._reduce(x, self._results[x])

    def _start(self, phase: Phase, rare: Sequence[Lookup]) -> None:
        """Print the variables for the partial results of a thread; a lookup without a hit is 0, not -0."""
        totals = [x.total for x in rare]
        self._results = {x: f"r{len(self.names)}_{n}" for n, x in enumerate(phase.reductions)}
        for x, name in self._results.items():
            self._line(f"{value_type(x.dtype)} {name} = {literal(0.0 if x in totals else start(x), x.dtype)};")

    def _reduce(self, x: Expression, text: str) -> None:
        """Print the reduction of the partial results of all threads of a row."""
        self._name(x, f"reduced<{value_type(x.dtype)}, {self.form.lanes}>({text}, {_TOGETHER[x.primitive]}{{}})")

    # -------------------------------------------------------------------------------------- lookups

    def _without_lookups(self, phase: Phase, stored: Sequence[Expression]) -> tuple[Phase, list[Lookup]]:
        """Return the phase without sums that look up one element, and these sums, if threads read vectors."""
        if self.form.vector == 1:
            return phase, []
        rare = lookups(phase, (k for k, access in enumerate(self.form.loop.inputs) if access.counted))
        if not rare:
            return phase, []
        totals = [x.total for x in rare]
        return restricted(phase, [x for x in phase.reductions if x not in totals], stored), rare

    def _lookups(self, phase: Phase, rare: Sequence[Lookup]) -> None:
        """Print the lookups in the current vector, behind a test for its first and its last index."""
        outside = self.names
        for x in rare:
            self._open_between(x, FIRST, f"{FIRST} + {self.form.vector - 1}")
            self.names = dict(outside)
            self._chunk(restricted(phase, [x.total]), [], "c")
            self.names = outside
            self._close()
            self._close()

    def _open_between(self, x: Lookup, first: str, last: str) -> None:
        """Open a block, and a condition in it: the label may be between these indices of the row."""
        label, base = self._text(x.label), self._text(x.base)
        self._open("")
        # two lines, because `first` may read an index whose name the second line declares again
        self._line(f"const {self.form.index} start = {first}, {EACH} = {last};")
        self._line(f"const {self.form.index} {FIRST} = start;")
        self._open(f"if ({self._read(x.counter, FIRST)} - {base} <= {label} && {self._read(x.counter, EACH)} - {base} >= {label})")

    # -------------------------------------------------------------------------------------- the maximum and the sum of exponentials in one pass

    def _joined_pass(self, phase: Phase, online: OnlineSum) -> None:
        """Print the first pass, with the sum of exponentials relative to the maximum of the elements that the thread has read."""
        self._row_values(phase)
        self._start(phase, self._without_lookups(phase, ())[1])
        most, kind = self._results[online.most], value_type(online.most.dtype)
        self._line(f"{kind} total = {literal(start(online.total), online.total.dtype)}, shift = 0;")
        step, end = self.form.lanes * self.form.vector, f"width - width % {self.form.vector}" if self.form.rest else "width"
        read = {position(x) for x in phase.elements if x.primitive == "element"} & set(self.form.vectors)
        count = max(LOADED // max(self.form.vector * sum(self.operands[k].dtype.itemsize for k in read), 16), 1)
        self._line(f"{self.form.index} from = threadIdx.x{'' if self.form.vector == 1 else f' * {self.form.vector}'};")
        self._open(f"for (; from + {(count - 1) * step} < {end}; from += {count * step})")
        self._joined(phase, online, count, self.form.vector)
        self._open(f"for (; from < {end}; from += {step})")
        self._joined(phase, online, 1, self.form.vector)
        if self.form.rest:
            self._open(f"for (from = {end} + threadIdx.x; from < width; from += {self.form.lanes})")
            self._joined(phase, online, 1, 1)
        for x in phase.reductions:
            self._reduce(x, self._results[x])
        self._reduce(online.total, f"total * {self._exponential(online, f'{most} - {self._text(online.most)}')}")

    def _joined(self, phase: Phase, online: OnlineSum, count: int, vector: int) -> None:
        """Print the body of the innermost open loop, for `count` vectors, and close it.

        As long as all elements are -inf, `shift` is 0.  So their exponentials are 0, because the sum of another thread may be finite.
        """
        outside, kind, most = self.names, value_type(online.most.dtype), self._results[online.most]
        common, rare = self._without_lookups(phase, ()) if vector > 1 else (phase, [])
        vectors = f"for (int u = 0; u < {count}; ++u)"
        index = f"const {self.form.index} {FIRST} = from + u * {self.form.lanes * self.form.vector};"
        self._line(f"{kind} values[{count}][{vector}];")
        self._current = {online.most: "values[u][0]" if vector == 1 else "values[u][j]"}
        self._unrolled(vectors)
        self._line(index)
        self.names = dict(outside)
        if vector == 1:
            self._single(common, [])
        else:
            self._chunk(common, [])
        self._close()
        self._current = {}
        self.names = dict(outside)
        for x in rare:
            self._open_between(x, "from", f"from + {(count - 1) * self.form.lanes * vector + vector - 1}")
            self._unrolled(vectors)
            self._line(index)
            self._lookups(phase, [x])
            self._close()
            self._close()
            self._close()
        self.names = outside
        elements = f"{vectors} for (int j = 0; j < {vector}; ++j)"
        self._line(f"{kind} next = {most};")
        self._unrolled(elements)
        self._line(f"next = maximum_of<{kind}>(next, values[u][j]);")
        self._close()
        self._open(f"if (next != {most})")
        self._line(f"total = total * {self._exponential(online, f'{most} - next')};")
        self._line(f"{most} = next, shift = next;")
        self._close()
        self._unrolled(elements)
        self._line(f"total = total + {self._exponential(online, 'values[u][j] - shift')};")
        self._close()
        self._close()

    def _exponential(self, online: OnlineSum, text: str) -> str:
        return PRINTED["exp"](online.exponential, [text])

    def added(self, phase: Phase) -> None:
        for x, name in self._results.items():
            if x not in phase.reductions:
                continue
            if x in self._current:
                self._line(f"{self._current[x]} = {self._text(x.arguments[0])};")
                continue
            both = combined(x)
            self._line(f"{name} = {PRINTED[both.primitive](both, [name, self._text(x.arguments[0])])};")


class WalkText(RowText):
    """Rows, and sums of their columns: a thread walks along rows, and holds the sums of its columns in registers."""

    def __init__(self, outputs: Sequence[Expression], form: KernelForm, name: str, passed: Sequence[Expression] = ()) -> None:
        super().__init__(outputs, form, name, passed)
        threads = form.lanes * form.walkers
        #: 65,536 registers of a multiprocessor are 168 for each thread
        self.bounds = f"{threads}, {384 // threads}"

    def body(self) -> None:
        form, index = self.form, self.form.index
        self._line(f"const {index} rows = {self._row_count()};")
        if form.walkers > 1:
            for n, x in enumerate(self.phases.columns):
                width = form.lanes * form.chunks * form.vector
                self._line(f"alignas(16) static __shared__ {value_type(x.dtype)} part{n}[{form.walkers}][{width}];")
        self._open(f"for ({index} part = blockIdx.x; part * {form.group} < rows; part += gridDim.x)")
        for n, x in enumerate(self.phases.columns):
            self._line(f"Vector<{value_type(x.dtype)}, {form.vector}> s{n}[{form.chunks}];")
            self._unrolled(f"for (int c = 0; c < {form.chunks}; ++c)")
            self._unrolled(f"for (int j = 0; j < {form.vector}; ++j)")
            self._line(f"s{n}[c].at[j] = {literal(-0.0, x.dtype)};")
            self._close()
            self._close()
        self._line(f"const {index} stop = min(rows, (part + 1) * {form.group});")
        self.lines.append("#pragma unroll 1")
        outside = dict(self.names)
        self._open(f"for ({index} first = part * {form.group}; first < stop; first += {form.walkers})")
        self._row("stop")
        self._close()
        self.names = outside
        self._write_sums()
        self._close()

    def added(self, phase: Phase) -> None:
        super().added(phase)
        for x in phase.columns:
            total = f"s{self.phases.columns.index(x)}[c].at[j]"
            self._line(f"{total} = {total} + {self._text(x.arguments[0])};")

    def _without_lookups(self, phase: Phase, stored: Sequence[Expression]) -> tuple[Phase, list[Lookup]]:
        """Return the whole phase, because the sums of columns read every element."""
        return phase, []

    def _write_sums(self) -> None:
        """Print the writes of the sums; threads with the same columns add theirs in shared memory."""
        form, index = self.form, self.form.index
        several = form.walkers > 1
        self._unrolled(f"for (int c = 0; c < {form.chunks}; ++c)")
        self._line(f"const {index} k = (threadIdx.x + c * {form.lanes}) * {form.vector};")
        for n in range(len(self.phases.columns)):
            to = f"&part{n}[threadIdx.y][k]" if several else f"sums{n} + part * columns + k"
            self._line(f"if (k < columns) stored({to}, s{n}[c]);")
        self._close()
        if not several:
            return
        self._line("__syncthreads();")
        self._open(f"for ({index} k = threadIdx.y * {form.lanes} + threadIdx.x; k < columns; k += {form.lanes * form.walkers})")
        for n, x in enumerate(self.phases.columns):
            self._line(f"{value_type(x.dtype)} total{n} = part{n}[0][k], lost{n} = {literal(-0.0, x.dtype)};")
            self._open(f"for (int y = 1; y < {form.walkers}; ++y)")
            compensated(self, n, value_type(x.dtype), f"part{n}[y][k]")
            self._close()
            self._line(f"sums{n}[part * columns + k] = total{n};")
        self._close()
        self._line("__syncthreads();")
