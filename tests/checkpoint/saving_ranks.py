"""A program under mpiexec whose ranks save and load, fail together, and continue.  Arguments: directory, client, layout."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from layouts import IDS, LAYOUTS, begin, same, values, values_by_name

import jobflow as flow
from jobflow.core.errors import CheckpointError
from jobflow.engine.session import Session, started_session
from jobflow.storage import file_system as files
from jobflow.storage import sessions, store
from jobflow.storage.file_system import Files
from jobflow.storage.series import Series

T = TypeVar("T")


class Full(Files):
    """Files of a full disk on rank 1, for paths that request it."""

    def do(self, what: str, path: Path, change: Callable[[], T]) -> T:
        if self.rank == 1 and what == "write" and "step-00000013" in str(path):
            raise OSError(28, "No space left on device", str(path))
        return change()


def refused(session: Session, work: Callable[[], object], *texts: str) -> None:
    """Check that `work` raises the same error on all ranks, and changes nothing."""
    before = values(session)
    try:
        work()
    except CheckpointError as error:
        assert all(text in str(error) for text in texts), str(error)
    else:
        raise AssertionError(f"no error with {texts}")
    same(values(session), before)


def main(root: Path, client: str, layout: str) -> None:
    files.use(Full)
    flow.env.client(client)
    job = begin(*LAYOUTS[layout])
    job(IDS)
    session = started_session()
    sessions.load(session, root / "threads")
    expected = values_by_name(session)
    same(values(session), expected)

    series = Series(root / f"of-{layout}", keep_last=2)
    for step in (1, 2, 3):
        session.write(expected)
        saving = series.save(session, step, {"metrics": {"loss": 0.5}}, asynchronous=step != 2)
        job(IDS)
    saving.wait()
    assert saving.done and saving.error is None
    assert sessions.on_first(session, series.steps) == [2, 3]
    same(dict(store.load(series.path_of(3))), expected)
    sessions.load(session, series.path_of(2))
    same(values(session), expected)

    refused(session, lambda: series.save(session, 13), "step-00000013 could not be saved", "rank 1: [Errno 28] No space left on device")
    late = series.save(session, 13, asynchronous=True)
    refused(session, late.wait, "(save at saving_ranks.py:", "rank 1: [Errno 28]")
    refused(session, lambda: sessions.load(session, root / "nowhere"), "there is no such directory")
    refused(session, lambda: sessions.load(session, root / "damaged"), "no variable was changed: rank", 'tensor "up-weight" is damaged')
    job(IDS)
    series.save(session, 4)
    assert sessions.on_first(session, series.newest_good).step == 4
    print(f"{layout} done", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
