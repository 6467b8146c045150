"""What a configuration says about things outside of it: builders that can be imported, arguments that they take, files that exist."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, PydanticSchemaGenerationError, TypeAdapter, create_model
from pydantic import Field as of

from jobflow.errors import did_you_mean
from jobflow.trainer.config.checking import report_arguments, validated
from jobflow.trainer.config.combinations import Sections
from jobflow.trainer.config.problems import Origin, Problems
from jobflow.trainer.config.schema import IMPORTED, Reader
from jobflow.trainer.config.tree import Branch, Leaf, Listing, Tree, at_path, place
from jobflow.trainer.config.wording import PATTERNS, meant_function, shown

#: arguments of readers that are names of files or folders, which must be there
FILES = ("path", "paths", "file", "files", "folder", "directory", "root")


#: *rest and **rest
_OPEN = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def check(sections: Sections, tree: Branch, problems: Problems, folder: str) -> Callable[..., Any] | None:
    """Report what is wrong; the builder, if there is one and it can be imported.  `folder`: that of the configuration, which becomes importable."""
    for path in (os.path.abspath(folder or "."), os.getcwd()):
        if path not in sys.path:
            sys.path.append(path)
    _readers(tree, problems)
    entry = at_path(tree, "checkpoint.resume")
    if sections.checkpoint is not None and sections.checkpoint.resume not in ("auto", "never") and not os.path.exists(sections.checkpoint.resume):
        assert entry is not None, "only auto is a default"
        given = sections.checkpoint.resume
        problems.add(
            entry.at, "checkpoint.resume", f"there is no checkpoint {given}{did_you_mean(given, ('auto', 'never'))}", "resume: auto, never, or a path"
        )
    model = sections.model
    if model is None or model.builder is None or problems.about("model.builder"):
        return None
    return _builder(model.builder, tree, problems, sections.strategy is not None and sections.strategy.recompute)


# -------------------------------------------------------------------- builders


def _builder(target: str, tree: Branch, problems: Problems, recompute: bool) -> Callable[..., Any] | None:
    entry = at_path(tree, "model.builder")
    assert entry is not None, "it was read from there"
    function = _imported(target, entry.at, "model.builder", problems)
    if function is None:
        return None
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return function
    if recompute and "recompute" not in parameters and not problems.about("strategy.recompute"):
        told = f"strategy.recompute: {target} has no parameter `recompute`"
        advice = "a builder that has one wraps its blocks in jobflow.checkpointed if it is true"
        problems.add((at_path(tree, "strategy.recompute") or entry).at, "strategy.recompute", told, advice)
    needed = {name for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY and one.default is one.empty}
    _arguments(function, "model.arguments", f"builder {target}", needed, tree, problems, entry)
    return function


def _imported(target: str, at: Origin, key: str, problems: Problems) -> Callable[..., Any] | None:
    """What "module:function" names; None, and a problem, if there is no such thing."""
    module_name, _, name = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            problems.add(at, key, f"{module_name} cannot be imported: {_failure(error)}")
        else:
            advice = "modules are looked for in the folder of the configuration, in the current one, and among what is installed"
            meant = meant_function(target) if module_name.endswith(".py") else ""
            near = f'; did you mean "{meant}"?' if meant else _near_module(error.name)
            problems.add(at, key, f"there is no module {error.name}{near}", advice)
        return None
    except Exception as error:  # noqa: BLE001 - somebody else's code runs here; whatever goes wrong in it is reported
        problems.add(at, key, f"{module_name} cannot be imported: {_failure(error)}")
        return None
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            package = module_name.partition(".")[0]
            own = {word: value for word, value in vars(found).items() if (getattr(value, "__module__", None) or package).startswith(package)}
            known = [word for word, value in own.items() if callable(value) and not word.startswith("_")]
            problems.add(at, key, f"{module_name} has no {part}{did_you_mean(part, known)}", _short(f"{module_name} has: ", known))
            return None
        found = getattr(found, part)
    if not callable(found):
        problems.add(at, key, f"{target} is no function but {type(found).__name__} {found!r:.60}")
        return None
    return found  # type: ignore[no-any-return]


def _short(words: str, names: list[str]) -> str:
    return words + ", ".join(names) if 0 < len(names) <= 20 else ""


def _failure(error: Exception) -> str:
    """What was raised, and on which line outside of the machinery of imports."""
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename and frame.filename != __file__]
    if isinstance(error, SyntaxError) and error.filename:
        return f"SyntaxError at {os.path.basename(error.filename)}:{error.lineno}: {error.msg}"
    where = f" at {os.path.basename(lines[-1].filename)}:{lines[-1].lineno}" if lines else ""
    return f"{type(error).__name__}{where}: {error}"


def _near_module(name: str) -> str:
    """A suggestion for a module that is not there, among its neighbours."""
    head, _, last = name.rpartition(".")
    folders = list(getattr(sys.modules.get(head), "__path__", ())) if head else None
    near = did_you_mean(last, {module.name for module in pkgutil.iter_modules(folders)})
    return near.replace('"', f'"{head}.', 1) if head else near


# -------------------------------------------------------------------- arguments


def _arguments(
    function: Callable[..., Any], path: str, what: str, needed: set[str], tree: Branch, problems: Problems, owner: Tree, leave: tuple[str, ...] = ()
) -> None:
    """Check the map under `path`, but for the keys in `leave`, against the signature of a function."""
    given = at_path(tree, path)
    entries = {name: entry for name, entry in given.entries.items() if name not in leave} if isinstance(given, Branch) else {}
    if given is not None and not isinstance(given, Branch):
        return
    model = arguments_model(function, needed)
    _, errors = validated(model, Branch(entries, owner.at))
    report_arguments(errors, tree, problems, path, what, list(model.model_fields), place(given) if given is not None else owner.at)


def arguments_model(function: Callable[..., Any], needed: set[str]) -> type[BaseModel]:
    """The parameters of a function as a strict model; those that are not `needed` may be left out."""
    signature = inspect.signature(function)
    hints = _hints(function)
    fields: dict[str, Any] = {}
    open_ended = False
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            open_ended = True
        elif parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            # an alias, because pydantic keeps some names for itself
            annotation = _checkable(hints.get(name, Any))
            fields[f"a_{name}"] = (annotation, of(alias=name) if name in needed else of(None, alias=name))
    forbid = ConfigDict(extra="allow" if open_ended else "forbid", strict=True, protected_namespaces=(), arbitrary_types_allowed=False)
    return create_model("Arguments", __config__=forbid, **fields)


def _hints(function: Callable[..., Any]) -> Mapping[str, Any]:
    target = function.__init__ if inspect.isclass(function) else inspect.unwrap(function)
    try:
        return get_type_hints(target, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}


def _checkable(annotation: Any) -> Any:
    """A kind of value that a configuration can hold and pydantic can check, else anything."""
    try:
        TypeAdapter(annotation)
    except (PydanticSchemaGenerationError, TypeError, NameError):
        return Any
    return annotation


# -------------------------------------------------------------------- readers


def _readers(tree: Branch, problems: Problems) -> None:
    from jobflow.data.readers import READERS  # NumPy, and all readers

    for place_in_data in ("train", "validation", "test"):
        path = f"data.{place_in_data}"
        reader = at_path(tree, path)
        name = at_path(tree, f"{path}.reader")
        if not isinstance(reader, Branch) or not isinstance(name, Leaf) or not isinstance(name.value, str):
            continue
        if name.value not in READERS:
            problems.add(
                name.at, f"{path}.reader", f'there is no reader "{name.value}"{did_you_mean(name.value, READERS)}', f"readers: {', '.join(READERS)}"
            )
            continue
        parameters = inspect.signature(READERS[name.value]).parameters
        needed = {
            key for key, parameter in parameters.items() if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        }
        _arguments(READERS[name.value], path, f"reader {name.value}", needed, tree, problems, reader, tuple(Reader.model_fields))
        for key in FILES:
            entry = reader.entries.get(key)
            if key in parameters and entry is not None:
                _exists(entry, f"{path}.{key}", problems)
        if "function" in parameters:
            _function(path, tree, problems)


def _function(path: str, tree: Branch, problems: Problems) -> None:
    """Check the function that makes samples, and the arguments that it is to be called with."""
    entry = at_path(tree, f"{path}.function")
    if not isinstance(entry, Leaf) or not isinstance(entry.value, str) or problems.about(f"{path}.function"):
        return
    if not re.fullmatch(IMPORTED, entry.value):
        problems.add(entry.at, f"{path}.function", f"{path}.function must be {PATTERNS[IMPORTED]}; got {shown(entry.value)}")
        return
    function = _imported(entry.value, entry.at, f"{path}.function", problems)
    if function is not None:
        parameters = inspect.signature(function).parameters
        # a function of the epoch is given its number
        needed = {name for name, one in parameters.items() if one.default is one.empty and one.kind not in _OPEN and name != "epoch"}
        _arguments(function, f"{path}.arguments", f"function {entry.value}", needed, tree, problems, entry)


def _exists(entry: Tree, path: str, problems: Problems) -> None:
    for file in entry.entries if isinstance(entry, Listing) else (entry,):
        if isinstance(file, Leaf) and isinstance(file.value, str) and not problems.about(path) and not os.path.exists(file.value):
            problems.add(file.at, path, f"there is no file or folder {file.value}{_near_file(file.value)}", f"looked for in {os.getcwd()}")


def _near_file(name: str) -> str:
    folder, last = os.path.split(name)
    return did_you_mean(last, os.listdir(folder or ".")) if os.path.isdir(folder or ".") else f"; there is no folder {folder}"
