"""`${a.b.c}` and `${env:NAME}` -> the values they stand for.

A value that is nothing but a reference is what it refers to, a map or a list too; inside a longer text it is written out.  A reference
may lead to another one.  `${env:NAME, otherwise}` is a variable of the environment; alone, it is read as YAML reads a word, so that it
may be a number.  There is no other way into the environment.  `$${` is a plain `${`.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from itertools import islice
from typing import Any

from jobflow.core.errors import did_you_mean
from jobflow.trainer.config.keys import close_key, default_at, fields_of, sections_at
from jobflow.trainer.config.reading import DEPTH, value_of
from jobflow.trainer.config.tree import DEFAULT, Node, Origin, Problems, below, is_in, node_of, split

_MARK = re.compile(r"\$\$\{|\$\{([^${}]*)\}|\$\{")
_ENVIRONMENT = re.compile(r"env:\s*([A-Za-z_]\w*)\s*(?:,(.*))?")
_PATH = re.compile(r"[\w-]+(\.[\w-]+)*")


class _Broken(Exception):
    """A reference leads nowhere: what is wrong, what would work, and where else than at the reference to say so; nothing if that is said already."""

    def __init__(self, message: str = "", legal: str = "", at: Origin | None = None, key: str = "") -> None:
        super().__init__(message)
        self.message, self.legal, self.at, self.key = message, legal, at, key


class References:
    """Follows the references of a tree; `bad` has the paths of values whose references lead nowhere, which stay as they are written."""

    def __init__(self, root: Node, problems: Problems) -> None:
        self.root, self.problems = root, problems
        self.done: dict[str, Node] = {}
        self.bad: set[str] = set()

    def resolved(self, tree: Node, path: str = "", chain: tuple[str, ...] = ()) -> Node:
        """What stands under a path, without references.  `chain`: the paths whose values are being looked for."""
        if not isinstance(tree.value, str):
            children = {step: self.resolved(entry, below(path, step), chain) for step, entry in tree.children.items()}
            return tree.holding(children) if children else tree
        if path not in self.done:
            try:
                self.done[path] = self.text(tree, (*chain, path))
            except _Broken as broken:
                self.bad.add(path)
                self.done[path] = tree
                if broken.message:
                    self.problems.add(broken.at or tree.at, broken.key or path, broken.message, broken.legal)
        return self.done[path]

    def text(self, leaf: Node, chain: tuple[str, ...]) -> Node:
        alone = _MARK.fullmatch(leaf.value)
        if alone is not None and alone[1] is not None:
            return replace(self.meant(alone[1], leaf.at, chain, True), at=leaf.at, key_at=leaf.key_at)
        return replace(leaf, value=_MARK.sub(lambda found: self.written(found, leaf.at, chain), leaf.value))

    def written(self, found: re.Match[str], at: Origin, chain: tuple[str, ...]) -> str:
        """A reference inside a text, as text."""
        if found[0] == "$${":
            return "${"
        if found[1] is None:
            raise _Broken('"${" without "}"', "write ${a.key}, or $${ for a plain ${; references do not stand inside references")
        meant = self.meant(found[1], at, chain, False).value
        if isinstance(meant, dict | tuple):
            raise _Broken(f"{found[0]} is {'a map' if isinstance(meant, dict) else 'a list'}, which cannot be part of a text")
        return {True: "true", False: "false", None: "null"}[meant] if meant is None or isinstance(meant, bool) else str(meant)

    def meant(self, inside: str, at: Origin, chain: tuple[str, ...], alone: bool) -> Node:
        """What `${inside}` stands for."""
        target = inside.strip()
        if target.startswith("env:"):
            return Node(_environment(target, alone), at)
        if not _PATH.fullmatch(target):
            raise _Broken(f'"${{{inside}}}" is no reference', "write ${a.key}, ${env:NAME} or ${env:NAME, otherwise}")
        entry = self.root.get(target)
        if entry is None:
            default = default_at(target, self.root)
            if default is None:
                raise _Broken(f"${{{inside}}}: there is no key {target}{self.near(target)}")
            return node_of(default, at)
        if any(is_in(before, target) for before in chain):
            # told at a value that somebody wrote
            written = [(other.at, key) for key in reversed(chain) if (other := self.root.get(key)) is not None and other.at != DEFAULT]
            raise _Broken(f"references lead in a circle: {' -> '.join((*chain, target))}", "", *(written or [(at, chain[-1])])[0])
        if len(chain) > DEPTH:
            raise _Broken(f"more than {DEPTH} references lead from one to the next")
        found = self.resolved(entry, target, chain)
        if any(is_in(bad, target) for bad in self.bad):
            raise _Broken
        return found

    def near(self, target: str) -> str:
        """What was probably meant by the path of a key that is not there."""
        if target in os.environ:
            return f"; write ${{env:{target}}} for the variable of the environment"
        above, key = split(target)
        owner = self.root.get(above)
        known = [name for section in sections_at(above, self.root) for name in fields_of(section)]
        meant = close_key(key, [*known, *owner.children]) if owner is not None and owner.is_map else ""
        return f'; did you mean "{below(above, meant)}"?' if meant else did_you_mean(target, [path for path, _ in islice(self.root.walk(), 1, 1000)])


def _environment(inside: str, alone: bool) -> Any:
    match = _ENVIRONMENT.fullmatch(inside)
    if match is None:
        raise _Broken(f'"${{{inside}}}" is no reference', "write ${env:NAME} or ${env:NAME, otherwise}")
    text = os.environ.get(match[1], None if match[2] is None else match[2].strip())
    if text is None:
        advice = f"set it, or write what to take otherwise: ${{env:{match[1]}, otherwise}}"
        raise _Broken(f"there is no variable {match[1]} in the environment", advice)
    return value_of(text) if alone else text
