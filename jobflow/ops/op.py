"""The base class of operations: one class says everything about one operation.

A concrete op is a frozen dataclass of its attributes (without a decorator: `Op` sees to it), so it hashes, compares, pickles and prints.  It has

    infer(*types)                       the output type(s), or a ShapeError / DtypeError that names the operands
    rule(*types)                        the legal S/B/P combinations (`jobflow.layout.Rule`)
    kernel(xp, *inputs, *outputs)       compute with NumPy or CuPy, writing into the outputs
    grad(*inputs, *outputs, *output_grads)   gradients of the inputs (None where there is none), by calling ordinary ops
    samples()                           what the laws run on

and, where it pays,

    expression(*types)                  what the outputs are, element by element (`jobflow.expressions.language`)
    view(*inputs)                       for ops that only look at their input differently (`ViewOp`)
    localize(inputs, outputs)           the op a rank runs on its boxes of the logical tensors
    alias                               outputs that are written over an input (updates)
    decompose(*inputs)                  the same by ops that may be split along axes which this one keeps whole

`infer`, `rule` and `localize` see logical types; `kernel` sees what one rank holds.  Arrays may have any strides.  Faster ways to compute an
operation are registered for a kind of device (`jobflow/kernels/registry.py`).
The functions users call (`relu(x)`) are thin: they build the op and `apply` it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, field, fields
from numbers import Integral
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, dataclass_transform

import numpy as np

import jobflow.core.scope as scope
from jobflow.core.dataclass import Frozen, dataclass
from jobflow.core.errors import ArgumentError, JobError, ShapeError, user_line
from jobflow.core.layout import Box, Rule
from jobflow.core.types import Array, DType, Tensor, TensorType, Xp, bool_
from jobflow.expressions.index_space import IndexSpace
from jobflow.expressions.language import Expression

#: One prepared call of an executing plan: `function(*args)`.
Call: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]
#: `Op.in_place` of ops whose output may be written over the first input, or over either of two
OVER_FIRST: Mapping[int, tuple[int, ...]] = MappingProxyType({0: (0,)})
OVER_EITHER: Mapping[int, tuple[int, ...]] = MappingProxyType({0: (0, 1)})
#: What mixed precision does with an op: computes it in half precision; in half precision if what is around it is; in float32; or in
#: whatever its inputs are.
Precision = Literal["half", "follows", "single", "any"]
Types: TypeAlias = TensorType | tuple[TensorType, ...]
Grads: TypeAlias = Sequence[Tensor | None]


class Binder(Protocol):
    """What a device gives to those who prepare calls."""

    @property
    def xp(self) -> Xp: ...

    def scratch(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """Memory that the calls of this one instruction may use; its content does not outlive them."""
        ...


#: (device, inputs, outputs) -> the calls of one execution
Binding: TypeAlias = Callable[[Binder, Sequence[Array], Sequence[Array]], list[Call]]


@dataclass(frozen=True)
class Sample:
    """One case for the laws: an op and NumPy inputs for it."""

    op: Op
    arrays: tuple[np.ndarray[Any, Any], ...]
    #: which inputs the gradient law perturbs; None means all floating ones
    differentiable: tuple[int, ...] | None = None
    #: distance of the central difference, and tolerance of the comparison, in float64
    step: float = 1e-6
    tolerance: float = 1e-6
    note: str = ""

    def __str__(self) -> str:
        shapes = ",".join("x".join(map(str, a.shape)) or "()" for a in self.arrays)
        return f"{self.op}({shapes}){self.note}"


def sample(op: Op, *arrays: Any, **options: Any) -> Sample:
    return Sample(op, tuple(np.asarray(a) for a in arrays), **options)


@dataclass_transform(eq_default=False, frozen_default=True, field_specifiers=(field,))
@dataclass(frozen=True, eq=False)
class Op(Frozen):
    """An operation; see the module's docstring for what a subclass provides.  Classes derived from it are frozen dataclasses."""

    #: output index -> index of the input whose memory it overwrites
    alias: ClassVar[Mapping[int, int]] = {}
    #: set to True in the body of a class that only serves others as a base; not inherited
    abstract: ClassVar[bool] = False
    #: False for ops whose result is not a function of attributes and inputs alone, and for updates: never merged
    pure: ClassVar[bool] = True
    #: True for values that come from outside the graph (arguments, variables): their kernel never runs
    external: ClassVar[bool] = False
    #: attributes that the text of a node shows anyway
    unshown: ClassVar[frozenset[str]] = frozenset()
    #: True for ops whose result depends on the logical position of the elements (random ones)
    by_position: ClassVar[bool] = False
    #: when `smaller` is taken for an input that lies split along an axis which no signature keeps: always, or only where that
    #: input would be gathered or was asked to lie so (it is cut along another axis otherwise)
    decompose_first: ClassVar[bool] = False

    #: output index -> inputs of its type that it may be written over: the calls read an element of these no later than they write it
    in_place: ClassVar[Mapping[int, tuple[int, ...]]] = {}
    #: in which precision it runs in a job of mixed precision
    precision: ClassVar[Precision] = "single"

    infer: ClassVar[Callable[..., Types]]
    rule: ClassVar[Callable[..., Rule]]
    kernel: ClassVar[Callable[..., None]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("__eq__", "__hash__", "__repr__"):  # should a class have the decorator, it keeps what its class defines
            setattr(cls, name, getattr(cls, name))
        if len(cls.__bases__) > 1 or not vars(cls).keys().isdisjoint(("__annotations__", "__post_init__")):  # others are made as their base is
            dataclass(frozen=True, eq=False, repr=False)(cls)

    def __eq__(self, other: object) -> bool:
        """Equal ops do the same to the last bit, for caches are keyed by ops: 0.0 is not -0.0, and 1 is neither 1.0 nor True."""
        return self is other or (type(self) is type(other) and all(map(_exactly, vars(self).values(), vars(other).values())))

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in fields(self) if f.repr)})"

    def grad(self, *tensors: Any) -> Grads:
        raise JobError(f"{type(self).__name__} has no gradient")

    def expression(self, *types: TensorType) -> tuple[Expression, ...] | None:
        """What the outputs are at one index, made of the inputs' elements there.  None if it cannot be said so."""
        return None

    def index_space(self, *types: TensorType) -> IndexSpace | None:
        """Where inputs and outputs have these elements; None where all broadcast to the shape of the outputs, as in NumPy."""
        return None

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        """This op for a rank that holds these boxes; the same op unless attributes name logical sizes or positions."""
        return self

    def decompose(self, *inputs: Any) -> Sequence[Tensor] | None:
        """The outputs, by ops that may be split along axes which this one must keep whole; None where there are no such ops."""
        return None

    def places(self, y: Array, *types: TensorType) -> Sequence[Array | None]:
        """For ops that only bring their inputs together, or into another order: the view of the output y that each input becomes.

        None where there is no such view.  An input that is made there need not be moved.
        """
        return (None,) * len(types)

    def unwritten(self, *inputs: Tensor) -> Tensor:
        """For updates that the body of a job holds: the new value, by ops that write over nothing."""
        raise JobError(f"{self.word()} cannot run once per microbatch; leave train.num_gradient_accumulation_steps at 1")

    def __str__(self) -> str:
        """The op with the attributes that differ from their defaults: MatMul(transpose_b=True)."""
        shown = (f for f in fields(self) if f.name not in self.unshown and not (f.default is not MISSING and getattr(self, f.name) == f.default))
        return f"{type(self).__name__}({', '.join(f'{f.name}={getattr(self, f.name)}' for f in shown)})"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        """Cases for the laws; a concrete op yields at least one."""
        return iter(())

    @classmethod
    def word(cls) -> str:
        """The op's name as printed in graphs and default node names: MatMul -> matmul."""
        return cls.__name__.lower()


