"""Exchange of tensors with NumPy by DLPack, without copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jobflow as flow
from jobflow.utils import dlpack

TYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")


@pytest.mark.parametrize("name", TYPES)
def test_tensors_share_memory_with_the_receiver(name: str) -> None:
    x = flow.tensor([[1, 0, 1], [0, 1, 1]]).to(getattr(flow, name))
    y = flow.from_dlpack(x.t())
    assert y.dtype is x.dtype and y.tolist() == x.t().tolist()
    y[1, 0] = 1
    assert x[0, 1].item() == 1
    z = dlpack.from_dlpack(dlpack.to_dlpack(x))
    z[1, 0] = 1
    assert x[1, 0].item() == 1
    if name != "bfloat16":  # NumPy has no such elements
        array = np.from_dlpack(x)
        array[0, 0] = 0
        assert x[0, 0].item() == 0 and array.dtype == x.numpy().dtype
        array[0, 0] = 1
        assert flow.from_dlpack(array).tolist() == x.tolist()


def test_the_memory_outlives_the_tensor() -> None:
    x = flow.arange(1000.0)
    array = np.from_dlpack(x)
    del x
    flow.zeros(1000)
    np.testing.assert_array_equal(array, np.arange(1000.0))
    copy = flow.from_dlpack(array, copy=True, device="cpu")
    copy[0] = 5
    assert array[0] == 0


def test_the_device_is_the_cpu() -> None:
    assert flow.ones(2).__dlpack_device__() == (1, 0)


class Foreign:
    """A tensor of another library."""

    def __init__(self, device: tuple[int, int], export: Callable[[], Any]) -> None:
        self.device, self.export = device, export

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self) -> Any:
        return self.export()


def test_libraries_without_versions_are_read() -> None:
    assert flow.from_dlpack(Foreign((1, 0), np.ones(3).__dlpack__)).tolist() == [1, 1, 1]


def _used() -> Any:
    capsule = flow.to_dlpack(flow.ones(2))
    flow.from_dlpack(capsule)
    return capsule


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a number": (lambda: flow.from_dlpack(3), "from_dlpack at test_dlpack.py"),
    "None": (lambda: flow.from_dlpack(None), "from_dlpack at test_dlpack.py"),
    "a used capsule": (lambda: flow.from_dlpack(_used()), "consumed"),
    "another object as capsule": (lambda: flow.from_dlpack(Foreign((1, 0), object)), "cannot be imported"),
    "a tensor on a GPU": (lambda: flow.from_dlpack(Foreign((2, 0), object)), "DLPack device"),
    "elements of uint16": (lambda: flow.from_dlpack(np.ones(2, np.uint16)), "uint16"),
    "a copy that is a number": (lambda: flow.from_dlpack(np.ones(2), copy=3), "copy must be"),
    "another device": (lambda: flow.from_dlpack(np.ones(2), device="x"), "device"),
    "an array as tensor": (lambda: flow.to_dlpack(np.ones(2)), "to_dlpack at test_dlpack.py"),
    "a tensor with gradients": (lambda: np.from_dlpack(flow.ones(2, requires_grad=True)), "detach"),
    "a global tensor": (lambda: flow.to_dlpack(flow.ones(2, placement=flow.placement("cpu", [0]), sbp=flow.sbp.broadcast)), "to_local"),
    "a stream": (lambda: flow.ones(2).__dlpack__(stream=3), "stream=3"),
    "a device of export": (lambda: flow.ones(2).__dlpack__(dl_device=(2, 0)), "dl_device"),
    "a device of export that is a number": (lambda: flow.ones(2).__dlpack__(dl_device=2), "dl_device"),
    "a version that is text": (lambda: flow.ones(2).__dlpack__(max_version="1"), "max_version"),
    "a version of 2**70": (lambda: flow.ones(2).__dlpack__(max_version=(2**70, 0)), "max_version"),
    "a copy of export that is text": (lambda: flow.ones(2).__dlpack__(copy="x"), "copy must be"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_arguments_are_refused(case: str) -> None:
    call, text = REFUSED[case]
    with pytest.raises(flow.errors.JobflowError) as caught:
        call()
    assert text in str(caught.value)


def test_traced_tensors_have_no_memory() -> None:
    @flow.compile(fullgraph=False)
    def program(x: Any) -> Any:
        return flow.from_dlpack(flow.to_dlpack(x)) + 1

    assert program(flow.ones(2)).tolist() == [2, 2]
