"""The namespace `flow.summary`: TensorBoard events written by jobs.

    @flow.global_function()
    def open_writer() -> None:
        flow.summary.create_summary_writer("log")

    @flow.global_function()
    def note(loss: tp.Numpy.Placeholder((1,)), step: tp.Numpy.Placeholder((1,), dtype=flow.int64)) -> None:
        flow.summary.scalar(loss, step, "loss")

The functions write after each run of the job, in the process that writes files. Tags are strings, or int8 tensors of their bytes; steps are
ints, or tensors with one element. Requires tensorboardX.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, finalize

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError, JobError, user_line
from jobflow.core.extras import optional
from jobflow.core.signatures import variant
from jobflow.core.types import Array, Tensor, int32
from jobflow.engine.job import Job
from jobflow.engine.session import Session, current_session, started_session
from jobflow.legacy.arrays import constant_scalar
from jobflow.legacy.job_dispatch import all_of, of_jobs
from jobflow.legacy.util import unique_str
from jobflow.legacy.variables import current_job

__all__ = [
    "Graph", "Hparam", "IntegerRange", "Metric", "Projector", "RealRange", "ValueSet", "create_summary_writer", "flush_summary_writer", "histogram",
    "hparams", "image", "pb", "scalar", "text",
]  # fmt: skip

#: events file of each session
_WRITERS: WeakKeyDictionary[Session, Events] = WeakKeyDictionary()
#: a string, or an int8 tensor of its bytes; an int, or a tensor of one element
Tag = str | Tensor | None
Step = int | Tensor | None


def _tensorboard(module: str = "") -> Any:
    return optional(f"tensorboardX{module}", "flow.summary")


class Events:
    """A writer of a TensorBoard events file in `folder`; a missing folder is created."""

    def __init__(self, folder: str) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{unique_str('')}"
        self._file = _tensorboard(".record_writer").RecordWriter(str(Path(folder, name)))
        #: closes the file once, at the latest when this object is collected
        self.close = finalize(self, self._file.close)
        self.add(file_version="brain.Event:2")
        self.flush()

    def add(self, **content: Any) -> None:
        """Write an event with the current time and the fields `content`."""
        self._file.write(_tensorboard(".proto.event_pb2").Event(wall_time=time.time(), **content).SerializeToString())

    def flush(self) -> None:
        """Flush all events to the disk."""
        self._file.flush()


# Functions of jobs --------------------------------------------------------------------------------------------------


def create_summary_writer(logdir: str, name: str | None = None) -> None:
    """After each run of the job, open an events file in the folder `logdir` for later events of the session's jobs; create a missing folder."""
    _tensorboard()
    _after("summary.create_summary_writer", partial(_open, logdir))


def flush_summary_writer(name: str | None = None) -> None:
    """Flush all events to the disk after each run of the job."""
    _after("summary.flush_summary_writer", _flush)


def scalar(value: Tensor, step: Step, tag: Tag, name: str | None = None) -> None:
    """Write the element of `value` as a scalar event after each run; raise ArgumentError unless `value` has one element."""
    if value.tensor_type.size != 1:
        raise ArgumentError(f"summary.scalar at {user_line()}: value must have one element, but is {value.tensor_type}")
    _summarize("summary.scalar", lambda tag, value: _tensorboard(".summary").scalar(tag, float(value.item())), value, step, tag)


def histogram(value: Tensor, step: Step, tag: Tag, name: str | None = None) -> None:
    """Write a histogram of the elements of `value` after each run; a non-finite element raises ArgumentError in the run."""
    _summarize("summary.histogram", _spread, value, step, tag)


def image(value: Tensor, step: Step = None, tag: Tag = None, name: str | None = None) -> None:
    """Write images [n, height, width, channels] with 1, 3 or 4 channels, as uint8 or floats from 0 to 1, after each run.

    Several images have the tags `tag`/0, `tag`/1, ... The default tag is "image", and the default step 0.
    """
    if value.tensor_type.ndim != 4 or value.tensor_type.shape[3] not in (1, 3, 4):
        raise ArgumentError(
            f"summary.image at {user_line()}: value must be [n, height, width, channels] with 1, 3 or 4 channels, not {value.tensor_type}"
        )
    _summarize("summary.image", _pictures, value, step, "image" if tag is None else tag)


