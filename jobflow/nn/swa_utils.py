"""Averages of the parameters of a module over training: stochastic weight averaging, and exponential moving averages."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jobflow.core.errors import ArgumentError, user_line
from jobflow.core.types import int64
from jobflow.functional.creation import zeros
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.modules.module import Module
from jobflow.nn.modules.norm_layers import _BatchNorm as BatchNorm
from jobflow.optim.averaging_schedule import SWALR as SWALR
from jobflow.tensors.state import gradients

__all__ = ["SWALR", "AveragedModel", "get_ema_avg_fn", "get_ema_multi_avg_fn", "get_swa_avg_fn", "get_swa_multi_avg_fn", "update_bn"]

Tensors = Sequence[Tensor]


def get_ema_avg_fn(decay: float = 0.999) -> Callable[[Tensor, Tensor, Any], Tensor]:
    """Return the function f(average, value, count) = decay * average + (1 - decay) * value."""
    _check_decay("get_ema_avg_fn", decay)

    def average(averaged: Tensor, value: Tensor, count: Any) -> Tensor:
        with gradients(False):
            return decay * averaged + (1 - decay) * value

    return average


def get_swa_avg_fn() -> Callable[[Tensor, Tensor, Any], Tensor]:
    """Return the function f(average, value, count) = average + (value - average) / (count + 1)."""

    def average(averaged: Tensor, value: Tensor, count: Any) -> Tensor:
        with gradients(False):
            return averaged + (value - averaged) / (count + 1)

    return average


def get_ema_multi_avg_fn(decay: float = 0.999) -> Callable[[Tensors, Tensors, Any], None]:
    """Return a function (averages, values, count), which overwrites each tensor in the list `averages` by the result of `get_ema_avg_fn`."""
    return _of_lists(get_ema_avg_fn(decay))


def get_swa_multi_avg_fn() -> Callable[[Tensors, Tensors, Any], None]:
    """Return a function (averages, values, count), which overwrites each tensor in the list `averages` by the result of `get_swa_avg_fn`."""
    return _of_lists(get_swa_avg_fn())


def _of_lists(average: Callable[[Tensor, Tensor, Any], Tensor]) -> Callable[[Tensors, Tensors, Any], None]:
    def update(averages: Tensors, values: Tensors, count: Any) -> None:
        with gradients(False):
            for averaged, value in zip(averages, values, strict=True):
                averaged.copy_(average(averaged, value, count))

    return update


def _check_decay(what: str, decay: Any) -> None:
    if isinstance(decay, bool) or not isinstance(decay, int | float) or not 0 <= decay <= 1:
        raise ArgumentError(f"swa_utils.{what} at {user_line()}: decay must be a number from 0 to 1; got {decay!r}")


class AveragedModel(Module):
    """A copy of `model` whose parameters are averages over the calls of `update_parameters`.

    `avg_fn(average, value, count)` returns the new average of a tensor; `multi_avg_fn(averages, values, count)` overwrites a list of averages.
    The default is the mean of all values.  With `use_buffers`, buffers are averaged, too; without it, they are copied.
    """

    n_averaged: Tensor

    def __init__(
        self,
        model: Module,
        device: Any = None,
        avg_fn: Callable[[Tensor, Tensor, Any], Tensor] | None = None,
        multi_avg_fn: Callable[[Tensors, Tensors, Any], None] | None = None,
        use_buffers: bool = False,
    ) -> None:
        super().__init__()
        what = f"swa_utils.AveragedModel at {user_line()}"
        if not isinstance(model, Module):
            raise ArgumentError(f"{what}: model must be an nn.Module; got {type(model).__name__}")
        for name, function in (("avg_fn", avg_fn), ("multi_avg_fn", multi_avg_fn)):
            if function is not None and not callable(function):
                raise ArgumentError(f"{what}: {name} must be a function or None; got {function!r}")
        if avg_fn is not None and multi_avg_fn is not None:
            raise ArgumentError(f"{what}: avg_fn and multi_avg_fn must not both be functions; omit one of them")
        self.module = copy.deepcopy(model)
        if device is not None:
            self.module = self.module.to(device)
        self.register_buffer("n_averaged", zeros((), dtype=int64))
        self.avg_fn, self.multi_avg_fn, self.use_buffers = avg_fn, multi_avg_fn, use_buffers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of the averaged module."""
        return self.module(*args, **kwargs)

    def update_parameters(self, model: Module) -> None:
        """Update the averages by the parameters of `model`; the first call copies the parameters."""
        own, values = ([*_tensors(each, self.use_buffers)] for each in (self.module, model))
        if len(own) != len(values):
            raise ArgumentError(
                f"AveragedModel.update_parameters at {user_line()}: model has {len(values)} tensors, but the average has {len(own)}; "
                f"pass the averaged model, or a copy of it"
            )
        count = int(self.n_averaged)
        with gradients(False):
            if count == 0:
                _copy(own, values)
            elif self.avg_fn is not None:
                for averaged, value in zip(own, values, strict=True):
                    averaged.copy_(self.avg_fn(averaged.detach(), value, self.n_averaged))
            else:
                (self.multi_avg_fn or get_swa_multi_avg_fn())(own, values, self.n_averaged)
            if not self.use_buffers:
                _copy([*self.module.buffers()], [*model.buffers()])
            self.n_averaged += 1


def _tensors(module: Module, use_buffers: bool) -> Iterable[Tensor]:
    tensors = itertools.chain(module.parameters(), module.buffers()) if use_buffers else module.parameters()
    return (x.detach() for x in tensors)


def _copy(targets: Tensors, values: Tensors) -> None:
    for target, value in zip(targets, values, strict=True):
        target.detach().copy_(value)


def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Compute the running statistics of all batch norm layers of `model` again, as means over the batches of `loader`.

    A batch is a tensor, or a list or tuple with the argument of the model as its first element.
    """
    if not isinstance(model, Module):
        raise ArgumentError(f"swa_utils.update_bn at {user_line()}: model must be an nn.Module; got {type(model).__name__}")
    layers = [each for each in model.modules() if isinstance(each, BatchNorm) and each.running_mean is not None]
    if not layers:
        return
    momenta, training = [each.momentum for each in layers], model.training
    with gradients(False):
        for each in layers:
            each.running_mean.zero_()
            each.running_var.fill_(1.0)
            each.num_batches_tracked.zero_()
            each.momentum = None
        model.train()
        try:
            for batch in loader:
                x = batch[0] if isinstance(batch, list | tuple) else batch
                model(x if device is None else x.to(device))
        finally:
            for each, momentum in zip(layers, momenta, strict=True):
                each.momentum = momentum
            model.train(training)
