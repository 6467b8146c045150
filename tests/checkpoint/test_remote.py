"""Checkpoints in object stores: in memory, and on a loopback server with client processes (remote_faults)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from layouts import IDS, begin, same, values
from s3_server import Store

import jobflow as flow
from jobflow import cli, nn
from jobflow.core.errors import ArgumentError, CheckpointError
from jobflow.distributed import mpiexec
from jobflow.engine.session import started_session
from jobflow.storage import drafts, remote, remote_drafts, sessions, store
from jobflow.storage import file_system as files
from jobflow.storage.file_system import Files
from jobflow.storage.owner import Owner
from jobflow.storage.remote import RemotePath, StoreError, path_of
from jobflow.storage.series import Series

HERE = Path(__file__).parent
TENSORS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array([3])}
ROOT = RemotePath("memory://runs")


@pytest.fixture(autouse=True)
def memory() -> Iterator[Any]:
    """Create an empty store."""
    system = fsspec.filesystem("memory")
    yield system
    files.use(Files)
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def save(path: Any, step: int = 0, **options: Any) -> None:
    store.save(path, {name: array + step for name, array in TENSORS.items()}, {"step": step}, **options)


def names(path: RemotePath) -> list[str]:
    """Return the names of the objects below a path, without stamps."""
    result = (remote_drafts._STAMPED.fullmatch(name.rpartition("/")[2]) for name in path.objects())
    return [name if match is None else match["stem"] + match["ending"] for name, match in zip(path.objects(), result, strict=True)]


# ---- paths ---------------------------------------------------------------------------------------------------------------------------


def test_paths() -> None:
    path = path_of("memory:///runs//a/b.npz/")
    assert isinstance(path, RemotePath) and str(path) == "memory://runs/a/b.npz"
    assert (path.name, path.stem, path.suffix, str(path.parent.parent)) == ("b.npz", "b", ".npz", "memory://runs")
    assert str(path / "c" / "d") == "memory://runs/a/b.npz/c/d" and str(path.with_name("x")) == "memory://runs/a/x"
    assert [path_of(text) for text in ("a/b", "file:///a/b%20c", "local://a")] == [Path("a/b"), Path("/a/b c"), Path("/a")]
    assert not path.exists() and list(path.glob("*")) == [] and path.objects() == {}


def test_an_unreachable_store_raises(monkeypatch: pytest.MonkeyPatch, memory: Any) -> None:
    """A broken connection raises StoreError, although fsspec reports it as a missing object."""
    monkeypatch.setattr(type(memory), "info", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("the line is dead")))
    assert memory.exists("/runs") is False
    with pytest.raises(StoreError, match=r"memory://runs: the request to the store failed \(RuntimeError: the line is dead\)"):
        ROOT.exists()
    save(ROOT / "step-00000001")
    with pytest.raises(StoreError, match="the line is dead"):  # not "there is no checkpoint": a run would begin anew
        Series(ROOT).newest_good()


def test_missing_packages_and_unknown_protocols_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match=r'foo://x at test_remote.py:\d+: the protocol "foo://" is unknown'):
        path_of("foo://x")
    for module in ("fsspec", "s3fs"):
        monkeypatch.setitem(sys.modules, module, None)
        monkeypatch.delitem(sys.modules, f"{module}.registry", raising=False)
        with pytest.raises(ModuleNotFoundError, match=r's3://b/x needs \w+: pip install "jobflow-sbp\[remote\]"'):
            flow.load("s3://b/x")
        monkeypatch.undo()
    with pytest.raises(ModuleNotFoundError, match=r'gs://b/x at .*: the protocol "gs://" needs a package that is not installed: .*gcsfs'):
        path_of("gs://b/x")


# ---- one checkpoint ------------------------------------------------------------------------------------------------------------------


def test_a_checkpoint() -> None:
    save("memory://runs/c")
    path = ROOT / "c"
    assert names(path) == ["manifest.json", "tensors-00001.safetensors"]
    same(dict(store.load("memory://runs/c")), TENSORS)
    assert list(store.problems(path)) == []
    with pytest.raises(CheckpointError, match=r"checkpoint memory://runs/c: this path already exists \(it contains manifest.json\)"):
        save(path)
    save(path, 5, replace=True)
    assert (names(path), store.load(path).extra) == (["manifest.json", "tensors-00001.safetensors"], {"step": 5})
    with pytest.raises(CheckpointError, match="there is no such directory"):
        store.load("memory://runs/d")


def test_damage(memory: Any) -> None:
    save(ROOT / "c")
    (file,) = (name for name in memory.store if name.endswith(".safetensors"))
    whole = memory.cat(file)
    for content, text in (
        (whole[:-1] + b"?", 'tensor "w" is damaged: its content'),
        (whole[:-1], "is damaged: it ends at byte"),
        (whole + b"?", "its tensors end at byte"),
    ):
        memory.pipe_file(file, content)
        assert text in " ".join(store.problems(ROOT / "c"))


def test_an_incomplete_save_is_no_checkpoint(memory: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Without its manifest a save is listed as unfinished, and the next save replaces it."""
    save(ROOT / "step-00000001", 1)
    save(ROOT / "step-00000002", 2)
    memory.rm_file("/runs/step-00000002/manifest.json")
    series = Series(ROOT)
    assert (series.steps(), series.newest_good().step) == ([1], 1)
    with pytest.raises(CheckpointError, match=r"neither a manifest\.json nor"):
        store.load(ROOT / "step-00000002")
    assert cli.main(["ckpt", "ls", "memory://runs"]) == 0
    assert "1 unfinished: step-00000002; the next save removes" in capsys.readouterr().out
    save(ROOT / "step-00000002", 2)
    assert drafts.unfinished_in(ROOT) == [] and series.newest_good().step == 2


