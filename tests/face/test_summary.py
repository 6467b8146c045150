"""`flow.summary`: files of events, parsed by an independent parser."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message
from parts import declare
from PIL import Image
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.graph_pb2 import GraphDef
from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

import jobflow as flow
import jobflow.typing as tp
from jobflow.core.errors import ArgumentError, JobError

StepNumber = tp.Numpy.Placeholder((1,), dtype=flow.int64)
Word = tp.ListNumpy.Placeholder((40,), dtype=flow.int8)


def crc32c(content: bytes) -> int:
    """Return Castagnoli's checksum, computed bit by bit."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def payload_of(content: bytes, masked: int) -> bytes:
    crc = crc32c(content)
    assert masked == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return content


def events(folder: Path) -> Iterator[Message]:
    return map(Event.FromString, records(folder))


def values(folder: Path) -> dict[tuple[str, int], Any]:
    return {(value.tag, event.step): value for event in events(folder) for value in event.summary.value}  # type: ignore[attr-defined]


def records(folder: Path) -> Iterator[bytes]:
    """Yield the contents of the records of the one file in a folder: length, checksum, content, checksum."""
    (file,) = folder.glob("events.*")
    content = memoryview(file.read_bytes())
    while content:
        (length,) = struct.unpack("<Q", payload_of(bytes(content[:8]), struct.unpack("<I", content[8:12])[0]))
        yield payload_of(bytes(content[12 : 12 + length]), struct.unpack("<I", content[12 + length : 16 + length])[0])
        content = content[16 + length :]


