"""Start of threads when the system has no thread or no address space for them: an error, and no thread that waits for ever."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

import jobflow as flow
import jobflow.storage.sessions as sessions
import jobflow.typing as tp
from jobflow.core.errors import CheckpointError, JobError
from jobflow.data.ahead import Pool
from jobflow.data.download import fetch
from jobflow.data.waiting import notice_if_long
from jobflow.engine.session import current_session
from jobflow.runtime.concurrency import concurrently
from jobflow.runtime.thread_start import start_thread
from jobflow.trainer.lock import FolderLock

PACKAGE = Path(flow.__path__[0])


def no_space(*_: Any, **__: Any) -> NoReturn:
    raise OSError(12, "Cannot allocate memory")


def no_thread(_: threading.Thread) -> NoReturn:
    raise RuntimeError("can't start new thread")


#: name -> (function to replace, replacement, text of the error)
CAUSES: dict[str, tuple[str, Callable[..., NoReturn], str]] = {
    "no address space": ("mmap.mmap", no_space, r"it needs \d+ MiB of address space, but the system has no memory left"),
    "no thread": ("threading.Thread.start", no_thread, r"can't start new thread: .* raise the limit \(ulimit -u, or pids.max"),
}


@pytest.fixture(params=CAUSES)
def cause(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name, replacement, text = CAUSES[request.param]
    with monkeypatch.context() as patched:
        patched.setattr(name, replacement)
        yield text


def in_a_block(path: Path) -> None:
    with concurrently(lambda: None):
        raise AssertionError("the block has begun")


def slow_read(path: Path) -> None:
    with notice_if_long(lambda: "a file"):
        raise AssertionError("the block has begun")


def devices(path: Path) -> None:
    flow.config.cpu_device_num(2)
    current_session().start()


STARTS: dict[str, Callable[[Path], Any]] = {
    "a thread": lambda path: start_thread(lambda: None, "mine"),
    "a block": in_a_block,
    "readers": lambda path: Pool(2),
    "a reader in the calling thread": lambda path: Pool(0),
    "a slow read": slow_read,
    "a download": lambda path: fetch("http://127.0.0.1:1/file", path / "file"),
    "a lock": lambda path: FolderLock(path).take(),
    "devices": devices,
}


@pytest.mark.parametrize("what", STARTS)
def test_a_thread_that_cannot_start_is_an_error_at_the_users_line(what: str, cause: str, tmp_path: Path) -> None:
    with pytest.raises(JobError, match=rf"start of thread '[\w .-]+' at test_thread_start.py:\d+: .*{cause}"):
        STARTS[what](tmp_path)
    assert not list(tmp_path.iterdir()), "a lock stays"


@pytest.mark.parametrize("first", ["reader-1", "jobflow rank 1"])
def test_threads_that_have_started_end_if_the_next_cannot_start(first: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before, start = set(threading.enumerate()), threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda self: no_thread(self) if self.name == first else start(self))
    with pytest.raises(JobError, match=f"start of thread '{first}'"):
        STARTS["readers" if first == "reader-1" else "devices"](tmp_path)
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive(), thread


def test_a_checkpoint_without_a_thread_fails_and_training_continues(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    flow.config.cpu_device_num(2)

    @flow.global_function(type="train")
    def train_job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        loss = flow.math.reduce_mean(flow.matmul(x, flow.get_variable("w", (3, 2), initializer=flow.ones_initializer())))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(loss)
        return loss

    x = np.ones((2, 3), np.float32)
    train_job(x)
    session, start = current_session(), threading.Thread.start
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", lambda self: no_thread(self) if self.name == "checkpoint of rank 1" else start(self))
        saving = sessions.save(session, tmp_path / "1", asynchronous=True)
        with pytest.raises(CheckpointError, match=r"rank 1: start of thread 'checkpoint of rank 1'.*can't start new thread"):
            saving.wait()
    train_job(x)
    sessions.save(session, tmp_path / "2", asynchronous=True).wait()
    assert [entry.name for entry in tmp_path.iterdir()] == ["2"]


def test_an_error_of_a_reader_thread_is_raised_by_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> NoReturn:
        raise MemoryError

    with closing(Pool(1)) as pool:
        monkeypatch.setattr("jobflow.data.ahead._perform", fails)
        with pytest.raises(MemoryError):
            pool.ask(lambda: 1, lambda: "a file").result(10)
        monkeypatch.undo()
        assert pool.ask(lambda: 1, lambda: "a file").result(10) == 1


def test_one_function_starts_all_threads() -> None:
    calls = re.compile(r"\b(Thread|Timer|ThreadPoolExecutor)\(")
    assert [str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if calls.search(path.read_text())] == ["runtime/thread_start.py"]
