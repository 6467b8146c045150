"""Valid values of options of optimizers, schedules and warm-ups: finite numbers in a range by option name, and flags."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from numbers import Real
from typing import Any

from jobflow.core.errors import ConfigError
from jobflow.tensors.argument_kinds import kind_of

__all__ = ["RANGES", "check_fields", "is_number", "out_of_range"]

_SHARE = (lambda x: 0 <= x < 1, "a number of at least 0 and below 1")
#: options with a restricted range: a predicate of valid numbers, and its description
RANGES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "beta1": _SHARE,
    "beta2": _SHARE,
    "epsilon": (lambda x: x >= 0, "a number of at least 0"),
}
_FLAG = kind_of("bool")


def is_number(value: Any) -> bool:
    """Return True for a finite real number other than a bool."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def out_of_range(name: str, value: Any) -> str:
    """Describe the valid values of the option `name` if `value` is invalid; return "" otherwise."""
    legal, words = RANGES.get(name, (is_number, "a number"))
    return "" if is_number(value) and legal(value) else words


def check_fields(of: Any, what: str) -> None:
    """Raise ConfigError if a float or bool field of the dataclass `of` has a wrong type or is out of range."""
    for each in fields(of):
        value, kind = getattr(of, each.name), str(each.type)
        words = ""
        if kind == "bool" and _FLAG is not None and not _FLAG.fits(value):
            words = _FLAG.words
        elif kind == "float" or (kind == "float | None" and value is not None):
            words = out_of_range(each.name, value)
        if words:
            raise ConfigError(f"{what}: {each.name} must be {words}, not {value!r}")
