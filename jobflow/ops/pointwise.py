"""Base classes of elementwise ops: NumPy broadcasting, one element type, and one formula or NumPy function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Protocol

import numpy as np

from jobflow.core.errors import DtypeError
from jobflow.core.layout import Rule
from jobflow.core.types import Array, DType, Tensor, TensorType, Xp, dtype_of
from jobflow.expressions import language
from jobflow.expressions.language import Expression
from jobflow.expressions.on_arrays import evaluate, functions
from jobflow.expressions.scalar_derivative import derivative
from jobflow.ops.op import OVER_FIRST, Grads, Op, Sample, apply, broadcast_rule, broadcast_shapes, sample, types_tuple

#: NumPy kinds of element types that an op accepts; "V" are narrow floats without a NumPy type
FLOATS, NUMBERS, ANY = "fV", "fViu", "fViub"


class Pointwise(Op):
    """An op defined by one formula for the elements of its outputs."""

    abstract = True
    #: number of outputs
    results: ClassVar[int] = 1

    #: formula(f, *elements) -> the output, or the tuple of outputs, by operators and the functions of `f`.  A compiled formula receives
    #: expressions and `jobflow.expressions.language`; a computed one receives arrays and `on_arrays.functions(xp)`.  None for ops with a kernel
    formula: ClassVar[Callable[..., Any] | None] = None

    def expression(self, *types: TensorType) -> tuple[Expression, ...] | None:
        if self.formula is None:
            return None
        outputs = self.output_expressions(*(language.cast(x, x.dtype.arithmetic) for x in self.read(*types)))
        return tuple(language.cast(y, t.dtype) for y, t in zip(outputs, types_tuple(self.infer(*types)), strict=True))

    def read(self, *types: TensorType) -> Sequence[Expression]:
        """Return an expression for the element of each input; these expressions are the arguments of the formula."""
        return [language.element(i, t.dtype) for i, t in enumerate(types)]

    def output_expressions(self, *read: Expression) -> tuple[Expression, ...]:
        """Return the formula of each output for the expressions `read` of the inputs' elements, before a conversion to the type of the output."""
        assert self.formula is not None, f"{self} has no formula"
        outputs = self.formula(language, *read)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    #: gradient(f, *inputs, output, output gradient) -> the gradient of the input, or the tuple of all; overrides the derivative of the formula
    gradient: ClassVar[Callable[..., Any] | None] = None

    def grad(self, *tensors: Any) -> Grads:
        if self.formula is None or self.results != 1 or self.alias:
            return super().grad(*tensors)
        *inputs, y, dy = tensors
        return (None,) * len(inputs) if dy is None else _gradients(self, inputs, y, dy)

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        read = len(arrays) - self.results
        assert self.formula is not None, f"{self} has no formula"
        outputs = self.formula(functions(xp), *arrays[:read])
        for array, value in zip(arrays[read:], outputs if isinstance(outputs, tuple) else (outputs,), strict=True):
            array[...] = value


class Elementwise(Pointwise):
    """An op z[i] = f(x[i], y[i], ...) with NumPy broadcasting; all operands have the same element type."""

    abstract = True
    #: name of the function in the array module, for ops that are a single function
    ufunc: ClassVar[str] = ""
    linear: ClassVar[tuple[tuple[int, ...], ...]] = ()
    kinds: ClassVar[str] = FLOATS
    #: element type of the result; None for the type of the operands
    gives: ClassVar[DType | None] = None

    def infer(self, *types: TensorType) -> TensorType:
        check_dtypes(self.word(), self.kinds, *types)
        return TensorType(broadcast_shapes(self.word(), *types), self.gives or types[0].dtype)

    def rule(self, *types: TensorType) -> Rule:
        return broadcast_rule(types, linear=self.linear)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.formula is None and hasattr(language, cls.ufunc):
            cls.formula = _one_function

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        if self.formula is not None and type(self).formula is not _one_function:
            super().kernel(xp, *arrays)
            return
        *inputs, z = arrays
        getattr(xp, self.ufunc)(*inputs, out=z)


def _one_function(op: Elementwise, f: Any, *elements: Any) -> Any:
    return getattr(f, op.ufunc)(*elements)


def check_dtypes(what: str, kinds: str, *types: TensorType) -> None:
    """Raise DtypeError, with the name `what` of the function, unless all operands have the same element type with a NumPy kind in `kinds`."""
    listed = " and ".join(map(str, types))
    if any(t.dtype is not types[0].dtype for t in types):
        raise DtypeError(f"{what}: {listed} differ in element type; cast one of them with cast(x, dtype)")
    if types[0].dtype.numpy.kind not in kinds:
        expected = {FLOATS: "floating point numbers", NUMBERS: "numbers", ANY: "numbers or bool"}.get(kinds, "bool or integers")
        raise DtypeError(f"{what}: {listed} must contain {expected}; cast {'it' if len(types) == 1 else 'them'} with cast(x, dtype)")


