"""Convolutions on GPUs by cuDNN, through its Python frontend: one call for the convolution, and one for each gradient.

Operands have the channels innermost: images n, *spatial, c, and filters o, *kernel, c.  They are float16, bfloat16 or float32; sums are float32.
Printed kernels (`convolution_kernels`) compute the rest.

* Images of 3 channels are padded by cuDNN itself, in its workspace.
* float32 factors are rounded to TF32 only if `matmul_precision` allows it.
* Winograd and Fourier transforms are used only if the operation requests the fastest algorithm, because their rounding errors are larger.
* Plans are deterministic, so equal inputs give equal bits.

The first plan that cuDNN proposes is used.  A program of one rank times the first proposals on its GPU, and stores the name of the fastest plan in
the kernel cache.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from jobflow.core.dataclass import dataclass
from jobflow.core.notices import notice
from jobflow.core.types import Array, bfloat16, dtype_of, float16, float32, type_of, uint8
from jobflow.kernels.cuda.convolution_kernels import ConvolutionKernel
from jobflow.kernels.cuda.cudnn_library import CudnnLaunch, handle_of, missing
from jobflow.kernels.cuda.fused import placeholders
from jobflow.kernels.object_cache import ObjectCache
from jobflow.kernels.registry import PerTarget, register
from jobflow.kernels.target import ProductMode, Target
from jobflow.ops.conv import Conv, ConvGradInput, ConvGradWeight, ConvOp
from jobflow.ops.op import Binder, Call, Op

#: alignment of addresses, and size of the largest workspace, in bytes
ALIGNMENT, WORKSPACE = 16, 512 << 20
#: plans that are timed, and runs of each
TIMED, RUNS = 5, 4
#: element type -> its name in the frontend
TYPES = {float32: "FLOAT", float16: "HALF", bfloat16: "BFLOAT16"}
#: notes of plans that are excluded
TRANSFORMS = ("WINOGRAD", "WINOGRAD_TILE_4x4", "WINOGRAD_TILE_6x6", "WINOGRAD_TILE_13x13", "FFT")
ROUNDED = ("TENSOR_CORE", "DOWN_CONVERT_INPUTS")
ALWAYS = ("NONDETERMINISTIC", "REDUCED_PRECISION_REDUCTION")


def refused_operands(op: ConvOp, inputs: Sequence[Array], outputs: Sequence[Array]) -> str:
    """Return the reason cuDNN does not compute the operation on these operands, or ""."""
    arrays = (*inputs, *outputs)
    kinds = {dtype_of(a.dtype) for a in arrays}
    if len(kinds) > 1 or not kinds <= TYPES.keys():
        return f"elements of type {' and '.join(sorted(kind.name for kind in kinds))} are not float16, bfloat16 or float32"
    if any(0 in a.shape for a in arrays):
        return "an operand has no elements"
    if any(n < 0 for pair in op.padding for n in pair):
        return f"padding {op.padding} is negative"
    for a in arrays:
        if not is_channels_last(a):
            return f"the channels of {type_of(a)} with strides {a.strides} are not innermost"
        if a.__array_interface__["data"][0] % ALIGNMENT:
            return f"the address of {type_of(a)} is not a multiple of {ALIGNMENT} bytes"
    return ""


def is_channels_last(array: Array) -> bool:
    """Return True if an array [a, channels, *spatial] is dense with the channels innermost; strides of axes of one element do not matter."""
    expected = channels_last_strides(array.shape)
    return all(n == 1 or step == own * array.itemsize for n, step, own in zip(array.shape, array.strides, expected, strict=True))


def channels_last_strides(shape: Sequence[int]) -> list[int]:
    """Return the strides in elements of a dense array [a, channels, *spatial] with the channels innermost."""
    strides, step = [0] * len(shape), 1
    for axis in (1, *range(len(shape) - 1, 1, -1), 0):
        strides[axis] = step
        step *= shape[axis]
    return strides


class ConvolutionGraph:
    """The cuDNN graph of an operation for arrays of these shapes; `options` are those of the frontend's graph, such as a handle."""

    def __init__(self, op: ConvOp, arrays: Sequence[Array], mode: ProductMode, **options: Any) -> None:
        self.cudnn = importlib.import_module("cudnn")
        self.op, self.dtype = op, dtype_of(arrays[0].dtype)
        self.mode = mode
        types = self.cudnn.data_type
        kind = getattr(types, TYPES[self.dtype])
        self.graph = self.cudnn.pygraph(io_data_type=kind, intermediate_data_type=types.FLOAT, compute_data_type=types.FLOAT, **options)
        inputs = []
        for uid, array in enumerate(arrays[:2]):
            shape = _two_spatial_axes(array.shape)
            inputs.append(self.graph.tensor(name=f"x{uid}", dim=shape, stride=channels_last_strides(shape), data_type=kind, uid=uid))
        build = {Conv: self.graph.conv_fprop, ConvGradInput: self.graph.conv_dgrad, ConvGradWeight: self.graph.conv_wgrad}[type(op)]
        before, after = ([pair[side] for pair in op.padding] for side in (0, 1))
        lone = len(op.strides) == 1
        windows = {
            "pre_padding": [0] * lone + before,
            "post_padding": [0] * lone + after,
            "stride": [1] * lone + list(op.strides),
            "dilation": [1] * lone + list(op.dilations),
        }
        result, shape = build(*inputs, **windows), _two_spatial_axes(arrays[2].shape)
        result.set_output(True).set_dim(shape).set_stride(channels_last_strides(shape)).set_uid(2).set_data_type(kind)

    def propose(self) -> int:
        """Let cuDNN propose plans; return their number.  Raises: the frontend's error if cuDNN does not support the graph."""
        self.graph.validate()
        self.graph.build_operation_graph()
        self.graph.create_execution_plans([self.cudnn.heur_mode.A, self.cudnn.heur_mode.FALLBACK])
        self.graph.deselect_numeric_notes([getattr(self.cudnn.numerical_note, name) for name in self._excluded()])
        self.graph.deselect_workspace_greater_than(WORKSPACE)
        self.graph.check_support()
        return int(self.graph.get_execution_plan_count())

    def supported(self) -> Iterator[tuple[int, int]]:
        """Build the proposed plans one after the other; yield the number and the bytes of the workspace of each plan that cuDNN supports."""
        for index in range(self.propose()):
            nbytes = self.build_at(index)
            if nbytes is not None:
                yield index, nbytes

    def build_at(self, index: int) -> int | None:
        """Build plan `index`; return the bytes of its workspace, or None if cuDNN cannot build it."""
        try:
            self.graph.build_plan_at_index(index)
        except self.cudnn.cudnnGraphNotSupportedError:
            return None
        return int(self.graph.get_workspace_size_plan_at_index(index))

    def name(self, index: int) -> str:
        return str(self.graph.get_plan_name_at_index(index))

    def _excluded(self) -> list[str]:
        rounded = ROUNDED if self.dtype is float32 and not self.mode.tf32 else ()
        return [*ALWAYS, *rounded, *(TRANSFORMS if self.op.algorithm != "winograd" else ())]


