"""The service, tested as an MPI library, a rank and an unauthenticated peer use it."""

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
    def test_answers(self, line: str, answer: str) -> None:
        assert list(Pmi(3).answer(1, line)) == [(1, answer)]

    def test_no_two_worlds_have_the_same_name(self) -> None:
        """MPICH names shared memory after it, so two worlds of one name on one machine would write over each other's."""
        one, other = Pmi(2), Pmi(2)
        names = [next(world.answer(rank, "cmd=get_my_kvsname"))[1] for world in (one, other) for rank in range(2)]
        assert names[0] == names[1] != names[2] == names[3] and len(names[0]) < 256

    def test_what_one_puts_another_gets(self) -> None:
        keys = Pmi(2)
        assert list(keys.answer(0, "cmd=put kvsname=jobflow key=bc[0] value=a=b c")) == [(0, "cmd=put_result rc=0 msg=success")]
        assert list(keys.answer(1, "cmd=get kvsname=jobflow key=bc[0]")) == [(1, "cmd=get_result rc=0 msg=success value=a=b c")]

    def test_a_barrier_lets_all_out_when_all_are_in_and_again(self) -> None:
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
    """What a rank says of itself; on a node of its own: the service must not send signals to the process that tests."""
    return {"rank": rank, "size": size, "pid": os.getpid(), "node": "far", "host": "there", "screen": str(rank), **more}


class Job:
    """A service, and ranks that are all this process."""

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
        """A connection that says who it is, and the answer; the service's proof must be right."""
        made, ours, text = self.call(), authentication.challenge(), json.dumps(who)
        made.say({"jobflow": authentication.VERSION, "challenge": ours})
        theirs = json.loads(made.hear())["challenge"]
        made.say({"about": text, "proof": authentication.signature(secret, authentication.RANK, ours, theirs, text)})
        found = json.loads(made.hear() or "{}")
        if "ticket" in found:
            assert found["proof"] == authentication.signature(secret, authentication.SERVICE, ours, theirs, str(found["ticket"]))
        return made, found

    def rank(self, rank: int, **more: Any) -> Caller:
        made, found = self.introduced(about(rank, self.size, **more), self.secret)
        self.tickets[rank] = found["ticket"]
        return made

    def library(self, rank: int) -> Caller:
        made = self.call()
        made.say(f"cmd=initack pmiid={self.tickets[rank]}")
        return made

    def close(self) -> None:
        for caller in self.callers:
            caller.close()
        self.parent.close()
        assert self.service.wait(5) == 0


@pytest.fixture
def job() -> Iterator[Job]:
    with closing(Job(2)) as made:
        yield made


def state(caller: Caller) -> dict[str, Any]:
    return json.loads(caller.hear())


class TestService:
    def test_it_says_who_is_missing_and_who_is_idle(self, job: Job) -> None:
        one = job.rank(1)
        assert state(one) == {"missing": [0], "idle": [1], "left": [], "nodes": None}
        zero = job.rank(0, node="near")
        assert state(zero) == state(one) == {"missing": [], "idle": [0, 1], "left": [], "nodes": [0, 1]}
        one.say({"need": True})
        assert state(zero)["idle"] == [0]

    def test_mpi_libraries_are_told_their_place(self, job: Job) -> None:
        job.rank(0), job.rank(1)
        library = job.library(1)
        assert [library.hear() for _ in range(4)] == ["cmd=initack", "cmd=set size=2", "cmd=set rank=1", "cmd=set debug=0"]
        library.say("cmd=get_appnum")
        assert library.hear() == "cmd=appnum appnum=0"

    @pytest.mark.parametrize("shown", ["0", "1", "-1", "x", ""])
    def test_a_library_that_has_no_ticket_is_not_heard(self, job: Job, shown: str) -> None:
        job.rank(0), job.rank(1)
        library = job.call()
        library.say(f"cmd=initack pmiid={shown}")
        assert "refused" in json.loads(library.hear()) and library.hear() == ""

    def test_a_ticket_works_once(self, job: Job) -> None:
        job.rank(0), job.rank(1)
        assert job.library(1).hear() == "cmd=initack"
        assert "refused" in json.loads(job.library(1).hear())

    def test_a_connection_that_ends_ends_the_others(self, job: Job) -> None:
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

    def test_who_leaves_in_order_is_not_missed(self, job: Job) -> None:
        zero, one = job.rank(0), job.rank(1)
        one.say({"leave": True})
        one.close()
        state(zero), state(zero)
        assert state(zero)["left"] == [1]
        zero.say({"leave": True})
        assert state(zero)["left"] == [0, 1]
        zero.close()
        assert job.service.wait(5) == 0

    def test_the_launcher_says_what_it_saw(self, job: Job) -> None:
        zero = job.rank(0)
        state(zero)
        job.parent.sendall(b'{"gone": 1, "code": 0}\n')
        assert state(zero) == {"missing": [], "idle": [0, 1], "left": [1], "nodes": None}
        job.parent.sendall(b'{"gone": 1, "code": 3}\n')
        assert state(zero)["end"] == "rank 1 ended with exit code 3"
        assert json.loads(job.parent.recv(1000)) == {"failed": 1}


