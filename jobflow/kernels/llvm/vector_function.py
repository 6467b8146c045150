"""A printer of functions over vectors, block by block: loops with advancing addresses, masks, loads and stores.

    at = VectorFunction(Vectors(float32, 16), "void @loop(ptr %x, i64 %size)")
    with at.repeated("k", "%size", 16, x=("%x", 64)):      for %k from 0 to below %size; %k.x advances by 64 bytes
        mask = at.first(at.value("sub i64 %size, %k"))     the remaining lanes
        at.store(at.load("%k.x", mask), "%k.x", mask)

Methods that return a string return the name of an LLVM value.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from jobflow.core.dataclass import dataclass
from jobflow.core.types import DType
from jobflow.kernels.llvm.instructions import Lines, register, several, suffix


@dataclass(frozen=True)
class Vectors:
    """The element type and the number of lanes of a vector."""

    dtype: DType
    lanes: int

    @property
    def size(self) -> int:
        return self.dtype.itemsize

    @property
    def kind(self) -> str:
        return register(self.dtype)

    @property
    def vector(self) -> str:
        return several(self.kind, self.lanes)

    @property
    def mask(self) -> str:
        return several("i1", self.lanes)

    @property
    def aligned(self) -> int:
        return self.lanes * self.size


class VectorFunction(Lines):
    """The text of one function, in basic blocks."""

    def __init__(self, form: Vectors, head: str) -> None:
        super().__init__()
        self.form, self.head = form, head
        self.label("entry")

    def label(self, name: str) -> None:
        super().label(name)
        self.block = name

    @contextmanager
    def repeated(self, name: str, stop: str, by: str | int, /, **carried: tuple[str, str | int]) -> Iterator[None]:
        """Print a loop over %name from 0 to below `stop`, with at least one iteration.

        Each %name.x is an address with a start and a step in bytes.
        """
        before = self.block
        self.write(f"br label %{name}.in")
        self.label(f"{name}.in")
        self.write(f"%{name} = phi i64 [0, %{before}], [%{name}.j, %{name}.next]")
        for x, (start, _) in carried.items():
            self.write(f"%{name}.{x} = phi ptr [{start}, %{before}], [%{name}.{x}.j, %{name}.next]")
        yield
        self.write(f"br label %{name}.next")
        self.label(f"{name}.next")
        self.write(f"%{name}.j = add i64 %{name}, {by}")
        for x, (_, step) in carried.items():
            self.write(f"%{name}.{x}.j = getelementptr i8, ptr %{name}.{x}, i64 {step}")
        self.write(f"br i1 {self.value(f'icmp slt i64 %{name}.j, {stop}')}, label %{name}.in, label %{name}.done")
        self.label(f"{name}.done")

    def at(self, base: str, distance: str | int) -> str:
        return self.value(f"getelementptr i8, ptr {base}, i64 {distance}")

    def least(self, a: str, b: str | int) -> str:
        return self.value(f"select i1 {self.value(f'icmp slt i64 {a}, {b}')}, i64 {a}, i64 {b}")

    def most(self, a: str, b: str | int) -> str:
        return self.value(f"select i1 {self.value(f'icmp sgt i64 {a}, {b}')}, i64 {a}, i64 {b}")

    def first(self, count: str) -> str:
        """Return the mask of the first `count` lanes."""
        lanes = self.form.lanes
        wide = several("i64", lanes)
        one = self.value(f"insertelement {wide} poison, i64 {count}, i64 0")
        all = self.value(f"shufflevector {wide} {one}, {wide} poison, <{lanes} x i32> zeroinitializer")
        return self.value(f"icmp slt {wide} <{', '.join(f'i64 {k}' for k in range(lanes))}>, {all}")

    def everywhere(self, number: str) -> str:
        vector = self.form.vector
        one = self.value(f"insertelement {vector} poison, {self.form.kind} {number}, i64 0")
        return self.value(f"shufflevector {vector} {one}, {vector} poison, <{self.form.lanes} x i32> zeroinitializer")

    def load(self, address: str, mask: str = "") -> str:
        form = self.form
        if not mask:
            return self.value(f"load {form.vector}, ptr {address}, align {form.size}")
        name = f"llvm.masked.load{suffix(form.kind, form.lanes)}.p0"
        return self.call(name, form.vector, f"ptr align {form.size} {address}", f"{form.mask} {mask}", f"{form.vector} zeroinitializer")

    def store(self, value: str, address: str, mask: str = "") -> None:
        form = self.form
        if not mask:
            self.write(f"store {form.vector} {value}, ptr {address}, align {form.size}")
            return
        name = f"llvm.masked.store{suffix(form.kind, form.lanes)}.p0"
        self.effect(name, f"{form.vector} {value}", f"ptr align {form.size} {address}", f"{form.mask} {mask}")

    def fetch(self, address: str, writes: bool = False) -> None:
        """Print a prefetch of the cache line at `address`, for a write if `writes` is True, otherwise for a read."""
        self.effect("llvm.prefetch.p0", f"ptr {address}", f"i32 {int(writes)}", "i32 3", "i32 1")

    def multiplied(self, a: str, b: str, c: str, name: str = "") -> str:
        """Return a b + c, computed by a fused multiply-add."""
        form = self.form
        function, factors = f"llvm.fma{suffix(form.kind, form.lanes)}", [f"{form.vector} {x}" for x in (a, b, c)]
        if not name:
            return self.call(function, form.vector, *factors)
        self.declare(function, form.vector, *factors)
        self.write(f"{name} = call {form.vector} @{function}({', '.join(factors)})")
        return name

    def text(self) -> list[str]:
        return [f"define {self.head} {{", *self.lines, "}"]
