"""Checkpoints of sessions: any layout to any layout, by name, atomically, and asynchronously."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from layouts import IDS, LAYOUTS, begin, same, session_under, values, values_by_name

import jobflow as flow
from jobflow import scope
from jobflow.core.errors import CheckpointError, ReplacedError
from jobflow.engine.session import Session, started_session
from jobflow.storage import checkpoint_reader as reading
from jobflow.storage import file_system as files
from jobflow.storage import manifest, sessions, store
from jobflow.storage import rank_files as parts
from jobflow.storage.file_system import Files
from jobflow.storage.local_drafts import Folder

T = TypeVar("T")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    with scope.using(root=scope.Root()):
        yield
        files.use(Files)
        flow.clear_default_session()


def training(devices: int = 1, strategy: Any = None, **options: Any) -> tuple[Callable[..., Any], Session]:
    job = begin(devices, strategy, **options)
    return job, started_session()


# ---- layouts -------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Save a checkpoint of the same values from every layout; return the values."""
    root, expected = tmp_path_factory.mktemp("layouts"), {}
    for name in LAYOUTS:
        with scope.using(root=scope.Root()):
            session = session_under(name)
            expected = values_by_name(session)
            session.write(expected)
            sessions.save(session, root / name, {"step": 3})
            flow.clear_default_session()
    return root, expected


@pytest.mark.parametrize("target", LAYOUTS)
def test_every_layout_loads_what_every_layout_saved(saved: tuple[Path, dict[str, Any]], target: str) -> None:
    root, expected = saved
    session = session_under(target)
    zeros = {name: np.zeros_like(value) for name, value in expected.items()}
    for source in LAYOUTS:
        session.write(zeros)
        extra = sessions.load(session, root / source)
        same(values(session), expected)
        assert (extra["step"], extra["layout"]["ranks"]) == (3, LAYOUTS[source][0])


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_checkpoint_contains_the_logical_state(saved: tuple[Path, dict[str, Any]], name: str) -> None:
    """All ranks together write each box once, and plain readers see whole tensors."""
    root, expected = saved
    same(dict(store.load(root / name)), expected)
    result = manifest.Manifest.read(root / name / manifest.NAME)
    assert len(result.files) == LAYOUTS[name][0], "every rank writes"
    for tensor, entry in result.tensors.items():
        assert sum(manifest.volume(shard.box) for shard in entry.shards) == math.prod(entry.shape), tensor
    assert sorted(entry.name for entry in (root / name).iterdir()) == sorted([*result.files, "manifest.json", "snapshot_done"])
    assert list(store.problems(root / name)) == []


def test_ranks_write_about_as_many_bytes() -> None:
    session = session_under("DP4")
    boxes = sessions.assign_boxes(session.variables, 4)
    assert sorted(name for own in boxes for name in own) == sorted(session.variables)
    loads = [sum(manifest.volume(box) * session.variables[name].type.dtype.itemsize for name, box in own.items()) for own in boxes]
    largest = max(variable.type.nbytes for variable in session.variables.values())
    assert max(loads) - min(loads) <= largest


