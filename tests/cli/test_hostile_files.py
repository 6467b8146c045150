"""Hostile files: nested, endless, pipes, or of a wrong size; the command reports them without a traceback or a hang.

Everything runs through the command line in a separate process, with little memory and little time.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from jobflow.storage.store import save

#: seconds, and bytes of address space: many times what a command needs, and far less than the files below claim
LIMIT, MEMORY = 60, 6 * 2**30
DEEP = 100_000


#: runs commands one after another: their words come as JSON, and what became of them goes out so
RUNNER = """
import contextlib, io, json, sys
from jobflow.cli import main
from jobflow.core.notices import forget

for words in json.load(sys.stdin):
    forget()
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(words)
    print(json.dumps([code, out.getvalue(), err.getvalue()]), file=sys.__stdout__, flush=True)
"""


class Ended(NamedTuple):
    """The outcome of a command."""

    code: int
    out: str
    err: str


def commands(commands: Sequence[Sequence[object]], **variables: str) -> list[Ended]:
    """Run commands in one separate process, which none of them may crash."""
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps([[str(word) for word in words] for words in commands]),
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
    )
    endings = [Ended(*json.loads(line)) for line in done.stdout.splitlines()]
    assert len(endings) == len(commands), f"{commands[len(endings)]} ended all: {done.stderr[-3000:]}"
    return endings


def jobflow(*words: object, **variables: str) -> Ended:
    """Run a command in a separate process."""
    return commands([words], **variables)[0]


def check_output(done: Ended, code: int, *facts: str) -> None:
    """Check that the command exited with this code and printed these texts."""
    output = done.out + done.err
    assert done.code == code, output[-3000:]
    assert not [fact for fact in facts if fact not in output], output[-3000:]


# -------------------------------------------------------------------- checkpoints


@pytest.fixture
def good(tmp_path: Path) -> Path:
    save(tmp_path / "all" / "step-00000001", {"w": np.arange(12, dtype=np.float32).reshape(3, 4)}, {"step": 1})
    return tmp_path / "all" / "step-00000001"


def rewritten(checkpoint: Path, change: Callable[[Any], None]) -> None:
    """Change the manifest and sign it again, so that only its contents can be wrong."""
    file = checkpoint / "manifest.json"
    body = json.loads(file.read_text())
    del body["sha256"]
    change(body)
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    file.write_text(json.dumps(body | {"sha256": hashlib.sha256(text.encode()).hexdigest()}))


def nested(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").write_text('{"format": "jobflow checkpoint", "extra": ' + "[" * DEEP + "]" * DEEP + "}")


def hidden(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").write_text('{"a": "]]]]]\\"", "b": ' * DEEP + "0" + "}" * DEEP)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def header(checkpoint: Path, text: bytes, length: int | None = None) -> None:
    (tensors,) = checkpoint.glob("*.safetensors")
    tensors.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text)


def tensors_of(checkpoint: Path) -> Path:
    (file,) = checkpoint.glob("*.safetensors")
    return file


HUGE = b'{"w":{"dtype":"F32","shape":[1000000000000,1000000000],"data_offsets":[0,4000000000000000000000]}}'
DAMAGES: dict[str, Callable[[Path], None]] = {
    "a manifest nested 100,000 deep": nested,
    "a manifest of strings that hide its depth": lambda c: hidden(c),
    "a pipe as manifest": lambda c: pipe(c / "manifest.json"),
    "a pipe as tensors": lambda c: pipe(tensors_of(c)),
    "a device as tensors": lambda c: device(tensors_of(c)),
    "a header nested 100,000 deep": lambda c: header(c, b'{"w":' + b"[" * DEEP + b"]" * DEEP + b"}"),
    "a header longer than the file": lambda c: header(c, b"{}", 2**62),
    "tensors beyond the file": lambda c: header(c, HUGE),
    "half a character": lambda c: rewritten(c, lambda body: body["tensors"].update({"\ud800": body["tensors"]["w"]})),
    "a file of another folder": lambda c: rewritten(c, lambda body: body["tensors"]["w"]["shards"][0].update(file="../step-00000002/x")),
    "the folder above": lambda c: rewritten(c, lambda body: body["tensors"]["w"]["shards"][0].update(file="..")),
    "an absolute name": lambda c: rewritten(c, lambda body: body["files"].update({"/etc/passwd": {"bytes": 1, "header": ""}})),
}


def device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def test_damaged_checkpoints_are_named(good: Path) -> None:
    folders = []
    for number, damage in enumerate(DAMAGES.values()):
        folders.append(good.parent / f"bad-{number}")
        shutil.copytree(good, folders[-1])
        damage(folders[-1])
    listed, *verified = commands([["ckpt", "ls", good.parent], *(["ckpt", "verify", folder] for folder in folders)])
    check_output(listed, 0, "intact")
    assert listed.out.count("damaged: /") == len(DAMAGES), listed.out
    for done, folder, what in zip(verified, folders, DAMAGES, strict=True):
        check_output(done, 1, f"{folder}: DAMAGED")
        assert len(done.out) < 2000, what


#: what may stand in the place of any value
VALUES: tuple[Any, ...] = (None, True, -1, 10**30, 1e400, 0.5, "x", "../x", "", [], [[]], {}, [2**63], [-1, 0], [2**62, 2**62, 0])


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values of a tree."""
    if path:
        yield path
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield from places(value, (*path, key))


