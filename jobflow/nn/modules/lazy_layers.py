"""Modules whose number of input features is determined by their first input."""

from __future__ import annotations

from inspect import Signature, signature
from typing import Any, ClassVar

from jobflow.core.errors import ArgumentError, JobError, ShapeError, user_line
from jobflow.functional.dispatch import in_job
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.modules import moving
from jobflow.nn.modules.checked_layers import check_layers
from jobflow.nn.modules.conv_layers import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from jobflow.nn.modules.lazy_parameters import UninitializedBuffer, UninitializedParameter, is_lazy
from jobflow.nn.modules.linear_layers import Linear
from jobflow.nn.modules.module import Module
from jobflow.nn.modules.norm_layers import BatchNorm1d, BatchNorm2d, BatchNorm3d, InstanceNorm1d, InstanceNorm2d, InstanceNorm3d
from jobflow.tensors.state import building_now, gradients

__all__ = [
    "LazyBatchNorm1d", "LazyBatchNorm2d", "LazyBatchNorm3d", "LazyConv1d", "LazyConv2d", "LazyConv3d", "LazyConvTranspose1d",
    "LazyConvTranspose2d", "LazyConvTranspose3d", "LazyInstanceNorm1d", "LazyInstanceNorm2d", "LazyInstanceNorm3d", "LazyLinear",
]  # fmt: skip


class _Lazy(Module):
    """Base class of lazy modules: the first call creates the parameters of `becomes`, and the module becomes one of this class."""

    becomes: ClassVar[type[Module]]
    #: the parameter of the constructor of `becomes` that the first input determines
    missing: ClassVar[str]
    #: the axis of features, counted from the end; None for the axis after the batch
    axis: ClassVar[int | None] = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__signature__ = _lazy_signature(cls)  # type: ignore[attr-defined]
        for base in cls.becomes.__mro__[: cls.becomes.__mro__.index(Module)]:  # `extra_repr` reads constants of the class
            for name, value in vars(base).items():
                if not (name.startswith("__") or callable(value) or hasattr(cls, name)):
                    setattr(cls, name, value)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        try:
            own = signature(type(self)).bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}() {error}") from None
        own.apply_defaults()
        self._arguments = dict(own.arguments)
        groups = self._arguments.get("groups", 1)
        sample = self._created(groups if isinstance(groups, int) and groups > 0 else 1)  # checks the arguments
        for name, p in vars(sample)["_parameters"].items():
            self.register_parameter(name, None if p is None else UninitializedParameter(device=p.device, dtype=p.dtype))
        for name, x in vars(sample)["_buffers"].items():
            self.register_buffer(name, x if x is None or not x.ndim else UninitializedBuffer(device=x.device, dtype=x.dtype))
        for name, value in _plain(sample).items():
            object.__setattr__(self, name, 0 if name == self.missing else value)

    def _created(self, features: int) -> Module:
        """Return a module of the class `becomes` with this number of input features."""
        return type(self).becomes(**{self.missing: features, **self._arguments})

    def extra_repr(self) -> str:
        return type(self).becomes.extra_repr(self)

    def has_uninitialized_params(self) -> bool:
        """Return True, because a module with initialized parameters is no longer of this class."""
        return True

    def initialize_parameters(self, input: Any, *others: Any) -> None:
        """Create the parameters for inputs like `input`; the module becomes one of the class `becomes`.

        Parameters from a loaded state are not replaced.
        Raises: JobError while a program is traced, ArgumentError unless the input is a tensor.  An input without an axis of features, or of another
        size than a loaded parameter, raises ShapeError.
        """
        word = type(self).__name__
        if building_now() is not None or in_job():
            raise JobError(f"{word} at {user_line()}: parameters cannot be created while a program is traced; call the module once before")
        if not isinstance(input, Tensor):
            raise ArgumentError(f"{word} at {user_line()}: the first argument must be a tensor, whose shape determines the parameters; got {input!r}")
        features = self._features(input)
        with gradients(True):
            created = self._created(features)
        parts = [(name, x) for kind in ("_parameters", "_buffers") for name, x in vars(self)[kind].items() if x is not None]
        for name, x in parts:
            if not is_lazy(x) and x.shape != getattr(created, name).shape:
                raise ShapeError(
                    f"{word} at {user_line()}: the loaded {name} is {x.tensor_type}, but an input {input.tensor_type} needs "
                    f"{getattr(created, name).tensor_type}; load the state of a module of the same size"
                )
        for name, x in parts:
            if is_lazy(x):
                moving.replace(x, moving.like(word, name, _converted(getattr(created, name), x), x.layout))
                x.finish()
        for name, value in _plain(created).items():
            object.__setattr__(self, name, value)
        del self._arguments
        object.__setattr__(self, "__class__", type(self).becomes)

    def _features(self, input: Tensor) -> int:
        """Return the size of the axis of features; raise ShapeError unless the input has one."""
        becomes: Any = type(self).becomes
        spatial = getattr(becomes, "spatial", None)
        legal = becomes.ndims if hasattr(becomes, "ndims") else (spatial + 1, spatial + 2) if spatial else range(1, 64)
        if input.ndim not in legal:
            raise ShapeError(f"{type(self).__name__} at {user_line()}: input {input.tensor_type} must have {' or '.join(map(str, legal[:2]))} axes")
        if self.axis is not None:
            return int(input.shape[self.axis])
        with_batch = input.ndim == max(legal) or (hasattr(becomes, "_count") and min(legal) == 2)
        return int(input.shape[1 if with_batch else 0])

    def _call(self, *inputs: Any, **named: Any) -> Any:
        self.initialize_parameters(*inputs, *named.values())
        return self._call(*inputs, **named)


