"""Files of torch.save and safetensors: recorded ones, and hostile ones that are built from bytes."""

from __future__ import annotations

import io
import json
import os
import resource
import subprocess
import sys
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch_pickles as files
from ranks import on_ranks

import jobflow as flow

HERE = Path(__file__).parent / "references"
SOURCE = ("zip.pt", "zip_protocol_4.pt", "old.pt")
#: seconds, and bytes of address space, for all hostile files
LIMIT, MEMORY = 120, 4 * 2**30
RUNNER = """
import json, sys
import jobflow as flow
endings = {}
for path in json.load(sys.stdin):
    try:
        flow.load(path, weights_only=False)
        endings[path] = "loaded"
    except flow.errors.CheckpointError as error:
        endings[path] = str(error)
    except BaseException as error:
        endings[path] = f"raised {type(error).__name__}: {error}"
print(json.dumps(endings))
"""


def check(x: Any, expected: Any) -> None:
    np.testing.assert_array_equal(x.numpy().astype(np.float64), expected, strict=False)


@pytest.mark.parametrize("name", SOURCE)
def test_load_reads_every_kind_of_object(name: str) -> None:
    content = flow.load(HERE / name)
    assert isinstance(content["model"], OrderedDict)
    check(content["model"]["fc.weight"], np.full((3, 2), 0.5))
    whole = np.arange(12.0).reshape(3, 4)
    for x, expected in zip(content["views"], (whole, whole.T, np.arange(3.0, 7.0), np.stack([whole, whole])), strict=True):
        check(x, expected)
    for type_name, x in content["types"].items():
        assert x.dtype is getattr(flow, type_name)
        check(x, [1, 0, 1, 1] if type_name == "bool" else [1, 0, 2, 3])
    for key in ("parameter", "leaf"):
        assert content[key].requires_grad and content[key].is_leaf
    assert content["empty"].shape == (0, 3) and content["scalar"].item() == 2.5
    plain = [None, True, 3, -5, 2**60, 1.5, "text", b"\x00\xff", (1, (2, "x")), {1, 2}, frozenset("a"), slice(1, None, 2)]
    assert content["plain"] == plain and [*map(type, content["plain"])] == [*map(type, plain)]
    assert isinstance(content["size"], flow.Size) and content["size"] == (2, 3)
    assert (content["dtype"], content["device"], content["counter"]) == (flow.float16, flow.device("cpu"), Counter({3: 2}))


@pytest.mark.parametrize("name", SOURCE)
def test_tensors_of_one_storage_share_memory(name: str) -> None:
    whole, turned, part, _ = flow.load(HERE / name)["views"]
    whole[0, 3] = 50
    assert turned[3, 0].item() == part[0].item() == 50
    assert turned.version == whole.version == part.version > 0


def test_a_model_trains_from_a_loaded_state(tmp_path: Path) -> None:
    model = flow.nn.Module()
    model.fc = flow.nn.Linear(2, 3)
    model.load_state_dict(flow.load(HERE / "zip.pt", "cpu", weights_only=True)["model"])
    model.fc(flow.ones(1, 2)).sum().backward()
    check(model.fc.weight.grad, np.ones((3, 2)))


def test_int16_elements_are_loaded() -> None:
    (x,) = flow.load(HERE / "int16.pt")
    assert x.dtype is flow.int16 and x.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("module.pt", "Net'"),
        ("module_old.pt", "save state_dict() instead"),
        ("uint16.pt", "uint16"),
        ("complex64.pt", "complex64"),
        ("script.pt", "TorchScript"),
    ],
)
@pytest.mark.parametrize("weights_only", [True, False])
def test_load_refuses_modules_and_other_element_types(name: str, text: str, weights_only: bool) -> None:
    with pytest.raises(flow.errors.CheckpointError) as caught:
        flow.load(HERE / name, weights_only=weights_only)
    assert name in str(caught.value) and text in str(caught.value) and "test_torch_files.py:" in str(caught.value)


@pytest.mark.parametrize("target", ["cpu", flow.device("cpu"), {"cuda:0": "cpu"}, lambda storage, location: storage, None])
def test_map_location_names_devices(target: Any) -> None:
    assert flow.load(HERE / "zip.pt", map_location=target)["scalar"].device == flow.device("cpu")


@pytest.mark.parametrize("target", ["nowhere", 1.5, {"cuda": "nowhere"}, ["cpu"]])
def test_map_location_refuses_other_values(target: Any) -> None:
    with pytest.raises((flow.errors.ArgumentError, flow.errors.PlacementError), match="device"):
        flow.load(HERE / "zip.pt", map_location=target)


