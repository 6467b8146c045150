"""What the body of a job has of each sample, or row, on the host, and what becomes of it: a tensor, or a result.

record = flow.data.ofrecord_reader(folder, batch_size=64)                  OnHost: a record of each sample
images = flow.tensor_to_tensor_buffer(x, instance_dims=3)                  OnHost: an array of each row of a tensor
images = flow.image.flip(images, flow.random.CoinFlip(64))                 OnHost, done before the run, or before the rest of it
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
from jobflow.engine.body import JobBody
from jobflow.engine.job_tensor import value_of
from jobflow.expressions import philox
from jobflow.host_pipeline import stages as st
from jobflow.host_pipeline.host_values import HostValue
from jobflow.host_pipeline.job_batches import Constants, JobBatches, OfTensor, RaggedRows, instances, known_rows
from jobflow.ops.layout_ops import Identity, ToLocal
from jobflow.ops.scalar import Cast
from jobflow.ops.source import Input
from jobflow.typing.results import HostResult


@dataclass(frozen=True, eq=False)
class OnHost:
    """One thing of each sample of a batch, which may differ in shape: a record, bytes, an image, an array."""

    #: what makes it, or a tensor of the job of which these are the instances
    source: st.Stage | Tensor
    #: of all devices
    rows: int
    kind: str
    #: of images: the order of their colours, or one grey channel
    colours: str = ""
    #: of what its arrays are
    element: DType = uint8
    #: how the samples of a device are arranged; in a row by default
    arranged: tuple[int, ...] = ()

    @cached_property
    def stage(self) -> st.Stage:
        """What makes it."""
        if isinstance(self.source, st.Stage):
            return self.source
        return stage_of("tensor_to_tensor_buffer", self.source, self.source.tensor_type.ndim - len(self.shape))

    @property
    def shape(self) -> tuple[int, ...]:
        """As the view has it: without the axes of the instances."""
        return self.arranged or (self.rows // devices_of_view(),)

    @property
    def dtype(self) -> DType:
        """`flow.record` or `flow.tensor_buffer`."""
        return record if self.kind in ("records", "examples") else tensor_buffer

    @property
    def is_dynamic(self) -> bool:
        """True: samples differ in shape."""
        return True

    @property
    def channels(self) -> int:
        return 1 if self.colours == "GRAY" else 3

    def pixels(self) -> st.Stage:
        """Of images: those as arrays."""
        return st.Pixels(self.stage, self.colours == "BGR") if self.kind == "images" else self.stage

    def then(self, stage: st.Stage, **changed: Any) -> OnHost:
        """What another stage makes of it."""
        return replace(self, source=stage, **changed)


def body_of(what: str) -> JobBody:
    """The body of the job in which `what` is called; JobError outside of one."""
    body = scope.current().interpreter
    if not isinstance(body, JobBody):
        raise JobError(f"{what} at {user_line()} was called outside a job; call it in the body of a function decorated with global_function")
    return body


def devices_of_view() -> int:
    """In the mirrored view the devices that have a batch each, else 1."""
    return body_of("a reader").placement.size if scope.current().view == "mirrored" else 1


def on_host(what: str, x: Any, *kinds: str) -> OnHost:
    """What a reader or a decoder gave, of one of these kinds."""
    if not isinstance(x, OnHost) or x.kind not in kinds:
        given = f"{x.kind} from a reader" if isinstance(x, OnHost) else getattr(x, "tensor_type", type(x).__name__)
        remedy = "" if isinstance(x, OnHost) or not isinstance(x, Tensor) else "; tensor_to_tensor_buffer(x, instance_dims) makes arrays of a tensor"
        raise ArgumentError(f"{what} at {user_line()}: it takes {' or '.join(kinds)} of samples that a reader in this job gives, not {given}{remedy}")
    return x


def key_of(what: str, seed: int | None, name: str) -> philox.Key:
    """The key of random numbers that this op draws."""
    stream, own = philox.random_stream(body_of(what).seed, seed, scope.current().full_name(name))
    return philox.key_of(own, stream)


# From the host to the job -------------------------------------------------------------------------------------------


def feed_of(what: str) -> JobBatches:
    """The feed of the job in which `what` is called."""
    body = body_of(what)
    body.feed = body.feed or JobBatches()
    assert isinstance(body.feed, JobBatches)
    return body.feed


def _label(what: str, name: str | None, stage: st.Stage) -> str:
    feed, made_of = feed_of(what), frozenset[str]().union(*(known.arguments for known in known_rows(stage)))
    label = body_of(what).unique_name(what) if name is None else scope.current().full_name(name)
    if label in feed.names or label in feed.results:
        raise DuplicateNameError(f'{what} at {user_line()}: another decoder of this job has the name "{label}"')
    if computed := [each for each in body_of(what).sized if each in made_of]:
        feed.made_of[label] = computed
    return label


def as_tensor(what: str, stage: st.Stage, rows: int, shape: Sequence[int], dtype: DType, name: str | None) -> Any:
    """What a stage gives, which has this shape for every sample, as a tensor of the job."""
    label, type = _label(what, name, stage), TensorType((rows, *shape), dtype)
    feed_of(what).add(label, type, stage)
    return body_of(what).fed(label, type)


def as_ragged(
    what: str,
    stage: st.Stage,
    rows: int,
    made: Callable[[list[Array]], Array],
    type: TensorType,
    name: str | None,
) -> Any:
    """What is made of the rows of a stage, in the mirrored view of those of each device, as a tensor of the job: its shape is that of the run."""
    label = _label(what, name, stage)
    ragged = RaggedRows(type, scope.current().view == "mirrored", stage, rows, devices_of_view(), made)
    feed_of(what).ragged[label] = ragged
    return body_of(what).fed_ragged(label, ragged)


def as_padded(what: str, stage: st.Stage, rows: int, most: Sequence[int], units: Sequence[int], dtype: DType, name: str | None) -> Any:
    """Arrays of different sizes, at most these, in one tensor [rows, ...], zeros behind them: the largest of each axis, in multiples of its unit."""
    raised = tuple([-(-n // unit) * unit for n, unit in zip(most, units, strict=True)])
    each = TensorType((rows // devices_of_view(), *raised), dtype)
    return as_ragged(what, st.Inside(stage, tuple(most), dtype), rows, partial(_padded, units=tuple(units)), each, name)


def _padded(rows: list[Array], units: tuple[int, ...]) -> Array:
    sizes = [-(-max(sizes) // unit) * unit for sizes, unit in zip(zip(*[row.shape for row in rows], strict=True), units, strict=True)]
    whole = np.zeros((len(rows), *sizes), rows[0].dtype)
    for each, row in zip(whole, rows, strict=True):
        each[tuple(map(slice, row.shape))] = row
    return whole


def as_result(what: str, stage: st.Stage, rows: int, shape: tuple[int, ...], dtype: DType, name: str | None) -> Callable[..., HostResult]:
    """What makes results of what a stage gives, of at most this shape: each takes from the rows of each device what it delivers."""
    label, devices = _label(what, name, stage), devices_of_view()
    feed_of(what).results[label] = (st.Within(stage, shape, dtype), rows)
    each = rows // devices

    def made(take: Callable[[list[Array]], Any], nested: bool = False) -> HostResult:
        def of_rows(found: list[Array]) -> Any:
            taken = [take(found[device * each : (device + 1) * each]) for device in range(devices)]
            return taken if nested or devices > 1 else taken[0]

        return HostResult(label, TensorType(shape, dtype), of_rows, nested)

    return made


# From the job to the host -------------------------------------------------------------------------------------------


def rows_of(what: str, x: Any, like: OnHost, shape: tuple[int, ...], name: str) -> st.Stage:
    """What a tensor of the job, or a number, has for each sample of `like`: an array of this shape."""
    if isinstance(x, int | np.integer) and not shape:
        return Constants((np.array(x),) * like.rows)
    type = getattr(x, "tensor_type", None)
    rows = like.rows // devices_of_view()
    if not isinstance(type, TensorType) or (type.shape != (rows, *shape) and not (shape == () and type.shape == (rows, 1))):
        raise ShapeError(f"{what} at {user_line()}: {name} is {type or repr(x)}; it must be a tensor {[rows, *shape]}, with a row for each sample")
    return stage_of(what, x, len(type.shape) - 1)


def stage_of(what: str, x: Tensor, axes: int) -> st.Stage:
    """The instances, of so many axes, of a tensor of the job: known before it runs, or computed before the rest of it."""
    feed, body = feed_of(what), body_of(what)
    value = body.tracer.as_seen(value_of(x))
    source = value.node.inputs[0].node.op if isinstance(value.node.op, ToLocal) else value.node.op
    if isinstance(source, Input) and source.argument in feed.stages and axes == len(x.tensor_type.shape) - 1:
        return feed.stages[source.argument]
    tensor = HostValue(value, feed.names | body.sized.keys())
    count = math.prod(value.shape[: len(value.shape) - axes]) * (value.node.placement.size if value.local else 1)
    if tensor.known:
        return OfTensor(tensor, axes, count)
    found = body.now(value)
    return OfTensor(body.computed(what, value), axes, count) if found is None else Constants(tuple(instances(found, axes)))


def fed_by(what: str, x: Tensor) -> st.Stage | None:
    """The stage of a reader whose rows a tensor is as they are, in whatever element type; None for one that the job computes or is given."""
    value = body_of(what).tracer.as_seen(value_of(x))
    while isinstance(value.node.op, ToLocal | Identity | Cast):
        (value,) = value.node.inputs
    op = value.node.op
    return feed_of(what).stages.get(op.argument) if isinstance(op, Input) else None


def same_samples(what: str, *given: OnHost | st.Stage) -> None:
    """ArgumentError unless all that have samples of a reader have those of one."""
    stages = [each.stage if isinstance(each, OnHost) else each for each in given]
    origins = {stage.origin for stage in stages if not isinstance(stage, OfTensor | Constants)}
    rows = {each.rows for each in given if isinstance(each, OnHost)}
    if len(origins) > 1 or len(rows) > 1:
        raise ArgumentError(f"{what} at {user_line()}: its arguments are of different readers, or of different numbers of samples: {sorted(rows)}")
