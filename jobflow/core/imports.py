"""Functions named by an import path "module:function"."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

from jobflow.core.errors import did_you_mean

#: the syntax of an import path of a function
IMPORT_PATH = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"


class ImportFailedError(LookupError):
    """Error for an import path whose module or function does not exist, cannot be imported, or is not callable; `advice` may be empty."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(f"{message}; {advice}" if advice else message)
        self.message, self.advice = message, advice


def function_named(target: str) -> Callable[..., Any]:
    """Return the callable of an import path "module:function".  Raises: ImportFailedError."""
    name, _, path = target.partition(":")
    target_object: Any = module_named(name, target)
    for part in path.split("."):
        if not hasattr(target_object, part):
            package = name.partition(".")[0]
            own = {word: value for word, value in vars(target_object).items() if (getattr(value, "__module__", None) or package).startswith(package)}
            known = [word for word, value in own.items() if callable(value) and not word.startswith("_")]
            listed = f"{name} has: {', '.join(known)}" if 0 < len(known) <= 20 else ""
            lazy = [word for word in dir(target_object) if not word.startswith("_")] if hasattr(target_object, "__getattr__") else []
            names = [*known, *lazy] or [word for word in dir(target_object) if not word.startswith("_")]
            raise ImportFailedError(f"{name} has no {part}{did_you_mean(part, names)}", listed)
        target_object = getattr(target_object, part)
    if not callable(target_object):
        raise ImportFailedError(f"{target} is {target_object!r:.60} of type {type(target_object).__name__}, not a function")
    return target_object


def module_named(name: str, target: str = "") -> ModuleType:
    """Import the module `name` of the import path `target`; raise ImportFailedError, chained to an error that the module itself raised."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # runs user code, which may raise any exception
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or not f"{name}.".startswith(f"{missing}."):
            raise ImportFailedError(f"{name} cannot be imported: {_failure(error)}", _advice(missing)) from error
        advice = "modules are searched in the folder of the configuration, in the current folder, and among installed packages"
        raise ImportFailedError(f"there is no module {missing}{_near_module(missing, target)}", advice) from None


def _advice(missing: str | None) -> str:
    """Return the advice for the module `missing`, which a user's module imports; "" if no module is missing."""
    if missing is None:
        return ""
    package = missing.partition(".")[0]
    if package == "torch":
        return "jobflow does not train PyTorch modules: write `import jobflow as flow` and `from jobflow import nn`, which has PyTorch's names"
    return f"install {package} for the Python that runs jobflow, or omit the import"


def _failure(error: Exception) -> str:
    """Return an exception as a string: class, last line outside of the import machinery, and message."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"SyntaxError at {os.path.basename(error.filename)}:{error.lineno}: {error.msg}"
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename and frame.filename != __file__]
    where = f" at {os.path.basename(lines[-1].filename)}:{lines[-1].lineno}" if lines else ""
    return f"{type(error).__name__}{where}: {error}"


def _near_module(missing: str, target: str) -> str:
    """Return a suggestion for a missing module: the function in the correct syntax, or a module with a similar name; "" if there is none."""
    if ".py:" in target and (meant := meant_function(target)):
        return f'; did you mean "{meant}"?'
    head, _, last = missing.rpartition(".")
    near = did_you_mean(last, {module.name for module in pkgutil.iter_modules(getattr(sys.modules.get(head), "__path__", ()) if head else None)})
    return near.replace('"', f'"{head}.', 1) if head else near


def meant_function(text: str) -> str:
    """Return "module:function" for own.py:f, folder/own.py:f and own.f; "" for other strings."""
    file = re.fullmatch(r"(?:\./)?((?:\w+/)*\w+)\.py:+(\w+(?:\.\w+)*)", text)
    if file:
        return f"{file[1].replace('/', '.')}:{file[2]}"
    dotted = re.fullmatch(r"([A-Za-z_]\w*(?:\.\w+)*)\.([A-Za-z_]\w*)", text)
    return f"{dotted[1]}:{dotted[2]}" if dotted and dotted[2] != "py" else ""
