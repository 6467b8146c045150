"""Authentication of a rank to the service (see service/authentication.py)."""

from __future__ import annotations

import json
import math
import os
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from jobflow.core.errors import JobError, VariableError
from jobflow.runtime.world.service.authentication import RANK, SECRET, SERVICE, SHORTEST, VERSION, challenge, is_signature, secret_of, signature
from jobflow.runtime.world.service.messages import LONG, record

#: seconds to wait for an answer of the service, and number of such waits
ANSWER, SILENCES = 10.0, 2
#: environment variable of the seconds that ranks wait for absent ranks, and the default
WAIT, LONGEST_WAIT = "JOBFLOW_JOIN_SECONDS", 300.0
#: advice for users without a secret
MAKE = f'export {SECRET}=... with one value in every terminal, such as the output of `python -c "import secrets; print(secrets.token_hex())"`'


class ClosedError(OSError):
    """A connection that ended before an answer: the service is ending, or does not accept this process."""

    def __init__(self) -> None:
        super().__init__("the connection was closed")


def job_secret() -> bytes:
    """Return the value of JOBFLOW_SECRET, b"" if it is not set; raise VariableError if it is too short."""
    secret = secret_of()
    if 0 < len(secret) < SHORTEST:
        raise VariableError(f"{SECRET} has {len(secret)} characters, but at least {SHORTEST} are required; {MAKE}")
    return secret


def longest_wait() -> float:
    """Return the seconds that a rank waits for absent ranks; raise VariableError unless JOBFLOW_JOIN_SECONDS is a number above 0."""
    text = os.environ.get(WAIT, "").strip()
    try:
        seconds = float(text) if text else LONGEST_WAIT
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise VariableError(f"{WAIT} is {text!r}; set it to the seconds to wait for other ranks, such as {LONGEST_WAIT:g}, or inf for no limit")
    return seconds


def lines_of(sock: socket.socket) -> Iterator[str]:
    """Yield the received lines until the connection ends; raise OSError if it breaks, times out, or sends too long a line."""
    received = b""
    while data := sock.recv(1 << 16):
        *lines, received = (received + data).split(b"\n")
        if max(map(len, [*lines, received])) > LONG * 16:  # lines grow with the number of ranks
            raise OSError("a line without end")
        yield from (line.decode(errors="replace") for line in lines)


def authenticate(sock: socket.socket, about: Mapping[str, Any], secret: bytes, master: str, answer: float = ANSWER) -> tuple[int, Iterator[str]]:
    """Authenticate this rank and the service to each other; return the ticket for the MPI library, and an iterator over the following lines.

    `answer` limits the seconds for each answer.

    Raises: JobError if another program or the service of another job listens there; OSError if the connection ends.
    """
    sock.settimeout(answer)
    lines, ours, text = lines_of(sock), challenge(), json.dumps(about)
    theirs = _answer(sock, lines, {"jobflow": VERSION, "challenge": ours}, master).get("challenge")
    if type(theirs) is not str:
        raise _foreign(master)
    last = _answer(sock, lines, {"about": text, "proof": signature(secret, RANK, ours, theirs, text)}, master)
    ticket, shown = last.get("ticket"), last.get("proof")
    if type(ticket) is not int or type(shown) is not str:
        raise _foreign(master)
    if not is_signature(shown, secret, SERVICE, ours, theirs, str(ticket)):
        raise JobError(f"the program that listens at {master} does not have the secret of this job; choose another MASTER_PORT for all ranks")
    sock.settimeout(None)
    return ticket, lines


def _answer(sock: socket.socket, lines: Iterator[str], message: Mapping[str, Any], master: str) -> dict[str, Any]:
    sock.sendall(json.dumps(message).encode() + b"\n")
    text = next(lines, None)
    if text is None:
        raise ClosedError
    try:
        answer = record(text)
    except ValueError:
        raise _foreign(master) from None
    if type(answer.get("refused")) is str:
        raise JobError(answer["refused"])
    return answer


def _foreign(master: str) -> JobError:
    return JobError(f"the program that listens at {master} is not a jobflow program of this version; choose another MASTER_PORT for all ranks")


def silent(master: str) -> JobError:
    """Return the error that the program that listens at `master` does not answer."""
    waited = f"{SILENCES * ANSWER:g} s"
    return JobError(
        f"the program that listens at {master} has not answered for {waited} and is not jobflow; choose another MASTER_PORT for all ranks"
    )
