"""Text of matrix products, y[m,n] = (c +) scale a[m,k] b[k,n]: tiles of y in registers, a panel of b in the cache.

    for each pair of matrices; for some hundred rows of y, for DEPTH of k    a part of a, in the second-level cache
        for the columns of PANEL vectors:                                    a panel of b, packed as [depth, columns], in the first-level cache
            for a few rows, 6 with 32 registers:                             a tile: 6 x 4 vectors of sums
                for k: one row of the panel, times one element of each row of a

The order follows K. Goto, R. van de Geijn, Anatomy of High-Performance Matrix Multiplication (2008).  Elements of a are read in place, unless a is
transposed and long: then the rows of a tile are packed.  Every element of y is summed in the order of k, in blocks of DEPTH, for any m and n.
A batch that is split over ranks therefore gives the same bits.  The addend c is y itself, another matrix, or one row for all rows (a bias).
The addend is read when a tile of y is written.  For a triangle a, a tile sums over the nonzero part of its rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from jobflow.core.dataclass import dataclass
from jobflow.kernels.llvm.instructions import several
from jobflow.kernels.llvm.machine_code import NAME
from jobflow.kernels.llvm.vector_function import VectorFunction, Vectors

#: part of k that is summed before y is accessed; most rows of a packed a per panel, which is on the stack
DEPTH, PACKED_ROWS = 256, 264
#: tiles of rows that are packed at once
TILES_AT_ONCE = 8
#: most tiles of rows for which a panel of b is read in place, because packing costs as much
UNPACKED_TILES = 2
#: most panels for which a transposed a is read in place
UNPACKED_PANELS = 2
#: rows of b, and bytes of its columns, that are prefetched before packing
ROWS_AHEAD, BYTES_AHEAD = 8, 128
#: the words of the argument block: addresses (c is 0 without an addend), sizes, strides in bytes; the address of a factor to subtract with, or 0
WORDS = (
    *("a", "b", "y", "c", "m", "n", "k", "a.down", "a.along", "b.down", "b.along", "y.down", "c.down"),
    *("outer", "a.outer", "b.outer", "y.outer", "c.outer", "inner", "a.inner", "b.inner", "y.inner", "c.inner", "by", "triangle"),
)
#: zeros of a: none known; above the diagonal, so that row i ends with k = i; below the diagonal, so that row i begins with k = i
FULL, LOWER, UPPER = range(3)
#: more than the number of rows
FAR = 1 << 60


@dataclass(frozen=True)
class ProductForm(Vectors):
    """The form of a product: vectors, and the shape of tiles.

    `rows` are the possible numbers of rows of a tile, in descending order to 1.  `panel` is the number of vectors per panel, and `most` the number
    of rows of a per block.
    """

    rows: tuple[int, ...]
    panel: int
    most: int


def print_product(form: ProductForm) -> str:
    """Print the module with `loop` for products of this form."""
    return printed_module(product_functions(form, NAME))


def product_functions(form: ProductForm, name: str) -> list[VectorFunction]:
    """Return the function of this name, which takes the address of an argument block, and its callees."""
    functions = [_driver(form, name), print_transposition(form)]
    for vectors, whole in _widths(form):
        functions += [_panel(form, vectors, whole), *(print_tile(form, rows, vectors, whole) for rows in form.rows)]
    return functions


def printed_module(functions: Sequence[VectorFunction]) -> str:
    declared = sorted(set().union(*(function.declared for function in functions)))
    return "\n".join([*(line for function in functions for line in function.text()), *declared, ""])


def _widths(form: ProductForm) -> list[tuple[int, bool]]:
    """Return the widths of panels, widest first: the number of vectors, and True if the last one is whole.

    If the last vector is not whole, it is masked, which is slow without mask registers.
    """
    return [(form.panel, True), *((vectors, False) for vectors in range(form.panel, 0, -1))]


def _named(vectors: int, whole: bool) -> str:
    return f"{vectors}.whole" if whole else f"{vectors}"


def print_tile(form: Vectors, rows: int, vectors: int, whole: bool) -> VectorFunction:
    """Print the function that computes a tile of y, `rows` rows by `vectors` vectors, as sums over the depth of one panel.

    The last vector is masked unless `whole` is True.
    """
    masks, name = {} if whole else {vectors - 1: "%mask"}, _named(vectors, whole)
    at = VectorFunction(
        form,
        f"internal void @tile_{rows}_{name}(ptr %a, i64 %down, i64 %along, ptr %b, i64 %step, i64 %depth, ptr %y, i64 %line, ptr %c, "
        f"i64 %c.line, {form.mask} %mask, {form.kind} %scale)",
    )
    starts, lines, addends = ["%a"], ["%y"], ["%c"]
    for _ in range(1, rows):
        for values, step in ((starts, "%down"), (lines, "%line"), (addends, "%c.line")):
            values.append(at.at(values[-1], step))
    vectors_of_tile = [(i, j) for i in range(rows) for j in range(vectors)]
    at.write(f"br i1 {at.value('icmp ne ptr %c, null')}, label %soon, label %sums")
    at.label("soon")
    for i, j in vectors_of_tile:
        at.fetch(at.at(addends[i], j * form.aligned), writes=True)
    at.write("br label %sums")
    at.label("sums")
    with at.repeated("k", "%depth", 1, b=("%b", "%step"), off=("null", "%along")):
        for i, j in vectors_of_tile:
            at.write(f"%old.{i}.{j} = phi {form.vector} [zeroinitializer, %sums], [%sum.{i}.{j}, %k.next]")
        off = at.value("ptrtoint ptr %k.off to i64")
        values = [at.load(at.at("%k.b", j * form.aligned), masks.get(j, "")) for j in range(vectors)]
        for i in range(rows):
            number = at.everywhere(at.value(f"load {form.kind}, ptr {at.at(starts[i], off)}, align {form.size}"))
            for j in range(vectors):
                at.multiplied(number, values[j], f"%old.{i}.{j}", name=f"%sum.{i}.{j}")
    scale = at.everywhere("%scale")
    at.write(f"br i1 {at.value('icmp ne ptr %c, null')}, label %added, label %alone")
    for label in ("added", "alone"):
        at.label(label)
        for i, j in vectors_of_tile:
            mask, value = masks.get(j, ""), f"%sum.{i}.{j}"
            if label == "added":
                value = at.multiplied(value, scale, at.load(at.at(addends[i], j * form.aligned), mask))
            at.store(value, at.at(lines[i], j * form.aligned), mask)
        at.write("ret void")
    return at


def _panel(form: ProductForm, vectors: int, whole: bool) -> VectorFunction:
    """Print the function that multiplies by one panel of b, tile by tile of rows.

    The panel is packed, or read in place for few rows.
    """
    name = _named(vectors, whole)
    at = VectorFunction(
        form,
        f"internal void @panel_{name}(ptr %a, i64 %down, i64 %along, i64 %tile, ptr %b, i64 %b.down, i64 %b.along, ptr %y, i64 %line, "
        f"ptr %c, i64 %c.line, i64 %m, i64 %width, i64 %depth, ptr %packed, {form.kind} %scale, i64 %low, i64 %high)",
    )
    lanes, step = form.lanes, vectors * form.aligned
    rest = at.value(f"sub i64 %width, {(vectors - 1) * lanes}")
    mask = at.first(rest)
    at.write(f"br i1 {at.value(f'icmp eq i64 %b.along, {form.size}')}, label %plain, label %across")
    at.label("across")
    for j in range(vectors):
        columns = rest if j == vectors - 1 else lanes
        start, packed = at.at("%b", at.value(f"mul i64 %b.along, {j * lanes}")), at.at("%packed", j * form.aligned)
        with at.repeated(f"t{j}", "%depth", lanes, b=(start, lanes * form.size), to=(packed, lanes * step)):
            depth_mask = at.first(at.value(f"sub i64 %depth, %t{j}"))
            at.write(f"call void @turn(ptr %t{j}.b, i64 %b.along, i64 {columns}, {form.mask} {depth_mask}, ptr %t{j}.to, i64 {step})")
    at.write("br label %ready")
    at.label("plain")
    at.write(f"br i1 {at.value(f'icmp sle i64 %m, {form.rows[0] * UNPACKED_TILES}')}, label %ready, label %pack")
    at.label("pack")
    ahead = at.value(f"mul i64 %b.down, {ROWS_AHEAD}")
    with at.repeated("k", "%depth", 1, b=("%b", "%b.down"), to=("%packed", step)):
        later = at.at("%k.b", ahead)
        for j in range(vectors):
            at.fetch(at.at(later, j * form.aligned))
            value = at.load(at.at("%k.b", j * form.aligned), mask if j == vectors - 1 and not whole else "")
            at.store(value, at.at("%k.to", j * form.aligned))
    at.write("br label %ready")
    at.label("ready")
    transposed = f"%t{vectors - 1}.done"
    panel = at.value(f"phi ptr [%packed, {transposed}], [%b, %plain], [%packed, %k.done]")
    steps = at.value(f"phi i64 [{step}, {transposed}], [%b.down, %plain], [{step}, %k.done]")
    _rows(at, form, name, panel, steps, mask)
    at.write("ret void")
    return at


def _rows(at: VectorFunction, form: ProductForm, width: str, panel: str, step: str, mask: str) -> None:
    """Print the loops over all rows: as many tiles with the most rows as fit, and so on down to one row."""
    last = at.value("sub i64 %depth, 1")
    at.write(f"br label %rows.{form.rows[0]}")
    kinds = {"a": "ptr", "y": "ptr", "c": "ptr", "left": "i64"}
    now, before = {"a": "%a", "y": "%y", "c": "%c", "left": "%m"}, at.block
    for rows, fewer in zip(form.rows, (*form.rows[1:], 0), strict=True):
        this, body, following = f"rows.{rows}", f"tile.{rows}", f"rows.{fewer}"
        at.label(this)
        for name, kind in kinds.items():
            at.write(f"%{name}.{rows} = phi {kind} [{now[name]}, %{before}], [%{name}.{rows}.j, %{body}]")
        at.write(f"br i1 {at.value(f'icmp sge i64 %left.{rows}, {rows}')}, label %{body}, label %{following}")
        at.label(body)
        done = at.value(f"sub i64 %m, %left.{rows}")
        start = at.most(at.least(at.value(f"add i64 %low, {done}"), last), 0)
        stop = at.most(at.least(at.value(f"add i64 %high, {at.value(f'add i64 {done}, {rows}')}"), "%depth"), 1)
        factors = (at.at(base, at.value(f"mul i64 {start}, {along}")) for base, along in ((f"%a.{rows}", "%along"), (panel, step)))
        a, b, depth = *factors, at.value(f"sub i64 {stop}, {start}")
        at.write(
            f"call void @tile_{rows}_{width}(ptr {a}, i64 %down, i64 %along, ptr {b}, i64 {step}, i64 {depth}, ptr %y.{rows}, i64 %line, "
            f"ptr %c.{rows}, i64 %c.line, {form.mask} {mask}, {form.kind} %scale)"
        )
        down = "%tile" if rows == form.rows[0] else at.value(f"mul i64 %down, {rows}")
        for name, step_down in (("a", down), ("y", at.value(f"mul i64 %line, {rows}")), ("c", at.value(f"mul i64 %c.line, {rows}"))):
            at.write(f"%{name}.{rows}.j = getelementptr i8, ptr %{name}.{rows}, i64 {step_down}")
        at.write(f"%left.{rows}.j = sub i64 %left.{rows}, {rows}")
        at.write(f"br label %{this}")
        now, before = {name: f"%{name}.{rows}" for name in kinds}, this
    at.label("rows.0")


def print_transposition(form: Vectors) -> VectorFunction:
    """Print the function that transposes contiguous columns of b to rows of a panel, by butterfly shuffles of a square of vectors."""
    at = VectorFunction(form, f"internal void @turn(ptr %b, i64 %along, i64 %columns, {form.mask} %mask, ptr %to, i64 %step)")
    lanes = form.lanes
    square = []
    for j in range(lanes):
        there = at.value(f"icmp slt i64 {j}, %columns")  # beyond, the first column is read again, and its results are not stored
        column = at.at("%b", at.value(f"select i1 {there}, i64 {at.value(f'mul i64 %along, {j}')}, i64 0"))
        at.fetch(at.at(column, BYTES_AHEAD))
        square.append(at.load(column, "%mask"))
    half = lanes // 2
    while half:
        for i in range(lanes):
            if not i & half:
                pair = square[i], square[i | half]
                square[i] = _shuffled(at, pair, [k if not k & half else lanes + (k & ~half) for k in range(lanes)])
                square[i | half] = _shuffled(at, pair, [k | half if not k & half else lanes + k for k in range(lanes)])
        half //= 2
    target = "%to"
    for i, row in enumerate(square):
        target = at.at(target, "%step") if i else target
        at.store(row, target)
    at.write("ret void")
    return at


def _shuffled(at: VectorFunction, pair: tuple[str, str], order: Sequence[int]) -> str:
    vector = at.form.vector
    return at.value(f"shufflevector {vector} {pair[0]}, {vector} {pair[1]}, <{len(order)} x i32> <{', '.join(f'i32 {k}' for k in order)}>")


def _driver(form: ProductForm, name: str) -> VectorFunction:
    """Print the loops over blocks, panels and tiles, for matrices with two batch axes."""
    at = VectorFunction(form, f"void @{name}(ptr %args)")
    tile = form.rows[0]
    at.write(f"%packed = alloca [{DEPTH * form.panel * form.lanes} x {form.kind}], align 64")
    at.write(f"%rows.of.a = alloca [{DEPTH * PACKED_ROWS + form.lanes} x {form.kind}], align 64")
    starts = load_words(at)
    scale = scale_of(at, form)
    packs = _packs(at, form)
    rows = _rows_at_a_time(at, tile, at.value(f"select i1 {packs}, i64 {PACKED_ROWS}, i64 {form.most}"))
    parts = {name: at.value(f"mul i64 %{name}.down, {rows}") for name in "ayc"}
    wide = form.panel * form.lanes
    beyond = ((UPPER, -FAR), (LOWER, FAR))
    addend_step = at.value(f"select i1 {at.value('icmp ne i64 %c, 0')}, i64 {wide * form.size}, i64 0")
    with (
        at.repeated("o", "%outer", 1, **{name: (starts[name], f"%{name}.outer") for name in "abyc"}),
        at.repeated("e", "%inner", 1, **{name: (f"%o.{name}", f"%{name}.inner") for name in "abyc"}),
        at.repeated("i", "%m", rows, **{name: (f"%e.{name}", parts[name]) for name in "ayc"}),
    ):
        count = at.least(at.value("sub i64 %m, %i"), rows)
        with at.repeated("d", "%k", DEPTH, a=("%i.a", at.value(f"mul i64 %a.along, {DEPTH}")), b=("%e.b", at.value(f"mul i64 %b.down, {DEPTH}"))):
            depth = at.least(at.value("sub i64 %k, %d"), DEPTH)
            first = at.value("icmp eq i64 %d, 0")
            added = (("ptr", "%i.c", "%i.y"), ("i64", "%c.down", "%y.down"), ("i64", addend_step, wide * form.size))
            row = at.value("sub i64 %i, %d")  # row of a's diagonal, relative to the first row of this block
            low, high = (at.value(f"select i1 {at.value(f'icmp eq i64 %triangle, {kind}')}, i64 {row}, i64 {x}") for kind, x in beyond)
            c, c_line, c_step = (at.value(f"select i1 {first}, {kind} {x}, {kind} {y}") for kind, x, y in added)
            plain, packed = at.value(f"mul i64 %a.down, {tile}"), at.value(f"mul i64 {depth}, {tile * form.size}")
            here = at.block
            at.write(f"br i1 {packs}, label %pack, label %ready")
            at.label("pack")
            _pack_rows(at, form, count, depth, packed)
            there = at.block
            at.write("br label %ready")
            at.label("ready")
            choices = (("ptr", "%d.a", "%rows.of.a"), ("i64", "%a.down", form.size), ("i64", "%a.along", tile * form.size), ("i64", plain, packed))
            a, down, along, next_tile = (at.value(f"phi {kind} [{x}, %{here}], [{y}, %{there}]") for kind, x, y in choices)
            across = at.value(f"mul i64 %b.along, {wide}")
            with at.repeated("j", "%n", wide, b=("%d.b", across), y=("%i.y", wide * form.size), c=(c, c_step)):
                width = at.least(at.value("sub i64 %n, %j"), wide)
                arguments = (
                    f"ptr {a}, i64 {down}, i64 {along}, i64 {next_tile}, ptr %j.b, i64 %b.down, i64 %b.along, ptr %j.y, i64 %y.down, ptr %j.c, "
                    f"i64 {c_line}, i64 {count}, i64 {width}, i64 {depth}, ptr %packed, {form.kind} {scale}, i64 {low}, i64 {high}"
                )
                _by_width(at, form, width, arguments)
    at.write("ret void")
    return at


def _rows_at_a_time(at: VectorFunction, tile: int, most: str) -> str:
    """Return the number of rows per block.

    Blocks have whole tiles, about `most` rows, and almost equal sizes, because each block packs the panels of b again.
    """

    def parts(count: str, of: str | int) -> str:
        """Return the number of parts of at most `of` rows in `count` rows."""
        last = at.value(f"add i64 {count}, {at.value(f'sub i64 {of}, 1')}")
        return at.value(f"udiv i64 {last}, {of}")

    return at.value(f"mul i64 {parts(parts('%m', parts('%m', most)), tile)}, {tile}")


def load_words(at: VectorFunction) -> dict[str, str]:
    """Load the words of the argument block to values of the same names; return the addresses of a, b, y and c as pointers."""
    for index, name in enumerate(WORDS):
        at.write(f"%{name} = load i64, ptr {at.at('%args', index * 8)}")
    return {name: at.value(f"inttoptr i64 %{name} to ptr") for name in "abyc"}


def scale_of(at: VectorFunction, form: ProductForm) -> str:
    """Return the scale of the product: 1, or minus the value at the address `by` if the argument block has one."""
    at.write(f"br i1 {at.value('icmp ne i64 %by, 0')}, label %given, label %start")
    at.label("given")
    rate = at.value(f"load {form.kind}, ptr {at.value('inttoptr i64 %by to ptr')}")
    minus = at.value(f"fneg {form.kind} {rate}")
    at.write("br label %start")
    at.label("start")
    return at.value(f"phi {form.kind} [1.0, %entry], [{minus}, %given]")


def _packs(at: VectorFunction, form: ProductForm) -> str:
    """Return the condition under which rows of a are packed: a is column-major, and y has many panels."""
    across = at.value(f"icmp ne i64 %a.along, {form.size}")
    contiguous = at.value(f"icmp eq i64 %a.down, {form.size}")
    many = at.value(f"icmp sgt i64 %n, {form.panel * form.lanes * UNPACKED_PANELS}")
    return at.value(f"and i1 {many}, {at.value(f'and i1 {across}, {contiguous}')}")


def _pack_rows(at: VectorFunction, form: ProductForm, count: str, depth: str, packed: str) -> None:
    """Print the packing of rows of a as [tile, depth, rows of a tile], several adjacent tiles at once, because they share cache lines."""
    tile = form.rows[0]
    width = tile * TILES_AT_ONCE
    whole = at.value(f"mul i64 {at.value(f'udiv i64 {count}, {width}')}, {width}")
    before = at.block
    at.write(f"br i1 {at.value(f'icmp eq i64 {whole}, 0')}, label %single, label %several")
    at.label("several")
    whole_tile = [] if tile.bit_count() == 1 else _masks(at, form, tile)
    several_packed = at.value(f"mul i64 {packed}, {TILES_AT_ONCE}")
    with at.repeated("g", whole, width, a=("%d.a", width * form.size), to=("%rows.of.a", several_packed)):
        starts = ["%g.to"]
        for _ in range(1, TILES_AT_ONCE):
            starts.append(at.at(starts[-1], packed))
        with at.repeated("h", depth, 1, a=("%g.a", "%a.along"), off=("null", tile * form.size)):
            off = at.value("ptrtoint ptr %h.off to i64")
            for t, start in enumerate(starts):
                _pack_tile(at, form, at.at("%h.a", t * tile * form.size), at.at(start, off), whole_tile)
    rest = at.value(f"sub i64 {count}, {whole}")
    after = at.block
    at.write(f"br i1 {at.value(f'icmp eq i64 {rest}, 0')}, label %rows.ready, label %single")
    at.label("single")
    first = at.value(f"phi i64 [0, %{before}], [{whole}, %{after}]")
    left = at.value(f"sub i64 {count}, {first}")
    target = at.at("%rows.of.a", at.value(f"mul i64 {at.value(f'udiv i64 {first}, {tile}')}, {packed}"))
    source = at.at("%d.a", at.value(f"mul i64 {first}, {form.size}"))
    with at.repeated("p", left, tile, a=(source, tile * form.size), to=(target, packed)):
        masks = _masks(at, form, at.least(at.value(f"sub i64 {left}, %p"), tile))
        with at.repeated("q", depth, 1, a=("%p.a", "%a.along"), to=("%p.to", tile * form.size)):
            _pack_tile(at, form, "%q.a", "%q.to", masks)
    at.write("br label %rows.ready")
    at.label("rows.ready")


def _masks(at: VectorFunction, form: ProductForm, rows: str | int) -> list[str]:
    """Return the masks of the vectors that contain this many rows of a tile."""
    return [at.first(at.value(f"sub i64 {rows}, {first}")) for first in range(0, form.rows[0], form.lanes)]


def _pack_tile(at: VectorFunction, form: ProductForm, source: str, to: str, masks: Sequence[str]) -> None:
    """Print the copy of a tile's rows of a, at one index of the depth, from the address `source` to the address `to`.

    Without masks, all rows of a tile are copied as one vector, because masked stores are slow on most processors.
    """
    if not masks:
        rows = several(form.kind, form.rows[0])
        at.write(f"store {rows} {at.value(f'load {rows}, ptr {source}, align {form.size}')}, ptr {to}, align {form.size}")
    for n, mask in enumerate(masks):
        at.store(at.load(at.at(source, n * form.aligned), mask), at.at(to, n * form.aligned), mask)


def _by_width(at: VectorFunction, form: ProductForm, width: str, arguments: str) -> None:
    """Print the selection of the panel function for this number of columns, and its call."""
    for vectors, whole in _widths(form):
        name = _named(vectors, whole)
        least = vectors * form.lanes - 1 if whole else (vectors - 1) * form.lanes
        if least:
            at.write(f"br i1 {at.value(f'icmp sgt i64 {width}, {least}')}, label %wide.{name}, label %less.{name}")
            at.label(f"wide.{name}")
        at.write(f"call void @panel_{name}({arguments})")
        at.write("br label %made")
        if least:
            at.label(f"less.{name}")
    at.label("made")