@pytest.mark.parametrize(("before", "after"), [("ZeRO-1", "TP2"), ("PP2", "ZeRO-3")])
def test_training_resumes_on_another_layout(before: str, after: str, tmp_path: Path) -> None:
    """With Adam and dropout, the losses equal those of an uninterrupted run."""
    job, session = training(*LAYOUTS["one"])
    expected = [job(IDS).mean() for _ in range(6)]
    job, session = training(*LAYOUTS[before])
    result = [job(IDS).mean() for _ in range(3)]
    sessions.save(session, tmp_path / "c")
    job, session = training(*LAYOUTS[after])
    sessions.load(session, tmp_path / "c")
    assert session.runs == {"train_job": 3}
    result += [job(IDS).mean() for _ in range(3)]
    np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_large_boxes_are_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader of some rows reads the blocks with these rows only."""
    monkeypatch.setattr(parts, "BLOCK", 48)
    session = session_under("TP2")
    expected = values_by_name(session)
    session.write(expected)
    sessions.save(session, tmp_path / "c")
    result = store.load(tmp_path / "c")
    same(dict(result), expected)
    for name, stored in result.stored.items():
        assert isinstance(stored, reading.StoredTensor)
        for shard in stored.shards:
            assert shard.info.nbytes <= 48
            box = reading.Box(shard.box, stored.entry.shape)
            assert stored.read(box).tobytes() == expected[name][box.slices].tobytes()
    last = store.load(tmp_path / "c").stored["table"]
    assert isinstance(last, reading.StoredTensor) and len(last.shards) > 3
    at = last.shards[-1].info.start
    content = bytearray(last.shards[-1].file_path.read_bytes())
    content[at] ^= 1
    last.shards[-1].file_path.write_bytes(content)
    assert last.read(reading.Box(((0, 1), (0, 6)), (11, 6))).tobytes() == expected["table"][:1].tobytes()
    with pytest.raises(CheckpointError, match=rf"bytes {at} to"):
        last.numpy()


def test_every_element_type_is_saved(tmp_path: Path) -> None:
    """Half precision is included; some ranks have no elements of short tensors."""
    kinds = [("double", 1, flow.float64), ("brain", 5, flow.bfloat16), ("half", 2, flow.float16), ("char", 4, flow.int8), ("n", 7, flow.int64)]
    flow.config.cpu_device_num(3)

    @flow.global_function()
    def job() -> flow.typing.Numpy:
        total = flow.constant(0, flow.float32, (1,))
        for name, size, dtype in kinds:
            held = flow.get_variable(name, (size, 2), dtype, flow.zeros_initializer(dtype), distribute=flow.distribute.split(0))
            total = total + flow.math.reduce_sum(flow.cast(held, flow.float32))
        return total

    job()
    session = started_session()
    expected = values_by_name(session)
    session.write(expected)
    sessions.save(session, tmp_path / "c", asynchronous=True).wait()
    session.write({name: value * 0 for name, value in expected.items()})
    sessions.load(session, tmp_path / "c")
    same(values(session), expected)
    same(dict(store.load(tmp_path / "c")), expected)


# ---- what is loaded ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("filter", [["up-*", "table"], re.compile("^up-|^table$"), lambda name, type: name.startswith("up-") or name == "table"])
def test_load_by_filters(tmp_path: Path, filter: Any) -> None:
    job, session = training(2)
    first = values(session)
    sessions.save(session, tmp_path / "c")
    for _ in range(2):
        job(IDS)
    trained = values(session)
    sessions.load(session, tmp_path / "c", filter)
    chosen = {name for name in trained if name.startswith("up-") or name == "table"}
    assert {"up-weight-m", "up-bias"} <= chosen
    same(values(session), {name: (first if name in chosen else trained)[name] for name in trained})
    assert session.runs == {"train_job": 2}, "a part of a checkpoint is another model's"
    with pytest.raises(CheckpointError, match=r'no variable matches "up-wieght"; did you mean "up-weight"\?'):
        sessions.load(session, tmp_path / "c", ["table", "up-wieght"], strict=False)


def test_load_with_each_strictness(tmp_path: Path) -> None:
    _, session = training()
    sessions.save(session, tmp_path / "all")
    part = {name: value for name, value in values(session).items() if not name.endswith(("-m", "-v"))}
    store.save(tmp_path / "less", part)
    store.save(tmp_path / "more", {**values(session), "other": np.zeros(3, np.float32)})
    before = values(session)
    with pytest.raises(
        CheckpointError, match=r'load of .*less at test_sessions.py:\d+: the checkpoint has no "table-m", .* and \d+ more; did you mean'
    ):
        sessions.load(session, tmp_path / "less")
    with pytest.raises(CheckpointError, match="the checkpoint has no"):
        sessions.load(session, tmp_path / "less", strict="variables")
    with pytest.raises(
        CheckpointError, match='the program has no variable "other"; pass strict="variables" to load the variables of the program only'
    ):
        sessions.load(session, tmp_path / "more")
    sessions.load(session, tmp_path / "less", strict=False)
    sessions.load(session, tmp_path / "less", ["table", "*-weight", "*-bias"])
    sessions.load(session, tmp_path / "more", strict="variables")
    same(values(session), before)


def test_other_types_raise(tmp_path: Path) -> None:
    _, session = training(width=9)
    sessions.save(session, tmp_path / "c")
    _, session = training(2)
    before = values(session)
    for strict in (True, False):
        with pytest.raises(CheckpointError, match=r'variable "up-weight" is float32\[7,6\], but the saved value is float32\[9,6\]'):
            sessions.load(session, tmp_path / "c", strict=strict)
    same(values(session), before)


def test_legacy_directories_are_loaded(tmp_path: Path) -> None:
    """Without `meta`, the types of the program's variables apply."""
    _, session = training(2)
    (tmp_path / "old" / "table").mkdir(parents=True)
    table = np.arange(66, dtype="<f4").reshape(11, 6)
    (tmp_path / "old" / "table" / "out").write_bytes(table.tobytes())
    sessions.load(session, tmp_path / "old", strict=False)
    np.testing.assert_array_equal(session.read(["table"])["table"], table)


