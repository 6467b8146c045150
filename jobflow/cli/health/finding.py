"""One line of `jobflow doctor`."""

from __future__ import annotations

from jobflow.core.dataclass import dataclass

OK, NOTE, PROBLEM = "OK", "note", "problem"
GIB = 1 << 30


@dataclass(frozen=True)
class Finding:
    """What was looked at, how it is, and what would make it better: in words, and as a command."""

    name: str
    status: str
    text: str
    fix: str = ""
    command: str = ""

    def __str__(self) -> str:
        lines = [f"{self.status:<8} {self.name:<10} {self.text}"]
        if self.fix:
            lines.append(f"{'':<20}fix: {self.fix}")
        if self.command:
            lines.append(f"{'':<20}     {self.command}" if self.fix else f"{'':<20}fix: {self.command}")
        return "\n".join(lines)


def judged(name: str, text: str, *cases: tuple[object, str, str, str, str]) -> Finding:
    """The first case that holds, as (whether it does, status, what follows the text, fix, command); if none does, all is well."""
    found = next((case for case in cases if case[0]), None)
    return Finding(name, OK, text) if found is None else Finding(name, found[1], text + found[2], *found[3:])
