"""Types of pydantic's errors in words: what a value should be, what it is, and what was probably meant."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from pydantic_core import ErrorDetails

from jobflow.trainer.config.reading import value_of
from jobflow.trainer.config.schema import IMPORTED, METRIC

#: type of an error, or the word that it begins with -> what should stand there, to follow "must be"
WANTED = {
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "multiple_of": "a multiple of {multiple_of}",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
    "string_too_short": "a text that is not empty",
    "int": "a whole number",
    "float": "a number",
    "finite_number": "a finite number",
    "bool": "true or false",
    "string": "a text",
    "list": "a list",
    "tuple": "a list",
    **dict.fromkeys(("dict", "model", "mapping", "dataclass"), "a map of keys"),
    "none": "null",
    "path": "a path",
}
PATTERNS = {
    METRIC: 'the name of a metric of the evaluation, such as "validation/loss"',
    IMPORTED: 'a module and a function, such as "jobflow.models:lenet"',
}
#: what other programs call a choice
ABBREVIATIONS = {
    **dict.fromkeys(("fp16", "half", "16"), "float16"),
    **dict.fromkeys(("bf16", "bfloat"), "bfloat16"),
    **dict.fromkeys(("fp32", "single", "32", "float"), "float32"),
    **dict.fromkeys(("minimum", "minimize", "lower"), "min"),
    **dict.fromkeys(("maximum", "maximize", "higher"), "max"),
    "mse": "mean_squared_error",
    "silu": "swish",
}
_BOOLS = {**dict.fromkeys(("yes", "on", "y", "true"), "true"), **dict.fromkeys(("no", "off", "n", "false"), "false")}
_STRATEGY = {"dp": "data", "ddp": "data", "tp": "tensor", "pp": "pipeline", "fsdp": "zero"}


def wanted(error: ErrorDetails, choices: Sequence[Any]) -> str:
    """What should stand there, to follow "must be"; `choices`: if it is one of several."""
    limits = {key: f"{value:g}" if isinstance(value, float) else value for key, value in error.get("ctx", {}).items()}
    if error["type"] == "literal_error":
        each = [f'"{choice}"' if isinstance(choice, str) else str(choice) for choice in choices]
        return each[0] if len(each) == 1 else f"one of {', '.join(each)}"
    if error["type"] == "string_pattern_mismatch":
        return PATTERNS.get(limits["pattern"], f"a text like {limits['pattern']}")
    return WANTED.get(error["type"], WANTED.get(error["type"].partition("_")[0], error["type"])).format(**limits)


def shown(value: Any) -> str:
    """A value as messages quote it."""
    if isinstance(value, dict):
        return "a map"
    if isinstance(value, list | tuple):
        text = json.dumps(value)
        return f"the list {text}" if len(text) < 60 else "a list"
    if isinstance(value, float):
        return "a number that is none" if math.isnan(value) else repr(value)
    return f'the text "{short(value)}"' if isinstance(value, str) else json.dumps(value)


def short(text: str) -> str:
    """A text with its middle left out if it is long."""
    return text if len(text) <= 80 else f"{text[:50]} ... {text[-20:]}"


# -------------------------------------------------------------------- what was probably meant; begins with "; "


def section_hint(given: Any, keys: Sequence[str], tags: Sequence[str], key: str) -> str:
    """Where a section is wanted, with these keys, or chosen by one of these names; `key` is its own."""
    if given is None:
        return f"; write such as {key}: {{name: {tags[0]}, ...}}, with name one of {', '.join(tags)}" if tags else "; give it keys, or leave it out"
    if not isinstance(given, str):
        return ""
    if given in tags or "reader" in keys:
        return f"; write {{{'name' if given in tags else 'reader'}: {given}}}"
    if "zero" in keys and (meant := _strategy(given.strip().lower())):
        return f"; did you mean {{{meant}}}?"
    pair = re.fullmatch(r"(\w+)(:|\s+)(\S+)", given)
    return f"; write {pair[1]}: {pair[3]}, with a colon and a space" if pair else ""


def _strategy(given: str) -> str:
    """The keys of a strategy that is given as the commands `explain` and `verify` take it, zero3, 2x2, or data=2,tensor=2; "" if it is none."""
    if re.fullmatch(r"\d+x\d+(x\d+)?", given):
        return ", ".join(f"{name}: {size}" for name, size in zip(("data", "tensor", "pipeline"), given.split("x"), strict=False))
    parts = [re.fullmatch(r"\s*([a-z]+)[-_=]?(\d*)\s*", part) for part in given.split(",")]
    found = {_STRATEGY.get(part[1], part[1]): part[2] for part in parts if part is not None}
    if len(found) < len(parts) or set(found) - {"data", "tensor", "pipeline", "zero", "microbatches"}:
        return ""
    return ", ".join(f"{name}: {number or ('3' if name == 'zero' else '2')}" for name, number in found.items())


def hint(given: Any, kinds: set[str], pattern: str) -> str:
    """Where a number, a bool, or a text of a certain form is wanted."""
    words = {kind.partition("_")[0] for kind in kinds}
    if isinstance(given, float) and given.is_integer() and abs(given) < 2**53 and "int" in words:
        return f"; write {int(given)}"
    if not isinstance(given, str):
        return ""
    if pattern == IMPORTED and (function := meant_function(given)):
        return f'; did you mean "{function}"?'
    if pattern == METRIC and re.fullmatch(r"([a-z_]+/)?[a-z_]\w*", given):
        return f'; did you mean "validation/{given.rpartition("/")[2]}"?'
    if "bool" in words and given.lower() in _BOOLS:
        return f"; write {_BOOLS[given.lower()]}"
    return _number_hint(given) if words & {"int", "float"} else ""


def meant_function(given: str) -> str:
    """module:function for own.py:f, folder/own.py:f and own.f; "" for what is no way to write a function."""
    file = re.fullmatch(r"(?:\./)?((?:\w+/)*\w+)\.py:+(\w+(?:\.\w+)*)", given)
    if file:
        return f"{file[1].replace('/', '.')}:{file[2]}"
    dotted = re.fullmatch(r"([A-Za-z_]\w*(?:\.\w+)*)\.([A-Za-z_]\w*)", given)
    return f"{dotted[1]}:{dotted[2]}" if dotted and dotted[2] != "py" else ""


def _number_hint(given: str) -> str:
    """The number that a text was probably meant to be."""
    if _is_number(given.strip()):
        return "; leave the quotes out"
    plainer = re.sub(r"(?<=\d)[_ ](?=\d)", "", given)
    share = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", given)
    if _is_number(plainer):
        return f"; write {plainer}"
    return f"; write {float(share[1]) / 100:g}" if share else ""


def _is_number(text: str) -> bool:
    return isinstance(value_of(text), int | float) and not isinstance(value_of(text), bool)
