"""The service, as used by an MPI library, a rank and an unauthenticated peer."""

from __future__ import annotations

import json
import os
import pathlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

from jobflow.core.errors import JobError
from jobflow.runtime.world.rendezvous import listen, start_service
from jobflow.runtime.world.service import authentication, members
from jobflow.runtime.world.service.pmi import Pmi


class TestPmi:
    @pytest.mark.parametrize(
        ("line", "answer"),
        [
            ("cmd=init pmi_version=1 pmi_subversion=1", "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"),
            ("cmd=get_maxes", "cmd=maxes kvsname_max=256 keylen_max=256 vallen_max=1024"),
            ("cmd=get_appnum", "cmd=appnum appnum=0"),
            ("cmd=get_universe_size", "cmd=universe_size size=3"),
            ("cmd=get kvsname=jobflow key=nothing", "cmd=get_result rc=-1 msg=key_not_found value=unknown"),
            ("cmd=publish_name service=a port=b", "cmd=publish_name_result rc=-1 msg=not_supported"),
            ("cmd=finalize", "cmd=finalize_ack"),
        ],
    )
    def test_commands_of_pmi_1_are_answered(self, line: str, answer: str) -> None:
        assert list(Pmi(3).answer(1, line)) == [(1, answer)]

    def test_no_two_worlds_have_the_same_name(self) -> None:
        """MPICH names shared memory after the world, so two worlds with one name would overwrite each other's memory."""
        one, other = Pmi(2), Pmi(2)
        names = [next(world.answer(rank, "cmd=get_my_kvsname"))[1] for world in (one, other) for rank in range(2)]
        assert names[0] == names[1] != names[2] == names[3] and len(names[0]) < 256

    def test_a_value_put_by_one_rank_is_readable_by_another(self) -> None:
        keys = Pmi(2)
        assert list(keys.answer(0, "cmd=put kvsname=jobflow key=bc[0] value=a=b c")) == [(0, "cmd=put_result rc=0 msg=success")]
        assert list(keys.answer(1, "cmd=get kvsname=jobflow key=bc[0]")) == [(1, "cmd=get_result rc=0 msg=success value=a=b c")]

    def test_a_barrier_can_be_repeated(self) -> None:
        keys = Pmi(3)
        for _ in range(2):
            assert [list(keys.answer(rank, "cmd=barrier_in")) for rank in (2, 0)] == [[], []]
            assert sorted(keys.answer(1, "cmd=barrier_in")) == [(rank, "cmd=barrier_out") for rank in range(3)]


class Caller:
    """A connection to the service."""

    def __init__(self, where: tuple[str, int]) -> None:
        self.sock = socket.create_connection(where, timeout=20)
        self.lines = self.sock.makefile("r")

    def say(self, text: str | dict[str, Any]) -> None:
        self.sock.sendall((text if isinstance(text, str) else json.dumps(text)).encode() + b"\n")

    def hear(self) -> str:
        return self.lines.readline().rstrip("\n")

    def close(self) -> None:
        self.lines.close()
        self.sock.close()


def about(rank: int, size: int = 2, **more: Any) -> dict[str, Any]:
    """Return the description of a rank on its own node, so that the service sends no signals to the test process."""
    return {"rank": rank, "size": size, "pid": os.getpid(), "node": "far", "host": "there", "memory": "m", "screen": str(rank), **more}


class Job:
    """A service, with this process as all of its ranks."""

    def __init__(self, size: int, secret: bytes = b"") -> None:
        listener = listen("127.0.0.1:0", secret)
        self.where = listener.getsockname()
        self.size, self.secret = size, secret
        self.service, self.parent = start_service(listener, size, secret)
        self.callers: list[Caller] = []
        self.tickets: dict[int, int] = {}

    def call(self) -> Caller:
        self.callers.append(Caller(self.where))
        return self.callers[-1]

    def introduced(self, who: dict[str, Any], secret: bytes) -> tuple[Caller, dict[str, Any]]:
        """Return an authenticated connection and the answer, whose proof is checked."""
        created, ours, text = self.call(), authentication.challenge(), json.dumps(who)
        created.say({"jobflow": authentication.VERSION, "challenge": ours})
        theirs = json.loads(created.hear())["challenge"]
        created.say({"about": text, "proof": authentication.signature(secret, authentication.RANK, ours, theirs, text)})
        result = json.loads(created.hear() or "{}")
        if "ticket" in result:
            assert result["proof"] == authentication.signature(secret, authentication.SERVICE, ours, theirs, str(result["ticket"]))
        return created, result

    def rank(self, rank: int, **more: Any) -> Caller:
        created, result = self.introduced(about(rank, self.size, **more), self.secret)
        self.tickets[rank] = result["ticket"]
        return created

    def library(self, rank: int) -> Caller:
        created = self.call()
        created.say(f"cmd=initack pmiid={self.tickets[rank]}")
        return created

    def close(self) -> None:
        for caller in self.callers:
            caller.close()
        self.parent.close()
        assert self.service.wait(5) == 0


