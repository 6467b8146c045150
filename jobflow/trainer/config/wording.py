"""What pydantic has against a value, in words: what it should be, what it is, and what was probably meant."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jobflow.trainer.config.keys import tag_of
from jobflow.trainer.config.reading import value_of
from jobflow.trainer.config.schema import IMPORTED, METRIC
from jobflow.trainer.config.section import Section


def choices_in(text: str) -> list[str]:
    """The choices that pydantic lists, as "'min' or 'max'", "8 or 28"."""
    return [quoted or bare for quoted, bare in re.findall(r"'([^']*)'|([^\s,']+)", text) if bare != "or"]


def wanted(kind: str, numbers: Mapping[str, Any]) -> str:
    """What should stand there, to follow "must be"."""
    if kind == "literal_error":
        is_text = "'" in numbers["expected"]
        choices = [f'"{choice}"' if is_text else choice for choice in choices_in(numbers["expected"])]
        return choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"
    for name, words in _LIMITS.items():
        if kind == name:
            return words.format(**{key: _number(value) for key, value in numbers.items()})
    if kind == "string_pattern_mismatch":
        return PATTERNS.get(str(numbers["pattern"]), f"a text like {numbers['pattern']}")
    if kind in ("value_error", "assertion_error"):
        return str(numbers.get("error", kind))
    return next((words for begin, words in _KINDS.items() if kind.startswith(begin)), kind)


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


_LIMITS = {
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
    "string_too_short": "a text that is not empty",
    "multiple_of": "a multiple of {multiple_of}",
}
PATTERNS = {
    METRIC: 'the name of a metric of the evaluation, such as "validation/loss"',
    IMPORTED: 'a module and a function, such as "jobflow.models:lenet"',
}
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "finite_number": "a finite number",
    "bool": "true or false",
    "string": "a text",
    "list": "a list",
    "tuple": "a list",
    "dict": "a map of keys",
    "model": "a map of keys",
    "mapping": "a map of keys",
    "dataclass": "a map of keys",
    "none": "null",
    "path": "a path",
}


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


def section_hint(given: Any, sections: Sequence[type[Section]], key: str = "") -> str:
    """What was probably meant, where a section is wanted; `key` is its own."""
    if given is None:
        names = [tag for section in sections if (tag := tag_of(section))]
        return (
            f"; write such as {key}: {{name: {names[0]}, ...}}, with name one of {', '.join(names)}" if names else "; give it keys, or leave it out"
        )
    if not isinstance(given, str):
        return ""
    if given in [tag_of(section) for section in sections]:
        return f"; write {{name: {given}}}"
    if any("reader" in section.model_fields for section in sections):
        return f"; write {{reader: {given}}}"
    if any("zero" in section.model_fields for section in sections) and (keys := _strategy(given)):
        return f"; did you mean {{{keys}}}?"
    pair = re.fullmatch(r"(\w+)(:|\s+)(\S+)", given)
    return f"; write {pair[1]}: {pair[3]}, with a colon and a space" if pair else ""


def _strategy(given: str) -> str:
    """The keys of a strategy that is given as the commands `explain` and `verify` take it, zero3, 2x2, or data=2,tensor=2; "" if it is none."""
    word = given.strip().lower()
    mesh = re.fullmatch(r"(\d+)x(\d+)(?:x(\d+))?", word)
    if mesh:
        return ", ".join(f"{name}: {size}" for name, size in zip(("data", "tensor", "pipeline"), mesh.groups(), strict=True) if size)
    short = {"dp": "data", "tp": "tensor", "pp": "pipeline", "ddp": "data", "fsdp": "zero"}
    found = []
    for part in word.split(","):
        one = re.fullmatch(r"\s*([a-z]+)[-_=]?(\d*)\s*", part)
        name = "" if one is None else short.get(one[1], one[1])
        if one is None or name not in ("data", "tensor", "pipeline", "zero", "microbatches"):
            return ""
        found.append(f"{name}: {one[2] or ('3' if name == 'zero' else '2')}")
    return ", ".join(found)


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
_YES_NO = {**dict.fromkeys(("yes", "on", "y"), "true"), **dict.fromkeys(("no", "off", "n"), "false")}


def hint(given: Any, kinds: set[str], pattern: str) -> str:
    """What was probably meant, where a number, a bool, or a text of a certain form is wanted; begins with "; "."""
    if pattern == IMPORTED and isinstance(given, str) and (function := meant_function(given)):
        return f'; did you mean "{function}"?'
    if pattern == METRIC and isinstance(given, str) and re.fullmatch(r"([a-z_]+/)?[a-z_]\w*", given):
        return f'; did you mean "validation/{given.rpartition("/")[2]}"?'
    if "bool_type" in kinds and isinstance(given, str):
        word = given.lower()
        meant = _YES_NO.get(word) or (word if word in ("true", "false") else None)
        return f"; write {meant}" if meant else ""
    if isinstance(given, float) and given.is_integer() and abs(given) < 2**53 and kinds & {"int_type", "int_from_float"}:
        return f"; write {int(given)}"
    return _number_hint(given) if isinstance(given, str) and any(kind.startswith(("int_", "float_")) for kind in kinds) else ""


def meant_function(given: str) -> str:
    """module:function for own.py:f, folder/own.py:f and own.f; "" for what is no way to write a function."""
    file = re.fullmatch(r"(?:\./)?((?:\w+/)*\w+)\.py:+(\w+(?:\.\w+)*)", given)
    if file:
        return f"{file[1].replace('/', '.')}:{file[2]}"
    dotted = re.fullmatch(r"([A-Za-z_]\w*(?:\.\w+)*)\.([A-Za-z_]\w*)", given)
    return f"{dotted[1]}:{dotted[2]}" if dotted and dotted[2] != "py" else ""


def _number_hint(given: str) -> str:
    """The number that a text was probably meant to be."""
    meaning = value_of(given.strip())
    if isinstance(meaning, int | float) and not isinstance(meaning, bool):
        return "; leave the quotes out"
    plainer = re.sub(r"(?<=\d)[_ ](?=\d)", "", given)
    if plainer != given and isinstance(value_of(plainer), int | float):
        return f"; write {plainer}"
    share = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", given)
    return f"; write {float(share[1]) / 100:g}" if share else ""