def _converted(value: Tensor, x: Tensor) -> Tensor:
    """Return the value in the element type of x, and on the device of a local x."""
    converted = value.to(x.dtype).detach()
    return converted if x.layout is not None else converted.to(x.device)


def _plain(module: Module) -> dict[str, Any]:
    """Return the attributes of a module, without the attributes that every `Module` has."""
    base = vars(Module())
    return {name: value for name, value in vars(module).items() if name not in base}


def _lazy_signature(cls: type[_Lazy]) -> Signature:
    """Return the signature of the constructor of `becomes` without the parameter that the input determines."""
    whole = signature(cls.becomes)
    return whole.replace(parameters=[each for name, each in whole.parameters.items() if name != cls.missing])


class LazyLinear(_Lazy):
    """A Linear whose `in_features` is the size of the last axis of the first input."""

    becomes, missing, axis = Linear, "in_features", -1


class LazyConv1d(_Lazy):
    """A Conv1d whose `in_channels` is the number of channels of the first input."""

    becomes, missing = Conv1d, "in_channels"


class LazyConv2d(_Lazy):
    """A Conv2d whose `in_channels` is the number of channels of the first input."""

    becomes, missing = Conv2d, "in_channels"


class LazyConv3d(_Lazy):
    """A Conv3d whose `in_channels` is the number of channels of the first input."""

    becomes, missing = Conv3d, "in_channels"


class LazyConvTranspose1d(_Lazy):
    """A ConvTranspose1d whose `in_channels` is the number of channels of the first input."""

    becomes, missing = ConvTranspose1d, "in_channels"


class LazyConvTranspose2d(_Lazy):
    """A ConvTranspose2d whose `in_channels` is the number of channels of the first input."""

    becomes, missing = ConvTranspose2d, "in_channels"


class LazyConvTranspose3d(_Lazy):
    """A ConvTranspose3d whose `in_channels` is the number of channels of the first input."""

    becomes, missing = ConvTranspose3d, "in_channels"


class LazyBatchNorm1d(_Lazy):
    """A BatchNorm1d whose `num_features` is the number of channels of the first input."""

    becomes, missing = BatchNorm1d, "num_features"


class LazyBatchNorm2d(_Lazy):
    """A BatchNorm2d whose `num_features` is the number of channels of the first input."""

    becomes, missing = BatchNorm2d, "num_features"


class LazyBatchNorm3d(_Lazy):
    """A BatchNorm3d whose `num_features` is the number of channels of the first input."""

    becomes, missing = BatchNorm3d, "num_features"


class LazyInstanceNorm1d(_Lazy):
    """An InstanceNorm1d whose `num_features` is the number of channels of the first input."""

    becomes, missing = InstanceNorm1d, "num_features"


class LazyInstanceNorm2d(_Lazy):
    """An InstanceNorm2d whose `num_features` is the number of channels of the first input."""

    becomes, missing = InstanceNorm2d, "num_features"


class LazyInstanceNorm3d(_Lazy):
    """An InstanceNorm3d whose `num_features` is the number of channels of the first input."""

    becomes, missing = InstanceNorm3d, "num_features"


check_layers(globals())
