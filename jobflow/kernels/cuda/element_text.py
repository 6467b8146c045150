"""Texts of kernels whose threads compute elements, in a grid-stride loop."""

from __future__ import annotations

from jobflow.kernels.cuda.kernel_form import THREADS
from jobflow.kernels.cuda.text_parts import KernelText


class ElementText(KernelText):
    """Vectors of elements, then the elements after the last whole vector; or single elements, if operands are not aligned.

    In a space of several axes a row is a whole number of vectors.
    """

    #: the number of the block, and the number of blocks that share the elements
    block, blocks = "blockIdx.x", "gridDim.x"

    def body(self) -> None:
        (phase,) = self.phases.passes
        vector, outer = self.form.vector, self.form.loop.outer
        whole = "columns" if vector == 1 else f"columns / {vector}"
        self._loop("i", "0", " * ".join([whole, *(f"n{axis}" for axis in range(outer))]))
        outside = dict(self.names)
        if outer:
            self._line(f"const {self.form.index} row = {self._divide('i', 'columns', f'({whole})')};")
        part = f"(i - row * ({whole}))" if outer else "i"
        self._line(f"const {self.form.index} k = {part}{'' if vector == 1 else f' * {vector}'};")
        self._row_index("row")
        self._row_values(phase)
        if vector == 1:
            self._single(phase, self.stores)
        else:
            self._chunk(phase, self.stores)
        self._close()
        if vector > 1 and not outer:
            self.names = outside
            self._loop("k", f"columns / {vector} * {vector}", "columns")
            self._row_values(phase)
            self._single(phase, self.stores)
            self._close()

    def _loop(self, variable: str, start: str, stop: str) -> None:
        index = self.form.index
        self._line(f"const {index} {'count' if variable == 'i' else 'end'} = {stop};")
        begin = f"({index}){self.block} * {THREADS} + threadIdx.x"
        begin = begin if start == "0" else f"{start} + {begin}"
        if variable != "i":
            self.lines.append("#pragma unroll 1")
        limit = "count" if variable == "i" else "end"
        self._open(f"for ({index} {variable} = {begin}; {variable} < {limit}; {variable} += ({index}){self.blocks} * {THREADS})")
