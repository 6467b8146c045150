"""Loading: files and settings -> one tree -> a checked configuration, or the list of all its problems.

`extends: base.yaml` names a base file, `extends: [a.yaml, b.yaml]` several.  Later files override earlier ones, and the file itself overrides its
base files.  File names are relative to the file that contains them.  Maps are merged key by key, lists are replaced, and null removes a key, so
that its default applies.  `--set a.b=VALUE` overrides all files; VALUE is YAML.  A dict replaces the first file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError, FileError, did_you_mean
from jobflow.storage.untrusted import CONFIGURATION, content
from jobflow.trainer.config import functions, rules
from jobflow.trainer.config.inherited_readers import inherited
from jobflow.trainer.config.keys import SECTIONS, fields_of, notes_of, setting_meant
from jobflow.trainer.config.python_values import DICT, Settings, Source, check_source, settings_of, yaml_text
from jobflow.trainer.config.reading import DEPTH, read
from jobflow.trainer.config.references import resolved
from jobflow.trainer.config.schema import TrainConfig
from jobflow.trainer.config.tree import DEFAULT, MISSING, Mark, Origin, Path, Problems, Tree, child, dotted, prefixes, replaced, steps_of, walk
from jobflow.trainer.config.validation import Validation


class PlacedSetting(str):
    """A setting such as "optimizer.lr=0.1" with the source position to report in place of `--set optimizer.lr=0.1`."""

    source: Origin

    def __new__(cls, text: str, source: Origin) -> PlacedSetting:
        setting = super().__new__(cls, text)
        setting.source = source
        return setting


@dataclass(frozen=True)
class Loaded:
    """A valid configuration and the source position of each value."""

    config: TrainConfig
    #: by path, such as "optimizer.lr" and "model.layers.0.dense.units"; defaults are absent
    origins: dict[str, Origin]
    #: the whole configuration with defaults, in JSON types
    plain: dict[str, Any]
    #: the function that `model.builder` names; None if the model is a list of layers, or with `look_outside=False`
    builder: Callable[..., Any] | None
    #: the files of the configuration, the requested one first
    files: tuple[str, ...]

    def origin(self, path: str) -> Origin:
        """Return the source position of a value, or `DEFAULT` if no file or setting contains it."""
        return self.origins.get(path, DEFAULT)


def load(path: Source, settings: Settings = (), *, look_outside: bool = True) -> Loaded:
    """Load the configuration in a file, overridden by settings such as ["optimizer.lr=0.1"] or {"optimizer.lr": 0.1}.

    In place of a path, a dict has the content of the file.  Its `name` defaults to "run", and it extends files relative to the current folder.
    With `look_outside`, import the builder, check the arguments of builder and readers, and require the files of readers to exist.
    The folder of the file and the current folder become importable.
    Raises: ConfigErrors with all problems.

    Examples:
        >>> from jobflow.trainer.config import load
        >>> loaded = load("run.yaml", ["optimizer.lr=0.1"])
        >>> loaded.config.optimizer.lr
        0.1
    """
    check_source(path)
    problems, settings = Problems(), settings_of(settings)
    file, text = (DICT, yaml_text(path, DICT)) if isinstance(path, Mapping) else (os.fspath(path), None)
    files = Files(problems, text)
    tree = with_settings(files.tree(file), settings, problems)
    written = [*files.names, *(origin_of(setting).file for setting in settings)]
    if files.unread:
        problems.stop_if_any(written)
    tree = with_callback_maps(with_start_map(with_entry_maps(resolved(with_derived(tree, file), problems))))
    tree = inherited(tree, problems)
    config = Validation(tree, problems).check()
    rules.check(tree, problems)
    builder = functions.check(tree, problems, os.path.dirname(file)) if look_outside else None
    problems.stop_if_any(written)
    origins = {dotted(key): at for key, _ in walk(tree.plain) if key and (at := tree.mark(key).at) != DEFAULT}
    return Loaded(config, origins, config.model_dump(mode="json"), builder, tuple(files.names))


def loaded_run(source: Loaded | Source, settings: Settings = (), output: str | os.PathLike[str] | None = None) -> Loaded:
    """Return the configuration of one run: `source`, or the configuration of this file or dict; `output` replaces the output folder.

    Raises: ConfigErrors; ConfigError for settings of a loaded configuration, and for a sweep.
    """
    every = [*settings_of(settings), *settings_of({} if output is None else {"output": output})]
    if isinstance(source, Loaded) and every:
        raise ConfigError(f"settings: {every[0]} comes after the configuration was loaded; pass settings to load(), or pass the file to train()")
    loaded = source if isinstance(source, Loaded) else load(source, every)
    if loaded.config.sweep is not None:
        at = loaded.origin("sweep")
        raise ConfigError(f"{at}: sweep: train() runs one training; call jobflow.trainer.sweep.run_sweep, or load with the setting sweep=null")
    return loaded


def with_derived(tree: Tree, file: str) -> Tree:
    """Add the keys whose values derive from other keys, unless a file or setting contains them.

    The default of the key `name` is the name of `file` without its suffix, or "run" for a dict.
    """
    noted = {dotted((*section, key)): notes_of(field).derived for section, model in SECTIONS for key, field in fields_of(model).items()}
    derived: dict[str, Any] = {path: value for path, value in noted.items() if value}
    derived["name"] = "run" if file == DICT else os.path.splitext(os.path.basename(file))[0]
    if not tree.has("data.batch_size"):
        del derived["data.evaluation_batch_size"]  # its reference would be broken
    for section in ("evaluation", "checkpoint") if tree.has("data.validation") else ("checkpoint",):
        if not tree.has(f"{section}.every_steps"):
            derived[f"{section}.every_epochs"] = 1
    for name, value in derived.items():
        parent = tree.find(steps_of(name)[:-1])
        if isinstance(parent, dict) or (parent is MISSING and name.startswith(("evaluation.", "checkpoint."))):
            tree = tree if tree.has(name) else tree.having(steps_of(name), value, Mark(DEFAULT))
    return tree


def with_entry_maps(tree: Tree) -> Tree:
    """Replace layers and metrics without arguments, such as `- flatten` or `- flatten:`, by maps.

    The import path of a metric, such as `- own:Hits`, becomes `- own: {builder: "own:Hits"}`.
    """
    for path in (("model", "layers"), ("metrics",)):
        entries = tree.get(dotted(path))
        if isinstance(entries, list):
            tree = Tree(replaced(tree.plain, path, [_as_map(entry, path == ("metrics",)) for entry in entries]), tree.marks)
    return tree


def _as_map(entry: Any, may_be_path: bool) -> Any:
    if isinstance(entry, str):
        return {"own": {"builder": entry}} if may_be_path and ":" in entry else {entry: {}}
    return {kind: {} if arguments is None else arguments for kind, arguments in entry.items()} if isinstance(entry, dict) else entry


def with_start_map(tree: Tree) -> Tree:
    """Replace a path as `start_from` by a map with this path."""
    path = tree.get("start_from")
    return tree.having(("start_from",), {"path": path}, tree.mark(("start_from",))) if isinstance(path, str) else tree


def with_callback_maps(tree: Tree) -> Tree:
    """Replace callbacks without arguments, such as `- own:Stop`, by maps."""
    callbacks = tree.get("callbacks")
    if not isinstance(callbacks, list):
        return tree
    maps = [{"callback": one} if isinstance(one, str) else one for one in callbacks]
    return Tree(replaced(tree.plain, ("callbacks",), maps), tree.marks)


# -------------------------------------------------------------------- files and settings


class Files:
    """The files of a configuration, each read once; `text` is the text of the file DICT, if the configuration is a dict."""

    def __init__(self, problems: Problems, text: str | None = None) -> None:
        self.problems, self.text = problems, text
        self.trees: dict[str, Tree] = {}
        #: names for messages, in reading order
        self.names: list[str] = []
        #: True if a file is unreadable or not YAML; missing keys are not reported then
        self.unread = False

    def tree(self, file: str, named_at: Origin | None = None, chain: tuple[str, ...] = ()) -> Tree:
        """Return the tree of a file, merged with its base files.  `named_at`: the position of the file's name in another file."""
        real, begin = os.path.realpath(file), Origin(file, 1, 1)
        if real in chain:
            circle = " -> ".join(os.path.basename(name) for name in (*chain[chain.index(real) :], real))
            return self.nothing(begin, named_at or begin, f"files extend each other in a cycle: {circle}")
        if len(chain) >= DEPTH:
            return self.nothing(begin, named_at or begin, f"the chain of base files is longer than {DEPTH}")
        if real not in self.trees:
            own, tree = self.own(file, named_at), Tree({}, {})
            bases = own.plain.pop("extends", [])
            names = {("extends", str(i)): name for i, name in enumerate(bases)} if isinstance(bases, list) else {("extends",): bases}
            for path, name in names.items():
                tree = tree.under(self.base(name, own.marks[path].at, file, (*chain, real)), self.problems.removed)
            self.trees[real] = tree.under(own, self.problems.removed)
        return self.trees[real]

    def nothing(self, file: Origin, at: Origin, message: str, legal: str = "", path: Path = ("extends",)) -> Tree:
        """Report a problem with a file, and return an empty tree in place of the file's tree."""
        self.unread = True
        self.problems.add(at, path, message, legal)
        return Tree({}, {(): Mark(file)})

    def own(self, file: str, named_at: Origin | None) -> Tree:
        """Return the tree of one file without its base files."""
        own_text = self.text if file == DICT else None
        begin = Origin(file, 1, 1) if own_text is None else Origin(file)
        try:
            text = own_text if own_text is not None else content(file, CONFIGURATION).decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            return self.nothing(begin, named_at or begin, _unreadable(file, error), path=("extends",) if named_at else ())
        self.names.append(file)
        tree = read(text, file, self.problems, begin if own_text is not None else None)
        if tree is None or isinstance(tree.plain, dict):
            self.unread = self.unread or tree is None
            return tree or Tree({}, {(): Mark(begin)})
        kind = "a list" if isinstance(tree.plain, list) else "a text"
        message = "the file is empty" if tree.plain is None else f"a configuration is a map of sections, not {kind}"
        return self.nothing(begin, tree.mark(()).at, message, "it begins such as: model: ..., data: ..., optimizer: ..., training: ...", ())

    def base(self, named: Any, at: Origin, file: str, chain: tuple[str, ...]) -> Tree:
        """Return the tree of the base file `named`, whose path is relative to the folder of `file`.

        An invalid value of `extends` is reported as a problem and yields an empty tree.
        """
        if not isinstance(named, str) or not named:
            return self.nothing(at, at, "extends takes the name of a file, or a list of them, such as: extends: base.yaml")
        if "${" in named:
            return self.nothing(at, at, "extends is read before references are resolved; write the name of the file")
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
    """Return the origin of a setting, which prints as `--set a.b=VALUE` unless the setting has a position."""
    return setting.source if isinstance(setting, PlacedSetting) else Origin(f"--set {setting}")


