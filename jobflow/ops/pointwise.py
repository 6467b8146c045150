"""What elementwise ops have in common: NumPy broadcasting, one element type, one NumPy function."""

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

#: which NumPy kinds of element types an op takes ("V" are the narrow floats that NumPy does not know by itself)
FLOATS, NUMBERS, ANY = "fV", "fViu", "fViub"


class Pointwise(Op):
    """An op that says by one formula what its outputs are, element by element."""

    abstract = True
    #: how many outputs it has
    results: ClassVar[int] = 1

    #: formula(f, *elements) -> the output, or the tuple of them, by operators and the functions of `f`.  The elements are expressions, and f is
    #: `jobflow.expressions.language`, where it is written down; they are arrays, and f is `on_arrays.functions(xp)`, where it runs.  None
    #: where there is a kernel instead
    formula: ClassVar[Callable[..., Any] | None] = None

    def expression(self, *types: TensorType) -> tuple[Expression, ...] | None:
        if self.formula is None:
            return None
        made = self.output_expressions(*(language.cast(x, x.dtype.arithmetic) for x in self.read(*types)))
        return tuple(language.cast(y, t.dtype) for y, t in zip(made, types_tuple(self.infer(*types)), strict=True))

    def read(self, *types: TensorType) -> Sequence[Expression]:
        """What is read of the inputs."""
        return [language.element(i, t.dtype) for i, t in enumerate(types)]

    def output_expressions(self, *read: Expression) -> tuple[Expression, ...]:
        """The outputs, in the types that they are computed in."""
        assert self.formula is not None, f"{self} has no formula"
        made = self.formula(language, *read)
        return made if isinstance(made, tuple) else (made,)

    #: gradient(f, *inputs, output, gradient of it) -> that of the input, or the tuple of all, where that is shorter than the derivative
    gradient: ClassVar[Callable[..., Any] | None] = None

    def grad(self, *tensors: Any) -> Grads:
        if self.formula is None or self.results != 1 or self.alias:
            return super().grad(*tensors)
        *inputs, y, dy = tensors
        return (None,) * len(inputs) if dy is None else _gradients(self, inputs, y, dy)

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        read = len(arrays) - self.results
        assert self.formula is not None, f"{self} has no formula"
        made = self.formula(functions(xp), *arrays[:read])
        for array, value in zip(arrays[read:], made if isinstance(made, tuple) else (made,), strict=True):
            array[...] = value


class Elementwise(Pointwise):
    """z[i] = f(x[i], y[i], ...) with NumPy broadcasting; operands of one element type."""

    abstract = True
    #: the function's name in the array module, if one function does it
    ufunc: ClassVar[str] = ""
    linear: ClassVar[tuple[tuple[int, ...], ...]] = ()
    kinds: ClassVar[str] = FLOATS
    #: element type of the result; None: that of the operands
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
    """DtypeError unless all operands have one element type, and of one of these kinds."""
    listed = " and ".join(map(str, types))
    if any(t.dtype is not types[0].dtype for t in types):
        raise DtypeError(f"{what}: {listed} differ in element type; cast one of them with cast(x, dtype)")
    if types[0].dtype.numpy.kind not in kinds:
        wanted = {FLOATS: "floating point numbers", NUMBERS: "numbers", ANY: "numbers or bool"}.get(kinds, "bool or integers")
        raise DtypeError(f"{what}: {listed} is not of {wanted}; cast it with cast(x, dtype)")


def call(op: Op, *inputs: Tensor, name: str | None = None) -> Tensor:
    """`apply` for an op of one output."""
    z: Tensor = apply(op, *inputs, name=name)
    return z


class UnaryFunction(Protocol):
    def __call__(self, x: Tensor, *, name: str | None = None) -> Tensor: ...


class BinaryFunction(Protocol):
    def __call__(self, x: Tensor, y: Tensor, *, name: str | None = None) -> Tensor: ...


def unary_function(op: type[Op]) -> UnaryFunction:
    """The function of one tensor that applies an op without attributes."""

    def function(x: Tensor, *, name: str | None = None) -> Tensor:
        return call(op(), x, name=name)

    function.__module__, function.__name__ = op.__module__, op.word()
    return function


def binary_function(op: type[Op]) -> BinaryFunction:
    """The function of two tensors that applies an op without attributes."""

    def function(x: Tensor, y: Tensor, *, name: str | None = None) -> Tensor:
        return call(op(), x, y, name=name)

    function.__module__, function.__name__ = op.__module__, op.word()
    return function


