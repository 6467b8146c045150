"""Filters of named values: parameters of a module, variables of a job, tensors of a checkpoint.

A filter is one of

    "*.bias"                      a pattern of names, as in `fnmatch`
    re.compile(r"bias$")          a regular expression, searched in the name
    flow.nn.Parameter             a type of the value
    lambda name, value: ...       a predicate
    ["*.bias", "norm.*"]          any of several filters; also `AnyOf`
    AllOf(("block.*", Not("*.bias")))

`selected(filter, dict(module.named_parameters()))` selects the parameters of a group, or the parameters to freeze.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, TypeAlias, TypeVar

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError, user_line

__all__ = ["AllOf", "AnyOf", "Filter", "Not", "alternatives", "matches", "selected", "unmatched"]

Filter: TypeAlias = str | re.Pattern[str] | type | Callable[[str, Any], bool] | Iterable[Any]
T = TypeVar("T")


@dataclass(frozen=True)
class AnyOf:
    """A filter that matches if at least one of `filters` matches."""

    filters: tuple[Filter, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "filters", _listed(self.filters, "AnyOf"))

    def __call__(self, name: str, value: Any = None) -> bool:
        return matches(self.filters, name, value)


@dataclass(frozen=True)
class AllOf:
    """A filter that matches if all of `filters` match."""

    filters: tuple[Filter, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "filters", _listed(self.filters, "AllOf"))

    def __call__(self, name: str, value: Any = None) -> bool:
        return all(matches(each, name, value) for each in self.filters)


@dataclass(frozen=True)
class Not:
    """A filter that matches if `filter` does not match."""

    filter: Filter

    def __call__(self, name: str, value: Any = None) -> bool:
        return not matches(self.filter, name, value)


def _listed(filters: Any, what: str) -> tuple[Filter, ...]:
    if isinstance(filters, str) or not isinstance(filters, Iterable):
        raise ArgumentError(f"{what} at {user_line()}: filters must be a list of filters; got {filters!r}")
    return tuple(filters)


def matches(filter: Filter, name: str, value: Any = None) -> bool:
    """Return True if the filter matches this name and value.  Raises: ArgumentError for an object that is not a filter."""
    if isinstance(filter, str):
        return fnmatchcase(name, filter)
    if isinstance(filter, re.Pattern):
        return filter.search(name) is not None
    if isinstance(filter, type):
        return isinstance(value, filter)
    if isinstance(filter, Iterator):
        raise ArgumentError(f"filter at {user_line()}: {filter!r} can be read only once; pass a list of filters")
    if isinstance(filter, Iterable):
        return any(matches(each, name, value) for each in filter)
    if not callable(filter):
        raise ArgumentError(
            f"filter at {user_line()}: a filter must be a pattern, a regular expression, a type, a function of name and value, or a list of "
            f"these; got {filter!r}"
        )
    try:
        return bool(filter(name, value))
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:  # the function itself failed
            raise
        raise ArgumentError(f"filter at {user_line()}: {filter!r} must accept a name and a value: {error}") from None


def alternatives(filter: Filter) -> tuple[Filter, ...]:
    """Return the elements of a list of filters, or a tuple with the single filter."""
    return tuple(filter) if isinstance(filter, Iterable) and not isinstance(filter, str) else (filter,)


def selected(filter: Filter, values: Mapping[str, T]) -> dict[str, T]:
    """Return the values that the filter matches, by name."""
    return {name: value for name, value in values.items() if matches(filter, name, value)}


def unmatched(filter: Filter, values: Mapping[str, Any]) -> str | None:
    """Return the first alternative, other than "*", that matches no value, as text, or None if each alternative matches a value."""
    return next((str(each) for each in alternatives(filter) if each != "*" and not selected(each, values)), None)
