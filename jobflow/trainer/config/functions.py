"""Functions and files that a configuration names: builders and readers, the arguments that they take, and whether files exist."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, TypeAdapter, create_model

from jobflow.core.errors import ArgumentError, FileError, did_you_mean
from jobflow.core.imports import IMPORT_PATH, ImportFailedError, function_named
from jobflow.core.remote import is_remote, path_of
from jobflow.trainer.config.tree import Node, Problems
from jobflow.trainer.config.validation import PATTERNS, Validation, shown

#: arguments of readers that are names of files or folders, which must be there
FILES = ("path", "paths", "file", "files", "folder", "directory", "root")


def check(tree: Node, problems: Problems, folder: str) -> Callable[..., Any] | None:
    """Report what is wrong; the builder, if there is one and it can be imported.  `folder`: that of the configuration, which becomes importable."""
    for path in (os.path.abspath(folder or "."), os.getcwd()):
        if path not in sys.path:
            sys.path.append(path)
    for part in ("train", "validation", "test"):
        _reader(f"data.{part}", tree, problems)
    resume = _text("checkpoint.resume", tree, problems)
    if resume is not None and resume.value not in ("auto", "never") and not _is_there(resume, "checkpoint.resume", problems):
        told = f"there is no checkpoint {resume.value}{did_you_mean(resume.value, ('auto', 'never'))}"
        problems.add(resume.at, "checkpoint.resume", told, "resume: auto, never, or a path")
    return _builder(tree, problems)


def _text(path: str, tree: Node, problems: Problems) -> Node | None:
    """The text under a path, if there is one and it is right."""
    found = tree.get(path)
    return found if found is not None and isinstance(found.value, str) and not problems.about(path) else None


# -------------------------------------------------------------------- builders and readers


def _builder(tree: Node, problems: Problems) -> Callable[..., Any] | None:
    entry = _text("model.builder", tree, problems)
    function = None if entry is None else _imported(entry, "model.builder", problems)
    if entry is None or function is None:
        return None
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return function
    module, loss, recompute = makes_module(function), tree.get("model.loss"), tree.get("strategy.recompute")
    if loss is not None and loss.value is not None and not module and tree.get("model.layers") is None and not problems.about("model.loss"):
        problems.add(loss.at, "model.loss", "model.loss is that of layers; a builder returns its own, omit it", "")
    if recompute is not None and recompute.value is True and "recompute" not in parameters and not problems.about("strategy.recompute"):
        told = f"strategy.recompute: {entry.value} has no parameter `recompute`"
        problems.add(recompute.at, "strategy.recompute", told, "a builder that has one wraps its blocks in jobflow.checkpointed if it is true")
    needed = frozenset(name for name in _needed(function) if module or parameters[name].kind is inspect.Parameter.KEYWORD_ONLY)
    _arguments(arguments_model(function, needed), "model.arguments", f"builder {entry.value}", tree, problems, entry)
    return function


def makes_module(function: Callable[..., Any]) -> bool:
    """Whether a builder is a class of modules, or a function that says by its annotation that it returns one: its parameters are no fields then."""
    from jobflow.nn.modules.module import Module  # NumPy, and all functions of tensors

    made: Any = function
    if not inspect.isclass(function):
        try:
            made = get_type_hints(inspect.unwrap(function)).get("return")
        except (NameError, TypeError, AttributeError):
            made = None
    return inspect.isclass(made) and issubclass(made, Module)


def _reader(path: str, tree: Node, problems: Problems) -> None:
    from jobflow.data.readers import READERS  # NumPy, and all readers

    reader, name = tree.get(path), tree.get(f"{path}.reader")
    if reader is None or name is None or not isinstance(name.value, str):
        return
    if name.value not in READERS:
        told = f'there is no reader "{name.value}"{did_you_mean(name.value, READERS)}'
        problems.add(name.at, f"{path}.reader", told, f"readers: {', '.join(READERS)}")
        return
    made = READERS[name.value]
    _arguments(_reader_model(made, _needed(made)), path, f"reader {name.value}", tree, problems, reader, "reader")
    parameters = inspect.signature(made).parameters
    for key in FILES:
        entry = reader.children.get(key)
        if key in parameters and entry is not None and not problems.about(f"{path}.{key}"):
            _exists(entry, f"{path}.{key}", problems)
    entry = _text(f"{path}.function", tree, problems)
    if "function" not in parameters or entry is None:
        return
    if not re.fullmatch(IMPORT_PATH, entry.value):
        problems.add(entry.at, f"{path}.function", f"{path}.function must be {PATTERNS[IMPORT_PATH]}; got {shown(entry.value)}")
        return
    function = _imported(entry, f"{path}.function", problems)
    if function is not None:
        # a function of the epoch is given its number
        needed = _needed(function) - {"epoch"}
        _arguments(arguments_model(function, needed), f"{path}.arguments", f"function {entry.value}", tree, problems, entry)


def _exists(entry: Node, path: str, problems: Problems) -> None:
    for file in entry.value if isinstance(entry.value, tuple) else (entry,):
        if not isinstance(file.value, str) or _is_there(file, path, problems):
            continue
        if is_remote(file.value):
            problems.add(file.at, path, f"there is no object or folder {file.value}", "a URL of what is in the store")
        else:
            folder, last = os.path.split(file.value)
            near = did_you_mean(last, os.listdir(folder or ".")) if os.path.isdir(folder or ".") else f"; there is no folder {folder}"
            problems.add(file.at, path, f"there is no file or folder {file.value}{near}", f"looked for in {os.getcwd()}")


def _is_there(entry: Node, path: str, problems: Problems) -> bool:
    """Whether there is what a text names, as far as anybody can say: a problem that nobody can is reported here."""
    try:
        return path_of(entry.value).exists()
    except (FileError, ArgumentError, ModuleNotFoundError) as error:
        problems.add(entry.at, path, str(error), "a path, or a URL of what is in a store")
        return True


def _imported(entry: Node, key: str, problems: Problems) -> Callable[..., Any] | None:
    """What "module:function" names; None, and a problem, if there is no such thing."""
    try:
        return function_named(entry.value)
    except ImportFailedError as error:
        problems.add(entry.at, key, error.message, error.advice)
        return None


# -------------------------------------------------------------------- arguments


def _needed(function: Callable[..., Any]) -> frozenset[str]:
    """The parameters of a function that have no default."""
    ends = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters
    return frozenset(name for name, one in parameters.items() if one.default is one.empty and one.kind not in ends)


def _arguments(model: type[BaseModel], path: str, function: str, tree: Node, problems: Problems, owner: Node, besides: str = "") -> None:
    """Check the map under `path`, but for the key `besides`, against the parameters of a function."""
    given = tree.get(path) or Node({}, owner.at)
    if given.is_map:
        at = owner.at if tree.get(path) is None else given.place
        part = given.holding({name: entry for name, entry in given.children.items() if name != besides})
        Validation(part, problems, model, path, function, at).check()


def arguments_model(function: Callable[..., Any], needed: frozenset[str] = frozenset()) -> type[BaseModel]:
    """The parameters of a function as a strict model; those that are not `needed` may be left out."""
    try:
        hints: Mapping[str, Any] = get_type_hints(function.__init__ if inspect.isclass(function) else inspect.unwrap(function), include_extras=True)
    except (NameError, TypeError, AttributeError):
        hints = {}
    fields: dict[str, Any] = {}
    extra = "forbid"
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            extra = "allow"
        elif parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            # an alias, because pydantic keeps some names for itself
            field = Field(alias=name) if name in needed else Field(None, alias=name)
            fields[f"a_{name}"] = (_checkable(hints.get(name, Any)), field)
    return create_model("Arguments", __config__=ConfigDict(extra=extra, strict=True, protected_namespaces=()), **fields)  # type: ignore[typeddict-item]


#: those of readers do not change
_reader_model = cache(arguments_model)


def _checkable(annotation: Any) -> Any:
    """A kind of value that a configuration can hold and pydantic can check, else anything."""
    try:
        TypeAdapter(annotation)
    except (PydanticUserError, TypeError, NameError):
        return Any
    return annotation