def _exactly(a: Any, b: Any) -> bool:
    """Equality that tells types and zeros apart."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_exactly, a, b))
    return bool(a == b) and (not isinstance(a, float | np.floating) or math.copysign(1, a) == math.copysign(1, b))


class ViewOp(Op):
    """An op whose output is its (first) input looked at differently: no arithmetic, and no copy where strides allow."""

    precision: ClassVar[Precision] = "any"
    view: ClassVar[Callable[..., Array]]  # view(*inputs) -> a view of inputs[0]; ValueError where only a copy would do

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        *inputs, output = arrays
        try:
            output[...] = self.view(*inputs)
        except ValueError:  # the strides of this input do not allow a view: look at a contiguous copy of it
            output[...] = self.view(xp.ascontiguousarray(inputs[0]), *inputs[1:])


def types_tuple(types: Types) -> tuple[TensorType, ...]:
    return (types,) if isinstance(types, TensorType) else tuple(types)


def apply(op: Op, *inputs: Tensor, name: str | None = None) -> Any:
    """Hand `op` to the interpreter in force; its single output, or the tuple of them."""
    interpreter = scope.current().interpreter
    if interpreter is None:
        raise JobError(f"{op.word()} at {user_line()} was called outside a job; call it in the body of a function decorated with global_function")
    outputs = interpreter.apply(op, inputs, name)
    return outputs[0] if len(outputs) == 1 else outputs


def all_ops() -> list[type[Op]]:
    """Every concrete op class that has been imported, by name."""
    found: dict[str, type[Op]] = {}
    stack: list[type[Op]] = [Op]
    while stack:
        for sub in stack.pop().__subclasses__():
            stack.append(sub)
            concrete = not sub.__dict__.get("abstract") and all(part in dir(sub) for part in ("infer", "rule", "kernel"))
            if concrete and sub.__module__.startswith("jobflow."):
                found[f"{sub.__module__}.{sub.__qualname__}"] = sub
    return [found[key] for key in sorted(found)]


def placed(window: Box | None, box: Box) -> Box:
    """Where `box` of a tensor lies if the tensor is `window` of a longer one: a microbatch of the batch.

    In the mirrored view several such tensors follow each other, one per rank: each is that window of its rank's batch, or, where the window is as
    long as the whole, they make up a microbatch of the batch that begins there.
    """
    if window is None:
        return box
    axis = next((i for i, span in enumerate(window.spans) if span != (0, window.whole[i])), 0)
    if axis:
        (low, _), (start, stop) = window.spans[axis], box.spans[axis]
        spans, whole = list(box.spans), list(box.whole)
        spans[axis], whole[axis] = (low + start, low + stop), window.whole[axis]
        return Box(tuple(spans), tuple(whole))
    (low, high), length = window.spans[0], window.whole[0]
    rows = max(high - low, 1)
    (start, stop), *rest = box.spans
    before, inside = divmod(start, rows)
    first = before * length + low + inside
    return Box(((first, first + stop - start), *rest), (box.whole[0] // rows * length, *box.whole[1:]))


def broadcast_shapes(what: str, *types: TensorType) -> tuple[int, ...]:
    """The NumPy broadcast of the operands' shapes; ShapeError naming them if there is none."""
    try:
        return tuple(np.broadcast_shapes(*(t.shape for t in types)))
    except ValueError:
        raise ShapeError(f"{what}: {' and '.join(map(str, types))} do not broadcast together") from None


