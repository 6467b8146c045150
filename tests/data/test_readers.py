"""Readers: what is in small real files comes out of them, and what is wrong with a file is said with its place."""

from __future__ import annotations

import gzip
import inspect
import json
import struct
import sys
import threading
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobflow.core.errors import ArgumentError, DataError
from jobflow.data import READERS, Samples, Stream, open_reader, samples_of
from jobflow.data.samples import Keep

Array = np.ndarray[Any, Any]


def opened(name: str, /, **arguments: Any) -> Samples:
    samples = open_reader(name, **arguments)
    assert isinstance(samples, Samples)
    return samples


def everything(samples: Samples) -> dict[str, Array]:
    return samples.read(np.arange(len(samples)))


def fields(samples: Samples) -> dict[str, str]:
    return {name: str(field) for name, field in samples.fields.items()}


# -------------------------------------------------------------------- all of them


@pytest.mark.parametrize("name", READERS)
def test_a_signature_is_a_schema(name: str) -> None:
    function = READERS[name] if inspect.isfunction(READERS[name]) else READERS[name].__init__
    hints = typing.get_type_hints(function)
    for parameter in inspect.signature(READERS[name]).parameters.values():
        assert parameter.name in hints and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        explained = READERS[name].__doc__
        assert f"`{parameter.name}`" in explained or parameter.name in ("path", "split", "channels"), f"{parameter.name} is not explained"


