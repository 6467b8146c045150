"""Which of the recorded cases the suite keeps: small ones that hold, first those that did not hold before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conformance_cases import Cases, Outcome
from conformance_format import EXACT, Bytes, array_of, moved, tensors_in, write_entries

#: bytes of the arrays of a case at most, and of the text
LARGEST, LONGEST = 1500, 6000
#: of one operator, module or optimizer: how many cases that were mended, that are errors, that have derivatives, and of each other dtype
MENDED, ERRORS, DERIVED, OTHERS = 4, 3, 2, 1


class Choice:
    """Is offered every case with its outcomes; `before` are outcomes of an earlier state."""

    def __init__(self, before: Sequence[dict[str, Any]]) -> None:
        self.failed = {key_of(Outcome(**fields)) for fields in before if fields["kind"] in ("different", "internal exception")}
        self.offers: dict[str, list[tuple[bool, int, dict[str, Any]]]] = {}
        self.entries: dict[str, Cases] = {}

    def offer(self, name: str, cases: Cases, case: dict[str, Any], outcomes: Sequence[Outcome]) -> None:
        if not outcomes or any(outcome.kind not in ("equal", "deliberate") for outcome in outcomes):
            return
        size = sum(array_of(cases.data, x["tensor"]).nbytes for x in tensors_in(case))
        if size <= LARGEST and len(str(case)) <= LONGEST:
            self.entries[name] = cases
            self.offers.setdefault(name, []).append((any(key_of(outcome) in self.failed for outcome in outcomes), size, case))

    def chosen(self, name: str) -> list[dict[str, Any]]:
        """Mended ones, then the largest of those that are small enough, by dtype."""
        counts: Counter[str] = Counter()
        cases = []
        for mended, _, case in sorted(self.offers[name], key=lambda offer: (-offer[0], offer[1] if offer[0] else -offer[1])):
            kind = "mended" if mended else case["dtype"]
            most = {"mended": MENDED, "error": ERRORS, EXACT: DERIVED}.get(kind, OTHERS)
            if counts[kind] < most:
                counts[kind] += 1
                cases.append(case)
        return cases

    def write(self, path: Path) -> None:
        data = Bytes()
        chosen_entries = {
            name: [cases.entry, *(moved(case, cases.data, data) for case in self.chosen(name))] for name, cases in sorted(self.entries.items())
        }
        write_entries(path, chosen_entries, data)


def key_of(outcome: Outcome) -> tuple[str, ...]:
    return outcome.name, outcome.dtype, str(outcome.number), outcome.category
