"""Tests of machine code on disk: it is shared by concurrent processes, and read only if no other user could have written it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from jobflow.core import notices
from jobflow.kernels.llvm import machine_code
from jobflow.kernels.object_cache import ObjectCache

KEY = "k" * 64


@pytest.fixture
def cache(tmp_path: Path) -> ObjectCache:
    notices.forget()
    result = ObjectCache(str(tmp_path / "loops"))
    result.write(KEY, b"machine code")
    assert result.read(KEY) == b"machine code"
    return result


def file_of(cache: ObjectCache, key: str = KEY) -> Path:
    return Path(cache.folder, f"{key}.code")


def test_folder_and_files_are_accessible_to_the_user_only(cache: ObjectCache) -> None:
    assert stat.S_IMODE(os.stat(cache.folder).st_mode) == 0o700
    assert stat.S_IMODE(file_of(cache).stat().st_mode) == 0o600


def test_a_damaged_file_is_a_miss(cache: ObjectCache) -> None:
    whole = file_of(cache).read_bytes()
    for damaged in (b"", whole[:10], whole[:-1], whole + b"x", whole[:-1] + b"x", whole.replace(b"code 2", b"code 1")):
        file_of(cache).write_bytes(damaged)
        assert cache.read(KEY) is None
    cache.write(KEY, b"new")
    assert cache.read(KEY) == b"new"


def test_a_file_of_another_key_is_a_miss(cache: ObjectCache) -> None:
    other = "o" * 64
    file_of(cache).rename(file_of(cache, other))
    assert cache.read(other) is None
    file_of(cache).symlink_to(file_of(cache, other))
    assert cache.read(KEY) is None


def test_a_folder_writable_by_others_is_not_used(cache: ObjectCache, capfd: pytest.CaptureFixture[str]) -> None:
    os.chmod(cache.folder, 0o770)
    assert cache.read(KEY) is None
    assert cache.read(KEY) is None
    folder = cache.folder
    message = f"cannot read compiled loops from {folder}: {folder} is writable by other users (mode 770); run chmod go-w {folder}"
    assert capfd.readouterr().err == f"jobflow: {message}\n"
    cache.write(KEY, b"other")
    assert "cannot store compiled loops in" in capfd.readouterr().err
    assert "is writable by other users" in cache.state().problem
    os.chmod(cache.folder, 0o700)
    assert cache.read(KEY) == b"machine code"
    file_of(cache).chmod(0o606)
    assert cache.read(KEY) is None


def test_a_folder_of_another_user_is_not_used(cache: ObjectCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(cache.folder).st_uid + 1)
    assert cache.read(KEY) is None
    assert "belongs to user" in cache.state().problem


@pytest.mark.parametrize("folder", ["/proc/none/loops", "/dev/full/loops", ""])
def test_an_unwritable_folder_is_reported_once(folder: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    notices.forget()
    file = tmp_path / "file"
    file.touch()
    cache = ObjectCache(folder or str(file))
    for _ in range(2):
        assert cache.read(KEY) is None
        cache.write(KEY, b"machine code")
    assert capfd.readouterr().err.count("cannot store compiled loops in") == 1


def test_a_full_disk_leaves_no_incomplete_file(cache: ObjectCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    cache.write("f" * 64, b"machine code")
    assert os.listdir(cache.folder) == [file_of(cache).name]


def test_the_least_recently_used_files_are_removed(cache: ObjectCache) -> None:
    for k in range(8):
        cache.write(f"{k}" * 64, bytes(1000))
        os.utime(file_of(cache, f"{k}" * 64), (1e9 + k, 1e9 + k))
    assert cache.read("0" * 64) is not None  # used most recently, so it is removed last
    Path(cache.folder, ".left").touch()
    os.utime(Path(cache.folder, ".left"), (1e9, 1e9))
    small = ObjectCache(cache.folder, limit=3000)
    small.write("9" * 64, bytes(1000))
    names = {name[0] for name in os.listdir(cache.folder)}
    assert names == {"0", "9", "k"}
    assert small.state().entries == 3
    assert small.clear() == 3
    assert small.state().entries == 0


def test_the_next_process_loads_compiled_code_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"define void @{machine_code.NAME}(ptr %args) {{\n  store i64 7, ptr %args\n  ret void\n}}\n"
    first = machine_code.Compiler(ObjectCache(str(tmp_path / "loops")))
    first.function(text)
    second = machine_code.Compiler(ObjectCache(str(tmp_path / "loops")))
    monkeypatch.setattr(second, "object_code", lambda text: pytest.fail("compiled again"))
    second.function(text)
    file_of(first.cache, first.key(text)).write_bytes(b"damaged")
    third = machine_code.Compiler(ObjectCache(str(tmp_path / "loops")))
    third.function(text)
    assert first.cache.read(first.key(text)) is not None
    assert first.key(text) != first.key(text + " ")


RANKS = """
import os, signal, sys
import numpy as np
from jobflow.core.types import float32
from jobflow.expressions import language as f
from jobflow.kernels.llvm import bind

def rank(number):
    if number == 5:
        move = os.replace
        def killed(*names, **folders):
            os.kill(os.getpid(), signal.SIGKILL)
        os.replace = killed
    x = f.element(0, float32)
    a, y = np.arange(40, dtype=np.float32), np.empty(40, np.float32)
    for k in (0, 1, 2) if number != 5 else (0, 1, 2, 3):  # the last is its own, so it writes for certain
        for function, arguments in bind([x * x + float(k)], [a], [y]):
            function(*arguments)
        assert np.array_equal(y, a * a + np.float32(k))

started = []
for number in range(16):
    child = os.fork()
    if not child:
        rank(number)
        os._exit(0)
    started.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in started])
"""


def test_sixteen_processes_fill_one_empty_folder_and_one_is_killed_while_it_writes(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RANKS], env={**os.environ, "JOBFLOW_CACHE": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{[0] * 5 + [-9] + [0] * 10}\n"
    assert done.stderr == ""
    names = os.listdir(tmp_path / "loops")
    cache = ObjectCache(str(tmp_path / "loops"))
    whole = [name for name in names if name.endswith(".code")]
    assert len(whole) == 3 and len(names) == 4  # one incomplete file
    assert all(cache.read(name.removesuffix(".code")) for name in whole)
