"""The tree of an unchecked configuration: plain values with their source positions, and the list of problems.

A path is the sequence of keys and positions of a value, ("model", "layers", "0").  Users read "model.layers.0"; keys with dots are quoted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError

#: longest message in characters, and largest number of problems in one error
LETTERS, MOST = 500, 200

Path: TypeAlias = tuple[str, ...]
_STEP = re.compile(r'"(?:[^"\\]|\\.)*"|[^."]+')


def dotted(path: Path) -> str:
    """Format a path with dots, for users."""
    return ".".join(json.dumps(step, ensure_ascii=False) if not step or set(step) & set('."') else step for step in path)


def steps_of(text: str) -> Path:
    """Parse a dotted path."""
    return tuple(json.loads(step) if step.startswith('"') else step for step in _STEP.findall(text))


def prefixes(path: Path) -> list[Path]:
    """Return all prefixes of a path, from the empty path to the path itself."""
    return [path[:i] for i in range(len(path) + 1)]


# -------------------------------------------------------------------- problems


@dataclass(frozen=True)
class Origin:
    """The source position of a value; prints as ``lenet.yaml:12``.  `line` and `column` count from 1; 0 for a source without lines."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


#: the origin of defaults
DEFAULT = Origin("default")


@dataclass(frozen=True)
class Problem:
    """One problem of a configuration; `key` is the path of the value, such as "optimizer.lr", and `legal` describes the legal values."""

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
    """All problems of a configuration, in the order of files and lines."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = list(problems)

    @property
    def told(self) -> str:
        return "\n".join(f"{ConfigError.__name__}: {problem}" for problem in self.problems)

    def __reduce__(self) -> tuple[type[ConfigErrors], tuple[list[Problem]]]:
        return ConfigErrors, (self.problems,)


class Problems:
    """A collection of problems, at most one per position and key."""

    def __init__(self) -> None:
        self.by_place: dict[tuple[Origin, Path], Problem] = {}
        #: keys removed by a null -> the position of the null
        self.removed: dict[Path, Origin] = {}
        #: missing or wrong keys, including those without a report because another problem explains them
        self.unreported: set[Path] = set()
        #: paths of problems with all their prefixes
        self._around: set[Path] = set()

    def add(self, at: Origin, path: Path, message: str, legal: str = "") -> None:
        """Add a problem; raise ConfigErrors at MOST problems, so that a hostile file cannot cause endless checks."""
        short = message if len(message) <= LETTERS else f"{message[: LETTERS - 100]} ... {message[-100:]}"
        self.by_place.setdefault((at, path), Problem(at.file, at.line, at.column, dotted(path), short, legal))
        self._around.update(prefixes(path))
        if len(self.by_place) >= MOST:
            self.stop_if_any(())

    def about(self, path: Path) -> bool:
        """Return True if the value at a path, or a value inside this value, has a problem."""
        return path in self._around

    def spoil(self, path: Path) -> bool:
        """Return True if rules cannot use the value at a path, because the value, an inner value or an outer value has a problem."""
        wrong = {wrong for _, wrong in self.by_place} | self.unreported
        return self.about(path) or not wrong.isdisjoint(prefixes(path)[1:]) or any(other[: len(path)] == path for other in self.unreported)

    def stop_if_any(self, files: Sequence[str]) -> None:
        """Raise ConfigErrors if there are problems, ordered by line within the given order of files and settings."""
        places = {file: i for i, file in enumerate(files)}
        problems = sorted(self.by_place.values(), key=lambda p: (places.get(p.file, len(places)), p.line, p.column))
        # a problem with a default follows from a value in a file
        if problems:
            raise ConfigErrors([problem for problem in problems if problem.file != DEFAULT.file] or problems)


# -------------------------------------------------------------------- values and their places


class Mark(NamedTuple):
    """The source position of a value, and of its key if the key has a position."""

    at: Origin
    key: Origin | None = None


#: the result for a path without a value; None is the value null
MISSING = object()


def child(value: Any, step: str) -> Any:
    """Return the entry of a map at a key, or of a list at a position; `MISSING` without an entry."""
    if isinstance(value, list):
        return value[int(step)] if step.isdecimal() and int(step) < len(value) else MISSING
    return value.get(step, MISSING) if isinstance(value, dict) else MISSING


def walk(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield (path, value) for the value and for all values inside it; `path` is the path of the outermost value."""
    yield path, value
    for step, inner in enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ():
        yield from walk(inner, (*path, str(step)))


