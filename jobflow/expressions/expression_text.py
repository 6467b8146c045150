"""Text form of expressions, such as 0.5 * x0 * (1.0 + erf(x0 * 0.7071))."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from jobflow.expressions.language import Expression, in_order

_SIGNS = {
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
    "less": "<",
    "less_equal": "<=",
    "equal": "==",
    "not_equal": "!=",
    "logical_and": "and",
    "logical_or": "or",
    "bitwise_and": "&",
    "bitwise_or": "|",
    "bitwise_xor": "^",
    "power": "**",
}


def text(x: Expression) -> str:
    """Format one expression as one line."""
    return _text(x, {}, outermost=True)


def lines(outputs: Sequence[Expression]) -> list[str]:
    """Format expressions as lines; a subexpression with several readers gets a separate line and a name."""
    order = in_order(outputs)
    readers = Counter(y for x in order for y in x.arguments)
    names: dict[Expression, str] = {}
    written: list[str] = []
    for x in order:
        if x.arguments and readers[x] > 1:
            written.append(f"t{len(names)} = {_text(x, names, outermost=True)}")
            names[x] = f"t{len(names)}"
    return [*written, *(f"y{k} = {_text(x, names, outermost=True)}" for k, x in enumerate(outputs))]


def _text(x: Expression, names: dict[Expression, str], *, outermost: bool = False) -> str:
    if x in names:
        return names[x]
    parts = [_text(y, names) for y in x.arguments]
    match x.primitive:
        case "element":
            return f"x{x.attribute}"
        case "number":
            return f"n{x.attribute}"
        case "constant":
            return repr(x.attribute)
        case "cast":
            return f"{x.dtype.name}({_text(x.arguments[0], names, outermost=True)})"
        case sign if sign in _SIGNS:
            joined = f" {_SIGNS[sign]} ".join(parts)
            return joined if outermost else f"({joined})"
        case name:
            return f"{name}({', '.join(_text(y, names, outermost=True) for y in x.arguments)})"
