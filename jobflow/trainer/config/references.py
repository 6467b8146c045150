"""Replacement of references `${a.b.c}` and `${env:NAME}` by values.

A value that consists of one reference becomes the referenced value, which may be a map or a list. Inside a longer string, the referenced value is
inserted as a string. References may be chained. `${env:NAME, otherwise}` is an environment variable with a default. If the reference is the whole
value, the variable is parsed as a YAML word, so that the result may be a number. Configurations have no other access to the environment.
`${facts.NAME.size}` in model.arguments stays until the readers are opened. `$${` is a plain `${`.
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
#: a fact of the training samples, whose value is known after the readers are opened
FACT = re.compile(r"\$\{facts\.(.+)\.(size|count)\}")
_PATH = re.compile(r"[\w-]+(\.[\w-]+)*")


def resolved(tree: Tree, problems: Problems) -> Tree:
    """Replace references in the tree.  Values with broken references are removed from maps; lists keep them as strings."""
    references = _References(tree, problems)
    return Tree(references.value(tree.plain), references.marks)


class _Broken(Exception):
    """A broken reference: the message and the advice; `path` is set if the problem is reported at another value.

    The message is "" if the problem was already reported.
    """

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
        """Return the value with its references replaced, or `MISSING` for a broken reference; `chain` lists the paths being resolved."""
        if isinstance(value, dict):
            entries_by_key = {key: self.value(inner, (*path, key), chain) for key, inner in value.items()}
            return {key: inner for key, inner in entries_by_key.items() if inner is not MISSING}
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
        return (
            self.target_value(alone[1], chain, True)
            if alone is not None and alone[1] is not None
            else _MARK.sub(lambda f: self.written(f, chain), text)
        )

    def written(self, match: re.Match[str], chain: tuple[Path, ...]) -> str:
        """Return the string that replaces a reference inside a longer string."""
        if match[0] == "$${":
            return "${"
        if match[1] is None:
            raise _Broken('"${" without "}"', "write ${a.key}, or $${ for a plain ${; references cannot be nested")
        target = self.target_value(match[1], chain, False)
        if isinstance(target, dict | list):
            raise _Broken(f"{match[0]} is {'a map' if isinstance(target, dict) else 'a list'}, which cannot be part of a string")
        return {True: "true", False: "false", None: "null"}[target] if target is None or isinstance(target, bool) else str(target)

    def target_value(self, inside: str, chain: tuple[Path, ...], alone: bool) -> Any:
        """Return the value of the reference `${inside}`; `alone` is True if the reference is the whole value."""
        text = inside.strip()
        if text.startswith("env:"):
            return _environment(text, alone)
        if text.startswith("facts."):
            return _fact(text, chain, alone)
        if not _PATH.fullmatch(text):
            raise _Broken(f'"${{{inside}}}" is not a reference', "write ${a.key}, ${env:NAME} or ${env:NAME, otherwise}")
        target: Path = tuple(text.split("."))
        entry = self.tree.find(target)
        if entry is MISSING:
            result = default_at(target, self.tree.plain)
            if result is None:
                raise _Broken(f"${{{inside}}}: there is no key {text}{self.near(target)}")
        elif any(before[: len(target)] == target for before in chain):
            written = (path for path in reversed(chain) if self.tree.mark(path).at != DEFAULT)  # report at a value from a file or setting
            raise _Broken(f"references form a cycle: {' -> '.join(map(dotted, (*chain, target)))}", "", next(written, None))
        elif len(chain) > DEPTH:
            raise _Broken(f"the chain of references is longer than {DEPTH}")
        else:
            result = self.value(entry, target, chain)
            if any(path[: len(target)] == target for path in self.broken):
                raise _Broken
        if alone:
            for path, _ in islice(walk(result), 1, None):
                self.marks[*chain[-1], *path] = self.marks.get((*target, *path), Mark(self.tree.mark(chain[-1]).at))
        return result

    def near(self, target: Path) -> str:
        """Return advice for a reference to a missing key, starting with "; "; "" if no key is similar."""
        text, owner = dotted(target), self.tree.find(target[:-1])
        if text in os.environ:
            return f"; write ${{env:{text}}} for the environment variable"
        known = [name for section in sections_at(target[:-1], self.tree.plain) for name in fields_of(section)]
        meant = close_key(target[-1], [*known, *owner]) if isinstance(owner, dict) else ""
        others = islice(walk(self.tree.plain), 1, 1000)
        return f'; did you mean "{dotted((*target[:-1], meant))}"?' if meant else did_you_mean(text, [dotted(path) for path, _ in others])


def _fact(text: str, chain: tuple[Path, ...], alone: bool) -> str:
    """Return a reference to a fact of the training samples unchanged; it is resolved after the readers are opened."""
    if not FACT.fullmatch(f"${{{text}}}"):
        raise _Broken(f'"${{{text}}}" is not a fact', "write such as ${facts.city.size} or ${facts.classes.count}")
    if not alone or chain[0][:2] != ("model", "arguments") or len(chain[0]) < 3:
        raise _Broken(f"${{{text}}} is known after the readers are opened, and only whole values in model.arguments may refer to it")
    return f"${{{text}}}"


def _environment(inside: str, alone: bool) -> Any:
    match = _ENVIRONMENT.fullmatch(inside)
    if match is None:
        raise _Broken(f'"${{{inside}}}" is not a reference', "write ${env:NAME} or ${env:NAME, otherwise}")
    text = os.environ.get(match[1], None if match[2] is None else match[2].strip())
    if text is None:
        advice = f"set it, or write a default: ${{env:{match[1]}, otherwise}}"
        raise _Broken(f"the environment variable {match[1]} is not set", advice)
    return value_of(text) if alone else text
