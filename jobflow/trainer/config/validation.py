"""Tree -> checked values.  pydantic finds what is wrong; here it gets its place in the file and its words.

pydantic's errors have a type, the place of the value, and the limits that it breaks: from these it is said what the value should be, what it
is, and what was probably meant.
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
from jobflow.trainer.config.tree import MISSING, MOST, Origin, Path, Problems, Tree, child, dotted, prefixes

_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_OF_KEYS = ("missing", *_UNKNOWN)


@dataclass(frozen=True)
class Validation:
    """Checks a tree by a model; or `part` of it, which stands under the path `base`."""

    tree: Tree
    problems: Problems
    model: type[BaseModel] = TrainConfig
    base: Path = ()
    part: Any = None
    #: the function, such as "builder own:net", whose arguments the part has, and where to point if one is missing
    function: str = ""
    owner: Origin | None = None

    def check(self) -> Any:
        """The checked value; None, and problems, if something is wrong.  It goes by JSON, where lists may be tuples but texts are no numbers."""
        try:
            return self.model.model_validate_json(json.dumps(self.values))
        except ValidationError as error:
            self.report(error.errors(include_url=False))
            return None

    @property
    def values(self) -> Any:
        return self.part if self.base else self.tree.plain

    def found(self, error: ErrorDetails) -> tuple[Path, bool]:
        """The path of the value that an error is about, or of the key that is missing or unknown; and whether it is what one of several kinds of
        value, any of which would do, has against it.  pydantic's places also name the members of unions, which the tree has not."""
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
        """Put them into words: unknown keys first, for a key that was meant by one of them is not missing."""
        found = [(*self.found(error), error["type"], error) for error in errors]
        meant = {self.unknown(path) for path, _, kind, _ in found if kind in _UNKNOWN}
        for path, _, kind, _ in found:
            if kind == "missing" and not self.problems.about(path):
                self.problems.unsaid.add(path)
                if path not in meant:
                    self.missing(path)
        wrong: dict[Path, list[ErrorDetails]] = {}
        around = {outer for path, *_ in found for outer in prefixes(path)[:-1]}
        for path, in_union, kind, error in found:
            if kind not in _OF_KEYS and not (path in around and (in_union or kind.startswith("too_"))):
                wrong.setdefault(path, []).append(error)
        self.problems.unsaid |= wrong.keys()
        for path, several in wrong.items():
            if not self.problems.about(path):
                self.wrong(path, several)

    def kinds(self, path: Path) -> list[Any]:
        """The kinds of value that may stand under a path."""
        return kinds_at(path[len(self.base) :], self.values, self.model)

    def fields(self, path: Path) -> dict[str, FieldInfo | None]:
        """The keys that may stand under a path; None for those of a dataclass, or a dict with known keys, that a function takes."""
        found: dict[str, FieldInfo | None] = {}
        for kind in self.kinds(path):
            inside = fields_of(kind) if is_section(kind) else dict.fromkeys(getattr(kind, "__annotations__", {}))
            found |= {key: field for key, field in inside.items() if key not in found}
        return found

    def given(self, path: Path) -> dict[str, Any]:
        """The map under a path."""
        found = self.tree.find(path)
        return found if isinstance(found, dict) else {}

    def tags(self, path: Path) -> list[str]:
        """The names that choose one of the sections that may stand under a path."""
        return [tag for kind in self.kinds(path) if is_section(kind) and (tag := tag_of(kind))]

    def unknown(self, path: Path) -> Path | None:
        """Tell of an unknown key; the path of the key that was probably meant, if there is one."""
        above, key = path[:-1], path[-1]
        at, owner, legal = self.tree.key_place(path), self.given(above), list(self.fields(above))
        if self.function and above == self.base:
            near = did_you_mean(key, legal)
            meant: Path = next(((name,) for name in legal if f'"{name}"' in near), ())
            told, names = f'{self.function} takes no argument "{short(key)}"{near}', f"arguments of {self.function}"
        else:
            near, meant = suggestion(key, above, legal, owner)
            if "name" in owner and self.tags(above) and near.startswith("; only"):
                chosen, entry = (self.tree.mark((*above, step)).at.file for step in ("name", key))
                near += "" if chosen == entry else f"; write {key}: null beside the name to take away what {os.path.basename(entry)} gives"
            where = f"in {dotted(above)}{f' ({name})' if (name := owner.get('name')) else ''}" if above else "at the top"
            told, names = f'unknown key "{short(key)}" {where}{near}', f"keys {where}"
        self.problems.add(at, path, told, f"{names}: {', '.join(legal) or 'none'}")
        return (*above, *meant) if meant else None

    def missing(self, path: Path) -> None:
        above, key = path[:-1], path[-1]
        fields, tags = self.fields(above), self.tags(path)
        field = fields.get(key)
        others = [name for name in islice(self.given(above), MOST) if name not in fields]
        if self.function and above == self.base:
            at = self.owner or self.tree.place(above)
            self.problems.add(at, path, f'{self.function} needs the argument "{key}"', f"arguments of {self.function}: {', '.join(fields)}")
        elif field is not None and notes_of(field).derived:
            pass  # what it would follow from is missing or wrong itself, and told
        elif close := difflib.get_close_matches(key, others, n=1, cutoff=0.7):
            # in a section that takes any key, such as that of a reader
            self.misspelt((*above, close[0]), key, "")
        else:
            taken = self.problems.taken.get(path)
            meaning = f": {field.description}" if field is not None and field.description else ""
            told = f'{dotted(above) or "the configuration"} needs the key "{key}"{meaning}{"; null takes it away" if taken else ""}'
            such = f"such as: {key}: {{name: {tags[0]}, ...}}; name: {', '.join(tags)}" if tags else ""
            self.problems.add(taken or self.tree.place(above), path, told, such)

    def misspelt(self, path: Path, meant: str, legal: str) -> None:
        told = f'unknown key "{short(path[-1])}" in {dotted(path[:-1])}; did you mean "{meant}"?'
        self.problems.add(self.tree.key_place(path), path, told, legal)

    def wrong(self, path: Path, errors: Sequence[ErrorDetails]) -> None:
        """Tell what a value should be; any of several things if it may be of several kinds."""
        at, full, first, key = self.tree.place(path), dotted(path), errors[0], path[-1] if path else ""
        if first["type"] == "union_tag_not_found":
            self.nameless(path)
        elif first["type"] == "union_tag_invalid":
            tag, tags, name = str(first["ctx"]["tag"]), self.tags(path), (*path, "name")
            told = f'there is no {key} "{short(tag)}"{did_you_mean(tag, tags)}'
            self.problems.add(self.tree.mark(name).at, name, told, f"{full}.name: {', '.join(tags)}")
        elif first["type"] == "value_error":
            self.problems.add(at, path, f"{full} must be {first['ctx']['error']}")
        else:
            choices = [choice for kind in self.kinds(path) if get_origin(kind) is Literal for choice in get_args(kind)]
            words = " or ".join(dict.fromkeys(wanted(error, choices) for error in errors))
            near = hint(errors, choices)
            if not near and any(error["type"].startswith(("model", "dict")) for error in errors):
                near = section_hint(first["input"], list(self.fields(path)), self.tags(path), key)
            self.problems.add(at, path, f"{full or 'the configuration'} must be {words}; got {shown(first['input'])}{near}")

    def nameless(self, path: Path) -> None:
        """Tell of a section without the name that says which it is, or of the key that was meant to be it."""
        tags, full = self.tags(path), dotted(path)
        for key, value in self.given(path).items():
            if value in tags or difflib.get_close_matches(key, ["name"], cutoff=0.7):
                self.misspelt((*path, key), "name", f"name: {', '.join(tags)}")
                return
        self.problems.add(self.tree.place(path), (*path, "name"), f'{full} needs the key "name"', f"name: {', '.join(tags)}")


# -------------------------------------------------------------------- words

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
