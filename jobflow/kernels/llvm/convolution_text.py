"""Convolutions as LLVM IR: sums over the taps of a window, in tiles that stay in registers, without gathering windows.

    sums       y[o, x] = sum over taps j of  w[o, j] image[x + offset[j]]         for runs of x
    products   w[o, j] = sum over runs of x of  y[o, x] image[x + offset[j]]

A table has the offsets of the taps in bytes.  One text therefore serves every kernel size, stride, dilation and number of axes.  A tile has `filters`
rows and `columns` vectors of a run.  Remaining filters, and remaining masked vectors, are computed one at a time.  Each sum adds in the order of the
taps, with fused multiply-adds, so it is bit-equal on every machine.  Products have one partial sum per lane, added by a tree reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

from jobflow.core.dataclass import dataclass
from jobflow.kernels.llvm.loop_text import ATTRIBUTES
from jobflow.kernels.llvm.machine_code import NAME

#: the words of the argument block: five pointers, then sizes and strides; tables hold two offsets in bytes per tap and per run
POINTERS = ("image", "w", "y", "taps", "runs")
WORDS = (*POINTERS, "tap_count", "run_count", "groups", "filters", "size", "image_group", "w_group", "y_group", "w_filter", "y_filter")

Values = list[str]


@dataclass(frozen=True)
class Tile:
    """A tile of `filters` times `columns` vectors of `lanes` elements in registers; columns are vectors of a run, or taps."""

    filters: int
    columns: int
    lanes: int
    real: str
    size: int

    @property
    def vector(self) -> str:
        return f"<{self.lanes} x {self.real}>"


@dataclass
class _Code:
    tile: Tile
    lines: list[str] = field(default_factory=list)
    declared: set[str] = field(default_factory=set)
    count: int = 0

    def value(self, text: str) -> str:
        self.count += 1
        self.lines.append(f"  %v{self.count} = {text}")
        return f"%v{self.count}"

    def write(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def moved(self, pointer: str, *terms: str) -> str:
        """Print the addition of `terms`, offsets in bytes, to a pointer; return the new pointer."""
        for term in terms:
            pointer = self.value(f"getelementptr i8, ptr {pointer}, i64 {term}")
        return pointer

    def times(self, a: str, b: str | int) -> str:
        return self.value(f"mul i64 {a}, {b}")

    def loop(self, start: str, stop: str, step: int, body: Callable[[str, Values], Values | None], initial: Sequence[str] = ()) -> Values:
        """Print a loop over a counter from `start` to below `stop`; return the final values of the loop-carried vectors.

        `body` receives the counter and the loop-carried vectors, whose initial values are `initial`, and returns their new values.
        """
        self.count += 1
        name, vector = f"loop{self.count}", self.tile.vector
        phis = [f"%{name}.c{k}" for k in range(len(initial))]
        self.lines += [f"  br label %{name}.before", f"{name}.before:", f"  br label %{name}", f"{name}:"]
        self.write(f"%{name}.i = phi i64 [{start}, %{name}.before], [%{name}.next, %{name}.again]")
        first = len(self.lines)
        self.write(f"%{name}.more = icmp slt i64 %{name}.i, {stop}")
        self.lines += [f"  br i1 %{name}.more, label %{name}.in, label %{name}.out", f"{name}.in:"]
        results = body(f"%{name}.i", phis) or []
        self.lines += [
            f"  br label %{name}.again",
            f"{name}.again:",
            f"  %{name}.next = add i64 %{name}.i, {step}",
            f"  br label %{name}",
            f"{name}.out:",
        ]
        heads = (
            f"  {phi} = phi {vector} [{old}, %{name}.before], [{new}, %{name}.again]" for phi, old, new in zip(phis, initial, results, strict=True)
        )
        self.lines[first:first] = list(heads)
        return phis

    def whole(self, count: str, step: int) -> str:
        """Return the largest multiple of `step` up to `count`."""
        return self.value(f"sub i64 {count}, {self.value(f'urem i64 {count}, {step}')}")

    def in_steps(self, count: str, step: int, body: Callable[[str, int], None]) -> None:
        """Print a loop that calls body(first, step), and a loop over the remainder that calls body(first, 1)."""

        def each(width: int) -> Callable[[str, Values], None]:
            return lambda at, _: body(at, width)

        whole = self.whole(count, step)
        self.loop("0", whole, step, each(step))
        if step > 1:
            self.loop(whole, count, 1, each(1))

    def mask(self, at: str, size: str) -> str:
        """Return a mask of lanes, in which lane k is True if at + k is below `size`."""
        lanes = self.tile.lanes
        left = self.splat(self.value(f"sub i64 {size}, {at}"), "i64")
        indices = ", ".join(f"i64 {k}" for k in range(lanes))
        return self.value(f"icmp slt <{lanes} x i64> <{indices}>, {left}")

    def splat(self, value: str, kind: str) -> str:
        lanes = self.tile.lanes
        one = self.value(f"insertelement <{lanes} x {kind}> poison, {kind} {value}, i32 0")
        return self.value(f"shufflevector <{lanes} x {kind}> {one}, <{lanes} x {kind}> poison, <{lanes} x i32> zeroinitializer")

    def load(self, pointer: str, mask: str) -> str:
        t = self.tile
        if not mask:
            return self.value(f"load {t.vector}, ptr {pointer}, align {t.size}")
        name = f"@llvm.masked.load.v{t.lanes}f{8 * t.size}.p0"
        self.declared.add(f"declare {t.vector} {name}(ptr, <{t.lanes} x i1>, {t.vector})")
        return self.value(f"call {t.vector} {name}(ptr align {t.size} {pointer}, <{t.lanes} x i1> {mask}, {t.vector} zeroinitializer)")

    def store(self, value: str, pointer: str, mask: str) -> None:
        t = self.tile
        if not mask:
            self.write(f"store {t.vector} {value}, ptr {pointer}, align {t.size}")
            return
        name = f"@llvm.masked.store.v{t.lanes}f{8 * t.size}.p0"
        self.declared.add(f"declare void {name}({t.vector}, ptr, <{t.lanes} x i1>)")
        self.write(f"call void {name}({t.vector} {value}, ptr align {t.size} {pointer}, <{t.lanes} x i1> {mask})")

    def fused(self, a: str, b: str, c: str) -> str:
        t = self.tile
        name = f"@llvm.fma.v{t.lanes}f{8 * t.size}"
        self.declared.add(f"declare {t.vector} {name}({t.vector}, {t.vector}, {t.vector})")
        return self.value(f"call {t.vector} {name}({t.vector} {a}, {t.vector} {b}, {t.vector} {c})")

    def total(self, vector: str) -> str:
        """Write the horizontal sum of a vector as a tree reduction: add its upper half to its lower half until one lane is left.

        Return that lane.
        """
        t, width = self.tile, self.tile.lanes
        while width > 1:
            width //= 2
            lanes = ", ".join(f"i32 {k + width}" if k < width else "i32 poison" for k in range(t.lanes))
            upper = self.value(f"shufflevector {t.vector} {vector}, {t.vector} poison, <{t.lanes} x i32> <{lanes}>")
            vector = self.value(f"fadd {t.vector} {vector}, {upper}")
        return self.value(f"extractelement {t.vector} {vector}, i32 0")

    def words(self) -> dict[str, str]:
        values = {}
        for k, word in enumerate(WORDS):
            address = self.value(f"getelementptr i64, ptr %args, i64 {k}")
            values[word] = self.value(f"load {'ptr' if word in POINTERS else 'i64'}, ptr {address}")
        return values

    def pair(self, table: str, at: str) -> tuple[str, str]:
        """Print the loads of the two offsets in entry `at` of a table; return both values."""
        first = self.moved(table, self.times(at, 16))
        return self.value(f"load i64, ptr {first}"), self.value(f"load i64, ptr {self.moved(first, '8')}")

    def text(self) -> str:
        return "\n".join([f"define void @{NAME}(ptr %args) #0 {{", *self.lines, "  ret void", "}", "", *sorted(self.declared), "", ATTRIBUTES, ""])


def sums(tile: Tile) -> str:
    """Print the function that computes y, `tile.columns` vectors of a run at a time."""
    c = _Code(tile)
    a = c.words()

    def run(group: str, number: str) -> None:
        image_at, y_at = c.pair(a["runs"], number)
        image = c.moved(a["image"], c.times(group, a["image_group"]), image_at)
        y, w = c.moved(a["y"], c.times(group, a["y_group"]), y_at), c.moved(a["w"], c.times(group, a["w_group"]))
        c.in_steps(a["filters"], tile.filters, lambda o, count: filters(image, y, w, o, count))

    def filters(image: str, y: str, w: str, first: str, count: int) -> None:
        ws = [c.moved(w, c.times(first, a["w_filter"]))]
        ys = [c.moved(y, c.times(first, a["y_filter"]))]
        for _ in range(1, count):
            ws.append(c.moved(ws[-1], a["w_filter"]))
            ys.append(c.moved(ys[-1], a["y_filter"]))
        whole = c.whole(a["size"], tile.columns * tile.lanes)
        c.loop("0", whole, tile.columns * tile.lanes, lambda x, _: point(image, ys, ws, x, tile.columns, ""))
        c.loop(whole, a["size"], tile.lanes, lambda x, _: point(image, ys, ws, x, 1, c.mask(x, a["size"])))

    def point(image: str, ys: Values, ws: Values, x: str, columns: int, mask: str) -> None:
        at = c.times(x, tile.size)
        here = c.moved(image, at)

        def tap(j: str, totals: Values) -> Values:
            image_at, w_at = c.pair(a["taps"], j)
            read = c.moved(here, image_at)
            vectors = [c.load(c.moved(read, str(k * tile.lanes * tile.size)), mask) for k in range(columns)]
            results = []
            for n, w in enumerate(ws):
                weight = c.splat(c.value(f"load {tile.real}, ptr {c.moved(w, w_at)}"), tile.real)
                results += [c.fused(weight, vector, totals[n * columns + k]) for k, vector in enumerate(vectors)]
            return results

        totals = c.loop("0", a["tap_count"], 1, tap, ["zeroinitializer"] * (len(ws) * columns))
        for n, y in enumerate(ys):
            for k in range(columns):
                c.store(totals[n * columns + k], c.moved(y, at, str(k * tile.lanes * tile.size)), mask)

    c.loop("0", a["groups"], 1, lambda group, _: c.loop("0", a["run_count"], 1, lambda number, _: run(group, number)))
    return c.text()


def products(tile: Tile) -> str:
    """Print the function that computes w[o, j] as the sum of y[o, x] image[x + offset[j]] over all runs of x.

    The function computes `tile.columns` taps at a time, and all taps for a few filters, so that their rows of y stay in the cache.
    """
    c = _Code(tile)
    a = c.words()

    def filters(group: str, first: str, count: int) -> None:
        ys = [c.moved(a["y"], c.times(group, a["y_group"]), c.times(first, a["y_filter"]))]
        for _ in range(1, count):
            ys.append(c.moved(ys[-1], a["y_filter"]))
        w = c.moved(a["w"], c.times(group, a["w_group"]), c.times(first, a["w_filter"]))
        image = c.moved(a["image"], c.times(group, a["image_group"]))
        c.in_steps(a["tap_count"], tile.columns, lambda j, taps: corner(image, w, ys, j, taps))

    def corner(image: str, w: str, ys: Values, first: str, count: int) -> None:
        pairs = [c.pair(a["taps"], c.value(f"add i64 {first}, {k}")) for k in range(count)]
        images, ws = [c.moved(image, at) for at, _ in pairs], [c.moved(w, at) for _, at in pairs]

        def run(number: str, totals: Values) -> Values:
            image_at, y_at = c.pair(a["runs"], number)
            rows, read = [c.moved(y, y_at) for y in ys], [c.moved(image, image_at) for image in images]

            def point(mask: str) -> Callable[[str, Values], Values]:
                def added(x: str, totals: Values) -> Values:
                    at = c.times(x, tile.size)
                    lanes = c.mask(x, a["size"]) if mask else ""
                    values, vectors = ([c.load(c.moved(p, at), lanes) for p in pointers] for pointers in (rows, read))
                    pairs = [(one, vector) for one in values for vector in vectors]
                    return [c.fused(one, vector, total) for (one, vector), total in zip(pairs, totals, strict=True)]

                return added

            whole = c.whole(a["size"], tile.lanes)
            totals = c.loop("0", whole, tile.lanes, point(""), totals)
            return c.loop(whole, a["size"], tile.lanes, point("masked"), totals)

        totals = c.loop("0", a["run_count"], 1, run, ["zeroinitializer"] * (len(ys) * count))
        for n in range(len(ys)):
            for k in range(count):
                c.write(f"store {tile.real} {c.total(totals[n * count + k])}, ptr {ws[k]}, align {tile.size}")
            ws = [c.moved(pointer, a["w_filter"]) for pointer in ws]

    c.loop("0", a["groups"], 1, lambda g, _: c.in_steps(a["filters"], tile.filters, lambda o, count: filters(g, o, count)))
    return c.text()
