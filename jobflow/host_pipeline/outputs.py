"""Host values per sample or row in the body of a job, and their conversion to tensors or results.

record = flow.data.ofrecord_reader(folder, batch_size=64)                  OnHost: a record per sample
images = flow.tensor_to_tensor_buffer(x, instance_dims=3)                  OnHost: an array per row of a tensor
images = flow.image.flip(images, flow.random.CoinFlip(64))                 OnHost, evaluated before the run or in an earlier phase of it
flow.image.batch_align(images, (256, 256, 3), flow.float, 16)              a tensor of the job
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np

import jobflow.core.scope as scope
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError, DuplicateNameError, JobError, ShapeError, user_line
from jobflow.core.types import Array, DType, Tensor, TensorType, record, tensor_buffer, uint8
from jobflow.engine.job_tensor import value_of
from jobflow.engine.staged_job import StagedBody
from jobflow.expressions import philox
from jobflow.host_pipeline import stages as st
from jobflow.host_pipeline.host_values import HostValue
from jobflow.host_pipeline.job_batches import Constants, DynamicRowsOfStage, JobBatches, OfTensor, instances, known_rows
from jobflow.ops.layout_ops import Identity, ToLocal
from jobflow.ops.scalar import Cast
from jobflow.ops.source import Input
from jobflow.typing.results import HostResult


@dataclass(frozen=True, eq=False)
class OnHost:
    """A host value per sample of a batch, possibly of different shapes: a record, bytes, an image or an array."""

    #: stage that computes the values, or a tensor of the job whose subarrays are the values
    source: st.Stage | Tensor
    #: number of values on all devices
    rows: int
    kind: str
    #: order of colours of images, or "GRAY"
    colours: str = ""
    #: element type of arrays
    element: DType = uint8
    #: shape of the samples of a device; one axis by default
    arranged: tuple[int, ...] = ()

    @cached_property
    def stage(self) -> st.Stage:
        """The stage that computes the values."""
        if isinstance(self.source, st.Stage):
            return self.source
        return stage_of("tensor_to_tensor_buffer", self.source, self.source.tensor_type.ndim - len(self.shape))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the batch in the current view: in the mirrored view, of the batch of one device.  Axes of the values are not included."""
        return self.arranged or (self.rows // devices_of_view(),)

    @property
    def dtype(self) -> DType:
        """The element type: `flow.record` or `flow.tensor_buffer`."""
        return record if self.kind in ("records", "examples") else tensor_buffer

    @property
    def is_dynamic(self) -> bool:
        """True, because the samples of a batch may differ in shape."""
        return True

    @property
    def channels(self) -> int:
        return 1 if self.colours == "GRAY" else 3

    def pixels(self) -> st.Stage:
        """Return a stage that converts images to arrays, or the stage itself for arrays."""
        return st.Pixels(self.stage, self.colours == "BGR") if self.kind == "images" else self.stage

    def then(self, stage: st.Stage, **changed: Any) -> OnHost:
        """Return a copy of this host value whose values `stage` computes; `changed` has new values of other fields."""
        return replace(self, source=stage, **changed)


def body_of(what: str) -> StagedBody:
    """Return the body of the current job; raise JobError outside of a job."""
    body = scope.current().interpreter
    if not isinstance(body, StagedBody):
        raise JobError(f"{what} at {user_line()}: called outside a job; call it in the body of a function decorated with global_function")
    return body


def devices_of_view() -> int:
    """Return the number of devices in the mirrored view, where a batch is per device, and 1 in the consistent view."""
    return body_of("a reader").placement.size if scope.current().view == "mirrored" else 1


def on_host(what: str, x: Any, *kinds: str) -> OnHost:
    """Return `x` if it is a host value of one of `kinds`; raise ArgumentError otherwise."""
    if not isinstance(x, OnHost) or x.kind not in kinds:
        actual = f"{x.kind} from a reader" if isinstance(x, OnHost) else getattr(x, "tensor_type", type(x).__name__)
        remedy = "" if isinstance(x, OnHost) or not isinstance(x, Tensor) else "; convert a tensor by tensor_to_tensor_buffer(x, instance_dims)"
        raise ArgumentError(f"{what} at {user_line()}: expected {' or '.join(kinds)} from a reader of this job, not {actual}{remedy}")
    return x


def key_of(what: str, seed: int | None, name: str) -> philox.Key:
    """Return the random key of the op `name`: of the job's seed and the full name, or of `seed` alone if it is not None."""
    stream, own = philox.random_stream(body_of(what).seed, seed, scope.current().full_name(name))
    return philox.key_of(own, stream)


# From the host to the job -------------------------------------------------------------------------------------------


def feed_of(what: str) -> JobBatches:
    """Return the data feed of the current job, created at the first call; raise JobError outside of a job."""
    body = body_of(what)
    body.feed = body.feed or JobBatches()
    assert isinstance(body.feed, JobBatches)
    return body.feed


def _label(what: str, name: str | None, stage: st.Stage) -> str:
    feed, arguments = feed_of(what), frozenset[str]().union(*(known.arguments for known in known_rows(stage)))
    label = body_of(what).unique_name(what) if name is None else scope.current().full_name(name)
    if label in feed.names or label in feed.results:
        raise DuplicateNameError(f'{what} at {user_line()}: another decoder of this job has the name "{label}"; pass another name')
    if phases := [each for each in body_of(what).phases if each in arguments]:
        feed.phases[label] = phases
    return label


def as_tensor(what: str, stage: st.Stage, rows: int, shape: Sequence[int], dtype: DType, name: str | None) -> Any:
    """Return the output of a stage, with `shape` for every sample, as a tensor of the job."""
    label, type = _label(what, name, stage), TensorType((rows, *shape), dtype)
    feed_of(what).add(label, type, stage)
    return body_of(what).fed(label, type)


def as_dynamic(
    what: str,
    stage: st.Stage,
    rows: int,
    combine: Callable[[list[Array]], Array],
    type: TensorType,
    name: str | None,
) -> Any:
    """Return a tensor of the job with a dynamic shape, computed by `combine` from the rows of a stage.

    In the mirrored view, each device has a separate tensor, computed from the rows of the device.
    """
    label = _label(what, name, stage)
    argument = DynamicRowsOfStage(type, scope.current().view == "mirrored", stage, rows, devices_of_view(), combine)
    feed_of(what).dynamic[label] = argument
    return body_of(what).dynamic_input(label, argument)


def as_padded(what: str, stage: st.Stage, rows: int, most: Sequence[int], units: Sequence[int], dtype: DType, name: str | None) -> Any:
    """Return arrays of different sizes as one tensor [rows, ...], padded with zeros at the end.

    The size of an axis is the largest size of the arrays, rounded up to a multiple of its unit; `most` is the maximum.
    """
    raised = tuple([-(-n // unit) * unit for n, unit in zip(most, units, strict=True)])
    each = TensorType((rows // devices_of_view(), *raised), dtype)
    return as_dynamic(what, st.Inside(stage, tuple(most), dtype), rows, partial(_padded, units=tuple(units)), each, name)


def _padded(rows: list[Array], units: tuple[int, ...]) -> Array:
    sizes = [-(-max(sizes) // unit) * unit for sizes, unit in zip(zip(*[row.shape for row in rows], strict=True), units, strict=True)]
    whole = np.zeros((len(rows), *sizes), rows[0].dtype)
    for each, row in zip(whole, rows, strict=True):
        each[tuple(map(slice, row.shape))] = row
    return whole


def as_result(what: str, stage: st.Stage, rows: int, shape: tuple[int, ...], dtype: DType, name: str | None) -> Callable[..., HostResult]:
    """Return a constructor of job results from the output of a stage; `shape` is the maximum shape of an array.

    The argument `take` of the constructor computes the result of a device from the arrays of its rows.
    """
    label, devices = _label(what, name, stage), devices_of_view()
    feed_of(what).results[label] = (st.Within(stage, shape, dtype), rows)
    each = rows // devices

    def constructor(take: Callable[[list[Array]], Any], nested: bool = False) -> HostResult:
        def of_rows(rows_of_all: list[Array]) -> Any:
            results = [take(rows_of_all[device * each : (device + 1) * each]) for device in range(devices)]
            return results if nested or devices > 1 else results[0]

        return HostResult(label, TensorType(shape, dtype), of_rows, nested)

    return constructor


# From the job to the host -------------------------------------------------------------------------------------------


def rows_of(what: str, x: Any, like: OnHost, shape: tuple[int, ...], name: str) -> st.Stage:
    """Return a stage with an array of `shape` for each sample of `like`: a row of the tensor `x`, or the integer `x`.

    Raises: ShapeError if `x` is neither an integer for the shape () nor a tensor with one row per sample.
    """
    if isinstance(x, int | np.integer) and not shape:
        return Constants((np.array(x),) * like.rows)
    type = getattr(x, "tensor_type", None)
    rows = like.rows // devices_of_view()
    if not isinstance(type, TensorType) or (type.shape != (rows, *shape) and not (shape == () and type.shape == (rows, 1))):
        raise ShapeError(f"{what} at {user_line()}: {name} must be a tensor {[rows, *shape]} with one row per sample, not {type or repr(x)}")
    return stage_of(what, x, len(type.shape) - 1)


def stage_of(what: str, x: Tensor, axes: int) -> st.Stage:
    """Return a stage that splits the tensor `x` of the job into subarrays with `axes` axes.

    The tensor is computed before the job runs, or in an earlier phase of the run.
    """
    feed, body = feed_of(what), body_of(what)
    value = body.tracer.in_current_view(value_of(x))
    source = value.node.inputs[0].node.op if isinstance(value.node.op, ToLocal) else value.node.op
    if isinstance(source, Input) and source.argument in feed.stages and axes == len(x.tensor_type.shape) - 1:
        return feed.stages[source.argument]
    tensor = HostValue(value, feed.names | body.phases.keys())
    count = math.prod(value.shape[: len(value.shape) - axes]) * (value.node.placement.size if value.local else 1)
    if tensor.known:
        return OfTensor(tensor, axes, count)
    constant = body.now(value)
    return OfTensor(body.host_phase(what, value), axes, count) if constant is None else Constants(tuple(instances(constant, axes)))


def fed_by(what: str, x: Tensor) -> st.Stage | None:
    """Return the stage that supplies the tensor, also through a cast or a change of view; None for a computed tensor or an argument."""
    value = body_of(what).tracer.in_current_view(value_of(x))
    while isinstance(value.node.op, ToLocal | Identity | Cast):
        (value,) = value.node.inputs
    op = value.node.op
    return feed_of(what).stages.get(op.argument) if isinstance(op, Input) else None


def same_samples(what: str, *arguments: OnHost | st.Stage) -> None:
    """Raise ArgumentError unless all arguments other than tensors and constants are from one reader and have the same number of samples."""
    stages = [each.stage if isinstance(each, OnHost) else each for each in arguments]
    origins = {stage.origin for stage in stages if not isinstance(stage, OfTensor | Constants)}
    rows = {each.rows for each in arguments if isinstance(each, OnHost)}
    if len(origins) > 1 or len(rows) > 1:
        raise ArgumentError(
            f"{what} at {user_line()}: all arguments must be from one reader and have the same number of samples, not {sorted(rows)} samples"
        )
