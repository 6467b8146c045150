"""What can be wrong where ranks meet, without any other process."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from jobflow.core.errors import JobError
from jobflow.runtime.world import rendezvous
from jobflow.runtime.world.environment import Launch

STARTED = Launch(1, 2, "WORLD_SIZE", "127.0.0.1:17789")


def pretended(monkeypatch: pytest.MonkeyPatch, vendor: str, initialized: bool, seen: dict[str, Any]) -> Any:
    """An MPI library, and a membership that is ready; `seen` gets the environment at its start."""
    mpi = SimpleNamespace(
        get_vendor=lambda: (vendor, (5, 0, 1)),
        Is_initialized=lambda: initialized,
        THREAD_SERIALIZED=2,
        Init_thread=lambda level: seen.update({name: os.environ[name] for name in os.environ if name.startswith("PMI_")}),
    )
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(rc=SimpleNamespace()))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", mpi)  # type: ignore[arg-type]
    return SimpleNamespace(started=STARTED, ticket=4711, need=lambda: seen.update(needed=True))


def test_another_mpi_is_told_to_use_mpiexec(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    with pytest.raises(JobError, match=r"mpi4py uses Open MPI 5.0.1, which only its own mpiexec can start; run \"mpiexec -n 2 python"):
        rendezvous.start_mpi(pretended(monkeypatch, "Open MPI", False, seen))
    assert seen == {}, "nobody waits for a rank that cannot come"


def test_an_mpi_that_runs_already(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(JobError, match="MPI was imported before jobflow started MPI"):
        rendezvous.start_mpi(pretended(monkeypatch, "MPICH", True, {}))


def test_variables_for_mpi_are_there_while_it_starts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setenv("PMI_FD", "3")
    monkeypatch.delenv("PMI_RANK", raising=False)
    monkeypatch.setattr(rendezvous, "_present", lambda started, ticket: ticket)
    rendezvous.start_mpi(pretended(monkeypatch, "MPICH", False, seen))
    assert seen == {"needed": True, "PMI_FD": "4711", "PMI_RANK": "1", "PMI_SIZE": "2"}
    assert os.environ["PMI_FD"] == "3" and "PMI_RANK" not in os.environ


def test_a_process_whose_variables_came_too_late() -> None:
    with pytest.raises(JobError, match="before `import jobflow`"):
        rendezvous.member()


@pytest.mark.parametrize(
    ("master", "text"),
    [
        ("no.such.invalid:1", "is not a name or address of a machine"),
        ("::g:1", "is not a name or address"),
        ("203.0.113.7:0", "is not an address of this"),
    ],
)
def test_addresses(master: str, text: str) -> None:
    with pytest.raises(JobError, match=text):
        rendezvous.listen(master, b"0123456789abcdef")


def test_it_listens_nowhere_else() -> None:
    with rendezvous.listen("localhost:0", b"") as found:
        assert found.getsockname()[0] == "127.0.0.1"
