"""PyTorch's wrapper of a module for several GPUs of one process, which runs the module on one device here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jobflow.core.errors import ArgumentError, user_line
from jobflow.functional.devices import device
from jobflow.functional.nn_base import whole
from jobflow.nn.modules.module import Module


def _device(name: str, value: Any) -> device:
    """Return a device from its number or its name; raise ArgumentError for other values."""
    if isinstance(value, bool) or not isinstance(value, int | str | device) or (isinstance(value, int) and value < 0):
        raise ArgumentError(f"DataParallel at {user_line()}: {name} must be a device, or its number; got {value!r}")
    return device("cuda", value) if isinstance(value, int) else device(value)


class DataParallel(Module):
    """A wrapper that calls `module` on one device; its parameters have the names `module.*`.

    `device_ids` and `output_device` name the device, and `dim` the batch axis.
    Raises: ArgumentError for several devices, which `nn.parallel.DistributedDataParallel` supports.
    """

    def __init__(self, module: Module, device_ids: Any = None, output_device: Any = None, dim: int = 0) -> None:
        super().__init__()
        if not isinstance(module, Module):
            raise ArgumentError(f"DataParallel at {user_line()}: module is {type(module).__name__}; pass an nn.Module")
        if device_ids is not None and (isinstance(device_ids, str) or not isinstance(device_ids, Iterable)):
            raise ArgumentError(f"DataParallel at {user_line()}: device_ids must be a list of devices, or None; got {device_ids!r}")
        devices = {_device("device_ids", each) for each in device_ids or ()}
        if output_device is not None:
            devices.add(_device("output_device", output_device))
        if len(devices) > 1:
            raise ArgumentError(
                f"DataParallel at {user_line()}: {len(devices)} devices are not supported by one process; start one process per device with "
                f"jobflow launch, and use nn.parallel.DistributedDataParallel"
            )
        self.module = module
        self.device_ids = list(device_ids or ())
        self.output_device = output_device if output_device is not None else next(iter(self.device_ids), None)
        self.dim = whole("DataParallel", "dim", dim)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Return the output of the module."""
        return self.module(*inputs, **kwargs)
