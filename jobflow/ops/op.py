"""The base class of operations, `Op`; each subclass contains the complete definition of one operation.

A concrete op is a frozen dataclass of its attributes, without a decorator.  Ops are hashable, comparable and picklable.  A concrete op defines

    infer(*types)                       the output type(s), or a ShapeError / DtypeError that names the operands
    rule(*types)                        the legal S/B/P combinations (`jobflow.layout.Rule`)
    kernel(xp, *inputs, *outputs)       the computation with NumPy or CuPy, written into the outputs
    grad(*inputs, *outputs, *output_grads)   gradients of the inputs (None for none), computed by ordinary ops
    samples()                           cases for the property tests of ops

and optionally

    expression(*types)                  formulas of the outputs' elements (`jobflow.expressions.language`)
    view(*inputs)                       the output as a view of its input (`ViewOp`)
    localize(inputs, outputs)           the op that a rank runs on its boxes of the logical tensors
    alias                               outputs that overwrite an input (updates)
    decompose(*inputs)                  the same outputs by ops that accept a split axis

`infer`, `rule` and `localize` receive logical types; `kernel` receives the shards of one rank.  Arrays may have any strides.  Faster
implementations are registered per kind of device (`jobflow/kernels/registry.py`).

The functions for users, such as `relu(x)`, create the op and `apply` it.
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
from jobflow.core.types import Array, DType, Tensor, TensorType, Xp, bool_, float32, float64
from jobflow.expressions.index_space import IndexSpace
from jobflow.expressions.language import Expression

#: One prepared call of an executing plan: `function(*args)`.
Call: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]
#: `Op.in_place` of ops whose output may overwrite the first input, or either of two inputs
OVER_FIRST: Mapping[int, tuple[int, ...]] = MappingProxyType({0: (0,)})
OVER_EITHER: Mapping[int, tuple[int, ...]] = MappingProxyType({0: (0, 1)})
#: precision of an op in mixed precision: "half"; "single" (float32); "follows" and "any" (the widest precision of the inputs).  If no product reads
#: the result, "follows" means float32 in a compiled program
Precision = Literal["half", "follows", "single", "any"]
DeviceKinds: TypeAlias = tuple[Literal["cpu", "cuda"], ...]
Types: TypeAlias = TensorType | tuple[TensorType, ...]
Grads: TypeAlias = Sequence[Tensor | None]


class Binder(Protocol):
    """The resources of a device for preparing kernel calls."""

    @property
    def xp(self) -> Xp: ...

    def scratch(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """Return temporary memory for the calls of one instruction; its content is undefined afterwards."""
        ...


#: function from a device, inputs and outputs to the calls of one execution
Binding: TypeAlias = Callable[[Binder, Sequence[Array], Sequence[Array]], list[Call]]


@dataclass(frozen=True)
class Sample:
    """A case for the property tests of ops: an op and NumPy inputs."""

    op: Op
    arrays: tuple[np.ndarray[Any, Any], ...]
    #: inputs that the gradient law perturbs; None means all floating point inputs
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
    """An operation.  Subclasses are frozen dataclasses; the docstring of this module lists their methods."""

    #: output index -> index of the input that the output overwrites
    alias: ClassVar[Mapping[int, int]] = {}
    #: set to True in the body of a base class; not inherited
    abstract: ClassVar[bool] = False
    #: False for updates, and for ops whose result depends on more than attributes and inputs; such nodes are never merged
    pure: ClassVar[bool] = True
    #: True for sources outside the graph (arguments, variables), whose kernel never runs
    external: ClassVar[bool] = False
    #: attributes that str(op) omits, because str(node) contains them
    unshown: ClassVar[frozenset[str]] = frozenset()
    #: True for ops whose result depends on the logical index of the elements, such as random ops
    by_position: ClassVar[bool] = False
    #: handling of an input split along an axis without a signature.  True: always decompose the op.  False: split another axis, and decompose
    #: the op only if the input would be gathered or its layout is required
    decompose_first: ClassVar[bool] = False

    #: output index -> inputs of the same type that the output may overwrite, because no element is read after its write
    in_place: ClassVar[Mapping[int, tuple[int, ...]]] = {}
    #: the precision of the op in mixed precision
    precision: ClassVar[Precision] = "single"
    #: indices of inputs that take the element type of the other inputs in mixed precision, such as the bias of a product
    adapting: ClassVar[frozenset[int]] = frozenset()
    #: indices of inputs that mixed precision does not cast to float32: the op converts their elements, and its results are float32
    reads_half: ClassVar[frozenset[int]] = frozenset()

    def autocast_dtype(self, half: DType, types: Sequence[TensorType]) -> DType | None:
        """Return the element type to which mixed precision casts floating point inputs of the types `types`, or None for no cast.

        Products are computed in `half`, and the category "single" in float32.  Any other op is computed in the widest type of its inputs: in half
        precision if all are, otherwise in float32.  `adapting` inputs and tensors without axes do not count.  Float64 is never cast, and inputs
        in half precision that the op `reads_half` are not either.
        """
        floats = [type.dtype for type in types if type.dtype.is_float]
        if not floats or float64 in floats:
            return None
        if self.precision in ("half", "single"):
            target = half if self.precision == "half" else float32
        else:
            counted = {type.dtype for i, type in enumerate(types) if type.dtype.is_float and type.shape and i not in self.adapting} or set(floats)
            target = counted.pop() if len(counted) == 1 else float32
        others = [type.dtype for i, type in enumerate(types) if type.dtype.is_float and not self.reads_as_is(i, type)]
        return None if all(dtype is target for dtype in others) else target

    def reads_as_is(self, index: int, type: TensorType) -> bool:
        """Return True if mixed precision casts an input of this type for no category of ops."""
        return index in self.reads_half and type.dtype.is_half

    #: when a compiled loop is faster than array functions in eager execution; "if large": for operands with many elements
    faster_compiled: ClassVar[Literal["always", "if large", "never"]] = "if large"
    #: kinds of device on which a compiled loop of `expression` computes the op; on other kinds, copies of memory or array functions are faster
    loops_on: ClassVar[DeviceKinds] = ("cpu", "cuda")
    #: True if `kernel` adds values at computed indices, which array functions of a GPU do in a varying order
    adds_at_indices: ClassVar[bool] = False
    #: True if eager execution compiles the op at its first run, because one loop serves operands of all sizes
    compiles_at_once: ClassVar[bool] = False

    infer: ClassVar[Callable[..., Types]]
    rule: ClassVar[Callable[..., Rule]]
    kernel: ClassVar[Callable[..., None]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("__eq__", "__hash__", "__repr__"):  # a class with the decorator keeps these methods
            setattr(cls, name, getattr(cls, name))
        if len(cls.__bases__) > 1 or not vars(cls).keys().isdisjoint(("__annotations__", "__post_init__")):  # other classes inherit the constructor
            dataclass(frozen=True, eq=False, repr=False)(cls)

    def __eq__(self, other: object) -> bool:
        """Return True if the ops have the same type and identical attributes, so that they compute the same bits.

        Ops are cache keys.  Therefore 0.0 differs from -0.0, and 1 differs from 1.0 and True.
        """
        return self is other or (type(self) is type(other) and all(map(_exactly, vars(self).values(), vars(other).values())))

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in fields(self) if f.repr)})"

    def grad(self, *tensors: Any) -> Grads:
        raise JobError(f"{type(self).__name__} has no gradient")

    def expression(self, *types: TensorType) -> tuple[Expression, ...] | None:
        """Return the formula of an element of each output, in elements of the inputs, or None if the op has no formula."""
        return None

    def index_space(self, *types: TensorType) -> IndexSpace | None:
        """Return the index space of `expression`, or None if all inputs broadcast to the output shape as in NumPy."""
        return None

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        """Return the op that a rank runs on its shards, which are the boxes `inputs` and `outputs` of the logical tensors.

        The default returns self, which is correct for attributes without logical sizes or indices.
        """
        return self

    def decompose(self, *inputs: Any) -> Sequence[Tensor] | None:
        """Return the outputs of this op, computed by ops that accept a split of an axis that this op cannot split.

        The default returns None: no such ops exist.
        """
        return None

    def places(self, y: Array, *types: TensorType) -> Sequence[Array | None]:
        """Return one view of the output y per input, for ops that only concatenate or reorder.

        The view contains the elements of y that are copies of this input.  None stands for an input without a view.  An input that is computed
        directly in its view of y needs no copy.
        """
        return (None,) * len(types)

    def unwritten(self, *inputs: Tensor) -> Tensor:
        """Return the new value of the updated variable, computed by ops that do not overwrite it, for microbatches of a job.

        The default raises JobError.
        """
        raise JobError(f"{self.word()} cannot run once per microbatch; set train.num_gradient_accumulation_steps to 1")

    def __str__(self) -> str:
        """Format the op with the attributes that differ from their defaults: MatMul(transpose_b=True)."""
        shown = (f for f in fields(self) if f.name not in self.unshown and not (f.default is not MISSING and getattr(self, f.name) == f.default))
        return f"{type(self).__name__}({', '.join(f'{f.name}={getattr(self, f.name)}' for f in shown)})"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        """Yield cases for the property tests; a concrete op yields at least one."""
        return iter(())

    @classmethod
    def word(cls) -> str:
        """Return the lower-case name of the op in graphs and default node names: MatMul -> matmul."""
        return cls.__name__.lower()


def _exactly(a: Any, b: Any) -> bool:
    """Return True for equal values of equal types; 0.0 and -0.0 differ."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_exactly, a, b))
    return bool(a == b) and (not isinstance(a, float | np.floating) or math.copysign(1, a) == math.copysign(1, b))


