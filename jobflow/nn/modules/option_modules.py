"""Modules with the options of a function as attributes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any, ClassVar, dataclass_transform

from jobflow.core.signatures import take_fields
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.modules.module import Module


class WithSettings(Module):
    """Base class of modules whose class statement sets class attributes, as in `class Conv2d(_Convolution, spatial=2)`.

    A class without a docstring takes the docstring of its `function`.
    """

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__()
        cls.__doc__ = cls.__doc__ or getattr(settings.get("function"), "__doc__", None)
        for name, value in settings.items():
            setattr(cls, name, staticmethod(value) if callable(value) else value)


@dataclass_transform(eq_default=False, field_specifiers=(field,))
class WithOptions(WithSettings):
    """A module whose options are fields of the class: arguments of the constructor and attributes.

        class Softplus(OfOne, function=F.softplus):
            beta: float = 1.0
            threshold: float = 20.0

    The fields become options only if the class statement has keyword arguments, such as `function` or `shared=True`.
    Subclasses inherit the options of a shared class.
    """

    function: ClassVar[Callable[..., Tensor]]
    _names: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, shared: bool = False, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        if shared or settings:
            cls._names = take_fields(cls)

    def __post_init__(self) -> None:
        super().__init__()

    def _options(self) -> dict[str, Any]:
        """Return the options of the module as keyword arguments of `function`."""
        return {name: getattr(self, name) for name in self._names}

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self._options().items() if name != "inplace" or value)


class OfOne(WithOptions):
    """A module that computes function(input, **options)."""

    def forward(self, input: Tensor) -> Tensor:
        return type(self).function(input, **self._options())
