"""The proof that ranks and service know the secret of their job, without sending it.

Each side gives the other a challenge, 16 random bytes, and answers with an HMAC-SHA256 of the secret over both challenges and what it says:

    rank       {"jobflow": 2, "challenge": C}
    service    {"jobflow": 2, "challenge": D}
    rank       {"about": A, "proof": HMAC(secret, "rank", C, D, A)}       A is the text of a JSON object that says who it is (members.py)
    service    {"ticket": T, "proof": HMAC(secret, "service", C, D, T)}

The rank comes first, so that a stranger learns nothing that is made with the secret.  MPI libraries cannot do this: they show the ticket, a
number that is given to one rank and works once.

The secret is JOBFLOW_SECRET.  `jobflow launch` makes one up; who starts ranks by hand exports the same in every terminal.  Without one the key
is empty, and the service serves nobody but processes of its own user on its own machine.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Mapping

#: the variable
SECRET = "JOBFLOW_SECRET"
#: characters; what is shorter can be found by trying
SHORTEST = 16
#: of the protocol
VERSION = 2
RANK, SERVICE = "rank", "service"


def secret_of(environ: Mapping[str, str] = os.environ) -> bytes:
    """The job's secret; empty if there is none."""
    return environ.get(SECRET, "").encode(errors="surrogateescape")


def made_up() -> str:
    """A secret that nobody can guess."""
    return secrets.token_hex(32)


def challenge() -> str:
    """A challenge that nobody was given before."""
    return secrets.token_hex(16)


def ticket() -> int:
    """A number that an MPI library can show: it reads a positive int of 32 bits."""
    return 1 + secrets.randbelow((1 << 31) - 1)


def proof(secret: bytes, *said: str) -> str:
    """The proof of knowing `secret`, over what was said."""
    mac = hmac.new(secret, digestmod="sha256")
    for part in said:
        mac.update(f"{len(part)}:{part}".encode())
    return mac.hexdigest()


def is_proof(given: str, secret: bytes, *said: str) -> bool:
    """True if `given` is that proof; it takes the same time whether or not."""
    return hmac.compare_digest(given.encode(), proof(secret, *said).encode())
