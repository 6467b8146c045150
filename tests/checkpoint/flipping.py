"""Damage of every kind at every position of the files of a checkpoint, which must be detected before a variable changes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from crashing import NEW, Case, session_on, state

from jobflow.core.errors import CheckpointError
from jobflow.engine.session import Session
from jobflow.storage import sessions, store
from jobflow.storage.checkpoint_reader import problems


@dataclass(frozen=True)
class Damage:
    """A damage to one file; `other` is a file whose content is used."""

    kind: str
    file: str
    at: int = 0
    bit: int = 0
    other: Path | None = None

    def of(self, content: bytes) -> bytes | None:
        """Return the file's new content; None if the file is removed."""
        if self.kind == "flip":
            return content[: self.at] + bytes([content[self.at] ^ 1 << self.bit]) + content[self.at + 1 :]
        if self.kind == "cut":
            return content[: self.at]
        if self.kind == "longer":
            return content + b"\0" * self.at
        if self.kind == "zeros":
            return content[: self.at] + b"\0" * min(16, len(content) - self.at) + content[self.at + 16 :]
        return None if self.other is None else self.other.read_bytes()


def damages(checkpoint: Path, older: Path) -> Iterator[Damage]:
    """Yield every flipped bit, every length, every missing or longer file, and every swap of two files.

    `older` is a checkpoint of other values.
    """
    files = sorted(path for path in checkpoint.iterdir() if path.stat().st_size)
    for path in files:
        content = path.read_bytes()
        yield from (Damage("flip", path.name, at, bit) for at in range(len(content)) for bit in range(8))
        yield from (Damage("cut", path.name, at) for at in range(len(content)))
        yield from (Damage("longer", path.name, at) for at in (1, 8, 4096))
        yield from (Damage("zeros", path.name, at) for at in range(0, len(content), 16) if any(content[at : at + 16]))
        yield Damage("missing", path.name)
        others = [other for other in (*files, older / path.name) if other != path and other.exists() and other.read_bytes() != content]
        yield from (Damage("swapped", path.name, at, 0, other) for at, other in enumerate(others))


def sample(checkpoint: Path, older: Path, count: int, seed: int) -> list[Damage]:
    """Return a sample of the damages (0: all), half of them other than flipped bits."""
    result = list(damages(checkpoint, older))
    if not count or count >= len(result):
        return result
    source = random.Random(seed)
    flips, others = ([damage for damage in result if (damage.kind == "flip") is expected] for expected in (True, False))
    chosen = source.sample(flips, min(len(flips), count // 2))
    return chosen + source.sample(others, min(len(others), count - len(chosen)))


def missed(checkpoint: Path, chosen: list[Damage], tell: Callable[[int, int], None]) -> list[str]:
    """Return the undetected damages, by reading every tensor and by `problems`; restore the files."""
    lost = []
    for number, damage in enumerate(chosen):
        if result := _with(damage, checkpoint, lambda: _read(checkpoint)):
            lost.append(f"{damage}: {result}")
        tell(number + 1, len(lost))
    return lost


def missed_by_sessions(checkpoint: Path, chosen: list[Damage], report: Path) -> None:
    """Write to `report` the damages that a session loads, or detects after variables have changed; runs in its own process."""
    with session_on(Case(ranks=2)) as session:
        before = state(77)
        session.write(before)
        lost = [f"{damage}: {result}" for damage in chosen if (result := _with(damage, checkpoint, lambda: _load(session, checkpoint, before)))]
        sessions.load(session, checkpoint)
        detected = session.read(list(before))
        if any(detected[name].tobytes() != value.tobytes() for name, value in state(NEW).items()):
            lost.append("the checkpoint itself is not loaded")
    report.write_text(json.dumps(lost))


def _with(damage: Damage, checkpoint: Path, view: Callable[[], str]) -> str:
    path = checkpoint / damage.file
    whole = path.read_bytes()
    content = damage.of(whole)
    try:
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        return view()
    finally:
        path.write_bytes(whole)


def _read(checkpoint: Path) -> str:
    """Return "" if reading every tensor raises an error that names the checkpoint, and `problems` finds one too."""
    if not list(problems(checkpoint)):
        return "`problems` finds none"
    try:
        result = store.load(checkpoint)
        for name in result:
            _ = result[name]
    except CheckpointError as error:
        return "" if str(checkpoint) in str(error) else f"the error does not say where: {error}"
    return "every tensor is read"


def _load(session: Session, checkpoint: Path, before: dict[str, object]) -> str:
    try:
        sessions.load(session, checkpoint)
    except CheckpointError:
        after = session.read(list(before))
        same = all(after[name].tobytes() == value.tobytes() for name, value in before.items())  # type: ignore[attr-defined]
        return "" if same else "variables had changed before it was found"
    return "it is loaded"
