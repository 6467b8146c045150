"""The parts that the texts of all kernels share: parameters, indices, reads, values and writes."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence

from jobflow.expressions.language import Expression, in_order
from jobflow.kernels.cuda.kernel_form import THREADS, KernelForm
from jobflow.kernels.cuda.primitives import PRINTED, from_memory, literal, stored_type, to_memory, value_type
from jobflow.kernels.loop_space import NON_CONTIGUOUS, OperandAccess
from jobflow.kernels.row_phases import Phase, of_columns, phases, position

#: the text of an index along the innermost axis: of a thread's first element, and of an element of its vector
FIRST, EACH = "k", "e"


class KernelText(ABC):
    """A kernel under construction; subclasses print the loops."""

    #: the threads of a block, and the fewest blocks of a multiprocessor
    bounds = str(THREADS)

    def __init__(self, outputs: Sequence[Expression], form: KernelForm, name: str, passed: Sequence[Expression] = ()) -> None:
        self.outputs, self.form, self.name = outputs, form, name
        #: constants that are parameters of the kernel, and their names
        self.passed = {x: f"number{k}" for k, x in enumerate(passed)}
        loop = form.loop
        self.first_output = len(loop.inputs)
        self.operands = [*loop.inputs, *loop.outputs]
        self.pointers = [f"x{k}" for k in range(len(loop.inputs))] + [f"y{k}" for k in range(len(loop.outputs))]
        columns = of_columns(in_order(outputs))
        #: outputs with a value per element, and per row
        self.stores = [k for k, a in enumerate(loop.outputs) if a.inner != "splat" and outputs[k] not in columns]
        self.row_stores = [k for k in range(len(loop.outputs)) if k not in self.stores and outputs[k] not in columns]

        def splat(x: Expression) -> bool:
            return loop.inputs[position(x)].inner == "splat"

        # on a GPU, recomputing is cheaper than storing to scratch memory
        self.phases = phases(outputs, [outputs[k] for k in self.stores], splat, ())
        self.names: dict[Expression, str] = {}
        #: input -> the variable with its elements in the current vector
        self.loaded: dict[int, str] = {}
        self.lines: list[str] = []
        self.depth = 1

    def text(self) -> str:
        self._once()
        self.body()
        return self._function()

    @abstractmethod
    def body(self) -> None:
        """Print the loops."""

    # -------------------------------------------------------------------------------------- parameters

    def _function(self) -> str:
        head = f'extern "C" __global__ void __launch_bounds__({self.bounds}) {self.name}('
        return "\n".join([head, f"    {', '.join(self._parameters())}) {{", *self.lines, "}"])

    def _parameters(self) -> list[str]:
        index, outer = self.form.index, range(self.form.loop.outer)
        words = [self._parameter(k) for k in range(len(self.operands))]
        words += [f"{value_type(x.dtype)} *__restrict__ sums{n}" for n, x in enumerate(self.phases.columns)]
        words += [f"{index} columns", *(f"{index} n{axis}" for axis in outer)]
        words += [word for name in self.form.divisors for word in (f"unsigned int {name}_m", f"int {name}_s")]
        for k, access in enumerate(self.operands):
            kind = "long long" if access.counted else index
            words += [f"{kind} {self.pointers[k]}_{axis}" for axis in self._axes(access)]
        return words + [f"{value_type(x.dtype)} {name}" for x, name in self.passed.items()]

    def _parameter(self, k: int) -> str:
        access, pointer = self.operands[k], self.pointers[k]
        if access.counted:
            return f"long long {pointer}"
        alone = "" if k in self.form.aliased else "__restrict__ "
        return f"{'const ' if k < self.first_output else ''}{stored_type(access.dtype)} *{alone}{pointer}"

    def _axes(self, access: OperandAccess) -> list[str]:
        """Return the axes whose strides are parameters of the kernel."""
        if access.inner == "number":
            return []
        return [*map(str, range(self.form.loop.outer)), *(["k"] if access.inner in NON_CONTIGUOUS else []), *(["t"] if access.table else [])]

    # -------------------------------------------------------------------------------------- lines

    def _line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def _open(self, text: str) -> None:
        self._line(f"{text} {{")
        self.depth += 1

    def _close(self) -> None:
        self.depth -= 1
        self._line("}")

    def _unrolled(self, text: str) -> None:
        self.lines.append("#pragma unroll")
        self._open(text)

    def _once(self) -> None:
        for x in self.phases.once:
            if x.primitive == "number":
                self._name(x, from_memory(f"*x{position(x)}", x.dtype))
            else:
                self._value(x)

    def _divide(self, index: str, name: str, size: str) -> str:
        return f"divided({index}, {name}_m, {name}_s)" if name in self.form.divisors else f"{index} / {size}"

    def _row_index(self, row: str) -> None:
        """Print the indices of a row along the outer axes."""
        outer, index = self.form.loop.outer, self.form.index
        rest = row
        for axis in reversed(range(1, outer)):
            self._line(f"const {index} rest{axis} = {self._divide(rest, f'n{axis}', f'n{axis}')};")
            self._line(f"const {index} i{axis} = {rest} - rest{axis} * n{axis};")
            rest = f"rest{axis}"
        if outer:
            self._line(f"const {index} i0 = {rest};")

    def _row_count(self) -> str:
        return " * ".join(f"n{axis}" for axis in range(self.form.loop.outer)) or "1"

    # -------------------------------------------------------------------------------------- values

    def _row_values(self, phase: Phase) -> None:
        """Print the values that the elements of a row share."""
        for x in phase.row:
            if x.primitive in ("element", "looked_up"):
                self._name(x, self._read(x, ""))
            else:
                self._value(x)

    def _load(self, phase: Phase, resident: str = "") -> None:
        """Print the loads of vectors; vectors in registers are read at index `resident`."""
        self.loaded = {}
        for k in dict.fromkeys(position(x) for x in phase.elements if x.primitive == "element"):
            if k in self.form.resident:
                self.loaded[k] = f"c{k}[{resident}]"
            elif k in self.form.vectors:
                self.loaded[k] = f"c{k}"
                self._line(f"const {self._vector(k)} c{k} = loaded<{self.form.vector}>({self._address(k)});")

    def _elements(self, phase: Phase, along: str) -> None:
        for x in phase.elements:
            if x.primitive in ("element", "looked_up"):
                self._name(x, self._read(x, along))
            else:
                self._value(x)

    def _store(self, stores: Sequence[int], along: str) -> None:
        """Print the writes of an element; all reads come before, because outputs may share memory with inputs."""
        for k in stores:
            operand = k + self.first_output
            target = f"o{k}.at[j]" if along == EACH and operand in self.form.vectors else self._element(operand, along)
            self._line(f"{target} = {self._out(k)};")

    def _chunk(self, phase: Phase, stores: Sequence[int], resident: str = "") -> None:
        """Print the computation of a vector of elements; `added` prints the contributions of each element."""
        vector = self.form.vector
        self._load(phase, resident)
        stored = [k for k in stores if k + self.first_output in self.form.vectors]
        for k in stored:
            self._line(f"{self._vector(k + self.first_output)} o{k};")
        self._unrolled(f"for (int j = 0; j < {vector}; ++j)")
        before = len(self.lines)
        self._elements(phase, EACH)
        self.added(phase)
        self._store(stores, EACH)
        if any(re.search(rf"\b{EACH}\b", line) for line in self.lines[before:]):
            self.lines.insert(before, "  " * self.depth + f"const {self.form.index} {EACH} = {FIRST} + j;")
        self._close()
        for k in stored:
            self._line(f"stored({self._address(k + self.first_output)}, o{k});")
        self.loaded = {}

    def _single(self, phase: Phase, stores: Sequence[int]) -> None:
        """Print the computation of one element."""
        self._elements(phase, FIRST)
        self.added(phase)
        self._store(stores, FIRST)

    def added(self, phase: Phase) -> None:
        """Print the addition of an element to the reductions of a phase; kernels of elements have none."""
        assert not phase.reductions and not phase.columns

    def _vector(self, operand: int) -> str:
        return f"Vector<{stored_type(self.operands[operand].dtype)}, {self.form.vector}>"

    def _offset(self, operand: int, along: str, outer: Sequence[int]) -> str:
        pointer, access = self.pointers[operand], self.operands[operand]
        terms = [f"i{axis} * {pointer}_{axis}" for axis in outer]
        if along and access.inner != "splat":
            terms.append(f"{along} * {pointer}_k" if access.inner in NON_CONTIGUOUS else along)
        return " + ".join(terms) or "0"

    def _address(self, operand: int) -> str:
        return f"{self.pointers[operand]} + {self._offset(operand, FIRST, range(self.form.loop.outer))}"

    def _read(self, x: Expression, along: str) -> str:
        """Return the text of an element of an input or table, or of the address that is the value of an index operand."""
        operand = position(x)
        if x.primitive == "looked_up":
            offset = self._offset(operand, along, range(self.form.loop.outer))
            pointer = self.pointers[operand]
            return from_memory(f"{pointer}[{offset} + {self._text(x.arguments[0])} * {pointer}_t]", x.dtype)
        if along and operand in self.loaded:
            return from_memory(f"{self.loaded[operand]}.at[j]", x.dtype)
        if self.operands[operand].counted:
            offset = re.sub(rf"\b(i\d+|{FIRST}|{EACH}) \*", r"(long long)\1 *", self._offset(operand, along, range(self.form.loop.outer)))
            return f"{self.pointers[operand]} + {offset}"
        return from_memory(self._element(operand, along), x.dtype)

    def _element(self, operand: int, along: str) -> str:
        """Return the text of an operand's element at index `along` of the row, or of its value for the whole row."""
        return f"{self.pointers[operand]}[{self._offset(operand, along, range(self.form.loop.outer))}]"

    def _out(self, k: int) -> str:
        return to_memory(self._text(self.outputs[k]), self.outputs[k].dtype)

    def _text(self, x: Expression) -> str:
        if x.primitive != "constant":
            return self.names[x]
        return self.passed.get(x) or literal(x.attribute, x.dtype)  # type: ignore[arg-type]

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
