"""A configuration before it is checked: maps, lists and values, each with its position in a file; and what is wrong with them.

A path is keys and positions with dots between them, "optimizer.lr", "model.layers.0"; a key that has dots in it is in quotes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jobflow.core.errors import ConfigError

#: letters of a message, whatever it quotes, and how many problems are told at once
LETTERS, MOST = 500, 200


@dataclass(frozen=True)
class Origin:
    """Where a value is written; prints as ``lenet.yaml:12``.  `line` and `column` count from 1; 0 where there are no lines."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


#: of values that nobody wrote
DEFAULT = Origin("default")


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong; `key` is the path of the value, such as "optimizer.lr", `legal` what may stand there."""

    file: str
    line: int
    column: int
    key: str
    message: str
    legal: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return f"{where}: {self.message}" + (f"\n    {self.legal}" if self.legal else "")


class ConfigErrors(ConfigError):
    """Everything that is wrong with a configuration, in the order of files and lines."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = list(problems)

    @property
    def told(self) -> str:
        return "\n".join(f"{ConfigError.__name__}: {problem}" for problem in self.problems)

    def __reduce__(self) -> tuple[type[ConfigErrors], tuple[list[Problem]]]:
        return ConfigErrors, (self.problems,)


class Problems:
    """Collects problems; at most one is kept for a place and a key."""

    def __init__(self) -> None:
        self.found: dict[tuple[Origin, str], Problem] = {}
        #: keys that a null has taken away, and where it stands
        self.taken: dict[str, Origin] = {}
        #: keys that are missing, even if nothing is said of it because another problem explains it
        self.unsaid: set[str] = set()
        #: keys with something wrong inside of them, too
        self._around: set[str] = set()

    def add(self, at: Origin, key: str, message: str, legal: str = "") -> None:
        """ConfigErrors if there are more than anybody reads: what is wrong with a hostile file is not looked for any longer."""
        short = message if len(message) <= LETTERS else f"{message[: LETTERS - 100]} ... {message[-100:]}"
        self.found.setdefault((at, key), Problem(at.file, at.line, at.column, key, short, legal))
        self._around |= prefixes(key)
        if len(self.found) >= MOST:
            self.stop_if_any(())

    def about(self, key: str) -> bool:
        """True if something is wrong with the value of that key, or inside it."""
        return key in self._around

    def spoil(self, key: str) -> bool:
        """True if the value of that key cannot be judged: something is wrong with it, inside it, or with what it stands in."""
        wrong = {path for _, path in self.found if path} | self.unsaid
        return self.about(key) or any(is_in(path, key) for path in self.unsaid) or not wrong.isdisjoint(prefixes(key))

    def stop_if_any(self, files: Sequence[str]) -> None:
        """ConfigErrors if there are any, by lines; files, and settings, in the given order."""
        places = {file: i for i, file in enumerate(files)}
        found = sorted(self.found.values(), key=lambda p: (places.get(p.file, len(places)), p.line, p.column))
        # what is wrong with a value that nobody wrote comes from one that somebody wrote
        if found:
            raise ConfigErrors([problem for problem in found if problem.file != DEFAULT.file] or found)


def is_in(path: str, other: str) -> bool:
    """Whether a path is another one or leads to something inside of it."""
    return path == other or path.startswith(f"{other}.") or not other


def prefixes(path: str) -> set[str]:
    """A path and those of all that it stands in."""
    return {"", path, *(path[:i] for i, letter in enumerate(path) if letter == ".")}


# -------------------------------------------------------------------- the tree

_STEP = re.compile(r'"(?:[^"\\]|\\.)*"|[^."]+')


def below(path: str, *steps: str | int) -> str:
    """The path of what stands under some steps from a path."""
    quoted = (json.dumps(text, ensure_ascii=False) if not text or set(text) & set('."') else text for text in map(str, steps))
    return ".".join([*([path] if path else []), *quoted])


