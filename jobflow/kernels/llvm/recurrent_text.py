"""Text of recurrences over time: a loop over steps, each with small products and one elementwise pass.

    pack the weight w into panels of a few vectors, once
    for each step:
        for each panel:                                   a few vectors of hidden units, for all gates
            sums = h' w^T (or d w in a gradient)          tiles of some rows, in blocks of DEPTH; sums are in the first-level cache
            for each vector of hidden units, each row:    the formula of a step, from the sums and operands to the results

The product of a step reads the state that the previous step wrote.  In a gradient, it reads the gradients of the next step's gates.  A formula is
an expression with an element for each of its operands (`StepForm`).  It is printed once for whole vectors, and once for the last hidden units.
"""

from __future__ import annotations

from collections.abc import Sequence

from jobflow.core.dataclass import dataclass
from jobflow.expressions.language import Expression, in_order
from jobflow.kernels.llvm.instructions import INSTRUCTIONS, literal, several
from jobflow.kernels.llvm.machine_code import NAME
from jobflow.kernels.llvm.product_text import print_tile, print_transposition, printed_module
from jobflow.kernels.llvm.vector_function import VectorFunction, Vectors

#: part of a sum for which a panel of w is in the first-level cache
DEPTH = 128
#: words before those of the operands: addresses, sizes, and strides in bytes
HEAD = (
    *("w", "packed", "sums", "start", "product", "lengths", "steps", "n", "hidden", "depth", "w.down", "start.down", "product.down", "product.step"),
    *("first", "start.panel", "time", "time.step"),
)
#: words of each operand: addresses at the first and the last step, and the strides of a step, a row and a block of hidden units in bytes
OPERAND = ("address", "last", "step", "down", "block")


@dataclass(frozen=True)
class StepForm(Vectors):
    """The properties of a recurrence that determine its compiled loop.

    A panel has `vectors` vectors of sums: one of each gate, or `units` vectors of hidden units.  The weight is [depth, hidden], or with `transposed`
    [gates, hidden, depth].  The formula reads element 0, 1, ... for `reads`, which are pairs of an operand and a block of hidden units.  `writes`
    are the targets of its results.  Operand -1 is the sums.  Operand -2 is the condition that a sample has a step; its block is the distance of
    this step from the current one.
    """

    rows: tuple[int, ...]
    vectors: int
    units: int
    transposed: bool
    operands: int
    reads: tuple[tuple[int, int], ...]
    writes: tuple[tuple[int, int], ...]
    outputs: tuple[Expression, ...]


def print_recurrence(form: StepForm) -> str:
    """Print the module with `loop` for recurrences of this form."""
    tiles = [print_tile(form, rows, form.vectors, True) for rows in form.rows]
    turning = [print_transposition(form)] if form.transposed else []
    return printed_module([_driver(form), *turning, *tiles, *(_formula(form, whole) for whole in (True, False))])


def words(form: StepForm) -> list[str]:
    """Return the names of the words of the argument block."""
    return [*HEAD, *(f"o{k}.{what}" for k in range(form.operands) for what in OPERAND)]


def _load_words(at: VectorFunction, form: StepForm) -> None:
    for index, name in enumerate(words(form)):
        kind = "ptr" if name.endswith(("address", "last")) or name in HEAD[:6] else "i64"
        at.write(f"%{name} = load {kind}, ptr {at.at('%args', index * 8)}")


def _formula(form: StepForm, whole: bool) -> VectorFunction:
    """Print the function that applies the formula to one vector of hidden units of all rows.

    `%off` is the offset of the hidden units in bytes, `%current` has the addresses of the operands at this step.
    """
    name = "whole" if whole else "part"
    at = VectorFunction(form, f"internal void @formula.{name}(ptr %args, ptr %current, i64 %t, ptr %sums, i64 %sums.down, i64 %off, i64 %left)")
    _load_words_of_formula(at, form)
    mask = "" if whole else at.first("%left")
    carried: dict[str, tuple[str, str | int]] = {"sums": ("%sums", "%sums.down"), "length": ("%lengths", 8)}
    for k in range(form.operands):
        base = at.value(f"load ptr, ptr {at.at('%current', k * 8)}")
        carried[f"o{k}"] = at.at(base, "%off"), f"%o{k}.down"
    with at.repeated("r", "%n", 1, **carried):
        known: dict[Expression, str] = {}
        loads = [_load(at, form, operand, block, mask) for operand, block in form.reads]
        for x in in_order(form.outputs):
            if x.primitive == "element":
                known[x] = loads[int(str(x.attribute))]
            elif x.primitive == "constant":
                known[x] = literal(x.attribute, x.dtype, form.lanes)  # type: ignore[arg-type]
            else:
                known[x] = INSTRUCTIONS[x.primitive](at, x, [known[y] for y in x.arguments], form.lanes)
        for (operand, block), x in zip(form.writes, form.outputs, strict=True):
            at.store(known[x], _address(at, operand, block), mask)
    at.write("ret void")
    return at


