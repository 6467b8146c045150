"""Texts of kernels with sums of columns.

A thread reads up to 16 bytes of adjacent columns, and walks along the rows of a block of 64.  It reads several rows before it computes their
elements, so that many loads are in flight.  The sums stay in registers, and values that all rows share are computed once.  Rows are added in order.

    columns ->
    0 0 1 1 2 2 3 3 ..    row 0     LANES threads have adjacent columns
    0 0 1 1 2 2 3 3 ..    row 1
    v v v v v v v v
    32 32 33 33 ..        row 64    the next LANES threads of a block of threads walk along the next 64 rows

The threads of a block add the sums of a group of blocks of rows, with compensation.  A second kernel adds the sums of the groups of a column, with
compensation, too.  There are no atomic additions, so equal inputs give equal bits for any number of threads.

If the elements of a column are adjacent in memory, a block of threads computes a tile of 64 rows and 32 columns in shared memory instead.  Then one
thread per column adds them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jobflow.expressions.language import Expression, in_order
from jobflow.expressions.on_arrays import BLOCK
from jobflow.kernels.cuda.kernel_form import THREADS, TILE, WALKERS, KernelForm, tile_width, values_per_column
from jobflow.kernels.cuda.primitives import from_memory, literal, stored_type, value_type
from jobflow.kernels.cuda.text_parts import EACH, FIRST, KernelText
from jobflow.kernels.row_phases import Phase, position


class ColumnText(KernelText):
    """Sums of columns by threads that walk along rows: outputs per element, and the sums of groups of blocks of rows."""

    #: the registers of a thread: four blocks share a multiprocessor
    bounds = f"{WALKERS}, {65536 // 128 // WALKERS}"

    def __init__(self, outputs: Sequence[Expression], form: KernelForm, name: str, passed: Sequence[Expression] = ()) -> None:
        super().__init__(outputs, form, name, passed)
        self.same, self.hoisted = values_per_column(in_order(outputs), outputs, form.fixed)
        (self.phase,) = self.phases.passes
        varying = [x for x in self.phase.elements if x not in self.same]
        self.phase = replace(self.phase, elements=tuple(varying))
        #: inputs that are read before the elements of several rows are computed
        self.ahead = list(dict.fromkeys(position(x) for x in (*self.phase.row, *varying) if self._is_ahead(x)))

    def _is_ahead(self, x: Expression) -> bool:
        return x.primitive == "element" and not self.operands[position(x)].counted

    def body(self) -> None:
        form, index = self.form, self.form.index
        width, each = tile_width(form), max(1, form.group // form.walkers)
        span = each * form.walkers
        self._line(f"const {index} rows = {self._row_count()};")
        self._line(f"const {index} blocks = (rows + {BLOCK - 1}) / {BLOCK}, tiles = (columns + {width - 1}) / {width};")
        if form.group > 1:
            for n, x in enumerate(self.phases.columns):
                self._line(f"static __shared__ {value_type(x.dtype)} part{n}[{form.walkers}][{width}];")
        self._open(f"for ({index} tile = blockIdx.x; tile < (blocks + {span - 1}) / {span} * tiles; tile += gridDim.x)")
        self._line(f"const {index} down = {self._divide('tile', 'tiles', 'tiles')}, left = (tile - down * tiles) * {width};")
        self._line(f"const {index} k = left + threadIdx.x * {form.vector}, first = down * {span} + threadIdx.y{f' * {each}' if each > 1 else ''};")
        self._open("if (k < columns && first < blocks)")
        self._values_per_column()
        if each > 1:
            self._open(f"for ({index} block = first; block < first + {each} && block < blocks; ++block)")
        else:
            self._line(f"const {index} block = first;")
        self._block()
        self._written(each)
        if each > 1:
            self._close()
        self._close()
        if form.group > 1:
            self._joined(width, each, span)
        self._close()

    def _values_per_column(self) -> None:
        """Print the values that all rows share, once per thread."""
        vector, outside = self.form.vector, dict(self.names)
        phase = replace(self.phases.passes[0], elements=tuple(x for x in self.phases.passes[0].elements if x in self.same))
        names = {x: f"f{n}" for n, x in enumerate(self.hoisted)}
        for x, name in names.items():
            self._line(f"{value_type(x.dtype)} {name}[{vector}];")
        if names:
            self._load(phase)
            self._unrolled(f"for (int j = 0; j < {vector}; ++j)")
            self._line(f"const {self.form.index} {EACH} = {FIRST} + j;")
            self._elements(phase, EACH)
            for x, name in names.items():
                self._line(f"{name}[j] = {self._text(x)};")
            self._close()
        self.names = {**outside, **{x: f"{name}[j]" for x, name in names.items()}}

    def _block(self) -> None:
        """Print the walk along the rows of a block."""
        index, ahead, vector = self.form.index, self.form.ahead, self.form.vector
        outside = dict(self.names)
        for n, x in enumerate(self.phases.columns):
            self._line(f"{value_type(x.dtype)} sum{n}[{vector}];")
            self._unrolled(f"for (int j = 0; j < {vector}; ++j)")
            self._line(f"sum{n}[j] = {literal(-0.0, x.dtype)};")
            self._close()
        self._line(f"const {index} stop = min(rows, (block + 1) * {BLOCK});")
        self.lines.append("#pragma unroll 1")
        self._open(f"for ({index} at = block * {BLOCK}; at < stop; at += {ahead})")
        for k in self.ahead:
            self._line(f"{self._vector(k)} c{k}[{ahead}];")
        # the last rows are read again instead of rows behind the end
        self._unrolled(f"for (int u = 0; u < {ahead}; ++u)")
        self._line(f"const {index} row = min(at + u, stop - 1);")
        self._row_index("row")
        for k in self.ahead:
            if k in self.form.vectors:
                self._line(f"c{k}[u] = loaded<{vector}>({self._address(k)});")
            else:
                self._line(f"c{k}[u].at[0] = {self._element(k, FIRST)};")
        self._close()
        self._unrolled(f"for (int u = 0; u < {ahead}; ++u)")
        self._open("if (at + u < stop)")
        self._line(f"const {index} row = at + u;")
        self._row_index("row")
        self._row_values(self.phase)
        self._chunk(self.phase, self.stores)
        for k in self.row_stores:
            self._line(f"if (k == 0) {self._element(k + self.first_output, '')} = {self._out(k)};")
        self._close()
        self._close()
        self._close()
        self.names = outside

    def _vector(self, operand: int) -> str:
        vector = 1 if operand in self.ahead and operand not in self.form.vectors else self.form.vector
        return f"Vector<{stored_type(self.operands[operand].dtype)}, {vector}>"

    def _offset(self, operand: int, along: str, outer: Sequence[int]) -> str:
        return super()._offset(operand, along, () if operand in self.form.fixed else outer)

    def _load(self, phase: Phase, resident: str = "") -> None:
        if phase is self.phase:
            self.loaded = {k: f"c{k}[u]" for k in self.ahead}
        else:
            super()._load(phase)

    def _row_values(self, phase: Phase) -> None:
        for x in phase.row:
            if self._is_ahead(x):
                self._name(x, from_memory(f"c{position(x)}[u].at[0]", x.dtype))
            elif x.primitive == "looked_up":
                self._name(x, self._read(x, ""))
            else:
                self._value(x)

    def added(self, phase: Phase) -> None:
        for n, x in enumerate(self.phases.columns if phase is self.phase else ()):
            self._line(f"sum{n}[j] = sum{n}[j] + {self._text(x.arguments[0])};")

    def _written(self, each: int) -> None:
        """Print the writes of the sums of a block: to scratch memory, or to the memory that the threads of a block share."""
        self._unrolled(f"for (int j = 0; j < {self.form.vector}; ++j)")
        for n in range(len(self.phases.columns)):
            if self.form.group == 1:
                self._line(f"sums{n}[block * columns + k + j] = sum{n}[j];")
            else:
                at = f"part{n}[threadIdx.y][j * {self.form.lanes} + threadIdx.x]"
                self._line(f"{at} = {f'block == first ? sum{n}[j] : {at} + ' if each > 1 else ''}sum{n}[j];")
        self._close()

    def _joined(self, width: int, each: int, span: int) -> None:
        """Print the sums of groups, which contain the sums of several threads."""
        form, index = self.form, self.form.index
        members = min(form.group, form.walkers)
        self._line("__syncthreads();")
        self._open(f"for (int s = threadIdx.y * {form.lanes} + threadIdx.x; s < {width * form.walkers // members}; s += {form.lanes * form.walkers})")
        self._line(f"const int place = s % {width}, y = s / {width} * {members};")
        self._line(f"const {index} k = left + place % {form.lanes} * {form.vector} + place / {form.lanes};")
        self._line(f"const {index} first = down * {span} + y{f' * {each}' if each > 1 else ''};")
        self._open("if (k < columns && first < blocks)")
        self._line(f"const int members = min(({index}){members}, {'blocks - first' if each == 1 else f'(blocks - first + {each - 1}) / {each}'});")
        for n, x in enumerate(self.phases.columns):
            kind = value_type(x.dtype)
            self._line(f"{kind} total{n} = part{n}[y][place], lost{n} = {literal(-0.0, x.dtype)};")
            self._open("for (int m = 1; m < members; ++m)")
            compensated(self, n, kind, f"part{n}[y + m][place]")
            self._close()
            self._line(f"sums{n}[first / {form.group} * columns + k] = total{n};")
        self._close()
        self._close()
        self._line("__syncthreads();")


class TileText(KernelText):
    """Sums of columns whose elements are adjacent in memory, by tiles of 64 rows and 32 columns that a block of threads shares."""

    def body(self) -> None:
        index, group = self.form.index, self.form.group
        (phase,) = self.phases.passes
        self._line(f"const {index} rows = {self._row_count()};")
        self._line(f"const {index} blocks = (rows + {BLOCK - 1}) / {BLOCK}, tiles = (columns + {TILE - 1}) / {TILE};")
        for n, x in enumerate(self.phases.columns):
            # one more column, so that neither the rows nor the columns of a tile share a bank
            self._line(f"static __shared__ {value_type(x.dtype)} part{n}[{BLOCK}][{TILE + 1}];")
        self._open(f"for ({index} tile = blockIdx.x; tile < (blocks + {group - 1}) / {group} * tiles; tile += gridDim.x)")
        self._line(f"const {index} down = {self._divide('tile', 'tiles', 'tiles')}, left = (tile - down * tiles) * {TILE};")
        for n, x in enumerate(self.phases.columns):
            self._line(f"{value_type(x.dtype)} total{n} = {literal(-0.0, x.dtype)}, lost{n} = {literal(-0.0, x.dtype)};")
        self._open(f"for ({index} block = down * {group}; block < (down + 1) * {group} && block < blocks; ++block)")
        self._line(f"const int high = min(({index}){BLOCK}, rows - block * {BLOCK});")
        self._tile(phase)
        self._line("__syncthreads();")
        for n, x in enumerate(self.phases.columns):
            kind = value_type(x.dtype)
            self._open(f"if (threadIdx.x / {TILE} == {n})")
            self._line(f"{kind} sum = {literal(-0.0, x.dtype)};")
            self._line(f"for (int r = 0; r < high; ++r) sum = sum + part{n}[r][threadIdx.x % {TILE}];")
            compensated(self, n, kind, "sum")
            self._close()
        self._line("__syncthreads();")
        self._close()
        for n in range(len(self.phases.columns)):
            self._open(f"if (threadIdx.x / {TILE} == {n} && left + threadIdx.x % {TILE} < columns)")
            self._line(f"sums{n}[down * columns + left + threadIdx.x % {TILE}] = total{n};")
            self._close()
        self._close()

    def _tile(self, phase: Phase) -> None:
        index = self.form.index
        self._open(f"for (int s = threadIdx.x; s < {BLOCK * TILE}; s += {THREADS})")
        self._line(f"const int r = s % {BLOCK}, c = s / {BLOCK};")
        self._line(f"const {index} k = left + c, row = block * {BLOCK} + r;")
        self._open("if (r < high && k < columns)")
        self._row_index("row")
        outside = dict(self.names)
        self._row_values(phase)
        self._single(phase, self.stores)
        for k in self.row_stores:
            self._line(f"if (k == 0) {self._element(k + self.first_output, '')} = {self._out(k)};")
        self.names = outside
        self._close()
        self._close()

    def added(self, phase: Phase) -> None:
        for n, x in enumerate(self.phases.columns):
            self._line(f"part{n}[r][c] = {self._text(x.arguments[0])};")


class TotalText(KernelText):
    """Totals of columns: the rows of the index space are the sums of blocks."""

    def body(self) -> None:
        index, lanes = self.form.index, self.form.lanes
        width = min(THREADS // lanes, TILE)
        sums = [x for x in self.phases.passes[0].elements if x.primitive == "element"]
        for n, x in enumerate(sums if lanes > 1 else []):
            self._line(f"static __shared__ {value_type(x.dtype)} part{n}[{lanes}][{width}];")
        self._open(f"for ({index} first = ({index})blockIdx.x * {width}; first < columns; first += ({index})gridDim.x * {width})")
        self._line(f"const {index} k = first + threadIdx.x;")
        if lanes > 1:
            self._line(f"const {index} length = (n0 + {lanes - 1}) / {lanes}, begin = threadIdx.y * length, end = min(n0, begin + length);")
        begin, end = ("begin", "end") if lanes > 1 else ("0", "n0")
        for n, x in enumerate(sums):
            self._line(f"{value_type(x.dtype)} total{n} = {literal(-0.0, x.dtype)}, lost{n} = {literal(-0.0, x.dtype)};")
            self.names[x] = f"total{n}"
        self.lines.append("#pragma unroll 8")
        self._open(f"for ({index} i0 = {begin}; i0 < (k < columns ? {end} : 0); ++i0)")
        for n, x in enumerate(sums):
            compensated(self, n, value_type(x.dtype), self._element(position(x), "k"))
        self._close()
        if lanes > 1:
            self._together(lanes, [value_type(x.dtype) for x in sums])
        self._open("if (k < columns" + (" && threadIdx.y == 0)" if lanes > 1 else ")"))
        for x in self.phases.passes[0].elements:
            if x not in self.names:
                self._value(x)
        for k in self.stores:
            self._line(f"{self.pointers[k + self.first_output]}[{self._offset(k + self.first_output, 'k', [])}] = {self._out(k)};")
        self._close()
        self._close()

    def _together(self, lanes: int, kinds: list[str]) -> None:
        """Print the sum of the partial totals of a column, in their order."""
        for n in range(len(kinds)):
            self._line(f"part{n}[threadIdx.y][threadIdx.x] = total{n};")
        self._line("__syncthreads();")
        for n, kind in enumerate(kinds):
            self._line(f"lost{n} = -0.0, total{n} = part{n}[0][threadIdx.x];")
            self._open(f"for (int y = 1; y < {lanes}; ++y)")
            compensated(self, n, kind, f"part{n}[y][threadIdx.x]")
            self._close()
        self._line("__syncthreads();")


def compensated(text: KernelText, n: int, kind: str, term: str) -> None:
    """Print a compensated addition to total `n`; infinities have no rounding error."""
    text._line(f"const {kind} taken{n} = {term} - lost{n}, after{n} = total{n} + taken{n};")
    text._line(f"lost{n} = (after{n} - total{n}) - taken{n};")
    text._line(f"if (lost{n} != lost{n}) lost{n} = 0;")
    text._line(f"total{n} = after{n};")
