"""Lookup in the schema: the keys at a path, their defaults, and suggestions for unknown keys."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from jobflow.core.imports import IMPORT_PATH
from jobflow.trainer.config.schema import TrainConfig
from jobflow.trainer.config.schema_fields import IMPORTED, Notes, Section, selector
from jobflow.trainer.config.tree import Path, child, dotted, steps_of

Model = type[BaseModel]


def fields_of(model: Model) -> dict[str, FieldInfo]:
    """Return {key: pydantic field} for the keys of the section `model`."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def notes_of(field: FieldInfo) -> Notes:
    """Return the schema's notes about the key with this field, or empty notes if the schema has none."""
    return next((note for note in field.metadata if isinstance(note, Notes)), Notes((), ""))


def kinds_of(annotation: Any) -> list[Any]:
    """Return the members of a union annotation, or a list with only `annotation` if it is not a union.

    Wrappers `Annotated` are removed.
    """
    if get_origin(annotation) is Annotated:
        return kinds_of(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [kind for part in get_args(annotation) for kind in kinds_of(part)]
    return [annotation]


def _inside(kind: Any, step: str) -> list[Any]:
    """Return the types allowed inside a value of type `kind` at `step`, a key or a list position."""
    if is_section(kind):
        return [inside for name, field in fields_of(kind).items() if name == step for inside in kinds_of(field.annotation)]
    if get_origin(kind) in (list, tuple, dict):
        return [inside for part in get_args(kind)[-1 if get_origin(kind) is dict else 0 :] for inside in kinds_of(part)]
    # a dataclass, or a dict with known keys, among the arguments of a function
    return kinds_of(get_type_hints(kind, include_extras=True)[step]) if step in getattr(kind, "__annotations__", {}) else []


def is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def tag_of(section: Model) -> str | None:
    """Return the value of `name:` that selects this section, or None if a section is not selected by name."""
    field = section.model_fields.get("name")
    if field is None or get_origin(field.annotation) is Literal:
        return None if field is None else str(get_args(field.annotation)[0])
    return IMPORTED if "arguments" in section.model_fields else None


def kinds_at(path: Path, value: Any, root: Any = TrainConfig) -> list[Any]:
    """Return the types allowed at `path` inside `value`, whose own type is `root`.

    If the key `name` in `value` selects one of several sections, return only the selected section.
    """
    kinds = [root]
    for step in path:
        value = child(value, step)
        kinds = [inside for kind in kinds for inside in _inside(kind, step)]
        kinds = [kind for kind in kinds if is_section(kind) and tag_of(kind) == selector(value) is not None] or kinds
    return kinds


def sections_at(path: Path, value: Any, root: Any = TrainConfig) -> list[Model]:
    """Return the section types among the types that are allowed at `path` inside `value`, whose own type is `root`."""
    return list(filter(is_section, kinds_at(path, value, root)))


def _sections(path: Path, section: Model) -> Iterator[tuple[Path, Model]]:
    yield path, section
    for key, field in fields_of(section).items():
        for kind in kinds_of(field.annotation):
            if is_section(kind):
                yield from _sections((*path, key), kind)
            for inside in filter(is_section, _inside(kind, "0") if get_origin(kind) is tuple else ()):
                yield from _sections((*path, key, "N"), inside)


#: every section with its path; N represents a list position
SECTIONS = tuple(_sections((), TrainConfig))


@cache
def sections_with() -> Mapping[str, Mapping[tuple[Path, str | None], None]]:
    """Return {key: {(path, tag): None}}, which lists the sections that contain each key.

    `tag` is the value of `name` that selects the section, or None if the section is not selected by name.
    """
    result: dict[str, dict[tuple[Path, str | None], None]] = {}
    for path, section in SECTIONS:
        for key in fields_of(section):
            result.setdefault(key, {})[path, tag_of(section)] = None
    return result


@cache
def synonyms() -> Mapping[str, str]:
    """Return a mapping from names in other programs to keys of the schema."""
    return {word: key for _, section in SECTIONS for key, field in fields_of(section).items() for word in notes_of(field).also}


def default_at(path: Path, value: Any) -> Any:
    """Return the schema's default at `path`, or None without a default.

    `value` is the whole configuration, in which the key `name` may select a section.
    """
    for section in sections_at(path[:-1], value):
        field = section.model_fields.get(path[-1])
        default = PydanticUndefined if field is None else field.get_default(call_default_factory=True)
        if default is not PydanticUndefined:
            return default.model_dump(mode="json") if isinstance(default, Section) else default
    return None


def suggestion(key: str, path: Path, legal: Sequence[str], present: Iterable[str]) -> tuple[str, Path]:
    """Return advice about the unknown `key` of the section at `path`, and the path of the key that was probably intended.

    The advice starts with "; ", or is "" without a suggestion. The returned path is relative to the section, or () if no single key was intended.
    """
    general = tuple("N" if step.isdecimal() else step for step in path)
    own = sections_with().get(key, {})
    inside = [name for name in present if ((*general, name), None) in own]
    steps = steps_of(key)
    if inside:
        return f"; it belongs under {inside[0]}: indent it further", (inside[0], key)
    if "." in key and all(step in sections_with() for step in steps):
        return f"; write maps inside each other: {'{'.join(f'{step}: ' for step in steps[:-1])}{{{steps[-1]}: ...{'}' * (len(steps) - 1)}", ()
    if key == "extends":
        return "; it belongs at the top of the file", ()
    if own:
        variants = [tag for place, tag in own if place == general and tag]
        if variants:
            return f"; only {_listed(variants, 'and')} {'have' if len(variants) > 1 else 'has'} it", ()
        return f"; it belongs {_under(key, general)}", ()
    close = close_key(key, [name for name in legal if name not in present], legal)
    if close:
        return f'; did you mean "{close}"?', (close,)
    elsewhere = close_key(key, list(sections_with()))
    if elsewhere:
        return f'; did you mean "{elsewhere}" {_under(elsewhere)}?', ()
    if path[:1] == ("metrics",) and re.fullmatch(IMPORT_PATH, key):
        return f'; write own: {{builder: "{key}", arguments: {{...}}}}', ()
    owners: dict[Path, str] = {
        ("model",): "; arguments of a builder belong under model.arguments",
        ("data",): "; arguments of a reader belong beside `reader`",
    }
    return owners.get(path, ""), ()


def close_key(key: str, *groups: Sequence[str]) -> str:
    """Return the closest match of a key in the first group with a match, or "".  Synonyms count as matches."""
    word = key.lower().replace("-", "_").replace(" ", "_")
    for names in groups:
        known = {name: name for name in names} | {other: name for other, name in synonyms().items() if name in names and other not in names}
        close = difflib.get_close_matches(word, known, n=1, cutoff=0.71)
        if close:
            return known[close[0]]
    return ""


def _under(key: str, near: Path = ()) -> str:
    """Describe the sections that contain a key; only those inside `near`, if there are any."""
    sections = [section for section, _ in sections_with()[key]]
    inside = [section for section in sections if near and section[: len(near)] == near]
    once = list(dict.fromkeys(map(dotted, inside or sections)))
    if "" in once:
        return "at the top of the file"
    return f"under {_listed(once, 'or')}" if len(once) <= 4 else f"under {_listed(once[:3], 'or')}, for example"


def _listed(words: Sequence[str], last: str) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def setting_meant(word: str) -> str:
    """Return `; did you mean --set optimizer.lr=0.1?` for a word such as `optimizer.lr=0.1` or Hydra's `+optimizer.lr=0.1`, else ""."""
    name, sign, value = word.lstrip("+").partition("=")
    if not sign:
        return ""
    place = place_meant(name, False)
    return f"; did you mean --set {place}={value}?" if place else ""


def place_meant(name: str, exactly: bool) -> str:
    """Return `name` if it is a path such as `optimizer.lr`, else the path of the matching key, or "" without a match.

    With `exactly`, only an equal key or synonym matches.
    """
    section, point, _ = name.partition(".")
    is_path = section in fields_of(TrainConfig) and (bool(point) or not exactly)
    return name if is_path else place_of(name, exactly)


def place_of(word: str, exactly: bool) -> str:
    """Return the path of the key that matches `word`, or "" without a match.

    With `exactly`, only an equal key or synonym matches; otherwise the closest key does. If the key has several paths, return the path nearest to
    the top of the file.
    """
    plain = word.replace("-", "_")
    known = [name for name, places in sections_with().items() if any("N" not in place for place, _ in places)]
    key = (plain if plain in known else synonyms().get(plain, "")) if exactly else close_key(word, known)
    paths = [(*place, key) for place, _ in sections_with().get(key, ()) if "N" not in place]
    order = ("training", "optimizer", "data", "strategy", "checkpoint")
    return dotted(min(paths, key=lambda path: (len(path), *(path[0] != first for first in order)), default=()))
