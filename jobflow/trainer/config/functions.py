"""Checks of the functions and files in a configuration: builders and readers, their arguments, and the existence of files."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError, create_model

from jobflow.core.errors import ArgumentError, FileError, did_you_mean
from jobflow.core.imports import IMPORT_PATH, ImportFailedError, function_named
from jobflow.storage.remote import is_remote, path_of
from jobflow.trainer.config.references import FACT
from jobflow.trainer.config.tree import Problems, Tree, steps_of, walk
from jobflow.trainer.config.validation import PATTERNS, Validation, requirement, shown
from jobflow.trainer.set_metrics.metric_names import METHODS, lacking, metric_name

#: arguments of readers that name existing files or folders
FILES = ("path", "paths", "file", "files", "folder", "directory", "root")

#: arguments of losses that the trainer passes, and their older names
_OF_TRAINER = frozenset({"weight", "pos_weight", "size_average", "reduce", "reduction", "label_smoothing"})

#: keys that change the loss of scores
_OF_LOSS = ("model.loss", "model.label_smoothing", "model.class_weights", "model.pos_weight", "data.mixup", "data.cutmix")


def check(tree: Tree, problems: Problems, folder: str) -> Callable[..., Any] | None:
    """Report problems with functions and files; return the builder, or None without a valid builder.

    The `folder` of the configuration and the current folder become importable.
    """
    for path in (os.path.abspath(folder or "."), os.getcwd()):
        if path not in sys.path:
            sys.path.append(path)
    checks = _Checks(tree, problems)
    for part in ("train", "validation", "test"):
        mark = tree.marks.get(("data", part, "reader"))
        inherits = part != "train" and mark is not None and mark is tree.marks.get(("data", "train", "reader"))
        if not inherits or not problems.about(("data", "train")):  # problems of inherited keys are reported once
            checks.reader(f"data.{part}")
    checks.resume()
    checks.loss()
    checks.callbacks()
    checks.metrics()
    checks.optimizer()
    checks.schedule()
    return checks.builder()


class _Checks:
    """The checks of functions and files in one tree; paths are dotted strings."""

    def __init__(self, tree: Tree, problems: Problems) -> None:
        self.tree, self.problems = tree, problems

    def valid_value(self, path: str) -> Any:
        """Return the value at a path, or None if it is missing or has a problem."""
        return None if self.problems.about(steps_of(path)) else self.tree.get(path)

    def report(self, path: str, message: str, legal: str = "") -> None:
        self.problems.add(self.tree.mark(steps_of(path)).at, steps_of(path), message, legal)

    def resume(self) -> None:
        target = self.valid_value("checkpoint.resume")
        if isinstance(target, str) and target not in ("auto", "never") and not self.exists("checkpoint.resume", target):
            message = f"there is no checkpoint {target}{did_you_mean(target, ('auto', 'never'))}"
            self.report("checkpoint.resume", message, "resume: auto, never, or a path")

    def loss(self) -> None:
        """Check that an imported loss exists, and that `model.loss_arguments` are arguments of the loss."""
        name, arguments = self.valid_value("model.loss"), self.valid_value("model.loss_arguments")
        if not isinstance(name, str):
            return
        if ":" in name:
            function = self.imported("model.loss", name)
        else:
            import jobflow.nn.functional as losses  # NumPy, and all functions of tensors

            function = getattr(losses, name, None)
        if function is None:  # a problem, or a loss of the trainer
            if arguments and ":" not in name:
                self.report("model.loss_arguments", f"model.loss {name} takes no arguments; omit model.loss_arguments", "")
            return
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            return
        if ":" in name and inspect.isclass(function) and makes_module(function):
            self.arguments(arguments_model(function, _needed(function)), "model.loss_arguments", f"loss {name}", "model.loss")
            return
        positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD, one.VAR_POSITIONAL)]
        if len(positional) < 2 and not any(one.kind is one.VAR_POSITIONAL for one in positional):
            self.report("model.loss", f"{name} takes {len(positional)} positional arguments; a loss takes scores and labels")
            return
        without = frozenset(one.name for one in positional[:2]) | (frozenset() if ":" in name else _OF_TRAINER)
        model = arguments_model(function, _needed(function) - without, without)
        self.arguments(model, "model.loss_arguments", f"loss {name}", "model.loss")

    def callbacks(self) -> None:
        from jobflow.trainer.callbacks import Callback  # NumPy

        listed = self.tree.get("callbacks")
        for i in range(len(listed) if isinstance(listed, list) else 0):
            path = f"callbacks.{i}"
            name = self.valid_value(f"{path}.callback")
            kind = self.imported(f"{path}.callback", name) if isinstance(name, str) else None
            if kind is None:
                continue
            if not inspect.isclass(kind) or not issubclass(kind, Callback):
                what = "a class that is not derived from jobflow.trainer.Callback" if inspect.isclass(kind) else f"of type {type(kind).__name__}"
                self.report(f"{path}.callback", f"{name} is {what}", "a callback is a class such as: class Stop(jobflow.trainer.Callback)")
                continue
            self.arguments(arguments_model(kind, _needed(kind)), f"{path}.arguments", f"callback {name}", f"{path}.callback")

    def optimizer(self) -> None:
        """Check an imported optimizer, a class of `jobflow.optim.Optimizer`, and its arguments."""
        name = self.valid_value("optimizer.name")
        if not isinstance(name, str) or ":" not in name:
            return
        from jobflow.optim.optimizer import Optimizer  # NumPy, and all functions of tensors

        function = self.imported("optimizer.name", name)
        if function is None:
            return
        if not inspect.isclass(function) or not issubclass(function, Optimizer) or function.rule is Optimizer.rule:
            problem = "defines no `rule`" if inspect.isclass(function) and issubclass(function, Optimizer) else "is no optimizer"
            advice = "an optimizer is a class of jobflow.optim.Optimizer that defines `rule`"
            self.report("optimizer.name", f"{name} {problem}, so it cannot update the variables of a train job", advice)
            return
        names = list(inspect.signature(function).parameters)
        without = frozenset({*names[:1], "lr"})
        self.arguments(arguments_model(function, _needed(function) - without, without), "optimizer.arguments", f"optimizer {name}", "optimizer.name")
        for i, group in enumerate(self.valid_value("optimizer.groups") or ()):
            if group.get("weight_decay") is not None and "weight_decay" not in names:
                self.report(f"optimizer.groups.{i}.weight_decay", f"optimizer {name} takes no argument weight_decay; omit it")

    def schedule(self) -> None:
        """Check an imported schedule, a function of the step, and its arguments."""
        name = self.valid_value("optimizer.schedule.name")
        function = self.imported("optimizer.schedule.name", name) if isinstance(name, str) and ":" in name else None
        if function is None:
            return
        try:
            names = list(inspect.signature(function).parameters)
        except (TypeError, ValueError):
            names = []
        if not names or inspect.isclass(function):
            self.report("optimizer.schedule.name", f"{name} takes no step; a schedule is a function of the number of earlier updates")
            return
        without = frozenset({names[0], "lr", "steps"})
        model = arguments_model(function, _needed(function) - without, without)
        self.arguments(model, "optimizer.schedule.arguments", f"schedule {name}", "optimizer.schedule.name")

    def builder(self) -> Callable[..., Any] | None:
        name = self.valid_value("model.builder")
        function = self.imported("model.builder", name) if isinstance(name, str) else None
        if function is None:
            return None
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):
            return function
        module = makes_module(function)
        if problem := _not_a_builder(function, module):
            self.report(
                "model.builder", f"{name} is {problem}", "a builder is a function of fields, a class of jobflow.nn.Module, or a function -> nn.Module"
            )
            return None
        for key in _OF_LOSS:
            if self.valid_value(key) is not None and not module and self.tree.get("model.layers") is None:
                self.report(key, f"{key} applies to layers and modules only; a builder returns its own loss, omit it")
        if self.valid_value("strategy.recompute") is True and "recompute" not in parameters:
            advice = "a builder that has one wraps its blocks in jobflow.checkpointed if it is true"
            self.report("strategy.recompute", f"strategy.recompute: {name} has no parameter `recompute`", advice)
        needed = frozenset(one for one in _needed(function) if module or parameters[one].kind is inspect.Parameter.KEYWORD_ONLY)
        arguments = self.tree.get("model.arguments")
        later = frozenset(one for one, value in arguments.items() if has_fact(value)) if isinstance(arguments, dict) else frozenset()
        self.arguments(arguments_model(function, needed, unchecked=later), "model.arguments", f"builder {name}", "model.builder")
        return function

    def metrics(self) -> None:
        """Check classes of own metrics and their arguments, and that no two metrics have the same name."""
        names: dict[str, str] = {}
        entries = self.tree.get("metrics")
        for i, entry in enumerate(entries if isinstance(entries, list) else ()):
            path = f"metrics.{i}"
            ((kind, options),) = entry.items() if isinstance(entry, dict) and len(entry) == 1 else (("", {}),)
            if not isinstance(options, dict) or any(map(self.problems.about, [steps_of(path), steps_of(f"{path}.{kind}")])):
                continue
            name = metric_name(kind, options)
            if name in names:
                self.report(
                    path, f'{names[name]} and {path} have the same name "{name}"; give one of them a name, such as {{{kind}: {{name: {name}_2}}}}'
                )
            names.setdefault(name, path)
            builder = self.valid_value(f"{path}.own.builder") if kind == "own" else None
            function = self.imported(path, builder) if isinstance(builder, str) else None
            if function is None:
                continue
            if inspect.isclass(function) and (method := lacking(function)):
                self.report(path, f"{builder} has no {method}()", f"a metric has {', '.join(METHODS)}")
                continue
            self.arguments(arguments_model(function, _needed(function)), f"{path}.own.arguments", f"metric {builder}", path)

    def reader(self, path: str) -> None:
        from jobflow.data.readers import READERS  # imports NumPy and all readers

        name = self.tree.get(f"{path}.reader")
        if not isinstance(name, str):
            return
        if name not in READERS:
            self.report(f"{path}.reader", f'there is no reader "{name}"{did_you_mean(name, READERS)}', f"readers: {', '.join(READERS)}")
            return
        reader = READERS[name]
        self.arguments(_reader_model(reader, _needed(reader)), path, f"reader {name}", path, "reader")
        parameters = inspect.signature(reader).parameters
        for key in filter(parameters.__contains__, FILES):
            value = self.valid_value(f"{path}.{key}")
            files = {f"{path}.{key}.{i}": one for i, one in enumerate(value)} if isinstance(value, list) else {f"{path}.{key}": value}
            for where, file in files.items():
                if isinstance(file, str) and not self.exists(where, file):
                    self.no_file(where, file)
        function = self.valid_value(f"{path}.function")
        if "function" in parameters and isinstance(function, str):
            self.function(path, function)

    def function(self, path: str, name: str) -> None:
        """Check the function that a reader calls for its samples, and the function's arguments."""
        if not re.fullmatch(IMPORT_PATH, name):
            self.report(f"{path}.function", f"{path}.function must be {PATTERNS[IMPORT_PATH]}; got {shown(name)}")
            return
        function = self.imported(f"{path}.function", name)
        if function is not None:
            needed = _needed(function) - {"epoch"}  # the reader passes the number of the epoch
            self.arguments(arguments_model(function, needed), f"{path}.arguments", f"function {name}", f"{path}.function")

    def no_file(self, path: str, file: str) -> None:
        if is_remote(file):
            self.report(path, f"there is no object or folder {file}", "a URL of an object or folder in the store")
            return
        folder, last = os.path.split(file)
        near = did_you_mean(last, os.listdir(folder or ".")) if os.path.isdir(folder or ".") else f"; there is no folder {folder}"
        self.report(path, f"there is no file or folder {file}{near}", f"looked for in {os.getcwd()}")

    def exists(self, path: str, file: str) -> bool:
        """Return True if a file exists.  If this cannot be determined, report the reason and return True."""
        try:
            return path_of(file).exists()
        except (FileError, ArgumentError, ModuleNotFoundError) as error:
            self.report(path, str(error), "a path, or a URL of an object or folder in a store")
            return True

    def imported(self, path: str, name: str) -> Callable[..., Any] | None:
        """Return the function `name` ("module:function"); if its import fails, report a problem at `path` and return None."""
        try:
            return function_named(name)
        except ImportFailedError as error:
            self.report(path, error.message, error.advice)
            return None

    def arguments(self, model: type[BaseModel], path: str, function: str, owner: str, besides: str = "") -> None:
        """Check the map at a path, without the key `besides`, against the parameters in `model`; `function` names the function in messages.

        If the map is missing, problems are reported at the path `owner`.
        """
        arguments = self.tree.get(path)
        if arguments is None or isinstance(arguments, dict):
            part = {name: value for name, value in (arguments or {}).items() if name != besides}
            owner_at = self.tree.place(steps_of(owner if arguments is None else path))
            Validation(self.tree, self.problems, model, steps_of(path), part, function, owner_at).check()


