"""Functions named by a text, "module:function"."""

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

#: how the import path of a function is written
IMPORT_PATH = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"


class ImportFailedError(LookupError):
    """There is no such module or function: `message` says what is wrong, and `advice` what would work; it may be empty."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(f"{message}; {advice}" if advice else message)
        self.message, self.advice = message, advice


def function_named(target: str) -> Callable[..., Any]:
    """The function, or other thing that can be called, that "module:function" means.  Raises: ImportFailedError."""
    name, _, path = target.partition(":")
    found: Any = module_named(name, target)
    for part in path.split("."):
        if not hasattr(found, part):
            package = name.partition(".")[0]
            own = {word: value for word, value in vars(found).items() if (getattr(value, "__module__", None) or package).startswith(package)}
            known = [word for word, value in own.items() if callable(value) and not word.startswith("_")]
            listed = f"{name} has: {', '.join(known)}" if 0 < len(known) <= 20 else ""
            raise ImportFailedError(f"{name} has no {part}{did_you_mean(part, known)}", listed)
        found = getattr(found, part)
    if not callable(found):
        raise ImportFailedError(f"{target} is not a function but {type(found).__name__} {found!r:.60}")
    return found


def module_named(name: str, target: str = "") -> ModuleType:
    """A module, for the sake of something in it that `target` names.  Raises: ImportFailedError, caused by what the module itself raises."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # somebody else's code runs here; whatever goes wrong in it is reported
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or not f"{name}.".startswith(f"{missing}."):
            raise ImportFailedError(f"{name} cannot be imported: {_failure(error)}", _advice(missing)) from error
        advice = "modules are looked for in the folder of the configuration, in the current one, and among what is installed"
        raise ImportFailedError(f"there is no module {missing}{_near_module(missing, target)}", advice) from None


def _advice(missing: str | None) -> str:
    """Return the way out for a package that a user's module imports and that is not installed."""
    if missing is None:
        return ""
    package = missing.partition(".")[0]
    if package == "torch":
        return "jobflow does not train PyTorch modules: write `import jobflow as flow` and `from jobflow import nn`, which has PyTorch's names"
    return f"install {package} for the Python that runs jobflow, or omit the import"


def _failure(error: Exception) -> str:
    """What was raised, and on which line outside of the machinery of imports."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"SyntaxError at {os.path.basename(error.filename)}:{error.lineno}: {error.msg}"
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename and frame.filename != __file__]
    where = f" at {os.path.basename(lines[-1].filename)}:{lines[-1].lineno}" if lines else ""
    return f"{type(error).__name__}{where}: {error}"


def _near_module(missing: str, target: str) -> str:
    """What was probably meant instead of a module that is not there: another way to write a function, or one of its neighbours."""
    if ".py:" in target and (meant := meant_function(target)):
        return f'; did you mean "{meant}"?'
    head, _, last = missing.rpartition(".")
    near = did_you_mean(last, {module.name for module in pkgutil.iter_modules(getattr(sys.modules.get(head), "__path__", ()) if head else None)})
    return near.replace('"', f'"{head}.', 1) if head else near


def meant_function(given: str) -> str:
    """module:function for own.py:f, folder/own.py:f and own.f; "" for what is no way to write a function."""
    file = re.fullmatch(r"(?:\./)?((?:\w+/)*\w+)\.py:+(\w+(?:\.\w+)*)", given)
    if file:
        return f"{file[1].replace('/', '.')}:{file[2]}"
    dotted = re.fullmatch(r"([A-Za-z_]\w*(?:\.\w+)*)\.([A-Za-z_]\w*)", given)
    return f"{dotted[1]}:{dotted[2]}" if dotted and dotted[2] != "py" else ""
