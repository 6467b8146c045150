"""Mutual authentication of ranks and service by the secret of their job, which is never sent.

Each side sends a challenge of 16 random bytes. The other side answers with an HMAC-SHA256 of the secret over both challenges and its message:

    rank       {"jobflow": 3, "challenge": C}
    service    {"jobflow": 3, "challenge": D}
    rank       {"about": A, "proof": HMAC(secret, "rank", C, D, A)}       A is a JSON text about the rank (members.py)
    service    {"ticket": T, "proof": HMAC(secret, "service", C, D, T)}

The rank signs first, so an unauthenticated peer receives no signature.  MPI libraries cannot sign: they send the ticket, a number that one
rank receives and that works once.

The secret is JOBFLOW_SECRET.  `jobflow launch` creates one; users who start ranks by hand export the same value in every terminal.  Without a
secret the key is empty, and the service accepts only processes of its own user on its own machine.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Mapping

#: the variable
SECRET = "JOBFLOW_SECRET"
#: minimal number of characters; shorter secrets can be guessed
SHORTEST = 16
#: version of the protocol
VERSION = 3
RANK, SERVICE = "rank", "service"


def secret_of(environ: Mapping[str, str] = os.environ) -> bytes:
    """Return the secret of the job; b"" if no secret is set."""
    return environ.get(SECRET, "").encode(errors="surrogateescape")


def new_secret() -> str:
    """Return a random secret."""
    return secrets.token_hex(32)


def challenge() -> str:
    """Return a new random challenge."""
    return secrets.token_hex(16)


def ticket() -> int:
    """Return a random number that an MPI library can send: a positive int of 32 bits."""
    return 1 + secrets.randbelow((1 << 31) - 1)


def signature(secret: bytes, *message: str) -> str:
    """Return the signature of the parts of a message."""
    mac = hmac.new(secret, digestmod="sha256")
    for part in message:
        mac.update(f"{len(part)}:{part}".encode())
    return mac.hexdigest()


def is_signature(text: str, secret: bytes, *message: str) -> bool:
    """Return True if `text` is the signature of the message, in constant time."""
    return hmac.compare_digest(text.encode(), signature(secret, *message).encode())