def steps_of(path: str) -> list[str]:
    """The steps of a path."""
    return [json.loads(step) if step.startswith('"') else step for step in _STEP.findall(path)]


def split(path: str) -> tuple[str, str]:
    """The path of what something stands in, and its key there."""
    *above, key = steps_of(path)
    return below("", *above), key


@dataclass(frozen=True)
class Node:
    """A map (dict), a list (tuple), or a text, number, bool or null; `key_at`: where its key is written, if it has one."""

    value: Any
    at: Origin
    key_at: Origin | None = None

    @property
    def is_map(self) -> bool:
        return isinstance(self.value, dict)

    @property
    def children(self) -> Mapping[str, Node]:
        """What stands in a map, or in a list by position; nothing stands in a value."""
        if isinstance(self.value, tuple):
            return {str(i): entry for i, entry in enumerate(self.value)}
        return self.value if isinstance(self.value, dict) else {}

    def child(self, step: str | int) -> Node | None:
        """What stands under a key, or at a position; None if nothing does."""
        if isinstance(self.value, tuple):
            return self.value[int(step)] if str(step).isdecimal() and int(step) < len(self.value) else None
        return self.children.get(str(step))

    @property
    def place(self) -> Origin:
        """Where to point for something that is wrong with it: at a value itself, or at the key of a map or list."""
        return self.key_at if self.key_at is not None and isinstance(self.value, dict | tuple) else self.at

    @property
    def plain(self) -> Any:
        """The same without places."""
        if isinstance(self.value, dict):
            return {key: entry.plain for key, entry in self.value.items()}
        return [entry.plain for entry in self.value] if isinstance(self.value, tuple) else self.value

    def holding(self, entries: Mapping[str, Node]) -> Node:
        """The same map, or list, with other entries."""
        return replace(self, value=dict(entries) if self.is_map else tuple(entries.values()))

    def get(self, path: str) -> Node | None:
        """What stands under a path; None if nothing does."""
        found: Node | None = self
        for step in steps_of(path):
            found = found and found.child(step)
        return found

    def nearest(self, path: str) -> Node:
        """What stands under a path or, if nothing does, under the longest beginning of it."""
        steps, found = steps_of(path), self
        while steps and (inside := found.child(steps.pop(0))) is not None:
            found = inside
        return found

    def walk(self, path: str = "") -> Iterator[tuple[str, Node]]:
        """Everything in a tree with its path, itself first."""
        yield path, self
        for step, entry in self.children.items():
            yield from entry.walk(below(path, step))

    def having(self, path: str, entry: Node) -> Node:
        """The tree with an entry under a path; maps on the way are made where they are missing.

        Raises: KeyError with the path of what is no map, or of a position that a list has not.
        """
        return self._having(steps_of(path), entry, "")

    def _having(self, steps: list[str], entry: Node, path: str) -> Node:
        if not steps:
            return replace(entry, key_at=entry.key_at or self.key_at)
        step, old = steps[0], self.child(steps[0])
        if old is None and not self.is_map:
            raise KeyError(path)
        changed = (old or Node({}, entry.at, entry.at))._having(steps[1:], entry, below(path, step))
        return self.holding({**self.children, step: changed})

    def without(self, path: str) -> Node:
        """The tree without the entry under a path, if it has one.  Entries of lists stay, as null."""
        head, last = split(path)
        parent = self.get(head)
        if parent is None or not parent.is_map or last not in parent.children:
            return self
        return self.having(head, parent.holding({key: entry for key, entry in parent.children.items() if key != last}))


def node_of(value: Any, at: Origin) -> Node:
    """The tree of plain values, all at one place."""
    if isinstance(value, dict):
        return Node({key: node_of(entry, at) for key, entry in value.items()}, at)
    return Node(tuple(node_of(entry, at) for entry in value) if isinstance(value, list | tuple) else value, at)