def _not_a_builder(function: Callable[..., Any], makes: bool) -> str:
    """Describe an object or class that cannot be a builder; return "" for a builder.  `makes` is the result of `makes_module`."""
    from jobflow.nn.modules.module import Module  # NumPy, and all functions of tensors

    if isinstance(function, Module):
        return f"an nn.Module object of class {type(function).__name__}; name its class, or a function that returns it"
    if not inspect.isclass(function) or makes:
        return ""
    bases = ", ".join(f"{base.__module__}.{base.__qualname__}" for base in function.__bases__ if base is not object)
    return f"a class that is not derived from jobflow.nn.Module{f' (but from {bases})' if bases else ''}"


def makes_module(function: Callable[..., Any]) -> bool:
    """Return True if `function` is a module class, or is annotated to return a module.

    The parameters of such a builder are not fields of a batch.
    """
    from jobflow.nn.modules.module import Module  # NumPy, and all functions of tensors

    result: Any = function
    if not inspect.isclass(function):
        try:
            result = get_type_hints(inspect.unwrap(function)).get("return")
        except (NameError, TypeError, AttributeError):
            result = None
    return inspect.isclass(result) and issubclass(result, Module)


# -------------------------------------------------------------------- arguments


def _needed(function: Callable[..., Any]) -> frozenset[str]:
    """Return the names of the parameters without a default."""
    ends = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters
    return frozenset(name for name, one in parameters.items() if one.default is one.empty and one.kind not in ends)