class ViewOp(Op):
    """An op without arithmetic. Its output is a view of the first input, or a copy if strides allow no view."""

    precision: ClassVar[Precision] = "any"
    view: ClassVar[Callable[..., Array]]  # view(*inputs) -> a view of inputs[0]; ValueError if only a copy is possible

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        *inputs, output = arrays
        try:
            output[...] = self.view(*inputs)
        except ValueError:  # the strides of this input allow no view: use a contiguous copy
            output[...] = self.view(xp.ascontiguousarray(inputs[0]), *inputs[1:])


def types_tuple(types: Types) -> tuple[TensorType, ...]:
    return (types,) if isinstance(types, TensorType) else tuple(types)


def apply(op: Op, *inputs: Tensor, name: str | None = None) -> Any:
    """Apply `op` with the current interpreter; return its single output, or the tuple of outputs."""
    interpreter = scope.current().interpreter
    if interpreter is None:
        raise JobError(f"{op.word()} at {user_line()}: called outside a job; call it in the body of a function decorated with global_function")
    outputs = interpreter.apply(op, inputs, name)
    return outputs[0] if len(outputs) == 1 else outputs


def all_ops() -> list[type[Op]]:
    """Return all concrete op classes in the imported modules of jobflow, sorted by qualified name."""
    classes: dict[str, type[Op]] = {}
    stack: list[type[Op]] = [Op]
    while stack:
        for sub in stack.pop().__subclasses__():
            stack.append(sub)
            concrete = not sub.__dict__.get("abstract") and all(part in dir(sub) for part in ("infer", "rule", "kernel"))
            if concrete and sub.__module__.startswith("jobflow."):
                classes[f"{sub.__module__}.{sub.__qualname__}"] = sub
    return [classes[key] for key in sorted(classes)]