def number_at(content: bytes, at: int) -> tuple[int, int]:
    """Return a protobuf varint (seven bits per byte, lowest first) and the offset after it."""
    value = shift = 0
    while True:
        value |= (content[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if not content[at - 1] & 128:
            return value, at


def fields(content: bytes) -> dict[int, Any]:
    """Parse a protobuf message: by field number an integer, 4 or 8 bytes, or the bytes of a nested message."""
    records, at = dict[int, Any](), 0
    while at < len(content):
        key, at = number_at(content, at)
        kind = key & 7
        if kind == 0:
            records[key >> 3], at = number_at(content, at)
            continue
        length, at = number_at(content, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
        records[key >> 3], at = content[at : at + length], at + length
    return records


def test_bytes_of_events_match_the_format(fresh: None, tmp_path: Path) -> None:
    """Parse without protobuf classes: event {wall_time=1, step=2, file_version=3, summary=5}, summary {value=1 {tag=1, simple_value=2}}."""
    begin = declare(lambda: flow.summary.create_summary_writer(str(tmp_path)), name="begin", gives=None)
    note = declare(lambda x, step: flow.summary.scalar(x, step, "loss"), tp.Numpy.Placeholder((1,)), StepNumber, name="note", gives=None)
    end = declare(lambda: flow.summary.flush_summary_writer(), name="end", gives=None)
    begin()
    for step in (0, 300):
        note(np.float32([0.5 - step]), np.array([step]))
    end()
    first, *others = map(fields, records(tmp_path))
    assert first[3] == b"brain.Event:2" and len(others) == 2
    for event, step in zip(others, (0, 300), strict=True):
        value = fields(fields(event[5])[1])
        assert event.get(2, 0) == step and value[1] == b"loss" and struct.unpack("<f", value[2]) == (0.5 - step,)
        assert 1.6e9 < struct.unpack("<d", event[1])[0] < 1e10


def bytes_of(text: str) -> Any:
    return np.frombuffer(text.encode(), np.int8)


def test_summaries_of_jobs_can_be_read(fresh: None, tmp_path: Path) -> None:
    @flow.global_function()
    def begin() -> None:
        flow.summary.create_summary_writer(str(tmp_path))

    @flow.global_function()
    def end() -> None:
        flow.summary.flush_summary_writer()

    @flow.global_function()
    def note(
        x: tp.Numpy.Placeholder((1,)), many: tp.Numpy.Placeholder((9,)), step: StepNumber, tag: tp.Numpy.Placeholder((4,), dtype=flow.int8)
    ) -> None:
        flow.summary.scalar(x * 2, step, tag)
        flow.summary.scalar(x, step, "named")
        flow.summary.histogram(many, step, "spread")

    @flow.global_function()
    def show(x: tp.Numpy.Placeholder((2, 3, 5, 3), dtype=flow.uint8), y: tp.Numpy.Placeholder((1, 2, 2, 1))) -> None:
        flow.summary.image(x, 3, "pictures")
        flow.summary.image(y)

    @flow.global_function()
    def message(content: tp.ListNumpy.Placeholder((4000,), dtype=flow.int8), step: StepNumber) -> None:
        flow.summary.pb(content, step)

    x = np.ones(1, np.float32)
    with pytest.raises(JobError, match=r"run a job that calls summary.create_summary_writer\(logdir\) first"):
        note(x, np.ones(9, np.float32), np.array([0]), bytes_of("loss"))
    begin()
    for step in range(3):
        note(x * step, np.arange(9, dtype=np.float32), np.array([step]), bytes_of("loss"))
    pictures = np.random.default_rng(0).integers(0, 256, (2, 3, 5, 3)).astype(np.uint8)
    show(pictures, np.array([[[[0.0], [0.5]], [[1.0], [2.0]]]], np.float32))
    message([bytes_of(str(flow.summary.text(["one", "two"], "lines")))], np.array([7]))
    message([bytes_of(str(flow.summary.hparams(HPARAMS)))], np.array([0]))
    end()

    assert next(events(tmp_path)).file_version == "brain.Event:2"  # type: ignore[attr-defined]
    records = values(tmp_path)
    assert [records["loss", step].simple_value for step in range(3)] == [0, 2, 4] and records["named", 2].simple_value == 2
    histogram = records["spread", 1].histo
    assert (histogram.num, histogram.min, histogram.max, histogram.sum, sum(histogram.bucket)) == (9, 0, 8, 36, 9)
    for i in range(2):
        image = records[f"pictures/{i}", 3].image
        with Image.open(BytesIO(image.encoded_image_string)) as shown:
            assert (image.height, image.width) == (3, 5) and np.array_equal(np.asarray(shown)[..., :3], pictures[i])
    assert (records["image", 0].image.height, records["image", 0].image.width) == (2, 2)
    text = records["lines/text_summary", 7]
    assert list(text.tensor.string_val) == [b"one", b"two"] and text.metadata.plugin_data.plugin_name == "text"
    check_hparams(records)


HPARAMS: Any = {
    flow.summary.Hparam("rate", flow.summary.RealRange(0.01, 0.1)): 0.02,
    flow.summary.Hparam("layers", flow.summary.IntegerRange(2, 7)): 5,
    flow.summary.Hparam("optimizer", flow.summary.ValueSet(["adam", "sgd"])): "adam",
    flow.summary.Hparam("magic", flow.summary.ValueSet([False, True])): True,
    flow.summary.Metric("accuracy", float): 0.75,
    "dropout": 0.6,
}


def check_hparams(records: dict[tuple[str, int], Any]) -> None:
    each = [HParamsPluginData.FromString(records[f"_hparams_/{tag}", 0].metadata.plugin_data.content) for tag in ("experiment", "session_start_info")]
    infos = {info.name: info for info in each[0].experiment.hparam_infos}
    assert list(infos) == ["rate", "layers", "optimizer", "magic", "dropout"]
    assert (infos["layers"].domain_interval.min_value, infos["layers"].domain_interval.max_value) == (2, 7)
    assert [value.string_value for value in infos["optimizer"].domain_discrete.values] == ["adam", "sgd"]
    session = each[1].session_start_info.hparams
    assert (session["rate"].number_value, session["optimizer"].string_value, session["magic"].bool_value) == (0.02, "adam", True)
    assert [info.name.tag for info in each[0].experiment.metric_infos] == ["accuracy"] and records["accuracy", 0].simple_value == 0.75


def test_graphs_and_projections(fresh: None, tmp_path: Path) -> None:
    declare(lambda x: flow.math.relu(x, name="rectified"), tp.Numpy.Placeholder((2, 3)), name="net")
    flow.summary.Graph(str(tmp_path / "graph")).write_structure_graph()
    graph = GraphDef.FromString(list(events(tmp_path / "graph"))[1].graph_def)  # type: ignore[attr-defined]
    assert [(node.name, node.op, list(node.input)) for node in graph.node] == [("net/x", "input", []), ("net/rectified", "relu", ["net/x:0"])]

    projector = flow.summary.Projector(str(tmp_path))
    with pytest.raises(JobError, match=r"call create_embedding_projector\(\) first"):
        projector.write_embedding_projector(np.ones((2, 2)))
    projector.create_embedding_projector()
    projector.write_embedding_projector(np.arange(8.0).reshape(4, 2), tag="points", step=3, x=np.ones((4, 6, 6), np.float32), label=np.arange(4))
    folder = tmp_path / "points_00003"
    assert np.loadtxt(folder / "tensors.tsv").tolist() == np.arange(8.0).reshape(4, 2).tolist()
    assert (folder / "metadata.tsv").read_text().split() == list("0123")
    with Image.open(folder / "sprite.png") as sprite:
        assert sprite.size == (12, 12)
    assert 'tensor_path: "points_00003/tensors.tsv"' in (tmp_path / "projector_config.pbtxt").read_text()
    with pytest.raises(ArgumentError, match="label must have one entry per point: 4, not 3"):
        projector.write_embedding_projector(np.ones((4, 2)), label=np.arange(3))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: flow.summary.RealRange(2, 1), "summary.RealRange at .*: min_value 2 must not be above max_value 1"),
        (lambda: flow.summary.ValueSet(["a", 1]), "values must be strings, numbers or booleans of one type"),
        (lambda: flow.summary.hparams({"a": [1]}), r"hparams must map names to strings, numbers or booleans, not 'a' to \[1\]"),
        (lambda: flow.summary.text([]), r"text must be a string or a list of strings, and tag a string, not \[\]"),
    ],
)
def test_wrong_summaries_raise(make: Any, text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        make()
