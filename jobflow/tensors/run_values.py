"""Python values of a compiled function that differ between runs: elements of tensors, counters and lists of results.

A value is a placeholder during the trace.  After every run of the plan, it is computed from the results of the plan, and from the attributes that
the function read.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import JobError, SourceLine, user_line
from jobflow.tensors.state import building_now, note_error
from jobflow.tensors.tensor import TensorBase

_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")


@dataclass
class RunResults:
    """The results of a run of a plan: tensors, their indices by id of the traced tensor, and the values of attributes before the run."""

    outputs: list[Any]
    output_indices: Mapping[int, int]
    before: Mapping[Any, Any]


class HostValue:
    """A Python number that is computed after every run of a plan.

    `kind` is its type, int, float or bool, also for `isinstance`.  `tensor` is the traced tensor whose element it is, if any.  `early` returns a
    number that depends on no results of the run.
    """

    def __init__(
        self,
        what: str,
        kind: type | None,
        compute: Callable[[RunResults], Any],
        tensor: TensorBase | None = None,
        early: Callable[[], Any] | None = None,
    ) -> None:
        self.what, self.kind, self.compute, self.tensor, self.early = what, kind, compute, tensor, early
        self.where: SourceLine = user_line()

    def unknown(self, use: str) -> JobError:
        """Return the error for a use of the value during the trace."""
        note_error(building_now())
        return JobError(
            f"{use} at {user_line()}: the value of {self.what} at {self.where} is not known while flow.compile runs; return the value, or use tensors"
        )

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The type of the number, for `isinstance`."""
        if self.kind is None:
            raise self.unknown("isinstance")
        return self.kind

    def __neg__(self) -> HostValue:
        return self._derived(operator.neg, None if self.kind is None else type(-self.kind(0)))

    def _derived(self, apply: Callable[..., Any], kind: type | None, *others: HostValue) -> HostValue:
        """Return a function of this number and others; `kind` is the type of the result, or None if it depends on the values."""
        parts = (self, *others)
        early = [part.early for part in parts if part.early is not None]
        known = None if len(early) < len(parts) else lambda: apply(*(each() for each in early))
        return HostValue(self.what, kind, lambda run: apply(*(part.compute(run) for part in parts)), None, known)

    def __float__(self) -> float:
        raise self.unknown("float()")

    def __int__(self) -> int:
        raise self.unknown("int()")

    def __index__(self) -> int:
        raise self.unknown("an index")

    def __bool__(self) -> bool:
        raise self.unknown("if")

    def __hash__(self) -> int:
        raise self.unknown("a dictionary key")

    def __repr__(self) -> str:
        raise self.unknown("repr()")

    def __str__(self) -> str:
        raise self.unknown("str()")

    def __format__(self, spec: str) -> str:
        raise self.unknown("format")

    def _compared(self, other: Any) -> Any:
        raise self.unknown("a comparison")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self.unknown(f".{name}")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _compared

    def _rounded(self, *_: Any) -> Any:
        raise self.unknown("rounding")

    __abs__ = __pos__ = __round__ = __trunc__ = __floor__ = __ceil__ = __complex__ = __divmod__ = __rdivmod__ = _rounded


def item_of(x: TensorBase) -> HostValue:
    """Return the only element of the traced tensor x as a placeholder."""
    dtype = x.tensor_type.dtype
    kind = float if dtype.is_float else bool if dtype.name == "bool" else int
    return HostValue("item()", kind, lambda run: run.outputs[run.output_indices[id(x)]].detach().item(), x)


def _binary(name: str, reflected: bool) -> Callable[[HostValue, Any], Any]:
    apply = getattr(operator, name)

    def method(self: HostValue, other: Any) -> Any:
        if type(other) is HostValue:
            return self._derived(apply, _kind(name, self.kind, other.kind), other)
        if not isinstance(other, bool | int | float):
            return NotImplemented
        return self._derived(lambda number: apply(other, number) if reflected else apply(number, other), _kind(name, self.kind, type(other)))

    return method


def _kind(name: str, *kinds: type | None) -> type | None:
    """Return the type of the result of an operation on numbers of these types; None for a power of integers, which may be a float."""
    if name == "truediv":
        return float
    if None in kinds:
        return None
    if float in kinds:
        return None if name == "pow" else float
    return None if name == "pow" else int


for _name in _BINARY:
    setattr(HostValue, f"__{_name}__", _binary(_name, False))
    setattr(HostValue, f"__r{_name}__", _binary(_name, True))


class HostList:
    """A list or deque of the program to which a compiled function only appends elements; `identity` is the item that holds the list."""

    def __init__(self, path: str, identity: tuple[int, Any]) -> None:
        self.path, self.identity = path, identity
        self.appended: list[Any] = []

    def append(self, element: Any) -> None:
        self.appended.append(element)

    def extend(self, elements: Any) -> None:
        self.appended.extend(elements)

    def __iadd__(self, elements: Any) -> HostList:  # type: ignore[misc]
        self.extend(elements)
        return self

    def _refuse(self, *_: Any) -> Any:
        note_error(building_now())
        raise JobError(f"{self.path} at {user_line()}: the elements of this list are not known while flow.compile runs; append to it only")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._refuse()

    __len__ = __iter__ = __getitem__ = __setitem__ = __delitem__ = __contains__ = __bool__ = __radd__ = __mul__ = _refuse
    __add__: Any = _refuse
    __eq__ = _refuse
    __hash__ = object.__hash__
