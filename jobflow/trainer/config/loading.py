"""Files and settings -> one tree -> a checked configuration, or everything that is wrong with it.

`extends: base.yaml`, or a list of files, begins a configuration with those, each over the ones before it, and the file itself over all of
them.  Names of files are relative to the file that names them.  Maps are merged key by key, lists are replaced, and null takes away
what was there, so that it is as if nobody had said anything.  `--set a.b=VALUE` comes over all files; VALUE is YAML.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jobflow.core.errors import FileError, did_you_mean
from jobflow.core.untrusted import CONFIGURATION, content
from jobflow.trainer.config import functions, rules
from jobflow.trainer.config.keys import SECTIONS, fields_of, notes_of
from jobflow.trainer.config.reading import DEPTH, read
from jobflow.trainer.config.references import References
from jobflow.trainer.config.schema import TrainConfig
from jobflow.trainer.config.tree import DEFAULT, Node, Origin, Problems, below, split, steps_of
from jobflow.trainer.config.validation import Validation


@dataclass(frozen=True)
class Loaded:
    """A configuration that is right, and where each of its values is from."""

    config: TrainConfig
    #: by path, such as "optimizer.lr" and "model.layers.0.dense.units"; values that nobody wrote are not in it
    origins: dict[str, Origin]
    #: all of it, defaults too, as JSON has it
    plain: dict[str, Any]
    #: the function that `model.builder` names; None if the model is a list of layers, or nothing outside the files was looked at
    builder: Callable[..., Any] | None
    #: the files it is made of, the one that was asked for first
    files: tuple[str, ...]

    def origin(self, path: str) -> Origin:
        """Where a value is written; `DEFAULT` if nowhere."""
        return self.origins.get(path, DEFAULT)


def load(path: str | Path, settings: Sequence[str] = (), *, look_outside: bool = True) -> Loaded:
    """The configuration of a file, with settings such as "optimizer.lr=0.1" over it.

    Its builder is imported, the arguments of builder and readers are checked, and files that are read must exist; not so without `look_outside`.
    The folder of the file and the current one become importable.
    Raises: ConfigErrors with all that is wrong.
    """
    problems = Problems()
    files = Files(problems)
    tree = with_settings(files.tree(str(path)), settings, problems)
    written = [*files.names, *(origin_of(setting).file for setting in settings)]
    if files.unread:
        problems.stop_if_any(written)
    references = References(with_derived(tree, str(path)), problems)
    tree = references.resolved(references.root)
    for broken in references.bad:
        tree = tree.without(broken)
    tree = spelled_out(tree)
    config = Validation(tree, problems).check()
    rules.check(tree, problems)
    builder = functions.check(tree, problems, os.path.dirname(str(path))) if look_outside else None
    problems.stop_if_any(written)
    origins = {key: entry.at for key, entry in tree.walk() if key and entry.at != DEFAULT}
    return Loaded(config, origins, config.model_dump(mode="json"), builder, tuple(files.names))


def with_derived(tree: Node, file: str) -> Node:
    """The tree with the keys that follow from others, where nobody wrote them."""
    noted = {below(section, key): notes_of(field).derived for section, model in SECTIONS for key, field in fields_of(model).items()}
    derived: dict[str, Any] = {path: value for path, value in noted.items() if value}
    derived["name"] = os.path.splitext(os.path.basename(file))[0]
    if tree.get("data.batch_size") is None:
        del derived["data.evaluation_batch_size"]  # it could refer to nothing
    for section in ("checkpoint",) if tree.get("data.validation") is None else ("evaluation", "checkpoint"):
        if tree.get(f"{section}.every_steps") is None:
            derived[f"{section}.every_epochs"] = 1
    for path, value in derived.items():
        section = split(path)[0]
        parent = tree.get(section)
        if tree.get(path) is None and (section in ("evaluation", "checkpoint") if parent is None else parent.is_map):
            tree = tree.having(path, Node(value, DEFAULT))
    return tree


def spelled_out(tree: Node) -> Node:
    """The tree with layers that are given by their kind alone, `- flatten`, as maps."""
    layers = tree.get("model.layers")
    if layers is None or not isinstance(layers.value, tuple):
        return tree
    return tree.having("model.layers", replace(layers, value=tuple(map(_layer, layers.value))))


def _layer(entry: Node) -> Node:
    if isinstance(entry.value, str):
        return Node({entry.value: Node({}, entry.at, entry.at)}, entry.at)
    return (
        entry.holding({kind: replace(one, value={}) if one.value is None else one for kind, one in entry.children.items()}) if entry.is_map else entry
    )


# -------------------------------------------------------------------- files and settings


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
            tree, given = Node({}, own.at), own.children.get("extends")
            for named in () if given is None else given.value if isinstance(given.value, tuple) else (given,):
                tree = merged(tree, self.base(named, file, (*chain, real)), self.problems.taken)
            self.trees[real] = merged(tree, own.without("extends"), self.problems.taken)
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

    def base(self, named: Node, file: str, chain: tuple[str, ...]) -> Node:
        """A file that a file extends."""
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
