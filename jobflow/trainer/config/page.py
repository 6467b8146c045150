"""The keys of the schema as tables in Markdown, for docs/configuration.md."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic.fields import FieldInfo

from jobflow.data.readers import READERS
from jobflow.trainer.config.keys import sections_in, tag_of
from jobflow.trainer.config.outside import arguments_model
from jobflow.trainer.config.schema import TrainConfig
from jobflow.trainer.config.section import Derived, Section
from jobflow.trainer.config.showing import word

#: what is behind it is written by `refreshed`
MARK = "<!-- keys: from here on scripts/refresh_configuration writes -->\n"


def refreshed(page: str) -> str:
    """The page with the tables that are right today."""
    return page.partition(MARK)[0] + MARK + "\n" + tables() + "\n"


def tables() -> str:
    """A table per section: key, what may stand there, default, meaning; and the arguments of the readers."""
    return "\n\n".join((*_sections(TrainConfig, ""), _readers()))


def _readers() -> str:
    """The arguments of every reader, from its signature."""
    lines = ["### Readers\n\n| reader | argument | value | default |", "|---|---|---|---|"]
    for name, made in READERS.items():
        parameters = inspect.signature(made).parameters
        kinds = arguments_model(made, set()).model_json_schema(by_alias=True)
        for key, parameter in parameters.items():
            kind = _kind(kinds["properties"][key], kinds.get("$defs", {}))
            default = "needed" if parameter.default is parameter.empty else f"`{word(parameter.default)}`"
            lines.append(f"| `{name}` | `{key}` | {kind} | {default} |")
    return "\n".join(lines)


def _sections(section: type[Section], path: str) -> Iterator[str]:
    yield _table(section, path)
    for name, field in section.model_fields.items():
        below = f"{path}.{name}" if path else name
        inside = sections_in(field.annotation)
        if len(inside) > 1:
            yield from _variants(inside, below, field)
        for one in inside if len(inside) == 1 else ():
            is_layer = name == "layers"
            yield from _layers(one, below) if is_layer else () if one.__name__ == "Reader" and name != "train" else _sections(one, below)


def _variants(sections: list[type[Section]], path: str, field: FieldInfo) -> Iterator[str]:
    """Sections that are chosen by `name`: what all have, then what each has besides."""
    shared = [key for key in sections[0].model_fields if key != "name" and all(key in one.model_fields for one in sections)]
    rows = [_row("name", None, ", ".join(str(tag_of(one)) for one in sections), _default(field), str(field.description))]
    rows += [_row(key, sections[0].model_fields[key], _kinds(sections[0], key)) for key in shared]
    yield _heading(path, "Chosen by `name`.") + _rows(rows)
    own: dict[tuple[str, str, str, str], list[str]] = {}
    for one in sections:
        for key, inner in one.model_fields.items():
            if key != "name" and key not in shared:
                own.setdefault((key, _kinds(one, key), _default(inner), str(inner.description)), []).append(str(tag_of(one)))
    besides = [_row(key, None, kinds, default, meaning, f" ({', '.join(names)})") for (key, kinds, default, meaning), names in own.items()]
    yield f"Besides, by `{path}.name`:\n\n" + _rows(besides)
    for key in shared:
        for inside in [sections_in(sections[0].model_fields[key].annotation)]:
            if inside:
                yield from _variants(inside, f"{path}.{key}", sections[0].model_fields[key])


def _layers(layer: type[Section], path: str) -> Iterator[str]:
    """Layers by kind."""
    rows = []
    for kind, field in layer.model_fields.items():
        (one,) = sections_in(field.annotation)
        rows.append(_row(kind, None, "", "", str(field.description)))
        rows += [_row(f"{kind}.{key}", inner, _kinds(one, key)) for key, inner in one.model_fields.items()]
    yield _heading(path, layer.__doc__ or "") + _rows(rows)


def _table(section: type[Section], path: str) -> str:
    return _heading(path, section.__doc__ or "") + _rows([_row(key, field, _kinds(section, key)) for key, field in section.model_fields.items()])


def _heading(path: str, meaning: str) -> str:
    return f"### {f'`{path}`' if path else 'The top'}\n\n{meaning}\n\n"


def _rows(rows: list[str]) -> str:
    return "\n".join(("| key | value | default | meaning |", "|---|---|---|---|", *rows))


def _row(key: str, field: FieldInfo | None, kinds: str, default: str | None = None, meaning: str | None = None, behind: str = "") -> str:
    told = str(field.description or "") if meaning is None and field is not None else meaning or ""
    given = _default(field) if default is None and field is not None else default or ""
    return f"| `{key}`{behind} | " + " | ".join(cell.replace("|", "\\|") for cell in (kinds, given, told)) + " |"


def _default(field: FieldInfo) -> str:
    for mark in field.metadata:
        if isinstance(mark, Derived):
            return f"`{mark.text}`" if "${" in mark.text else mark.text
    if field.is_required():
        return "" if _follows(field) else "needed"
    default = field.get_default(call_default_factory=True)
    if isinstance(default, Section):
        name = tag_of(type(default))
        return f"`{{name: {name}}}`" if name else ""
    return f"`{word(default)}`"


def _follows(field: FieldInfo) -> bool:
    """Whether all keys that a section needs follow from others, so that nobody need write it."""
    needed = [one for each in sections_in(field.annotation) for one in each.model_fields.values() if one.is_required()]
    return bool(needed) and all(any(isinstance(mark, Derived) for mark in one.metadata) for one in needed)


def _kinds(section: type[Section], key: str) -> str:
    """What may stand under a key, in words, from its JSON Schema."""
    made = section.model_json_schema()
    return _kind(made["properties"][key], made.get("$defs", {}))


def _kind(made: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    if "$ref" in made or "oneOf" in made or "allOf" in made:
        return "a section"
    if "anyOf" in made:
        return " or ".join(_kind(choice, definitions) for choice in made["anyOf"])
    if "const" in made or "enum" in made:
        return ", ".join(f"`{choice}`" for choice in made.get("enum", [made.get("const")]))
    kind = made.get("type")
    if kind == "array":
        inside: Mapping[str, Any] = made.get("items") or next(iter(made.get("prefixItems", [])), {})
        pair = " of 2" if made.get("maxItems") == 2 else ""
        return "a list of sections" if "$ref" in inside else f"a list{pair}: {_kind(inside, definitions)}"
    words = {"integer": "whole number", "number": "number", "boolean": "`true`, `false`", "string": "text", "object": "map", "null": "`null`"}
    return words.get(str(kind), json.dumps(made)) + _range(made)


def _range(made: Mapping[str, Any]) -> str:
    limits = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    found = [f"{sign} {made[name]:g}" for name, sign in limits.items() if name in made and abs(made[name]) < 2**53]
    return " " + ", ".join(found) if found else ""
