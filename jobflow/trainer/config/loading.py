"""Files and settings -> a checked configuration, or everything that is wrong with them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jobflow.trainer.config import functions, rules
from jobflow.trainer.config.keys import SECTIONS, fields_of, notes_of
from jobflow.trainer.config.merging import Files, origin_of, with_settings
from jobflow.trainer.config.problems import DEFAULT, Origin, Problems
from jobflow.trainer.config.references import References
from jobflow.trainer.config.schema import TrainConfig
from jobflow.trainer.config.tree import Node, below, split
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
