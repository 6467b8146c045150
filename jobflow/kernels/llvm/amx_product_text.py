"""Text of float32 products for processors with matrix registers for bfloat16 (Advanced Matrix Extensions, AMX).

A float32 is exactly the sum of three bfloat16, x = x0 + x1 + x2, with 8 of its 24 digits each.  So

    a b = a0 b0 + (a0 b1 + a1 b0) + (a0 b2 + a1 b1 + a2 b0) + terms below 2^-23 |a| |b|

and each of the six terms is a product of bfloat16 matrices with float32 sums.  (G. Henry, P. Tang, A. Heinecke, Leveraging the bfloat16 artificial
intelligence datatype for higher-precision computations, 2019.)  The error is smaller than the error of float32 products, because 32 terms are
summed before they are added to the total.  The time is about half (decision 0079).

    for DEPTH of k, for COLUMNS of y:           a part of b, packed as [panel of 32 columns, step of 32 k, piece, half]
        for 32 rows of y:                       rows of a, packed as [step, piece, half]
            for each panel:                     a tile of y, 32 x 32, in four registers; 24 products of registers per step

A factor converted from bfloat16 has one nonzero piece, and a factor converted from float16 has two.  If no factor has more than one piece, one
product replaces the six; for up to two pieces, four products do.

A half of a tile's rows of a, or columns of b, fits one register: 16 of them by 32 k, 1,024 bytes.  Its lines contain pairs of k, p and p + 16.
Sums of a part are rounded to float32 and added to y.  The unit flushes numbers below 2^-126 to zero.  A part is therefore multiplied in vectors if
its largest magnitude is not finite or not between 2^-40 and 2^127.  Products for which packing costs more than it saves use vectors too (`_pays`).
"""

from __future__ import annotations

from jobflow.kernels.llvm.machine_code import NAME
from jobflow.kernels.llvm.product_text import FULL, LOWER, UPPER, WORDS, ProductForm, load_words, printed_module, product_functions, scale_of
from jobflow.kernels.llvm.vector_function import VectorFunction

#: part of k that is summed before y is accessed, and columns of y whose part of b is on the stack, with 6 bytes per element
DEPTH, COLUMNS = 128, 1024
#: rows and columns of a tile, and k of a step; rows or columns of one register
SIDE, HALF = 32, 16
#: bytes of a register, of a piece (two halves), of a step (three pieces)
REGISTER, PIECE, STEP = 1024, 2048, 6144
#: pairs (piece of a, piece of b) multiplied in a step, small ones first; consecutive pairs share a piece
ORDER = ((0, 2), (0, 1), (1, 1), (1, 0), (2, 0), (0, 0))
#: a number of pieces that marks operands the unit cannot process
UNFIT = 16
#: bits of 2^127 and of 2^-40: a float32 as an integer
TOO_LARGE, TOO_SMALL = (127 + 127) << 23, (127 - 40) << 23
#: smallest ratio of rows times columns to their sum, and smallest filled share of the tiles, for which packing saves time
REUSE, FILLED = 48, (2, 3)
_INTEGERS = f"<{HALF} x i32>"


def print_amx_product(form: ProductForm) -> str:
    """Print the module for products of this form; its function `loop` multiplies in tiles or in vectors."""
    tiles = [_tile(form, pieces, rows, columns) for pieces in (1, 2, 3) for rows in (1, 2) for columns in (1, 2)]
    own = [_choice(form), _driver(form), _pack(form, "rows"), _pack(form, "columns"), _block(form), _in_vectors(form), *tiles]
    # 16 lines of 64 bytes in each of eight registers
    lines = ", ".join([*["i8 1", *["i8 0"] * 15], *["i8 64, i8 0"] * 8, *["i8 0"] * 16, *["i8 16"] * 8, *["i8 0"] * 8])
    return printed_module([*own, *product_functions(form, "vectors")]) + f"@registers = internal constant <64 x i8> <{lines}>, align 64\n"