SECRET = b"0123456789abcdef"
#: first lines of strangers
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
    b'{"jobflow": 2, "challenge": 7}\n',
    b'{"jobflow": 2}\n{"about": 1}\n',
    b'{"jobflow": 2, "challenge": "a"}\n{"about": "{}", "proof": "\\u00e9"}\n',
    b'{"jobflow": 2, "challenge": "\\ud800"}\n{"about": "{}", "proof": "a"}\n',
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


class TestStrangers:
    @pytest.mark.parametrize("noise", NOISE, ids=[repr(noise[:30]) for noise in NOISE])
    def test_noise_does_no_harm(self, job: Job, noise: bytes) -> None:
        """Neither before all ranks are there nor when they work."""
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
    def test_who_is_no_rank_becomes_none(self, job: Job, who: dict[str, Any]) -> None:
        zero = job.rank(0)
        assert state(zero)["missing"] == [1]
        job.introduced(who, b"")
        job.rank(1)
        assert state(zero)["missing"] == []

    @pytest.mark.parametrize("said", [{"need": 1}, {"failed": 7}, {"failed": ["x"]}, {"rank": 3}, [1], {"failed": "x" * 300_000}])
    def test_a_rank_that_says_something_else_is_lost(self, job: Job, said: Any) -> None:
        """It is no stranger, so its job ends; and the service tells the others."""
        zero, one = job.rank(0), job.rank(1)
        one.sock.sendall(json.dumps(said).encode() + b"\n")
        while "end" not in (end := state(zero)):
            pass
        assert end["rank"] == 1

    def test_a_wrong_secret_is_refused_late_and_the_job_goes_on(self) -> None:
        with closing(Job(2, SECRET)) as job:
            zero = job.rank(0)
            state(zero)
            for wrong in (b"", b"0123456789abcdeF"):
                began = time.monotonic()
                found = job.introduced(about(1), wrong)[1]
                assert "JOBFLOW_SECRET" in found["refused"] and SECRET.decode() not in found["refused"]
                assert time.monotonic() - began >= 0.9
            job.rank(1)
            assert state(zero)["missing"] == []

    def test_who_waits_does_not_keep_others_out(self) -> None:
        """Connections that prove nothing are bounded, and the oldest is closed for a new one."""
        with closing(Job(2, SECRET)) as job:
            strangers = [job.call() for _ in range(200)]
            zero = job.rank(0)
            job.rank(1)
            state(zero)
            assert state(zero)["missing"] == []
            assert strangers[0].hear() == "", "it has been closed"
            entries = os.listdir(f"/proc/{job.service.pid}/fd") if os.path.isdir("/proc/self/fd") else []
            assert len(entries) < 100

    def test_a_false_process_number_ends_nobody(self) -> None:
        """Not that of an innocent process, nor that of a group; and who says it does not become a rank."""
        innocent = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
        try:
            with closing(Job(2)) as job:
                zero = job.rank(0)
                for pid in (innocent.pid, -innocent.pid, 1):
                    found, _ = job.introduced(about(1, pid=pid, node=members.node_name()), b"")
                    told = found.hear()
                    assert pid < 0 or f"process {pid}" in json.loads(told)["refused"]
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

    def test_without_a_secret_it_listens_on_this_machine_only(self) -> None:
        with pytest.raises(JobError, match="export JOBFLOW_SECRET="):
            listen("203.0.113.7:0", b"")
        with pytest.raises(JobError, match="not an address of this machine"):
            listen("203.0.113.7:0", SECRET)
