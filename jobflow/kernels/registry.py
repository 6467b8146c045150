"""Registry of kernel implementations, by operation type, kind of device and tier, with the reason for each refusal.

    @implements(MatMul)
    def blas_product(op, device, inputs, outputs): ...

    choose(op, target, inputs, outputs).implementation.bind(op, device, inputs, outputs)

An implementation prepares the calls that compute an operation, or returns the reason why it cannot handle the operation and its arrays.  `choose`
tries the tiers of the target in order.  Within a tier, higher ranks come first.  Among equal ranks, implementations registered for the most derived
class come first.  The last tier has a kernel for every operation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
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
#: modules that register a tier's implementations for any operation; imported when an operation of the tier is bound
MODULES: dict[Tier, tuple[str, ...]] = {
    "reference": ("jobflow.kernels.sequential",),
    "numpy": ("jobflow.kernels.sequential",),
    "llvm": ("jobflow.kernels.compiled_loops",),
    "nvrtc": ("jobflow.kernels.cuda.fused_kernels",),
    "exact": ("jobflow.kernels.cuda.fused_kernels",),
}
#: packages whose MODULES map a module of operations to its modules of implementations, which are imported when such an operation is bound
PACKAGES: dict[tuple[Kind, Tier], str] = {
    ("cpu", "numpy"): "jobflow.kernels.cpu",
    ("cpu", "llvm"): "jobflow.kernels.llvm",
    ("cuda", "nvrtc"): "jobflow.kernels.cuda",
}

#: modules with a function `in_loops`, which rewrites the calls of other tiers
REFINED: dict[Tier, str] = {"llvm": "jobflow.kernels.llvm.calls_in_loops"}

#: prepares the calls that compute an operation: prepare(op, device, inputs, outputs)
Prepare = Callable[[Any, Binder, Sequence[Array], Sequence[Array]], list[Call]]
#: returns the reason an operation cannot be computed, or None: refuses(op, inputs, outputs)
Refuses = Callable[[Any, Sequence[Array], Sequence[Array]], str | None]
P = TypeVar("P", bound=Prepare)


class Implementation(Protocol):
    """A kernel implementation for operations of one type."""

    #: name in listings
    @property
    def name(self) -> str: ...

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        """Return the reason this implementation cannot handle the operation, or None if it can.

        Implementations read types, shapes and strides, never elements.
        """
        ...

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        """Return the calls that compute the outputs of the operation; scratch memory comes from the device."""
        ...


class PerTarget(ABC):
    """Base class of implementations that depend on more of the target than its kind and its tier."""

    @abstractmethod
    def on(self, target: Target) -> Any:
        """Return the implementation for this target."""


@dataclass(frozen=True)
class Chosen:
    """The implementation chosen for an operation, and the name and reason of each better implementation that refused it."""

    implementation: Implementation
    refused: tuple[tuple[str, str], ...] = ()


_rows: dict[tuple[type[Op], Kind, Tier], dict[int, Implementation]] = {}
_candidates_cache: dict[tuple[type[Op], Target], tuple[Implementation, ...]] = {}


def register(op: type[Op], kind: Kind, tier: Tier, implementation: Implementation, rank: int = 0) -> None:
    """Register an implementation for operations of this type and its subclasses on this kind of device; higher ranks are tried first.

    Raises: PlanError if another implementation has the same rank.
    """
    ranked = _rows.setdefault((op, kind, tier), {})
    if rank in ranked and ranked[rank] is not implementation:
        raise PlanError(
            f"{op.__name__}: {implementation.name} and {ranked[rank].name} are both registered for device {kind}, tier {tier}, rank {rank}; "
            f"change one rank"
        )
    ranked[rank] = implementation
    _candidates_cache.clear()
    _unsupported_reason.cache_clear()


@dataclass(frozen=True)
class ArrayCalls:
    """An implementation by array functions.  The functions receive float32 arrays in place of float16 and bfloat16 arrays (`kernels/half.py`)."""

    name: str
    prepare: Prepare
    unsupported_reason: Refuses | None = None
    #: returns `prepare` specialized to these types, for operations that run eagerly: at_once(op, inputs, outputs)
    at_once: Callable[[Any, Sequence[DType], Sequence[DType]], Binding] | None = None

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        return None if self.unsupported_reason is None else self.unsupported_reason(op, [_wide(a) for a in inputs], [_wide(a) for a in outputs])

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        return half.bind(op, device, inputs, outputs, partial(self.prepare, op))


def _wide(array: Array) -> Array:
    """Return a placeholder for the float32 copy of a half-precision array; other arrays are returned unchanged."""
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
    """Register a function that prepares calls for operations of these types; its name identifies the implementation in listings."""

    def enter(prepare: P) -> P:
        implementation = ArrayCalls(prepare.__name__.strip("_").replace("_", " "), prepare, refuses, at_once)
        for op in ops:
            register(op, kind, tier, implementation, rank)
        return prepare

    return enter


def candidates(op: type[Op], target: Target) -> tuple[Implementation, ...]:
    """Return the implementations registered for operations of this type, the best first."""
    implementations = _candidates_cache.get((op, target))
    if implementations is None:
        implementations = _candidates_cache[op, target] = tuple(_candidates(op, target))
    return implementations


def has_own(op: type[Op], target: Target) -> bool:
    """Return True if a tier of the target has an implementation for exactly this type of operation."""
    for tier in target.tiers:
        if any(_modules_for(op, target.kind, tier)):
            candidates(op, target)  # imports these modules, which register implementations
            return any((op, target.kind, each) in _rows for each in target.tiers)
    return False


def accepts(op: Op, target: Target, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> bool:
    """Return True if an implementation for exactly this type of operation accepts dense arrays of these types."""
    if not has_own(type(op), target):
        return False
    arrays = _placeholders((*inputs, *outputs))
    own = [each for tier in target.tiers for each in _rows.get((type(op), target.kind, tier), {}).values()]
    return any(each.refuses(op, arrays[: len(inputs)], arrays[len(inputs) :]) is None for each in own)


def _candidates(op: type[Op], target: Target) -> Iterator[Implementation]:
    for tier in target.tiers:
        for module in (*MODULES[tier], *_modules_for(op, target.kind, tier)):
            import_module(module)
        ranked = [
            (rank, -nearness, implementation)
            for nearness, base in enumerate(op.__mro__)
            for rank, implementation in _rows.get((cast(type[Op], base), target.kind, tier), {}).items()
        ]
        for *_, implementation in sorted(ranked, key=lambda row: row[:2], reverse=True):
            if implementation is PLAIN_KERNEL and op.adds_at_indices and target.kind == "cuda" and target.products.deterministic:
                implementation = IN_ORDER
            yield implementation.on(target) if isinstance(implementation, PerTarget) else implementation


def _modules_for(op: type[Op], kind: Kind, tier: Tier) -> Iterator[str]:
    """Yield the modules with implementations for this type of operation or one of its base classes."""
    package = PACKAGES.get((kind, tier))
    if package is not None:
        table: dict[str, tuple[str, ...]] = import_module(package).MODULES
        for module in dict.fromkeys(base.__module__.removeprefix("jobflow.") for base in op.__mro__):
            yield from (f"{package}.{name}" for name in table.get(module, ()))


def choose(op: Op, target: Target, inputs: Sequence[Array], outputs: Sequence[Array]) -> Chosen:
    """Return the best implementation that accepts the operation with these arrays; raise PlanError if all refuse."""
    refused: list[tuple[str, str]] = []
    for implementation in candidates(type(op), target):
        why = implementation.refuses(op, inputs, outputs)
        if why is None:
            return Chosen(implementation, tuple(refused))
        refused.append((implementation.name, why))
    reasons = "; ".join(f"{name}: {why}" for name, why in refused) or "none is registered"
    raise PlanError(f"{op.word()}: no implementation on {target} accepts the operation ({reasons}); register one with `implements`")


def bind(op: Op, target: Target, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    """Return the calls of the best implementation that accepts the operation with these arrays; raise PlanError if all refuse."""
    return refined(target, choose(op, target, inputs, outputs).implementation.bind(op, device, inputs, outputs))


def refined(target: Target, calls: list[Call]) -> list[Call]:
    """Replace calls that a loop of the target's tier runs faster, no matter which implementation prepared them (`REFINED`)."""
    module = REFINED.get(target.tier)
    return calls if module is None else import_module(module).in_loops(calls)