def pb(value: Tensor, step: Step = None, name: str | None = None) -> None:
    """Write a message of `text` or `hparams` after each run; `value` contains its bytes, np.frombuffer(str(message).encode(), np.int8)."""
    _summarize("summary.pb", lambda tag, value: _message(value), value, step, "")


def _summarize(what: str, result: Callable[[str, Array], Any], value: Tensor, step: Step, tag: Tag) -> None:
    """Write an event after each run; `result` builds the event from the tag and the data of `value`.

    Raises: ArgumentError unless `step` is an int, a tensor or None, and `tag` a string or a tensor.
    """
    if not isinstance(step, int | np.integer | Tensor | None) or not isinstance(tag, str | Tensor):
        raise ArgumentError(f"{what} at {user_line()}: step must be an int and tag a string, or tensors, not {step!r}, {tag!r}")
    _after(what, partial(_write, result), value, step, tag)


def _after(what: str, write: Callable[..., None], *arguments: Any) -> None:
    """Call `write` after each run of the current job, with the data of tensors in `arguments`."""
    job, session = current_job(what), current_session()
    tensors = [each for each in arguments if isinstance(each, Tensor)] or [constant_scalar(0, int32)]
    arrived: list[Array] = []

    def take(value: Any) -> None:
        arrived.append(value[0] if isinstance(value, list) else value)
        if len(arrived) == len(tensors):
            numbers = iter(arrived.copy())
            arrived.clear()
            if session.writes_files:
                write(session, what, *[next(numbers) if isinstance(each, Tensor) else each for each in arguments])

    for tensor in tensors:
        job.watch(tensor, take, False)


def _open(logdir: str, session: Session, what: str) -> None:
    if session in _WRITERS:
        _WRITERS[session].close()
    _WRITERS[session] = Events(logdir)


def _writer(session: Session, what: str) -> Events:
    if session not in _WRITERS:
        raise JobError(f"{what} at {user_line()}: the session has no events file; run a job that calls summary.create_summary_writer(logdir) first")
    return _WRITERS[session]


def _flush(session: Session, what: str) -> None:
    _writer(session, what).flush()


def _write(result: Callable[[str, Array], Any], session: Session, what: str, value: Array, step: Any, tag: Any) -> None:
    writer = _writer(session, what)
    tag = tag if isinstance(tag, str) else tag.astype(np.int8).tobytes().rstrip(b"\0").decode()
    writer.add(summary=result(tag, value), step=0 if step is None else int(np.asarray(step).item()))


def _spread(tag: str, value: Array) -> Any:
    if not np.isfinite(value).all():
        raise ArgumentError(f"summary.histogram: {tag} contains {np.count_nonzero(~np.isfinite(value))} non-finite values")
    return _tensorboard(".summary").histogram(tag, value, "auto", max_bins=1024)


def _pictures(tag: str, value: Array) -> Any:
    pictures = value if value.dtype == np.uint8 else (value * 255).clip(0, 255).astype(np.uint8)
    result = _tensorboard(".proto.summary_pb2").Summary()
    for i, picture in enumerate(pictures):
        result.value.extend(_tensorboard(".summary").image(tag if len(pictures) == 1 else f"{tag}/{i}", picture, dataformats="HWC").value)
    return result


def _message(value: Array) -> Any:
    content = value.astype(np.int8).tobytes().rstrip(b"\0")
    text_format, kind = optional("google.protobuf.text_format", "flow.summary"), _tensorboard(".proto.summary_pb2").Summary
    try:
        return text_format.Parse(content.decode(), kind())
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise ArgumentError(f"summary.pb: value must be the {len(content)} bytes of a message of summary.text or summary.hparams: {error}") from None


globals().update(all_of(__name__, globals(), __name__, of_jobs))


# Messages for `pb` ---------------------------------------------------------------------------------------------------


