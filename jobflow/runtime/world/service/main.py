"""The rendezvous service: it connects ranks without mpiexec to one MPI world, and ends them together.

The service is a separate program, started by `start_service` (rendezvous.py), because MPI's start holds the interpreter lock of a rank.  No
thread of rank 0 could answer.  It serves two kinds of clients on one port, which differ in their first line: MPI libraries (pmi.py), and ranks.
A rank keeps its connection until it ends.  It authenticates itself (authentication.py), receives a ticket for its MPI library, and sends

    {"need": true}     it is about to start MPI          {"leave": true}     its script has ended
    {"failed": text}   it ends by an error

The service sends

    {"missing": ranks, "idle": ranks, "left": ranks, "nodes": ..}     after each change
    {"refused": text}                                                 if the variables of ranks contradict each other
    {"end": text, "rank": .., "show": ..}                             when a rank has failed

A rank also fails if its connection closes or its process ends before it has left.  Remaining ranks on this node are then ended by signals.

The third connection, standard input, is a socket to the process that started the service.  When it closes, no process waits for the ranks, and they
end.

Connections that violate the protocol are closed; the job continues.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from .authentication import secret_of, ticket
from .members import About, Member, is_own, node_name, watch
from .messages import LONG, SILENCE, SILENT, Connection, fields, keep_alive, within
from .pmi import MAPPING, Pmi, mapping, words_of
from .unauthenticated import WRONG, AuthenticationError, Peer, UnauthenticatedPeers

#: seconds after a failure at which remaining ranks of this node get a signal, and at which the service ends
ENDS = ((0.3, signal.SIGTERM), (0.8, signal.SIGKILL), (1.2, None))
#: maximum number of ranks whose nodes a message shows
SHOWN_RANKS = 16
#: messages of a rank
_WORDS = {"need": bool, "leave": bool, "failed": str}


class Service:
    """The service, with all connections in one thread; `parent` is the connection to the process that started the service."""

    def __init__(self, size: int, listener: socket.socket, parent: socket.socket, secret: bytes) -> None:
        self.size = size
        self.pmi = Pmi(size)
        self.members: dict[int, Member] = {}
        #: ranks that ended before they joined, as reported by the launcher
        self.absent: set[int] = set()
        self._secret = secret
        self._unauthenticated = UnauthenticatedPeers(size)
        self._selector = selectors.DefaultSelector()
        self._listener: socket.socket | None = listener
        self._parent: Connection | None = Connection(parent, LONG)
        self._node = node_name()
        self._ends: list[tuple[float, int | None]] = []
        self._over = False
        self._reason = ""
        #: other processes with RANK=0, which request the identity of the first
        self._asking: list[Member] = []
        #: by connection, the function that processes its lines, and its rank
        self._handlers: dict[Connection, Callable[[str], None]] = {self._parent: self._from_parent}
        self._owners: dict[Connection, Member] = {}
        self._register(listener, self._accept)
        self._register(parent, partial(self._from, self._parent))

    def run(self) -> None:
        """Serve until the ranks have ended."""
        while not (self._over or self._finished()):
            for key, _ in self._selector.select(self._patience()):
                # an earlier event of this round may have closed this connection
                if self._selector.get_map().get(key.fd) is key:
                    key.data()
            self._end_expired_peers()
            self._end_remaining_ranks()
        for line in list(self._handlers):  # sends remaining bytes to clients that read them at once
            self._close(line)

    def _finished(self) -> bool:
        alive = any(not member.gone for member in self.members.values())
        return not alive and (self._parent is None or bool(self._ends) or len(self.members) + len(self.absent) == self.size)

    def _patience(self) -> float | None:
        now = time.monotonic()
        waits = [0.05] if any(line.unsent for line in self._handlers) else []
        return min([*waits, *(max(0.0, when - now) for when in [*(when for when, _ in self._ends), *self._unauthenticated.next])], default=None)

    # ---------------------------------------------------------------- connections

    def _register(self, file: Any, act: Callable[[], None]) -> None:
        self._selector.register(file, selectors.EVENT_READ, act)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return  # the client has closed it again
        sock.setblocking(False)
        keep_alive(sock)
        if not self._secret and not is_own(sock):
            sock.close()
            return
        peer, oldest = self._unauthenticated.add(sock)
        self._handlers[peer.line] = partial(self._from_peer, peer)
        self._register(sock, partial(self._from, peer.line))
        self._close(oldest)

    def _close(self, line: Connection | None) -> None:
        if line is None or line not in self._handlers:
            return
        del self._handlers[line]
        self._unauthenticated.remove(line)
        if line.sock in self._selector.get_map():
            self._selector.unregister(line.sock)
        with suppress(OSError):
            line.flush()
        line.sock.close()

    def _send(self, line: Connection | None, text: str | Mapping[str, Any]) -> None:
        if line is not None and line in self._handlers:
            with suppress(OSError):  # a closed connection is detected when it is read
                line.send(text)

    def _from(self, line: Connection) -> None:
        try:
            for text in line.lines():
                if line in self._handlers:
                    self._handlers[line](text)
        except (EOFError, OSError, ValueError) as error:  # end of the connection, or a violation of the protocol
            self._lost_line(line, isinstance(error, OSError) and error.errno in SILENT)

    def _lost_line(self, line: Connection, silent: bool) -> None:
        self._close(line)
        member = self._owners.get(line)
        if line is self._parent:
            self._parent = None
            self._stop_listening()
            if any(not (member.left or member.gone) for member in self.members.values()):
                self._fail(-1, "the process that started the ranks has died")
        elif member is not None and not self._expected(line, member):
            self._lost(member, silent)
        elif member is not None and member.watch is None and not {member.line, member.pmi} & self._handlers.keys():
            self._forget(member)  # both connections have ended in order, and no process of another machine can be monitored

    def _expected(self, line: Connection, member: Member) -> bool:
        """Return True if the end of a rank's connection `line` belongs to an orderly exit, even though the rank still runs.

        MPI's connection may end once MPI is finalized.  The other connection may end before it, once the rank has reported its end.
        """
        return member.finalized if line is member.pmi else member.left and member.pmi in self._handlers

    def _from_parent(self, text: str) -> None:
        """Process the launcher's report that the process of a rank has ended; most ranks have reported their end themselves."""
        message = fields(text, {"gone": int, "code": int})
        rank, code = message["gone"], message["code"]
        if code != 0:
            self._fail(rank, f"rank {rank} ended with exit code {code}" if code > 0 else f"rank {rank} was ended by signal {-code}")
        if rank not in self.members:
            self.absent.add(rank)
            self._send_state()

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    # ---------------------------------------------------------------- unauthenticated peers

    def _from_peer(self, peer: Peer, text: str) -> None:
        if peer.rejected:
            return
        try:
            if text.startswith("cmd="):
                self._accept_mpi(peer, text)
                return
            about = peer.authenticate(self._secret, text)
        except AuthenticationError:
            self._unauthenticated.reject(peer)
            self._selector.unregister(peer.line.sock)
            return
        if about is not None:
            self._accept_rank(peer, About.read(about))

    def _end_expired_peers(self) -> None:
        for peer in self._unauthenticated.expired():
            if peer.rejected:
                self._send(peer.line, {"refused": WRONG})
            self._close(peer.line)

    # ---------------------------------------------------------------- MPI libraries

    def _accept_mpi(self, peer: Peer, text: str) -> None:
        words = words_of(text)
        shown = words.get("pmiid", "")
        member = next((member for member in self.members.values() if shown == str(member.ticket) and member.ticket), None)
        if words["cmd"] != "initack" or member is None or member.pmi is not None or member.gone:
            raise AuthenticationError
        line, member.ticket = peer.line, 0
        self._assign(line, member, partial(self._from_mpi, member))
        member.pmi = line
        for answer in ("cmd=initack", f"cmd=set size={self.size}", f"cmd=set rank={member.rank}", "cmd=set debug=0"):
            self._send(line, answer)

    def _assign(self, line: Connection, member: Member, receive: Callable[[str], None]) -> None:
        """Assign a connection to a rank; `receive` processes its lines."""
        self._unauthenticated.remove(line)
        self._owners[line], self._handlers[line] = member, receive

    def _from_mpi(self, member: Member, text: str) -> None:
        if text.startswith("cmd=abort"):
            self._fail(member.rank, f"rank {member.rank} ({member}): MPI aborted, with exit code {words_of(text).get('exitcode', '?')}")
        for rank, answer in self.pmi.answer(member.rank, text):
            self._send(self.members[rank].pmi, answer)
        member.finalized |= text.startswith("cmd=finalize")

    # ---------------------------------------------------------------- ranks

    def _accept_rank(self, peer: Peer, about: About) -> None:
        line, number = peer.line, ticket()
        peer.accept(self._secret, number)
        line.longest = LONG
        member = Member(about, line, number, address=str(line.sock.getpeername()[0]))
        if about.second and 0 not in self.members:  # the first one has not joined yet
            self._assign(line, member, lambda text: None)
            self._asking.append(member)
            member.left = True
        elif wrong := self._reason or self._contradiction(member):
            self._refuse(line, wrong)
        else:
            self._join(line, member)

    def _join(self, line: Connection, member: Member) -> None:
        if member.about.node == self._node:
            try:
                member.watch = watch(line.sock, member.about.pid)
            except ValueError as error:
                wrong = f"RANK={member.rank} reports process id {member.about.pid} on this machine: {error}"
                self._send(line, {"refused": wrong})
                self._close(line)
                return
        self.members[member.rank] = member
        self._assign(line, member, partial(self._from_rank, member))
        if member.watch is not None:
            self._register(member.watch, partial(self._lost, member))  # child processes may keep its connections open
        self._send_state()
        while self._asking and 0 in self.members:
            asking = self._asking.pop()
            self._refuse(asking.line, self._contradiction(asking))

    def _contradiction(self, new: Member) -> str:
        rank, old = new.rank, self.members.get(new.rank)
        if new.about.size != self.size:
            first = f" ({self.members[0]})" if 0 in self.members else ""
            sizes = f"RANK=0{first} has WORLD_SIZE={self.size}, RANK={rank} ({new}) has WORLD_SIZE={new.about.size}"
            return f"{sizes}; set the same WORLD_SIZE for every rank"
        within(rank, 0, self.size - 1)
        if new.about.second:
            return f"two processes have RANK=0: {old}, and {new}; set a different RANK for each process"
        if old is None:
            return f"RANK={rank} ({new}) joins after that rank has ended; start all ranks again" if rank in self.absent else ""
        if old.left or old.gone:
            return f"RANK={rank} ({new}) joins after that rank ({old}) has ended; start all ranks again"
        return f"two processes have RANK={rank}: {old}, and {new}; set a different RANK for each process, 0 to {self.size - 1}"

    def _refuse(self, line: Connection, text: str) -> None:
        """Send a contradiction between the variables of ranks to the new rank, and to all others, because any of them may be wrong.

        If all ranks have joined, only the new process is rejected.
        """
        self._send(line, {"refused": text})
        self._close(line)
        if len(self.members) < self.size:
            self._reason = text  # for later ranks, until the process that started the service has ended
            for member in self.members.values():
                self._send(member.line, {"refused": text})
                self._forget(member)

    def _from_rank(self, member: Member, text: str) -> None:
        message = fields(text, {}, _WORDS)
        if "failed" in message:
            self._fail(member.rank, message["failed"])
        member.needs |= "need" in message
        member.left |= "leave" in message
        self._send_state()

    def _send_state(self) -> None:
        """Send to all connected ranks the numbers of missing ranks, idle ranks and ranks that have left, and the nodes."""
        members = self.members
        complete = len(members) == self.size
        locations = list(dict.fromkeys(members[rank].location for rank in sorted(members)))
        nodes = [locations.index(members[rank].location) for rank in range(self.size)] if complete else None
        if nodes is not None and MAPPING not in self.pmi.values:
            self._map(nodes)
        state = {
            "missing": [rank for rank in range(self.size) if rank not in members and rank not in self.absent],
            "idle": sorted({rank for rank, member in members.items() if not member.needs} | self.absent),
            "left": sorted({rank for rank, member in members.items() if member.left} | self.absent),
            "nodes": nodes,
        }
        text = json.dumps(state)
        for member in members.values():
            self._send(member.line, text)

    def _map(self, nodes: list[int]) -> None:
        """Publish the node of each rank to the MPI libraries, which otherwise compare host names."""
        self.pmi.values[MAPPING] = text = mapping(nodes)
        if not text:
            order = f"{', '.join(map(str, nodes[:SHOWN_RANKS]))}{', ...' if len(nodes) > SHOWN_RANKS else ''}"
            self._fail(-1, f"the nodes of the ranks have no regular order ({order}); number the ranks of each node consecutively")

    def _lost(self, member: Member, silent: bool = False) -> None:
        """Process the end of a rank's connection or process; `silent` is True if its machine no longer answers.

        The job fails unless the rank has reported its end and, if it had started MPI, finalized it.
        """
        if member.gone:
            return
        self._forget(member)
        if not member.left or not (member.pmi is None or member.finalized):
            host = socket.gethostname()
            lost = f"has not answered for {SILENCE} s: {member.about.host}, or the network between it and {host}, is down"
            killed = "ended without a report: it was killed, or called os._exit"
            self._fail(member.rank, f"rank {member.rank} ({member}) {lost if silent else killed}")

    def _forget(self, member: Member) -> None:
        member.gone = True
        if member.watch is not None:
            self._selector.unregister(member.watch)
            os.close(member.watch)
            member.watch = None
        self._close(member.line)
        self._close(member.pmi)

    # ---------------------------------------------------------------- ends

    def _fail(self, rank: int, text: str) -> None:
        """End all ranks after the first failure; `rank` has failed, or is -1 if the launcher has died.

        One rank per screen shows the text, except on screens that show it already.
        """
        if self._ends:
            return
        now = time.monotonic()
        self._ends = [(now + after, number) for after, number in ENDS]
        self._send(self._parent, {"failed": rank})  # before other ranks end, so that the launcher knows the first
        shown = {self.members[rank].about.screen} if rank in self.members else set()
        for member in self.members.values():
            screen = member.about.screen
            if member.rank != rank:
                self._send(member.line, {"end": text, "rank": rank, "show": screen not in shown})
                shown.add(screen)
        self._stop_listening()

    def _end_remaining_ranks(self) -> None:
        while self._ends and self._ends[0][0] <= time.monotonic():
            _, number = self._ends.pop(0)
            if number is None:
                self._over = True
            else:
                for member in self.members.values():
                    member.signal(number)


def main() -> None:
    """Run the service; the arguments are the number of ranks, and the file descriptor of a listening socket.

    Standard input is the connection to the process that started the service.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the ranks handle Ctrl-C
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # three descriptors per rank, and one per unauthenticated peer
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    listener = socket.socket(fileno=int(sys.argv[2]))
    parent = socket.socket(fileno=0)
    for sock in (listener, parent):
        sock.setblocking(False)
    Service(int(sys.argv[1]), listener, parent, secret_of()).run()