def replaced(value: Any, path: Path, inner: Any) -> Any:
    """Return a copy of `value` with `inner` at `path`; create missing maps along the path."""
    if not path:
        return inner
    if isinstance(value, list):
        return [replaced(entry, path[1:], inner) if str(i) == path[0] else entry for i, entry in enumerate(value)]
    return {**value, path[0]: replaced(value.get(path[0], {}), path[1:], inner)}


@dataclass(frozen=True)
class Tree:
    """Plain values, and the source positions of values from files and settings.  Positions of values that null removed may remain."""

    plain: Any
    marks: Mapping[Path, Mark]

    def find(self, path: Path) -> Any:
        """Return the value at a path, or `MISSING`."""
        value = self.plain
        for step in path:
            value = child(value, step)
        return value

    def get(self, path: str) -> Any:
        """Return the value at a dotted path; None if the value is null or missing."""
        value = self.find(steps_of(path))
        return None if value is MISSING else value

    def has(self, path: str) -> bool:
        return self.find(steps_of(path)) is not MISSING

    def mark(self, path: Path) -> Mark:
        """Return the source position of a value, or of the innermost value around it that has a position."""
        return next(self.marks[outer] for outer in reversed(prefixes(path)) if outer in self.marks and self.find(outer) is not MISSING)

    def place(self, path: Path) -> Origin:
        """Return the position to report for a wrong or incomplete value: the key of a map or list, else the value itself."""
        nearest = next(self.find(outer) for outer in reversed(prefixes(path)) if self.find(outer) is not MISSING)
        mark = self.mark(path)
        return mark.key if mark.key is not None and isinstance(nearest, dict | list) else mark.at

    def key_place(self, path: Path) -> Origin:
        """Return the source position of the key at a path, or of the value if the key has no position."""
        return self.mark(path).key or self.mark(path).at

    def having(self, path: Path, value: Any, mark: Mark) -> Tree:
        """Return a copy of the tree with `value` at `path` and with the source position `mark`; new maps along the path share this position."""
        created = {outer: Mark(mark.at, mark.at) for outer in prefixes(path) if self.find(outer) is MISSING}
        marks = {inner: known for inner, known in self.marks.items() if inner[: len(path)] != path}
        return Tree(replaced(self.plain, path, value), {**marks, **created, path: mark})

    def under(self, above: Tree, removed: dict[Path, Origin]) -> Tree:
        """Return this tree overridden by `above`: maps are merged key by key, and lists are replaced.

        A null in `above` removes a key of this tree. The path of each removed key and the position of its null are added to `removed`.
        """

        overridden: set[Path] = set()

        def merged(base: dict[str, Any], over: dict[str, Any], path: Path) -> dict[str, Any]:
            result = dict(base)
            for key, value in over.items():
                if value is None and key in base:
                    del result[key]
                    removed[*path, key] = above.marks[*path, key].at
                else:
                    both = isinstance(value, dict) and isinstance(base.get(key), dict)
                    overridden.update([] if both else [(*path, key)])
                    result[key] = merged(base[key], value, (*path, key)) if both else value
            return result

        plain = merged(self.plain, above.plain, ())
        marks = {path: mark for path, mark in self.marks.items() if overridden.isdisjoint(prefixes(path))}
        return Tree(plain, {**marks, **above.marks})