def test_abandoned_saves_are_removed_and_running_ones_are_not(memory: Any) -> None:
    here = Owner.here()

    def left(step: int, owner: Owner | None, age: timedelta = timedelta()) -> str:
        folder, stamp = f"/runs/step-{step:08d}", f"{step:012x}"
        for name in (f"tensors-00001.{stamp}.safetensors", f".saving.{stamp}")[: 1 + (owner is not None)]:
            memory.pipe_file(f"{folder}/{name}", b"x" if name.startswith("t") else json.dumps(asdict(owner)).encode() if owner else b"")
            memory.store[f"{folder}/{name}"].modified = memory.store[f"{folder}/{name}"].created = datetime.now(UTC) - age
        return folder

    day = timedelta(days=1)
    elsewhere = replace(here, host="elsewhere", space="another machine")
    gone = [left(1, replace(here, start="1")), left(2, elsewhere, day), left(3, None, day)]
    stays = [left(4, here, day), left(5, elsewhere), left(6, None)]
    drafts.clean(ROOT)
    assert {f"/{name.rpartition('/')[0]}" for name in memory.store if name.startswith("/runs")} == {f"/{folder}" for folder in stays}, gone
    assert len(drafts.unfinished_in(ROOT)) == 3
    for folder in (*gone, *stays):
        memory.rm(folder, recursive=True) if memory.exists(folder) else None
    newest = left(7, elsewhere, day)
    drafts.clean(ROOT)
    assert memory.exists(newest)
    save(ROOT / "step-00000008")
    drafts.clean(ROOT)
    assert not memory.exists(newest) and Series(ROOT).steps() == [8]


