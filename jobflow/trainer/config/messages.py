"""Messages for pydantic's errors: what a value should be, what it is, and what was probably meant."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from pydantic_core import ErrorDetails

from jobflow.core.errors import did_you_mean
from jobflow.core.imports import IMPORT_PATH, meant_function
from jobflow.trainer.config.reading import value_of
from jobflow.trainer.config.schema import METRIC

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
    "none": "null",
    "path": "a path",
    **dict.fromkeys(("list", "tuple"), "a list"),
    **dict.fromkeys(("dict", "model", "mapping", "dataclass"), "a map of keys"),
}
PATTERNS = {
    METRIC: 'the name of a metric of the evaluation, such as "validation/loss"',
    IMPORT_PATH: 'a module and a function, such as "jobflow.models:lenet"',
}
#: what other programs call a choice
CHOICES = {
    **dict.fromkeys(("fp16", "half", "16"), "float16"),
    **dict.fromkeys(("bf16", "bfloat"), "bfloat16"),
    **dict.fromkeys(("fp32", "single", "32", "float"), "float32"),
    **dict.fromkeys(("minimum", "minimize", "lower"), "min"),
    **dict.fromkeys(("maximum", "maximize", "higher"), "max"),
    "mse": "mean_squared_error",
    "silu": "swish",
}
#: what is wanted, the text that is given instead, what is said of it
HINTS: tuple[tuple[str, str, Callable[[re.Match[str]], str]], ...] = (
    ("bool", r"(?i)yes|on|y|true", lambda found: "; write true"),
    ("bool", r"(?i)no|off|n|false", lambda found: "; write false"),
    ("int float", r"(\d+(?:\.\d+)?)\s*%", lambda found: f"; write {float(found[1]) / 100:g}"),
    ("int float", r"[^_ ]+", lambda found: "; leave the quotes out" if _is_number(found[0]) else ""),
    ("int float", r".+", lambda found: f"; write {plain}" if _is_number(plain := re.sub(r"(?<=\d)[_ ](?=\d)", "", found[0])) else ""),
    (METRIC, r"(?:[a-z_]+/)?([a-z_]\w*)", lambda found: f'; did you mean "validation/{found[1]}"?'),
    (IMPORT_PATH, r".+", lambda found: f'; did you mean "{meant}"?' if (meant := meant_function(found[0])) else ""),
)
_STRATEGY = {"dp": "data", "ddp": "data", "tp": "tensor", "pp": "pipeline", "fsdp": "zero"}


def wanted(error: ErrorDetails, choices: Sequence[Any]) -> str:
    """What should stand there, to follow "must be"; `choices`: if it is one of several."""
    limits = {key: f"{value:g}" if isinstance(value, float) else value for key, value in error.get("ctx", {}).items()}
    if error["type"] == "literal_error" and choices:
        each = [f'"{choice}"' if isinstance(choice, str) else str(choice) for choice in choices]
        return each[0] if len(each) == 1 else f"one of {', '.join(each)}"
    if error["type"] == "string_pattern_mismatch":
        return PATTERNS.get(limits["pattern"], f"a text like {limits['pattern']}")
    known = WANTED.get(error["type"]) or WANTED.get(error["type"].partition("_")[0])
    return known.format(**limits) if known else error["msg"].removeprefix("Input should be ")


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
        return f"; write such as {key}: {{name: {tags[0]}, ...}}, with name one of {', '.join(tags)}" if tags else "; give it keys, or omit it"
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


def hint(errors: Sequence[ErrorDetails], choices: Sequence[Any]) -> str:
    """Where a choice, a number, a bool, or a text of a certain form is wanted; the errors are those of one value."""
    given, wished = errors[0]["input"], {error.get("ctx", {}).get("pattern", error["type"].partition("_")[0]) for error in errors}
    if isinstance(given, float) and given.is_integer() and abs(given) < 2**53 and "int" in wished:
        return f"; write {int(given)}"
    if not isinstance(given, str):
        return ""
    near = did_you_mean(CHOICES.get(given.lower(), given.lower()), [choice for choice in choices if isinstance(choice, str)])
    said = (say(found) for what, pattern, say in HINTS if wished & {what, *what.split()} and (found := re.fullmatch(pattern, given)))
    return near or next(filter(None, said), "")


def _is_number(text: str) -> bool:
    return isinstance(value_of(text), int | float) and not isinstance(value_of(text), bool)
