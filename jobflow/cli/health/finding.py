"""A finding of `jobflow doctor`, which is printed as one line or more."""

from __future__ import annotations

from jobflow.core.dataclass import dataclass

OK, NOTE, PROBLEM = "OK", "note", "problem"
GIB = 1 << 30


@dataclass(frozen=True)
class Finding:
    """A finding about one subject: its status, a text, and a repair as a sentence and as a command."""

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
    """Return the finding of the first case whose condition is true, else a finding with the status OK.

    A case is (condition, status, suffix of the text, fix, command).
    """
    match = next((case for case in cases if case[0]), None)
    return Finding(name, OK, text) if match is None else Finding(name, match[1], text + match[2], *match[3:])