def placed(window: Box | None, box: Box) -> Box:
    """Return `box`, a box of the tensor in `window`, as a box of the whole tensor; `window` is, for example, a microbatch of a batch.

    In the mirrored view, the tensors of several ranks are concatenated, and each tensor is this window of the rank's batch.  If the window has the
    size of its `whole`, the tensors together are one microbatch, which begins at the window's start.
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
    """Return the broadcast shape of the operands as in NumPy; raise ShapeError with the operands if they do not broadcast."""
    try:
        return tuple(np.broadcast_shapes(*(t.shape for t in types)))
    except ValueError:
        raise ShapeError(f"{what}: {' and '.join(map(str, types))} do not broadcast together; make the sizes along each axis equal or 1") from None


LETTERS = "abcdefghijklmnopqrstuvwxyz"


def broadcast_rule(types: Sequence[TensorType], linear: tuple[tuple[int, ...], ...] = ()) -> Rule:
    """Return the rule of an elementwise op. Right-aligned axes are split together, and broadcast axes of size 1 are not split."""
    ndim = max((t.ndim for t in types), default=0)
    full = np.broadcast_shapes(*(t.shape for t in types))
    words = []
    for t in types:
        offset = ndim - t.ndim
        words.append("".join(LETTERS[offset + i] if n == full[offset + i] else "1" for i, n in enumerate(t.shape)))
    words = words if len(words) > 1 else [words[0] or "1"]  # one operand without axes must differ from no operand
    return Rule(f"{','.join(words)}->{LETTERS[:ndim]}", linear=linear)


def adds(*types: TensorType) -> bool:
    """Return True if none of the types has bool elements, so that tensors of these types may be partial sums."""
    return all(t.dtype is not bool_ for t in types)


def normal_axis(what: str, axis: int, ndim: int) -> int:
    """Return the axis as a non-negative index; raise ShapeError if it is out of range, and ArgumentError if it is not an int."""
    if not isinstance(axis, Integral):
        raise ArgumentError(f"{what}: axis must be an int, not {axis!r}")
    if not -ndim <= axis < ndim:
        raise ShapeError(f"{what}: axis {axis} is out of range for a tensor of {ndim} axes")
    return axis % ndim
