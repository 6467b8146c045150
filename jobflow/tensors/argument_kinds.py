"""Checks of arguments other than tensors by their annotations: whole numbers, sequences of numbers, strings, element types.

kind_of("int | Sequence[int] | None").fits([1, 2])      True
kind_of("int | Sequence[int] | None").words             "a whole number, a sequence of whole numbers or None"
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from functools import cache
from numbers import Integral, Real
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.types import DType, dtype_of


@dataclass(frozen=True)
class Kind:
    """A predicate `fits` for the values that a parameter accepts, and their description `words` for messages."""

    fits: Callable[[Any], bool]
    words: str


def _whole(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return not isinstance(value, bool)


def _real(value: Any) -> bool:
    return isinstance(value, Real) or (isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "biuf")


def _element_type(value: Any) -> bool:
    """Return True if `value` denotes an element type in jobflow or NumPy; return False for None, which NumPy reads as float64."""
    try:
        return isinstance(value, DType) or (value is not None and not isinstance(value, np.generic) and dtype_of(value) is not None)
    except (KeyError, TypeError, ValueError):
        return False


#: kinds by annotation; a flag may also be None or an integer, as in Python
_KINDS = {
    "None": Kind(lambda value: value is None, "None"),
    "bool": Kind(lambda value: value is None or isinstance(value, bool | np.bool_ | Integral), "True or False"),
    "int": Kind(_whole, "a whole number"),
    "float": Kind(_real, "a number"),
    "str": Kind(lambda value: isinstance(value, str), "a text"),
    "DType": Kind(_element_type, "an element type such as jobflow.float32"),
}
#: annotations by their aliases
_ALIASES = {
    "Sizes": "int | Sequence[int]",
    "Axes": "int | Sequence[int] | None",
    "Name": "str | None",
    "Padding": "str | Sequence[int | Sequence[int]]",
}


@cache
def kind_of(annotation: str) -> Kind | None:
    """Return the `Kind` for an annotation; None if values of this annotation are not checked."""
    each = [_one(part.strip()) for part in _alternatives(_ALIASES.get(annotation, annotation))]
    known = [kind for kind in each if kind is not None]
    if len(known) < len(each):
        return None
    words = [kind.words for kind in known]
    return Kind(lambda value: any(kind.fits(value) for kind in known), " or ".join([*([", ".join(words[:-1])] if words[1:] else []), words[-1]]))


def _one(text: str) -> Kind | None:
    if text in _ALIASES:
        return kind_of(text)
    if not (text.startswith("Sequence[") and text.endswith("]")):
        return _KINDS.get(text)
    element = kind_of(text[len("Sequence[") : -1])
    if element is None:
        return None
    several = element.words.replace("a whole number", "whole numbers").replace("a number", "numbers").replace("a text", "texts")
    return Kind(
        lambda value: (
            not isinstance(value, str | dict | set)
            and (not isinstance(value, np.ndarray) or value.ndim > 0)
            and hasattr(value, "__len__")
            and all(map(element.fits, value))
        ),
        f"a sequence of {several}",
    )


def _alternatives(annotation: str) -> Iterator[str]:
    """Yield the alternatives of a union annotation: the text between bars outside of brackets."""
    depth, part = 0, ""
    for character in annotation:
        depth += (character == "[") - (character == "]")
        if character == "|" and not depth:
            yield part
            part = ""
        else:
            part += character
    yield part