@pytest.fixture
def job() -> Iterator[Job]:
    with closing(Job(2)) as created:
        yield created


def state(caller: Caller) -> dict[str, Any]:
    return json.loads(caller.hear())


@pytest.mark.parametrize("last", ["rank", "library"])
def test_the_service_ends_with_the_ranks_of_other_machines(last: str) -> None:
    """The two connections of a rank may end in either order."""
    job = Job(2)
    ranks = [job.rank(rank) for rank in range(2)]
    libraries = [job.library(rank) for rank in range(2)]
    for rank in range(2):
        ranks[rank].say({"leave": True})
        libraries[rank].say("cmd=finalize")
        while libraries[rank].hear() != "cmd=finalize_ack":
            pass
        for one in (libraries[rank], ranks[rank]) if last == "rank" else (ranks[rank], libraries[rank]):
            one.close()
            time.sleep(0.1)
    job.parent.close()
    assert job.service.wait(5) == 0


class TestService:
    def test_the_state_lists_missing_and_idle_ranks(self, job: Job) -> None:
        one = job.rank(1)
        assert state(one) == {"missing": [0], "idle": [1], "left": [], "nodes": None}
        zero = job.rank(0, node="near")
        assert state(zero) == state(one) == {"missing": [], "idle": [0, 1], "left": [], "nodes": [0, 1]}
        one.say({"need": True})
        assert state(zero)["idle"] == [0]

    def test_mpi_libraries_receive_their_rank(self, job: Job) -> None:
        job.rank(0), job.rank(1)
        library = job.library(1)
        assert [library.hear() for _ in range(4)] == ["cmd=initack", "cmd=set size=2", "cmd=set rank=1", "cmd=set debug=0"]
        library.say("cmd=get_appnum")
        assert library.hear() == "cmd=appnum appnum=0"

    @pytest.mark.parametrize("shown", ["0", "1", "-1", "x", ""])
    def test_a_library_without_a_ticket_is_disconnected(self, job: Job, shown: str) -> None:
        job.rank(0), job.rank(1)
        library = job.call()
        library.say(f"cmd=initack pmiid={shown}")
        assert "refused" in json.loads(library.hear()) and library.hear() == ""

    def test_a_ticket_works_once(self, job: Job) -> None:
        job.rank(0), job.rank(1)
        assert job.library(1).hear() == "cmd=initack"
        assert "refused" in json.loads(job.library(1).hear())

    def test_the_end_of_one_connection_ends_all_ranks(self, job: Job) -> None:
        zero, one = job.rank(0), job.rank(1)
        one.close()
        state(zero), state(zero)
        end = state(zero)
        assert (end["rank"], end["show"]) == (1, True)
        assert "rank 1" in end["end"] and "ended without a report" in end["end"]

    def test_one_rank_of_each_screen_shows_an_error(self) -> None:
        with closing(Job(4)) as job:
            ranks = [job.rank(rank, screen=str(rank // 2)) for rank in range(4)]
            ranks[0].say({"failed": "no luck"})
            shown = []
            for rank in ranks[1:]:
                while "end" not in (end := state(rank)):
                    pass
                shown.append((end["end"], end["show"]))
            assert shown == [("no luck", False), ("no luck", True), ("no luck", False)]

    def test_an_abort_of_mpi_ends_all(self, job: Job) -> None:
        zero, _ = job.rank(0), job.rank(1)
        library = job.library(1)
        library.say("cmd=abort exitcode=7")
        while "end" not in (end := state(zero)):
            pass
        assert "MPI aborted, with exit code 7" in end["end"]

    def test_an_orderly_exit_does_not_fail_the_job(self, job: Job) -> None:
        zero, one = job.rank(0), job.rank(1)
        one.say({"leave": True})
        one.close()
        state(zero), state(zero)
        assert state(zero)["left"] == [1]
        zero.say({"leave": True})
        assert state(zero)["left"] == [0, 1]
        zero.close()
        assert job.service.wait(5) == 0

    def test_the_launcher_reports_exit_codes(self, job: Job) -> None:
        zero = job.rank(0)
        state(zero)
        job.parent.sendall(b'{"gone": 1, "code": 0}\n')
        assert state(zero) == {"missing": [], "idle": [0, 1], "left": [1], "nodes": None}
        job.parent.sendall(b'{"gone": 1, "code": 3}\n')
        assert state(zero)["end"] == "rank 1 ended with exit code 3"
        assert json.loads(job.parent.recv(1000)) == {"failed": 1}


SECRET = b"0123456789abcdef"
#: first lines of peers
NOISE = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"\xff\xfe\n",
    b"{}\n",
    b"[1]\n",
    b"null\n",
    b"[" * 200_000 + b"\n",
    b'{"a":' * 600 + b"\n",
    b"x" * 300_000,
    b'{"jobflow": 1e400, "challenge": "a"}\n',
    b'{"jobflow": 3, "challenge": 7}\n',
    b'{"jobflow": 3}\n{"about": 1}\n',
    b'{"jobflow": 3, "challenge": "a"}\n{"about": "{}", "proof": "\\u00e9"}\n',
    b'{"jobflow": 3, "challenge": "\\ud800"}\n{"about": "{}", "proof": "a"}\n',
    b"cmd=put key=a value=b\n",
    b"cmd=initack pmiid=" + b"9" * 4000 + b"\n",
    b"cmd=\n",
    b'{"rank": 1e400, "size": 2, "node": "far", "pid": 1}\n',
]
#: what somebody who knows the secret may say of itself, and does not become a rank by
NOT_RANKS: list[dict[str, Any]] = [
    {},
    {"rank": 1},
    about(9),
    about(-1),
    about(1 << 80),
    about(1, host="x" * 5000),
    about(1, host="a\x1b[2J"),
    about(1, node=7),
    about(1, pid=0),
    about(1, pid=-1),
    about(1, pid="1"),
    about(1, pid=True),
    about(1, pid=1e9),
    about(1, other=1),
    about(1, second="x"),
]


class TestUnauthenticatedPeers:
    @pytest.mark.parametrize("noise", NOISE, ids=[repr(noise[:30]) for noise in NOISE])
    def test_invalid_bytes_do_not_disturb_the_job(self, job: Job, noise: bytes) -> None:
        """Send invalid bytes before all ranks have joined and while they work."""
        zero = job.rank(0)
        assert state(zero)["missing"] == [1]
        for _ in range(2):
            stranger = job.call()
            with suppress(OSError):  # it may be closed before all has been sent
                stranger.sock.sendall(noise)
                stranger.sock.shutdown(socket.SHUT_WR)
                assert len(stranger.lines.read()) < 500
            if 1 not in job.tickets:
                job.rank(1)
                assert state(zero)["missing"] == []
        zero.say({"need": True})
        assert state(zero)["idle"] == [1]

    @pytest.mark.parametrize("who", NOT_RANKS, ids=range(len(NOT_RANKS)))
    def test_a_peer_without_authentication_does_not_join(self, job: Job, who: dict[str, Any]) -> None:
        zero = job.rank(0)
        assert state(zero)["missing"] == [1]
        job.introduced(who, b"")
        job.rank(1)
        assert state(zero)["missing"] == []

    @pytest.mark.parametrize("message", [{"need": 1}, {"failed": 7}, {"failed": ["x"]}, {"rank": 3}, [1], {"failed": "x" * 300_000}])
    def test_a_rank_that_violates_the_protocol_ends_the_job(self, job: Job, message: Any) -> None:
        """An authenticated rank ends its job, and the service reports it to the others."""
        zero, one = job.rank(0), job.rank(1)
        one.sock.sendall(json.dumps(message).encode() + b"\n")
        while "end" not in (end := state(zero)):
            pass
        assert end["rank"] == 1

    def test_a_wrong_secret_is_rejected_after_a_delay_and_the_job_continues(self) -> None:
        with closing(Job(2, SECRET)) as job:
            zero = job.rank(0)
            state(zero)
            for wrong in (b"", b"0123456789abcdeF"):
                began = time.monotonic()
                result = job.introduced(about(1), wrong)[1]
                assert "JOBFLOW_SECRET" in result["refused"] and SECRET.decode() not in result["refused"]
                assert time.monotonic() - began >= 0.9
            job.rank(1)
            assert state(zero)["missing"] == []

    def test_waiting_peers_do_not_block_ranks(self) -> None:
        """The number of unauthenticated connections is limited, and a new one closes the oldest."""
        with closing(Job(2, SECRET)) as job:
            peers = [job.call() for _ in range(200)]
            zero = job.rank(0)
            job.rank(1)
            state(zero)
            assert state(zero)["missing"] == []
            assert peers[0].hear() == "", "it has been closed"
            entries = os.listdir(f"/proc/{job.service.pid}/fd") if os.path.isdir("/proc/self/fd") else []
            assert len(entries) < 100

    def test_a_false_process_id_ends_no_process(self) -> None:
        """A peer with the id of another process or a group does not join, and that process continues."""
        innocent = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
        try:
            with closing(Job(2)) as job:
                zero = job.rank(0)
                for pid in (innocent.pid, -innocent.pid, 1):
                    result, _ = job.introduced(about(1, pid=pid, node=members.node_name()), b"")
                    output = result.hear()
                    assert pid < 0 or f"process {pid}" in json.loads(output)["refused"]
                state(zero)
                zero.say({"failed": "no luck"})
                assert job.service.wait(5) == 0, "it has come to where it sends signals"
            assert innocent.poll() is None
        finally:
            innocent.kill()
            innocent.wait()

    def test_the_secret_is_on_no_command_line(self) -> None:
        with closing(Job(2, SECRET)) as job:
            assert SECRET not in pathlib.Path(f"/proc/{job.service.pid}/cmdline").read_bytes()

    def test_without_a_secret_the_service_accepts_this_machine_only(self) -> None:
        with pytest.raises(JobError, match="export JOBFLOW_SECRET="):
            listen("203.0.113.7:0", b"")
        with pytest.raises(JobError, match="not an address of this machine"):
            listen("203.0.113.7:0", SECRET)
