"""Tree -> checked configuration.  pydantic finds what is wrong; here it gets its place in the file and its words."""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from jobflow.errors import did_you_mean
from jobflow.trainer.config.keys import section_at, suggestion, tag_of
from jobflow.trainer.config.problems import Origin, Problems
from jobflow.trainer.config.reading import value_of
from jobflow.trainer.config.schema import IMPORTED, METRIC
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
    assert entry is not None, "it was found there"
    name = child(above, "name") if above is not None and any(map(tag_of, sections)) else None
    if name is not None and name.at.file != entry.at.file and said.startswith("; only"):
        said += f"; write {finding.key}: null beside the name to take away what {os.path.basename(entry.at.file)} gives"
    what = f'unknown key "{finding.key}" {_where(finding.above, above)}{said}'
    problems.add(entry.name_at or entry.at, finding.path, what, f"keys {_where(finding.above, above)}: {', '.join(_keys(sections)) or 'none'}")
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
    above = at_path(tree, finding.above)
    others = (
        {name: entry for name, entry in above.entries.items() if not any(name in s.model_fields for s in sections)}
        if isinstance(above, Branch)
        else {}
    )
    for name in difflib.get_close_matches(finding.key, others, n=1, cutoff=0.7):
        # a section that takes any key, such as that of a reader
        told = f'unknown key "{name}" in {finding.above}; did you mean "{finding.key}"?'
        problems.add(others[name].name_at or others[name].at, f"{finding.above}.{name}", told)
        return
    meaning = f": {field.description}" if field is not None and field.description else ""
    owner = finding.above or "the configuration"
    problems.add(place(nearest(tree, finding.above)), finding.path, f'{owner} needs the key "{finding.key}"{meaning}')


def _wrong(path: str, several: Sequence[_Finding], tree: Branch, problems: Problems) -> None:
    entry = nearest(tree, path)
    if problems.about(path):
        return
    for finding in several:
        if finding.kind == "union_tag_not_found":
            _nameless(path, entry, tree, problems)
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
    if several[0].kind == "value_error":
        problems.add(place(entry), path, f"{path} must be {wanted}")
        return
    near = did_you_mean(_ABBREVIATIONS.get(given.lower(), given.lower()), literals) if isinstance(given, str) else ""
    kinds = {finding.kind for finding in several}
    hint = near or _hint(given, kinds) or (_section_hint(given, section_at(path.split("."), tree)) if any(map(_is_map, kinds)) else "")
    problems.add(place(entry), path, f"{path or 'the configuration'} must be {wanted}; got {shown(given)}{hint}")


def _nameless(path: str, entry: Tree, tree: Branch, problems: Problems) -> None:
    """Tell of a section without the name that says which it is, or of the key that was meant to be it."""
    tags = [str(tag_of(section)) for section in section_at(path.split("."), tree)]
    for key, value in entry.entries.items() if isinstance(entry, Branch) else ():
        is_tag = isinstance(value, Leaf) and value.value in tags
        if is_tag or difflib.get_close_matches(key, ["name"], cutoff=0.7):
            told = f'unknown key "{key}" in {path}; did you mean "name"?'
            problems.add(value.name_at or value.at, f"{path}.{key}", told, f"name: {', '.join(tags)}")
            return
    problems.add(place(entry), f"{path}.name", f'{path} needs the key "name"', f"name: {', '.join(tags)}")


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
        return f"the list {text}" if len(text) < 40 else "a list"
    if isinstance(value, float):
        return "a number that is none" if math.isnan(value) else repr(value)
    return f'the text "{value}"' if isinstance(value, str) else json.dumps(value)


def _is_map(kind: str) -> bool:
    """Whether it says that something is no section."""
    return kind.startswith(("model", "dict"))


def _section_hint(given: Any, sections: Sequence[type[Section]]) -> str:
    """What was probably meant, where a section is wanted."""
    if given is None:
        return "; give it keys, or leave it out"
    if not isinstance(given, str):
        return ""
    if given in [tag_of(section) for section in sections]:
        return f"; write {{name: {given}}}"
    if any("reader" in section.model_fields for section in sections):
        return f"; write {{reader: {given}}}"
    key = re.fullmatch(r"(\w+)(:|\s+)(\S+)", given)
    return f"; write {key[1]}: {key[3]}, with a colon and a space" if key else ""


_ABBREVIATIONS = {
    **dict.fromkeys(("fp16", "half", "16"), "float16"),
    **dict.fromkeys(("bf16", "bfloat"), "bfloat16"),
    **dict.fromkeys(("fp32", "single", "32", "float"), "float32"),
    **dict.fromkeys(("minimum", "minimize", "lower"), "min"),
    **dict.fromkeys(("maximum", "maximize", "higher"), "max"),
    "mse": "mean_squared_error",
    "silu": "swish",
}
_YES_NO = {**dict.fromkeys(("yes", "on", "y"), "true"), **dict.fromkeys(("no", "off", "n"), "false")}


def _hint(given: Any, kinds: set[str]) -> str:
    """What was probably meant, where a number or a bool is wanted."""
    if "string_pattern_mismatch" in kinds and isinstance(given, str) and re.fullmatch(r"\w+|(train|test|val)/\w+", given):
        return f'; did you mean "validation/{given.rpartition("/")[2]}"?' if given.islower() else ""
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
    listed = f"arguments of {what}: {', '.join(names) or 'none'}"
    rest: list[ErrorDetails] = []
    meant: set[str] = set()
    for error in sorted(errors, key=lambda error: error["type"] == "missing"):
        name = str(error["loc"][0])
        key = f"{path}.{name}"
        entry = at_path(tree, key)
        if error["type"] == "extra_forbidden" and entry is not None:
            near = did_you_mean(name, names)
            meant |= {other for other in names if f'"{other}"' in near}
            problems.add(entry.name_at or entry.at, key, f'{what} takes no argument "{name}"{near}', listed)
        elif error["type"] != "missing":
            rest.append(error)
        elif name not in meant and not problems.about(key):
            problems.add(owner, key, f'{what} needs the argument "{name}"', listed)
    report(rest, tree, problems, path)
