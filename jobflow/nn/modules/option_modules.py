"""Modules that hold what a function is called with beside tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any, ClassVar, dataclass_transform

from jobflow.core.signatures import take_fields
from jobflow.eager.tensor import Tensor
from jobflow.nn.modules.module import Module


@dataclass_transform(eq_default=False, field_specifiers=(field,))
class WithOptions(Module):
    """A module whose class names a function, and declares its options: they are arguments of the constructor, and attributes.

        class Softplus(OfOne, function=F.softplus):
            beta: float = 1.0
            threshold: float = 20.0

    `shared` is for a class without a function, whose options the classes derived from it have too.  Others are ordinary classes.
    """

    function: ClassVar[Callable[..., Tensor]]
    _names: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, function: Callable[..., Tensor] | None = None, shared: bool = False) -> None:
        super().__init_subclass__()
        if function is not None:
            cls.function = staticmethod(function)
        if function is not None or shared:
            cls._names = take_fields(cls)

    def __post_init__(self) -> None:
        super().__init__()

    def _options(self) -> dict[str, Any]:
        """What the function is called with."""
        return {name: getattr(self, name) for name in self._names}

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self._options().items() if name != "inplace" or value)


class OfOne(WithOptions):
    """function(input, **options)"""

    def forward(self, input: Tensor) -> Tensor:
        return type(self).function(input, **self._options())
