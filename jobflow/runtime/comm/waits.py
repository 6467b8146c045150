"""Who waits where for whom, and whether that can ever end.

Every wait of a rank is for others to come to a certain point on a `Way`: the fifth meeting of a group, the third letter from one rank
to another.  A rank that waits comes nowhere else meanwhile.  So among ranks of which each waits for one that waits too, and had
not come to that point when it began to wait, none will ever go on: they are stuck.  This is no guess: a rank that computes,
however long, is not waiting, and what is said about a wait stays true for as long as it lasts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from jobflow.errors import RankError

#: What a rank waits in, or does: a text, or a function that makes it if it is needed.
What: TypeAlias = str | Callable[[], str]

#: seconds after which a rank tells the others what it waits for
SILENCE = 0.1
#: seconds from the discovery that ranks are stuck until they are told: others that are stuck too may still say so
SETTLE = 0.1


class Way(Protocol):
    """Something on which this rank comes to one point after another; its name is the same on all ranks."""

    @property
    def name(self) -> str: ...

    @property
    def done(self) -> int:
        """How far this rank has come."""
        ...


class Count:
    """A way that is counted by whoever goes it."""

    __slots__ = ("done", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.done = 0


class Need(NamedTuple):
    """That a rank of the world comes to point `number` of a way."""

    rank: int
    way: str
    number: int


@dataclass(frozen=True)
class Waiting:
    """One wait of a rank: in what, for whom, and how far the rank itself had come on each way when it began."""

    what: str
    needs: tuple[Need, ...]
    come: Mapping[str, int]

    def write(self) -> str:
        return json.dumps([self.what, self.needs, self.come])

    @staticmethod
    def read(text: str) -> Waiting:
        what, needs, come = json.loads(text)
        return Waiting(what, tuple(Need(*need) for need in needs), come)

    def missing(self, waits: Mapping[int, Waiting]) -> list[int]:
        """The ranks it needs, without those that are known to have come."""
        return [rank for rank, way, number in self.needs if rank not in waits or waits[rank].come.get(way, 0) < number]


def text_of(what: What) -> str:
    return what if isinstance(what, str) else what()


def stuck(missing: Mapping[int, Iterable[int]]) -> list[int]:
    """The waiting ranks that can never go on; `missing[r]` are those for which rank r waits, all of them."""
    waits = {rank: set(others) for rank, others in missing.items()}
    while True:
        free = [rank for rank, others in waits.items() if not others & waits.keys()]
        if not free:
            return sorted(waits)
        for rank in free:
            del waits[rank]


def headline(what: What) -> str:
    """The first line of a text, without what was done before."""
    return text_of(what).partition("\n")[0]


def named(ranks: Sequence[int]) -> str:
    """`rank 0`, `ranks 0 and 1`, `ranks 0, 1 and 2`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def waits_in(rank: int, what: str, missing: Sequence[int]) -> str:
    return f"rank {rank} waits for {named(missing)} in {what}" if missing else f"rank {rank} waits in {what}"


def standstill(waits: Mapping[int, tuple[str, Sequence[int]]]) -> str:
    """What stuck ranks raise: `waits[rank]` is what it waits in, and for whom."""
    ranks = sorted(waits)
    lines = [f"  {waits_in(rank, *waits[rank])}" for rank in ranks]
    return "\n".join([f"{named(ranks)} do different things, and wait for each other without end:", *lines])


def left(rank: int, me: int, what: str, others: Iterable[str] = ()) -> RankError:
    """What rank `me` raises when `rank`, which it waits for, has come to the end of its script; `others` say who else waits where."""
    return RankError(rank, "\n  ".join([f"ended its script while rank {me} waited for it in {what}", *others]))


def difference(number: int, members: Sequence[int], told: Sequence[tuple[int, str]]) -> str:
    """What all ranks raise that came to collective `number` with different digests; `told[i]` are those of members[i], and what it does."""
    ranks = sorted(range(len(members)), key=lambda i: members[i])
    other = next(i for i in ranks if told[i][0] != told[ranks[0]][0])
    vague = told[other][1] == told[ranks[0]][1]
    alike: dict[tuple[int, str], list[int]] = {}
    for i in ranks:
        alike.setdefault(told[i], []).append(members[i])
    lines = [f"  {_those(group)}: {text}{f' (digest {digest:#018x})' if vague else ''}" for (digest, text), group in alike.items()]
    pair = named([members[ranks[0]], members[other]])
    return "\n".join([f"{pair} do different things at collective {number} of ranks {list(members)}:", *lines])


def _those(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