def _choice(form: ProductForm) -> VectorFunction:
    at = VectorFunction(form, f"void @{NAME}(ptr %args)")
    load_words(at)
    at.write(f"br i1 {_pays(at)}, label %tiles, label %vectors")
    for label in ("tiles", "vectors"):
        at.label(label)
        at.write(f"call void @{label}(ptr %args)")
        at.write("ret void")
    return at


def _pays(at: VectorFunction) -> str:
    """Return the condition under which packing saves time.

    Each packed element must be reused often, tiles must be nearly full, and each factor must be contiguous along one axis.
    """

    def times(*factors: str | int) -> str:
        first, *others = factors
        for factor in others:
            first = at.value(f"mul i64 {first}, {factor}")
        return str(first)

    area, around = times("%m", "%n"), at.value("add i64 %m, %n")
    filled = times(_up(at, "%m", HALF), _up(at, "%n", HALF), _up(at, "%k", SIDE))
    full = at.value(f"icmp sge i64 {times(area, '%k', FILLED[1])}, {times(filled, FILLED[0])}")
    used = at.value(f"icmp sge i64 {area}, {times(around, REUSE)}")
    pays = at.value(f"and i1 {full}, {used}")
    for factor in "ab":
        down, along = (at.value(f"icmp eq i64 %{factor}.{axis}, {at.form.size}") for axis in ("down", "along"))
        pays = at.value(f"and i1 {pays}, {at.value(f'or i1 {down}, {along}')}")
    return pays


def _parts(at: VectorFunction, count: str, of: int) -> str:
    return at.value(f"udiv i64 {at.value(f'add i64 {count}, {of - 1}')}, {of}")


def _up(at: VectorFunction, count: str, to: int) -> str:
    return at.value(f"mul i64 {_parts(at, count, to)}, {to}")


def _driver(form: ProductForm) -> VectorFunction:
    """Print the loops over blocks, panels and tiles, for matrices with two batch axes."""
    at = VectorFunction(form, "internal void @tiles(ptr %args)")
    at.write(f"%columns = alloca [{COLUMNS * DEPTH * 6} x i8], align 64")
    at.write(f"%rows = alloca [{SIDE * DEPTH * 6} x i8], align 64")
    at.write(f"%pieces = alloca [{COLUMNS // SIDE} x i8]")
    at.effect("llvm.x86.ldtilecfg", "ptr @registers")
    starts = load_words(at)
    scale = scale_of(at, form)
    deeper = {"a": at.value(f"mul i64 %a.along, {DEPTH}"), "b": at.value(f"mul i64 %b.down, {DEPTH}")}
    lower = {name: at.value(f"mul i64 %{name}.down, {SIDE}") for name in "ay"}
    next_columns, next_panel = (at.value(f"mul i64 %b.along, {count}") for count in (COLUMNS, SIDE))
    with (
        at.repeated("o", "%outer", 1, **{name: (starts[name], f"%{name}.outer") for name in "abyc"}),
        at.repeated("e", "%inner", 1, **{name: (f"%o.{name}", f"%{name}.inner") for name in "abyc"}),
        at.repeated("d", "%k", DEPTH, **{name: (f"%e.{name}", step) for name, step in deeper.items()}),
    ):
        at.write(f"%depth = add i64 {at.least(at.value('sub i64 %k, %d'), DEPTH)}, 0")
        at.write(f"%steps = add i64 {_parts(at, '%depth', SIDE)}, 0")
        at.write(f"%size = mul i64 %steps, {STEP}")
        first = at.value("icmp eq i64 %d, 0")
        c = at.value(f"select i1 {first}, ptr %e.c, ptr %e.y")
        at.write(f"%line.c = select i1 {first}, i64 %c.down, i64 %y.down")
        at.write(f"%element.c = select i1 {at.value(f'icmp ne ptr {c}, null')}, i64 {form.size}, i64 0")
        lower_c, next_c = at.value(f"mul i64 %line.c, {SIDE}"), at.value(f"mul i64 %element.c, {COLUMNS}")
        with at.repeated("j", "%n", COLUMNS, b=("%d.b", next_columns), y=("%e.y", COLUMNS * form.size), c=(c, next_c)):
            at.write(f"%width = add i64 {at.least(at.value('sub i64 %n, %j'), COLUMNS)}, 0")
            with at.repeated("p", "%width", SIDE, b=("%j.b", next_panel), to=("%columns", "%size"), pieces=("%pieces", 1)):
                left = at.least(at.value("sub i64 %width, %p"), SIDE)
                pieces = at.value(f"call i8 @pack_columns(ptr %p.b, i64 %b.down, i64 %b.along, i64 {left}, i64 %depth, ptr %p.to)")
                at.write(f"store i8 {pieces}, ptr %p.pieces")
            with at.repeated("i", "%m", SIDE, a=("%d.a", lower["a"]), y=("%j.y", lower["y"]), c=("%j.c", lower_c)):
                _row_of_tiles(at, form, next_panel, scale)
    at.effect("llvm.x86.tilerelease")
    at.write("ret void")
    return at


