"""Origins of values and problems with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
