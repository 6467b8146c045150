"""Texts of kernels with sums of columns.

A block of threads computes a tile of 64 rows and 32 columns.  All threads compute its elements, then one thread per column adds them up in the order
of the rows.  A second kernel adds the sums of the tiles in the order of the blocks of rows, with compensation.  There are no
atomic additions, so equal inputs give equal bits for any number of threads.
"""

from __future__ import annotations

from jobflow.expressions.on_arrays import BLOCK
from jobflow.kernels.cuda.kernel_form import THREADS, TILE
from jobflow.kernels.cuda.primitives import literal, value_type
from jobflow.kernels.cuda.text_parts import KernelText
from jobflow.kernels.row_phases import Phase, position


class TileText(KernelText):
    """Tiles: outputs per element, and the sums of the columns of each tile."""

    def body(self) -> None:
        index = self.form.index
        (phase,) = self.phases.passes
        self._line(f"const {index} rows = {self._row_count()};")
        self._line(f"const {index} blocks = (rows + {BLOCK - 1}) / {BLOCK}, tiles = (columns + {TILE - 1}) / {TILE};")
        for n, x in enumerate(self.phases.columns):
            # one more column, so that neither the rows nor the columns of a tile share a bank
            self._line(f"static __shared__ {value_type(x.dtype)} part{n}[{BLOCK}][{TILE + 1}];")
        self._open(f"for ({index} tile = blockIdx.x; tile < blocks * tiles; tile += gridDim.x)")
        self._line(f"const {index} block = {self._divide('tile', 'tiles', 'tiles')}, left = (tile - block * tiles) * {TILE};")
        self._line(f"const int high = min(({index}){BLOCK}, rows - block * {BLOCK});")
        self._tile(phase)
        self._line("__syncthreads();")
        for n, x in enumerate(self.phases.columns):
            self._open(f"if (threadIdx.x / {TILE} == {n} && left + threadIdx.x % {TILE} < columns)")
            self._line(f"{value_type(x.dtype)} total = {literal(-0.0, x.dtype)};")
            self._line(f"for (int r = 0; r < high; ++r) total = total + part{n}[r][threadIdx.x % {TILE}];")
            self._line(f"sums{n}[block * columns + left + threadIdx.x % {TILE}] = total;")
            self._close()
        self._line("__syncthreads();")
        self._close()

    def _tile(self, phase: Phase) -> None:
        vector, index = self.form.vector, self.form.index
        across = TILE // vector
        self._open(f"for (int s = threadIdx.x; s < {BLOCK * across}; s += {THREADS})")
        row, column = (f"s % {BLOCK}", f"s / {BLOCK}") if self.form.down else (f"s / {across}", f"s % {across}")
        self._line(f"const int r = {row}, c = {column}{'' if vector == 1 else f' * {vector}'};")
        self._line(f"const {index} k = left + c, row = block * {BLOCK} + r;")
        self._open("if (r < high && k < columns)")
        self._row_index("row")
        self._row_values(phase)
        if vector == 1:
            self._single(phase, self.stores)
        else:
            self._chunk(phase, self.stores)
        for k in self.row_stores:
            self._line(f"if (k == 0) {self._element(k + self.first_output, '')} = {self._out(k)};")
        self._close()
        self._close()

    def added(self, phase: Phase) -> None:
        column = "c" if self.form.vector == 1 else "c + j"
        for n, x in enumerate(self.phases.columns):
            self._line(f"part{n}[r][{column}] = {self._text(x.arguments[0])};")


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
            self._open(f"if (k < columns) for ({index} i0 = {begin}; i0 < {end}; ++i0)")
            self._compensated(n, value_type(x.dtype), self._element(position(x), "k"))
            self._close()
            self.names[x] = f"total{n}"
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

    def _compensated(self, n: int, kind: str, term: str) -> None:
        """Print a compensated addition to total `n`; infinities have no rounding error."""
        self._line(f"const {kind} taken = {term} - lost{n}, after = total{n} + taken;")
        self._line(f"lost{n} = (after - total{n}) - taken;")
        self._line(f"if (lost{n} != lost{n}) lost{n} = 0;")
        self._line(f"total{n} = after;")

    def _together(self, lanes: int, kinds: list[str]) -> None:
        """Print the sum of the partial totals of a column, in their order."""
        for n in range(len(kinds)):
            self._line(f"part{n}[threadIdx.y][threadIdx.x] = total{n};")
        self._line("__syncthreads();")
        for n, kind in enumerate(kinds):
            self._line(f"lost{n} = -0.0, total{n} = part{n}[0][threadIdx.x];")
            self._open(f"for (int y = 1; y < {lanes}; ++y)")
            self._compensated(n, kind, f"part{n}[y][threadIdx.x]")
            self._close()
        self._line("__syncthreads();")