@pytest.mark.parametrize("level", ["character", "byte"])
def test_text_decompresses_gzip_at_both_levels(level: str, tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain.txt", tmp_path / "packed.txt.gz"
    plain.write_bytes(b"abcabcabd")
    packed.write_bytes(gzip.compress(b"abcabcabd"))
    expected, result = (everything(opened("text", path=str(path), length=2, level=level)) for path in (plain, packed))
    np.testing.assert_equal(result, expected)


def test_columns_with_rows_of_different_lengths_are_refused() -> None:
    with pytest.raises(DataError, match=r'samples, field "x" is not an array of numbers: .*; all rows must have equal shapes'):
        samples_of({"x": [[1], [2, 3]]})


def test_wrong_names_raise() -> None:
    with pytest.raises(ArgumentError, match=r'unknown reader "digit"; did you mean "digits"\? There are digits, numpy'):
        open_reader("digit")
    with pytest.raises(ArgumentError, match=r'no argument "splitt"; did you mean "split"\?'):
        open_reader("digits", splitt="train")
    with pytest.raises(ArgumentError, match='reader "csv" requires path and fields'):
        open_reader("csv")


@settings(max_examples=60)
@given(st.integers(0, 500), st.integers(2, 30))
def test_validation_and_training_splits_are_disjoint(count: int, every: int) -> None:
    parts = [Keep(split, count, every) for split in ("train", "validation")]  # type: ignore[arg-type]
    rows = [part.numbers(np.arange(len(part))).tolist() for part in parts]
    assert sorted(rows[0] + rows[1]) == list(range(count)) and rows[0] == sorted(rows[0])
    assert len(rows[1]) == -(-count // every)


def test_invalid_splits_raise(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(1))
    path = str(tmp_path / "x.npy")
    with pytest.raises(ArgumentError, match=r'split is "trian"; did you mean "train"'):
        open_reader("numpy", path=path, split="trian")
    with pytest.raises(ArgumentError, match="validation_every must be at least 2, not 1"):
        open_reader("numpy", path=path, split="train", validation_every=1)
    with pytest.raises(DataError, match='no samples in the split "train" of 1 samples'):
        open_reader("numpy", path=path, split="train")


@pytest.mark.parametrize("name", ["csv", "text", "ofrecord"])
def test_readers_serve_many_threads(name: str, tmp_path: Path) -> None:
    if name == "csv":
        (tmp_path / "t.csv").write_text("a,b\n" + "".join(f"{i},{i * i}\n" for i in range(500)))
        samples = opened("csv", path=str(tmp_path / "t.csv"), fields={"x": ["a", "b"]})
    elif name == "text":
        (tmp_path / "t.txt").write_text("".join(chr(97 + i * i % 26) for i in range(5000)))
        samples = opened("text", path=str(tmp_path / "t.txt"), length=9)
    else:
        (tmp_path / "part-0").write_bytes(b"".join(framed(record(x=(5, varints([i, -i])))) for i in range(300)))
        samples = opened("ofrecord", path=str(tmp_path))
    whole, wrong = everything(samples), []

    def read(seed: int) -> None:
        for indices in np.random.RandomState(seed).randint(0, len(samples), (20, 16)):
            if any(not np.array_equal(rows, whole[field][indices]) for field, rows in samples.read(indices).items()):
                wrong.append(seed)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# -------------------------------------------------------------------- digits


def test_digits_are_split_before_they_are_multiplied() -> None:
    sizes = {split: len(opened("digits", split=split, edge=8)) for split in ("train", "validation", "test")}
    assert sizes == {"train": 1300, "validation": 200, "test": 297}
    pictures = [{image.tobytes() for image in everything(opened("digits", split=split, edge=8))["images"]} for split in sizes]
    assert all(not one & other for one, other in ((pictures[0], pictures[1]), (pictures[0], pictures[2]), (pictures[1], pictures[2])))


def test_digits_like_mnist() -> None:
    samples = opened("digits", split="validation", copies=3)
    assert len(samples) == 600 and fields(samples) == {"images": "float32[1,28,28]", "labels": "int32[]"}
    rows = everything(samples)
    assert rows["images"].min() == 0 and 0.9 < rows["images"].max() <= 1 and set(rows["labels"].tolist()) == set(range(10))
    for wrong in ({"split": "all"}, {"edge": 9}, {"copies": 50}, {"edge": 8, "copies": 2}):
        with pytest.raises(ArgumentError, match='reader "digits"'):
            open_reader("digits", **wrong)


# -------------------------------------------------------------------- numpy


def test_arrays_of_all_kinds_of_numpy_files(tmp_path: Path) -> None:
    x, y = np.random.RandomState(0).rand(10, 3, 2).astype(np.float32), np.arange(10) % 3
    np.savez(tmp_path / "plain.npz", x_train=x, y_train=y)
    np.savez_compressed(tmp_path / "packed.npz", x_train=x, y_train=y)
    (tmp_path / "folder").mkdir()
    np.save(tmp_path / "folder" / "x_train.npy", np.asfortranarray(x))
    np.save(tmp_path / "folder" / "y_train.npy", y)
    for name in ("plain.npz", "packed.npz", "folder"):
        samples = opened("numpy", path=str(tmp_path / name), fields={"images": "x_train", "labels": "y_train"}, dtypes={"labels": "int32"})
        assert fields(samples) == {"images": "float32[3,2]", "labels": "int32[]"}
        rows = samples.read([7, 2, 2])
        assert np.array_equal(rows["images"], x[[7, 2, 2]]) and np.array_equal(rows["labels"], y[[7, 2, 2]]) and rows["labels"].dtype == np.int32
        assert samples.read([4, 5, 6])["images"].flags.owndata, "stretches too belong to the caller"
    plain = opened("numpy", path=str(tmp_path / "plain.npz"))
    assert list(plain.fields) == ["x_train", "y_train"] and fields(plain)["y_train"] == "int64[]"
    assert isinstance(plain._arrays["x_train"].base, np.memmap)  # type: ignore[attr-defined]
    single = opened("numpy", path=str(tmp_path / "folder" / "y_train.npy"), split="validation", validation_every=4)
    assert everything(single)["y_train"].tolist() == y[[0, 4, 8]].tolist()


def test_numbers_are_scaled_and_converted(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.array([[0, 255], [51, 102]], np.uint8), ids=np.array([1, 2], np.uint16))
    samples = opened("numpy", path=str(tmp_path / "a.npz"), scale={"images": 1 / 255}, dtypes={"ids": "int32"})
    assert np.allclose(everything(samples)["images"], [[0, 1], [0.2, 0.4]]) and fields(samples)["images"] == "float32[2]"
    with pytest.raises(DataError, match='field "ids": tensors do not support uint16; convert it with dtypes'):
        open_reader("numpy", path=str(tmp_path / "a.npz"))
    with pytest.raises(ArgumentError, match=r'unknown element type "int31"; did you mean "int32"'):
        open_reader("numpy", path=str(tmp_path / "a.npz"), dtypes={"ids": "int31"})
    with pytest.raises(ArgumentError, match=r'scale: field "image" does not exist; did you mean "images"'):
        open_reader("numpy", path=str(tmp_path / "a.npz"), scale={"image": 2.0})
    with pytest.raises(ArgumentError, match=r'array "x" does not exist. There are images, ids'):
        open_reader("numpy", path=str(tmp_path / "a.npz"), fields={"images": "x"})


def test_damaged_numpy_files(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((100, 10)))
    whole = (tmp_path / "a.npy").read_bytes()
    cases = {
        whole[:-9]: "a.npy is damaged: float64\\[100, 10\\] at byte 128 needs 8000 bytes, but the file has 7991",
        whole[:50]: "not an array in NumPy's format",
        b"PK": "not an array in NumPy's format",
    }
    for content, message in cases.items():
        (tmp_path / "a.npy").write_bytes(content)
        with pytest.raises(DataError, match=message):
            open_reader("numpy", path=str(tmp_path / "a.npy"))
    np.save(tmp_path / "a.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(DataError, match="contains Python objects"):
        open_reader("numpy", path=str(tmp_path / "a.npy"))
    np.savez(tmp_path / "a.npz", x=np.zeros(1000))
    (tmp_path / "a.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:4000])
    with pytest.raises(DataError, match=r"not a complete .npz file"):
        open_reader("numpy", path=str(tmp_path / "a.npz"))
    with pytest.raises(DataError, match=r"there is no file or folder .*nowhere"):
        open_reader("numpy", path=str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no .npy file"):
        open_reader("numpy", path=str(tmp_path / "empty"))


# -------------------------------------------------------------------- idx


def idx(array: Array, code: int) -> bytes:
    return bytes([0, 0, code, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.astype(array.dtype.newbyteorder(">")).tobytes()


def test_idx_files_plain_and_packed(tmp_path: Path) -> None:
    images, labels = np.random.RandomState(0).randint(0, 256, (20, 4, 5)).astype(np.uint8), (np.arange(20) % 10).astype(np.uint8)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(images, 8))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(labels, 8))
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images[:7], 8)))
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels[:7], 8)))
    train, validation, test = (opened("idx", path=str(tmp_path), split=split) for split in ("train", "validation", "test"))
    assert [len(train), len(validation), len(test)] == [18, 2, 7] and fields(train) == {"images": "float32[1,4,5]", "labels": "int32[]"}
    assert np.allclose(everything(test)["images"][:, 0], images[:7] / 255) and everything(validation)["labels"].tolist() == [0, 0]


