"""The calls of an operation that a rank on a GPU runs on its host: copies to the host, the operation, and copies back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobflow.core.types import Array
from jobflow.kernels import registry
from jobflow.kernels.target import CPU
from jobflow.ops.host_operation import HostOperation
from jobflow.ops.op import Call
from jobflow.runtime.device.numpy_device import CpuDevice


def host_calls(op: HostOperation, device: Any, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    """Return the calls of an operation on arrays of the GPU; the copies back are not complete on return."""
    sources, targets = ([device.host_array(x.size, x.dtype).reshape(x.shape) for x in arrays] for arrays in (inputs, outputs))
    copied = device.new_event()
    fetches: list[Call] = [(device.fetch_later, (x, host, copied)) for x, host in zip(inputs, sources, strict=True) if x.size]
    uploads: list[Call] = [(device.upload, (x, host)) for x, host in zip(outputs, targets, strict=True) if x.size]
    return [*fetches, *([(device.wait, (copied,))] if fetches else []), *registry.bind(op.op, CPU, CpuDevice(), sources, targets), *uploads]