def argument_problem(function: Callable[..., Any], arguments: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the name of the first argument that a function does not accept, and the reason; None if it accepts all."""
    try:
        arguments_model(function).model_validate(dict(arguments))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        return str(first["loc"][0]), f"{requirement(first, ())}; got {shown(first['input'])}"
    return None


def has_fact(value: Any) -> bool:
    """Return True if a value contains a reference to a fact of the training samples, which is resolved after the readers are opened."""
    return any(isinstance(inner, str) and FACT.fullmatch(inner) is not None for _, inner in walk(value))


def arguments_model(
    function: Callable[..., Any],
    needed: frozenset[str] = frozenset(),
    without: frozenset[str] = frozenset(),
    unchecked: frozenset[str] = frozenset(),
) -> type[BaseModel]:
    """Convert the parameters of a function, except `without`, to a strict pydantic model.

    Only the parameters in `needed` are required, and those in `unchecked` accept any value.
    """
    try:
        hints: Mapping[str, Any] = get_type_hints(function.__init__ if inspect.isclass(function) else inspect.unwrap(function), include_extras=True)
    except (NameError, TypeError, AttributeError):
        hints = {}
    fields: dict[str, Any] = {}
    extra = "forbid"
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            extra = "allow"
        elif parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY) and name not in without:
            # an alias, because pydantic reserves some names
            field = Field(alias=name) if name in needed else Field(None, alias=name)
            fields[f"a_{name}"] = (Any if name in unchecked else _checkable(hints.get(name, Any)), field)
    return create_model("Arguments", __config__=ConfigDict(extra=extra, strict=True, protected_namespaces=()), **fields)  # type: ignore[typeddict-item]


#: cached, because readers do not change
_reader_model = cache(arguments_model)


def _checkable(annotation: Any) -> Any:
    """Return the annotation if pydantic can check it, else Any."""
    try:
        TypeAdapter(annotation)
    except (PydanticUserError, TypeError, NameError):
        return Any
    return annotation