def test_idx_files_of_other_numbers_and_names(tmp_path: Path) -> None:
    for code, dtype in ((9, np.int8), (11, np.int16), (12, np.int32), (13, np.float32), (14, np.float64)):
        values = np.arange(-6, 6).reshape(2, 2, 3).astype(dtype)
        (tmp_path / "a").write_bytes(idx(values, code))
        pixels = everything(opened("idx", path=str(tmp_path), images="a", split="all"))["images"]
        scale = np.iinfo(dtype).max if code < 13 else 1
        assert list(pixels) and np.allclose(pixels[:, 0], values / scale, rtol=1e-6)
    with pytest.raises(DataError, match="contains no train-images-idx3-ubyte and train-labels-idx1-ubyte"):
        open_reader("idx", path=str(tmp_path))


def test_damaged_idx_files(tmp_path: Path) -> None:
    whole = idx(np.zeros((3, 4, 5), np.uint8), 8)
    for content, message in (
        (whole[:-1], "damaged: uint8\\[3, 4, 5\\] requires 60 bytes, but 59 bytes follow the header"),
        (whole[:9], "ends at byte 9, within its header of 16 bytes"),
        (b"\x89PNG", "not an IDX file: it starts with b'.x89PNG'"),
        (b"", "not an IDX file"),
        (idx(np.zeros(4, np.uint8), 8), "images must be \\[count, height, width\\]"),
    ):
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(DataError, match=message):
            open_reader("idx", path=str(tmp_path), images="a")
    (tmp_path / "a.gz").write_bytes(gzip.compress(whole)[:-9])
    with pytest.raises(DataError, match="cannot be unpacked"):
        open_reader("idx", path=str(tmp_path), images="a.gz")


