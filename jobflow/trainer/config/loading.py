"""Files and settings -> a checked configuration, or everything that is wrong with them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jobflow.trainer.config import combinations, outside
from jobflow.trainer.config.checking import report, validated
from jobflow.trainer.config.extending import Files, origin_of, with_settings
from jobflow.trainer.config.keys import default_at, section_at, sections_in
from jobflow.trainer.config.paths import split
from jobflow.trainer.config.problems import DEFAULT, Origin, Problems
from jobflow.trainer.config.references import resolved
from jobflow.trainer.config.schema import TrainConfig
from jobflow.trainer.config.section import Derived, Section
from jobflow.trainer.config.tree import Branch, Leaf, Listing, Tree, at_path, walk, with_entry, without


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
    tree, bad = resolved(with_derived(tree, str(path)), problems, lambda key: default_at(key, tree))
    for broken in bad:
        tree = without(tree, broken)
    tree = spelled_out(tree)
    config, errors = validated(TrainConfig, tree)
    report(errors, tree, problems)
    sections = _sections(tree, problems)
    combinations.check(sections, tree, problems)
    builder = outside.check(sections, tree, problems, os.path.dirname(str(path))) if look_outside else None
    problems.stop_if_any(written)
    assert config is not None, "whatever is against it has been told"
    origins = {key: entry.at for key, entry in walk(tree) if key and entry.at != DEFAULT}
    return Loaded(config, origins, config.model_dump(mode="json"), builder, tuple(files.names))


# -------------------------------------------------------------------- what follows from what is written


def with_derived(tree: Branch, file: str) -> Branch:
    """The tree with the keys that follow from others, where nobody wrote them."""
    stem = os.path.splitext(os.path.basename(file))[0]
    for path, text in _derived(TrainConfig, ""):
        tree = _with_default(tree, path, stem if path == "name" else text)
    if at_path(tree, "data.validation") is not None and not _has(tree, "evaluation", "every_epochs", "every_steps"):
        tree = _with_default(tree, "evaluation.every_epochs", 1)
    if not _has(tree, "checkpoint", "every_epochs", "every_steps"):
        tree = _with_default(tree, "checkpoint.every_epochs", 1)
    return tree


def _derived(section: type[Section], path: str) -> Iterator[tuple[str, str]]:
    for key, field in section.model_fields.items():
        yield from ((f"{path}{key}", mark.text) for mark in field.metadata if isinstance(mark, Derived))
        for inside in sections_in(field.annotation)[:1]:
            yield from _derived(inside, f"{path}{key}.")


def _has(tree: Branch, section: str, *keys: str) -> bool:
    return any(at_path(tree, f"{section}.{key}") is not None for key in keys)


def _with_default(tree: Branch, path: str, value: str | int) -> Branch:
    """The tree with a default, unless there is a value, or no section for it, or nothing that it could refer to."""
    section, _ = split(path)
    parent = at_path(tree, section)
    refers_to_nothing = path == "data.evaluation_batch_size" and not _has(tree, "data", "batch_size")
    if at_path(tree, path) is not None or refers_to_nothing:
        return tree
    if not isinstance(parent, Branch) and (parent is not None or section not in ("evaluation", "checkpoint")):
        return tree
    return with_entry(tree, path, Leaf(value, DEFAULT))


def spelled_out(tree: Branch) -> Branch:
    """The tree with layers that are given by their kind alone, `- flatten`, as maps."""
    layers = at_path(tree, "model.layers")
    if not isinstance(layers, Listing):
        return tree
    return with_entry(tree, "model.layers", replace(layers, entries=tuple(map(_layer, layers.entries))))


def _layer(entry: Tree) -> Tree:
    if isinstance(entry, Leaf) and isinstance(entry.value, str):
        return Branch({entry.value: Branch({}, entry.at, entry.at)}, entry.at)
    if isinstance(entry, Branch):
        inside = {
            name: Branch({}, leaf.at, leaf.name_at) if isinstance(leaf, Leaf) and leaf.value is None else leaf for name, leaf in entry.entries.items()
        }
        return replace(entry, entries=inside)
    return entry


# -------------------------------------------------------------------- what can be judged although something is wrong


def _sections(tree: Branch, problems: Problems) -> combinations.Sections:
    """The sections without the keys that are wrong; those that cannot do without them are left out."""
    for _, key in list(problems.found):
        tree = without(tree, key) if key else tree
    found = {}
    for name in combinations.Sections.__dataclass_fields__:
        entry = at_path(tree, name)
        sections = section_at((name,), tree)
        if len(sections) == 1 and (entry is not None or not TrainConfig.model_fields[name].is_required()):
            found[name] = validated(sections[0], entry if entry is not None else Branch({}, DEFAULT))[0]
    return combinations.Sections(**found)
