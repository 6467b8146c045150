"""The PMI-1 service, spoken to as an MPI library and as a rank speak to it."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from jobflow.runtime.world import pmi
from jobflow.runtime.world.pmi import Pmi
from jobflow.runtime.world.rendezvous import listen, start_service


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
        self.sock = socket.create_connection(where, timeout=5)
        self.lines = self.sock.makefile("r")

    def say(self, text: str | dict[str, Any]) -> None:
        self.sock.sendall((text if isinstance(text, str) else json.dumps(text)).encode() + b"\n")

    def hear(self) -> str:
        return self.lines.readline().rstrip("\n")

    def close(self) -> None:
        self.lines.close()
        self.sock.close()


class Job:
    """A service, and ranks that are all this process."""

    def __init__(self, size: int) -> None:
        listener = listen("127.0.0.1:0")
        self.where = listener.getsockname()
        self.size = size
        self.service, self.parent = start_service(listener, size)
        self.callers: list[Caller] = []

    def call(self) -> Caller:
        self.callers.append(Caller(self.where))
        return self.callers[-1]

    def rank(self, rank: int, **more: Any) -> Caller:
        made = self.call()
        # a node of its own: the service must not send signals to the process that tests
        made.say({"rank": rank, "size": self.size, "pid": os.getpid(), "node": "far", "host": "there", "screen": str(rank), **more})
        assert made.hear() == pmi.GREETING
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
    found: dict[str, Any] = json.loads(caller.hear())
    return found


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
        library = job.call()
        library.say("cmd=initack pmiid=1")
        assert [library.hear() for _ in range(4)] == ["cmd=initack", "cmd=set size=2", "cmd=set rank=1", "cmd=set debug=0"]
        library.say("cmd=get_appnum")
        assert library.hear() == "cmd=appnum appnum=0"

    def test_a_library_of_no_rank_is_not_heard(self, job: Job) -> None:
        library = job.call()
        library.say("cmd=initack pmiid=1")
        assert library.hear() == ""

    def test_a_connection_that_ends_ends_the_others(self, job: Job) -> None:
        zero, one = job.rank(0), job.rank(1)
        one.close()
        state(zero), state(zero)
        end = state(zero)
        assert (end["rank"], end["show"]) == (1, True)
        assert "rank 1" in end["end"] and "died without a word" in end["end"]

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
        library = job.call()
        library.say("cmd=initack pmiid=1")
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

    @pytest.mark.parametrize(
        "noise",
        [b"GET / HTTP/1.1\r\n\r\n", b"\xff\xfe\n", b"{}\n", b'{"rank": 9, "size": 2, "node": 1, "pid": 1}\n', b'{"rank": 0, "size": 2}\n', b"[1]\n"],
    )
    def test_noise_does_no_harm(self, job: Job, noise: bytes) -> None:
        stranger = job.call()
        stranger.sock.sendall(noise)
        assert stranger.lines.read().rstrip() in ("", pmi.GREETING)
        assert state(job.rank(1))["missing"] == [0]
