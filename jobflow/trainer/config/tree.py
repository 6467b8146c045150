"""What a configuration is before it is checked: maps, lists and values, each with the place where it is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from jobflow.trainer.config.paths import below, split, steps_of
from jobflow.trainer.config.problems import Origin

Value: TypeAlias = str | int | float | bool | None


@dataclass(frozen=True)
class Leaf:
    """A text, number, bool or null.  `name_at`: where its key is written, if it has one."""

    value: Value
    at: Origin
    name_at: Origin | None = None


@dataclass(frozen=True)
class Listing:
    """A list."""

    entries: tuple[Tree, ...]
    at: Origin
    name_at: Origin | None = None


@dataclass(frozen=True)
class Branch:
    """A map; its keys are texts."""

    entries: dict[str, Tree]
    at: Origin
    name_at: Origin | None = None


Tree: TypeAlias = Leaf | Listing | Branch


def plain(tree: Tree) -> Any:
    """The same without places."""
    if isinstance(tree, Branch):
        return {name: plain(entry) for name, entry in tree.entries.items()}
    return [plain(entry) for entry in tree.entries] if isinstance(tree, Listing) else tree.value


def place(tree: Tree) -> Origin:
    """Where to point for something that is wrong with a value: at the value itself, or at the key of a map or list."""
    return tree.at if isinstance(tree, Leaf) or tree.name_at is None else tree.name_at


def child(tree: Tree, step: str | int) -> Tree | None:
    """An entry of a map, or of a list by its position; None if there is none."""
    if isinstance(tree, Branch):
        return tree.entries.get(str(step))
    if isinstance(tree, Listing) and str(step).isdecimal() and int(step) < len(tree.entries):
        return tree.entries[int(step)]
    return None


def at_path(tree: Tree, path: str) -> Tree | None:
    """What stands under a dotted path; None if nothing does."""
    found: Tree | None = tree
    for step in steps_of(path):
        found = None if found is None else child(found, step)
    return found


def nearest(tree: Tree, path: str) -> Tree:
    """What stands under a dotted path or, if nothing does, under the longest beginning of it."""
    found = tree
    for step in steps_of(path):
        inside = child(found, step)
        if inside is None:
            break
        found = inside
    return found


def walk(tree: Tree, path: str = "") -> Iterator[tuple[str, Tree]]:
    """Everything in a tree with its path, itself first."""
    yield path, tree
    entries = tree.entries.items() if isinstance(tree, Branch) else enumerate(tree.entries) if isinstance(tree, Listing) else ()
    for name, entry in entries:
        yield from walk(entry, below(path, name))


def with_entry(tree: Branch, path: str, entry: Tree) -> Branch:
    """The tree with an entry under a dotted path; maps on the way are made where they are missing.

    Raises: KeyError with the path of what is no map, or of a position that a list has not.
    """
    changed = _with(tree, steps_of(path), entry, "")
    assert isinstance(changed, Branch)
    return changed


def _with(tree: Tree, steps: list[str], entry: Tree, path: str) -> Tree:
    if not steps:
        return replace(entry, name_at=entry.name_at or tree.name_at)
    step, *rest = steps
    inside = below(path, step)
    if isinstance(tree, Branch):
        made = _with(tree.entries.get(step, Branch({}, entry.at, entry.at)), rest, entry, inside)
        return replace(tree, entries={**tree.entries, step: made})
    old = child(tree, step)
    if not isinstance(tree, Listing) or old is None:
        raise KeyError(path)
    position = int(step)
    return replace(tree, entries=(*tree.entries[:position], _with(old, rest, entry, inside), *tree.entries[position + 1 :]))


def without(tree: Branch, path: str) -> Branch:
    """The tree without the entry under a dotted path, if it has one.  Entries of lists stay, as null."""
    head, last = split(path)
    parent = at_path(tree, head)
    if isinstance(parent, Branch) and last in parent.entries:
        smaller = replace(parent, entries={name: entry for name, entry in parent.entries.items() if name != last})
        return with_entry(tree, head, smaller) if head else smaller
    return tree
