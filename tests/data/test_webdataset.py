"""Tar files as streams of samples: decoders, orders, and files that must not be believed."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from jobflow.core.errors import ArgumentError, DataError
from jobflow.data import Batches, Position, Stream, open_reader
from jobflow.data.describe import describe_file

FIELDS = {"images": "png", "x": "npy", "labels": "cls", "width": "json:box.0", "text": "txt"}


def packed(path: Path, *entries: tuple[str, bytes], kind: bytes = tarfile.REGTYPE) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in entries:
            info = tarfile.TarInfo(name)
            info.size, info.type = len(content), kind
            archive.addfile(info, io.BytesIO(content))
    return path


def npy(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def sample(i: int) -> list[tuple[str, bytes]]:
    file = io.BytesIO()
    Image.new("L", (6, 4), 51 * (i % 5)).save(file, "PNG")
    content = {"png": file.getvalue(), "npy": npy(np.full((2, 3), i, np.float32)), "cls": str(i).encode(), "txt": "né".encode()}
    content |= {"json": json.dumps({"box": [i + 0.5, 2]}).encode(), "pkl": pickle.dumps(print)}
    return [(f"part/{i:04d}.{ending}", data) for ending, data in content.items()]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    for number in range(3):
        packed(folder / f"{number}.tar", *(entry for i in range(4 * number, 4 * number + 4) for entry in sample(i)))
    return folder


def opened(path: Path, **arguments: Any) -> Stream:
    stream = open_reader("webdataset", path=str(path), **arguments)
    assert isinstance(stream, Stream)
    return stream


def test_entries_are_decoded_by_their_ending(shards: Path) -> None:
    stream = opened(shards, fields=FIELDS, size=4, channels=1, length=5)
    kinds = {"images": "float32[1,4,4]", "x": "float32[2,3]", "labels": "int64[]", "width": "float32[]", "text": "int32[5]"}
    assert {name: str(field) for name, field in stream.fields.items()} == kinds
    samples = list(stream.samples(0))
    assert [int(each["labels"]) for each in samples] == list(range(12)) and float(samples[7]["width"]) == 7.5
    np.testing.assert_allclose(samples[2]["images"], 0.4, rtol=1e-6)
    assert samples[3]["text"].tolist() == [*"né".encode(), 0, 0] and samples[3]["x"].tolist() == [[3] * 3] * 2


def test_the_order_is_a_function_of_seed_and_epoch(shards: Path) -> None:
    def order(epoch: int, **arguments: Any) -> list[int]:
        return [int(each["labels"]) for each in opened(shards, fields={"labels": "cls"}, **arguments).samples(epoch)]

    first = order(0, shuffle=5, seed=1)
    assert sorted(first) == list(range(12)) != first and order(0, shuffle=5, seed=1) == first
    assert order(1, shuffle=5, seed=1) != first and order(0, shuffle=5, seed=2) != first
    batches = Batches(opened(shards, fields={"labels": "cls"}, shuffle=5, seed=1), batch_size=4, fields=["labels"], sharded=False)
    with batches.start(Position(0, 4), epochs=1) as reading:  # a resumed run
        assert [int(label) for batch in reading for label in batch.arguments["labels"]] == first[4:]


def test_images_change_at_random_as_a_function_of_seed_epoch_and_position(shards: Path) -> None:
    options: dict[str, Any] = {"fields": {"images": "png", "labels": "cls"}, "size": 4, "resize": 5, "crop": "random", "rotation": 30, "shuffle": 3}

    def images(epoch: int, seed: int = 1, **more: Any) -> Any:
        return np.stack([each["images"] for each in opened(shards, seed=seed, **{**options, **more}).samples(epoch)])

    first = images(1)
    np.testing.assert_array_equal(images(1), first)
    for other in (images(0), images(1, seed=2), images(1, rotation=0.0)):
        assert not np.array_equal(other, first)
    batches = Batches(opened(shards, seed=1, **options), batch_size=4, fields=["images"], sharded=False)
    with batches.start(Position(1, 8), epochs=1) as reading:  # a resumed run
        np.testing.assert_array_equal(np.concatenate([np.asarray(batch.arguments["images"]) for batch in reading]), first[8:])


def test_whole_numbers_may_have_leading_zeros(tmp_path: Path) -> None:
    contents = (b"00", b" 07\n", b"-3", b"+4", b"[5, 6]")
    packed(tmp_path / "a.tar", *((f"{i}.cls", content) for i, content in enumerate(contents[:4])))
    assert [int(each["labels"]) for each in opened(tmp_path, fields={"labels": "cls"}).samples(0)] == [0, 7, -3, 4]
    packed(tmp_path / "a.tar", ("0.cls", contents[4]))
    assert next(iter(opened(tmp_path, fields={"labels": "cls"}).samples(0)))["labels"].tolist() == [5, 6]


def test_a_tar_file_is_described_by_its_first_sample(shards: Path, tmp_path: Path) -> None:
    described = describe_file(str(shards / "0.tar"))
    assert described.reader == "webdataset" and described.samples is None and described.read == 4 and not described.wrong
    assert described.arguments is not None and described.arguments["fields"] == {"images": "png", "x": "npy", "labels": "cls", "text": "txt"}
    assert describe_file(str(shards), 7).read == 7
    packed(tmp_path / "code.tar", ("0.pkl", b"x"))
    with pytest.raises(ArgumentError, match=r"the first sample of .*code\.tar has no entry with one of the endings jpg, .*; pass fields"):
        describe_file(str(tmp_path / "code.tar"))


ENTRY = ("0.cls", b"1")


@pytest.mark.parametrize(
    ("entries", "fields", "message"),
    [
        ([("0.npy", npy(np.array([print], object), allow_pickle=True))], {"x": "npy"}, "0.npy contains object; save numbers without pickle"),
        ([("0.npy", npy(np.zeros(8))[:-8])], {"x": "npy"}, r"has 56 bytes for float64\[8\]"),
        ([("0.npy", b"no array")], {"x": "npy"}, "is not a complete .npy file"),
        ([("0.png", b"no image")], {"x": "png"}, "0.png cannot be read as an image"),
        ([("0.cls", b"cat")], {"x": "cls"}, "0.cls: there is no number"),
        ([("0.json", b'{"a": "b"}')], {"x": "json:a"}, "0.json at a is 'b', and no number"),
        (
            [("0.cls", b"7" * 5000)],
            {"x": "cls"},
            r"0.cls: there is no number: the JSON text has a number of more than 4,300 digits; correct the entry",
        ),
        ([("0.cls", b"7" * 30)], {"x": "cls"}, "0.cls is 7+, and no number of at most 64 bits"),
        ([("0.json", b'{"a": [1]}')], {"x": "json:a.b"}, r"there is no number at a.b: \[1\] has no \"b\"; correct the entry"),
        ([("0.json", b"[[1], [1, 2]]")], {"x": "json"}, r"the lists in \[\[1\], \[1, 2\]\] have different lengths"),
        ([ENTRY, ("0.txt", b""), ENTRY], {"x": "cls"}, r'a\.tar: sample "0" has two entries cls; pack each sample once'),
        ([("0.json", b"[" * 300)], {"x": "json"}, "nested levels"),
        ([ENTRY, ("1.txt", b"")], {"x": "cls", "t": "txt"}, 'sample "0" has no entry txt, only cls'),
        ([("0.txt", b"a")], {"x": "cls"}, "has no sample with cls"),
    ],
)
def test_wrong_entries_raise(tmp_path: Path, entries: list[tuple[str, bytes]], fields: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        opened(packed(tmp_path / "a.tar", *entries), fields=fields)


def test_hostile_files_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"x": "cls"}
    with pytest.raises(DataError, match=r"0\.cls is a link or a device; pack regular files"):
        opened(packed(tmp_path / "a.tar", ("0.cls", b""), kind=tarfile.SYMTYPE), fields=fields)
    with pytest.raises(DataError, match=r"a\.tar: an extended header of type b'x' has 2,000,000 bytes"):
        opened(packed(tmp_path / "a.tar", ("0.cls", b"0" * 2_000_000), kind=tarfile.XHDTYPE), fields=fields)
    for content in (b"", b"no tar file" * 100, packed(tmp_path / "b.tar", ENTRY).read_bytes()[:700]):
        (tmp_path / "a.tar").write_bytes(content)
        with pytest.raises(DataError, match=r"a\.tar (is not a complete tar file|has no sample)"):
            opened(tmp_path / "a.tar", fields=fields)
    monkeypatch.setenv("JOBFLOW_MAX_RECORD", "10")
    with pytest.raises(DataError, match=r"0\.cls has 11 bytes, more than the limit of 10; set JOBFLOW_MAX_RECORD"):
        opened(packed(tmp_path / "a.tar", ("0.cls", b"1" * 11)), fields=fields)


def test_tar_files_without_their_end_raise(tmp_path: Path) -> None:
    whole = packed(tmp_path / "a.tar", *((f"{i}.cls", b"%d" % i) for i in range(4))).read_bytes()
    gap = whole[:2048] + bytes(1024) + whole[2048:]
    lost = "is not a complete tar file: it ends at byte"
    cases = {
        whole[:4096]: rf"a\.tar {lost} 4,096 without two blocks of zeros; copy or pack it again",
        whole[:4608]: rf"{lost} 4,608 without two blocks",
        whole[:1600]: rf"{lost} 1,600 without two blocks",
        gap: r"a\.tar: its end is at byte 2,048, but an entry follows at byte 3,072, as in concatenated tar files; keep the files separate",
        whole + whole: "its end is at byte 4,096, but an entry follows at byte 10,240, as in concatenated tar files",
        whole[:2048] + bytes(1024) + whole[3072:]: "an entry follows at byte 3,072",
        whole[:2048] + bytes(512) + whole[2560:]: "is damaged: there is no entry at byte 2,048, but other bytes follow at byte 2,560",
        whole[:2048] + b"damage" + whole[2054:]: "is damaged: there is no entry at byte 2,048, but other bytes follow at byte 2,048",
        whole[:6000] + b"x" + whole[6001:]: "is damaged: its end is at byte 4,096, but other bytes follow at byte 6,000; copy",
    }
    for content, message in cases.items():
        (tmp_path / "a.tar").write_bytes(content)
        with pytest.raises(DataError, match=message):
            list(opened(tmp_path, fields={"x": "cls"}).samples(0))
    (tmp_path / "a.tar").write_bytes(gap)
    described = describe_file(str(tmp_path / "a.tar"))
    assert described.read == 1 and described.wrong == 1 and "an entry follows at byte 3,072" in described.problems[0]
    for length in (4096 + 1024, len(whole), 3 * len(whole)):  # any number of blocks of zeros from two
        (tmp_path / "a.tar").write_bytes(whole[:length].ljust(length, b"\0"))
        assert len(list(opened(tmp_path, fields={"x": "cls"}).samples(0))) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fields": {"x": "pkl"}}, 'field "x": files .pkl can run code when they are read; save arrays as .npy'),
        ({"fields": {"x": "pth"}}, "can run code"),
        ({"fields": {"x": "jpgg"}}, 'there is no decoder for "jpgg"; did you mean "jpg"'),
        ({"fields": {"x": "cls:a"}}, "there is no decoder"),
        ({"fields": {}}, "fields must be a dict of endings by field"),
        ({"fields": {"x": "png"}, "channels": 2}, "channels 1 or 3"),
    ],
)
def test_wrong_arguments_raise(shards: Path, arguments: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        opened(shards, **arguments)