def test_no_value_of_a_manifest_breaks_verify(good: Path) -> None:
    """Replace every value of a manifest and of a header by an invalid one; check all in one run of the command."""
    body = json.loads((good / "manifest.json").read_text())
    everywhere = [path for path in places(body) if path[0] not in ("sha256", "extra", "format")]
    assert len(everywhere) > 15
    for number, (path, value) in enumerate((path, value) for path in everywhere for value in VALUES):
        copy = good.parent / f"bad-{number}"
        copy.mkdir()
        os.link(tensors_of(good), copy / tensors_of(good).name)
        shutil.copy(good / "manifest.json", copy)
        rewritten(copy, lambda body, path=path, value=value: put(body, path, value))
    done = jobflow("ckpt", "verify", good.parent)
    check_output(done, 1, "step-00000001: intact")
    lines = [line for line in done.out.splitlines() if line.startswith(str(good.parent))]
    newer = [line for line in lines if line.endswith("NEWER FORMAT")]
    assert len(newer) == 1, "one value is the number of a later format"
    wrong = [line for line in lines if "DAMAGED" not in line and line not in newer]
    assert len(lines) == number + 2 and [Path(line.partition(":")[0]).name for line in wrong] == ["step-00000001"], wrong


def put(tree: Any, path: tuple[Any, ...], value: Any) -> None:
    for step in path[:-1]:
        tree = tree[step]
    tree[path[-1]] = value


def test_resume_skips_hostile_checkpoints(tmp_path: Path) -> None:
    words = ["train", configuration(tmp_path), "--set", f"output={tmp_path / 'out'}"]
    check_output(jobflow(*words), 0)
    saved = tmp_path / "out" / "checkpoints"
    (newest,) = saved.iterdir()
    for step, damage in enumerate((nested, lambda c: pipe(tensors_of(c)), lambda c: header(c, b"[" * DEEP), lambda c: pipe(c / "manifest.json")), 5):
        shutil.copytree(newest, saved / f"step-{step:08d}")
        damage(saved / f"step-{step:08d}")
    done = jobflow(*words, "--set", "training.steps=3")
    check_output(done, 0, "step-00000005", "step-00000008", "is skipped")
    assert "step 3" in done.out