def _row_of_tiles(at: VectorFunction, form: ProductForm, next_panel: str, scale: str) -> None:
    """Print the products of packed rows of a with all panels; panels with values that AMX cannot multiply are multiplied in vectors."""
    rows = at.least(at.value("sub i64 %m, %i"), SIDE)
    pieces = at.value(f"call i8 @pack_rows(ptr %i.a, i64 %a.down, i64 %a.along, i64 {rows}, i64 %depth, ptr %rows)")
    begin, end = _of_triangle(at)
    off, count = at.value(f"mul i64 {begin}, {STEP}"), at.value(f"sub i64 {end}, {begin}")
    a, next_c = at.at("%rows", off), at.value(f"mul i64 %element.c, {SIDE}")
    pointers: dict[str, tuple[str, str | int]] = {
        "y": ("%i.y", SIDE * form.size),
        "c": ("%i.c", next_c),
        "from": ("%j.b", next_panel),
        "pieces": ("%pieces", 1),
    }
    with at.repeated("q", "%width", SIDE, b=("%columns", "%size"), **pointers):
        columns = at.least(at.value("sub i64 %width, %q"), SIDE)
        sizes, added = f"i64 {rows}, i64 {columns}", "ptr %q.c, i64 %line.c"
        arguments = f"ptr {a}, ptr {at.at('%q.b', off)}, i64 {count}, ptr %q.y, i64 %y.down, {added}, {sizes}, {form.kind} {scale}"
        most = at.call("llvm.umax.i8", "i8", f"i8 {pieces}", f"i8 {at.value('load i8, ptr %q.pieces')}")
        kind = at.value(f"mul i8 {most}, 4")
        for size, weight in ((rows, 2), (columns, 1)):
            many = at.value(f"icmp sgt i64 {size}, {HALF}")
            kind = at.value(f"add i8 {kind}, {at.value(f'select i1 {many}, i8 {weight}, i8 0')}")
        tiles = {4 * n + 2 * (i - 1) + j - 1: f"tile_{n}_{i}_{j}" for n in (1, 2, 3) for i in (1, 2) for j in (1, 2)}
        at.write(f"switch i8 {kind}, label %unfit [{' '.join(f'i8 {number}, label %{name}' for number, name in tiles.items())}]")
        at.label("unfit")
        at.write(f"call void @in_vectors(ptr %args, ptr %i.a, ptr %q.from, ptr %q.y, {added}, {sizes}, i64 %depth)")
        at.write("br label %made")
        for name in tiles.values():
            at.label(name)
            at.write(f"call void @pieces.{name}({arguments})")
            at.write("br label %made")
        at.label("made")


