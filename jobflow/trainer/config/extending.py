"""Files and settings -> one tree.

`extends: base.yaml`, or a list of files, begins a configuration with those, each over the ones before it, and the file itself over all of
them.  Names of files are relative to the file that names them.  Maps are merged key by key, lists are replaced, and null takes away
what was there, so that it is as if nobody had said anything.  `--set a.b=VALUE` comes over all files; VALUE is YAML.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from jobflow.errors import FileError, did_you_mean
from jobflow.trainer.config.paths import below, steps_of
from jobflow.trainer.config.problems import Origin, Problems
from jobflow.trainer.config.reading import DEPTH, read
from jobflow.trainer.config.tree import Branch, Leaf, Listing, Tree, with_entry
from jobflow.untrusted import CONFIGURATION, content


def merged(base: Branch, above: Branch, taken: dict[str, Origin] | None = None, path: str = "") -> Branch:
    """`above` over `base`; `taken`, if given, gets the keys below `path` that a null takes away."""
    entries = dict(base.entries)
    for name, entry in above.entries.items():
        old = entries.get(name)
        if old is not None and isinstance(entry, Leaf) and entry.value is None:
            del entries[name]
            if taken is not None:
                taken[below(path, name)] = entry.at
        elif isinstance(old, Branch) and isinstance(entry, Branch):
            entries[name] = merged(old, entry, taken, below(path, name))
        else:
            entries[name] = entry
    return Branch(entries, above.at, above.name_at)


class Files:
    """The files of a configuration, read once each."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.trees: dict[str, Branch] = {}
        #: as they are called in messages, in the order in which they were read
        self.names: list[str] = []
        #: True if one could not be read, or is no YAML: then nothing can be said about what is missing
        self.unread = False

    def tree(self, file: str, named_at: Origin | None = None, chain: tuple[str, ...] = ()) -> Branch:
        """What a file says, together with the files that it extends.  `named_at`: where another file names it."""
        real = os.path.realpath(file)
        if real in chain:
            circle = [os.path.basename(name) for name in (*chain[chain.index(real) :], real)]
            self.unread = True
            self.problems.add(named_at or Origin(file), "extends", f"files extend each other in a circle: {' -> '.join(circle)}")
            return Branch({}, Origin(file))
        if len(chain) >= DEPTH:
            self.unread = True
            self.problems.add(named_at or Origin(file), "extends", f"more than {DEPTH} files extend each other in a row")
            return Branch({}, Origin(file))
        if real not in self.trees:
            own = self.own(file, named_at)
            bases = self.bases(own, file, (*chain, real))
            tree = Branch({}, own.at)
            for layer in (*bases, replace(own, entries={name: entry for name, entry in own.entries.items() if name != "extends"})):
                tree = merged(tree, layer, self.problems.taken)
            self.trees[real] = tree
        return self.trees[real]

    def own(self, file: str, named_at: Origin | None) -> Branch:
        """What the file itself says."""
        begin = Origin(file, 1, 1)
        nothing = Branch({}, begin)
        try:
            text = content(file, CONFIGURATION).decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            self.problems.add(named_at or Origin(file), "extends" if named_at else "", _unreadable(file, error))
            self.unread = True
            return nothing
        self.names.append(file)
        tree = read(text, file, self.problems)
        self.unread = self.unread or not isinstance(tree, Branch)
        if tree is None or isinstance(tree, Branch):
            return tree or nothing
        empty = isinstance(tree, Leaf) and tree.value is None
        told = "the file is empty" if empty else f"a configuration is a map of sections, not {'a list' if isinstance(tree, Listing) else 'a text'}"
        self.problems.add(tree.at, "", told, "it begins such as: model: ..., data: ..., optimizer: ..., training: ...")
        return nothing

    def bases(self, own: Branch, file: str, chain: tuple[str, ...]) -> list[Branch]:
        given = own.entries.get("extends")
        if given is None:
            return []
        found = []
        for entry in given.entries if isinstance(given, Listing) else (given,):
            if not isinstance(entry, Leaf) or not isinstance(entry.value, str) or not entry.value:
                self.unread = True
                self.problems.add(entry.at, "extends", "extends takes the name of a file, or a list of them, such as: extends: base.yaml")
            elif "${" in entry.value:
                self.unread = True
                self.problems.add(entry.at, "extends", "extends is read before references are; write the name of the file")
            else:
                path = os.path.normpath(os.path.join(os.path.dirname(file), entry.value))
                found.append(self.tree(path, entry.at, chain))
        return found


def _unreadable(file: str, error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"{file} is not text in UTF-8: byte {error.start} is 0x{error.object[error.start]:02X}"
    if isinstance(error, FileError):
        return str(error)
    if isinstance(error, FileNotFoundError):
        folder = os.path.dirname(file) or "."
        near = [name for name in os.listdir(folder) if name.endswith((".yaml", ".yml"))] if os.path.isdir(folder) else []
        return f"there is no file {file}{did_you_mean(os.path.basename(file), near)}"
    assert isinstance(error, OSError)
    return f"{file} cannot be read: {error.strerror}"


def origin_of(setting: str) -> Origin:
    """Where the value of a setting is from."""
    return Origin(f"--set {setting}")


def with_settings(tree: Branch, settings: Sequence[str], problems: Problems) -> Branch:
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
        else:
            value = read(text, at.file, problems, at, path)
            if value is not None:
                tree = _with_setting(tree, path, replace(value, name_at=at), problems)
    return tree


def _with_setting(tree: Branch, path: str, value: Tree, problems: Problems) -> Branch:
    try:
        changed = with_entry(tree, path, value)
    except KeyError as error:
        problems.add(value.at, path, f"{path} cannot be set: {error.args[0]} is no map, and has no such position")
        return tree
    if any(step.isdecimal() for step in steps_of(path)):
        return changed  # lists are not merged
    return merged(tree, with_entry(Branch({}, tree.at), path, value), problems.taken)