def test_extra_fields_may_have_any_value(tmp_path: Path) -> None:
    words = ["train", configuration(tmp_path), "--set", f"output={tmp_path / 'out'}", "--set", "training.steps=3"]
    check_output(jobflow(*words, "--set", "training.steps=2"), 0)
    (saved,) = (tmp_path / "out" / "checkpoints").iterdir()
    extra = json.loads((saved / "manifest.json").read_text())["extra"]
    changed = [(key, value) for key in ("position", "metrics", "trainer", "config", "runs", "step") for value in ([], "x", None)]
    for number, (key, value) in enumerate(changed):
        shutil.copytree(saved, tmp_path / str(number))
        rewritten_as_written(tmp_path / str(number), extra | {key: value})
    ended = commands([[*words, "--resume", tmp_path / str(number)] for number in range(len(changed))])
    for (key, value), done in zip(changed, ended, strict=True):
        if (key, value) == ("runs", None):  # legacy directories do not say
            continue
        assert ("invalid run counts" if key == "runs" else "saved by the trainer") in done.err, (key, value, done)
        assert done.code in (1, 2), (key, value, done)


def rewritten_as_written(checkpoint: Path, extra: dict[str, Any]) -> None:
    """Write the manifest as the package would, with other extra fields."""
    from jobflow.storage.manifest import Manifest

    manifest = Manifest.read(checkpoint / "manifest.json")
    (checkpoint / "manifest.json").write_text(Manifest(manifest.tensors, extra, manifest.files).text())


# -------------------------------------------------------------------- data

CONFIG = """
model: {{loss: mean_squared_error, layers: [flatten, {{dense: {{units: 1}}}}]}}
data:
  train: {data}
  batch_size: 2
optimizer: {{name: sgd, lr: 0.01}}
training: {{steps: 2}}
logging: {{report: false, progress: plain}}
"""


def configuration(folder: Path, data: str | None = None) -> Path:
    """Write a configuration that trains on the samples of a reader."""
    if data is None:
        np.savez(folder / "samples.npz", x=np.ones((4, 3), np.float32), labels=np.ones((4, 1), np.float32))
        data = f"{{reader: numpy, path: {folder / 'samples.npz'}}}"
    (folder / "run.yaml").write_text(CONFIG.format(data=data))
    return folder / "run.yaml"


def npy(shape: str, body: bytes = b"", dtype: str = "<f4") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


def npz(content: bytes, packed: bool = True) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as archive:
        archive.writestr("x.npy", content)
    return file.getvalue()


def png(width: int, height: int) -> bytes:
    """Return a picture of this size without content."""
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0" * 64)) + chunk(b"IEND", b"")


