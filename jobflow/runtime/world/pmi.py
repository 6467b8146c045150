"""The service at MASTER_ADDR:MASTER_PORT: it brings ranks that no mpiexec started into one MPI world, and ends them together.

A program of its own, `python pmi.py SIZE LISTENER`: MPI's start holds the interpreter lock of a rank, so a thread of rank 0 could
not answer.  It imports nothing of jobflow (and so starts at once), speaks to two kinds of clients over one port, and is told
apart by their first line.

*MPI libraries* speak the PMI-1 wire protocol, the one of MPICH's `simple` PMI client (src/pmi in its sources; Hydra's and
gforker's mpiexec speak it too): lines `cmd=NAME key=value ...`.

    cmd=initack pmiid=R        cmd=initack, then cmd=set size=N, cmd=set rank=R, cmd=set debug=0: only where PMI_PORT is used
    cmd=init pmi_version=1     cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0
    cmd=get_maxes              cmd=maxes kvsname_max=.. keylen_max=.. vallen_max=..
    cmd=get_appnum             cmd=appnum appnum=0
    cmd=get_universe_size      cmd=universe_size size=N
    cmd=get_my_kvsname         cmd=my_kvsname kvsname=NAME
    cmd=put key=K value=V      cmd=put_result rc=0 msg=success
    cmd=get key=K              cmd=get_result rc=0 msg=success value=V, or rc=-1 msg=key_not_found
    cmd=barrier_in             cmd=barrier_out to all, when all are in
    cmd=finalize               cmd=finalize_ack
    cmd=abort exitcode=C       all ranks end

*Ranks* keep a connection for as long as they live, and send lines of JSON (see rendezvous.py):

    {"rank": .., "size": .., "pid": .., "node": .., "host": .., "screen": ..}     first, who it is
    {"need": true}     it is about to start MPI          {"leave": true}     its script has ended
    {"failed": text}   it ends by an error

and are sent {"missing": ranks, "idle": ranks, "left": ranks, "nodes": ..} whenever that changes, {"refused": text} if the ranks'
variables contradict each other, {"end": text, "rank": .., "show": ..} when a rank has failed.  A rank whose connection closes, or
whose process ends, before it said that it leaves has failed.  Those that do not end when told to are ended by signals, if they
are on this node.  The third connection, standard input, is a socket to the process that started the service; when it closes the
ranks have nobody who waits for them, and end.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

#: what the service says first to a rank; another program at the port does not
GREETING = "jobflow rendezvous 1"
#: bytes; a line that is longer is no line of ours
LONGEST = 1 << 20
#: seconds after a failure at which ranks of this node that still live get a signal, and after which the service ends itself
ENDS = ((0.3, signal.SIGTERM), (0.8, signal.SIGKILL), (1.2, None))
MAXES = "kvsname_max=256 keylen_max=256 vallen_max=1024"


def node_name() -> str:
    """Where a process number means a process: one running system, and one name space of processes in it."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot:
            return f"{boot.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def words_of(line: str) -> dict[str, str]:
    """`cmd=put key=a value=b c` as a dictionary; a value, which comes last, may have spaces."""
    head, found, value = line.partition(" value=")
    words = dict(word.split("=", 1) for word in head.split() if "=" in word)
    return {**words, "value": value} if found else words


class Pmi:
    """The keys and barriers of PMI-1, without any connections."""

    def __init__(self, size: int) -> None:
        self.size = size
        #: no other world on this machine may have the same: MPICH names its shared memory after it
        self.name = f"jobflow-{os.urandom(16).hex()}"
        self.values: dict[str, str] = {}
        self._inside: list[int] = []

    def answer(self, rank: int, line: str) -> Iterator[tuple[int, str]]:
        """What to send to which rank when `rank` has sent `line`."""
        words = words_of(line)
        command = words.get("cmd", words.get("mcmd", ""))
        simple = {
            "init": "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
            "get_maxes": f"cmd=maxes {MAXES}",
            "get_appnum": "cmd=appnum appnum=0",
            "get_universe_size": f"cmd=universe_size size={self.size}",
            "get_my_kvsname": f"cmd=my_kvsname kvsname={self.name}",
            "finalize": "cmd=finalize_ack",
        }
        if command == "barrier_in":
            yield from self._barrier(rank)
        elif command in simple:
            yield rank, simple[command]
        elif command == "put":
            self.values[words["key"]] = words["value"]
            yield rank, "cmd=put_result rc=0 msg=success"
        elif command == "get":
            value = self.values.get(words["key"])
            yield rank, "cmd=get_result rc=-1 msg=key_not_found value=unknown" if value is None else f"cmd=get_result rc=0 msg=success value={value}"
        elif command:  # names for other jobs, spawning
            yield rank, f"cmd={command}_result rc=-1 msg=not_supported"

    def _barrier(self, rank: int) -> Iterator[tuple[int, str]]:
        self._inside.append(rank)
        if len(self._inside) == self.size:
            inside, self._inside = self._inside, []
            yield from ((other, "cmd=barrier_out") for other in inside)


