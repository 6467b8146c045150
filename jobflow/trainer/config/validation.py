"""Validation: tree -> checked values.  pydantic detects errors; this module adds their source position and message.

An error of pydantic has a type, the location of the value, and the violated limits.  The message states the expected and the actual value, and
suggests a correction.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import did_you_mean
from jobflow.core.imports import IMPORT_PATH, meant_function
from jobflow.trainer.config.keys import fields_of, is_section, kinds_at, notes_of, suggestion, tag_of
from jobflow.trainer.config.reading import value_of
from jobflow.trainer.config.schema import METRIC, TrainConfig
from jobflow.trainer.config.sweep_schema import ANY_METRIC
from jobflow.trainer.config.tree import MISSING, MOST, Origin, Path, Problems, Tree, child, dotted, prefixes

_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_OF_KEYS = ("missing", *_UNKNOWN)


@dataclass(frozen=True)
class Validation:
    """A check of a tree, or of its `part` at the path `base`, against a pydantic model."""

    tree: Tree
    problems: Problems
    model: type[BaseModel] = TrainConfig
    base: Path = ()
    part: Any = None
    #: the function, such as "builder own:net", whose arguments the part contains, and the position to report if one is missing
    function: str = ""
    owner: Origin | None = None

    def check(self) -> Any:
        """Return the checked value, or report problems and return None.  JSON mode accepts lists as tuples, but not strings as numbers."""
        try:
            return self.model.model_validate_json(json.dumps(self.values))
        except ValidationError as error:
            self.report(error.errors(include_url=False))
            return None

    @property
    def values(self) -> Any:
        return self.part if self.base else self.tree.plain

    def located(self, error: ErrorDetails) -> tuple[Path, bool]:
        """Return the path of an error's value or key, and True if the error concerns only one member of a union.

        Locations of pydantic include the members of unions, which the tree does not.
        """
        path, here, skipped, last = self.base, self.values, 0, len(error["loc"]) - 1
        arrived = False
        for i, step in enumerate(map(str, error["loc"])):
            if arrived and step in self.tags(path):  # a member of a union, also if the section has a key of that name: optimizer.momentum
                arrived, skipped = False, i
                continue
            inside = child(here, step)
            arrived = inside is not MISSING
            if arrived or (i == last and error["type"] == "missing"):
                path, here = (*path, step), inside
            else:
                skipped = i or skipped
        return path, bool(skipped) and skipped >= last - 1 and error["type"] not in _OF_KEYS

    def report(self, errors: Sequence[ErrorDetails]) -> None:
        """Report errors of pydantic, unknown keys first, so that a misspelt key is not also reported as missing."""
        located = [(*self.located(error), error["type"], error) for error in errors]
        meant = {self.unknown(path) for path, _, kind, _ in located if kind in _UNKNOWN}
        for path, _, kind, _ in located:
            if kind == "missing" and not self.problems.about(path):
                self.problems.unreported.add(path)
                if path not in meant:
                    self.missing(path)
        wrong: dict[Path, list[ErrorDetails]] = {}
        around = {outer for path, *_ in located for outer in prefixes(path)[:-1]}
        for path, in_union, kind, error in located:
            if kind not in _OF_KEYS and not (path in around and (in_union or kind.startswith("too_"))):
                wrong.setdefault(path, []).append(error)
        self.problems.unreported |= wrong.keys()
        for path, several in wrong.items():
            if not self.problems.about(path):
                self.wrong(path, several)

    def kinds(self, path: Path) -> list[Any]:
        """Return the types allowed at a path."""
        return kinds_at(path[len(self.base) :], self.values, self.model)

    def fields(self, path: Path) -> dict[str, FieldInfo | None]:
        """Return the keys allowed at a path with their fields; keys of a dataclass or TypedDict have None."""
        fields: dict[str, FieldInfo | None] = {}
        for kind in self.kinds(path):
            inside = fields_of(kind) if is_section(kind) else dict.fromkeys(getattr(kind, "__annotations__", {}))
            fields |= {key: field for key, field in inside.items() if key not in fields}
        return fields

    def map_at(self, path: Path) -> dict[str, Any]:
        """Return the map at a path, or {}."""
        value = self.tree.find(path)
        return value if isinstance(value, dict) else {}

    def tags(self, path: Path) -> list[str]:
        """Return the values of the key `name` that select a section at a path."""
        return [tag for kind in self.kinds(path) if is_section(kind) and (tag := tag_of(kind))]

    def unknown(self, path: Path) -> Path | None:
        """Report an unknown key; return the path of the key that was probably intended, or None."""
        above, key = path[:-1], path[-1]
        at, owner, legal = self.tree.key_place(path), self.map_at(above), list(self.fields(above))
        if self.function and above == self.base:
            near = did_you_mean(key, legal)
            meant: Path = next(((name,) for name in legal if f'"{name}"' in near), ())
            message, names = f'{self.function} takes no argument "{short(key)}"{near}', f"arguments of {self.function}"
        else:
            near, meant = suggestion(key, above, legal, owner)
            if "name" in owner and self.tags(above) and near.startswith("; only"):
                chosen, entry = (self.tree.mark((*above, step)).at.file for step in ("name", key))
                if chosen != entry and not entry.startswith("--set "):
                    near += f"; write {key}: null beside the name to remove the value in {os.path.basename(entry)}"
                else:
                    near += f"; to use it, set {dotted((*above, 'name'))} to {'one of them' if ' and ' in near else 'that name'}"
            where = f"in {dotted(above)}{f' ({name})' if (name := owner.get('name')) else ''}" if above else "at the top"
            message, names = f'unknown key "{short(key)}" {where}{near}', f"keys {where}"
        self.problems.add(at, path, message, f"{names}: {', '.join(legal) or 'none'}")
        return (*above, *meant) if meant else None

    def missing(self, path: Path) -> None:
        above, key = path[:-1], path[-1]
        fields, tags = self.fields(above), self.tags(path)
        field = fields.get(key)
        others = [name for name in islice(self.map_at(above), MOST) if name not in fields]
        if self.function and above == self.base:
            at = self.owner or self.tree.place(above)
            self.problems.add(at, path, f'{self.function} needs the argument "{key}"', f"arguments of {self.function}: {', '.join(fields)}")
        elif field is not None and notes_of(field).derived:
            pass  # the key that it derives from is missing or wrong, and reported
        elif close := difflib.get_close_matches(key, others, n=1, cutoff=0.7):
            # a section that allows any key, such as a reader's
            self.misspelt((*above, close[0]), key, "")
        else:
            removed = self.problems.removed.get(path)
            meaning = f": {field.description}" if field is not None and field.description else ""
            message = f'{dotted(above) or "the configuration"} needs the key "{key}"{meaning}{"; null removes it" if removed else ""}'
            such = f"such as: {key}: {{name: {tags[0]}, ...}}; name: {', '.join(tags)}" if tags else ""
            self.problems.add(removed or self.tree.place(above), path, message, such)

    def misspelt(self, path: Path, meant: str, legal: str) -> None:
        message = f'unknown key "{short(path[-1])}" in {dotted(path[:-1])}; did you mean "{meant}"?'
        self.problems.add(self.tree.key_place(path), path, message, legal)

    def wrong(self, path: Path, errors: Sequence[ErrorDetails]) -> None:
        """Report the invalid value at `path` with its legal types or names; all `errors` concern this value."""
        at, full, first, key = self.tree.place(path), dotted(path), errors[0], path[-1] if path else ""
        if first["type"] == "union_tag_not_found" and isinstance(first["input"], dict):
            self.nameless(path)
        elif first["type"] == "union_tag_invalid":
            tag, tags, name = str(first["ctx"]["tag"]), self.tags(path), (*path, "name")
            message = f'there is no {key} "{short(tag)}"{did_you_mean(tag, tags)}'
            self.problems.add(self.tree.mark(name).at, name, message, f"{full}.name: {', '.join(tags)}")
        elif first["type"] == "value_error":
            self.problems.add(at, path, f"{full} must be {first['ctx']['error']}")
        else:
            choices = [choice for kind in self.kinds(path) if get_origin(kind) is Literal for choice in get_args(kind)]
            words = " or ".join(dict.fromkeys(requirement(error, choices) for error in errors))
            near = hint(errors, choices)
            if not near and any(error["type"].startswith(("model", "dict", "union_tag")) for error in errors):
                near = section_hint(first["input"], list(self.fields(path)), self.tags(path), key)
            if (
                not near
                and isinstance(first["input"], str)
                and any(get_origin(kind) is tuple and str in kinds_at(("0",), ["x"], kind) for kind in self.kinds(path))
            ):
                near = f"; write [{json.dumps(first['input'])}]"
            self.problems.add(at, path, f"{full or 'the configuration'} must be {words}; got {shown(first['input'])}{near}")

    def nameless(self, path: Path) -> None:
        """Report a section without `name`, or a misspelt `name`."""
        tags, full = self.tags(path), dotted(path)
        for key, value in self.map_at(path).items():
            if value in tags or difflib.get_close_matches(key, ["name"], cutoff=0.7):
                self.misspelt((*path, key), "name", f"name: {', '.join(tags)}")
                return
        self.problems.add(self.tree.place(path), (*path, "name"), f'{full} needs the key "name"', f"name: {', '.join(tags)}")


# -------------------------------------------------------------------- messages

#: type of an error, or its first word -> the requirement, to follow "must be"
REQUIREMENTS = {
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
    **dict.fromkeys(("dict", "model", "mapping", "dataclass", "union_tag_not_found"), "a map of keys"),
}
PATTERNS = {
    ANY_METRIC: 'the name of a metric, such as "validation/loss" or "train/loss"',
    METRIC: 'the name of a metric of the evaluation, such as "validation/loss"',
    IMPORT_PATH: 'a module and a function, such as "jobflow.models:lenet"',
}
#: names of choices in other programs -> the choice
CHOICES = {
    **dict.fromkeys(("fp16", "half", "16"), "float16"),
    **dict.fromkeys(("bf16", "bfloat"), "bfloat16"),
    **dict.fromkeys(("fp32", "single", "32", "float"), "float32"),
    **dict.fromkeys(("minimum", "minimize", "lower"), "min"),
    **dict.fromkeys(("maximum", "maximize", "higher"), "max"),
    "mse": "mean_squared_error",
    "silu": "swish",
}
#: the required type, the pattern of the actual string, the hint
HINTS: tuple[tuple[str, str, Callable[[re.Match[str]], str]], ...] = (
    ("bool", r"(?i)yes|on|y|true", lambda match: "; write true"),
    ("bool", r"(?i)no|off|n|false", lambda match: "; write false"),
    ("int float", r"(\d+(?:\.\d+)?)\s*%", lambda match: f"; write {float(match[1]) / 100:g}"),
    ("int float", r"[^_ ]+", lambda match: "; leave the quotes out" if _is_number(match[0]) else ""),
    ("int float", r".+", lambda match: f"; write {plain}" if _is_number(plain := re.sub(r"(?<=\d)[_ ](?=\d)", "", match[0])) else ""),
    (METRIC, r"(?:[a-z_]+/)?([a-z_]\w*)", lambda match: f'; did you mean "validation/{match[1]}"?'),
    (IMPORT_PATH, r".+", lambda match: f'; did you mean "{meant}"?' if (meant := meant_function(match[0])) else ""),
)
_STRATEGY = {"dp": "data", "ddp": "data", "tp": "tensor", "pp": "pipeline", "fsdp": "zero"}


def requirement(error: ErrorDetails, choices: Sequence[Any]) -> str:
    """Describe the legal value, to follow "must be"; `choices` are the legal values of a literal."""
    bounds = {key: f"{value:g}" if isinstance(value, float) else value for key, value in error.get("ctx", {}).items()}
    if error["type"] == "literal_error" and choices:
        each = [f'"{choice}"' if isinstance(choice, str) else str(choice) for choice in choices]
        return each[0] if len(each) == 1 else f"one of {', '.join(each)}"
    if error["type"] == "string_pattern_mismatch":
        return PATTERNS.get(bounds["pattern"], f"a text like {bounds['pattern']}")
    known = REQUIREMENTS.get(error["type"]) or REQUIREMENTS.get(error["type"].partition("_")[0])
    return known.format(**bounds) if known else error["msg"].removeprefix("Input should be ")


def shown(value: Any) -> str:
    """Format a value for a message."""
    if isinstance(value, dict):
        return "a map"
    if isinstance(value, list | tuple):
        text = json.dumps(value)
        return f"the list {text}" if len(text) < 60 else "a list"
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else repr(value)
    return f'the text "{short(value)}"' if isinstance(value, str) else json.dumps(value)


def short(text: str) -> str:
    """Shorten a text of more than 80 characters in the middle."""
    return text if len(text) <= 80 else f"{text[:50]} ... {text[-20:]}"


# -------------------------------------------------------------------- hints, starting with "; "


def section_hint(value: Any, keys: Sequence[str], tags: Sequence[str], key: str) -> str:
    """Return a hint for a value at the path of a section.

    The section has these keys, or is selected by one of these `tags`; `key` is the key of the section itself.
    """
    if value is None:
        return f"; write such as {key}: {{name: {tags[0]}, ...}}, with name one of {', '.join(tags)}" if tags else "; give it keys, or omit it"
    if not isinstance(value, str):
        return ""
    if value in tags or "reader" in keys:
        return f"; write {{{'name' if value in tags else 'reader'}: {value}}}"
    if "zero" in keys and (meant := _strategy(value.strip().lower())):
        return f"; did you mean {{{meant}}}?"
    pair = re.fullmatch(r"(\w+)(:|\s+)(\S+)", value)
    return f"; write {pair[1]}: {pair[3]}, with a colon and a space" if pair else ""


def _strategy(text: str) -> str:
    """Return the keys for a strategy in the short form of `explain` and `verify`: zero3, 2x2, or data=2,tensor=2; "" for other strings."""
    if re.fullmatch(r"\d+x\d+(x\d+)?", text):
        return ", ".join(f"{name}: {size}" for name, size in zip(("data", "tensor", "pipeline"), text.split("x"), strict=False))
    parts = [re.fullmatch(r"\s*([a-z]+)[-_=]?(\d*)\s*", part) for part in text.split(",")]
    sizes = {_STRATEGY.get(part[1], part[1]): part[2] for part in parts if part is not None}
    if len(sizes) < len(parts) or set(sizes) - {"data", "tensor", "pipeline", "zero", "microbatches"}:
        return ""
    return ", ".join(f"{name}: {number or ('3' if name == 'zero' else '2')}" for name, number in sizes.items())


def hint(errors: Sequence[ErrorDetails], choices: Sequence[Any]) -> str:
    """Return a hint for an invalid choice, number, bool or string, or ""; all errors concern the same value."""
    value, wished = errors[0]["input"], {error.get("ctx", {}).get("pattern", error["type"].partition("_")[0]) for error in errors}
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 and "int" in wished:
        return f"; write {int(value)}"
    if not isinstance(value, str):
        return ""
    near = did_you_mean(CHOICES.get(value.lower(), value.lower()), [choice for choice in choices if isinstance(choice, str)])
    hints = (say(match) for what, pattern, say in HINTS if wished & {what, *what.split()} and (match := re.fullmatch(pattern, value)))
    return near or next(filter(None, hints), "")


def _is_number(text: str) -> bool:
    return isinstance(value_of(text), int | float) and not isinstance(value_of(text), bool)
