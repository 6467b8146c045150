"""Files and settings -> one tree -> a checked configuration, or everything that is wrong with it.

`extends: base.yaml`, or a list of files, begins a configuration with those, each over the ones before it, and the file itself over all of
them.  Names of files are relative to the file that names them.  Maps are merged key by key, lists are replaced, and null takes away
what was there, so that it is as if nobody had said anything.  `--set a.b=VALUE` comes over all files; VALUE is YAML.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import FileError, did_you_mean
from jobflow.storage.untrusted import CONFIGURATION, content
from jobflow.trainer.config import functions, rules
from jobflow.trainer.config.keys import SECTIONS, fields_of, notes_of, setting_meant
from jobflow.trainer.config.reading import DEPTH, read
from jobflow.trainer.config.references import resolved
from jobflow.trainer.config.schema import TrainConfig
from jobflow.trainer.config.tree import DEFAULT, MISSING, Mark, Origin, Path, Problems, Tree, child, dotted, prefixes, replaced, steps_of, walk
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


def load(path: str | os.PathLike[str], settings: Sequence[str] = (), *, look_outside: bool = True) -> Loaded:
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
    tree = spelled_out(resolved(with_derived(tree, str(path)), problems))
    config = Validation(tree, problems).check()
    rules.check(tree, problems)
    builder = functions.check(tree, problems, os.path.dirname(str(path))) if look_outside else None
    problems.stop_if_any(written)
    origins = {dotted(key): at for key, _ in walk(tree.plain) if key and (at := tree.mark(key).at) != DEFAULT}
    return Loaded(config, origins, config.model_dump(mode="json"), builder, tuple(files.names))


def with_derived(tree: Tree, file: str) -> Tree:
    """The tree with the keys that follow from others, where nobody wrote them."""
    noted = {dotted((*section, key)): notes_of(field).derived for section, model in SECTIONS for key, field in fields_of(model).items()}
    derived: dict[str, Any] = {path: value for path, value in noted.items() if value}
    derived["name"] = os.path.splitext(os.path.basename(file))[0]
    if not tree.has("data.batch_size"):
        del derived["data.evaluation_batch_size"]  # it could refer to nothing
    for section in ("evaluation", "checkpoint") if tree.has("data.validation") else ("checkpoint",):
        if not tree.has(f"{section}.every_steps"):
            derived[f"{section}.every_epochs"] = 1
    for name, value in derived.items():
        parent = tree.find(steps_of(name)[:-1])
        if isinstance(parent, dict) or (parent is MISSING and name.startswith(("evaluation.", "checkpoint."))):
            tree = tree if tree.has(name) else tree.having(steps_of(name), value, Mark(DEFAULT))
    return tree


def spelled_out(tree: Tree) -> Tree:
    """The tree with layers that are given by their kind alone, `- flatten`, as maps."""
    layers = tree.get("model.layers")
    if not isinstance(layers, list):
        return tree
    maps = [{layer: {}} if isinstance(layer, str) else layer for layer in layers]
    filled = [{kind: {} if given is None else given for kind, given in layer.items()} if isinstance(layer, dict) else layer for layer in maps]
    return Tree(replaced(tree.plain, ("model", "layers"), filled), tree.marks)


# -------------------------------------------------------------------- files and settings


class Files:
    """The files of a configuration, read once each."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.trees: dict[str, Tree] = {}
        #: as they are called in messages, in the order in which they were read
        self.names: list[str] = []
        #: True if one could not be read, or is no YAML: then nothing can be said about what is missing
        self.unread = False

    def tree(self, file: str, named_at: Origin | None = None, chain: tuple[str, ...] = ()) -> Tree:
        """What a file says, together with the files that it extends.  `named_at`: where another file names it."""
        real, begin = os.path.realpath(file), Origin(file, 1, 1)
        if real in chain:
            circle = " -> ".join(os.path.basename(name) for name in (*chain[chain.index(real) :], real))
            return self.nothing(begin, named_at or begin, f"files extend each other in a circle: {circle}")
        if len(chain) >= DEPTH:
            return self.nothing(begin, named_at or begin, f"more than {DEPTH} files extend each other in a row")
        if real not in self.trees:
            own, tree = self.own(file, named_at), Tree({}, {})
            given = own.plain.pop("extends", [])
            names = {("extends", str(i)): name for i, name in enumerate(given)} if isinstance(given, list) else {("extends",): given}
            for path, name in names.items():
                tree = tree.under(self.base(name, own.marks[path].at, file, (*chain, real)), self.problems.taken)
            self.trees[real] = tree.under(own, self.problems.taken)
        return self.trees[real]

    def nothing(self, file: Origin, at: Origin, message: str, legal: str = "", path: Path = ("extends",)) -> Tree:
        """What is taken in place of a file, after a problem."""
        self.unread = True
        self.problems.add(at, path, message, legal)
        return Tree({}, {(): Mark(file)})

    def own(self, file: str, named_at: Origin | None) -> Tree:
        """What the file itself says."""
        begin = Origin(file, 1, 1)
        try:
            text = content(file, CONFIGURATION).decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            return self.nothing(begin, named_at or begin, _unreadable(file, error), path=("extends",) if named_at else ())
        self.names.append(file)
        tree = read(text, file, self.problems)
        if tree is None or isinstance(tree.plain, dict):
            self.unread = self.unread or tree is None
            return tree or Tree({}, {(): Mark(begin)})
        kind = "a list" if isinstance(tree.plain, list) else "a text"
        told = "the file is empty" if tree.plain is None else f"a configuration is a map of sections, not {kind}"
        return self.nothing(begin, tree.mark(()).at, told, "it begins such as: model: ..., data: ..., optimizer: ..., training: ...", ())

    def base(self, named: Any, at: Origin, file: str, chain: tuple[str, ...]) -> Tree:
        """A file that a file extends."""
        if not isinstance(named, str) or not named:
            return self.nothing(at, at, "extends takes the name of a file, or a list of them, such as: extends: base.yaml")
        if "${" in named:
            return self.nothing(at, at, "extends is read before references are; write the name of the file")
        return self.tree(os.path.normpath(os.path.join(os.path.dirname(file), named)), at, chain)