def _two_spatial_axes(shape: Sequence[int]) -> list[int]:
    """Return the shape of an image or a filter, with an axis of one element before a single spatial axis."""
    return [*shape[:2], 1, *shape[2:]] if len(shape) == 3 else list(shape)


@dataclass(frozen=True)
class CudnnConvolution(PerTarget):
    """An implementation by one call of cuDNN."""

    target: Target = Target("cuda", "nvrtc")
    name: str = "cuDNN convolution"

    def on(self, target: Target) -> CudnnConvolution:
        return CudnnConvolution(target)

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        assert isinstance(op, ConvOp)
        return missing() or refused_operands(op, placeholders(inputs), placeholders(outputs)) or None

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        assert isinstance(op, ConvOp)
        arrays, handle = [*inputs, *outputs], handle_of(int(outputs[0].device.id))
        mode = self.target.products
        graph = ConvolutionGraph(op, placeholders(arrays), mode, handle=handle.handle)
        try:
            plans = list(islice(graph.supported(), TIMED if mode.timed else 1))
        except graph.cudnn.cudnnGraphNotSupportedError as error:
            plans = []
            notice(f"cuDNN has no plan for {op} of {type_of(arrays[0])}, so a printed kernel computes it: {str(error).splitlines()[0]}")
        if not plans:
            return ConvolutionKernel().bind(op, device, inputs, outputs)
        index, nbytes = plans[0] if len(plans) == 1 else _Timing(graph, handle, arrays).fastest(plans)
        workspace = device.scratch((max(nbytes, 1),), uint8)
        return [(CudnnLaunch(graph.graph, handle, arrays, workspace, index), ())]


class _Timing:
    """The choice of the fastest of several plans on the GPU of these arrays.  Results go to temporary memory, because outputs may be in use."""

    def __init__(self, graph: ConvolutionGraph, handle: Any, arrays: Sequence[Array]) -> None:
        self.graph, self.handle, self.arrays = graph, handle, arrays
        self.cupy = importlib.import_module("cupy")
        self.cache = ObjectCache()

    def fastest(self, plans: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Return the number and the workspace of the fastest plan; the first one if memory is short."""
        key = self._key()
        stored = self.cache.read(key)
        if stored is not None:
            return next((plan for plan in plans if self.graph.name(plan[0]).encode() == stored), plans[0])
        times = [(seconds, plan) for plan in plans if (seconds := self._seconds(*plan)) is not None]
        if not times:
            return plans[0]
        self.cache.write(key, self.graph.name(min(times)[1][0]).encode())
        return min(times)[1]

    def _key(self) -> str:
        device = self.cupy.cuda.Device(int(self.arrays[0].device.id))
        gpu = f"{device.compute_capability} {device.attributes['MultiProcessorCount']}"
        operands = [str(type_of(a)) for a in self.arrays]
        parts = ("cudnn", self.graph.cudnn.backend_version(), gpu, repr(self.graph.op), operands, self.graph.mode)
        return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()

    def _seconds(self, index: int, nbytes: int) -> float | None:
        """Return the time of some runs of a plan, after one run that loads its kernels; None if memory is short."""
        free, _ = self.cupy.cuda.runtime.memGetInfo()
        if 2 * (nbytes + int(self.arrays[2].nbytes)) > free:
            return None
        workspace, result = (self.cupy.empty(max(n, 1), "uint8") for n in (nbytes, int(self.arrays[2].nbytes)))
        launch = CudnnLaunch(self.graph.graph, self.handle, [*self.arrays[:2], result], workspace, index)
        stream = self.cupy.cuda.get_current_stream()
        start, stop = (self.cupy.cuda.Event() for _ in range(2))
        for run in range(1 + RUNS):
            if run == 1:
                start.record(stream)
            launch()
        stop.record(stream)
        stop.synchronize()
        return float(self.cupy.cuda.get_elapsed_time(start, stop))


for _op in (Conv, ConvGradInput, ConvGradWeight):
    register(_op, "cuda", "nvrtc", CudnnConvolution(), rank=1)
