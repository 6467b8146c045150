"""Tree -> checked configuration.  pydantic finds what is wrong; here it gets its place in the file and its words."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from jobflow.errors import did_you_mean
from jobflow.trainer.config.keys import section_at, suggestion, tag_of
from jobflow.trainer.config.paths import below, is_in, split, steps_of
from jobflow.trainer.config.problems import Origin, Problems
from jobflow.trainer.config.section import Derived, Section
from jobflow.trainer.config.tree import Branch, Leaf, Tree, at_path, child, nearest, place, plain
from jobflow.trainer.config.wording import ABBREVIATIONS, choices_in, hint, section_hint, short, shown, wanted


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
    meant = {f"{finding.above}.{name}".lstrip(".") for finding in unknown if (name := _unknown(finding, tree, problems))}
    for finding in found:
        if finding.kind == "missing" and finding.path not in meant and not problems.about(finding.path):
            _missing(finding, tree, problems)
    wrong: dict[str, list[_Finding]] = {}
    for finding in found:
        deeper = any(is_in(path, finding.path) and path != finding.path for path in paths)
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
        path, here, skipped = base, tree, 0
        last = len(error["loc"]) - 1
        for i, step in enumerate(error["loc"]):
            inside = child(here, step)
            if inside is not None:
                here = inside
                path = below(path, step)
            elif i == last and error["type"] == "missing":
                path = below(path, step)
            else:
                skipped = i if i else skipped
        in_union = bool(skipped) and skipped >= last - 1 and error["type"] not in ("missing", "extra_forbidden")
        return _Finding(error["type"], path, error["input"], error.get("ctx", {}), in_union)

    @property
    def above(self) -> str:
        return split(self.path)[0]

    @property
    def key(self) -> str:
        return split(self.path)[1]


def _unknown(finding: _Finding, tree: Branch, problems: Problems) -> str:
    """Tell of an unknown key; the key that was probably meant."""
    above = at_path(tree, finding.above)
    sections = section_at(steps_of(finding.above), tree)
    said, meant = suggestion(finding.key, _general(finding.above), sections, above.entries if isinstance(above, Branch) else {})
    entry = at_path(tree, finding.path)
    assert entry is not None, "it was found there"
    name = child(above, "name") if above is not None and any(map(tag_of, sections)) else None
    if name is not None and name.at.file != entry.at.file and said.startswith("; only"):
        said += f"; write {finding.key}: null beside the name to take away what {os.path.basename(entry.at.file)} gives"
    what = f'unknown key "{short(finding.key)}" {_where(finding.above, above)}{said}'
    problems.add(entry.name_at or entry.at, finding.path, what, f"keys {_where(finding.above, above)}: {', '.join(_keys(sections)) or 'none'}")
    return meant


def _general(path: str) -> str:
    """The path as the schema has it: positions in lists are N."""
    return ".".join("N" if step.isdecimal() else step for step in steps_of(path))


def _keys(sections: Sequence[type[Section]]) -> list[str]:
    return list(dict.fromkeys(name for section in sections for name in section.model_fields))


def _where(path: str, tree: Tree | None) -> str:
    name = tree.entries.get("name") if isinstance(tree, Branch) else None
    chosen = f" ({name.value})" if path and isinstance(name, Leaf) else ""
    return f"in {path}{chosen}" if path else "at the top"


def _missing(finding: _Finding, tree: Branch, problems: Problems) -> None:
    sections = section_at(steps_of(finding.above), tree)
    field = next((section.model_fields[finding.key] for section in sections if finding.key in section.model_fields), None)
    if field is not None and any(isinstance(mark, Derived) for mark in field.metadata):
        return  # what it would follow from is missing or wrong itself, and told
    above, known = at_path(tree, finding.above), _keys(sections)
    others = {name: entry for name, entry in above.entries.items() if name not in known} if isinstance(above, Branch) else {}
    for name in difflib.get_close_matches(finding.key, others, n=1, cutoff=0.7):
        # a section that takes any key, such as that of a reader
        told = f'unknown key "{short(name)}" in {finding.above}; did you mean "{finding.key}"?'
        problems.add(others[name].name_at or others[name].at, below(finding.above, name), told)
        return
    meaning = f": {field.description}" if field is not None and field.description else ""
    owner, taken = finding.above or "the configuration", problems.taken.get(finding.path)
    away = "; null takes it away" if taken is not None else ""
    told = f'{owner} needs the key "{finding.key}"{meaning}{away}'
    problems.add(taken or place(nearest(tree, finding.above)), finding.path, told, _such_as(finding.path, tree))


def _such_as(path: str, tree: Tree) -> str:
    """A section that could stand under a path; "" if it is none, or one of those that speak for themselves."""
    names = [name for section in section_at(steps_of(path), tree) if (name := tag_of(section))]
    return f"such as: {split(path)[1]}: {{name: {names[0]}, ...}}; name: {', '.join(names)}" if names else ""


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
            choices = choices_in(finding.numbers["expected_tags"])
            tag = str(finding.numbers["tag"])
            problems.add(
                name.at,
                f"{path}.name",
                f'there is no {split(path)[1]} "{short(tag)}"{did_you_mean(tag, choices)}',
                f"{path}.name: {', '.join(choices)}",
            )
            return
    words = " or ".join(dict.fromkeys(wanted(finding.kind, finding.numbers) for finding in several))
    given = several[0].given
    if several[0].kind == "value_error":
        problems.add(place(entry), path, f"{path} must be {words}")
        return
    problems.add(place(entry), path, f"{path or 'the configuration'} must be {words}; got {shown(given)}{_probably(path, several, tree)}")


def _probably(path: str, several: Sequence[_Finding], tree: Branch) -> str:
    """What was probably meant; begins with "; "."""
    given, kinds = several[0].given, {finding.kind for finding in several}
    choices = [choice for finding in several if finding.kind == "literal_error" for choice in choices_in(finding.numbers["expected"])]
    near = did_you_mean(ABBREVIATIONS.get(given.lower(), given.lower()), choices) if isinstance(given, str) else ""
    if near:
        return near
    if any(kind.startswith(("model", "dict")) for kind in kinds):
        return section_hint(given, section_at(steps_of(path), tree), split(path)[1])
    return hint(given, kinds, next((str(finding.numbers["pattern"]) for finding in several if "pattern" in finding.numbers), ""))


def _nameless(path: str, entry: Tree, tree: Branch, problems: Problems) -> None:
    """Tell of a section without the name that says which it is, or of the key that was meant to be it."""
    tags = [str(tag_of(section)) for section in section_at(steps_of(path), tree)]
    for key, value in entry.entries.items() if isinstance(entry, Branch) else ():
        is_tag = isinstance(value, Leaf) and value.value in tags
        if is_tag or difflib.get_close_matches(key, ["name"], cutoff=0.7):
            told = f'unknown key "{short(key)}" in {path}; did you mean "name"?'
            problems.add(value.name_at or value.at, below(path, key), told, f"name: {', '.join(tags)}")
            return
    problems.add(place(entry), f"{path}.name", f'{path} needs the key "name"', f"name: {', '.join(tags)}")


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
        key = below(path, name)
        entry = at_path(tree, key)
        if error["type"] == "extra_forbidden" and entry is not None:
            near = did_you_mean(name, names)
            meant |= {other for other in names if f'"{other}"' in near}
            problems.add(entry.name_at or entry.at, key, f'{what} takes no argument "{short(name)}"{near}', listed)
        elif error["type"] != "missing":
            rest.append(error)
        elif name not in meant and not problems.about(key):
            problems.add(owner, key, f'{what} needs the argument "{name}"', listed)
    report(rest, tree, problems, path)
