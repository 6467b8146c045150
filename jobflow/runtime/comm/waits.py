"""Which rank waits for which, and detection of waits that cannot end.

Every wait of a rank is for others to come to a certain point on a `Way`: the fifth meeting of a group, the third letter from one rank
to another.  A rank that waits comes nowhere else meanwhile.  So among ranks of which each waits for one that waits too, and had
not come to that point when it began to wait, none will ever go on: they are stuck.  This is no guess: a rank that computes,
however long, is not waiting, and what is said about a wait stays true for as long as it lasts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import RankError

#: What a rank waits in, or does: a text, or a function that makes it if it is needed.
What: TypeAlias = str | Callable[[], str]

#: seconds after which a rank tells the others what it waits for
SILENCE = 0.1
#: seconds from the discovery that ranks are stuck until that is reported: others that are stuck too may still say so
SETTLE = 0.1


class Way(Protocol):
    """Something on which this rank comes to one point after another; its name is the same on all ranks."""

    @property
    def name(self) -> str: ...

    @property
    def done(self) -> int:
        """How far this rank has come."""


class WayCount:
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


class Parting(NamedTuple):
    """What all ranks raise as DivergedError: its text, and the rank that parted from the others because of an error of its own, if one did."""

    text: str
    first: int | None = None


class Held(NamedTuple):
    """A rank that waits in vain: in what, for whom, and the error, in a line, that it waits in spite of; "" if it has none."""

    what: str
    missing: Sequence[int]
    error: str = ""


@dataclass(frozen=True)
class Waiting:
    """One wait of a rank: in what, for whom, how far the rank itself had come on each way when it began, and the error it had."""

    what: str
    needs: tuple[Need, ...]
    come: Mapping[str, int]
    error: str = ""

    def write(self) -> str:
        return json.dumps([self.what, self.needs, self.come, self.error])

    @staticmethod
    def read(text: str) -> Waiting:
        what, needs, come, error = json.loads(text)
        return Waiting(what, tuple(Need(*need) for need in needs), come, error)

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


def listed(ranks: Sequence[int]) -> str:
    """`rank 0`, `ranks 0, 1`."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def waits_in(rank: int, what: str, missing: Sequence[int], error: str = "") -> str:
    text = f"rank {rank} waits for {named(missing)} in {what}" if missing else f"rank {rank} waits in {what}"
    return f"{text}, after {error}" if error else text


def standstill(waits: Mapping[int, Held]) -> Parting:
    """What stuck ranks raise.  A rank that has an error, and on its way out does what is collective, is the one that parted from the others."""
    ranks = sorted(waits)
    first = next((rank for rank in ranks if waits[rank].error), None)
    why = f"{named(ranks)} do different things, and wait" if first is None else f"{_failed(first, waits[first].error)}; {named(ranks)} wait"
    lines = [f"  {waits_in(rank, what, missing, '' if rank == first else error)}" for rank, (what, missing, error) in sorted(waits.items())]
    return Parting("\n".join([f"{why} for each other without end:", *lines]), first)


def _failed(rank: int, error: str) -> str:
    return f"rank {rank} failed with {error}"


def complaint(rank: int, seconds: float, what: What, missing: Sequence[int], others: Iterable[str]) -> str:
    """What a rank says that has waited for so long; `others` say who else waits where."""
    waited = f"rank {rank} has waited {seconds:g} s in {headline(what)} for ranks {list(missing)}"
    return "; ".join([waited, *map(headline, others)])


def left(rank: int, me: int, what: str, others: Iterable[str] = ()) -> RankError:
    """What rank `me` raises when `rank`, which it waits for, has come to the end of its script; `others` say who else waits where."""
    return RankError(rank, "\n  ".join([f"ended its script while rank {me} waited for it in {what}", *others]))


class Came(NamedTuple):
    """With what a rank came to a collective: its digest, what it does, and the error it has, in a line; "" if none."""

    digest: int
    what: str
    error: str = ""


def difference(number: int, members: Sequence[int], came: Sequence[Came]) -> Parting:
    """What all ranks raise that came to collective `number` with different digests; `came[i]` is what members[i] came with."""
    ranks = sorted(range(len(members)), key=lambda i: members[i])
    other = next(i for i in ranks if came[i][0] != came[ranks[0]][0])
    vague = came[other].what == came[ranks[0]].what
    first = next((i for i in ranks if came[i].error), None)
    alike: dict[Came, list[int]] = {}
    for i in ranks:
        alike.setdefault(came[i]._replace(error="") if i == first else came[i], []).append(members[i])
    lines = [
        f"  {listed(group)}: {text}{f' (digest {digest:#018x})' if vague else ''}{f', after {error}' if error else ''}"
        for (digest, text, error), group in alike.items()
    ]
    why = "" if first is None else f"{_failed(members[first], came[first].error)}; "
    pair = named([members[ranks[0]], members[other]])
    text = "\n".join([f"{why}{pair} do different things at collective {number} of ranks {list(members)}:", *lines])
    return Parting(text, None if first is None else members[first])