@dataclass(eq=False)
class Line:
    """A connection, and what has come and is to go over it."""

    sock: socket.socket
    heard: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    #: whose it is, once that is known: of a rank, or of its MPI library
    member: Member | None = None
    mpi: bool = False

    def lines(self) -> Iterator[str]:
        """The lines that have come, read without waiting; EOFError at the end of the connection."""
        with suppress(BlockingIOError):
            data = self.sock.recv(1 << 16)
            self.heard += data
            if not data:
                raise EOFError
        while b"\n" in self.heard:
            line, _, self.heard = self.heard.partition(b"\n")
            yield line.decode(errors="replace").rstrip("\r")
        if len(self.heard) > LONGEST:
            raise EOFError

    def flush(self) -> None:
        with suppress(BlockingIOError):
            while self.unsent:
                del self.unsent[: self.sock.send(self.unsent)]


@dataclass(eq=False)
class Member:
    """A rank that has come."""

    rank: int
    about: dict[str, Any]
    line: Line
    watch: int | None = None
    pmi: Line | None = None
    needs: bool = False
    left: bool = False
    #: its process has ended, or nothing more is heard of it
    gone: bool = False
    finalized: bool = False

    def __str__(self) -> str:
        return f"pid {self.about.get('pid')} on {self.about.get('host')}"


