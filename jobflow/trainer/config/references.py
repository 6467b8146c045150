"""`${a.b.c}` and `${env:NAME}` -> the values they stand for.

A value that is nothing but a reference is what it refers to, a map or a list too; inside a longer text it is written out.  A reference
may lead to another one.  `${env:NAME, otherwise}` is a variable of the environment; alone, it is read as YAML reads a word, so that it
may be a number.  There is no other way into the environment.  `$${` is a plain `${`.
"""

from __future__ import annotations

import os
import re
from itertools import islice
from typing import Any

from jobflow.core.errors import did_you_mean
from jobflow.trainer.config.keys import close_key, default_at, fields_of, sections_at
from jobflow.trainer.config.reading import DEPTH, value_of
from jobflow.trainer.config.tree import DEFAULT, MISSING, Mark, Path, Problems, Tree, dotted, walk

_MARK = re.compile(r"\$\$\{|\$\{([^${}]*)\}|\$\{")
_ENVIRONMENT = re.compile(r"env:\s*([A-Za-z_]\w*)\s*(?:,(.*))?")
_PATH = re.compile(r"[\w-]+(\.[\w-]+)*")


def resolved(tree: Tree, problems: Problems) -> Tree:
    """The tree without references; values whose references lead nowhere are taken out of maps, and stay in lists as they are written."""
    references = _References(tree, problems)
    return Tree(references.value(tree.plain), references.marks)


class _Broken(Exception):
    """A reference leads nowhere: what is wrong, what would work, and at which other value to say so; no message if that is said already."""

    def __init__(self, message: str = "", legal: str = "", path: Path | None = None) -> None:
        super().__init__(message)
        self.message, self.legal, self.path = message, legal, path


class _References:
    def __init__(self, tree: Tree, problems: Problems) -> None:
        self.tree, self.problems = tree, problems
        self.marks = dict(tree.marks)
        self.done: dict[Path, Any] = {}
        self.broken: list[Path] = []

    def value(self, value: Any, path: Path = (), chain: tuple[Path, ...] = ()) -> Any:
        """What stands under a path, without references; `MISSING` if they lead nowhere.  `chain`: the paths whose values are being looked for."""
        if isinstance(value, dict):
            found = {key: self.value(inner, (*path, key), chain) for key, inner in value.items()}
            return {key: inner for key, inner in found.items() if inner is not MISSING}
        if isinstance(value, list):
            entries = [self.value(inner, (*path, str(i)), chain) for i, inner in enumerate(value)]
            return [old if new is MISSING else new for old, new in zip(value, entries, strict=True)]
        if isinstance(value, str) and path not in self.done:
            try:
                self.done[path] = self.text(value, (*chain, path))
            except _Broken as broken:
                self.done[path] = MISSING
                self.broken.append(path)
                if broken.message:
                    where = broken.path or path
                    self.problems.add(self.tree.mark(where).at, where, broken.message, broken.legal)
        return self.done[path] if isinstance(value, str) else value

    def text(self, text: str, chain: tuple[Path, ...]) -> Any:
        alone = _MARK.fullmatch(text)
        return self.meant(alone[1], chain, True) if alone is not None and alone[1] is not None else _MARK.sub(lambda f: self.written(f, chain), text)

    def written(self, found: re.Match[str], chain: tuple[Path, ...]) -> str:
        """A reference inside a text, as text."""
        if found[0] == "$${":
            return "${"
        if found[1] is None:
            raise _Broken('"${" without "}"', "write ${a.key}, or $${ for a plain ${; references do not stand inside references")
        meant = self.meant(found[1], chain, False)
        if isinstance(meant, dict | list):
            raise _Broken(f"{found[0]} is {'a map' if isinstance(meant, dict) else 'a list'}, which cannot be part of a text")
        return {True: "true", False: "false", None: "null"}[meant] if meant is None or isinstance(meant, bool) else str(meant)

    def meant(self, inside: str, chain: tuple[Path, ...], alone: bool) -> Any:
        """What `${inside}` stands for."""
        text = inside.strip()
        if text.startswith("env:"):
            return _environment(text, alone)
        if not _PATH.fullmatch(text):
            raise _Broken(f'"${{{inside}}}" is no reference', "write ${a.key}, ${env:NAME} or ${env:NAME, otherwise}")
        target: Path = tuple(text.split("."))
        entry = self.tree.find(target)
        if entry is MISSING:
            found = default_at(target, self.tree.plain)
            if found is None:
                raise _Broken(f"${{{inside}}}: there is no key {text}{self.near(target)}")
        elif any(before[: len(target)] == target for before in chain):
            written = (path for path in reversed(chain) if self.tree.mark(path).at != DEFAULT)  # told at a value that somebody wrote
            raise _Broken(f"references lead in a circle: {' -> '.join(map(dotted, (*chain, target)))}", "", next(written, None))
        elif len(chain) > DEPTH:
            raise _Broken(f"more than {DEPTH} references lead from one to the next")
        else:
            found = self.value(entry, target, chain)
            if any(path[: len(target)] == target for path in self.broken):
                raise _Broken
        if alone:
            for path, _ in islice(walk(found), 1, None):
                self.marks[*chain[-1], *path] = self.marks.get((*target, *path), Mark(self.tree.mark(chain[-1]).at))
        return found

    def near(self, target: Path) -> str:
        """What was probably meant by the path of a key that is not there."""
        text, owner = dotted(target), self.tree.find(target[:-1])
        if text in os.environ:
            return f"; write ${{env:{text}}} for the variable of the environment"
        known = [name for section in sections_at(target[:-1], self.tree.plain) for name in fields_of(section)]
        meant = close_key(target[-1], [*known, *owner]) if isinstance(owner, dict) else ""
        others = islice(walk(self.tree.plain), 1, 1000)
        return f'; did you mean "{dotted((*target[:-1], meant))}"?' if meant else did_you_mean(text, [dotted(path) for path, _ in others])


def _environment(inside: str, alone: bool) -> Any:
    match = _ENVIRONMENT.fullmatch(inside)
    if match is None:
        raise _Broken(f'"${{{inside}}}" is no reference', "write ${env:NAME} or ${env:NAME, otherwise}")
    text = os.environ.get(match[1], None if match[2] is None else match[2].strip())
    if text is None:
        advice = f"set it, or write what to take otherwise: ${{env:{match[1]}, otherwise}}"
        raise _Broken(f"there is no variable {match[1]} in the environment", advice)
    return value_of(text) if alone else text