ZEROS = bytes(2**20)
#: file, content, the reader's other arguments, and the expected message
FILES: dict[str, tuple[str, bytes, str, tuple[str, ...]]] = {
    "an npy beyond the file": ("a.npy", npy("(4611686018427387904,)"), "", ("numpy", "a.npy", "needs")),
    "an npy whose size overflows": ("a.npy", npy("(4294967296, 4294967296, 4)"), "", ("a.npy", "damaged")),
    "an npy of negative sizes": ("a.npy", npy("(-2, -2)", bytes(16)), "", ("a.npy",)),
    "an npy nested deep": ("a.npy", npy("(" * 4000 + ")" * 4000), "", ("a.npy",)),
    "an npy with too many axes": ("a.npy", npy("(" + "1," * 99 + ")", bytes(4)), "", ("a.npy", "64")),
    "an npz that unpacks to much": ("a.npz", npz(npy("(268435456,)", ZEROS * 64)), "", ("a.npz", "damaged")),
    "an npz over the limit": ("a.npz", npz(npy("(16777216,)", ZEROS * 64)), "", ("a.npz", "JOBFLOW_MAX_UNPACKED", "1,048,576")),
    "an npz that claims more than it has": ("a.npz", npz(npy("(1000,)", bytes(4000)))[:-9], "", ("a.npz",)),
    "an npz that is damaged": ("a.npz", npz(npy("(1000,)", os.urandom(4000))).replace(b"\x93NUMPY", b"\x93NUMPX"), "", ("a.npz",)),
    "a gzip bomb": (
        "i.gz",
        gzip.compress(b"\0\0\x08\x03" + struct.pack(">3i", 1, 8192, 8192) + ZEROS * 64),
        "images: i.gz",
        ("MAX_UNPACKED", "i.gz"),
    ),
    "a gzip that breaks off": ("i.gz", gzip.compress(b"\0\0\x08\x03" + ZEROS)[:200], "images: i.gz", ("i.gz", "idx")),
    "an idx beyond the file": ("i", b"\0\0\x08\x03" + struct.pack(">3i", 2**31 - 1, 2**31 - 1, 2**31 - 1), "images: i", ("i is damaged",)),
    "an idx of negative sizes": ("i", b"\0\0\x08\x03" + struct.pack(">3i", -1, -1, 4) + bytes(4), "images: i", ("i is damaged",)),
    "an idx of 255 axes": ("i", b"\0\0\x08\xff" + struct.pack(">255i", *[1] * 255) + b"\1", "images: i", ("not an IDX file",)),
    "a csv of one endless row": (
        "t.csv",
        b'a,b\n1,"' + b"1" * 2**21 + b'"\n',
        "fields: {x: [a], labels: [b]}",
        ("t.csv", "JOBFLOW_MAX_RECORD", "byte 4"),
    ),
    "a csv with an unclosed quote": ("t.csv", b'a,b\n1,"' + b"1" * 2**21, "fields: {x: [a], labels: [b]}", ("t.csv", "is not closed")),
    "a text over the limit": ("t.txt", b"a" * 2**21, "length: 4", ("t.txt", "JOBFLOW_MAX_UNPACKED")),
    "a parquet that ends early": (
        "t.parquet",
        b"PAR1" + bytes(9) + b"\xff\xff\xff\x7fPAR1",
        "fields: {x: a}",
        ("t.parquet", "not a complete"),
    ),
    "an ofrecord beyond the file": ("part-0", struct.pack("<q", 2**62) + bytes(8), "", ("part-0", "damaged")),
    "a picture of many pixels": ("c/a.png", png(50_000, 50_000), "size: 8", ("a.png", "images")),
    "a picture without content": ("c/a.png", png(64, 64), "size: 8", ("a.png", "images")),
    "a picture over the limit": ("c/a.png", png(2000, 2000), "size: 8", ("a.png", "JOBFLOW_MAX_PIXELS", "4,000,000")),
    "a PostScript program": (
        "c/a.png",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(%pipe%true) (w) file\n",
        "size: 8",
        ("a.png", "none of the formats"),
    ),
}
READERS = {"a.npy": "numpy", "a.npz": "numpy", "t.csv": "csv", "t.parquet": "parquet", "t.txt": "text", "part-0": "ofrecord"}
SMALL = {"JOBFLOW_MAX_UNPACKED": "1MiB", "JOBFLOW_MAX_RECORD": "1MiB", "JOBFLOW_MAX_PIXELS": "1M"}


def test_files_of_samples(tmp_path: Path) -> None:
    runs = []
    for number, (name, content, more, _) in enumerate(FILES.values()):
        file = tmp_path / str(number) / name
        file.parent.mkdir(parents=True)
        file.write_bytes(content)
        reader = READERS.get(name, "images" if name.endswith("png") else "idx")
        runs.append(training(tmp_path / str(number), reader, file if name in READERS else tmp_path / str(number), more))
    for done, what in zip(commands(runs, **SMALL), FILES, strict=True):
        assert done.code == 1 and not [fact for fact in FILES[what][-1] if fact not in done.err], (what, done)


def training(folder: Path, reader: str, path: Path, more: str) -> list[object]:
    """Return the arguments that train on the samples of a reader."""
    data = f"{{reader: {reader}, path: {path}{', ' + more if more else ''}}}"
    return ["train", configuration(folder, data), "--set", f"output={folder / 'out'}"]