# ---- damage --------------------------------------------------------------------------------------------------------------------------


def damage(path: Path, how: str) -> tuple[str, int]:
    """Damage the last shard of "up-weight"; return its file and offset."""
    stored = store.load(path).stored["up-weight"]
    assert isinstance(stored, reading.StoredTensor)
    shard = stored.shards[-1]
    file, at = shard.file_path, shard.info.start
    content = bytearray(file.read_bytes())
    if how == "bit":
        content[at + 5] ^= 4
    elif how == "header":
        content[12] ^= 1
    file.write_bytes(content[: at + 3] if how == "cut" else content + b"\0" if how == "longer" else content)
    if how == "missing":
        file.unlink()
    return file.name, at


@pytest.mark.parametrize(
    ("how", "text"),
    [
        (
            "bit",
            r'no variable was changed: rank 1: .*/{file}: tensor "up-weight" is damaged: its content, box \[.*\] at bytes {at} to \d+ of the file',
        ),
        ("cut", r"no variable was changed: rank \d: .*/{file} is damaged: it ends at byte \d+, before tensor"),
        ("missing", r"no variable was changed: rank \d: .*/{file} is missing"),
        ("header", r"no variable was changed: rank \d: .*/{file} is damaged: it is not a safetensors|.*/{file}: tensor"),
        ("longer", r"no variable was changed: rank \d: .*/{file} is damaged: its tensors end at byte \d+, but the file ends at byte \d+"),
    ],
)
def test_damage_raises_and_changes_no_variable(tmp_path: Path, how: str, text: str) -> None:
    job, session = training(*LAYOUTS["TP2"])
    sessions.save(session, tmp_path / "c")
    job(IDS)
    before = values(session)
    file, at = damage(tmp_path / "c", how)
    with pytest.raises(CheckpointError, match=text.format(file=file, at=at)):
        sessions.load(session, tmp_path / "c")
    same(values(session), before)
    assert session.runs == {"train_job": 1}
    if how == "bit":
        sessions.load(session, tmp_path / "c", ["table", "down-*"])  # nobody reads what is damaged
        assert next(store.problems(tmp_path / "c")).endswith("does not match its hash")
    assert job(IDS).shape == (8,), "training can go on"


def test_a_tensor_with_a_gap_raises(tmp_path: Path) -> None:
    _, session = training(*LAYOUTS["TP2"])
    sessions.save(session, tmp_path / "c")
    path = tmp_path / "c" / manifest.NAME
    result = manifest.Manifest.read(path)
    entry = result.tensors["up-weight"]
    for shards, text in (
        (entry.shards[:1], r'tensor "up-weight" has 42 elements, but its shards have 24: \[0:4, 0:6\]'),
        ((*entry.shards, entry.shards[0]), r'tensor "up-weight" has the shards \[0:4, 0:6\] and \[0:4, 0:6\], which overlap'),
        ((), r'tensor "up-weight" has 42 elements, but its shards have 0: no shards'),
        ((manifest.Shard(((0, 7), (0, 9)), "x", ""),), r"has a shard \[0:7, 0:9\], which exceeds its shape \[7, 6\]"),
    ):
        path.write_text(manifest.Manifest({**result.tensors, "up-weight": manifest.Entry(entry.shape, entry.dtype, shards)}, {}, result.files).text())
        with pytest.raises(CheckpointError, match=text):
            sessions.load(session, tmp_path / "c")


