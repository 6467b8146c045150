"""Attributes of a module that are computed from its parameters at each access, such as a normalized weight.

The class of the module becomes a subclass with one property per computed attribute.  Modules of one class with the same computed attributes
share the subclass.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import Any, ClassVar, Protocol

from jobflow.core.errors import ArgumentError, JobError, user_line
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.modules.module import Module
from jobflow.nn.parameter import Parameter


class Rule(Protocol):
    """The rule of a computed attribute: its value at each access, and the effect of an assignment."""

    def value(self, module: Module, name: str) -> Tensor: ...
    def assign(self, module: Module, name: str, value: Tensor) -> None: ...


class Computing:
    """Base class of classes with computed attributes, which `compute` creates."""

    original_class: ClassVar[type[Module]]

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        result = object.__new__(type(self))
        memo[id(self)] = result
        vars(result).update(copy.deepcopy(vars(self), memo))
        return result

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise JobError(
            f"pickle at {user_line()}: {type(self).__name__} has attributes that are computed from parameters; save its state_dict(), or remove the "
            f"parametrization first"
        )


def rules_of(module: Module) -> dict[str, Rule]:
    """Return the rules of the computed attributes by name."""
    rules: dict[str, Rule] = vars(module).get("_rules", {})
    return rules


def rule_of(module: Any, name: Any) -> Rule | None:
    """Return the rule of the computed attribute `name`, or None if there is none."""
    return rules_of(module).get(name) if isinstance(module, Module) and isinstance(name, str) else None


def original_class(module: Module) -> type[Module]:
    """Return the class of a module, or the class before `compute` for a module with computed attributes."""
    return type(module).original_class if isinstance(module, Computing) else type(module)


def _property(name: str) -> Any:
    def get(module: Module) -> Tensor:
        return rules_of(module)[name].value(module, name)

    def assign(module: Module, value: Tensor) -> None:
        rules_of(module)[name].assign(module, name, value)

    return property(get, assign)


@cache
def _subclass(cls: Any, names: frozenset[str], word: str) -> type[Module]:
    body = {name: _property(name) for name in sorted(names)}
    body |= {"original_class": cls, "__module__": cls.__module__, "__doc__": cls.__doc__}
    return type(word, (Computing, cls), body)


def _set_rules(module: Module, rules: dict[str, Rule]) -> None:
    cls: Any = original_class(module)
    object.__setattr__(module, "_rules", rules)
    word = f"Parametrized{cls.__name__}" if "parametrizations" in vars(module)["_modules"] else cls.__name__
    object.__setattr__(module, "__class__", _subclass(cls, frozenset(rules), word) if rules else cls)


def compute(module: Module, name: str, rule: Rule) -> None:
    """Compute the attribute `name` by `rule` at each access, and remove a parameter or buffer of this name."""
    for kind in ("_parameters", "_buffers"):
        vars(module)[kind].pop(name, None)
    _set_rules(module, rules_of(module) | {name: rule})


def release(module: Module, name: str, value: Tensor) -> None:
    """Make the computed attribute `name` a parameter again, or a buffer if `value` is not a parameter."""
    _set_rules(module, {other: rule for other, rule in rules_of(module).items() if other != name})
    if isinstance(value, Parameter):
        module.register_parameter(name, value)
    else:
        module.register_buffer(name, value)


def parameter_of(what: str, module: Any, name: Any) -> Tensor:
    """Return the parameter or buffer `name` of a module; raise ArgumentError if `module` is not an nn.Module or has no such tensor."""
    if not isinstance(module, Module):
        raise ArgumentError(f"{what} at {user_line()}: module must be an nn.Module; got {module!r}")
    parts = {**vars(module)["_parameters"], **vars(module)["_buffers"]}
    tensor = parts.get(name) if isinstance(name, str) else None
    if tensor is None:
        known = ", ".join(word for word, part in parts.items() if part is not None) or "none"
        raise ArgumentError(f"{what} at {user_line()}: {type(module).__name__} has no parameter or buffer {name!r}; it has {known}")
    return tensor