def call(op: Op, *inputs: Tensor, name: str | None = None) -> Tensor:
    """Apply an op with a single output and return the output."""
    z: Tensor = apply(op, *inputs, name=name)
    return z


class UnaryFunction(Protocol):
    def __call__(self, x: Tensor, *, name: str | None = None) -> Tensor: ...


class BinaryFunction(Protocol):
    def __call__(self, x: Tensor, y: Tensor, *, name: str | None = None) -> Tensor: ...


def unary_function(op: type[Op]) -> UnaryFunction:
    """Return a function (x, *, name) that applies `op` to the tensor x; `op` is a class of ops without attributes."""

    def function(x: Tensor, *, name: str | None = None) -> Tensor:
        return call(op(), x, name=name)

    function.__module__, function.__name__ = op.__module__, op.word()
    return function


def binary_function(op: type[Op]) -> BinaryFunction:
    """Return a function (x, y, *, name) that applies `op` to two tensors; `op` is a class of ops without attributes."""

    def function(x: Tensor, y: Tensor, *, name: str | None = None) -> Tensor:
        return call(op(), x, y, name=name)

    function.__module__, function.__name__ = op.__module__, op.word()
    return function


def sample_data(seed: int, *shape: int, low: float = -2.0, high: float = 2.0) -> Array:
    """Return uniform random numbers in [low, high) from a fixed seed."""
    return np.random.default_rng(seed).uniform(low, high, shape)


class Binary(Elementwise):
    """An elementwise op of two operands; test samples have values in [low, high)."""

    abstract = True
    low: ClassVar[float] = -2.0
    high: ClassVar[float] = 2.0
    kinds = NUMBERS

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for i, (a, b) in enumerate((((5, 3), (5, 3)), ((2, 3, 5), (3, 1)), ((4,), ()), ((1, 4), (3, 1)))):
            yield sample(cls(), sample_data(2 * i, *a, low=cls.low, high=cls.high), sample_data(2 * i + 1, *b, low=cls.low, high=cls.high))


class Unary(Elementwise):
    """An elementwise op of one operand; test samples have values in [low, high)."""

    abstract = True
    low: ClassVar[float] = -2.0
    high: ClassVar[float] = 2.0

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), sample_data(1, 5, 3, low=cls.low, high=cls.high))
        yield sample(cls(), sample_data(2, low=cls.low, high=cls.high))


class Negate(Unary):
    """Negation: y = -x."""

    precision = "any"
    ufunc = "negative"
    linear = ((0,),)
    kinds = NUMBERS
    in_place = OVER_FIRST

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (call(Negate(), dy),)


# Gradients ----------------------------------------------------------------------------------------------------------


class ElementwiseGrad(Pointwise):
    """Gradient of input `wrt` of an elementwise op, from the derivative of its formula, in the shape of the op's output.

    `reads` contains the indices of the values in the derivative: i < `inputs` for input i of the op, and `inputs` for its output.
    The inputs of the gradient are these values, then the output gradient.
    The result is linear in the output gradient.
    """

    op: Pointwise
    wrt: int
    inputs: int
    reads: tuple[int, ...]

    @property
    def in_place(self) -> Mapping[int, tuple[int, ...]]:  # type: ignore[override]
        return {0: tuple(range(len(self.reads) + 1))}

    def infer(self, *types: TensorType) -> TensorType:
        return types[-1]

    def rule(self, *types: TensorType) -> Rule:
        return broadcast_rule(types, linear=((len(types) - 1,),))

    def output_expressions(self, *read: Expression) -> tuple[Expression, ...]:
        known, dy = dict(zip(self.reads, read[:-1], strict=True)), read[-1]
        dtypes = tuple(known.get(i, dy).dtype for i in range(self.inputs))
        dx = _derivative(self.op, self.wrt, dtypes)
        assert dx is not None, f"{self} has no derivative"
        elements = {language.element(i, x.dtype): x for i, x in {**known, self.inputs + 1: dy}.items()}
        return (language.replaced(dx, elements),)

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        *inputs, dx = arrays
        dx[...] = evaluate(self.output_expressions(*(language.element(i, dtype_of(a.dtype)) for i, a in enumerate(inputs))), inputs, xp)[0]

    def formula(self, f: Any, *elements: Any) -> Any:
        return self.output_expressions(*elements)

    def grad(self, *tensors: Any) -> Grads:
        *inputs, dy, dx, ddx = tensors
        through = _gradients(self, (*inputs, dy), dx, ddx, len(inputs))
        return *through, _sum_to(call(self, *inputs, ddx), dy.tensor_type.shape)

    def word(self) -> str:  # type: ignore[override]
        return f"{self.op.word()}grad"

    def __str__(self) -> str:
        name = type(self.op).__name__
        numbered = f"input={self.wrt}" if self.inputs > 1 else ""
        options = ", ".join(filter(None, (str(self.op).partition("(")[2][:-1], numbered)))
        return f"{name}Grad({options})"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for op in (_Cube(), _Cubes()):
            for case in op.samples():
                *inputs, g = (*case.arrays, sample_data(9, *np.broadcast_shapes(*(a.shape for a in case.arrays))))
                for wrt in range(len(inputs)):
                    yield sample(cls(op, wrt, len(inputs), tuple(range(len(inputs)))), *inputs, g)