def text(text: str | Sequence[str], tag: str | None = None) -> Any:
    """Return a TensorBoard Summary message with a string or a list of strings, for `pb`; the default tag is "text"."""
    lines: list[Any] = list(text) if isinstance(text, list | tuple) else [text]
    if not lines or not all(isinstance(line, str) for line in (*lines, tag or "")):
        raise ArgumentError(f"summary.text at {user_line()}: text must be a string or a list of strings, and tag a string, not {text!r}, {tag!r}")
    result = _tensorboard(".summary").text(tag or "text", lines[0])
    tensor = result.value[0].tensor
    tensor.string_val.extend([line.encode() for line in lines[1:]])
    tensor.tensor_shape.dim[0].size = len(lines)
    return result


@dataclass(frozen=True)
class RealRange:
    """A range of real numbers from `min_value` to `max_value`."""

    min_value: float
    max_value: float

    def __post_init__(self) -> None:
        if self.min_value > self.max_value:
            raise ArgumentError(
                f"summary.{type(self).__name__} at {user_line()}: min_value {self.min_value} must not be above max_value {self.max_value}"
            )

    def describe(self, info: Any) -> None:
        """Set the type and the interval of this range in `info`, the TensorBoard message of a hyperparameter."""
        info.type = _kinds()[float]
        info.domain_interval.min_value, info.domain_interval.max_value = self.min_value, self.max_value


class IntegerRange(RealRange):
    """A range of integers from `min_value` to `max_value`."""


@dataclass(frozen=True, eq=False)
class ValueSet:
    """A set of permitted values: strings, numbers or booleans of one type, which `dtype` may state."""

    values: Sequence[Any]
    dtype: type | None = None

    def __post_init__(self) -> None:
        types = {type(value) for value in self.values}
        if self.dtype is not None:
            types |= {self.dtype}
        if len(types) != 1 or not types <= _kinds().keys():
            raise ArgumentError(
                f"summary.ValueSet at {user_line()}: values must be strings, numbers or booleans of one type, not {list(self.values)}"
            )

    def describe(self, info: Any) -> None:
        """Set the type and the values of this set in `info`, the TensorBoard message of a hyperparameter."""
        info.type = _kinds()[type(self.values[0])]
        info.domain_discrete.extend(list(self.values))


@dataclass(frozen=True)
class Hparam:
    """A hyperparameter with its name, and its range or set of values as `dtype`."""

    name: str
    dtype: RealRange | ValueSet | None = None


@dataclass(frozen=True)
class Metric:
    """A metric, identified by its name; `dtype` has no effect."""

    name: str
    dtype: Any = None


def _kinds() -> dict[type, int]:
    kinds = _tensorboard(".proto.api_pb2").DataType
    words = {str: "STRING", bool: "BOOL", int: "FLOAT64", float: "FLOAT64"}
    return {kind: kinds.Value(f"DATA_TYPE_{word}") for kind, word in words.items()}


def hparams(hparams: Mapping[Hparam | Metric | str, Any]) -> Any:
    """Return a TensorBoard Summary message with hyperparameters and metrics, for `pb`.

    `hparams` maps hyperparameters (Hparam objects or names) and Metric objects to their values.
    """
    if not isinstance(hparams, Mapping):
        raise ArgumentError(f"summary.hparams at {user_line()}: hparams must be a dict of values by name, not {hparams!r}")
    values = {key.name if isinstance(key, Hparam) else key: value for key, value in hparams.items() if not isinstance(key, Metric)}
    metrics = {key.name: value for key, value in hparams.items() if isinstance(key, Metric)}
    for name, value in {**values, **metrics}.items():
        if not isinstance(name, str) or type(value) not in _kinds():
            raise ArgumentError(
                f"summary.hparams at {user_line()}: hparams must map names to strings, numbers or booleans, not {name!r} to {value!r}"
            )
    domains = {key.name: key.dtype for key in hparams if isinstance(key, Hparam) and key.dtype is not None}
    messages = _tensorboard(".summary").hparams(values, metrics)
    result = _tensorboard(".proto.summary_pb2").Summary()
    for message in messages:
        result.value.extend(message.value)
    content = result.value[0].metadata.plugin_data
    data = _tensorboard(".proto.plugin_hparams_pb2").HParamsPluginData.FromString(content.content)
    for info in data.experiment.hparam_infos:
        if info.name in domains:
            domains[info.name].describe(info)
    content.content = data.SerializeToString()
    for name, value in metrics.items():
        result.value.extend(_tensorboard(".summary").scalar(name, float(value)).value)
    return result


