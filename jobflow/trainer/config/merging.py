"""Files and settings -> one tree.

`extends: base.yaml`, or a list of files, begins a configuration with those, each over the ones before it, and the file itself over all of
them.  Names of files are relative to the file that names them.  Maps are merged key by key, lists are replaced, and null takes away
what was there, so that it is as if nobody had said anything.  `--set a.b=VALUE` comes over all files; VALUE is YAML.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from jobflow.core.errors import FileError, did_you_mean
from jobflow.core.untrusted import CONFIGURATION, content
from jobflow.trainer.config.problems import Origin, Problems
from jobflow.trainer.config.reading import DEPTH, read
from jobflow.trainer.config.tree import Node, below, steps_of


def merged(base: Node, above: Node, taken: dict[str, Origin], path: str = "") -> Node:
    """A map over another; `taken` gets the keys below `path` that a null takes away."""
    entries = dict(base.children)
    for key, entry in above.children.items():
        old = entries.get(key)
        if old is not None and entry.value is None:
            del entries[key]
            taken[below(path, key)] = entry.at
        else:
            entries[key] = merged(old, entry, taken, below(path, key)) if old is not None and old.is_map and entry.is_map else entry
    return above.holding(entries)


class Files:
    """The files of a configuration, read once each."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.trees: dict[str, Node] = {}
        #: as they are called in messages, in the order in which they were read
        self.names: list[str] = []
        #: True if one could not be read, or is no YAML: then nothing can be said about what is missing
        self.unread = False

    def tree(self, file: str, named_at: Origin | None = None, chain: tuple[str, ...] = ()) -> Node:
        """What a file says, together with the files that it extends.  `named_at`: where another file names it."""
        real, at = os.path.realpath(file), Origin(file, 1, 1)
        if real in chain:
            circle = " -> ".join(os.path.basename(name) for name in (*chain[chain.index(real) :], real))
            return self.nothing(at, named_at or at, "extends", f"files extend each other in a circle: {circle}")
        if len(chain) >= DEPTH:
            return self.nothing(at, named_at or at, "extends", f"more than {DEPTH} files extend each other in a row")
        if real not in self.trees:
            own = self.own(file, named_at)
            tree = Node({}, own.at)
            for base in (*self.bases(own, file, (*chain, real)), own.without("extends")):
                tree = merged(tree, base, self.problems.taken)
            self.trees[real] = tree
        return self.trees[real]

    def nothing(self, file: Origin, at: Origin, key: str, message: str, legal: str = "") -> Node:
        """What is taken in place of a file, after a problem."""
        self.unread = True
        self.problems.add(at, key, message, legal)
        return Node({}, file)

    def own(self, file: str, named_at: Origin | None) -> Node:
        """What the file itself says."""
        begin = Origin(file, 1, 1)
        try:
            text = content(file, CONFIGURATION).decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            return self.nothing(begin, named_at or begin, "extends" if named_at else "", _unreadable(file, error))
        self.names.append(file)
        tree = read(text, file, self.problems)
        if tree is None or tree.is_map:
            self.unread = self.unread or tree is None
            return tree or Node({}, begin)
        kind = "a list" if isinstance(tree.value, tuple) else "a text"
        told = "the file is empty" if tree.value is None else f"a configuration is a map of sections, not {kind}"
        return self.nothing(begin, tree.at, "", told, "it begins such as: model: ..., data: ..., optimizer: ..., training: ...")

    def bases(self, own: Node, file: str, chain: tuple[str, ...]) -> list[Node]:
        """The files that a file extends."""
        given = own.children.get("extends")
        return [] if given is None else [self.base(one, file, chain) for one in (given.value if isinstance(given.value, tuple) else (given,))]

    def base(self, named: Node, file: str, chain: tuple[str, ...]) -> Node:
        if not isinstance(named.value, str) or not named.value:
            told = "extends takes the name of a file, or a list of them, such as: extends: base.yaml"
        elif "${" in named.value:
            told = "extends is read before references are; write the name of the file"
        else:
            return self.tree(os.path.normpath(os.path.join(os.path.dirname(file), named.value)), named.at, chain)
        return self.nothing(named.at, named.at, "extends", told)


def _unreadable(file: str, error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"{file} is not text in UTF-8: byte {error.start} is 0x{error.object[error.start]:02X}"
    if isinstance(error, FileNotFoundError):
        folder = os.path.dirname(file) or "."
        near = [name for name in os.listdir(folder) if name.endswith((".yaml", ".yml"))] if os.path.isdir(folder) else []
        return f"there is no file {file}{did_you_mean(os.path.basename(file), near)}"
    return str(error) if isinstance(error, FileError) else f"{file} cannot be read: {getattr(error, 'strerror', error)}"


def origin_of(setting: str) -> Origin:
    """Where the value of a setting is from."""
    return Origin(f"--set {setting}")


def with_settings(tree: Node, settings: Sequence[str], problems: Problems) -> Node:
    """The tree with `a.b=VALUE` over it, one after another."""
    for setting in settings:
        at = origin_of(setting)
        path, sign, text = setting.partition("=")
        path = path.strip()
        if not sign or not path or below("", *steps_of(path)) != path:
            problems.add(at, path, f'"{setting}" is no setting', "write a key, = and a value, such as: --set optimizer.lr=0.1")
        elif len(steps_of(path)) > DEPTH:
            problems.add(at, path, f"a key has at most {DEPTH} steps")
        elif path == "extends":
            problems.add(at, path, "extends can be set in files only")
        elif not text.strip():
            problems.add(at, path, f"there is no value for {path}", f"write {path}=null to take away what files say")
        elif (value := read(text, at.file, problems, at, path)) is not None:
            tree = _with_setting(tree, path, replace(value, key_at=at), problems)
    return tree


def _with_setting(tree: Node, path: str, value: Node, problems: Problems) -> Node:
    try:
        changed = tree.having(path, value)
    except KeyError as error:
        problems.add(value.at, path, f"{path} cannot be set: {error.args[0]} is no map, and has no such position")
        return tree
    # lists are not merged
    in_list = any(step.isdecimal() for step in steps_of(path))
    return changed if in_list else merged(tree, Node({}, tree.at).having(path, value), problems.taken)
