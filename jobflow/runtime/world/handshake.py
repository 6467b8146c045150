"""The rank's side of the proof that it belongs to the job (see service/proof.py)."""

from __future__ import annotations

import json
import math
import os
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from jobflow.core.errors import ConfigError, JobError
from jobflow.runtime.world.service.lines import LONG, record
from jobflow.runtime.world.service.proof import RANK, SECRET, SERVICE, SHORTEST, VERSION, challenge, is_proof, proof, secret_of

#: seconds for an answer of whoever listens, and how often it may be silent for so long
ANSWER, SILENCES = 10.0, 2
#: the variable that says for how many seconds ranks wait for others that have not come, and how many it is else
WAIT, LONGEST_WAIT = "JOBFLOW_JOIN_SECONDS", 300.0
#: how to make a secret up, for people
MAKE = f'export {SECRET}=... with one value in every terminal, which `python -c "import secrets; print(secrets.token_hex())"` makes up'


class ClosedError(OSError):
    """The connection ended before the service had answered: it is about to end, or does not listen to this process."""

    def __init__(self) -> None:
        super().__init__("the connection was closed")


def job_secret() -> bytes:
    """JOBFLOW_SECRET, empty if there is none; ConfigError if it can be guessed."""
    found = secret_of()
    if 0 < len(found) < SHORTEST:
        raise ConfigError(f"{SECRET} has {len(found)} characters; it needs at least {SHORTEST}: {MAKE}")
    return found


def longest_wait() -> float:
    """Seconds for which a rank waits for those that have not come.  ConfigError unless the variable holds a number above 0."""
    text = os.environ.get(WAIT, "").strip()
    try:
        found = float(text) if text else LONGEST_WAIT
    except ValueError:
        found = math.nan
    if not found > 0:
        raise ConfigError(f"{WAIT} is {text!r}; give the number of seconds to wait for other ranks, such as {LONGEST_WAIT:g}, or inf for ever")
    return found


def lines_of(sock: socket.socket) -> Iterator[str]:
    """What comes, line by line, until the connection ends; OSError if it breaks or nothing comes in time."""
    heard = b""
    while data := sock.recv(1 << 16):
        *lines, heard = (heard + data).split(b"\n")
        if max(map(len, [*lines, heard])) > LONG * 16:  # it grows with the number of ranks
            raise OSError("a line without end")
        yield from (line.decode(errors="replace") for line in lines)


def introduce(sock: socket.socket, about: Mapping[str, Any], secret: bytes, master: str, answer: float = ANSWER) -> tuple[int, Iterator[str]]:
    """Show the service that this is a rank of its job, and see that it is this rank's; the ticket for the MPI library, and what comes next.

    `answer` limits the seconds for each answer.

    JobError if whoever listens there is no service, or one of another job; OSError if the connection ends.
    """
    sock.settimeout(answer)
    lines, ours, text = lines_of(sock), challenge(), json.dumps(about)
    theirs = _answer(sock, lines, {"jobflow": VERSION, "challenge": ours}, master).get("challenge")
    if type(theirs) is not str:
        raise _foreign(master)
    last = _answer(sock, lines, {"about": text, "proof": proof(secret, RANK, ours, theirs, text)}, master)
    ticket, shown = last.get("ticket"), last.get("proof")
    if type(ticket) is not int or type(shown) is not str:
        raise _foreign(master)
    if not is_proof(shown, secret, SERVICE, ours, theirs, str(ticket)):
        raise JobError(f"the program that listens at {master} does not know the secret of this job: choose another MASTER_PORT for all ranks")
    sock.settimeout(None)
    return ticket, lines


def _answer(sock: socket.socket, lines: Iterator[str], said: Mapping[str, Any], master: str) -> dict[str, Any]:
    sock.sendall(json.dumps(said).encode() + b"\n")
    text = next(lines, None)
    if text is None:
        raise ClosedError
    try:
        found = record(text)
    except ValueError:
        raise _foreign(master) from None
    if type(found.get("refused")) is str:
        raise JobError(found["refused"])
    return found


def _foreign(master: str) -> JobError:
    return JobError(f"the program that listens at {master} is not a jobflow program of this version; choose another MASTER_PORT for all ranks")


def silent(master: str) -> JobError:
    """Somebody listens and does not answer."""
    waited = f"{SILENCES * ANSWER:g} s"
    return JobError(
        f"the program that listens at {master} has not answered for {waited}: it is another program; choose another MASTER_PORT for all ranks"
    )
