"""The wait graph of the ranks, and detection of deadlocks.

Every wait is for other ranks to reach a point, such as the fifth barrier of a group or the third message between two ranks.  A `Counter` numbers the
points.

A waiting rank reaches no other point meanwhile.  A set of ranks is stuck if each waits for another of the set that has not reached
the point.  Detection has no false positives: a computing rank is not waiting, and a wait does not change while it lasts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import RankError

#: The operation of a rank: a text, or a function that returns it on demand.
What: TypeAlias = str | Callable[[], str]

#: seconds after which a rank broadcasts its wait
SILENCE = 0.1
#: seconds between detection and report of a deadlock, in which the waits of other stuck ranks may arrive
SETTLE = 0.1


class Counter(Protocol):
    """A counter of points that this rank has reached; its name is the same on all ranks."""

    @property
    def name(self) -> str: ...

    @property
    def done(self) -> int:
        """The number of points that this rank has reached."""


class PlainCounter:
    """A counter whose user, such as a message queue, increments `done`."""

    __slots__ = ("done", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.done = 0


class WaitEdge(NamedTuple):
    """An edge of the wait graph: wait for a rank of the world to reach point `number` of a counter."""

    rank: int
    counter: str
    number: int


class Divergence(NamedTuple):
    """The DivergedError of all ranks: its text, and the rank that diverged because of an error, if any."""

    text: str
    first: int | None = None


class StuckRank(NamedTuple):
    """A rank in a deadlock: its operation, the ranks for which it waits, and its pending error in one line ("" for no error)."""

    what: str
    missing: Sequence[int]
    error: str = ""


@dataclass(frozen=True)
class Waiting:
    """One wait of a rank in the operation `what`.

    `needs` are the awaited points of other ranks, and `come` the points that this rank had reached when the wait began.  `error` is its
    pending error in one line, or "".
    """

    what: str
    needs: tuple[WaitEdge, ...]
    come: Mapping[str, int]
    error: str = ""

    def write(self) -> str:
        return json.dumps([self.what, self.needs, self.come, self.error])

    @staticmethod
    def read(text: str) -> Waiting:
        what, needs, come, error = json.loads(text)
        return Waiting(what, tuple(WaitEdge(*need) for need in needs), come, error)

    def missing(self, waits: Mapping[int, Waiting]) -> list[int]:
        """Return the ranks for which this rank waits, except ranks that have reached the awaited point according to `waits`."""
        return [rank for rank, counter, number in self.needs if rank not in waits or waits[rank].come.get(counter, 0) < number]


def text_of(what: What) -> str:
    return what if isinstance(what, str) else what()


def stuck(missing: Mapping[int, Iterable[int]]) -> list[int]:
    """Return the waiting ranks that can never continue; `missing[r]` are all ranks for which rank r waits."""
    waits = {rank: set(others) for rank, others in missing.items()}
    while True:
        free = [rank for rank, others in waits.items() if not others & waits.keys()]
        if not free:
            return sorted(waits)
        for rank in free:
            del waits[rank]


def headline(what: What) -> str:
    """Return the first line of `what`, the description of an operation."""
    return text_of(what).partition("\n")[0]


def named(ranks: Sequence[int]) -> str:
    """Return ranks as text: `rank 0`, `ranks 0 and 1`, `ranks 0, 1 and 2`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def listed(ranks: Sequence[int]) -> str:
    """Return ranks as text: `rank 0`, `ranks 0, 1`."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def waits_in(rank: int, what: str, missing: Sequence[int], error: str = "") -> str:
    text = f"rank {rank} waits for {named(missing)} in {what}" if missing else f"rank {rank} waits in {what}"
    return f"{text}, after {error}" if error else text


def deadlock(waits: Mapping[int, StuckRank]) -> Divergence:
    """Return the error of ranks in a deadlock.

    If a rank called a collective while an error was propagating on it, that rank diverged.
    """
    ranks = sorted(waits)
    first = next((rank for rank in ranks if waits[rank].error), None)
    why = f"{named(ranks)} run different operations, and wait" if first is None else f"{_failed(first, waits[first].error)}; {named(ranks)} wait"
    lines = [f"  {waits_in(rank, what, missing, '' if rank == first else error)}" for rank, (what, missing, error) in sorted(waits.items())]
    return Divergence("\n".join([f"{why} for each other without end:", *lines]), first)


def _failed(rank: int, error: str) -> str:
    return f"rank {rank} failed with {error}"


def wait_notice(rank: int, seconds: float, what: What, missing: Sequence[int], others: Iterable[str]) -> str:
    """Return the notice that `rank` has waited `seconds` seconds in the operation `what` for the ranks `missing`.

    `others` describe the waits of other ranks.
    """
    waited = f"rank {rank} has waited {seconds:g} s in {headline(what)} for ranks {list(missing)}"
    return "; ".join([waited, *map(headline, others)])


def exited(rank: int, me: int, what: str, others: Iterable[str] = ()) -> RankError:
    """Return the error of rank `me`, which waits for `rank` whose script has ended; `others` describe the waits of other ranks."""
    return RankError(rank, "\n  ".join([f"ended its script while rank {me} waited for it in {what}", *others]))


class Arrival(NamedTuple):
    """The arrival of a rank at a collective: its digest, its operation, and its pending error in one line ("" for no error)."""

    digest: int
    what: str
    error: str = ""


def divergence(number: int, members: Sequence[int], came: Sequence[Arrival]) -> Divergence:
    """Return the error of ranks whose digests at collective `number` differ; `came[i]` is the arrival of members[i]."""
    ranks = sorted(range(len(members)), key=lambda i: members[i])
    other = next(i for i in ranks if came[i][0] != came[ranks[0]][0])
    vague = came[other].what == came[ranks[0]].what
    first = next((i for i in ranks if came[i].error), None)
    alike: dict[Arrival, list[int]] = {}
    for i in ranks:
        alike.setdefault(came[i]._replace(error="") if i == first else came[i], []).append(members[i])
    lines = [
        f"  {listed(group)}: {text}{f' (digest {digest:#018x})' if vague else ''}{f', after {error}' if error else ''}"
        for (digest, text, error), group in alike.items()
    ]
    why = "" if first is None else f"{_failed(members[first], came[first].error)}; "
    pair = named([members[ranks[0]], members[other]])
    text = "\n".join([f"{why}{pair} run different operations at collective {number} of ranks {list(members)}:", *lines])
    return Divergence(text, None if first is None else members[first])