def test_pipes_are_no_samples(tmp_path: Path) -> None:
    kinds = {"numpy": "", "csv": "fields: {x: a}", "parquet": "fields: {x: a}", "text": "", "ofrecord": "", "idx": "images: f.npy"}
    runs = []
    for reader, more in kinds.items():
        (tmp_path / reader).mkdir()
        os.mkfifo(tmp_path / reader / "f.npy")
        runs.append(training(tmp_path / reader, reader, tmp_path / reader if reader == "idx" else tmp_path / reader / "f.npy", more))
    for done, reader in zip(commands(runs), kinds, strict=True):
        check_output(done, 1, f'reader "{reader}"', "f.npy")


def test_pipes_among_samples_are_named(tmp_path: Path) -> None:
    """Skipping them would silently drop samples."""
    names = {"text": "f.txt", "ofrecord": "part-0", "images": "zero/f.png"}
    runs = []
    for reader, name in names.items():
        pipe = tmp_path / reader / "samples" / name
        pipe.parent.mkdir(parents=True)
        os.mkfifo(pipe)
        runs.append(training(tmp_path / reader, reader, tmp_path / reader / "samples", ""))
    for done, (reader, name) in zip(commands(runs), names.items(), strict=True):
        check_output(done, 1, f'reader "{reader}"', Path(name).name, "a pipe")


def test_a_limit_can_be_raised(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.ones((100_000, 4), np.float32), labels=np.ones((100_000, 1), np.float32))
    file = configuration(tmp_path, f"{{reader: numpy, path: {tmp_path / 'a.npz'}}}")
    words = ["train", file, "--set", f"output={tmp_path / 'out'}"]
    check_output(jobflow(*words, JOBFLOW_MAX_UNPACKED="1M"), 1, "a.npz", "1,600,1", "JOBFLOW_MAX_UNPACKED")
    check_output(jobflow(*words, JOBFLOW_MAX_UNPACKED="2 MiB"), 0)


def test_a_limit_is_a_size(tmp_path: Path) -> None:
    check_output(jobflow("config", "check", configuration(tmp_path), JOBFLOW_MAX_CONFIGURATION="much"), 2, "JOBFLOW_MAX_CONFIGURATION", "'much'")


# -------------------------------------------------------------------- configurations


def test_configurations(tmp_path: Path) -> None:
    checks: list[tuple[list[object], tuple[str, ...]]] = []

    def base(*facts: str) -> Path:
        folder = tmp_path / str(len(checks))
        folder.mkdir()
        run = configuration(folder)
        run.write_text(f"extends: base.yaml\n{run.read_text()}")
        checks.append((["config", "check", run], facts))
        return folder / "base.yaml"

    os.mkfifo(base("run.yaml:1:10", "base.yaml", "a pipe"))
    base("run.yaml:1:10", "base.yaml", "a device").symlink_to("/dev/zero")
    base("run.yaml:1:10", "base.yaml", "a folder").mkdir()
    base("base.yaml", "64 deep").write_text("a: " + "[" * DEEP)
    base("base.yaml", "64 deep").write_text("".join(f"{' ' * i}k:\n" for i in range(300)))
    base("base.yaml", "1,048,577 bytes", "JOBFLOW_MAX_CONFIGURATION").write_bytes(b"#" * 2**20 + b"\n")
    base("b61.yaml", "longer than 64").write_text("extends: b0.yaml\n")
    for i in range(100):
        (tmp_path / "6" / f"b{i}.yaml").write_text(f"extends: b{i + 1}.yaml\n")
    arguments = ", ".join(f"k{i}: '${{model.arguments.k{i + 1}}}'" for i in range(900))
    base("longer than 64").write_text(f"model:\n  arguments: {{{arguments}, k900: 1}}\n")
    plain = configuration(tmp_path)
    checks.append((["config", "check", plain, "--set", f"model.arguments.a={'[' * DEEP}"], ("64 deep",)))
    checks.append((["config", "check", plain, "--set", f"model.arguments{'.a' * 2000}=1"], ("64 steps",)))
    for done, (words, facts) in zip(commands([words for words, _ in checks]), checks, strict=True):
        assert done.code == 2 and not [fact for fact in facts if fact not in done.err], (words, facts, done.err[-2000:])