class Service:
    """All connections, in one thread; `parent` is the process that started it."""

    def __init__(self, size: int, listener: socket.socket, parent: socket.socket) -> None:
        self.size = size
        self.pmi = Pmi(size)
        self.members: dict[int, Member] = {}
        #: ranks that ended without having come: the launcher saw their end
        self.absent: set[int] = set()
        self._selector = selectors.DefaultSelector()
        self._listener: socket.socket | None = listener
        self._parent: Line | None = Line(parent)
        self._node = node_name()
        self._ends: list[tuple[float, int | None]] = []
        self._over = False
        self._refusal = ""
        self._register(listener, self._accept)
        self._register(parent, lambda: self._from_parent())
        self._open: set[Line] = {self._parent}

    def run(self) -> None:
        """Until the ranks have ended."""
        while not (self._over or self._finished()):
            for key, _ in self._selector.select(self._patience()):
                # an earlier event of this round may have closed what this one is about
                if self._selector.get_map().get(key.fd) is key:
                    key.data()
            self._end_slow_ones()
        self._flush_all()

    def _finished(self) -> bool:
        alive = any(not member.gone for member in self.members.values())
        return not alive and (self._parent is None or bool(self._ends) or len(self.members) + len(self.absent) == self.size)

    def _patience(self) -> float | None:
        waits = [0.05] if any(line.unsent for line in self._open) else []
        return min([*waits, *(max(0.0, when - time.monotonic()) for when, _ in self._ends)], default=None)

    # ---------------------------------------------------------------- connections

    def _register(self, file: Any, act: Callable[[], None]) -> None:
        self._selector.register(file, selectors.EVENT_READ, act)

    def _accept(self) -> None:
        assert self._listener is not None
        with suppress(OSError):
            sock, _ = self._listener.accept()
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line = Line(sock)
            self._open.add(line)
            self._register(sock, lambda: self._from(line))

    def _close(self, line: Line | None) -> None:
        if line is not None and line in self._open:
            self._open.discard(line)
            self._selector.unregister(line.sock)
            with suppress(OSError):
                line.flush()
            line.sock.close()

    def _send(self, line: Line | None, text: str | dict[str, Any]) -> None:
        if line is not None and line in self._open:
            line.unsent += (text if isinstance(text, str) else json.dumps(text)).encode() + b"\n"
            with suppress(OSError):  # who does not listen any more is noticed when its connection is read
                line.flush()

    def _flush_all(self) -> None:
        """What is still to be sent, to whoever takes it at once; the end of this process closes the rest."""
        for line in list(self._open):
            self._close(line)

    def _from(self, line: Line) -> None:
        try:
            for text in line.lines():
                self._hear(line, text)
        except (EOFError, OSError, ValueError, KeyError, TypeError):  # whoever does not speak as agreed is not listened to
            self._close(line)
            if line.member is not None and not self._expected(line, line.member):
                self._lost(line.member)

    def _expected(self, line: Line, member: Member) -> bool:
        """May this connection of a rank end before the rank does?  At an orderly end MPI's is the last."""
        return member.finalized if line.mpi else member.left and member.pmi in self._open

    def _hear(self, line: Line, text: str) -> None:
        if line.mpi:
            self._from_mpi(line, text)
        elif line.member is not None:
            self._from_rank(line.member, json.loads(text))
        elif text.startswith("cmd=initack "):
            self._mpi_comes(line, self.members[int(words_of(text)["pmiid"])])
        else:
            self._rank_comes(line, json.loads(text))

    def _from_parent(self) -> None:
        parent = self._parent
        assert parent is not None
        try:
            for text in parent.lines():
                said = json.loads(text)
                self._absent(int(said["gone"]), int(said["code"]))
        except (EOFError, OSError):
            self._close(parent)
            self._parent = None
            self._stop_listening()
            if any(not (member.left or member.gone) for member in self.members.values()):
                self._fail(-1, "the process that started the ranks has died")

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    # ---------------------------------------------------------------- MPI libraries

    def _mpi_comes(self, line: Line, member: Member) -> None:
        if member.pmi is not None:
            raise ValueError
        line.member, line.mpi, member.pmi = member, True, line
        for answer in ("cmd=initack", f"cmd=set size={self.size}", f"cmd=set rank={member.rank}", "cmd=set debug=0"):
            self._send(line, answer)

    def _from_mpi(self, line: Line, text: str) -> None:
        assert line.member is not None
        if text.startswith("cmd=abort"):
            self._fail(
                line.member.rank, f"rank {line.member.rank} ({line.member}): MPI aborted, with exit code {words_of(text).get('exitcode', '?')}"
            )
        for rank, answer in self.pmi.answer(line.member.rank, text):
            self._send(self.members[rank].pmi, answer)
        line.member.finalized |= text.startswith("cmd=finalize")

    # ---------------------------------------------------------------- ranks

    def _rank_comes(self, line: Line, about: dict[str, Any]) -> None:
        member = Member(int(about["rank"]), about, line)
        node, pid = str(about["node"]), int(about["pid"])
        self._send(line, GREETING)
        wrong = self._refusal or self._contradiction(member)
        if wrong:
            self._refuse(line, wrong)
            return
        line.member = self.members[member.rank] = member
        if node == self._node and hasattr(os, "pidfd_open"):
            with suppress(OSError):  # it may have ended already; then its connection closes
                member.watch = os.pidfd_open(pid)
                self._register(member.watch, lambda: self._lost(member))  # a child of it may keep its connections open
        self._tell()

    def _contradiction(self, new: Member) -> str:
        old = self.members.get(new.rank)
        if new.about["size"] != self.size:
            first = f" ({self.members[0]})" if 0 in self.members else ""
            sizes = f"RANK=0{first} has WORLD_SIZE={self.size}, RANK={new.rank} ({new}) has WORLD_SIZE={new.about['size']}"
            return f"{sizes}: give every rank the same WORLD_SIZE"
        if new.rank not in range(self.size):
            raise ValueError
        if new.about.get("second"):
            return f"two processes have RANK=0: {old or 'the one that was the first'}, and {new}; give each process a RANK of its own"
        if old is None:
            return f"RANK={new.rank} ({new}) comes after that rank had ended: start all ranks anew" if new.rank in self.absent else ""
        if old.left or old.gone:
            return f"RANK={new.rank} ({new}) comes after that rank ({old}) had ended: start all ranks anew"
        return f"two processes have RANK={new.rank}: {old}, and {new}; give each process a RANK of its own, 0 to {self.size - 1}"

    def _refuse(self, line: Line, text: str) -> None:
        """Nobody knows which of the two is wrong, so nobody starts; but who comes too late does not disturb a job that runs."""
        self._send(line, {"refused": text})
        self._close(line)
        if len(self.members) < self.size:
            self._refusal = text  # for those who come later, until the process that started this one has ended too
            for member in self.members.values():
                self._send(member.line, {"refused": text})
                self._forget(member)

    def _from_rank(self, member: Member, said: dict[str, Any]) -> None:
        if "failed" in said:
            self._fail(member.rank, str(said["failed"]))
        member.needs |= "need" in said
        member.left |= "leave" in said
        self._tell()

    def _tell(self) -> None:
        """Tell everybody who is here."""
        members = self.members
        complete = len(members) == self.size
        nodes = list(dict.fromkeys(members[rank].about["node"] for rank in sorted(members)))
        state = {
            "missing": [rank for rank in range(self.size) if rank not in members and rank not in self.absent],
            "idle": sorted({rank for rank, member in members.items() if not member.needs} | self.absent),
            "left": sorted({rank for rank, member in members.items() if member.left} | self.absent),
            "nodes": [nodes.index(members[rank].about["node"]) for rank in range(self.size)] if complete else None,
        }
        for member in members.values():
            self._send(member.line, state)

    def _absent(self, rank: int, code: int) -> None:
        """The launcher saw the end of a rank's process; most have said so themselves."""
        if code != 0:
            self._fail(rank, f"rank {rank} ended with exit code {code}" if code > 0 else f"rank {rank} was ended by signal {-code}")
        if rank not in self.members:
            self.absent.add(rank)
            self._tell()

    def _lost(self, member: Member) -> None:
        """Its connection has closed or its process has ended."""
        if member.gone:
            return
        self._forget(member)
        if not member.left or not (member.pmi is None or member.finalized):
            self._fail(member.rank, f"rank {member.rank} ({member}) died without a word: it was killed, or called os._exit")

    def _forget(self, member: Member) -> None:
        member.gone = True
        if member.watch is not None:
            self._selector.unregister(member.watch)
            os.close(member.watch)
        self._close(member.line)
        self._close(member.pmi)

    # ---------------------------------------------------------------- ends

    def _fail(self, rank: int, text: str) -> None:
        """The first failure ends all ranks; one rank of every screen shows it, except where it has been shown.  `rank` -1 is nobody."""
        if self._ends:
            return
        now = time.monotonic()
        self._ends = [(now + after, number) for after, number in ENDS]
        self._send(self._parent, {"failed": rank})  # before anybody ends because of it, so that it is known who was the first
        seen = {self.members[rank].about.get("screen")} if rank in self.members else set()
        for member in self.members.values():
            screen = member.about.get("screen")
            if member.rank != rank:
                self._send(member.line, {"end": text, "rank": rank, "show": screen not in seen})
                seen.add(screen)
        self._stop_listening()

    def _end_slow_ones(self) -> None:
        while self._ends and self._ends[0][0] <= time.monotonic():
            _, number = self._ends.pop(0)
            if number is None:
                self._over = True
            else:
                for member in self.members.values():
                    self._signal(member, number)

    def _signal(self, member: Member, number: int) -> None:
        if member.gone or member.about["node"] != self._node:
            return
        with suppress(OSError):
            if member.watch is not None:
                signal.pidfd_send_signal(member.watch, number)
            else:
                os.kill(int(member.about["pid"]), number)


def main() -> None:
    """`pmi.py SIZE LISTENER`: the number of ranks, and the file number of a socket that listens."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the ranks
    listener = socket.socket(fileno=int(sys.argv[2]))
    parent = socket.socket(fileno=0)
    for sock in (listener, parent):
        sock.setblocking(False)
    Service(int(sys.argv[1]), listener, parent).run()


if __name__ == "__main__":
    main()
