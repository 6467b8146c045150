"""Expressions as the text of an LLVM function over arrays.

    void loop(int64_t *args)        args: pointers of inputs, outputs and scratch rows; sizes of the axes, innermost first;
                                    strides in bytes along the outer axes, operand by operand; inner strides of strided operands,
                                    and strides along the lookup axes of tables

There is one loop per outer axis, around the innermost loop, which processes sixteen elements per iteration.  Masked loads and stores process the
remainder of a row.  Results therefore depend neither on the width of the machine's registers nor on an optimizer's vectorization.  All loads of
sixteen elements come before their stores, so an output may share memory with an input.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from jobflow.core.types import DType, float64
from jobflow.expressions.language import Expression, element, in_order
from jobflow.expressions.on_arrays import BLOCK
from jobflow.kernels.llvm.instructions import INSTRUCTIONS, WIDTH, Lines, from_memory, literal, register, several, stored, suffix, to_memory
from jobflow.kernels.llvm.machine_code import NAME, Printed
from jobflow.kernels.loop_space import LoopForm, OperandAccess
from jobflow.kernels.row_phases import Phase, Phases, combined, compensated, of_columns, phases, position, start

_TRUTHS = several("i1", WIDTH)
_IOTA = ", ".join(f"i64 {k}" for k in range(WIDTH))

#: scratch rows of a sum of columns: the sum of this block of rows, the sum of earlier blocks, and its rounding error
COLUMN_ROWS = 3


def print_loop(outputs: Sequence[Expression], form: LoopForm, expensive: set[Expression]) -> Printed:
    """Print the loop of lowered outputs; the note of the result names the element types of its scratch rows."""
    loop = _Loop(outputs, form, expensive)
    loop.write()
    ending = [*sorted(loop.at.declared), "", ATTRIBUTES, *([WEIGHTS] if any("!prof" in line for line in loop.at.lines) else ())]
    lines = [f"define void @{NAME}(ptr %args) #0 {{", *loop.at.lines, "}", "", *ending, ""]
    columns = [x.dtype for x in loop.phases.columns for _ in range(COLUMN_ROWS)]
    return Printed("\n".join(lines), " ".join(dtype.name for dtype in (*(x.dtype.arithmetic for x in loop.phases.scratch), *columns)))


#: weights of a branch that is rarely taken
WEIGHTS = '!0 = !{!"branch_weights", i32 1, i32 2000}'
ATTRIBUTES = 'attributes #0 = { nounwind "prefer-vector-width"="512" }'


class _Loop:
    def __init__(self, outputs: Sequence[Expression], form: LoopForm, expensive: set[Expression]) -> None:
        self.at, self.outputs, self.form = Lines(), outputs, form
        per_column = of_columns(in_order(outputs))
        #: outputs with a value per element, and per column
        self.stores = [k for k, a in enumerate(form.outputs) if a.inner != "splat" and outputs[k] not in per_column]
        self.column_stores = [k for k, x in enumerate(outputs) if x in per_column]

        def splat(x: Expression) -> bool:
            return form.inputs[position(x)].inner == "splat"

        self.phases: Phases = phases(outputs, [outputs[k] for k in self.stores], splat, expensive)
        #: names of values that are constant along a row, and of the operands' addresses
        self.single: dict[Expression, str] = {}
        self.inputs: list[str] = []
        self.targets: list[str] = []
        self.scratch: list[str] = []
        self.inner_strides: dict[str, str] = {}
        self.lane_offsets: dict[str, str] = {}
        #: the scratch rows of sums of columns
        self.blocks: dict[Expression, tuple[str, ...]] = {}
        #: the current block of instructions, and the last block for the remainder of a row
        self.here, self.rest_ended = "entry", ""
        self._rare = itertools.count()

    # -------------------------------------------------------------------------------------- the whole

    def write(self) -> None:
        at = self.at
        at.label("entry")
        operands = [*self.form.inputs, *self.form.outputs]
        words = self._words()
        pointers = [next(words) for _ in operands]
        self.scratch = [next(words) for _ in self.phases.scratch]
        self.blocks = {x: tuple(next(words) for _ in range(COLUMN_ROWS)) for x in self.phases.columns}
        self.size = next(words)
        sizes = [next(words) for _ in range(self.form.outer)]
        strides = [[next(words) for _ in sizes] if a.inner != "number" else [] for a in operands]
        inner = [next(words) if a.inner == "strided" else "" for a in operands]
        self.table_strides = {k: next(words) for k, a in enumerate(operands) if a.table}
        self.full = at.value(f"and i64 {self.size}, -{WIDTH}")
        self.rest = at.value(f"sub i64 {self.size}, {self.full}")
        for x in self.phases.once:
            if x.primitive == "number":
                self.single[x] = self._load_one(x.dtype, pointers[position(x)])
            else:
                self._single(x)
        self._begin_columns()
        counters = self._open(sizes)
        addresses = [self._row_address(p, s, counters) for p, s in zip(pointers, strides, strict=True)]
        self.inputs, self.targets = addresses[: len(self.form.inputs)], addresses[len(self.form.inputs) :]
        self.inner_strides = {address: stride for address, stride in zip(addresses, inner, strict=True) if stride}
        self.lane_offsets = {address: self._lane_offsets(stride) for address, stride in self.inner_strides.items()}
        for number, phase in enumerate(self.phases.passes):
            self._phase(phase, f"pass{number}", self.stores if number == len(self.phases.passes) - 1 else [])
        for x, address, access in zip(self.outputs, self.targets, self.form.outputs, strict=True):
            if access.inner == "splat" and x not in self.phases.per_column:
                value = to_memory(at, self._one(x), x.dtype, 1)
                at.write(f"store {stored(x.dtype)} {value}, ptr {address}, align {x.dtype.itemsize}")
        self._end_row_of_columns()
        self._close(counters)
        self._end_columns(pointers[len(self.form.inputs) :], inner[len(self.form.inputs) :])
        at.write("ret void")

    def _words(self) -> Iterator[str]:
        """Yield the words of the argument block in order; the pointers come first."""
        pointers = len(self.form.inputs) + len(self.form.outputs) + len(self.phases.scratch) + COLUMN_ROWS * len(self.phases.columns)
        for word in itertools.count():
            address = self.at.value(f"getelementptr i64, ptr %args, i64 {word}")
            yield self.at.value(f"load {'ptr' if word < pointers else 'i64'}, ptr {address}")

    def _open(self, sizes: Sequence[str]) -> list[str]:
        """Print the heads of the loops over the outer axes; return the names of their counters."""
        before = self.here
        for axis, size in enumerate(sizes):
            self.at.write(f"br label %axis{axis}")
            self.at.label(f"axis{axis}")
            self.at.write(f"%i{axis} = phi i64 [0, %{before}], [%n{axis}, %end{axis}]")
            more = self.at.value(f"icmp slt i64 %i{axis}, {size}")
            exit_label = f"end{axis - 1}" if axis else "exit"
            self.at.write(f"br i1 {more}, label %in{axis}, label %{exit_label}")
            self.at.label(f"in{axis}")
            before = f"in{axis}"
        self.here = before
        return [f"%i{axis}" for axis in range(len(sizes))]

    def _close(self, counters: Sequence[str]) -> None:
        if counters:
            self.at.write(f"br label %end{len(counters) - 1}")
        for axis in reversed(range(len(counters))):
            self.at.label(f"end{axis}")
            self.at.write(f"%n{axis} = add i64 %i{axis}, 1")
            self.at.write(f"br label %axis{axis}")
        if counters:
            self.at.label("exit")
            self.here = "exit"

    def _row_address(self, pointer: str, strides: Sequence[str], counters: Sequence[str]) -> str:
        """Return the address of an operand's first element in a row."""
        for counter, stride in zip(counters, strides, strict=False):
            offset = self.at.value(f"mul i64 {counter}, {stride}")
            pointer = self.at.value(f"getelementptr i8, ptr {pointer}, i64 {offset}")
        return pointer

    def _lane_offsets(self, stride: str) -> str:
        vector = several("i64", WIDTH)
        return self.at.value(f"mul {vector} {self._spread('i64', stride)}, <{_IOTA}>")

    # -------------------------------------------------------------------------------------- a pass

    def _phase(self, phase: Phase, name: str, stores: Sequence[int]) -> None:
        for x in phase.row:
            if x.primitive == "element":
                self.single[x] = self._load_one(x.dtype, self.inputs[position(x)], self.form.inputs[position(x)].counted)
            elif x.primitive == "looked_up":
                self.single[x] = self._load_one(x.dtype, self._entry(x))
            else:
                self._single(x)
        if stores or phase.reductions or phase.columns:
            self._over_row(phase, name, stores)

    def _over_row(self, phase: Phase, name: str, stores: Sequence[int]) -> None:
        at = self.at
        starts = [literal(start(x), x.dtype, WIDTH) for x in phase.reductions]
        kinds = [register(x.dtype, WIDTH) for x in phase.reductions]
        before, first = self._head(name, len(kinds))  # the partial results of the sixteen lanes
        known = self._elements(phase, f"%{name}.k", "", stores)
        for r, x in enumerate(phase.reductions):
            so_far = self._accumulated(x, f"%{name}.r{r}", known)
            at.lines[first + r] = f"  %{name}.r{r} = phi {kinds[r]} [{starts[r]}, %{before}], [{so_far}, %{self.here}]"
        self._again(name, before, first)
        tails = self._rest_of_row(phase, name, stores)
        sums = [
            at.value(f"phi {kind} [%{name}.r{r}, %{name}.end], [{tail}, %{self.rest_ended}]")
            for r, (kind, tail) in enumerate(zip(kinds, tails, strict=True))
        ]
        for x, lanes in zip(phase.reductions, sums, strict=True):
            self.single[x] = self._by_halves(x, lanes)

    def _head(self, name: str, results: int = 0) -> tuple[str, int]:
        """Print the head of a loop over sixteen elements at a time; return the preceding block and the line of the first phi instruction."""
        at, before = self.at, self.here
        at.write(f"br label %{name}")
        at.label(name)
        first = len(at.lines) + 1
        at.lines += [""] * (1 + results)  # filled in after the body
        more = at.value(f"icmp slt i64 %{name}.k, {self.full}")
        at.write(f"br i1 {more}, label %{name}.full, label %{name}.end")
        at.label(f"{name}.full")
        self.here = f"{name}.full"
        return before, first

    def _again(self, name: str, before: str, first: int) -> None:
        """Print the increment of the loop counter and the branch back to the head of the loop."""
        self.at.write(f"%{name}.next = add i64 %{name}.k, {WIDTH}")
        self.at.write(f"br label %{name}")
        self.at.lines[first - 1] = f"  %{name}.k = phi i64 [0, %{before}], [%{name}.next, %{self.here}]"

    def _rest_of_row(self, phase: Phase, name: str, stores: Sequence[int]) -> list[str]:
        """Print the computation of the remaining elements of a row; return the results of the reductions that include these elements."""
        at = self.at
        self._open_rest(name)
        mask = self._mask()
        known = self._elements(phase, self.full, mask, stores)
        tails = []
        for r, x in enumerate(phase.reductions):
            kind = register(x.dtype, WIDTH)
            outside = literal(0.0 if x.primitive == "row_sum" else start(x), x.dtype, WIDTH)
            inside = at.value(f"select {_TRUTHS} {mask}, {kind} {self._wide(x.arguments[0], known)}, {kind} {outside}")
            tails.append(self._accumulated(x, f"%{name}.r{r}", {**known, x.arguments[0]: inside}))
        self._close_rest(name)
        return tails

    def _accumulated(self, x: Expression, so_far: str, known: dict[Expression, str]) -> str:
        return self._combined(x, so_far, self._wide(x.arguments[0], known))

    def _combined(self, x: Expression, a: str, b: str, lanes: int = WIDTH) -> str:
        both = combined(x)
        return INSTRUCTIONS[both.primitive](self.at, both, (a, b), lanes)

    def _by_halves(self, x: Expression, lanes: str) -> str:
        """Print a tree reduction of sixteen partial results; return the name of its result."""
        count = WIDTH
        while count > 1:
            kind, half = register(x.dtype, count), count // 2
            parts = []
            for first in (0, half):
                picked = ", ".join(f"i32 {first + k}" for k in range(half))
                parts.append(self.at.value(f"shufflevector {kind} {lanes}, {kind} poison, <{half} x i32> <{picked}>"))
            if half == 1:
                parts = [self.at.value(f"extractelement <1 x {register(x.dtype)}> {part}, i64 0") for part in parts]
            lanes, count = self._combined(x, parts[0], parts[1], half), half
        return lanes

    # -------------------------------------------------------------------------------------- sums of columns

    def _begin_columns(self) -> None:
        """Print the initialization of the sums of columns."""
        if not self.blocks:
            return
        self.count = self.at.value("alloca i64")
        self.at.write(f"store i64 0, ptr {self.count}")

        def empty(index: str, mask: str) -> None:
            for x, rows in self.blocks.items():
                for row in rows:
                    self._store(OperandAccess(x.dtype, "dense"), row, index, mask, literal(-0.0, x.dtype, WIDTH))

        self._sixteens("empty", empty)

    def _end_row_of_columns(self) -> None:
        """Print the end of a row: after each block of 64 rows, the block's sums are added to the totals, as in `on_arrays.compensated`."""
        if not self.blocks:
            return
        at = self.at
        count = at.value(f"add i64 {at.value(f'load i64, ptr {self.count}')}, 1")
        full = at.value(f"icmp eq i64 {count}, {BLOCK}")
        at.write(f"store i64 {at.value(f'select i1 {full}, i64 0, i64 {count}')}, ptr {self.count}")
        at.write(f"br i1 {full}, label %flush, label %row.end")
        at.label("flush")
        self.here = "flush"
        self._flush("block")
        at.write("br label %row.end")
        at.label("row.end")
        self.here = "row.end"

    def _flush(self, name: str) -> None:
        def added(index: str, mask: str) -> None:
            for x, (block, total, lost) in self.blocks.items():
                kind = OperandAccess(x.dtype, "dense")
                known = {element(n, x.dtype): self._load(kind, row, index, mask) for n, row in enumerate((total, block, lost))}
                results = compensated(x)
                for y in in_order(results):
                    if y not in known and y.primitive != "constant":
                        known[y] = self._computed(y, known)
                for y, row in zip(results, (total, lost), strict=True):
                    self._store(kind, row, index, mask, known[y])
                self._store(kind, block, index, mask, literal(-0.0, x.dtype, WIDTH))

        self._sixteens(name, added)

    def _end_columns(self, pointers: Sequence[str], inner: Sequence[str]) -> None:
        """Print the addition of the last block (zeros if the number of rows is a multiple of 64), and the outputs computed from the sums."""
        if not self.blocks:
            return
        self._flush("last")
        for k in self.column_stores:
            if inner[k]:
                self.inner_strides[pointers[k]] = inner[k]
                self.lane_offsets[pointers[k]] = self._lane_offsets(inner[k])

        def written(index: str, mask: str) -> None:
            known = {x: self._load(OperandAccess(x.dtype, "dense"), total, index, mask) for x, (_, total, _) in self.blocks.items()}
            for x in self.phases.per_column:
                if x not in known:
                    known[x] = INSTRUCTIONS[x.primitive](self.at, x, [self._wide(y, known) for y in x.arguments], WIDTH)
            for k in self.column_stores:
                self._store(self.form.outputs[k], pointers[k], index, mask, known[self.outputs[k]])

        self._sixteens("columns", written)

    def _sixteens(self, name: str, body: Callable[[str, str], None]) -> None:
        """Print a loop over a row; `body` receives the first index, and the mask of the remainder of the row."""
        before, first = self._head(name)
        body(f"%{name}.k", "")
        self._again(name, before, first)
        self._open_rest(name)
        body(self.full, self._mask())
        self._close_rest(name)

    def _open_rest(self, name: str) -> None:
        self.at.label(f"{name}.end")
        some = self.at.value(f"icmp ne i64 {self.rest}, 0")
        self.at.write(f"br i1 {some}, label %{name}.rest, label %{name}.done")
        self.at.label(f"{name}.rest")
        self.here = f"{name}.rest"

    def _mask(self) -> str:
        return self.at.value(f"icmp ult {several('i64', WIDTH)} <{_IOTA}>, {self._spread('i64', self.rest)}")

    def _close_rest(self, name: str) -> None:
        self.at.write(f"br label %{name}.done")
        self.rest_ended = self.here
        self.at.label(f"{name}.done")
        self.here = f"{name}.done"

    # -------------------------------------------------------------------------------------- sixteen elements

    def _elements(self, phase: Phase, index: str, mask: str, stores: Sequence[int]) -> dict[Expression, str]:
        """Print the computation of the elements from `index` on, and the stores of a pass."""
        known: dict[Expression, str] = {}
        rows = dict(zip(self.phases.scratch, self.scratch, strict=True))
        for x in phase.read:
            known[x] = self._load(OperandAccess(x.dtype.arithmetic, "dense"), rows[x], index, mask)
        usual = self._usual(phase, stores)
        for x in phase.elements:
            if x not in usual:
                continue
            if x.primitive == "element":
                known[x] = self._load(self.form.inputs[position(x)], self.inputs[position(x)], index, mask)
            elif x.primitive == "looked_up":
                known[x] = self._look_up(x, known, index, mask)
            elif x.primitive == "rare_where":
                known[x] = self._rarely(x, [y for y in phase.elements if y not in usual], known)
            else:
                known[x] = self._computed(x, known)
        for x in phase.written:
            self._store(OperandAccess(x.dtype.arithmetic, "dense"), rows[x], index, mask, known[x])
        for x in phase.columns:
            block, kind = self.blocks[x][0], OperandAccess(x.dtype, "dense")
            self._store(kind, block, index, mask, self._combined(x, self._load(kind, block, index, mask), self._wide(x.arguments[0], known)))
        for k in stores:
            self._store(self.form.outputs[k], self.targets[k], index, mask, self._wide(self.outputs[k], known))
        return known

    def _computed(self, x: Expression, known: dict[Expression, str]) -> str:
        return INSTRUCTIONS[x.primitive](self.at, x, [self._wide(y, known) for y in x.arguments], WIDTH)

    def _usual(self, phase: Phase, stores: Sequence[int]) -> set[Expression]:
        """Return the expressions of a pass that are needed even if no condition of a `rare_where` holds; loads are unconditional."""
        targets = {*phase.written, *(x.arguments[0] for x in (*phase.reductions, *phase.columns)), *(self.outputs[k] for k in stores)}
        for x in reversed(phase.elements):
            if x in targets:
                targets.update(x.arguments if x.primitive != "rare_where" else (x.arguments[0], x.arguments[2]))
        return targets | {x for x in phase.elements if x.primitive in ("element", "looked_up")}

    def _rarely(self, x: Expression, unusual: Sequence[Expression], known: dict[Expression, str]) -> str:
        """Print a branch around expressions that are needed only if the condition of a `rare_where` holds in one of the sixteen lanes."""
        at, kind = self.at, register(x.dtype, WIDTH)
        condition, usual = self._wide(x.arguments[0], known), self._wide(x.arguments[2], known)
        some = at.call(f"llvm.vector.reduce.or.v{WIDTH}i1", "i1", f"{_TRUTHS} {condition}")
        name = f"rare{next(self._rare)}"
        at.write(f"br i1 {some}, label %{name}, label %{name}.end, !prof !0")
        at.label(name)
        inside, targets = dict(known), {x.arguments[1]}
        for y in reversed(unusual):
            if y in targets:
                targets.update(y.arguments)
        before, self.here = self.here, name
        for y in unusual:
            if y in targets:
                inside[y] = self._rarely(y, unusual, inside) if y.primitive == "rare_where" else self._computed(y, inside)
        rare = INSTRUCTIONS["where"](at, x, [condition, self._wide(x.arguments[1], inside), usual], WIDTH)
        at.write(f"br label %{name}.end")
        at.label(f"{name}.end")
        value = at.value(f"phi {kind} [{usual}, %{before}], [{rare}, %{self.here}]")
        self.here = f"{name}.end"
        return value

    def _entry(self, x: Expression) -> str:
        """Return the address of a table entry whose index is constant along the row."""
        k = position(x)
        beyond = self.at.value(f"mul i64 {self._one(x.arguments[0])}, {self.table_strides[k]}")
        return self.at.value(f"getelementptr i8, ptr {self.inputs[k]}, i64 {beyond}")

    def _look_up(self, x: Expression, known: dict[Expression, str], index: str, mask: str) -> str:
        k = position(x)
        access, base, (where,) = self.form.inputs[k], self.inputs[k], x.arguments
        if access.inner == "dense" and where not in known:
            return self._load(access, self._entry(x), index, mask)
        wide = several("i64", WIDTH)
        beyond = self.at.value(f"mul {wide} {self._wide(where, known)}, {self._spread('i64', self.table_strides[k])}")
        if access.inner != "splat":
            stride = self.inner_strides.get(base, str(-access.dtype.itemsize if access.inner == "reversed" else access.dtype.itemsize))
            lanes = self.lane_offsets.get(base) or self._lane_offsets(stride)
            first = self._spread("i64", self.at.value(f"mul i64 {index}, {stride}"))
            beyond = self.at.value(f"add {wide} {beyond}, {self.at.value(f'add {wide} {first}, {lanes}')}")
        return self._gather(access.dtype, self.at.value(f"getelementptr i8, ptr {base}, {wide} {beyond}"), mask)

    def _gather(self, dtype: DType, addresses: str, mask: str) -> str:
        kind, chosen = stored(dtype, WIDTH), mask or "splat (i1 true)"
        pointers = f"{several('ptr', WIDTH)} align {dtype.itemsize} {addresses}"
        name = f"llvm.masked.gather{suffix(stored(dtype), WIDTH)}.v{WIDTH}p0"
        return from_memory(self.at, self.at.call(name, kind, pointers, f"{_TRUTHS} {chosen}", f"{kind} zeroinitializer"), dtype, WIDTH)

    def _address(self, access: OperandAccess, base: str, index: str) -> str:
        if access.inner == "dense":
            return self.at.value(f"getelementptr {stored(access.dtype)}, ptr {base}, i64 {index}")
        if access.inner == "reversed":  # address of the last of the sixteen, which is the first in memory
            return self.at.value(f"getelementptr {stored(access.dtype)}, ptr {base}, i64 {self.at.value(f'sub i64 {1 - WIDTH}, {index}')}")
        offset = self.at.value(f"mul i64 {index}, {self.inner_strides[base]}")
        first = self.at.value(f"getelementptr i8, ptr {base}, i64 {offset}")
        return self.at.value(f"getelementptr i8, ptr {first}, {several('i64', WIDTH)} {self.lane_offsets[base]}")

    def _load(self, access: OperandAccess, base: str, index: str, mask: str) -> str:
        if access.counted:
            beyond = self.at.value(f"mul i64 {index}, {self.inner_strides[base]}")
            first = self.at.value(f"add i64 {self._load_one(access.dtype, base, True)}, {beyond}")
            return self.at.value(f"add {several('i64', WIDTH)} {self._spread('i64', first)}, {self.lane_offsets[base]}")
        at, kind, address = self.at, stored(access.dtype, WIDTH), self._address(access, base, index)
        align, ending = access.dtype.itemsize, suffix(stored(access.dtype), WIDTH)
        if access.inner == "strided":
            return self._gather(access.dtype, address, mask)
        mask = self._reversed(access, "i1", mask)
        if mask:
            value = at.call(f"llvm.masked.load{ending}.p0", kind, f"ptr align {align} {address}", f"{_TRUTHS} {mask}", f"{kind} zeroinitializer")
        else:
            value = at.value(f"load {kind}, ptr {address}, align {align}")
        return from_memory(at, self._reversed(access, stored(access.dtype), value), access.dtype, WIDTH)

    def _store(self, access: OperandAccess, base: str, index: str, mask: str, value: str) -> None:
        at, kind = self.at, stored(access.dtype, WIDTH)
        value, address = to_memory(at, value, access.dtype, WIDTH), self._address(access, base, index)
        align, ending = access.dtype.itemsize, suffix(stored(access.dtype), WIDTH)
        if access.inner == "strided":
            chosen = mask or "splat (i1 true)"
            arguments = [f"{kind} {value}", f"{several('ptr', WIDTH)} align {align} {address}", f"{_TRUTHS} {chosen}"]
            at.effect(f"llvm.masked.scatter{ending}.v{WIDTH}p0", *arguments)
            return
        value, mask = self._reversed(access, stored(access.dtype), value), self._reversed(access, "i1", mask)
        if mask:
            at.effect(f"llvm.masked.store{ending}.p0", f"{kind} {value}", f"ptr align {align} {address}", f"{_TRUTHS} {mask}")
        else:
            at.write(f"store {kind} {value}, ptr {address}, align {align}")

    def _reversed(self, access: OperandAccess, kind: str, value: str) -> str:
        """Reverse sixteen lanes of a reversed operand between memory order and index order."""
        if access.inner != "reversed" or not value:
            return value
        backwards = ", ".join(f"i32 {k}" for k in reversed(range(WIDTH)))
        vector = several(kind, WIDTH)
        return self.at.value(f"shufflevector {vector} {value}, {vector} poison, <{WIDTH} x i32> <{backwards}>")

    # -------------------------------------------------------------------------------------- values

    def _load_one(self, dtype: DType, address: str, counted: bool = False) -> str:
        if counted:
            return self.at.value(f"ptrtoint ptr {address} to i64")
        return from_memory(self.at, self.at.value(f"load {stored(dtype)}, ptr {address}, align {dtype.itemsize}"), dtype, 1)

    def _single(self, x: Expression) -> None:
        """Print the computation of an expression that has one value per row or per loop."""
        if x.primitive == "columns":
            self.single[x] = self.at.value(f"sitofp i64 {self.size} to {register(float64)}")
        elif x.primitive != "constant":
            self.single[x] = INSTRUCTIONS[x.primitive](self.at, x, [self._one(y) for y in x.arguments], 1)

    def _one(self, x: Expression) -> str:
        return literal(x.attribute, x.dtype) if x.primitive == "constant" else self.single[x]  # type: ignore[arg-type]

    def _wide(self, x: Expression, known: dict[Expression, str]) -> str:
        """Return x as a vector of sixteen lanes; a value that is the same for the row or the loop is broadcast."""
        if x in known:
            return known[x]
        if x.primitive == "constant":
            return literal(x.attribute, x.dtype, WIDTH)  # type: ignore[arg-type]
        known[x] = self._spread(register(x.dtype), self.single[x])
        return known[x]

    def _spread(self, kind: str, value: str) -> str:
        vector = several(kind, WIDTH)
        first = self.at.value(f"insertelement {vector} poison, {kind} {value}, i64 0")
        return self.at.value(f"shufflevector {vector} {first}, {vector} poison, <{WIDTH} x i32> zeroinitializer")