def test_a_checkpoint_replaced_during_a_load_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, session = training(2)
    sessions.save(session, tmp_path / "c")
    chosen = sessions._chosen

    def slow(*args: Any) -> Any:
        store.save(tmp_path / "c", values(session), {"other": 1}, replace=True)
        return chosen(*args)

    monkeypatch.setattr(sessions, "_chosen", slow)
    job(IDS)
    before = values(session)
    with pytest.raises(ReplacedError, match="was replaced"):
        sessions.load(session, tmp_path / "c")
    same(values(session), before)


# ---- asynchronous --------------------------------------------------------------------------------------------------------------------


class Gate(Files):
    """Files that block the sync of tensor files until the gate is opened."""

    opened: threading.Event

    def do(self, what: str, path: Path, change: Callable[[], T]) -> T:
        if what == "sync" and path.suffix == ".safetensors":
            assert self.opened.wait(20)
        return change()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Return the gate of the writers."""
    Gate.opened = threading.Event()
    files.use(Gate)
    yield Gate.opened
    Gate.opened.set()


@pytest.mark.parametrize("name", ["one", "TP2", "PP2"])
def test_training_continues_during_an_asynchronous_save(tmp_path: Path, gate: threading.Event, name: str) -> None:
    job, session = training(*LAYOUTS[name])
    job(IDS)
    before = values(session)
    saving = sessions.save(session, tmp_path / "c", asynchronous=True)
    for _ in range(3):
        job(IDS)  # writers wait at the gate
    assert not saving.done and not (tmp_path / "c").exists()
    gate.set()
    saving.wait()
    assert saving.done and saving.error is None
    same(dict(store.load(tmp_path / "c")), before)
    assert store.load(tmp_path / "c").extra["runs"] == {"train_job": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]


def test_one_save_at_a_time(tmp_path: Path, gate: threading.Event) -> None:
    """The second save waits for the first; the end of the session waits for the second."""
    _, session = training(2)
    first = sessions.save(session, tmp_path / "1", asynchronous=True)
    threading.Timer(0.05, gate.set).start()
    second = sessions.save(session, tmp_path / "2", asynchronous=True)
    assert first.done and (tmp_path / "1").exists()
    flow.clear_default_session()
    assert second.done and list(store.problems(tmp_path / "2")) == []


class Full(Files):
    """Files of a full disk on rank 1; with `dumb` there is no room for the reason either."""

    dumb = False

    def do(self, what: str, path: Path, change: Callable[[], T]) -> T:
        if self.rank == 1 and what == "create" and (path.suffix == ".safetensors" or self.dumb):
            raise OSError(28, "No space left on device", str(path))
        return change()


def test_errors_are_raised_by_wait_and_once_by_the_next_save(tmp_path: Path) -> None:
    job, session = training(3)
    text = r"checkpoint .*/1 could not be saved \(save at test_sessions.py:\d+\), and nothing was changed: rank 1: \[Errno 28\] No space"
    for ask in (lambda saving: saving.wait(), lambda _: sessions.save(session, tmp_path / "2"), lambda _: session.finish()):
        files.use(Full)
        saving = sessions.save(session, tmp_path / "1", asynchronous=True)
        files.use(Files)
        job(IDS)
        with pytest.raises(CheckpointError, match=text):
            ask(saving)
        assert saving.done and saving.error is not None and "No space" in str(saving.error)
        assert list(tmp_path.iterdir()) == [], "what was written is removed"
    sessions.save(session, tmp_path / "2").wait()
    assert list(store.problems(tmp_path / "2")) == []


def test_the_end_of_a_session_raises_errors_of_a_save(tmp_path: Path) -> None:
    _, session = training(2)
    files.use(Full)
    sessions.save(session, tmp_path / "1", asynchronous=True)
    with pytest.raises(CheckpointError, match="No space"):
        flow.clear_default_session()
    assert session.world is None


def test_a_full_disk_without_room_for_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Full, "dumb", True)
    files.use(Full)
    _, session = training(3)
    with pytest.raises(CheckpointError, match=r"could not be saved \(save at test_sessions.py:\d+\), and nothing was changed: rank 1: .*No space"):
        sessions.save(session, tmp_path / "c", limit=0.1)
    assert list(tmp_path.iterdir()) == []


def test_ranks_that_have_nothing_to_write_change_nothing(tmp_path: Path) -> None:
    """Rank 0 publishes without waiting for such ranks, so their changes would conflict with the rename."""
    changed = set()

    class RecordedFiles(Files):
        def do(self, what: str, path: Path, change: Callable[[], T]) -> T:
            changed.add(self.rank)
            return change()

    flow.config.cpu_device_num(3)

    @flow.global_function()
    def one_variable() -> flow.typing.Numpy:
        return flow.get_variable("w", (2,), initializer=flow.ones_initializer())

    one_variable()
    files.use(RecordedFiles)
    sessions.save(started_session(), tmp_path / "c")
    assert changed == {0}
    assert list(store.problems(tmp_path / "c")) == []


def test_a_rank_that_hangs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other ranks do not wait for it, its files are removed when it continues, and the next save works."""
    monkeypatch.setattr(sessions.ranks, "_POLL", 0.02)
    awake = threading.Event()

    class Hanging(Files):
        def do(self, what: str, path: Path, change: Callable[[], T]) -> T:
            if self.rank == 2 and what == "sync":
                assert awake.wait(20)
            return change()

    files.use(Hanging)
    _, session = training(3)
    saving = sessions.save(session, tmp_path / "c", asynchronous=True, limit=0.05)
    with pytest.raises(CheckpointError, match=r"nothing was changed: rank 2: the rank is still writing"):
        saving.wait()
    awake.set()
    files.use(Files)
    sessions.save(session, tmp_path / "c")
    assert list(store.problems(tmp_path / "c")) == []


