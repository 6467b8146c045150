"""Checkpoints of ranks that are processes, and of programs that end during a save."""

from __future__ import annotations

from pathlib import Path

import pytest
from layouts import same, session_under, values, values_by_name
from processes import run

from jobflow.storage import sessions, store

HERE = Path(__file__).parent


@pytest.mark.mpi
@pytest.mark.parametrize(("ranks", "client", "layout"), [(2, "multi", "TP2"), (4, "single", "2x2")])
def test_processes(tmp_path: Path, ranks: int, client: str, layout: str) -> None:
    """Processes load checkpoints of threads, and threads those of processes."""
    session = session_under("ZeRO-3")
    expected = values_by_name(session)
    session.write(expected)
    sessions.save(session, tmp_path / "threads")
    sessions.save(session, tmp_path / "damaged")
    shard = store.load(tmp_path / "damaged").stored["up-weight"].shards[-1]  # type: ignore[attr-defined]
    content = bytearray(shard.file_path.read_bytes())
    content[shard.info.start] ^= 1
    shard.file_path.write_bytes(content)
    ended = run(HERE / "saving_ranks.py", tmp_path, client, layout, ranks=ranks)
    assert (ended.code, ended.out) == (0, f"{layout} done\n" * (ranks if client == "multi" else 1)), ended.err
    steps = tmp_path / f"of-{layout}"
    assert sorted(entry.name for entry in steps.iterdir()) == ["step-00000003", "step-00000004"]
    session.write({name: value * 0 for name, value in expected.items()})
    sessions.load(session, steps / "step-00000003")
    same(values(session), expected)


def test_the_program_ends_after_its_last_checkpoint(tmp_path: Path) -> None:
    ended = run(HERE / "ending_saves.py", tmp_path, "good")
    assert (ended.code, ended.err) == (0, "")
    assert [entry.name for entry in tmp_path.iterdir()] == ["last"]
    assert list(store.problems(tmp_path / "last")) == []


def test_a_failed_last_checkpoint_sets_the_exit_code(tmp_path: Path) -> None:
    ended = run(HERE / "ending_saves.py", tmp_path, "full")
    assert ended.code == 1
    assert "last could not be saved (save at ending_saves.py:" in ended.err and "rank 1: [Errno 28] No space" in ended.err
    assert "Traceback" not in ended.err
    assert list(tmp_path.iterdir()) == []
