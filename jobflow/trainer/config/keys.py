"""Which keys there are, and where: for suggestions, and for values that nobody wrote."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from jobflow.trainer.config.schema import Notes, Section, TrainConfig
from jobflow.trainer.config.tree import Node, below, split, steps_of

Model = type[BaseModel]


def fields_of(model: Model) -> dict[str, FieldInfo]:
    """The keys of a section."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def notes_of(field: FieldInfo) -> Notes:
    """What the schema notes of a key."""
    return next((note for note in field.metadata if isinstance(note, Notes)), Notes((), ""))


def kinds_of(annotation: Any) -> list[Any]:
    """The kinds of value that an annotation allows: the members of a union."""
    if get_origin(annotation) is Annotated:
        return kinds_of(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [kind for part in get_args(annotation) for kind in kinds_of(part)]
    return [annotation]


def _inside(kind: Any, step: str) -> list[Any]:
    """The kinds of value that may stand under a key, or at a position, of a kind of value."""
    if is_section(kind):
        return [inside for name, field in fields_of(kind).items() if name == step for inside in kinds_of(field.annotation)]
    if get_origin(kind) in (list, tuple, dict):
        return [inside for part in get_args(kind)[-1 if get_origin(kind) is dict else 0 :] for inside in kinds_of(part)]
    # a dataclass, or a dict with known keys, among the arguments of a function
    return kinds_of(get_type_hints(kind, include_extras=True)[step]) if step in getattr(kind, "__annotations__", {}) else []


def is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def tag_of(section: Model) -> str | None:
    """What `name:` chooses this section; None if it is not chosen by name."""
    field = section.model_fields.get("name")
    return str(get_args(field.annotation)[0]) if field is not None and get_origin(field.annotation) is Literal else None


def kinds_at(path: str, tree: Node | None, root: Any = TrainConfig) -> list[Any]:
    """The kinds of value that may stand under a path: of several sections, the one that `name:` chooses in the tree, if it does."""
    found = [root]
    for step in steps_of(path):
        tree = tree and tree.child(step)
        found = [inside for kind in found for inside in _inside(kind, step)]
        name = tree and tree.children.get("name")
        found = [kind for kind in found if name and is_section(kind) and tag_of(kind) == name.value] or found
    return found


def sections_at(path: str, tree: Node | None, root: Any = TrainConfig) -> list[Model]:
    """The sections among those."""
    return list(filter(is_section, kinds_at(path, tree, root)))


def _sections(path: str, section: Model) -> Iterator[tuple[str, Model]]:
    yield path, section
    for key, field in fields_of(section).items():
        for kind in kinds_of(field.annotation):
            if is_section(kind):
                yield from _sections(below(path, key), kind)
            for inside in filter(is_section, _inside(kind, "0") if get_origin(kind) is tuple else ()):
                yield from _sections(below(path, key, "N"), inside)


#: every section with its path; N stands for a position
SECTIONS = tuple(_sections("", TrainConfig))


@cache
def homes() -> Mapping[str, tuple[tuple[str, str | None], ...]]:
    """key -> (path of a section that has it, the section's name if it is chosen by one)."""
    found: dict[str, dict[tuple[str, str | None], None]] = {}
    for path, section in SECTIONS:
        for key in fields_of(section):
            found.setdefault(key, {})[path, tag_of(section)] = None
    return {key: tuple(places) for key, places in found.items()}


@cache
def synonyms() -> Mapping[str, str]:
    """What other programs call a key -> the key."""
    fields = [(key, field) for _, section in SECTIONS for key, field in fields_of(section).items()]
    return {word: key for key, field in fields for word in notes_of(field).also}


def default_at(path: str, tree: Node) -> Any:
    """What the schema gives a key that nobody wrote; None if it gives nothing."""
    above, key = split(path)
    for section in sections_at(above, tree):
        field = section.model_fields.get(key)
        default = PydanticUndefined if field is None else field.get_default(call_default_factory=True)
        if default is not PydanticUndefined:
            return default.model_dump(mode="json") if isinstance(default, Section) else default
    return None


def suggestion(key: str, path: str, legal: Sequence[str], taken: Mapping[str, object]) -> tuple[str, str]:
    """What to say about a key that a section has not (begins with "; "), and the key that was probably meant (may be empty)."""
    general = ".".join("N" if step.isdecimal() else step for step in steps_of(path))
    inside = [name for name in taken if (below(general, name), None) in homes()[key]] if key in homes() else []
    if inside:
        return f"; it belongs under {inside[0]}: indent it further", f"{inside[0]}.{key}"
    if "." in key and all(step in homes() for step in steps_of(key)):
        *outer, last = steps_of(key)
        return f"; write maps inside each other: {'{'.join(f'{step}: ' for step in outer)}{{{last}: ...{'}' * len(outer)}", ""
    if key == "extends":
        return "; it belongs at the top of the file", ""
    if key in homes():
        variants = [tag for place, tag in homes()[key] if place == general and tag]
        if variants:
            return f"; only {_listed(variants, 'and')} {'have' if len(variants) > 1 else 'has'} it", ""
        return f"; it belongs {_under(key)}", ""
    meant = close_key(key, [name for name in legal if name not in taken], legal)
    if meant:
        return f'; did you mean "{meant}"?', meant
    elsewhere = close_key(key, list(homes()))
    if elsewhere:
        return f'; did you mean "{elsewhere}" {_under(elsewhere)}?', ""
    owners = {"model": "; what a builder takes belongs under model.arguments", "data": "; what a reader takes stands beside `reader`"}
    return owners.get(path, ""), ""


def close_key(key: str, *groups: Sequence[str]) -> str:
    """The key that comes closest to a wrong one, in the first group that has one; synonyms count.  Empty if none is close."""
    word = key.lower().replace("-", "_").replace(" ", "_")
    for names in groups:
        known = {name: name for name in names} | {other: name for other, name in synonyms().items() if name in names and other not in names}
        close = difflib.get_close_matches(word, known, n=1, cutoff=0.7)
        if close:
            return known[close[0]]
    return ""


def _under(key: str) -> str:
    once = list(dict.fromkeys(place for place, _ in homes()[key]))
    if "" in once:
        return "at the top of the file"
    return f"under {_listed(once, 'or')}" if len(once) <= 4 else f"under {_listed(once[:3], 'or')}, for example"


def _listed(words: Sequence[str], last: str) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def place_of(word: str, exactly: bool) -> str:
    """The path of the key that a word is, or comes closest to: of several that which is nearest to the top; "" if none is close."""
    plain = word.replace("-", "_")
    known = [name for name, places in homes().items() if any("layers" not in steps_of(place) for place, _ in places)]
    key = (plain if plain in known else synonyms().get(plain, "")) if exactly else close_key(word, known)
    found = [below(place, key) for place, _ in homes().get(key, ()) if "layers" not in steps_of(place)]
    order = ("training", "optimizer", "data", "strategy", "checkpoint")
    return min(found, key=lambda path: (path.count("."), *(path.partition(".")[0] != first for first in order)), default="")
