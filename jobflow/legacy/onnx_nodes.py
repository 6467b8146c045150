"""Translation of ops to ONNX nodes.

An op with a formula is translated by its expression, over its index space; `STRUCTURAL` contains the translations of other ops. All shapes are
static.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jobflow.core.errors import JobError
from jobflow.core.extras import optional
from jobflow.core.types import TensorType
from jobflow.expressions.index_space import IndexSpace, broadcasting
from jobflow.expressions.language import Expression, in_order
from jobflow.graph.ir import Node
from jobflow.ops.op import Op
from jobflow.ops.source import Source

#: version of the ONNX operator set in exported files
OPSET = 18

#: ONNX operators by primitive of an expression
PRIMITIVES = {
    "add": "Add", "subtract": "Sub", "multiply": "Mul", "divide": "Div", "negative": "Neg", "absolute": "Abs", "sign": "Sign", "maximum": "Max",
    "minimum": "Min", "sqrt": "Sqrt", "reciprocal": "Reciprocal", "exp": "Exp", "log": "Log", "power": "Pow", "sin": "Sin", "cos": "Cos",
    "tan": "Tan", "arcsin": "Asin", "arccos": "Acos", "arctan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "tanh": "Tanh", "arcsinh": "Asinh",
    "arccosh": "Acosh", "arctanh": "Atanh", "erf": "Erf", "sigmoid": "Sigmoid", "softplus": "Softplus", "floor": "Floor", "ceil": "Ceil",
    "rint": "Round", "less": "Less", "less_equal": "LessOrEqual", "equal": "Equal", "isnan": "IsNaN", "isinf": "IsInf", "logical_and": "And",
    "logical_or": "Or", "logical_xor": "Xor", "logical_not": "Not", "bitwise_and": "BitwiseAnd", "bitwise_or": "BitwiseOr",
    "bitwise_xor": "BitwiseXor", "invert": "BitwiseNot", "where": "Where", "rare_where": "Where", "quotient": "Div", "remainder": "Mod",
}  # fmt: skip


class Nodes:
    """The nodes and constants of an ONNX graph under construction, with values referenced by name."""

    def __init__(self) -> None:
        self._helper: Any = optional("onnx.helper", "flow.onnx")
        self._arrays: Any = optional("onnx.numpy_helper", "flow.onnx")
        self.nodes: list[Any] = []
        self.constants: dict[Any, Any] = {}
        self._count = 0

    def add(self, kind: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
        """Add a node of the ONNX operator `kind`, and return the name of its output, or a tuple of names for several outputs."""
        names = [self._name(kind) for _ in range(outputs)]
        self.nodes.append(self._helper.make_node(kind, list(inputs), names, domain=domain, **attributes))
        return names[0] if outputs == 1 else tuple(names)

    def constant(self, array: Any) -> str:
        """Add a constant array, once per value, and return its name."""
        array = np.asarray(array)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self.constants:
            self.constants[key] = self._arrays.from_array(array, self._name("constant"))
        return self.constants[key].name

    def whole(self, *numbers: int) -> str:
        """Add the constant int64 vector `numbers`, of sizes or axes, and return its name."""
        return self.constant(np.array(numbers, np.int64))

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{kind.lower()}_{self._count}"

    def element_type(self, dtype: Any) -> int:
        """Return the ONNX enum value of a NumPy type."""
        return self._helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

    # ---------------------------------------------------------------- shape operators

    def reshaped(self, x: str, shape: Sequence[int]) -> str:
        return self.add("Reshape", x, self.whole(*shape))

    def transposed(self, x: str, perm: Sequence[int]) -> str:
        return x if list(perm) == sorted(perm) else self.add("Transpose", x, perm=list(perm))


# Ops with a formula --------------------------------------------------------------------------------------------------


def by_formula(nodes: Nodes, op: Any, inputs: Sequence[str], types: Sequence[TensorType], outputs: Sequence[TensorType]) -> list[str] | None:
    """Add nodes that compute the expression of an op, and return the names of its outputs, or None if ONNX has no equivalent."""
    items = op.expression(*types)
    if items is None or any(x.primitive == "looked_up" for x in in_order(items)):
        return None
    space = op.index_space(*types)
    views = inputs if space is None else [_read(nodes, space, i, x, type) for i, (x, type) in enumerate(zip(inputs, types, strict=True))]
    shape = broadcasting(*types, outputs[0]).shape if space is None else space.shape
    values = expressed(nodes, items, views, shape, type(op).__name__)
    operands: list[str] = []
    for i, (value, type_) in enumerate(zip(values, outputs, strict=True), len(inputs)):
        operands.append(nodes.add("Expand", value, nodes.whole(*type_.shape)) if space is None else _write(nodes, space, i, value, type_))
    return operands


def _read(nodes: Nodes, space: IndexSpace, operand: int, x: str, type: TensorType) -> str:
    """Add nodes that arrange the operand x over the index space, as `IndexSpace.read` does, and return the name of the result."""
    places = space.operands[operand]
    remaining = sorted((axis for axis, place in enumerate(places) if place is not None), key=lambda axis: places[axis] or 0)
    ones = [axis for axis, place in enumerate(places) if place is None]
    sizes = {places[axis]: type.shape[axis] for axis in remaining}
    wide = [sizes.get(i, 1) for i in range(len(space.sizes))]
    return nodes.reshaped(nodes.transposed(x, [*remaining, *ones]), space.collapsed(wide))


def _write(nodes: Nodes, space: IndexSpace, operand: int, value: str, type: TensorType) -> str:
    """Add nodes that arrange `value` as an output of `type`, the inverse of `_read`, and return the name of the result."""
    order = [place for place in space.operands[operand] if place is not None]
    sizes = [n if i in order else 1 for i, n in enumerate(space.sizes)]
    whole = nodes.add("Expand", value, nodes.whole(*space.collapsed(sizes)))
    remaining = nodes.reshaped(whole, [n for i, n in enumerate(sizes) if i in order])
    return nodes.reshaped(nodes.transposed(remaining, [sorted(order).index(place) for place in order]), type.shape)


def expressed(nodes: Nodes, outputs: Sequence[Expression], inputs: Sequence[str], shape: Sequence[int], what: str) -> list[str]:
    """Add nodes that compute the expressions `outputs`, and return the names of the results; `inputs` broadcast to `shape`, the index space."""
    known: dict[Expression, str] = {}
    for x in in_order(outputs):
        known[x] = _primitive(nodes, x, [known[y] for y in x.arguments], inputs, shape, what)
    return [known[x] for x in outputs]


def _primitive(nodes: Nodes, x: Expression, arguments: Sequence[str], inputs: Sequence[str], shape: Sequence[int], what: str) -> str:
    add, number = nodes.add, x.dtype.numpy.type
    if x.primitive in PRIMITIVES:
        return str(add(PRIMITIVES[x.primitive], *arguments))
    match x.primitive:
        case "element" | "number":
            return inputs[int(str(x.attribute))]
        case "constant":
            return nodes.constant(number(x.attribute))
        case "columns":
            return nodes.constant(number(shape[-1] if shape else 1))
        case "index":
            axis = int(str(x.attribute))
            return nodes.constant(np.arange(shape[axis]).reshape((-1,) + (1,) * (-axis - 1)))
        case "cast":
            return str(add("Cast", *arguments, to=nodes.element_type(x.dtype.numpy)))
        case "rsqrt":
            return str(add("Reciprocal", add("Sqrt", *arguments)))
        case "exp2":
            return str(add("Pow", nodes.constant(number(2)), *arguments))
        case "expm1":
            return str(add("Sub", add("Exp", *arguments), nodes.constant(number(1))))
        case "log1p":
            return str(add("Log", add("Add", *arguments, nodes.constant(number(1)))))
        case "log2" | "log10":
            return str(add("Div", add("Log", *arguments), nodes.constant(number(math.log(2 if x.primitive == "log2" else 10)))))
        case "erfc":
            return str(add("Sub", nodes.constant(number(1)), add("Erf", *arguments)))
        case "not_equal":
            return str(add("Not", add("Equal", *arguments)))
        case "isfinite":
            return str(add("Not", add("Or", add("IsNaN", *arguments), add("IsInf", *arguments))))
        case "fmod":
            return str(add("Mod", *arguments, fmod=1))
        case "floor_divide":
            return str(add("Div", add("Sub", arguments[0], add("Mod", *arguments)), arguments[1]))
        case "trunc":
            return str(add("Mul", add("Sign", *arguments), add("Floor", add("Abs", *arguments))))
        case "fma":
            return str(add("Add", add("Mul", *arguments[:2]), arguments[2]))
        case "weighted_sum":
            return str(add("Add", add("Mul", *arguments[:2]), add("Mul", *arguments[2:])))
        case "row_sum" | "row_product" | "row_max":
            kind = {"row_sum": "ReduceSum", "row_product": "ReduceProd", "row_max": "ReduceMax"}[x.primitive]
            return str(add(kind, add("Expand", *arguments, nodes.whole(1, shape[-1])), nodes.whole(-1), keepdims=1))
        case "column_sum":
            rows = nodes.reshaped(add("Expand", *arguments, nodes.whole(*shape)), (-1, shape[-1]))
            return str(add("ReduceSum", rows, nodes.whole(0), keepdims=0))
    raise JobError(f"{what}: ONNX has no operator for the primitive {x.primitive}")


# Ops by class ----------------------------------------------------------------------------------------------------------

#: translation of an op: (nodes, op, inputs, types of inputs, types of outputs) -> names of outputs
Row = Callable[[Nodes, Any, Sequence[str], Sequence[TensorType], Sequence[TensorType]], list[str]]


def _same(nodes: Nodes, op: Any, inputs: Sequence[str], types: Sequence[TensorType], outputs: Sequence[TensorType]) -> list[str]:
    return [inputs[0]]


def _reshape(nodes: Nodes, op: Any, inputs: Sequence[str], types: Sequence[TensorType], outputs: Sequence[TensorType]) -> list[str]:
    return [nodes.reshaped(inputs[0], outputs[0].shape)]


def _product(nodes: Nodes, op: Any, inputs: Sequence[str], types: Sequence[TensorType], outputs: Sequence[TensorType]) -> list[str]:
    turned = [getattr(op, "transpose_a", False), getattr(op, "transpose_b", False)]
    read = [_last_two_exchanged(nodes, x, type) if turn else x for x, type, turn in zip(inputs, types, turned, strict=True)]
    return [nodes.add("MatMul", *read)]


def _last_two_exchanged(nodes: Nodes, x: str, type: TensorType) -> str:
    axes = list(range(type.ndim))
    return nodes.transposed(x, [*axes[:-2], axes[-1], axes[-2]])


def _convolution(nodes: Nodes, op: Any, inputs: Sequence[str], types: Sequence[TensorType], outputs: Sequence[TensorType]) -> list[str]:
    return [nodes.add("Conv", *inputs, strides=list(op.strides), dilations=list(op.dilations), group=op.groups, pads=_pads(op.padding))]


def _pads(pairs: Sequence[tuple[int, int]]) -> list[int]:
    return [before for before, _ in pairs] + [after for _, after in pairs]


def _pool(nodes: Nodes, op: Any, inputs: Sequence[str], types: Sequence[TensorType], outputs: Sequence[TensorType]) -> list[str]:
    kind = "MaxPool" if type(op).__name__ == "MaxPool" else "AveragePool"
    return [nodes.add(kind, *inputs, kernel_shape=list(op.ksize), strides=list(op.strides), pads=_pads(op.padding), ceil_mode=int(op.ceil_mode))]


def _slice(nodes: Nodes, op: Any, inputs: Sequence[str], types: Sequence[TensorType], outputs: Sequence[TensorType]) -> list[str]:
    axes = nodes.whole(*range(types[0].ndim))
    return [nodes.add("Slice", *inputs, nodes.whole(*op.starts), nodes.whole(*op.stops), axes, nodes.whole(*op.steps))]


def _flip(nodes: Nodes, op: Any, inputs: Sequence[str], types: Sequence[TensorType], outputs: Sequence[TensorType]) -> list[str]:
    count, least = len(op.axes), -(2**31)
    ends = nodes.whole(*[-1] * count), nodes.whole(*[least] * count), nodes.whole(*op.axes), nodes.whole(*[-1] * count)
    return [nodes.add("Slice", *inputs, *ends)]


def _pad(nodes: Nodes, op: Any, inputs: Sequence[str], types: Sequence[TensorType], outputs: Sequence[TensorType]) -> list[str]:
    return [nodes.add("Pad", *inputs, nodes.whole(*_pads(op.pairs)), nodes.constant(types[0].dtype.numpy.type(op.value)))]


def _top(nodes: Nodes, op: Any, inputs: Sequence[str], types: Sequence[TensorType], outputs: Sequence[TensorType]) -> list[str]:
    return list(nodes.add("TopK", *inputs, nodes.whole(op.k), outputs=2, axis=op.axis, largest=int(op.largest)))


def _sum_so_far(nodes: Nodes, op: Any, inputs: Sequence[str], types: Sequence[TensorType], outputs: Sequence[TensorType]) -> list[str]:
    axis = nodes.constant(np.int64(op.axis))
    return [nodes.add("CumSum", *inputs, axis, exclusive=int(op.exclusive), reverse=int(op.reverse))]


def _triangle(nodes: Nodes, op: Any, inputs: Sequence[str], types: Sequence[TensorType], outputs: Sequence[TensorType]) -> list[str]:
    part = np.tril if type(op).__name__ == "Tril" else np.triu
    mask = nodes.constant(part(np.ones(types[0].shape[-2:], bool), op.diagonal))
    return [nodes.add("Where", mask, *inputs, nodes.constant(types[0].dtype.numpy.type(op.fill)))]


def _known(nodes: Nodes, op: Any, inputs: Sequence[str], types: Sequence[TensorType], outputs: Sequence[TensorType]) -> list[str]:
    array = np.empty(outputs[0].shape, outputs[0].dtype.numpy)
    op.kernel(np, array)
    return [nodes.constant(array)]


_ROWS: Mapping[str, Row] = {
    "Identity ToLayout GradientLayout ToGlobal ToLocal Detach StaticShape Copy RuntimeAssertion IndexAssertion WeightAssertion": _same,
    "Reshape ExpandDims Squeeze": _reshape,
    "MatMul BatchMatMul BroadcastMatMul RowsMatMul": _product,
    "MaxPool AvgPool": _pool,
    "Slice Subscript": _slice,
    "Tril Triu": _triangle,
    "Constant Arange Linspace": _known,
    "Transpose": lambda nodes, op, inputs, types, outputs: [nodes.transposed(inputs[0], op.perm)],
    "BroadcastTo": lambda nodes, op, inputs, types, outputs: [nodes.add("Expand", *inputs, nodes.whole(*outputs[0].shape))],
    "Concat": lambda nodes, op, inputs, types, outputs: [nodes.add("Concat", *inputs, axis=op.axis)],
    "Gather": lambda nodes, op, inputs, types, outputs: [nodes.add("Gather", *inputs, axis=op.axis)],
    "Conv": _convolution,
    "Flip": _flip,
    "Pad": _pad,
    "TopK": _top,
    "CumSum": _sum_so_far,
}
#: translations by class of the op
STRUCTURAL = {word: row for words, row in _ROWS.items() for word in words.split()}


def translated(nodes: Nodes, node: Node, inputs: Sequence[str]) -> list[str]:
    """Add nodes for a `node` of a program, and return the names of their outputs; raise JobError if ONNX has no equivalent."""
    op: Op = node.op
    types, outputs = [value.tensor_type for value in node.inputs], [value.tensor_type for value in node.outputs]
    row = STRUCTURAL.get(type(op).__name__)
    if row is not None:
        return row(nodes, op, inputs, types, outputs)
    translation = None if isinstance(op, Source) else by_formula(nodes, op, inputs, types, outputs) if hasattr(op, "expression") else None
    if translation is None:
        raise JobError(f"{op.word()} at {node.where}: ONNX has no equivalent; compute the result without this op")
    return translation
