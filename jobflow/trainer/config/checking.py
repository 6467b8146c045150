"""Tree -> checked configuration.  pydantic finds what is wrong; here it gets its place in the file and its words."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from jobflow.errors import did_you_mean
from jobflow.trainer.config.keys import section_at, suggestion
from jobflow.trainer.config.problems import Origin, Problems
from jobflow.trainer.config.reading import value_of
from jobflow.trainer.config.section import Derived, Section
from jobflow.trainer.config.tree import Branch, Leaf, Tree, at_path, child, nearest, place, plain


def validated(model: type[BaseModel], tree: Tree) -> tuple[Any, list[ErrorDetails]]:
    """The checked value, or None and what is wrong with it.  It goes by JSON: there lists may be tuples, and texts paths, but not numbers."""
    try:
        return model.model_validate_json(json.dumps(plain(tree))), []
    except ValidationError as error:
        return None, error.errors(include_url=False)


def report(errors: Sequence[ErrorDetails], tree: Branch, problems: Problems, base: str = "") -> None:
    """Put what pydantic found into words.  `base`: the path in the tree of what was checked."""
    found = [_Finding.of(error, at_path(tree, base) or tree, base) for error in errors]
    paths = {finding.path for finding in found}
    unknown = [finding for finding in found if finding.kind == "extra_forbidden"]
    meant = {f"{finding.above}.{name}" for finding in unknown if (name := _unknown(finding, tree, problems))}
    for finding in found:
        if finding.kind == "missing" and f"{finding.above}.{finding.key}" not in meant and not problems.about(finding.path):
            _missing(finding, tree, problems)
    wrong: dict[str, list[_Finding]] = {}
    for finding in found:
        deeper = any(path.startswith(f"{finding.path}.") for path in paths)
        if finding.kind not in ("missing", "extra_forbidden") and not (deeper and (finding.in_union or finding.kind.startswith("too_"))):
            wrong.setdefault(finding.path, []).append(finding)
    for path, several in wrong.items():
        _wrong(path, several, tree, problems)


@dataclass(frozen=True)
class _Finding:
    kind: str
    #: of the value, or of the key that is missing or unknown
    path: str
    given: Any
    numbers: Mapping[str, Any]
    #: True if it is what one of several kinds of value, any of which would do, has against the value
    in_union: bool

    @staticmethod
    def of(error: ErrorDetails, tree: Tree, base: str) -> _Finding:
        """pydantic's places also name the members of unions, which the tree has not."""
        steps, here, skipped = [base] if base else [], tree, 0
        last = len(error["loc"]) - 1
        for i, step in enumerate(error["loc"]):
            inside = child(here, step)
            if inside is not None:
                here = inside
                steps.append(str(step))
            elif i == last and error["type"] == "missing":
                steps.append(str(step))
            else:
                skipped = i if i else skipped
        in_union = bool(skipped) and skipped >= last - 1 and error["type"] not in ("missing", "extra_forbidden")
        return _Finding(error["type"], ".".join(steps), error["input"], error.get("ctx", {}), in_union)

    @property
    def above(self) -> str:
        return self.path.rpartition(".")[0]

    @property
    def key(self) -> str:
        return self.path.rpartition(".")[2]


def _unknown(finding: _Finding, tree: Branch, problems: Problems) -> str:
    """Tell of an unknown key; the key that was probably meant."""
    above = at_path(tree, finding.above)
    sections = section_at(finding.above.split(".") if finding.above else (), tree)
    said, meant = suggestion(finding.key, re.sub(r"\b\d+\b", "N", finding.above), sections, above.entries if isinstance(above, Branch) else {})
    entry = at_path(tree, finding.path)
    assert entry is not None
    what = f'unknown key "{finding.key}" {_where(finding.above, above)}{said}'
    problems.add(entry.name_at or entry.at, finding.path, what, f"keys {_where(finding.above, above)}: {', '.join(_keys(sections))}")
    return meant


def _keys(sections: Sequence[type[Section]]) -> list[str]:
    return list(dict.fromkeys(name for section in sections for name in section.model_fields))


def _where(path: str, tree: Tree | None) -> str:
    name = tree.entries.get("name") if isinstance(tree, Branch) else None
    chosen = f" ({name.value})" if path and isinstance(name, Leaf) else ""
    return f"in {path}{chosen}" if path else "at the top"


def _missing(finding: _Finding, tree: Branch, problems: Problems) -> None:
    sections = section_at(finding.above.split(".") if finding.above else (), tree)
    field = next((section.model_fields[finding.key] for section in sections if finding.key in section.model_fields), None)
    if field is not None and any(isinstance(mark, Derived) for mark in field.metadata):
        return  # what it would follow from is missing or wrong itself, and told
    meaning = f": {field.description}" if field is not None and field.description else ""
    owner = finding.above or "the configuration"
    problems.add(place(nearest(tree, finding.above)), finding.path, f'{owner} needs the key "{finding.key}"{meaning}')


