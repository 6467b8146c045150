"""The graphs that cuDNN gets for convolutions, on an imitation of its frontend, and the operands that it does not get."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
from test_cudnn_attention import Description

from jobflow.core.types import bfloat16, float16, float32
from jobflow.kernels.cuda import cudnn_convolution
from jobflow.kernels.cuda.cudnn_convolution import ConvolutionGraph, CudnnConvolution, refused_operands
from jobflow.kernels.target import ProductMode, Target
from jobflow.ops.conv import Conv, ConvGradInput, ConvGradWeight

CONV = Conv((2, 1), ((1, 0), (0, 2)), (1, 2))
OPTIONS = (CONV.strides, CONV.padding, CONV.dilations, CONV.groups, CONV.algorithm)
#: shapes of images, filters and results
X, W, Y = (2, 8, 5, 6), (16, 8, 3, 3), (2, 16, 2, 4)


class Unsupported(Exception):
    """The error of the frontend for a plan that it does not support."""


class Graph:
    """A graph of the imitated frontend, whose first plan is not supported."""

    all: ClassVar[list[Graph]] = []

    def __init__(self, **options: Any) -> None:
        self.options, self.calls, self.excluded, self.modes = options, [], [], []
        self.ran: list[Any] = []
        Graph.all.append(self)

    def tensor(self, **facts: Any) -> Description:
        return Description(**facts)

    def conv_fprop(self, *tensors: Any, **windows: Any) -> Description:
        return self._entered("fprop", tensors, windows)

    def conv_dgrad(self, *tensors: Any, **windows: Any) -> Description:
        return self._entered("dgrad", tensors, windows)

    def conv_wgrad(self, *tensors: Any, **windows: Any) -> Description:
        return self._entered("wgrad", tensors, windows)

    def _entered(self, name: str, tensors: Any, windows: Any) -> Description:
        result = Description()
        self.calls.append((name, tensors, windows, result))
        return result

    def validate(self) -> None: ...

    def build_operation_graph(self) -> None: ...

    def check_support(self) -> None: ...

    def create_execution_plans(self, modes: Any) -> None:
        self.modes = modes

    def deselect_numeric_notes(self, notes: Any) -> None:
        self.excluded = notes

    def deselect_workspace_greater_than(self, nbytes: int) -> None:
        self.most = nbytes

    def get_execution_plan_count(self) -> int:
        return 4

    def build_plan_at_index(self, index: int) -> None:
        if index == 0:
            raise Unsupported("not this one")

    def get_workspace_size_plan_at_index(self, index: int) -> int:
        return 100 * index

    def get_plan_name_at_index(self, index: int) -> str:
        return f"plan{index}"

    def execute_plan_at_index(self, pack: Any, workspace: int, index: int, handle: Any) -> None:
        self.ran.append((pack, workspace, index, handle))


@pytest.fixture
def frontend(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    module = types.ModuleType("cudnn")
    notes = types.SimpleNamespace(**{name: name for name in (*cudnn_convolution.ALWAYS, *cudnn_convolution.ROUNDED, *cudnn_convolution.TRANSFORMS)})
    members = {
        "pygraph": Graph,
        "data_type": types.SimpleNamespace(HALF="half", BFLOAT16="bfloat16", FLOAT="float"),
        "heur_mode": types.SimpleNamespace(A="a", FALLBACK="fallback"),
        "numerical_note": notes,
        "cudnnGraphNotSupportedError": Unsupported,
        "create_handle": lambda: "handle",
        "set_stream": lambda handle, stream: None,
    }
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, "cudnn", module)
    monkeypatch.setattr(cudnn_convolution, "missing", lambda: "")
    Graph.all.clear()
    yield


def channels_last(shape: tuple[int, ...], dtype: Any = bfloat16, shift: int = 0) -> Any:
    size = int(np.prod(shape)) * dtype.itemsize
    buffer = np.zeros(size + 32, np.uint8)
    values = buffer[-buffer.ctypes.data % 16 + shift :][:size].view(dtype.numpy)
    return np.moveaxis(values.reshape(shape[0], *shape[2:], shape[1]), -1, 1)


@pytest.mark.parametrize(
    ("op", "shapes", "name"),
    [
        (CONV, (X, W, Y), "fprop"),
        (ConvGradInput(*OPTIONS, X[2:]), (Y, W, X), "dgrad"),
        (ConvGradWeight(*OPTIONS, W[2:]), (X, Y, W), "wgrad"),
    ],
)
def test_graphs_have_the_windows_and_the_strides_of_channels_last(frontend: None, op: Any, shapes: Any, name: str) -> None:
    arrays = [channels_last(shape) for shape in shapes]
    assert refused_operands(op, arrays[:2], arrays[2:]) == ""
    ((called, tensors, windows, result),) = ConvolutionGraph(op, arrays, ProductMode()).graph.calls
    assert called == name
    assert windows == {"pre_padding": [1, 0], "post_padding": [0, 2], "stride": [2, 1], "dilation": [1, 2]}
    for uid, (tensor, array) in enumerate(zip((*tensors, result), arrays, strict=True)):
        facts = tensor.facts
        assert facts["dim"] == list(array.shape) and facts["stride"] == [n // 2 for n in array.strides]
        assert facts["uid"] == uid and facts["data_type"] == "bfloat16"
    assert result.facts["output"]


def test_one_spatial_axis_becomes_two(frontend: None) -> None:
    arrays = [channels_last(shape) for shape in ((2, 8, 6), (4, 8, 3), (2, 4, 3))]
    ((_, tensors, windows, result),) = ConvolutionGraph(Conv((2,), ((1, 0),), (1,)), arrays, ProductMode()).graph.calls
    assert windows == {"pre_padding": [0, 1], "post_padding": [0, 0], "stride": [1, 2], "dilation": [1, 1]}
    assert [x.facts["dim"] for x in (*tensors, result)] == [[2, 8, 1, 6], [4, 8, 1, 3], [2, 4, 1, 3]]
    assert tensors[0].facts["stride"] == [48, 1, 48, 8]


@pytest.mark.parametrize(
    ("dtype", "tf32", "algorithm", "excluded", "allowed"),
    [
        (float32, False, "auto", {"TENSOR_CORE", "WINOGRAD", "FFT", "NONDETERMINISTIC"}, set()),
        (float32, True, "auto", {"WINOGRAD", "NONDETERMINISTIC"}, {"TENSOR_CORE"}),
        (bfloat16, False, "direct", {"WINOGRAD", "NONDETERMINISTIC", "REDUCED_PRECISION_REDUCTION"}, {"TENSOR_CORE"}),
        (float16, False, "winograd", {"NONDETERMINISTIC"}, {"TENSOR_CORE", "WINOGRAD", "FFT"}),
    ],
)
def test_plans_with_other_rounding_are_excluded(
    frontend: None, dtype: Any, tf32: bool, algorithm: Any, excluded: set[str], allowed: set[str]
) -> None:
    op = Conv(*OPTIONS[:4], algorithm)
    graph = ConvolutionGraph(op, [channels_last(shape, dtype) for shape in (X, W, Y)], ProductMode(tf32=tf32))
    graph.propose()
    notes = set(graph.graph.excluded)
    assert excluded <= notes and not allowed & notes and graph.graph.modes == ["a", "fallback"]
    assert graph.graph.most == cudnn_convolution.WORKSPACE


def test_the_first_supported_plan_runs_with_its_workspace(frontend: None, monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = types.ModuleType("cupy")
    vars(cupy).update(cuda=types.SimpleNamespace(get_current_stream=lambda: types.SimpleNamespace(ptr=7)))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(cudnn_convolution, "handle_of", lambda index: types.SimpleNamespace(handle="handle", use=lambda stream: None))

    class OnGpu(np.ndarray[Any, Any]):
        device = types.SimpleNamespace(id=0)

        @property
        def data(self) -> Any:
            return types.SimpleNamespace(ptr=self.__array_interface__["data"][0])

    arrays = [channels_last(shape).view(OnGpu) for shape in (X, W, Y)]
    memory: list[Any] = []

    def scratch(shape: Any, dtype: Any) -> Any:
        memory.append(np.zeros(shape, dtype.numpy).view(OnGpu))
        return memory[-1]

    target = Target("cuda", "nvrtc", products=ProductMode(timed=False))
    (call,) = CudnnConvolution().on(target).bind(CONV, types.SimpleNamespace(scratch=scratch), arrays[:2], arrays[2:])  # type: ignore[arg-type]
    call[0](*call[1])
    addresses = {uid: a.data.ptr for uid, a in enumerate(arrays)}
    assert [a.shape for a in memory] == [(100,)] and Graph.all[-1].ran == [(addresses, memory[0].data.ptr, 1, "handle")]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (lambda a: [*a[:2], channels_last(Y, float32)], "elements of type bfloat16 and float32 are not float16"),
        (lambda a: [np.ascontiguousarray(a[0]), *a[1:]], "the channels of bfloat16[2,8,5,6] with strides"),
        (lambda a: [channels_last(X, shift=2), *a[1:]], "the address of bfloat16[2,8,5,6] is not a multiple of 16 bytes"),
        (lambda a: [a[0][:0], *a[1:]], "an operand has no elements"),
    ],
)
def test_other_operands_are_refused(changed: Any, reason: str) -> None:
    arrays = changed([channels_last(shape) for shape in (X, W, Y)])
    assert refused_operands(CONV, arrays[:2], arrays[2:]).startswith(reason)


def test_negative_padding_is_refused() -> None:
    arrays = [channels_last(shape) for shape in (X, W, Y)]
    assert refused_operands(Conv((1, 1), ((-1, 0), (0, 0)), (1, 1)), arrays[:2], arrays[2:]).startswith("padding")
