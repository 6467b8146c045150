"""Parametrizations: parameters that are functions of other parameters, computed by modules at each access."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from jobflow.core.errors import ArgumentError, JobflowError, ShapeError, user_line
from jobflow.functional.nn_base import flag
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.modules import moving
from jobflow.nn.modules.computed_attributes import compute, original_class, parameter_of, release, rules_of
from jobflow.nn.modules.container import ModuleDict, ModuleList
from jobflow.nn.modules.module import Module
from jobflow.nn.parameter import Parameter
from jobflow.tensors.state import gradients, state

__all__ = [
    "ParametrizationList", "cached", "is_parametrized", "register_parametrization", "remove_parametrizations", "transfer_parametrizations_and_params",
    "type_before_parametrizations",
]  # fmt: skip

#: values of parametrized tensors while `cached` is active, and the number of active calls of `cached`
_cache: dict[tuple[int, str], Tensor] = {}
_active = [0]


@contextmanager
def cached() -> Iterator[None]:
    """Compute each parametrized tensor only once inside the `with` block, at its first access."""
    _active[0] += 1
    try:
        yield
    finally:
        _active[0] -= 1
        if not _active[0]:
            _cache.clear()


@dataclass(frozen=True)
class _Parametrized:
    """The rule that computes a parametrized tensor by its `ParametrizationList`."""

    def value(self, module: Module, name: str) -> Tensor:
        key = id(module), name
        if not _active[0] or state().building is not None:
            return _list(module, name)()
        if key not in _cache:
            _cache[key] = _list(module, name)()
        return _cache[key]

    def assign(self, module: Module, name: str, value: Tensor) -> None:
        if not isinstance(value, Tensor):
            raise ArgumentError(f"{type(module).__name__}.{name} at {user_line()}: a parametrized tensor must be a tensor; got {value!r}")
        _cache.pop((id(module), name), None)
        _list(module, name).right_inverse(value)


def _list(module: Module, name: str) -> ParametrizationList:
    result: ParametrizationList = vars(module)["_modules"]["parametrizations"][name]
    return result


class ParametrizationList(ModuleList):
    """The parametrizations of one tensor, applied in order, and the original tensors that they start from.

    The original is the parameter `original`, or `original0`, `original1`, ... if the last `right_inverse` returns several tensors.
    """

    def __init__(self, modules: Sequence[Module], original: Tensor, unsafe: bool = False) -> None:
        super().__init__(modules)
        self.unsafe = unsafe
        start = self._inverted(original)
        self.is_tensor = isinstance(start, Tensor)
        parts = (start,) if isinstance(start, Tensor) else tuple(start)
        if not parts or not all(isinstance(part, Tensor) for part in parts):
            raise ArgumentError(f"register_parametrization at {user_line()}: right_inverse must return a tensor or tensors; got {start!r}")
        self.ntensors = len(parts)
        for i, part in enumerate(parts):
            name = "original" if self.is_tensor else f"original{i}"
            if not isinstance(original, Parameter):
                self.register_buffer(name, part)
            elif part is original:
                self.register_parameter(name, original)
            elif self.is_tensor and part.tensor_type == original.tensor_type:
                with gradients(False):  # optimizers refer to the original parameter
                    moving.replace(original, part.detach().clone())
                self.register_parameter(name, original)
            else:
                self.register_parameter(name, Parameter(part.detach().clone(), bool(original.requires_grad)))
        if not unsafe:
            self._check(original)

    def _inverted(self, value: Tensor) -> Any:
        """Return the originals of a value, by the `right_inverse` of each parametrization that has one."""
        result: Any = value
        with gradients(False):
            for module in reversed(list(self)):
                inverse = getattr(module, "right_inverse", None)
                if inverse is not None:
                    result = inverse(result)
        return result

    def _check(self, original: Tensor) -> None:
        with gradients(False):
            value = self()
        if not isinstance(value, Tensor) or value.tensor_type != original.tensor_type:
            shown = value.tensor_type if isinstance(value, Tensor) else repr(value)
            raise ShapeError(
                f"register_parametrization at {user_line()}: the parametrization returns {shown} for a tensor {original.tensor_type}; return "
                f"the same type, or pass unsafe=True"
            )

    @property
    def originals(self) -> list[Tensor]:
        """The original tensors."""
        return [getattr(self, "original" if self.is_tensor else f"original{i}") for i in range(self.ntensors)]

    def right_inverse(self, value: Tensor) -> None:
        """Set the originals so that the parametrized tensor becomes `value`; each parametrization must have a `right_inverse`."""
        for module in self:
            if not hasattr(module, "right_inverse"):
                raise ArgumentError(
                    f"right_inverse at {user_line()}: {type(module).__name__} has no method right_inverse; define it to assign a parametrized tensor"
                )
        start = self._inverted(value)
        parts = [start] if isinstance(start, Tensor) else list(start)
        if len(parts) != self.ntensors:
            raise ArgumentError(f"right_inverse at {user_line()}: {self.ntensors} tensors are needed; the parametrizations returned {len(parts)}")
        with gradients(False):
            for original, part in zip(self.originals, parts, strict=True):
                original.copy_(part)

    def forward(self) -> Tensor:
        first, *others = list(self)
        value: Tensor = first(*self.originals)
        for module in others:
            value = module(value)
        return value


def register_parametrization(module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False) -> Module:
    """Replace a parameter or buffer of the module by `parametrization` of an original tensor, and return the module.

    The attribute `tensor_name` becomes parametrization(original).  A method `right_inverse` of the parametrization computes the original from the
    old value.  Several parametrizations of one tensor are applied in order.  `unsafe` permits another type than that of the original.
    Raises: ArgumentError unless the module has the parameter or buffer; ShapeError for a value of another type.
    """
    what = "register_parametrization"
    if not isinstance(parametrization, Module):
        raise ArgumentError(f"{what} at {user_line()}: parametrization must be an nn.Module; got {parametrization!r}")
    if is_parametrized(module, tensor_name):
        _append(_list(module, tensor_name), parametrization, unsafe)
        return module
    original = parameter_of(what, module, tensor_name)
    parametrization.train(module.training)
    each = ParametrizationList([parametrization], original, bool(unsafe))
    if not is_parametrized(module):
        module.add_module("parametrizations", ModuleDict())
    vars(module)["_modules"]["parametrizations"][tensor_name] = each
    compute(module, tensor_name, _Parametrized())
    return module


def _append(each: ParametrizationList, parametrization: Module, unsafe: bool) -> None:
    """Add a parametrization after the others, and change the original if the parametrization has a `right_inverse`."""
    with gradients(False):
        before = each()
    each.append(parametrization)
    try:
        if hasattr(parametrization, "right_inverse") and all(hasattr(module, "right_inverse") for module in each):
            each.right_inverse(before)
        if not unsafe:
            each._check(before)
    except JobflowError:
        each.pop()
        raise
    each.unsafe = each.unsafe or bool(unsafe)


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Return True if the tensor `tensor_name` of the module is parametrized; for None, if any tensor of the module is."""
    if not isinstance(module, Module):
        raise ArgumentError(f"is_parametrized at {user_line()}: module must be an nn.Module; got {module!r}")
    lists = vars(module)["_modules"].get("parametrizations")
    if not isinstance(lists, ModuleDict):
        return False
    return len(lists) > 0 if tensor_name is None else isinstance(tensor_name, str) and tensor_name in lists


