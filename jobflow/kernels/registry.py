"""Who computes an operation on a target: implementations by type of operation, kind of device and tier, and why others do not.

    @implements(MatMul)
    def blas_product(op, device, inputs, outputs): ...

    choose(op, target, inputs, outputs).implementation.bind(op, device, inputs, outputs)

An implementation says in one sentence with values why it does not take an operation and its arrays, or prepares the calls that compute
it.  The tiers of the target are asked one after another, the highest rank first, and of equal ranks what is registered for the nearest
class.  In the last tier every operation has its kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from importlib import import_module
from typing import Any, Protocol, TypeVar, cast

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import PlanError
from jobflow.core.types import Array, DType, TensorType, contiguous_strides, float32
from jobflow.kernels import half
from jobflow.kernels.target import CPU, Kind, Target, Tier
from jobflow.ops.op import Binder, Binding, Call, Op

KINDS: tuple[Kind, ...] = ("cpu", "cuda")
#: the modules that register the implementations of a tier whatever the operation; imported when one of that tier is bound
MODULES: dict[Tier, tuple[str, ...]] = {
    "reference": ("jobflow.kernels.in_turn",),
    "numpy": ("jobflow.kernels.in_turn",),
    "llvm": ("jobflow.kernels.compiled_loops",),
    "nvrtc": ("jobflow.kernels.cuda.fused_kernels",),
}
#: the packages whose MODULES say which of their modules have implementations of the operations of a module; these are imported when one is bound
PACKAGES: dict[tuple[Kind, Tier], str] = {
    ("cpu", "numpy"): "jobflow.kernels.cpu",
    ("cpu", "llvm"): "jobflow.kernels.llvm",
    ("cuda", "nvrtc"): "jobflow.kernels.cuda",
}

#: the modules that have `in_loops`, which goes through the calls of other tiers
REFINED: dict[Tier, str] = {"llvm": "jobflow.kernels.llvm.calls_in_loops"}

#: prepares the calls that compute an operation: prepare(op, device, inputs, outputs)
Prepare = Callable[[Any, Binder, Sequence[Array], Sequence[Array]], list[Call]]
#: says why not, or None: refuses(op, inputs, outputs)
Refuses = Callable[[Any, Sequence[Array], Sequence[Array]], str | None]
P = TypeVar("P", bound=Prepare)


class Implementation(Protocol):
    """A way to compute operations of one type."""

    #: as it is called in listings
    @property
    def name(self) -> str: ...

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        """Why it does not compute this; None if it does.  Types, shapes and strides are looked at, never elements."""
        ...

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        """The calls that compute it."""
        ...


@dataclass(frozen=True)
class Chosen:
    """Who computes an operation, and why each better implementation does not: its name and a sentence."""

    implementation: Implementation
    refused: tuple[tuple[str, str], ...] = ()


_rows: dict[tuple[type[Op], Kind, Tier], dict[int, Implementation]] = {}
_found: dict[tuple[type[Op], Target], tuple[Implementation, ...]] = {}


def register(op: type[Op], kind: Kind, tier: Tier, implementation: Implementation, rank: int = 0) -> None:
    """Have `implementation` compute operations of this type, and of those derived from it, on this kind of device; higher ranks are asked first."""
    ranked = _rows.setdefault((op, kind, tier), {})
    if rank in ranked and ranked[rank] is not implementation:
        raise PlanError(f"{implementation.name} and {ranked[rank].name} are both registered for {op.__name__} on {kind}, {tier}, with rank {rank}")
    ranked[rank] = implementation
    _found.clear()
    _refusal.cache_clear()


@dataclass(frozen=True)
class ArrayCalls:
    """An implementation by array functions.  It sees no float16 and bfloat16, but float32 arrays in their place (`kernels/half.py`)."""

    name: str
    prepare: Prepare
    refusal: Refuses | None = None
    #: what `prepare` is for arrays of these types, for operations that run at once: at_once(op, inputs, outputs)
    at_once: Callable[[Any, Sequence[DType], Sequence[DType]], Binding] | None = None

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        return None if self.refusal is None else self.refusal(op, [_wide(a) for a in inputs], [_wide(a) for a in outputs])

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        return half.bind(op, device, inputs, outputs, partial(self.prepare, op))


def _wide(array: Array) -> Array:
    """An array that stands for the float32 copy of one of two-byte floats."""
    if not half.is_half(array):
        return array
    return at(TensorType(array.shape, float32), contiguous_strides(array.shape, 4), array.__array_interface__["data"][0])


def implements(
    *ops: type[Op],
    kind: Kind = "cpu",
    tier: Tier = "numpy",
    rank: int = 0,
    refuses: Refuses | None = None,
    at_once: Callable[[Any, Sequence[DType], Sequence[DType]], Binding] | None = None,
) -> Callable[[P], P]:
    """Register a function that prepares calls for operations of these types; its name is that of the implementation in listings."""

    def enter(prepare: P) -> P:
        made = ArrayCalls(prepare.__name__.strip("_").replace("_", " "), prepare, refuses, at_once)
        for op in ops:
            register(op, kind, tier, made, rank)
        return prepare

    return enter


def candidates(op: type[Op], target: Target) -> tuple[Implementation, ...]:
    """Who may compute operations of this type, the best first."""
    found = _found.get((op, target))
    if found is None:
        found = _found[op, target] = tuple(_candidates(op, target))
    return found


def _candidates(op: type[Op], target: Target) -> Iterator[Implementation]:
    for tier in target.tiers:
        for module in (*MODULES[tier], *_modules_for(op, target.kind, tier)):
            import_module(module)
        found = [
            (rank, -nearness, implementation)
            for nearness, base in enumerate(op.__mro__)
            for rank, implementation in _rows.get((cast(type[Op], base), target.kind, tier), {}).items()
        ]
        yield from (implementation for *_, implementation in sorted(found, key=lambda row: row[:2], reverse=True))


def _modules_for(op: type[Op], kind: Kind, tier: Tier) -> Iterator[str]:
    """The modules that have implementations of this type of operation or of one that it is derived from."""
    package = PACKAGES.get((kind, tier))
    if package is not None:
        table: dict[str, tuple[str, ...]] = import_module(package).MODULES
        for home in dict.fromkeys(base.__module__.removeprefix("jobflow.") for base in op.__mro__):
            yield from (f"{package}.{name}" for name in table.get(home, ()))


def choose(op: Op, target: Target, inputs: Sequence[Array], outputs: Sequence[Array]) -> Chosen:
    """The best implementation that takes the operation with these arrays."""
    refused: list[tuple[str, str]] = []
    for implementation in candidates(type(op), target):
        why = implementation.refuses(op, inputs, outputs)
        if why is None:
            return Chosen(implementation, tuple(refused))
        refused.append((implementation.name, why))
    raise PlanError(f"{op.word()} has no implementation on {target}: {'; '.join(f'{name}: {why}' for name, why in refused) or 'none is registered'}")


def bind(op: Op, target: Target, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    """The calls of the best implementation."""
    return refined(target, choose(op, target, inputs, outputs).implementation.bind(op, device, inputs, outputs))


def refined(target: Target, calls: list[Call]) -> list[Call]:
    """The calls, where what stands in calls of every kind is done as the tier does it (`REFINED`)."""
    module = REFINED.get(target.tier)
    return calls if module is None else import_module(module).in_loops(calls)


def direct_binding(op: Op, inputs: Sequence[DType], outputs: Sequence[DType]) -> Binding | None:
    """The binding of array functions that is the same for all arrays of these types; None if there is none."""
    first = candidates(type(op), CPU)[0]
    if not isinstance(first, ArrayCalls) or first.refusal is not None or first.at_once is None or any(dtype.is_half for dtype in (*inputs, *outputs)):
        return None
    return first.at_once(op, inputs, outputs)


def refusal(op: Op, target: Target, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> str | None:
    """Why the target's best implementation does not take the operation, whatever memory its dense arrays have."""
    return _refusal(op, target, tuple(inputs), tuple(outputs))


@lru_cache(4096)
def _refusal(op: Op, target: Target, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> str | None:
    arrays = [at(type, contiguous_strides(type.shape, type.dtype.itemsize), (n + 1) << 40) for n, type in enumerate((*inputs, *outputs))]
    return candidates(type(op), target)[0].refuses(op, arrays[: len(inputs)], arrays[len(inputs) :])


def at(type: TensorType, strides: tuple[int, ...], address: int) -> Array:
    """An array at an address where there is none: implementations are asked about it before there is memory, and must not touch its elements."""
    made = np.asarray(
        _Imagined({"version": 3, "shape": type.shape, "typestr": f"|V{type.dtype.itemsize}", "strides": strides, "data": (address, True)})
    )
    return made.view(type.dtype.numpy)


@dataclass(frozen=True)
class _Imagined:
    """What NumPy takes for an array."""

    __array_interface__: dict[str, object]


def kernel_call(op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    """The operation's own kernel, as it stands."""
    return [(op.kernel, (device.xp, *inputs, *outputs))]


PLAIN_KERNEL = ArrayCalls("kernel", kernel_call, at_once=lambda op, inputs, outputs: partial(kernel_call, op))
for _kind in KINDS:
    register(Op, _kind, "reference", PLAIN_KERNEL)