def test_an_incomplete_listing_loses_no_checkpoint(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a listing lacks the manifest, `clean`, a save or a replacement does not remove the checkpoint."""
    save(ROOT / "step-00000001", 1)
    day = timedelta(days=1)
    for entry in memory.store.values():
        entry.modified = entry.created = datetime.now(UTC) - day
    before, find = set(memory.store), type(memory).find
    monkeypatch.setattr(
        type(memory), "find", lambda *values, **named: {name: info for name, info in find(*values, **named).items() if "manifest" not in name}
    )
    series = Series(ROOT)
    assert series.newest_good().step == 1
    drafts.clean(ROOT)
    assert series.prune() == [] and set(memory.store) == before
    with pytest.raises(CheckpointError, match="this path already exists"):
        save(ROOT / "step-00000001", 2)
    monkeypatch.setattr(type(memory), "cat_file", lambda *_, **__: b'{"version": 3, "sha256": ""}')
    with pytest.raises(CheckpointError, match="is not replaced, because this process cannot read it"):
        save(ROOT / "step-00000001", 2, replace=True)
    drafts.clean(ROOT)
    assert set(memory.store) == before


# ---- sessions, series, tensors -------------------------------------------------------------------------------------------------------


def test_sessions_and_series(capsys: pytest.CaptureFixture[str]) -> None:
    """Ranks that are threads write their parts; the last and the best are kept, and another layout loads them."""
    job = begin(2, flow.strategies.zero(3, least=2))
    session = started_session()
    series = Series(ROOT, keep_last=2, keep_best=1, best_metric="loss")
    for step, loss in enumerate([3.0, 1.0, 2.0, 4.0, 5.0]):
        job(IDS)
        saving = series.save(session, step, {"metrics": {"loss": loss}}, asynchronous=step % 2 == 0)
    saving.wait()
    assert series.steps() == [1, 3, 4] and drafts.unfinished_in(ROOT) == []
    series.save(session, 4)  # in its place
    expected = values(session)
    assert cli.main(["ckpt", "verify", "memory://runs"]) == 0 and capsys.readouterr().out.count(": intact\n") == 3
    begin(1)
    newest = sessions.on_first(started_session(), series.newest_good)
    assert sessions.load(started_session(), newest.path)["step"] == 4
    same(values(started_session()), expected)
    flow.checkpoint.save("memory://runs/plain")
    same({name: result.numpy() for name, result in flow.checkpoint.get("memory://runs/plain").items()}, expected)
    flow.train.CheckPoint().load("memory://runs/plain")
    manager = flow.train.SimpleCheckPointManager("memory://managed")
    assert manager.latest_checkpoint() is None
    manager.initialize_or_restore()
    manager.initialize_or_restore()
    assert len(manager.list_checkpoints()) == 1


class AnswerLost(Files):
    """Files of rank 1 whose request gets no answer until the checkpoint is complete."""

    def do(self, what: str, path: Any, change: Any) -> Any:
        result = change()
        if what == "put" and path.name.startswith("part-00001"):
            end = time.monotonic() + 20
            while not (path.parent / "manifest.json").exists() and time.monotonic() < end:
                time.sleep(0.01)
            raise StoreError(f"{path}: the answer was lost")
        return result


def test_a_published_checkpoint_is_complete_if_a_later_confirmation_is_lost() -> None:
    begin(2, flow.strategies.zero(3, least=2))
    files.use(AnswerLost)
    sessions.save(started_session(), ROOT / "c")
    assert not [name for name in (ROOT / "c").objects() if name.startswith(("part", "failed", "."))]
    files.use(Files)
    sessions.load(started_session(), ROOT / "c")


def test_structures_and_conversion(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(3, 2)
    for _ in range(2):
        flow.save({"model": model.state_dict(), "epoch": 3}, "memory://runs/state")
    result = flow.load("memory://runs/state")
    assert result["epoch"] == 3
    np.testing.assert_array_equal(result["model"]["weight"].numpy(), model.weight.numpy())
    assert cli.main(["ckpt", "convert", "memory://runs/state", str(tmp_path / "w.safetensors")]) == 0
    assert cli.main(["ckpt", "convert", str(tmp_path / "w.safetensors"), "memory://runs/back"]) == 0
    assert cli.main(["ckpt", "diff", "memory://runs/state", "memory://runs/back"]) == 0
    assert cli.main(["ckpt", "export", "memory://runs/back", "memory://runs/w.npz"]) == 1
    assert "only checkpoints can be written to a store" in capsys.readouterr().err


# ---- a server ------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("JOBFLOW_CACHE", str(tmp_path / "cache"))
    for name, value in {"PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    with Store() as result:
        yield result


def test_failed_requests_and_killed_clients_leave_complete_checkpoints() -> None:
    command = [sys.executable, str(HERE.parents[1] / "scripts" / "crash_sweep"), "--only", "store", "--stores", "4", "--seed", "4"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    assert (ended.returncode, "store 5 " in " ".join(ended.stdout.split())) == (0, True), ended.stdout + ended.stderr


@pytest.mark.mpi
def test_processes(server: Store, tmp_path: Path) -> None:
    """Two processes save, fail together, continue, and read data through one local copy."""
    np.save(tmp_path / "x.npy", np.arange(3, dtype=np.float32))
    putting = (
        "import sys; from jobflow.storage.remote import path_of; path_of(sys.argv[2]).ask(lambda store, name: store.put_file(sys.argv[1], name))"
    )
    subprocess.run([sys.executable, "-c", putting, str(tmp_path / "x.npy"), "s3://bucket/data/x.npy"], check=True, timeout=60)
    command = [mpiexec.find() or "mpiexec", "-n", "2", sys.executable, str(HERE / "remote_faults.py"), server.url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    first, second = map(json.loads, ended.stdout.splitlines())
    assert first == second
    step, reason, read, *problems = first
    assert (step, read, problems) == (6, [2.0, 0.0], [])
    assert "memory://steps/1 is visible to one process only, but this program has 2 processes" in reason
    assert len(list((tmp_path / "cache").rglob("x.npy"))) == 1


def test_copies_are_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: Any) -> None:
    monkeypatch.setenv("JOBFLOW_CACHE", str(tmp_path))
    memory.pipe_file("/data/x", b"abc")
    first = remote.local_copy(RemotePath("memory://data/x"))
    assert first.read_bytes() == b"abc"
    monkeypatch.setattr(remote, "_fetch", lambda *_: pytest.fail("fetched again"))
    assert remote.local_copy(RemotePath("memory://data/x")) == first
    monkeypatch.undo()
    monkeypatch.setenv("JOBFLOW_CACHE", str(tmp_path))
    memory.pipe_file("/data/x", b"other")
    assert remote.local_copy(RemotePath("memory://data/x")).read_bytes() == b"other"
    assert first.read_bytes() == b"abc"