def _load_words_of_formula(at: VectorFunction, form: StepForm) -> None:
    names = words(form)
    used = ["n", "lengths", *(f"o{k}.{what}" for k in range(form.operands) for what in ("down", "block"))]
    for name in used:
        kind = "ptr" if name == "lengths" else "i64"
        at.write(f"%{name} = load {kind}, ptr {at.at('%args', names.index(name) * 8)}")


def _address(at: VectorFunction, operand: int, block: int) -> str:
    base = f"%r.o{operand}"
    return base if not block else at.at(base, at.value(f"mul i64 %o{operand}.block, {block}"))


def _load(at: VectorFunction, form: StepForm, operand: int, block: int, mask: str) -> str:
    """Print the load of an operand of the formula; return its value."""
    if operand == -1:
        return at.load(at.at("%r.sums", block * form.aligned), mask)
    if operand == -2:
        length = at.value("load i64, ptr %r.length")
        inside = at.value(f"icmp slt i64 {at.value(f'add i64 %t, {block}')}, {length}")
        kind = several("i1", form.lanes)
        one = at.value(f"insertelement {kind} poison, i1 {inside}, i64 0")
        return at.value(f"shufflevector {kind} {one}, {kind} poison, <{form.lanes} x i32> zeroinitializer")
    return at.load(_address(at, operand, block), mask)


def _driver(form: StepForm) -> VectorFunction:
    """Print the loops over steps, panels, blocks of the sum, and vectors of hidden units."""
    at = VectorFunction(form, f"void @{NAME}(ptr %args)")
    at.write(f"%current = alloca [{max(form.operands, 1)} x ptr], align 8")
    _load_words(at, form)
    panel = at.value(f"mul i64 %depth, {form.vectors * form.aligned}")
    _pack(at, form, panel)
    final = at.value("sub i64 %steps, 1")
    _set_operands(at, form, [f"%o{k}.address" for k in range(form.operands)], at.value(f"icmp eq i64 {final}, 0"))
    unit = form.units * form.lanes
    with at.repeated("s", "%steps", 1, a=("%product", "%product.step"), t=("null", "%time.step")):
        t = at.value(f"add i64 %time, {at.value('ptrtoint ptr %s.t to i64')}")
        begins = at.value("icmp eq i64 %s, 0")
        skips = at.value(f"and i1 {begins}, {at.value('icmp ne i64 %first, 0')}")
        inner = at.value(f"select i1 {skips}, i64 %start.down, i64 {form.vectors * form.aligned}")
        sums = (at.value(f"select i1 {skips}, ptr %start, ptr %sums"), at.value(f"select i1 {skips}, i64 %start.panel, i64 0"))
        previous = at.value(f"select i1 {begins}, ptr %start, ptr {at.at('%s.a', at.value('sub i64 0, %product.step'))}")
        down = at.value(f"select i1 {begins}, i64 %start.down, i64 %product.down")
        with at.repeated("p", "%hidden", unit, panel=("%packed", panel), sums=sums, off=("null", unit * form.size)):
            at.write(f"br i1 {skips}, label %apply, label %multiply")
            at.label("multiply")
            _products(at, form, previous, down)
            at.write("br label %apply")
            at.label("apply")
            rest = at.value("sub i64 %hidden, %p")
            count = at.least(rest, unit)
            off = at.value("ptrtoint ptr %p.off to i64")
            with at.repeated("v", count, form.lanes, sums=("%p.sums", form.aligned), off=("null", form.aligned)):
                left = at.value(f"sub i64 {rest}, %v")
                here = at.value(f"add i64 {off}, {at.value('ptrtoint ptr %v.off to i64')}")
                arguments = f"ptr %args, ptr %current, i64 {t}, ptr %v.sums, i64 {inner}, i64 {here}, i64 {left}"
                at.write(f"br i1 {at.value(f'icmp sge i64 {left}, {form.lanes}')}, label %whole, label %part")
                for label in ("whole", "part"):
                    at.label(label)
                    at.write(f"call void @formula.{label}({arguments})")
                    at.write("br label %applied")
                at.label("applied")
        moved = [at.at(at.value(f"load ptr, ptr {at.at('%current', k * 8)}"), f"%o{k}.step") for k in range(form.operands)]
        _set_operands(at, form, moved, at.value(f"icmp eq i64 {at.value('add i64 %s, 1')}, {final}"))
    at.write("ret void")
    return at


def _set_operands(at: VectorFunction, form: StepForm, addresses: Sequence[str], last: str) -> None:
    """Print the stores of the operands' addresses at the next step, which may be the last one."""
    for k, address in enumerate(addresses):
        at.write(f"store ptr {at.value(f'select i1 {last}, ptr %o{k}.last, ptr {address}')}, ptr {at.at('%current', k * 8)}")