def _of_triangle(at: VectorFunction) -> tuple[str, str]:
    """Return the steps along k in which the current rows of a are not zero: the first step, and the step after the last.

    The range has at least one step.
    """
    row = at.value(f"sdiv i64 {at.value('sub i64 %i, %d')}, {SIDE}")  # the step in which these rows cross the diagonal
    begin = at.most(at.least(row, at.value("sub i64 %steps, 1")), 0)
    end = at.most(at.least(at.value(f"add i64 {row}, 1"), "%steps"), 1)
    upper, lower = (at.value(f"icmp eq i64 %triangle, {kind}") for kind in (UPPER, LOWER))
    return at.value(f"select i1 {upper}, i64 {begin}, i64 0"), at.value(f"select i1 {lower}, i64 {end}, i64 %steps")


def _tile(form: ProductForm, pieces: int, rows: int, columns: int) -> VectorFunction:
    """Print the function for a tile of y with `rows` x `columns` halves, from factors of this many pieces.

    Registers 0 to 3 contain sums, 4 and 5 a piece of a, 6 and 7 a piece of b.
    """
    name, sizes = f"pieces.tile_{pieces}_{rows}_{columns}", f"i64 %rows, i64 %columns, {form.kind} %scale"
    at = VectorFunction(form, f"internal void @{name}(ptr %a, ptr %b, i64 %steps, ptr %y, i64 %line, ptr %c, i64 %c.line, {sizes})")
    line = SIDE * form.size
    at.write(f"%sums = alloca [{SIDE * SIDE} x {form.kind}], align 64")
    halves_of_tile = [(i, j) for i in range(rows) for j in range(columns)]
    for i, j in halves_of_tile:
        at.effect("llvm.x86.tilezero", f"i8 {2 * i + j}")
    with at.repeated("s", "%steps", 1, a=("%a", STEP), b=("%b", STEP)):
        loaded: tuple[int | None, int | None] = (None, None)
        for pair in (pair for pair in ORDER if max(pair) < pieces):
            for piece, before, first, halves, base in zip(pair, loaded, (4, 6), (rows, columns), "ab", strict=True):
                for half in range(halves) if piece != before else ():
                    at.effect("llvm.x86.tileloadd64", f"i8 {first + half}", f"ptr {at.at(f'%s.{base}', piece * PIECE + half * REGISTER)}", "i64 64")
            for i, j in halves_of_tile:
                at.effect("llvm.x86.tdpbf16ps", f"i8 {2 * i + j}", f"i8 {4 + i}", f"i8 {6 + j}")
            loaded = pair
    for i, j in halves_of_tile:
        at.effect("llvm.x86.tilestored64", f"i8 {2 * i + j}", f"ptr {at.at('%sums', i * HALF * line + j * 64)}", f"i64 {line}")
    masks = [at.first(at.value(f"sub i64 %columns, {j * HALF}")) for j in range(columns)]
    scale = at.everywhere("%scale")
    at.write(f"br i1 {at.value('icmp ne ptr %c, null')}, label %added, label %alone")
    for label in ("added", "alone"):
        at.label(label)
        row = f"{label}.row"
        with at.repeated(row, "%rows", 1, sums=("%sums", line), y=("%y", "%line"), c=("%c", "%c.line")):
            for j, mask in enumerate(masks):
                value = at.load(at.at(f"%{row}.sums", j * 64))
                if label == "added":
                    value = at.multiplied(value, scale, at.load(at.at(f"%{row}.c", j * 64), mask))
                at.store(value, at.at(f"%{row}.y", j * 64), mask)
        at.write("ret void")
    return at