def _wrong(path: str, several: Sequence[_Finding], tree: Branch, problems: Problems) -> None:
    entry = nearest(tree, path)
    for finding in several:
        if finding.kind == "union_tag_not_found":
            problems.add(
                place(entry),
                f"{path}.name",
                f'{path} needs the key "name"',
                f"name: {_choices(finding.numbers.get('expected_tags', ''), tree, path)}",
            )
            return
        if finding.kind == "union_tag_invalid":
            name = child(entry, "name") or entry
            choices = _quoted(finding.numbers["expected_tags"])
            tag = str(finding.numbers["tag"])
            problems.add(
                name.at,
                f"{path}.name",
                f'there is no {path.rpartition(".")[2]} "{tag}"{did_you_mean(tag, choices)}',
                f"{path}.name: {', '.join(choices)}",
            )
            return
    wanted = " or ".join(dict.fromkeys(_wanted(finding) for finding in several))
    literals = [choice for finding in several if finding.kind == "literal_error" for choice in _quoted(finding.numbers["expected"])]
    given = several[0].given
    near = did_you_mean(given.lower(), literals) if isinstance(given, str) else ""
    hint = near or _hint(given, {finding.kind for finding in several})
    problems.add(place(entry), path, f"{path or 'the configuration'} must be {wanted}; got {shown(given)}{hint}")


def _choices(text: str, tree: Branch, path: str) -> str:
    from_tags = _quoted(text)
    if from_tags:
        return ", ".join(from_tags)
    field = [section.model_fields["name"] for section in section_at(path.split("."), tree) if "name" in section.model_fields]
    return ", ".join(str(choice) for one in field for choice in getattr(one.annotation, "__args__", ()))


def _quoted(text: str) -> list[str]:
    return re.findall(r"'([^']*)'", text)


def _wanted(finding: _Finding) -> str:
    """What should stand there, to follow "must be"."""
    kind, numbers = finding.kind, finding.numbers
    if kind == "literal_error":
        choices = [f'"{choice}"' for choice in _quoted(numbers["expected"])]
        return choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"
    for name, words in _LIMITS.items():
        if kind == name:
            return words.format(**{key: _number(value) for key, value in numbers.items()})
    if kind == "string_pattern_mismatch":
        return _PATTERNS.get(str(numbers["pattern"]), f"a text like {numbers['pattern']}")
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
_PATTERNS = {
    r"^validation/\w+$": 'the name of a metric of the evaluation, such as "validation/loss"',
    r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$": 'a module and a function, such as "jobflow.models:lenet"',
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
        return f"the list {text}" if len(text) < 40 else "a list"
    if isinstance(value, float):
        return "a number that is none" if math.isnan(value) else repr(value)
    return f'the text "{value}"' if isinstance(value, str) else json.dumps(value)


_YES_NO = {**dict.fromkeys(("yes", "on", "y"), "true"), **dict.fromkeys(("no", "off", "n"), "false")}


def _hint(given: Any, kinds: set[str]) -> str:
    """What was probably meant, where a number or a bool is wanted."""
    if "bool_type" in kinds and isinstance(given, str):
        word = given.lower()
        meant = _YES_NO.get(word) or (word if word in ("true", "false") else None)
        return f"; write {meant}" if meant else ""
    if isinstance(given, float) and given.is_integer() and abs(given) < 2**53 and kinds & {"int_type", "int_from_float"}:
        return f"; write {int(given)}"
    if isinstance(given, str) and any(kind.startswith(("int_", "float_")) for kind in kinds):
        meaning = value_of(given.strip())
        if isinstance(meaning, int | float) and not isinstance(meaning, bool):
            return "; leave the quotes out"
        plainer = re.sub(r"(?<=\d)[_ ](?=\d)", "", given)
        if plainer != given and isinstance(value_of(plainer), int | float):
            return f"; write {plainer}"
        share = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", given)
        return f"; write {float(share[1]) / 100:g}" if share else ""
    return ""


# -------------------------------------------------------------------- arguments of functions


def report_arguments(
    errors: Sequence[ErrorDetails], tree: Branch, problems: Problems, path: str, what: str, legal: Sequence[str], owner: Origin
) -> None:
    """The same for the arguments of a function, `what`, that stand under `path`; `owner`: where to point if one is missing."""
    names = [name.removeprefix("a_") for name in legal]
    rest = []
    for error in errors:
        key = f"{path}.{error['loc'][0]}"
        name = str(error["loc"][0])
        entry = at_path(tree, key)
        if error["type"] == "extra_forbidden" and entry is not None:
            problems.add(
                entry.name_at or entry.at,
                key,
                f'{what} takes no argument "{name}"{did_you_mean(name, names)}',
                f"arguments of {what}: {', '.join(names)}",
            )
        elif error["type"] == "missing":
            problems.add(owner, key, f'{what} needs the argument "{name}"', f"arguments of {what}: {', '.join(names)}")
        else:
            rest.append(error)
    report(rest, tree, problems, path)