def _pack(at: VectorFunction, form: StepForm, panel: str) -> None:
    """Print the packing of w: panels [depth, vectors], whose lanes beyond the hidden units have any finite values."""
    unit, line = form.units * form.lanes, form.vectors * form.aligned
    if not form.transposed:  # w is [depth, hidden]
        with (
            at.repeated("pp", "%hidden", unit, w=("%w", unit * form.size), to=("%packed", panel)),
            at.repeated("pk", "%depth", 1, w=("%pp.w", "%w.down"), to=("%pp.to", line)),
        ):
            left = at.value("sub i64 %hidden, %pp")
            for v in range(form.vectors):
                mask = at.first(at.value(f"sub i64 {left}, {v * form.lanes}"))
                at.store(at.load(at.at("%pk.w", v * form.aligned), mask), at.at("%pk.to", v * form.aligned))
        return
    # w is [gates, hidden, depth]
    along = at.value(f"mul i64 %w.down, {form.lanes}")
    gate = at.value("mul i64 %hidden, %w.down") if form.units == 1 else along
    with at.repeated("pp", "%hidden", unit, w=("%w", at.value(f"mul i64 {along}, {form.units}")), to=("%packed", panel)):
        left = at.value("sub i64 %hidden, %pp")
        with at.repeated("pv", str(form.vectors), 1, w=("%pp.w", gate), to=("%pp.to", form.aligned)):
            rest = left if form.units == 1 else at.value(f"sub i64 {left}, {at.value(f'mul i64 %pv, {form.lanes}')}")
            columns = at.least(rest, form.lanes)
            base = at.value(f"select i1 {at.value(f'icmp sgt i64 {columns}, 0')}, ptr %pv.w, ptr %w")  # any memory, for lanes beyond the hidden units
            with at.repeated("pk", "%depth", form.lanes, w=(base, form.aligned), to=("%pv.to", form.lanes * line)):
                mask = at.first(at.value("sub i64 %depth, %pk"))
                at.write(f"call void @turn(ptr %pk.w, i64 %w.down, i64 {columns}, {form.mask} {mask}, ptr %pk.to, i64 {line})")


def _products(at: VectorFunction, form: StepForm, factor: str, down: str) -> None:
    """Print the product of all rows with one panel, in blocks of the sum.

    The rows are divided into as many tiles with the most rows as fit, and so on down to one row.
    """
    line = form.vectors * form.aligned
    with at.repeated("d", "%depth", DEPTH, a=(factor, DEPTH * form.size), b=("%p.panel", DEPTH * line)):
        depth = at.least(at.value("sub i64 %depth, %d"), DEPTH)
        addend = at.value(f"select i1 {at.value('icmp eq i64 %d, 0')}, ptr null, ptr %sums")
        addend_line = at.value(f"select i1 {at.value('icmp eq i64 %d, 0')}, i64 0, i64 {line}")
        now = {"a": "%d.a", "y": "%sums", "c": addend, "left": "%n"}
        kinds = {"a": "ptr", "y": "ptr", "c": "ptr", "left": "i64"}
        before = at.block
        at.write(f"br label %rows.{form.rows[0]}")
        for rows, fewer in zip(form.rows, (*form.rows[1:], 0), strict=True):
            at.label(f"rows.{rows}")
            for name, kind in kinds.items():
                at.write(f"%{name}.{rows} = phi {kind} [{now[name]}, %{before}], [%{name}.{rows}.j, %tile.{rows}]")
            at.write(f"br i1 {at.value(f'icmp sge i64 %left.{rows}, {rows}')}, label %tile.{rows}, label %rows.{fewer}")
            at.label(f"tile.{rows}")
            at.write(
                f"call void @tile_{rows}_{form.vectors}.whole(ptr %a.{rows}, i64 {down}, i64 {form.size}, ptr %d.b, i64 {line}, i64 {depth}, "
                f"ptr %y.{rows}, i64 {line}, ptr %c.{rows}, i64 {addend_line}, {form.mask} splat (i1 true), {form.kind} 1.0)"
            )
            for name, stride in (("a", at.value(f"mul i64 {down}, {rows}")), ("y", rows * line), ("c", at.value(f"mul i64 {addend_line}, {rows}"))):
                at.write(f"%{name}.{rows}.j = getelementptr i8, ptr %{name}.{rows}, i64 {stride}")
            at.write(f"%left.{rows}.j = sub i64 %left.{rows}, {rows}")
            at.write(f"br label %rows.{rows}")
            now, before = {name: f"%{name}.{rows}" for name in kinds}, f"rows.{rows}"
        at.label("rows.0")