def _pack(form: ProductForm, what: str) -> VectorFunction:
    """Print the function that packs up to 32 rows of a (if `what` is "rows"), or up to 32 columns of b, as bfloat16 pieces.

    The function returns the number of nonzero pieces, at least 1, or more than 3 if the largest magnitude is out of range.  A line of a register
    has sixteen words of two elements.  For a, the lower halves of the words are k = 0 to 15 of a row, and the upper halves k = 16 to 31.  For b, they
    are 16 columns of row k and of row k + 16.
    """
    of_rows = what == "rows"
    at = VectorFunction(form, f"internal i8 @pack_{what}(ptr %x, i64 %down, i64 %along, i64 %count, i64 %depth, ptr %packed)")
    at.write(f"%block = alloca [{SIDE * SIDE} x {form.kind}], align 64")
    for name in ("greatest", "digits"):
        at.write(f"%{name} = alloca {_INTEGERS}, align 64")
        at.write(f"store {_INTEGERS} zeroinitializer, ptr %{name}")
    at.write(f"%plain = icmp eq i64 %along, {form.size}")
    step = at.value(f"mul i64 {'%along' if of_rows else '%down'}, {SIDE}")
    with at.repeated("s", "%depth", SIDE, x=("%x", step), to=("%packed", STEP)):
        left = at.least(at.value("sub i64 %depth, %s"), SIDE)
        whole = at.value(f"icmp eq i64 {at.value(f'add i64 {left}, %count')}, {2 * SIDE}")
        at.write(f"br i1 {at.value(f'and i1 %plain, {whole}')}, label %there, label %copied")
        at.label("copied")
        rows, columns = ("%count", left) if of_rows else (left, "%count")
        at.write(f"call void @block(ptr %s.x, i64 %down, i64 %along, i64 {rows}, i64 {columns}, ptr %block)")
        at.write("br label %ready")
        at.label("there")
        at.write("br label %ready")
        at.label("ready")
        start, line = at.value("phi ptr [%block, %copied], [%s.x, %there]"), at.value(f"phi i64 [{SIDE * form.size}, %copied], [%down, %there]")
        lines = at.value(f"mul i64 {line}, {HALF}")
        with (
            at.repeated("h", "2", 1, x=(start, lines if of_rows else 64), to=("%s.to", REGISTER)),
            at.repeated("i", str(HALF), 1, x=("%h.x", line), to=("%h.to", 64)),
        ):
            _split(at, at.load("%i.x"), at.load(at.at("%i.x", 64 if of_rows else lines)), "%i.to")
    most, digits = (
        at.call(f"llvm.vector.reduce.{how}.v{HALF}i32", "i32", f"{_INTEGERS} {at.value(f'load {_INTEGERS}, ptr %{name}')}")
        for how, name in (("umax", "greatest"), ("or", "digits"))
    )
    large, small = at.value(f"icmp uge i32 {most}, {TOO_LARGE}"), at.value(f"icmp ult i32 {most}, {TOO_SMALL}")
    small = at.value(f"and i1 {small}, {at.value(f'icmp ne i32 {most}, 0')}")
    pieces = "3"
    for fewer, last in ((2, 0xFF), (1, 0xFFFF)):  # without these, 16 and 8 of 24 digits remain
        none = at.value(f"icmp eq i32 {at.value(f'and i32 {digits}, {last}')}, 0")
        pieces = at.value(f"select i1 {none}, i8 {fewer}, i8 {pieces}")
    unfit = at.value(f"or i1 {large}, {small}")
    at.write(f"ret i8 {at.value(f'select i1 {unfit}, i8 {UNFIT}, i8 {pieces}')}")
    return at


