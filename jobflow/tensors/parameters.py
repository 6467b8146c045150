"""Signatures of functions, read from annotations: the parameters that accept tensors, and the values that other parameters accept."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np

from jobflow.core.errors import ArgumentError, user_line
from jobflow.tensors.argument_kinds import Kind, kind_of


class Roles:
    """The parameters of `function` by role: tensors, sequences of tensors, operands (tensors or numbers), and others.

    Roles are computed at the first call of the function, because computing them for all functions would slow down the import.
    """

    def __init__(self, what: str, function: Callable[..., Any]) -> None:
        self.function = function
        self.what = what

    @property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self.function)

    @cached_property
    def by_name(self) -> dict[str, str]:
        """Roles by parameter name: "tensor", "optional" (a tensor or None), "tensors" (several), "operand" (a tensor or a number), or ""."""
        return {each.name: _role(each.annotation) for each in self.signature.parameters.values()}

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of all parameters."""
        return frozenset(self.signature.parameters)

    @cached_property
    def places(self) -> list[str]:
        """The names of the parameters that accept positional arguments."""
        parameters = self.signature.parameters.values()
        return [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]

    @cached_property
    def rest(self) -> str:
        """The name of the parameter *args, or "" if there is none."""
        return next((each.name for each in self.signature.parameters.values() if each.kind is each.VAR_POSITIONAL), "")

    @cached_property
    def open_ended(self) -> bool:
        """True if the function has a parameter **kwargs."""
        return any(each.kind is each.VAR_KEYWORD for each in self.signature.parameters.values())

    @cached_property
    def keywords(self) -> frozenset[str]:
        """The names of the parameters that can be passed by name."""
        return frozenset(each.name for each in self.signature.parameters.values() if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY))

    def renamed(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with PyTorch's and NumPy's parameter names replaced by jobflow's.

        `input` stands for the first tensor; `_OTHER_NAMES` lists further names, such as `axis` for `dim`.  The parameter *args may be passed by
        its name, as a sequence.  Raises: TypeError if two arguments name the same parameter.
        """
        ours = {(name if name in self.keywords else self._ours(name)): value for name, value in named.items()}
        if len(ours) < len(named):
            raise TypeError(f"{self.what}() got several names of one parameter among {', '.join(named)}; pass it once")
        if self.rest not in ours or len(arguments) > len(self.places):
            return arguments, ours
        before = self.places[len(arguments) :]
        if not ours.keys() >= {*before}:
            return arguments, ours
        return (*arguments, *(ours.pop(name) for name in (*before, self.rest))), ours

    def reordered(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments in PyTorch's earlier order, `x.add(2, y)` or `addmm(1, x, -2, a, b)`, as tensors and scales by name.

        Arguments in other orders are returned unchanged.
        """
        excess = len(arguments) - len(self.places)
        names, indices = _SCALES.get(self.what.rstrip("_"), ())[:excess], [i for i, each in enumerate(arguments) if isinstance(each, Real)]
        if not names or not len(names) == len(indices) == excess or not named.keys().isdisjoint(names):
            return arguments, named
        tensors = tuple(each for i, each in enumerate(arguments) if i not in indices)
        return tensors, {**{name: arguments[i] for name, i in zip(names, indices, strict=True)}, **named}

    def _ours(self, name: str) -> str:
        if name == "input":
            others = [name_of_parameter for name_of_parameter in self.places if name_of_parameter != "self"]
            return next((name_of_parameter for name_of_parameter in others if self.by_name[name_of_parameter]), others[0] if others else name)
        other = _OTHER_NAMES.get(name, name)
        return other if other in self.keywords else name

    @cached_property
    def must(self) -> dict[str, bool]:
        """A dict from parameter names to flags: True if the parameter accepts tensors (or None, or a sequence of tensors) but no numbers."""
        return {name: role not in ("", "operand") for name, role in self.by_name.items()}

    @cached_property
    def by_place(self) -> tuple[bool, ...]:
        """The flags of `must`, by position, for the parameters that accept positional arguments."""
        return tuple(self.must[name] for name in self.places)

    @cached_property
    def kinds(self) -> dict[str, Kind]:
        """A dict from parameter names to kinds, for the parameters whose annotation `kind_of` can check."""
        parameters = [each for each in self.signature.parameters.values() if each.kind is not each.VAR_POSITIONAL]
        by_name = {each.name: kind_of("str | None" if each.name == "name" else str(each.annotation)) for each in parameters}  # `name` may be None
        return {name: kind for name, kind in by_name.items() if kind is not None}

    def check_kinds(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Raise ArgumentError for an argument that the kind of its parameter does not accept; parameters without a kind are not checked."""
        kinds = self.kinds
        for name, argument in (*zip(self.places, arguments, strict=False), *named.items()):
            if name in kinds and not kinds[name].fits(argument):
                remedy = "; arrays are arguments of the job" if isinstance(argument, list | np.ndarray) and kinds[name].fits(0.5) else ""
                raise ArgumentError(f"{self.what} at {user_line()}: {name} is {described(argument)}, not {kinds[name].words}{remedy}")

    @cached_property
    def name(self) -> tuple[int, str | None]:
        """The position and the default of the parameter called `name`; without such a parameter, the number of parameters and None."""
        parameters = self.signature.parameters
        return (self.places.index("name"), parameters["name"].default) if "name" in parameters else (len(parameters), None)

    @cached_property
    def least(self) -> int:
        """The number of parameters without a default, including *args and **kwargs."""
        return sum(each.default is each.empty for each in self.signature.parameters.values())

    def bind(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Raise TypeError if the arguments do not match the signature of the function."""
        try:
            self.signature.bind(*arguments, **named)
        except TypeError as error:
            raise TypeError(f"{self.what}() {error}") from None

    def named_arguments(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        """Iterate over the name and value of every argument.

        A list or tuple that may contain tensors is replaced by its elements, with names such as "tensors[0]".
        """
        names = (*self.places, *[self.rest] * (len(arguments) - len(self.places)))
        for name, value in (*zip(names, arguments, strict=False), *named.items()):
            if isinstance(value, list | tuple) and self.by_name.get(name, "") in ("", "tensors"):
                yield from ((f"{name}[{i}]", element) for i, element in enumerate(value))
            else:
                yield name, value

    def wrong(self, name: str, value: Any, numbers_only: bool) -> bool:
        """Return True if the parameter `name` does not accept `value`, which is not a tensor; with `numbers_only`, an operand must be a number."""
        word, _, element = name.partition("[")
        role = self.by_name.get(word, "")
        if element:
            return role == "tensors"
        if role == "operand":
            return numbers_only and not isinstance(value, Real)
        if role == "tensors" and value is None:
            return not str(self.signature.parameters[word].annotation).endswith("None")
        if role == "tensors":
            return isinstance(value, np.ndarray) or not isinstance(value, Iterable)
        return role == "tensor" or (role == "optional" and value is not None)

    def must_be(self, name: str) -> str:
        return "a sequence of tensors" if self.by_name.get(name) == "tensors" else "a tensor"


#: parameter name of NumPy or PyTorch -> jobflow's
_OTHER_NAMES = {"axis": "dim", "keepdims": "keepdim", "size": "shape", "split_size": "split_size_or_sections"}

#: function -> its parameters that are numbers; PyTorch's earlier order has them before tensors
_SCALES = {
    **dict.fromkeys(("add", "sub"), ("alpha",)),
    **dict.fromkeys(("addcmul", "addcdiv"), ("value",)),
    **dict.fromkeys(("addmm", "addmv", "addr", "addbmm", "baddbmm"), ("beta", "alpha")),
}

#: annotation -> role of the parameter
_ROLES = {
    "Tensor": "tensor",
    "Tensor | None": "optional",
    "Sequence[Tensor]": "tensors",
    "Sequence[Tensor] | None": "tensors",
    "Iterable[Tensor]": "tensors",
    "Tensor | Iterable[Tensor]": "tensors",
    "Operand": "operand",
    "Operand | None": "operand",
}


def tensors_of(function: Callable[..., Any]) -> int:
    """Return the number of parameters that are tensors, sequences of tensors, or operands."""
    plain = inspect.unwrap(function, stop=lambda each: hasattr(each, "__signature__"))
    if hasattr(plain, "__signature__"):
        return sum(map(bool, Roles("", plain).by_name.values()))
    return sum(bool(_role(annotation)) for name, annotation in plain.__annotations__.items() if name != "return")


def _role(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return _ROLES.get(text, "")


def _array(x: Any) -> str:
    return f"a NumPy array {x.dtype}[{','.join(map(str, x.shape))}]"


def described(x: Any) -> str:
    """Return the value, shortened to 60 characters, and the type of an argument as text; for a NumPy array, only element type and shape."""
    if isinstance(x, np.ndarray):
        return _array(x)
    text = repr(x)
    return f"{text if len(text) < 60 else text[:56] + ' ...'} of type {type(x).__name__}"