LETTERS = "abcdefghijklmnopqrstuvwxyz"


def broadcast_rule(types: Sequence[TensorType], linear: tuple[tuple[int, ...], ...] = ()) -> Rule:
    """The rule of an elementwise op: right-aligned axes move together, axes of size 1 that are stretched stay whole."""
    ndim = max((t.ndim for t in types), default=0)
    full = np.broadcast_shapes(*(t.shape for t in types))
    words = []
    for t in types:
        offset = ndim - t.ndim
        words.append("".join(LETTERS[offset + i] if n == full[offset + i] else "1" for i, n in enumerate(t.shape)))
    words = words if len(words) > 1 else [words[0] or "1"]  # one operand without axes must not look like none
    return Rule(f"{','.join(words)}->{LETTERS[:ndim]}", linear=linear)


def adds(*types: TensorType) -> bool:
    """Whether tensors of these types may be partial; there is no sum of truth values."""
    return all(t.dtype is not bool_ for t in types)


def normal_axis(what: str, axis: int, ndim: int) -> int:
    """A negative axis counted from the end; ShapeError if it is out of range, ArgumentError if it is no int."""
    if not isinstance(axis, Integral):
        raise ArgumentError(f"{what}: axis is an int; got {axis!r}")
    if not -ndim <= axis < ndim:
        raise ShapeError(f"{what}: axis {axis} is out of range for a tensor of {ndim} axes")
    return axis % ndim
