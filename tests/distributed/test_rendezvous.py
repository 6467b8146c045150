"""Errors of the rendezvous, tested without other processes."""

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


def pretended(monkeypatch: pytest.MonkeyPatch, vendor: str, initialized: bool, observed: dict[str, Any]) -> Any:
    """Return a fake MPI library, and a ready membership; the first argument records the environment at MPI's start."""
    mpi = SimpleNamespace(
        get_vendor=lambda: (vendor, (5, 0, 1)),
        Is_initialized=lambda: initialized,
        THREAD_SERIALIZED=2,
        Init_thread=lambda level: observed.update({name: os.environ[name] for name in os.environ if name.startswith("PMI_")}),
    )
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(rc=SimpleNamespace()))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", mpi)  # type: ignore[arg-type]
    return SimpleNamespace(started=STARTED, ticket=4711, need=lambda: observed.update(needed=True), nodes=lambda: [0, 0])


def test_another_mpi_library_raises_an_error_that_names_mpiexec(monkeypatch: pytest.MonkeyPatch) -> None:
    observed: dict[str, Any] = {}
    with pytest.raises(JobError, match=r"mpi4py uses Open MPI 5.0.1, which only its own mpiexec can start; run \"mpiexec -n 2 python"):
        rendezvous.start_mpi(pretended(monkeypatch, "Open MPI", False, observed))
    assert observed == {}, "nobody waits for a rank that cannot come"


def test_an_initialized_mpi_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(JobError, match="MPI was imported before jobflow started MPI"):
        rendezvous.start_mpi(pretended(monkeypatch, "MPICH", True, {}))


def test_variables_for_mpi_exist_during_its_start_only(monkeypatch: pytest.MonkeyPatch) -> None:
    observed: dict[str, Any] = {}
    monkeypatch.setenv("PMI_FD", "3")
    monkeypatch.delenv("PMI_RANK", raising=False)
    monkeypatch.setattr(rendezvous, "_present", lambda started, ticket: ticket)
    rendezvous.start_mpi(pretended(monkeypatch, "MPICH", False, observed))
    assert observed == {"needed": True, "PMI_FD": "4711", "PMI_RANK": "1", "PMI_SIZE": "2"}
    assert os.environ["PMI_FD"] == "3" and "PMI_RANK" not in os.environ


def test_variables_set_after_the_import_raise() -> None:
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
def test_invalid_addresses_raise(master: str, text: str) -> None:
    with pytest.raises(JobError, match=text):
        rendezvous.listen(master, b"0123456789abcdef")


def test_the_listener_binds_one_address_only() -> None:
    with rendezvous.listen("localhost:0", b"") as result:
        assert result.getsockname()[0] == "127.0.0.1"
