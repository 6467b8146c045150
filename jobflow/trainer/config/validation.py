"""Tree -> checked values.  pydantic finds what is wrong; here it gets its place in the file and its words.

pydantic's errors have a type, the place of the value, and the limits that it breaks: `messages` says each type in our words.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from jobflow.errors import did_you_mean
from jobflow.trainer.config.keys import fields_of, kinds_at, notes_of, sections_at, suggestion, tag_of
from jobflow.trainer.config.messages import hint, section_hint, short, shown, wanted
from jobflow.trainer.config.problems import Origin, Problems, is_in
from jobflow.trainer.config.tree import Node, below, split


@dataclass(frozen=True)
class _Finding:
    """What pydantic found; `path` is that of the value, or of the key that is missing or unknown."""

    path: str
    error: ErrorDetails
    #: True if it is what one of several kinds of value, any of which would do, has against the value
    in_union: bool

    @property
    def kind(self) -> str:
        return self.error["type"]


@dataclass(frozen=True)
class Validation:
    """Checks a part of a tree by a model; paths are those inside of the part, whose own path is `base`."""

    tree: Node
    problems: Problems
    model: type[BaseModel]
    base: str = ""
    #: the function, such as "builder own:net", whose arguments the part has, and where to point if one is missing
    function: str = ""
    owner: Origin | None = None

    def check(self, part: Node) -> Any:
        """The checked value; None, and problems, if something is wrong.  It goes by JSON, where lists may be tuples but texts are no numbers."""
        try:
            return self.model.model_validate_json(json.dumps(part.plain))
        except ValidationError as error:
            self.report(part, [self.found(one, part) for one in error.errors(include_url=False)])
            return None

    def found(self, error: ErrorDetails, part: Node) -> _Finding:
        """pydantic's places also name the members of unions, which the tree has not."""
        path, here, skipped, last = "", part, 0, len(error["loc"]) - 1
        for i, step in enumerate(error["loc"]):
            inside = here.children.get(str(step))
            if inside is not None or (i == last and error["type"] == "missing"):
                path, here = below(path, step), inside or here
            else:
                skipped = i or skipped
        return _Finding(path, error, bool(skipped) and skipped >= last - 1 and error["type"] not in ("missing", "extra_forbidden"))

    def report(self, part: Node, findings: Sequence[_Finding]) -> None:
        """Put them into words: unknown keys first, for a key that was meant by one of them is not missing."""
        meant = {self.unknown(one.path, part) for one in findings if one.kind == "extra_forbidden"}
        for one in findings:
            if one.kind == "missing" and not self.problems.about(self.full(one.path)):
                self.problems.unsaid.add(self.full(one.path))
                if one.path not in meant:
                    self.missing(one.path, part)
        wrong: dict[str, list[_Finding]] = {}
        for one in findings:
            deeper = any(is_in(other.path, one.path) and other.path != one.path for other in findings)
            if one.kind not in ("missing", "extra_forbidden") and not (deeper and (one.in_union or one.kind.startswith("too_"))):
                wrong.setdefault(one.path, []).append(one)
        for path, several in wrong.items():
            if not self.problems.about(self.full(path)):
                self.wrong(path, several, part)

    def full(self, path: str) -> str:
        return f"{self.base}.{path}".strip(".")

    def legal(self, path: str, part: Node) -> list[str]:
        """The keys that may stand under a path."""
        return list(dict.fromkeys(name for section in sections_at(path, part, self.model) for name in fields_of(section)))

    def where(self, path: str, part: Node) -> str:
        above = part.get(path)
        name = above and above.children.get("name")
        return f"in {self.full(path)}{f' ({name.value})' if name else ''}" if path else "at the top"

    def unknown(self, path: str, part: Node) -> str:
        """Tell of an unknown key; the path of the key that was probably meant, or ""."""
        above, key = split(path)
        owner, entry, legal = part.nearest(above), part.nearest(path), self.legal(above, part)
        if self.function and not above:
            near = did_you_mean(key, legal)
            what, names = f'{self.function} takes no argument "{short(key)}"{near}', f"arguments of {self.function}"
            meant = next((name for name in legal if f'"{name}"' in near), "")
        else:
            near, meant = suggestion(key, above, legal, owner.children)
            name = owner.children.get("name") if any(map(tag_of, sections_at(above, part, self.model))) else None
            if name is not None and name.at.file != entry.at.file and near.startswith("; only"):
                near += f"; write {key}: null beside the name to take away what {os.path.basename(entry.at.file)} gives"
            where = self.where(above, part)
            what, names = f'unknown key "{short(key)}" {where}{near}', f"keys {where}"
        self.problems.add(entry.key_at or entry.at, self.full(path), what, f"{names}: {', '.join(legal) or 'none'}")
        return f"{above}.{meant}".strip(".") if meant else ""

    def missing(self, path: str, part: Node) -> None:
        above, key = split(path)
        legal, owner = self.legal(above, part), part.nearest(above)
        if self.function and not above:
            told = f'{self.function} needs the argument "{key}"'
            self.problems.add(self.owner or owner.place, self.full(path), told, f"arguments of {self.function}: {', '.join(legal)}")
            return
        field = next(fields_of(section)[key] for section in sections_at(above, part, self.model) if key in fields_of(section))
        if notes_of(field).derived:
            return  # what it would follow from is missing or wrong itself, and told
        others = {name: entry for name, entry in owner.children.items() if name not in legal}
        for name in difflib.get_close_matches(key, others, n=1, cutoff=0.7):
            # a section that takes any key, such as that of a reader
            self.misspelt(below(above, name), others[name], above, key, "")
            return
        taken = self.problems.taken.get(self.full(path))
        meaning, away = f": {field.description}" if field.description else "", "" if taken is None else "; null takes it away"
        told = f'{self.full(above) or "the configuration"} needs the key "{key}"{meaning}{away}'
        tags = self.tags(path, part)
        such = f"such as: {key}: {{name: {tags[0]}, ...}}; name: {', '.join(tags)}" if tags else ""
        self.problems.add(taken or owner.place, self.full(path), told, such)

    def misspelt(self, path: str, entry: Node, above: str, meant: str, legal: str) -> None:
        told = f'unknown key "{short(split(path)[1])}" in {self.full(above)}; did you mean "{meant}"?'
        self.problems.add(entry.key_at or entry.at, self.full(path), told, legal)

    def tags(self, path: str, part: Node) -> list[str]:
        """The names that choose one of the sections that may stand under a path."""
        return [tag for section in sections_at(path, part, self.model) if (tag := tag_of(section))]

    def wrong(self, path: str, several: Sequence[_Finding], part: Node) -> None:
        """Tell what a value should be; any of several things if it may be of several kinds."""
        entry, full, first, key = part.nearest(path), self.full(path), several[0].error, split(path)[1] if path else ""
        if first["type"] == "union_tag_not_found":
            self.nameless(path, entry, part)
        elif first["type"] == "union_tag_invalid":
            tag, tags = str(first["ctx"]["tag"]), self.tags(path, part)
            told = f'there is no {key} "{short(tag)}"{did_you_mean(tag, tags)}'
            self.problems.add(entry.children["name"].at, f"{full}.name", told, f"{full}.name: {', '.join(tags)}")
        elif first["type"] == "value_error":
            self.problems.add(entry.place, full, f"{full} must be {first['ctx']['error']}")
        else:
            choices = [choice for kind in kinds_at(path, part, self.model) if get_origin(kind) is Literal for choice in get_args(kind)]
            words = " or ".join(dict.fromkeys(wanted(one.error, choices) for one in several))
            is_section = any(one.kind.startswith(("model", "dict")) for one in several)
            near = hint([one.error for one in several], choices)
            near = section_hint(first["input"], self.legal(path, part), self.tags(path, part), key) if is_section and not near else near
            self.problems.add(entry.place, full, f"{full or 'the configuration'} must be {words}; got {shown(first['input'])}{near}")

    def nameless(self, path: str, entry: Node, part: Node) -> None:
        """Tell of a section without the name that says which it is, or of the key that was meant to be it."""
        tags = self.tags(path, part)
        for key, value in entry.children.items():
            if value.value in tags or difflib.get_close_matches(key, ["name"], cutoff=0.7):
                self.misspelt(below(path, key), value, path, "name", f"name: {', '.join(tags)}")
                return
        self.problems.add(entry.place, f"{self.full(path)}.name", f'{self.full(path)} needs the key "name"', f"name: {', '.join(tags)}")