def _unreadable(file: str, error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"{file} is not text in UTF-8: byte {error.start} is 0x{error.object[error.start]:02X}"
    if isinstance(error, FileNotFoundError):
        folder = os.path.dirname(file) or "."
        near = [name for name in os.listdir(folder) if name.endswith((".yaml", ".yml"))] if os.path.isdir(folder) else []
        return f"there is no file {file}{setting_meant(file) or did_you_mean(os.path.basename(file), near)}"
    return str(error) if isinstance(error, FileError) else f"{file} cannot be read: {getattr(error, 'strerror', error)}"


def origin_of(setting: str) -> Origin:
    """Where the value of a setting is from."""
    return Origin(f"--set {setting}")


def with_settings(tree: Tree, settings: Sequence[str], problems: Problems) -> Tree:
    """The tree with `a.b=VALUE` over it, one after another."""
    for setting in settings:
        at = origin_of(setting)
        name, sign, text = setting.partition("=")
        name = name.strip()
        path = steps_of(name)
        if not sign or not name or dotted(path) != name:
            problems.add(at, path, f'"{setting}" is no setting', "write a key, = and a value, such as: --set optimizer.lr=0.1")
        elif len(path) > DEPTH:
            problems.add(at, path, f"a key has at most {DEPTH} steps")
        elif name == "extends":
            problems.add(at, path, "extends can be set in files only")
        elif not text.strip():
            problems.add(at, path, f"there is no value for {name}", f"write {name}=null to take away what files say")
        elif (given := read(text, at.file, problems, at, path)) is not None:
            tree = _with_setting(tree, path, given, at, problems)
    return tree


def _with_setting(tree: Tree, path: Path, given: Tree, at: Origin, problems: Problems) -> Tree:
    for outer, step in zip(prefixes(path), path, strict=False):
        found = tree.find(outer)
        if not isinstance(found, dict) and found is not MISSING and child(found, step) is MISSING:
            problems.add(at, path, f"{dotted(path)} cannot be set: {dotted(outer)} is no map, and has no such position")
            return tree
    if any(step.isdecimal() for step in path):  # lists are not merged
        changed = tree.having(path, given.plain, Mark(at, at))
        return Tree(changed.plain, {**changed.marks, **given.marks, path: Mark(at, at)})
    marks = {**given.marks, **{outer: Mark(at, at) for outer in prefixes(path)}, (): tree.marks[()]}
    return tree.under(Tree(replaced({}, path, given.plain), marks), problems.taken)
