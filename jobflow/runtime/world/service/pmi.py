"""PMI-1, the protocol by which MPICH's processes exchange addresses.

src/pmi in MPICH's sources has the client; Hydra's and gforker's mpiexec speak the same.  Lines `cmd=NAME key=value ...`:

    cmd=initack pmiid=T        cmd=initack, then cmd=set size=N, cmd=set rank=R, cmd=set debug=0: read by the rank before MPI starts
    cmd=init pmi_version=1     cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0
    cmd=get_maxes              cmd=maxes kvsname_max=.. keylen_max=.. vallen_max=..
    cmd=get_appnum             cmd=appnum appnum=0
    cmd=get_universe_size      cmd=universe_size size=N
    cmd=get_my_kvsname         cmd=my_kvsname kvsname=NAME
    cmd=put key=K value=V      cmd=put_result rc=0 msg=success
    cmd=get key=K              cmd=get_result rc=0 msg=success value=V, or rc=-1 msg=key_not_found
    cmd=get key=PMI_process_mapping: the node of each rank, as value=(vector,(N,M,R),..): R ranks on each of the M nodes from N on, and so on
    cmd=barrier_in             cmd=barrier_out to all, when all are in
    cmd=finalize               cmd=finalize_ack
    cmd=abort exitcode=C       all ranks end

`pmiid`, PMI_ID in the environment, is the ticket that a rank receives (authentication.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

#: maximum characters of a name or key, and of a value
KEY, VALUE = 256, 1024
MAXES = f"kvsname_max={KEY} keylen_max={KEY} vallen_max={VALUE}"
#: maximum number of keys per rank
MOST = 1000
#: the key whose value is the node of each rank; without it, MPICH compares host names
MAPPING = "PMI_process_mapping"


def words_of(line: str) -> dict[str, str]:
    """Parse `cmd=put key=a value=b c` into a dictionary; the value comes last and may contain spaces."""
    head, separator, value = line.partition(" value=")
    words = dict(word.split("=", 1) for word in head.split() if "=" in word)
    return {**words, "value": value} if separator else words


def mapping(nodes: Sequence[int]) -> str:
    """Return the value of the key MAPPING for the node number of each rank; "" if it is longer than a value of PMI-1 may be."""
    runs: list[list[int]] = []
    for node in nodes:
        if runs and runs[-1][0] == node:
            runs[-1][1] += 1
        else:
            runs.append([node, 1])
    blocks: list[list[int]] = []
    for node, ranks in runs:
        if blocks and blocks[-1][0] + blocks[-1][1] == node and blocks[-1][2] == ranks:
            blocks[-1][1] += 1
        else:
            blocks.append([node, 1, ranks])
    # the library repeats the blocks for further ranks
    count = next(n for n in range(1, len(blocks) + 1) if len(blocks) % n == 0 and blocks == blocks[:n] * (len(blocks) // n))
    text = f"(vector,{','.join(f'({node},{many},{ranks})' for node, many, ranks in blocks[:count])})"
    return text if len(text) < VALUE else ""


class Pmi:
    """The keys and barriers of PMI-1, without connections."""

    def __init__(self, size: int) -> None:
        self.size = size
        #: unique on this machine, because MPICH names its shared memory after it
        self.name = f"jobflow-{os.urandom(16).hex()}"
        self.values: dict[str, str] = {}
        self._inside: list[int] = []

    def answer(self, rank: int, line: str) -> Iterator[tuple[int, str]]:
        """Yield (rank, answer) for a line of `rank`; raise ValueError for a line that no MPI library sends."""
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
            self._put(words.get("key", ""), words.get("value", ""))
            yield rank, "cmd=put_result rc=0 msg=success"
        elif command == "get":
            value = self.values.get(words.get("key", ""))
            yield rank, "cmd=get_result rc=-1 msg=key_not_found value=unknown" if value is None else f"cmd=get_result rc=0 msg=success value={value}"
        elif command:  # such as spawning
            yield rank, f"cmd={command}_result rc=-1 msg=not_supported"

    def _put(self, key: str, value: str) -> None:
        if not 0 < len(key) <= KEY or len(value) > VALUE or len(self.values) >= MOST * self.size:
            raise ValueError(
                f"put: key of {len(key)} characters (limit {KEY}), value of {len(value)} (limit {VALUE}), after {len(self.values)} other keys"
            )
        self.values[key] = value

    def _barrier(self, rank: int) -> Iterator[tuple[int, str]]:
        if rank in self._inside:
            raise ValueError("barrier_in: the rank is already inside the barrier")
        self._inside.append(rank)
        if len(self._inside) == self.size:
            inside, self._inside = self._inside, []
            yield from ((other, "cmd=barrier_out") for other in inside)