def test_global_tensors_are_loaded_from_a_file(tmp_path: Path) -> None:
    contents = {
        "tensor": files.archive(files.tensor(), {"0": np.float32([1, 2, 3, 4]).tobytes()}),
        "set": files.archive(files.value({1, 2})),
        "text": b"x",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)

    def program(rank: int) -> None:
        x = flow.load(tmp_path / "tensor", global_src_rank=0, map_location=flow.placement("cpu", [0, 1]))
        assert x.is_global and x.to_local().tolist() == [1, 2, 3, 4]
        assert flow.load(tmp_path / "set", global_src_rank=0) == {1, 2}
        with pytest.raises(flow.errors.CheckpointError, match="not a file of"):
            flow.load(tmp_path / "text", global_src_rank=0)

    on_ranks(2, program)


def test_unusual_but_valid_files_are_loaded(tmp_path: Path) -> None:
    valid = {
        "a far entry of the memo": files.archive(files.value(1) + b"r\xff\xff\xff\xffj\xff\xff\xff\xff\x86"),
        "an older file": files.old(files.tensor((2, 2), (2, 1))),
        "booleans that are neither 0 nor 1": files.archive(files.tensor(at=files.storage(kind="BoolStorage")), {"0": b"\x00\x02\xff\x01"}),
        "a tensor that is shared": files.archive(b"]" + files.tensor() + b"q\x00ah\x00a"),
    }
    loaded = {}
    for name, content in valid.items():
        (tmp_path / name).write_bytes(content)
        loaded[name] = flow.load(tmp_path / name)
    assert loaded["a far entry of the memo"] == (1, 1)
    assert loaded["an older file"].shape == (2, 2)
    assert loaded["booleans that are neither 0 nor 1"].sum().item() == 3
    first, second = loaded["a tensor that is shared"]
    assert first is second


def test_options_of_pickles_have_no_effect(tmp_path: Path) -> None:
    flow.save({"w": flow.ones(2)}, tmp_path / "x.pt", pickle_protocol=4, _use_new_zipfile_serialization=False)
    assert flow.load(tmp_path / "x.pt", "cpu", pickle_module=json, mmap=True)["w"].tolist() == [1, 1]


def test_open_files_are_read() -> None:
    with open(HERE / "zip.pt", "rb") as file:
        assert flow.load(file)["scalar"].item() == 2.5
    assert flow.load(io.BytesIO((HERE / "old.pt").read_bytes()))["scalar"].item() == 2.5
    with pytest.raises(flow.errors.CheckpointError, match="not a file of"):
        flow.load(io.BytesIO(b"hello"))
    for file, options in ((io.StringIO("hello"), {}), (io.BytesIO(), {"global_src_rank": 0})):
        with pytest.raises(flow.errors.ArgumentError, match="binary"):
            flow.load(file, **options)


def test_safetensors_are_loaded_as_a_dict(tmp_path: Path) -> None:
    header = {"__metadata__": {"a": "b"}, "w": files.entry("F32", [2, 1], 0, 8), "b": files.entry("BOOL", [2], 8, 10)}
    for name in ("x.safetensors", "x"):
        (tmp_path / name).write_bytes(files.safetensors(header, np.float32([1, 2]).tobytes() + b"\x02\x00"))
        content = flow.load(tmp_path / name)
        check(content["w"], [[1], [2]])
        assert content["b"].tolist() == [True, False] and content["b"].sum().item() == 1


def test_hostile_files_are_refused(tmp_path: Path) -> None:
    """Load all files in one process with little memory and a time limit; nothing runs, and only CheckpointError is raised."""
    expected = {}
    for suffix, cases in ((".pt", files.HOSTILE), (".safetensors", files.HOSTILE_SAFETENSORS)):
        for number, (what, (build, text)) in enumerate(cases.items()):
            path = tmp_path / f"{number}{suffix}"
            path.write_bytes(build())
            expected[str(path)] = what, text
    os.mkfifo(tmp_path / "pipe.pt")
    (tmp_path / "zero.pt").symlink_to("/dev/zero")
    expected |= {str(tmp_path / "pipe.pt"): ("a pipe", "a pipe"), str(tmp_path / "zero.pt"): ("a device", "a device")}
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps([*expected]),
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "JOBFLOW_MAX_PICKLE_OPERATIONS": files.OPERATIONS},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    endings = json.loads(done.stdout)
    wrong = {what: endings[path] for path, (what, text) in expected.items() if text not in endings[path] or path not in endings[path]}
    assert not wrong
    assert max(map(len, endings.values())) < 800 + len(str(tmp_path))


@pytest.mark.parametrize("name", ["zip.pt", "old.pt"])
def test_changed_bytes_raise_no_other_error(name: str, tmp_path: Path) -> None:
    content, rng = (HERE / name).read_bytes(), np.random.default_rng(0)
    for _ in range(300):
        changed = bytearray(content)
        for at in rng.integers(0, len(content), 3):
            changed[at] = rng.integers(256)
        (tmp_path / "x.pt").write_bytes(changed[: rng.integers(len(content) // 2, 2 * len(content))])
        try:
            flow.load(tmp_path / "x.pt")
        except flow.errors.CheckpointError:
            continue