def test_rank_0_names_the_ranks_that_did_not_finish_writing(tmp_path: Path) -> None:
    draft = Folder(tmp_path / "c", tmp_path)
    with pytest.raises(CheckpointError, match=r"ranks 1, 2 have written no new file for 0.05 s"):
        parts.gather(draft, [1, 2], 0.05)
    (tmp_path / parts.failed_name(2)).write_text("its reason")
    with pytest.raises(CheckpointError, match="rank 2: its reason"):
        parts.gather(draft, [1, 2], 0.05)


def test_too_little_memory_for_the_copies_fails_the_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, session = training(2)

    def numbers_of(state: Any, name: str, copied: bool) -> Any:
        if state.rank == 1:
            raise MemoryError("cannot allocate 9 GiB")
        return state.read(name)

    monkeypatch.setattr(sessions.ranks, "_array", numbers_of)
    saving = sessions.save(session, tmp_path / "c", asynchronous=True)
    with pytest.raises(CheckpointError, match="rank 1: MemoryError: cannot allocate 9 GiB"):
        saving.wait()


# ---- other ways in -------------------------------------------------------------------------------------------------------------------


def test_extra_is_checked_before_anything_is_written(tmp_path: Path) -> None:
    _, session = training(2)
    with pytest.raises(CheckpointError, match="change in a conversion to JSON and back"):
        sessions.save(session, tmp_path / "c", {"position": (1, 2)})
    sessions.save(session, tmp_path / "c", {"metrics": {"loss": math.nan}})
    assert math.isnan(sessions.load(session, tmp_path / "c")["metrics"]["loss"])
    with pytest.raises(CheckpointError, match="this path already exists"):
        sessions.save(session, tmp_path / "c")
    sessions.save(session, tmp_path / "c", {"step": 2}, replace=True)
    assert store.load(tmp_path / "c").extra["step"] == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]


def test_legacy_functions_write_the_same_checkpoints(tmp_path: Path) -> None:
    job, session = training(2)
    job(IDS)
    flow.train.CheckPoint().save(str(tmp_path / "a"))
    flow.checkpoint.save(str(tmp_path / "b"))
    flow.checkpoint.save(str(tmp_path / "c"), flow.get_all_variables())
    for name in "abc":
        same(dict(store.load(tmp_path / name)), values(session))
        assert store.load(tmp_path / name).extra["runs"] == {"train_job": 1}
    result = flow.checkpoint.get(str(tmp_path / "a"))["table"]
    assert (result.shape, result.dtype) == ((11, 6), flow.float32)