def with_settings(tree: Tree, settings: Sequence[str], problems: Problems) -> Tree:
    """Return the tree with the settings `a.b=VALUE` applied in order; report invalid settings as problems and skip them."""
    for setting in settings:
        at = origin_of(setting)
        name, sign, text = setting.partition("=")
        name = name.strip()
        path = steps_of(name)
        if not sign or not name or dotted(path) != name:
            problems.add(at, path, f'"{setting}" is not a setting', "write a key, = and a value, such as: --set optimizer.lr=0.1")
        elif len(path) > DEPTH:
            problems.add(at, path, f"a key has at most {DEPTH} steps")
        elif name == "extends":
            problems.add(at, path, "extends can be set in files only")
        elif not text.strip():
            problems.add(at, path, f"there is no value for {name}", f"write {name}=null to remove the value in the files")
        elif (value := read(text, at.file, problems, at, path)) is not None:
            tree = _with_setting(tree, path, value, at, problems)
    return tree


def _with_setting(tree: Tree, path: Path, value: Tree, at: Origin, problems: Problems) -> Tree:
    for outer, step in zip(prefixes(path), path, strict=False):
        outer_value = tree.find(outer)
        if not isinstance(outer_value, dict) and outer_value is not MISSING and child(outer_value, step) is MISSING:
            problems.add(at, path, f"{dotted(path)} cannot be set: {dotted(outer)} is not a map and has no position {step}")
            return tree
    if any(step.isdecimal() for step in path):  # lists are not merged
        changed = tree.having(path, value.plain, Mark(at, at))
        return Tree(changed.plain, {**changed.marks, **value.marks, path: Mark(at, at)})
    marks = {**value.marks, **{outer: Mark(at, at) for outer in prefixes(path)}, (): tree.marks[()]}
    return tree.under(Tree(replaced({}, path, value.plain), marks), problems.removed)