def remove_parametrizations(module: Module, tensor_name: str, leave_parametrized: bool = True) -> Module:
    """Make a parametrized tensor a parameter or buffer again, and return the module.

    Its value is the parametrized value, or the original without `leave_parametrized`.
    Raises: ArgumentError unless the tensor is parametrized, or for `leave_parametrized=False` with several originals.
    """
    what = "remove_parametrizations"
    leave_parametrized = flag(what, "leave_parametrized", leave_parametrized)
    if tensor_name is None or not is_parametrized(module, tensor_name):
        raise ArgumentError(f"{what} at {user_line()}: {type(module).__name__} has no parametrized tensor {tensor_name!r}")
    each = _list(module, tensor_name)
    first = each.originals[0]
    if not leave_parametrized and not each.is_tensor:
        raise ArgumentError(f"{what} at {user_line()}: {tensor_name!r} has {each.ntensors} originals; pass leave_parametrized=True")
    result = first
    if leave_parametrized:
        with gradients(False):
            value = each().detach().clone()
        if each.is_tensor and isinstance(first, Parameter):
            moving.replace(first, value)
        else:
            result = Parameter(value, bool(first.requires_grad)) if isinstance(first, Parameter) else value
    lists = vars(module)["_modules"]["parametrizations"]
    del lists[tensor_name]
    if not len(lists):
        del vars(module)["_modules"]["parametrizations"]
    release(module, tensor_name, result)
    return module


def type_before_parametrizations(module: Module) -> type:
    """Return the class that the module had before its first parametrization."""
    return original_class(module)


def transfer_parametrizations_and_params(from_module: Module, to_module: Module, tensor_name: str | None = None) -> Module:
    """Use the parametrizations and originals of `from_module` in `to_module`, too, for one tensor or for all; return `to_module`.

    Raises: ArgumentError if `from_module` has no parametrized tensor `tensor_name`, or `to_module` no tensor of this name.
    """
    what = "transfer_parametrizations_and_params"
    if not is_parametrized(from_module, tensor_name):
        raise ArgumentError(f"{what} at {user_line()}: from_module {type(from_module).__name__} has no parametrized tensor {tensor_name!r}")
    names = [tensor_name] if tensor_name is not None else list(vars(from_module)["_modules"]["parametrizations"])
    for name in names:
        parameter_of(what, to_module, name)
        if not is_parametrized(to_module):
            to_module.add_module("parametrizations", ModuleDict())
        vars(to_module)["_modules"]["parametrizations"][name] = _list(from_module, name)
        compute(to_module, name, rules_of(from_module)[name])
    return to_module
