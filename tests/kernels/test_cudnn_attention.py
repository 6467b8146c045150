"""The graphs that cuDNN gets for attention, on an imitation of its frontend, and the operands that it does not get."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jobflow.core.types import bfloat16
from jobflow.kernels.cuda import cudnn_library
from jobflow.kernels.cuda.cudnn_attention import AttentionGraph, refused_operands
from jobflow.kernels.cuda.cudnn_library import CudnnHandle, CudnnLaunch
from jobflow.ops.attention import Attention, AttentionGrad

CAUSAL = Attention(0.125, 0)


class Description:
    """A tensor of the imitated frontend, with the attributes that were set."""

    def __init__(self, **facts: Any) -> None:
        self.facts = facts

    def __getattr__(self, name: str) -> Any:
        def change(value: Any) -> Description:
            self.facts[name.removeprefix("set_")] = value
            return self

        return change


class Graph:
    def __init__(self, **options: Any) -> None:
        self.options, self.calls, self.ran = options, [], []

    def tensor(self, **facts: Any) -> Description:
        return Description(**facts)

    def sdpa(self, *tensors: Any, **options: Any) -> list[Description]:
        self.calls.append(("sdpa", tensors, options))
        return [Description(), Description()]

    def sdpa_backward(self, *tensors: Any, **options: Any) -> list[Description]:
        self.calls.append(("sdpa_backward", tensors, options))
        return [Description(), Description(), Description()]

    def execute(self, pack: Any, workspace: int, handle: Any) -> None:
        self.ran.append((pack, workspace, handle))


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Imitate the frontend; return the streams that its handle was set to."""
    chosen: list[int] = []
    module = types.ModuleType("cudnn")
    kinds = types.SimpleNamespace(HALF="half", BFLOAT16="bfloat16", FLOAT="float")
    members = {"pygraph": Graph, "data_type": kinds, "create_handle": lambda: "handle", "set_stream": lambda handle, stream: chosen.append(stream)}
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, "cudnn", module)
    return chosen


def aligned(*shape: int, dtype: Any = bfloat16.numpy) -> Any:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    buffer = np.zeros(size + 16, np.uint8)
    return buffer[-buffer.ctypes.data % 16 :][:size].view(dtype).reshape(shape)


def operands(gradient: bool, queries: int = 128, keys: int = 128, heads: int = 4, groups: int = 4, size: int = 64) -> tuple[list[Any], list[Any]]:
    """Return inputs, packed as queries, keys and values, and outputs."""
    packed = aligned(2, max(queries, keys), 3 * heads, size)
    q, k, v = (
        packed[:, :count, first : first + own].transpose(0, 2, 1, 3)
        for count, first, own in ((queries, 0, heads), (keys, heads, groups), (keys, 2 * heads, groups))
    )
    y, lse = aligned(2, queries, heads, size).transpose(0, 2, 1, 3), aligned(2, heads, queries, dtype=np.float32)
    return ([q, k, v, y, lse, y], [q, k, v]) if gradient else ([q, k, v], [y, lse])


def test_the_forward_graph_reads_packed_strides(streams: list[int]) -> None:
    inputs, outputs = operands(gradient=False)
    graph = AttentionGraph(CAUSAL, [*inputs, *outputs], handle="handle").graph
    ((name, tensors, options),) = graph.calls
    assert name == "sdpa" and options == {"generate_stats": True, "attn_scale": 0.125, "use_causal_mask": True}
    assert [x.facts["dim"] for x in tensors] == [[2, 4, 128, 64]] * 3 and [x.facts["uid"] for x in tensors] == [0, 1, 2]
    assert [x.facts["stride"] for x in tensors] == [[128 * 768, 64, 768, 1]] * 3
    assert {x.facts["data_type"] for x in tensors} == {"bfloat16"} and graph.options["compute_data_type"] == "float"


def test_the_gradient_is_deterministic_and_reads_the_logarithms(streams: list[int]) -> None:
    inputs, outputs = operands(gradient=True, groups=2)
    graph = AttentionGraph(AttentionGrad(*vars(CAUSAL).values()), [*inputs, *outputs]).graph
    ((name, tensors, options),) = graph.calls
    assert name == "sdpa_backward" and options["use_deterministic_algorithm"]
    assert [x.facts["uid"] for x in tensors] == [0, 1, 2, 3, 5, 4], "the frontend takes dy before the logarithms"
    assert tensors[5].facts["dim"] == [2, 4, 128, 1] and tensors[5].facts["data_type"] == "float"


def test_a_launch_passes_addresses_and_sets_the_stream_once(streams: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = types.ModuleType("cupy")
    current = types.SimpleNamespace(ptr=7)
    vars(cupy).update(cuda=types.SimpleNamespace(get_current_stream=lambda: current))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    inputs, outputs = operands(gradient=False)
    graph = AttentionGraph(CAUSAL, [*inputs, *outputs])
    arrays = [types.SimpleNamespace(data=types.SimpleNamespace(ptr=100 + i)) for i in range(5)]
    launch = CudnnLaunch(graph.graph, CudnnHandle(), arrays, types.SimpleNamespace(data=types.SimpleNamespace(ptr=900)))
    launch()
    launch()
    assert streams == [7] and launch.capturable
    assert graph.graph.ran == [({i: 100 + i for i in range(5)}, 900, "handle")] * 2


@pytest.mark.parametrize(
    ("op", "sizes", "reason"),
    [
        (replace(CAUSAL, rate=0.1), {}, "a mask, dropout or a finite score"),
        (replace(CAUSAL, fill=-1e4), {}, "a mask, dropout or a finite score"),
        (replace(CAUSAL, diagonal=3), {}, "diagonal 3 of 128 queries and 128 keys"),
        (CAUSAL, {"size": 60}, "heads of 60 and 60 elements"),
        (CAUSAL, {"size": 136}, "heads of 136 and 136 elements"),
        (replace(CAUSAL, diagonal=None), {"queries": 1}, "an empty operand, or a single query"),
        (AttentionGrad(0.125), {"keys": 192}, "gradients of 192 keys"),
    ],
)
def test_unsafe_operands_are_refused(op: Any, sizes: dict[str, int], reason: str) -> None:
    assert refused_operands(op, *operands(isinstance(op, AttentionGrad), **sizes)).startswith(reason)


def test_safe_operands_are_accepted() -> None:
    for op in (CAUSAL, AttentionGrad(*vars(CAUSAL).values()), replace(CAUSAL, diagonal=None)):
        assert refused_operands(op, *operands(isinstance(op, AttentionGrad))) == ""
    assert refused_operands(Attention(0.125), *operands(gradient=False, queries=100, keys=192, groups=2)) == ""


def test_unaligned_operands_are_refused() -> None:
    inputs, outputs = operands(gradient=False)
    inputs[0] = inputs[0][..., 1:57]
    inputs[1], inputs[2], outputs[0] = (x[..., :56] for x in (inputs[1], inputs[2], outputs[0]))
    assert "address of an operand" in refused_operands(CAUSAL, inputs, outputs)


def test_a_missing_or_wrong_frontend_has_a_pip_line(streams: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["cudnn"]
    module.__spec__ = types.SimpleNamespace(name="cudnn")  # type: ignore[assignment]
    cases = (("1.26.0", 91901, "is 1.26.0; pip install"), ("1.23.0", 91000, "cuDNN is 91000; pip install"), ("1.23.0", 91901, ""))
    for version, backend, reason in cases:
        vars(module).update(__version__=version, backend_version=lambda backend=backend: backend)
        why = cudnn_library.missing.__wrapped__()
        assert reason in why and bool(reason) == bool(why)