def direct_binding(op: Op, inputs: Sequence[DType], outputs: Sequence[DType]) -> Binding | None:
    """Return a function that prepares the operation's calls for all CPU arrays of these types.

    The result is None for half-precision types.  The result is also None if the best implementation may refuse some arrays, or has no function
    for all arrays of a type.
    """
    first = candidates(type(op), CPU)[0]
    if (
        not isinstance(first, ArrayCalls)
        or first.unsupported_reason is not None
        or first.at_once is None
        or any(dtype.is_half for dtype in (*inputs, *outputs))
    ):
        return None
    return first.at_once(op, inputs, outputs)


def unsupported_reason(op: Op, target: Target, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> str | None:
    """Return the reason the target's best implementation cannot handle the operation on dense arrays, or None if it can."""
    return _unsupported_reason(op, target, tuple(inputs), tuple(outputs))


@lru_cache(4096)
def _unsupported_reason(op: Op, target: Target, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> str | None:
    arrays = _placeholders((*inputs, *outputs))
    return candidates(type(op), target)[0].refuses(op, arrays[: len(inputs)], arrays[len(inputs) :])


def _placeholders(types: Sequence[TensorType]) -> list[Array]:
    return [at(type, contiguous_strides(type.shape, type.dtype.itemsize), (n + 1) << 40) for n, type in enumerate(types)]


def at(type: TensorType, strides: tuple[int, ...], address: int) -> Array:
    """Return a placeholder array with this type, strides and address, but without memory.

    Implementations are checked against placeholders before memory is allocated, and must not access their elements.
    """
    placeholder = np.asarray(
        _PlaceholderInterface({"version": 3, "shape": type.shape, "typestr": f"|V{type.dtype.itemsize}", "strides": strides, "data": (address, True)})
    )
    return placeholder.view(type.dtype.numpy)


@dataclass(frozen=True)
class _PlaceholderInterface:
    """An object with the attribute `__array_interface__`, from which NumPy creates a placeholder array."""

    __array_interface__: dict[str, object]


def kernel_call(op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    """Return a list with one call, which runs the operation's kernel on these arrays."""
    return [(op.kernel, (device.xp, *inputs, *outputs))]


def _unordered(op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
    """Return the reason additions at indices are not deterministic on a GPU, or None; the order of integer additions has no effect."""
    if all(array.dtype.kind in "iub" for array in outputs):
        return None
    return "CuPy adds at computed indices by atomic additions, whose order varies; flow.use_deterministic_algorithms(False) permits this"


#: the kernel of an operation that adds at indices, for deterministic programs of GPUs
IN_ORDER = ArrayCalls("kernel", kernel_call, _unordered)
PLAIN_KERNEL = ArrayCalls("kernel", kernel_call, at_once=lambda op, inputs, outputs: partial(kernel_call, op))
for _kind in KINDS:
    register(Op, _kind, "reference", PLAIN_KERNEL)