# Graphs and projections ----------------------------------------------------------------------------------------------


class Graph:
    """A writer of the programs of the session's jobs for TensorBoard's graph view."""

    def __init__(self, logdir: str | None = None) -> None:
        self.logdir = "./log" if logdir is None else logdir

    def write_structure_graph(self) -> None:
        """Write an events file with a node `<job>/<operation>` for each operation of the session's jobs."""
        session = started_session()
        graph = _tensorboard(".proto.graph_pb2").GraphDef()
        graph.versions.producer = 22
        for job in session.jobs.values():
            assert isinstance(job, Job)
            for node in job.traces(session, job.declared_shapes(session))[0][0].nodes:
                inputs = [f"{job.name}/{value.node.name}:{value.index}" for value in node.inputs]
                graph.node.add(name=f"{job.name}/{node.name}", op=node.op.word(), input=inputs, device=str(node.placement))
        if session.writes_files:
            events = Events(self.logdir)
            events.add(graph_def=graph.SerializeToString())
            events.close()


def _write_projector(
    kind: str,
    self: Projector,
    value: Array,
    tag: str | None = None,
    step: int = 0,
    sample_name: str | None = None,
    sample_type: str | None = None,
    x: Array | None = None,
    label: Array | None = None,
) -> None:
    """Write points, labels and images to the folder `<logdir>/<tag>_<step>`, and add the folder to the projector's configuration.

    The rows of `value` are points, each with an entry of `label` and an image in x. The default tag is `kind`.

    Raises: JobError before `create_<kind>_projector()`; ArgumentError unless `label` and x have one entry per point.
    """
    what = f"summary.Projector.write_{kind}_projector at {user_line()}"
    if kind not in self._begun:
        raise JobError(f"{what}: call create_{kind}_projector() first")
    points = np.asarray(value)
    points = points.reshape(len(points), -1)
    if label is not None and len(label) != len(points):
        raise ArgumentError(f"{what}: label must have one entry per point: {len(points)}, not {len(label)}")
    if x is not None and (np.ndim(x) not in (3, 4) or len(x) != len(points)):
        raise ArgumentError(f"{what}: x must be [{len(points)}, side, side] or [{len(points)}, side, side, 3], not {list(np.shape(x))}")
    files, name = _tensorboard(".embedding"), tag or kind
    folder = self.logdir / f"{name}_{step:05}"
    folder.mkdir(parents=True, exist_ok=True)
    files.make_mat(points, str(folder))
    if label is not None:
        files.make_tsv(list(label), str(folder))
    shown = None
    if x is not None:
        shown = np.asarray(x)[..., None].repeat(3, 3) if np.ndim(x) == 3 else np.asarray(x)
        shown = np.moveaxis(shown / 255 if shown.dtype == np.uint8 else shown, 3, 1)
        files.make_sprite(shown, str(folder))
    files.append_pbtxt(label, shown, str(self.logdir), folder.name, step, name)


class Projector:
    """A writer of points in many dimensions, with labels and images, for TensorBoard's projector."""

    def __init__(self, logdir: str | None = None) -> None:
        self.logdir = Path("./log" if logdir is None else logdir)
        self._begun: set[str] = set()

    def create_embedding_projector(self) -> None:
        """Create the log folder and enable `write_embedding_projector`."""
        self._begin("embedding")

    def create_exception_projector(self) -> None:
        """Create the log folder and enable `write_exception_projector`."""
        self._begin("exception")

    def _begin(self, kind: str) -> None:
        self.logdir.mkdir(parents=True, exist_ok=True)
        self._begun.add(kind)

    write_embedding_projector = variant(
        _write_projector,
        "embedding",
        "write_embedding_projector",
        "Write the rows of `value` as points, with one `label` and one square image `x` per row: [n, side, side] or [n, side, side, 3].",
    )
    write_exception_projector = variant(
        _write_projector, "exception", "write_exception_projector", "Write points as `write_embedding_projector` does, as a separate group."
    )