def _split(at: VectorFunction, low: str, high: str, to: str) -> None:
    """Print the split of the float32 vectors `low` and `high` into three lines of bfloat16 pairs, stored from the address `to` on.

    The printed code also updates the largest magnitude and the bits that are set in any value.
    """
    form = at.form

    def integers(value: str) -> str:
        return at.value(f"bitcast {form.vector} {value} to {_INTEGERS}")

    def each(instruction: str, value: str, number: int) -> str:
        return at.value(f"{instruction} {_INTEGERS} {value}, splat (i32 {number})")

    greatest, digits = (at.value(f"load {_INTEGERS}, ptr %{name}") for name in ("greatest", "digits"))
    for value in map(integers, (low, high)):
        size = each("and", value, 0x7FFFFFFF)
        greatest = at.call(f"llvm.umax.v{HALF}i32", _INTEGERS, f"{_INTEGERS} {greatest}", f"{_INTEGERS} {size}")
        digits = at.value(f"or {_INTEGERS} {digits}, {value}")
    at.write(f"store {_INTEGERS} {greatest}, ptr %greatest")
    at.write(f"store {_INTEGERS} {digits}, ptr %digits")
    rest = [low, high]
    for piece in range(3):
        rounded = [integers(value) for value in rest]
        if piece < 2:  # rounds to nearest; after two pieces at most 8 digits remain
            rounded = [each("and", each("add", value, 0x8000), -0x10000) for value in rounded]
            piece_values = [at.value(f"bitcast {_INTEGERS} {value} to {form.vector}") for value in rounded]
            rest = [at.value(f"fsub {form.vector} {value}, {part}") for value, part in zip(rest, piece_values, strict=True)]
        upper = rounded[1] if piece < 2 else each("and", rounded[1], -0x10000)  # subnormal numbers may have more digits left
        pairs = at.value(f"or {_INTEGERS} {each('lshr', rounded[0], 16)}, {upper}")
        at.write(f"store {_INTEGERS} {pairs}, ptr {at.at(to, piece * PIECE)}, align 64")


def _block(form: ProductForm) -> VectorFunction:
    """Print the function that copies up to 32 rows and columns to a row-major 32 x 32 block padded with zeros.

    The source is contiguous along either axis.
    """
    at = VectorFunction(form, "internal void @block(ptr %x, i64 %down, i64 %along, i64 %rows, i64 %columns, ptr %to)")
    line = SIDE * form.size
    with at.repeated("z", str(SIDE), 1, to=("%to", line)):
        for j in range(2):
            at.store("zeroinitializer", at.at("%z.to", j * 64))
    masks = [at.first(at.value(f"sub i64 %columns, {j * HALF}")) for j in range(2)]
    at.write(f"br i1 {at.value(f'icmp eq i64 %along, {form.size}')}, label %plain, label %turned")
    at.label("plain")
    with at.repeated("r", "%rows", 1, x=("%x", "%down"), to=("%to", line)):
        for j, mask in enumerate(masks):
            at.store(at.load(at.at("%r.x", j * 64), mask), at.at("%r.to", j * 64))
    at.write("ret void")
    at.label("turned")
    half = at.value(f"mul i64 %along, {HALF}")
    with (
        at.repeated("i", "%rows", HALF, x=("%x", 64), to=("%to", HALF * line)),
        at.repeated("j", "%columns", HALF, x=("%i.x", half), to=("%i.to", 64)),
    ):
        left, mask = at.value("sub i64 %columns, %j"), at.first(at.value("sub i64 %rows, %i"))
        at.write(f"call void @turn(ptr %j.x, i64 %along, i64 {left}, {form.mask} {mask}, ptr %j.to, i64 {line})")
    at.write("ret void")
    return at


def _in_vectors(form: ProductForm) -> VectorFunction:
    """Print the function that multiplies a part of the product by the vector loop.

    Arguments other than sizes and addresses come from the block at %args.
    """
    at = VectorFunction(
        form,
        "internal void @in_vectors(ptr %args, ptr %part.a, ptr %part.b, ptr %part.y, ptr %part.c, i64 %c.line, i64 %rows, i64 %columns, i64 %depth)",
    )
    at.write(f"%part = alloca [{len(WORDS)} x i64]")
    own = {"m": "%rows", "n": "%columns", "k": "%depth", "c.down": "%c.line", "outer": "1", "inner": "1", "triangle": str(FULL)}
    for index, name in enumerate(WORDS):
        if name in {"a", "b", "y", "c"}:
            value = f"ptr %part.{name}"
        else:
            word = at.at("%args", index * 8)
            value = f"i64 {own[name] if name in own else at.value(f'load i64, ptr {word}')}"
        at.write(f"store {value}, ptr {at.at('%part', index * 8)}")
    at.write("call void @vectors(ptr %part)")
    at.write("ret void")
    return at
