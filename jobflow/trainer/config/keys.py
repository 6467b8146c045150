"""Which keys there are, and where: for suggestions, and for values that nobody wrote."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from jobflow.trainer.config.schema import Notes, Section, TrainConfig
from jobflow.trainer.config.tree import Path, child, dotted, steps_of

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


def kinds_at(path: Path, value: Any, root: Any = TrainConfig) -> list[Any]:
    """The kinds of value that may stand under a path in a value: of several sections, the one that `name:` chooses there, if it does."""
    found = [root]
    for step in path:
        value = child(value, step)
        found = [inside for kind in found for inside in _inside(kind, step)]
        found = [kind for kind in found if is_section(kind) and tag_of(kind) == child(value, "name")] or found
    return found


def sections_at(path: Path, value: Any, root: Any = TrainConfig) -> list[Model]:
    """The sections among those."""
    return list(filter(is_section, kinds_at(path, value, root)))


def _sections(path: Path, section: Model) -> Iterator[tuple[Path, Model]]:
    yield path, section
    for key, field in fields_of(section).items():
        for kind in kinds_of(field.annotation):
            if is_section(kind):
                yield from _sections((*path, key), kind)
            for inside in filter(is_section, _inside(kind, "0") if get_origin(kind) is tuple else ()):
                yield from _sections((*path, key, "N"), inside)


#: every section with its path; N stands for a position
SECTIONS = tuple(_sections((), TrainConfig))


@cache
def homes() -> Mapping[str, Mapping[tuple[Path, str | None], None]]:
    """key -> (path of a section that has it, the section's name if it is chosen by one)."""
    found: dict[str, dict[tuple[Path, str | None], None]] = {}
    for path, section in SECTIONS:
        for key in fields_of(section):
            found.setdefault(key, {})[path, tag_of(section)] = None
    return found


@cache
def synonyms() -> Mapping[str, str]:
    """What other programs call a key -> the key."""
    return {word: key for _, section in SECTIONS for key, field in fields_of(section).items() for word in notes_of(field).also}


def default_at(path: Path, value: Any) -> Any:
    """What the schema gives a key that nobody wrote; None if it gives nothing."""
    for section in sections_at(path[:-1], value):
        field = section.model_fields.get(path[-1])
        default = PydanticUndefined if field is None else field.get_default(call_default_factory=True)
        if default is not PydanticUndefined:
            return default.model_dump(mode="json") if isinstance(default, Section) else default
    return None


def suggestion(key: str, path: Path, legal: Sequence[str], taken: Iterable[str]) -> tuple[str, Path]:
    """What to say about a key that a section has not (begins with "; "), and the path from there of the key that was probably meant."""
    general = tuple("N" if step.isdecimal() else step for step in path)
    own = homes().get(key, {})
    inside = [name for name in taken if ((*general, name), None) in own]
    steps = steps_of(key)
    if inside:
        return f"; it belongs under {inside[0]}: indent it further", (inside[0], key)
    if "." in key and all(step in homes() for step in steps):
        return f"; write maps inside each other: {'{'.join(f'{step}: ' for step in steps[:-1])}{{{steps[-1]}: ...{'}' * (len(steps) - 1)}", ()
    if key == "extends":
        return "; it belongs at the top of the file", ()
    if own:
        variants = [tag for place, tag in own if place == general and tag]
        if variants:
            return f"; only {_listed(variants, 'and')} {'have' if len(variants) > 1 else 'has'} it", ()
        return f"; it belongs {_under(key)}", ()
    meant = close_key(key, [name for name in legal if name not in taken], legal)
    if meant:
        return f'; did you mean "{meant}"?', (meant,)
    elsewhere = close_key(key, list(homes()))
    if elsewhere:
        return f'; did you mean "{elsewhere}" {_under(elsewhere)}?', ()
    owners: dict[Path, str] = {
        ("model",): "; what a builder takes belongs under model.arguments",
        ("data",): "; what a reader takes stands beside `reader`",
    }
    return owners.get(path, ""), ()


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
    once = list(dict.fromkeys(dotted(place) for place, _ in homes()[key]))
    if "" in once:
        return "at the top of the file"
    return f"under {_listed(once, 'or')}" if len(once) <= 4 else f"under {_listed(once[:3], 'or')}, for example"


def _listed(words: Sequence[str], last: str) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def setting_meant(word: str) -> str:
    """Return `; did you mean --set optimizer.lr=0.1?` for a word such as `optimizer.lr=0.1` or Hydra's `+optimizer.lr=0.1`; "" for others."""
    name, sign, value = word.lstrip("+").partition("=")
    if not sign:
        return ""
    place = name if name.partition(".")[0] in fields_of(TrainConfig) else place_of(name, False)
    return f"; did you mean --set {place}={value}?" if place else ""


def place_of(word: str, exactly: bool) -> str:
    """The path of the key that a word is, or comes closest to: of several that which is nearest to the top; "" if none is close."""
    plain = word.replace("-", "_")
    known = [name for name, places in homes().items() if any("layers" not in place for place, _ in places)]
    key = (plain if plain in known else synonyms().get(plain, "")) if exactly else close_key(word, known)
    found = [(*place, key) for place, _ in homes().get(key, ()) if "layers" not in place]
    order = ("training", "optimizer", "data", "strategy", "checkpoint")
    return dotted(min(found, key=lambda path: (len(path), *(path[0] != first for first in order)), default=()))