def sample_data(seed: int, *shape: int, low: float = -2.0, high: float = 2.0) -> Array:
    """Sample data: uniform, the same every time."""
    return np.random.default_rng(seed).uniform(low, high, shape)


class Binary(Elementwise):
    """An elementwise op of two operands; samples have values in [low, high]."""

    abstract = True
    low: ClassVar[float] = -2.0
    high: ClassVar[float] = 2.0
    kinds = NUMBERS

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for i, (a, b) in enumerate((((5, 3), (5, 3)), ((2, 3, 5), (3, 1)), ((4,), ()), ((1, 4), (3, 1)))):
            yield sample(cls(), sample_data(2 * i, *a, low=cls.low, high=cls.high), sample_data(2 * i + 1, *b, low=cls.low, high=cls.high))


class Unary(Elementwise):
    """An elementwise op of one operand; samples have values in [low, high]."""

    abstract = True
    low: ClassVar[float] = -2.0
    high: ClassVar[float] = 2.0

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), sample_data(1, 5, 3, low=cls.low, high=cls.high))
        yield sample(cls(), sample_data(2, low=cls.low, high=cls.high))


class Negate(Unary):
    """y = -x"""

    precision = "any"
    ufunc = "negative"
    linear = ((0,),)
    kinds = NUMBERS
    in_place = OVER_FIRST

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (call(Negate(), dy),)


# Gradients ----------------------------------------------------------------------------------------------------------


class ElementwiseGrad(Pointwise):
    """The gradient of input `wrt` of an elementwise op, in the shape of its output: what the derivative of its formula says.

    Inputs: those of the op's inputs and then its output (number `inputs`) that the derivative reads, and the gradient of the output, in
    which it is linear.
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
        given = {language.element(i, x.dtype): x for i, x in {**known, self.inputs + 1: dy}.items()}
        return (language.replaced(dx, given),)

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
            for given in op.samples():
                *inputs, g = (*given.arrays, sample_data(9, *np.broadcast_shapes(*(a.shape for a in given.arrays))))
                for wrt in range(len(inputs)):
                    yield sample(cls(op, wrt, len(inputs), tuple(range(len(inputs)))), *inputs, g)


@lru_cache(4096)
def _derivative(op: Pointwise, wrt: int, dtypes: tuple[DType, ...]) -> Expression | None:
    """The gradient of an input, of the elements of inputs, output and gradient of the output, in this order; None if there is none."""
    inputs = [language.element(i, dtype) for i, dtype in enumerate(dtypes)]
    (made,) = op.output_expressions(*inputs)
    y, dy = (language.element(i, made.dtype) for i in (len(dtypes), len(dtypes) + 1))
    if not made.dtype.is_float or not inputs[wrt].dtype.is_float:
        return None
    if op.gradient is not None:
        given = op.gradient(language, *inputs, y, dy)
        dx: Expression = given[wrt] if isinstance(given, tuple) else given
        return dx
    found = derivative(made, [inputs[wrt]], dy)[0]
    return None if found is None else language.replaced(found, {made: y})


def _gradients(op: Pointwise, inputs: Sequence[Tensor], y: Tensor, dy: Tensor, count: int | None = None) -> list[Tensor | None]:
    """The gradients of the first `count` inputs, or of all."""
    n = len(inputs)
    dtypes = tuple(x.tensor_type.dtype.arithmetic for x in inputs)
    given = language.element(n + 1, dy.tensor_type.dtype.arithmetic)
    gradients: list[Tensor | None] = []
    formulas: list[Expression | None] = []
    for wrt, x in enumerate(inputs[:count]):
        dx = _derivative(op, wrt, dtypes)
        formulas.append(dx)
        if dx is None:
            gradients.append(None)
        elif dx is given:
            gradients.append(_sum_to(dy, x.tensor_type.shape))
        elif dx.primitive == "negative" and dx.arguments[0] is given:
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
    """A gradient in the type of its input, where that is not the output's."""
    if dx.tensor_type.dtype.arithmetic is dtype.arithmetic:
        return dx
    from jobflow.ops.scalar import cast  # has formulas, too

    return cast(dx, dtype.of_gradient)


def _sum_to(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Its op is one with a formula, too."""
    from jobflow.ops.broadcast import sum_to

    return sum_to(x, shape)


class _Cube(Unary):
    """y = x^3: a sample for gradients"""

    abstract = True

    def formula(self, f: Any, x: Any) -> Any:
        return x * x * x


class _Cubes(Binary):
    """z = x^3 y^2: likewise"""

    abstract = True
    kinds = FLOATS

    def formula(self, f: Any, x: Any, y: Any) -> Any:
        return x * x * x * (y * y)
