"""Numbers in text files, by the rules of pandas: no underscores, ASCII digits, and pandas' texts for missing values."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

import numpy as np

from jobflow.core.types import Array
from jobflow.data.conversion import exact_up_to, fits, fitted

#: The texts that pandas reads as missing values.
MISSING = frozenset(
    [
        *["", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA", "NULL", "NaN"],
        *["None", "n/a", "nan", "null"],
    ]
)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?P<rest>\.[0-9]*)?|(?P<point>\.[0-9]+))(?P<power>[eE][+-]?[0-9]+)?")
_INFINITE = re.compile(r"[+-]?inf(inity)?", re.IGNORECASE)
_TRUTH = {"true": 1, "True": 1, "TRUE": 1, "false": 0, "False": 0, "FALSE": 0}
#: Maximum number of digits of a number.
DIGITS = 1000


def numbers(texts: list[str], dtype: np.dtype[Any]) -> tuple[Array, list[int]]:
    """Convert texts to an array of `dtype`, and return the array with the positions of texts that need a slower conversion.

    The caller converts the texts at these positions with `number`; until then the array is arbitrary there.
    """
    joined = "".join(texts)
    plain = joined.isascii() and "_" not in joined
    if dtype.kind in "biu":
        return _integers(texts, dtype, plain)
    return _floats(texts, dtype, plain)


def number(text: str, dtype: np.dtype[Any]) -> float | None:
    """Return the number in a text without surrounding spaces; None if the text is not a number, or `dtype` cannot represent the number."""
    is_float = dtype.kind not in "biu"
    if dtype.kind == "b" and text in _TRUTH:
        return _TRUTH[text]
    if is_float and (_INFINITE.fullmatch(text) or text.lstrip("-").lower() == "nan"):
        return float(text)
    value = parsed(text, exact=not is_float)
    infinite = isinstance(value, float) and math.isinf(value)  # math.isinf raises for integers of more than 308 digits
    return value if value is not None and not infinite and fits(value, dtype) else None


def parsed(text: str, exact: bool = True) -> Any:
    """Return the number that a text represents, or None.

    A number without a point and an exponent is an int. With `exact` other whole numbers are ints too, and fractions are Decimals. Otherwise
    the number is a float.
    """
    match = _NUMBER.fullmatch(text)
    if match is None or len(text) > DIGITS:
        return float(text) if _INFINITE.fullmatch(text) else None
    if match["rest"] is None and match["point"] is None and match["power"] is None:
        return int(text)
    value = Decimal(text)
    if not exact or value.adjusted() > DIGITS:
        return float(text)
    return int(value) if value == value.to_integral_value() else value


def _integers(texts: list[str], dtype: np.dtype[Any], plain: bool) -> tuple[Array, list[int]]:
    everything = list(range(len(texts)))
    if not plain:
        return np.zeros(len(texts), dtype), everything
    try:
        result, misfits = fitted(np.array([int(text) for text in texts], np.int64), dtype)
    except (ValueError, OverflowError):  # `number` determines the wrong text
        return np.zeros(len(texts), dtype), everything
    return result, [] if misfits is None else np.flatnonzero(misfits).tolist()


def _floats(texts: list[str], dtype: np.dtype[Any], plain: bool) -> tuple[Array, list[int]]:
    try:
        values = np.array([float(text) for text in texts]) if plain else _matched(texts)
    except ValueError:
        values = _matched(texts)
    limit = exact_up_to(dtype)
    if values.size and -limit < values.min() and values.max() < limit:  # False for NaN
        return values.astype(dtype), []
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(dtype), np.flatnonzero(~(np.abs(values) < limit)).tolist()


def _matched(texts: list[str]) -> Array:
    return np.array([float(text) if _NUMBER.fullmatch(text) else math.nan for text in texts], np.float64)
