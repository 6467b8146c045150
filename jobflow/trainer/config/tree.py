"""A configuration before it is checked: plain values, and beside them where each is written; and what is wrong with them.

A path is the keys and positions that lead to a value, ("model", "layers", "0"); people read "model.layers.0", with keys that have dots in quotes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError

#: letters of a message, whatever it quotes, and how many problems are told at once
LETTERS, MOST = 500, 200

Path: TypeAlias = tuple[str, ...]
_STEP = re.compile(r'"(?:[^"\\]|\\.)*"|[^."]+')


def dotted(path: Path) -> str:
    """A path as people read it."""
    return ".".join(json.dumps(step, ensure_ascii=False) if not step or set(step) & set('."') else step for step in path)


def steps_of(text: str) -> Path:
    """The path that a text is."""
    return tuple(json.loads(step) if step.startswith('"') else step for step in _STEP.findall(text))


def prefixes(path: Path) -> list[Path]:
    """A path and those of all that it stands in, the whole first."""
    return [path[:i] for i in range(len(path) + 1)]


# -------------------------------------------------------------------- what is wrong


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
        self.found: dict[tuple[Origin, Path], Problem] = {}
        #: keys that a null has taken away, and where it stands
        self.taken: dict[Path, Origin] = {}
        #: keys that are missing or wrong, even if nothing is said of it because another problem explains it
        self.unsaid: set[Path] = set()
        #: keys with something wrong inside of them, too
        self._around: set[Path] = set()

    def add(self, at: Origin, path: Path, message: str, legal: str = "") -> None:
        """ConfigErrors if there are more than anybody reads: what is wrong with a hostile file is not looked for any longer."""
        short = message if len(message) <= LETTERS else f"{message[: LETTERS - 100]} ... {message[-100:]}"
        self.found.setdefault((at, path), Problem(at.file, at.line, at.column, dotted(path), short, legal))
        self._around.update(prefixes(path))
        if len(self.found) >= MOST:
            self.stop_if_any(())

    def about(self, path: Path) -> bool:
        """True if something is wrong with the value of that key, or inside it."""
        return path in self._around

    def spoil(self, path: Path) -> bool:
        """True if the value of that key cannot be judged: something is wrong with it, inside it, or with what it stands in."""
        wrong = {wrong for _, wrong in self.found} | self.unsaid
        return self.about(path) or not wrong.isdisjoint(prefixes(path)[1:]) or any(unsaid[: len(path)] == path for unsaid in self.unsaid)

    def stop_if_any(self, files: Sequence[str]) -> None:
        """ConfigErrors if there are any, by lines; files, and settings, in the given order."""
        places = {file: i for i, file in enumerate(files)}
        found = sorted(self.found.values(), key=lambda p: (places.get(p.file, len(places)), p.line, p.column))
        # what is wrong with a value that nobody wrote comes from one that somebody wrote
        if found:
            raise ConfigErrors([problem for problem in found if problem.file != DEFAULT.file] or found)


# -------------------------------------------------------------------- values and their places


class Mark(NamedTuple):
    """Where a value is written, and its key, if it has one."""

    at: Origin
    key: Origin | None = None


#: given back for a path that leads nowhere, where null is a value
MISSING = object()


def child(value: Any, step: str) -> Any:
    """What stands under a key of a map, or at a position of a list; `MISSING` if nothing does."""
    if isinstance(value, list):
        return value[int(step)] if step.isdecimal() and int(step) < len(value) else MISSING
    return value.get(step, MISSING) if isinstance(value, dict) else MISSING


def walk(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every value with its path, itself first."""
    yield path, value
    for step, inner in enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ():
        yield from walk(inner, (*path, str(step)))


def replaced(value: Any, path: Path, inner: Any) -> Any:
    """A value with another one under a path; maps on the way are made where they are missing."""
    if not path:
        return inner
    if isinstance(value, list):
        return [replaced(entry, path[1:], inner) if str(i) == path[0] else entry for i, entry in enumerate(value)]
    return {**value, path[0]: replaced(value.get(path[0], {}), path[1:], inner)}


@dataclass(frozen=True)
class Tree:
    """Plain values, and the marks of those that somebody wrote; marks of what is there no longer do no harm."""

    plain: Any
    marks: Mapping[Path, Mark]

    def find(self, path: Path) -> Any:
        """What stands under a path, or `MISSING`."""
        found = self.plain
        for step in path:
            found = child(found, step)
        return found

    def get(self, path: str) -> Any:
        """What stands under a path that is written with dots; None if it is null or nothing does."""
        found = self.find(steps_of(path))
        return None if found is MISSING else found

    def has(self, path: str) -> bool:
        return self.find(steps_of(path)) is not MISSING

    def mark(self, path: Path) -> Mark:
        """That of a value or, if it has none, of what it stands in."""
        return next(self.marks[outer] for outer in reversed(prefixes(path)) if outer in self.marks and self.find(outer) is not MISSING)

    def place(self, path: Path) -> Origin:
        """Where to point for something that is wrong with a value, or is missing in it: at itself, or at the key of a map or list."""
        nearest = next(self.find(outer) for outer in reversed(prefixes(path)) if self.find(outer) is not MISSING)
        mark = self.mark(path)
        return mark.key if mark.key is not None and isinstance(nearest, dict | list) else mark.at

    def key_place(self, path: Path) -> Origin:
        """Where a key is written."""
        return self.mark(path).key or self.mark(path).at

    def having(self, path: Path, value: Any, mark: Mark) -> Tree:
        """The tree with a value under a path; the maps that are made on the way are where the value is."""
        made = {outer: Mark(mark.at, mark.at) for outer in prefixes(path) if self.find(outer) is MISSING}
        return Tree(replaced(self.plain, path, value), {**self.marks, **made, path: mark})

    def under(self, above: Tree, taken: dict[Path, Origin]) -> Tree:
        """This map with another over it: maps are merged key by key, lists are replaced, null takes away; `taken` gets what and where."""

        def merged(base: dict[str, Any], over: dict[str, Any], path: Path) -> dict[str, Any]:
            found = dict(base)
            for key, value in over.items():
                if value is None and key in base:
                    del found[key]
                    taken[*path, key] = above.marks[*path, key].at
                else:
                    both = isinstance(value, dict) and isinstance(base.get(key), dict)
                    found[key] = merged(base[key], value, (*path, key)) if both else value
            return found

        return Tree(merged(self.plain, above.plain, ()), {**self.marks, **above.marks})