@lru_cache(4096)
def _derivative(op: Pointwise, wrt: int, dtypes: tuple[DType, ...]) -> Expression | None:
    """Return the gradient of input `wrt` of `op` as an expression, or None without a gradient; `dtypes` are the types of the inputs.

    Elements 0, 1, ... in the expression are the inputs, then the output and the output gradient.
    """
    inputs = [language.element(i, dtype) for i, dtype in enumerate(dtypes)]
    (output,) = op.output_expressions(*inputs)
    y, dy = (language.element(i, output.dtype) for i in (len(dtypes), len(dtypes) + 1))
    if not output.dtype.is_float or not inputs[wrt].dtype.is_float:
        return None
    if op.gradient is not None:
        gradients = op.gradient(language, *inputs, y, dy)
        dx: Expression = gradients[wrt] if isinstance(gradients, tuple) else gradients
        return dx
    dx_of_formula = derivative(output, [inputs[wrt]], dy)[0]
    return None if dx_of_formula is None else language.replaced(dx_of_formula, {output: y})


def _gradients(op: Pointwise, inputs: Sequence[Tensor], y: Tensor, dy: Tensor, count: int | None = None) -> list[Tensor | None]:
    """Return the gradients of the first `count` inputs of `op` (by default of all inputs) for the output y and its gradient dy."""
    n = len(inputs)
    dtypes = tuple(x.tensor_type.dtype.arithmetic for x in inputs)
    dy_element = language.element(n + 1, dy.tensor_type.dtype.arithmetic)
    gradients: list[Tensor | None] = []
    formulas: list[Expression | None] = []
    for wrt, x in enumerate(inputs[:count]):
        dx = _derivative(op, wrt, dtypes)
        formulas.append(dx)
        if dx is None:
            gradients.append(None)
        elif dx is dy_element:
            gradients.append(_sum_to(dy, x.tensor_type.shape))
        elif dx.primitive == "negative" and dx.arguments[0] is dy_element:
            gradients.append(call(Negate(), _sum_to(dy, x.tensor_type.shape)))
        elif (
            dx.primitive == "negative"
            and dx.arguments[0] in formulas
            and x.tensor_type.shape == inputs[formulas.index(dx.arguments[0])].tensor_type.shape
        ):
            other = gradients[formulas.index(dx.arguments[0])]
            assert other is not None
            gradients.append(call(Negate(), other))
        else:
            leaves = {e.attribute for e in language.in_order([dx]) if e.primitive == "element"}
            reads = tuple(i for i in range(n + 1) if i in leaves)
            full = call(ElementwiseGrad(op, wrt, n, reads), *((*inputs, y)[i] for i in reads), dy)
            gradients.append(_sum_to(full, x.tensor_type.shape))
    return [None if dx is None else _of_type(dx, x.tensor_type.dtype) for dx, x in zip(gradients, inputs, strict=False)]


def _of_type(dx: Tensor, dtype: DType) -> Tensor:
    """Cast the gradient dx to the type of gradients of `dtype` tensors, unless both types are computed in the same arithmetic type."""
    if dx.tensor_type.dtype.arithmetic is dtype.arithmetic:
        return dx
    from jobflow.ops.scalar import cast  # late: `scalar` imports this module

    return cast(dx, dtype.of_gradient)


def _sum_to(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Sum x to `shape`; imported late because the op derives from Pointwise."""
    from jobflow.ops.broadcast import sum_to

    return sum_to(x, shape)


class _Cube(Unary):
    """Cube y = x^3, a sample op for tests of gradients."""

    abstract = True

    def formula(self, f: Any, x: Any) -> Any:
        return x * x * x


class _Cubes(Binary):
    """Product z = x^3 y^2, a sample op for tests of gradients of two operands."""

    abstract = True
    kinds = FLOATS

    def formula(self, f: Any, x: Any, y: Any) -> Any:
        return x * x * x * (y * y)