# -------------------------------------------------------------------- text


def test_windows_of_text_and_what_follows(tmp_path: Path) -> None:
    text = "the cat sat on the mat\nand was glad ❤\n" * 4
    (tmp_path / "t.txt").write_text(text, encoding="utf-8")
    samples = opened("text", path=str(tmp_path / "t.txt"), length=8, split="all")
    words = samples.vocabulary  # type: ignore[attr-defined]
    assert words.size == len(set(text)) and fields(samples) == {"tokens": "int32[8]", "targets": "int32[8]"}
    for i in range(len(samples)):
        assert words.decode(samples[i]["tokens"]) == text[8 * i : 8 * i + 8] and words.decode(samples[i]["targets"]) == text[8 * i + 1 : 8 * i + 9]
    assert len(samples) == (len(text) - 9) // 8 + 1
    close = opened("text", path=str(tmp_path / "t.txt"), length=8, stride=1, split="all")
    assert len(close) == len(text) - 8 and words.decode(close[len(close) - 1]["targets"]) == text[-8:]


def test_text_is_cut_into_what_is_for_training_and_what_is_not(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("".join(chr(0x4E00 + i) for i in range(1000)))
    train, validation = (opened("text", path=str(tmp_path / "t.txt"), length=9, split=split, stride=10) for split in ("train", "validation"))
    assert train.facts == validation.facts
    assert everything(train)["targets"].max() == 899 and everything(validation)["tokens"].min() == 900 and len(train) == 90


def test_facts_of_one_text_read_another(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abcabcabcabc")
    (tmp_path / "b.txt").write_text("cbacbacbacba")
    facts = json.loads(json.dumps(opened("text", path=str(tmp_path / "a.txt"), length=2, split="all").facts))
    assert facts == {"level": "character", "vocabulary": "abc"}
    other = open_reader("text", facts, path=str(tmp_path / "b.txt"), length=2, split="all", vocabulary=None)
    assert isinstance(other, Samples) and other[0]["tokens"].tolist() == [2, 1]
    (tmp_path / "b.txt").write_text("cbax")
    with pytest.raises(DataError, match=r"b.txt: character 3 is 'x', which is not in the vocabulary of 3: 'abc'"):
        open_reader("text", facts, path=str(tmp_path / "b.txt"), length=2, split="all")


@pytest.mark.parametrize("level", ["byte", "character"])
def test_text_of_many_files_is_one_text(tmp_path: Path, level: str) -> None:
    for name, content in (("b/2.txt", "fghij"), ("a.txt", "abcde"), ("b/1.txt", ""), ("c.md", "nothing"), ("d.txt", "kl")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    samples = opened("text", path=str(tmp_path), length=7, stride=2, split="all", level=level)
    words = samples.vocabulary  # type: ignore[attr-defined]
    assert [words.decode(samples[i]["tokens"]) for i in range(len(samples))] == ["abcdefg", "cdefghi", "efghijk"]
    assert words.decode(samples[2]["targets"]) == "fghijkl" and words.encode("fgh").tolist() == samples[2]["targets"][:3].tolist()


def test_bytes_of_text_are_mapped(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(bytes(range(256)) * 3)
    samples = opened("text", path=str(tmp_path / "t.txt"), length=100, level="byte", split="all")
    assert samples[1]["tokens"].tolist() == list(range(100, 200)) and samples.facts == {"level": "byte", "vocabulary": None}
    with pytest.raises(DataError, match=r"t.txt is not valid UTF-8 at byte 128.*level: byte"):
        open_reader("text", path=str(tmp_path / "t.txt"))


def test_python_brings_a_text_along() -> None:
    train, validation = (opened("text", length=64, split=split) for split in ("train", "validation"))
    assert 200_000 < 64 * (len(train) + len(validation)) < 10_000_000
    assert 60 < train.vocabulary.size < 1000 and train.facts == validation.facts  # type: ignore[attr-defined]
    words = train.vocabulary.decode(everything(train)["tokens"].reshape(-1))  # type: ignore[attr-defined]
    assert words.count(" the ") > 2000


def test_wrong_texts_raise(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("short")
    for arguments, kind, message in (
        (
            {"path": str(tmp_path / "t.txt"), "length": 5, "split": "all"},
            DataError,
            "5 tokens for all do not fill a window of 5 and the following token",
        ),
        ({"path": str(tmp_path / "none")}, DataError, "there is no file or folder .*none"),
        ({"path": str(tmp_path), "pattern": "*.md"}, DataError, r"no file in .* matches '\*.md'"),
        ({"level": "word"}, ArgumentError, 'level must be "character", "byte" or "token", not \'word\''),
        ({"length": 0}, ArgumentError, "length and stride must be at least 1"),
        ({"split": "test"}, ArgumentError, "split must be one of all, train, validation, not 'test'"),
    ):
        with pytest.raises(kind, match=message):
            open_reader("text", **arguments)


# -------------------------------------------------------------------- ofrecord


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    content = b""
    while value > 127:
        content, value = content + bytes([value & 127 | 128]), value >> 7
    return content + bytes([value])


def varints(values: list[int]) -> bytes:
    return field_of(1, b"".join(map(varint, values)))


def field_of(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def record(**features: tuple[int, bytes]) -> bytes:
    return b"".join(field_of(1, field_of(1, name.encode()) + field_of(2, field_of(kind, content))) for name, (kind, content) in features.items())


def framed(content: bytes) -> bytes:
    return struct.pack("<q", len(content)) + content


def test_records_of_all_kinds(tmp_path: Path) -> None:
    x = np.random.RandomState(0).rand(12, 2, 3)
    for part in range(12):
        features = {
            "image": (2, field_of(1, x[part].astype("<f4").tobytes())),
            "exact": (3, field_of(1, x[part].astype("<f8").tobytes())),
            "label": (4, varints([part - 6])),
            "ids": (5, varints([part << 40, -part, 127, 128])),
            "raw": (1, field_of(1, bytes([part, 200]))),
        }
        (tmp_path / f"part-{part}").write_bytes(framed(record(**features)))
    samples = opened("ofrecord", path=str(tmp_path), features={"image": [2, 3], "exact": [6], "label": [], "ids": [4], "raw": [2]})
    assert fields(samples) == {"image": "float32[2,3]", "exact": "float64[6]", "label": "int32[]", "ids": "int64[4]", "raw": "uint8[2]"}
    columns = everything(samples)
    assert np.array_equal(columns["image"], x.astype(np.float32)) and np.array_equal(columns["exact"], x.reshape(12, 6))
    assert columns["label"].tolist() == list(range(-6, 6)) and columns["ids"].tolist() == [[i << 40, -i, 127, 128] for i in range(12)]
    assert columns["raw"].tolist() == [[i, 200] for i in range(12)]
    renamed = opened("ofrecord", path=str(tmp_path), features={"image": [6]}, fields={"x": "image"}, dtypes={"x": "float64"}, split="validation")
    assert fields(renamed) == {"x": "float64[6]"} and len(renamed) == 2
    assert fields(opened("ofrecord", path=str(tmp_path / "part-3"))) == fields(samples) | {"image": "float32[6]"}


def test_numbers_that_are_not_packed(tmp_path: Path) -> None:
    """As protobuf allows; and lists that are empty."""
    floats = b"".join(varint(1 << 3 | 5) + struct.pack("<f", value) for value in (1.5, -2))
    whole = b"".join(varint(1 << 3) + varint(value) for value in (3, -4))
    (tmp_path / "a").write_bytes(framed(record(f=(2, floats), i=(4, whole))) + framed(record(f=(2, b""), i=(4, whole))))
    samples = opened("ofrecord", path=str(tmp_path / "a"))
    assert samples[0]["f"].tolist() == [1.5, -2] and samples[0]["i"].tolist() == [3, -4]
    with pytest.raises(DataError, match=r'record at byte \d+: feature "f" has 0 values, but its shape is \[2\]'):
        samples[1]


def test_damaged_records(tmp_path: Path) -> None:
    good = framed(record(x=(2, field_of(1, struct.pack("<ff", 1, 2)))))
    file = tmp_path / "part-0"
    for content, message in (
        (
            good + good[:-3],
            f"part-0 is damaged: the record at byte {len(good)} declares {len(good) - 8} bytes, but the file has only {len(good) - 11} more bytes",
        ),
        (good + b"\x00\x00", f"ends within the length of the record at byte {len(good)}"),
        (struct.pack("<q", -5) + good, "the record at byte 0 declares -5 bytes"),
        (b"", 'no file with records in .* has a name that starts with "part-"'),
    ):
        file.write_bytes(content)
        with pytest.raises(DataError, match=message):
            open_reader("ofrecord", path=str(tmp_path))
    for offset, value in ((9, 120), (8, 3 << 3 | 2)):  # the length of the first feature; its number and type, which protobuf would pass over
        torn = bytearray(good)
        torn[offset] = value
        file.write_bytes(good + torn)
        with pytest.raises(DataError, match=f"record at byte {len(good)} is damaged: the 19 bytes from byte {len(good) + 8} on are not an OFR"):
            opened("ofrecord", path=str(tmp_path)).read([1])
    file.write_bytes(good + framed(record(y=(2, b""))))
    with pytest.raises(DataError, match='there is no feature "x"'):
        opened("ofrecord", path=str(tmp_path)).read([1])
    with pytest.raises(ArgumentError, match=r'feature "z" does not exist. There are x'):
        open_reader("ofrecord", path=str(tmp_path), features={"z": [2]})


# -------------------------------------------------------------------- python


def test_functions_by_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_samples.py").write_text(
        "def table(n): return {'x': [float(i) for i in range(n)]}\n"
        "def pairs(): return [(0.5, 1), (1.5, 2)]\n"
        "def counting(n, epoch): return ({'x': epoch * 10 + i} for i in range(n))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert everything(opened("python", function="own_samples:table", arguments={"n": 3}))["x"].tolist() == [0, 1, 2]
    assert everything(opened("python", function="own_samples:pairs", names=["x", "y"]))["y"].tolist() == [1, 2]
    stream = open_reader("python", function="own_samples:counting", arguments={"n": 2})
    assert isinstance(stream, Stream) and [[int(s["x"]) for s in stream.samples(epoch)] for epoch in (0, 3, 0)] == [[0, 1], [30, 31], [0, 1]]
    for function, message in (
        ("own_samples", 'write "module:function"'),
        ("own_samples:tabel", 'own_samples has no tabel; did you mean "table"'),
        ("own_sample:table", 'no module own_sample; did you mean "own_samples"'),
    ):
        with pytest.raises(ArgumentError, match=message):
            open_reader("python", function=function)
    sys.modules.pop("own_samples")


def test_files_that_are_replaced_after_they_were_opened(tmp_path: Path) -> None:
    """Who has opened a reader goes on with the file that it was: another one takes its name."""
    np.save(tmp_path / "x.npy", np.zeros((4, 2), np.float32))
    samples = open_reader("numpy", path=str(tmp_path / "x.npy"))
    np.save(tmp_path / "other.npy", np.ones((2, 2), np.float32))
    (tmp_path / "other.npy").rename(tmp_path / "x.npy")
    assert samples.read(range(4))["x"].tolist() == [[0, 0]] * 4
