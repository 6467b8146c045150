"""`${a.b.c}` and `${env:NAME}` -> the values they stand for.

A value that is nothing but a reference is what it refers to, a map or a list too; inside a longer text it is written out.  A reference
may lead to another one.  `${env:NAME, otherwise}` is a variable of the environment; alone, it is read as YAML reads a word, so that it
may be a number.  There is no other way into the environment.  `$${` is a plain `${`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from jobflow.errors import did_you_mean
from jobflow.trainer.config.keys import close_key, section_at
from jobflow.trainer.config.paths import below, is_in, split, steps_of
from jobflow.trainer.config.problems import DEFAULT, Origin, Problems
from jobflow.trainer.config.reading import DEPTH, value_of
from jobflow.trainer.config.tree import Branch, Leaf, Listing, Tree, Value, at_path, walk

_MARK = re.compile(r"\$\$\{|\$\{([^${}]*)\}|\$\{")
_ENVIRONMENT = re.compile(r"env:\s*([A-Za-z_]\w*)\s*(?:,(.*))?")
_PATH = re.compile(r"\s*[\w-]+(\.[\w-]+)*\s*")


class _Broken(Exception):
    """A reference leads nowhere; its problem is told already."""


def resolved(tree: Branch, problems: Problems, default: Callable[[str], Any] = lambda path: None) -> tuple[Branch, set[str]]:
    """The tree without references, and the paths of values whose references lead nowhere: those stay as they are written.

    `default`: what a key has that nobody wrote, None if nothing.
    """
    resolving = _Resolving(tree, problems, default)
    changed = resolving.tree(tree, "", ())
    assert isinstance(changed, Branch)
    return changed, resolving.bad


class _Resolving:
    def __init__(self, root: Branch, problems: Problems, default: Callable[[str], Any]) -> None:
        self.root = root
        self.problems = problems
        self.default = default
        self.done: dict[str, Tree] = {}
        self.bad: set[str] = set()

    def tree(self, tree: Tree, path: str, chain: tuple[str, ...]) -> Tree:
        """What stands under a path.  `chain`: the paths whose values are being looked for."""
        if isinstance(tree, Branch):
            return replace(tree, entries={name: self.tree(entry, below(path, name), chain) for name, entry in tree.entries.items()})
        if isinstance(tree, Listing):
            return replace(tree, entries=tuple(self.tree(entry, below(path, i), chain) for i, entry in enumerate(tree.entries)))
        if not isinstance(tree.value, str) or "${" not in tree.value:
            return tree
        if path not in self.done:
            try:
                self.done[path] = self.text(tree, tree.value, path, chain)
            except _Broken:
                self.bad.add(path)
                self.done[path] = tree
        return self.done[path]

    def text(self, leaf: Leaf, text: str, path: str, chain: tuple[str, ...]) -> Tree:
        alone = _MARK.fullmatch(text)
        if alone is not None and alone[1] is not None:
            return replace(self.meant(leaf, alone[1], path, (*chain, path), True), at=leaf.at, name_at=leaf.name_at)
        parts: list[str] = []
        end = 0
        for found in _MARK.finditer(text):
            parts += [text[end : found.start()], self.written(leaf, found, path, chain)]
            end = found.end()
        return replace(leaf, value="".join((*parts, text[end:])))

    def written(self, leaf: Leaf, found: re.Match[str], path: str, chain: tuple[str, ...]) -> str:
        """A reference inside a text, as text."""
        if found[0] == "$${":
            return "${"
        if found[1] is None:
            raise self.broken(leaf.at, path, '"${" without "}"', "write ${a.key}, or $${ for a plain ${; references do not stand inside references")
        meant = self.meant(leaf, found[1], path, (*chain, path), False)
        if not isinstance(meant, Leaf):
            kind = "a map" if isinstance(meant, Branch) else "a list"
            raise self.broken(leaf.at, path, f"{found[0]} is {kind}, which cannot be part of a text")
        return _written(meant.value)

    def meant(self, leaf: Leaf, inside: str, path: str, chain: tuple[str, ...], alone: bool) -> Tree:
        if inside.lstrip().startswith("env:"):
            return Leaf(self.environment(leaf, inside.strip(), path, alone), leaf.at, leaf.name_at)
        if not _PATH.fullmatch(inside):
            advice = "write ${a.key}, ${env:NAME} or ${env:NAME, otherwise}"
            raise self.broken(leaf.at, path, f'"${{{inside}}}" is no reference', advice)
        target = inside.strip()
        entry = at_path(self.root, target)
        if entry is None:
            default = self.default(target)
            if default is None:
                raise self.broken(leaf.at, path, f"${{{inside}}}: there is no key {target}{self.near(target)}")
            return _tree(default, leaf.at)
        if any(is_in(before, target) for before in chain):
            raise self.circle(leaf, chain, target)
        if len(chain) > DEPTH:
            raise self.broken(leaf.at, path, f"more than {DEPTH} references lead from one to the next")
        found = self.tree(entry, target, chain)
        if any(is_in(path, target) for path in self.bad):
            raise _Broken
        return found

    def environment(self, leaf: Leaf, inside: str, path: str, alone: bool) -> Value:
        match = _ENVIRONMENT.fullmatch(inside)
        if match is None:
            raise self.broken(leaf.at, path, f'"${{{inside}}}" is no reference', "write ${env:NAME} or ${env:NAME, otherwise}")
        text = os.environ.get(match[1], None if match[2] is None else match[2].strip())
        if text is None:
            advice = f"set it, or write what to take otherwise: ${{env:{match[1]}, otherwise}}"
            raise self.broken(leaf.at, path, f"there is no variable {match[1]} in the environment", advice)
        return value_of(text) if alone else text

    def circle(self, leaf: Leaf, chain: tuple[str, ...], target: str) -> _Broken:
        """Tell of references that lead in a circle, at one that somebody wrote."""
        members = [(entry.at, path) for path in reversed(chain) if (entry := at_path(self.root, path)) is not None and entry.at != DEFAULT]
        at, path = members[0] if members else (leaf.at, chain[-1])
        return self.broken(at, path, f"references lead in a circle: {' -> '.join((*chain, target))}")

    def near(self, target: str) -> str:
        """What was probably meant by the path of a key that is not there."""
        if target in os.environ:
            return f"; write ${{env:{target}}} for the variable of the environment"
        above, key = split(target)
        owner = at_path(self.root, above)
        known = [name for section in section_at(steps_of(above), self.root) for name in section.model_fields]
        meant = close_key(key, [*known, *owner.entries]) if isinstance(owner, Branch) else ""
        return f'; did you mean "{below(above, meant)}"?' if meant else did_you_mean(target, [path for path, _ in walk(self.root) if path])

    def broken(self, at: Origin, path: str, message: str, legal: str = "") -> _Broken:
        self.problems.add(at, path, message, legal)
        return _Broken()


def _written(value: Value) -> str:
    return {True: "true", False: "false", None: "null"}[value] if value is None or isinstance(value, bool) else str(value)


def _tree(value: Any, at: Origin) -> Tree:
    if isinstance(value, dict):
        return Branch({name: _tree(entry, at) for name, entry in value.items()}, at)
    return Listing(tuple(_tree(entry, at) for entry in value), at) if isinstance(value, list | tuple) else Leaf(value, at)
