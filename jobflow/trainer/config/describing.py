"""The keys of the schema, described: as JSON Schema for editors, and as tables in Markdown for docs/configuration.md.

JSON Schema is for single files, which may extend others: so no key is required, any value may be a reference, and null, which takes away
what another file says, may stand anywhere.  That all of it together is complete and fits, only `load` can tell.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from jobflow.data.readers import READERS
from jobflow.trainer.config.functions import arguments_model
from jobflow.trainer.config.keys import SECTIONS, fields_of, kinds_of, notes_of, tag_of
from jobflow.trainer.config.schema import Section, TrainConfig
from jobflow.trainer.config.showing import word

_REFERENCE = {"type": "string", "pattern": r"\$\{", "description": "a reference: ${a.key} or ${env:NAME}"}
_EXTENDS = {
    "description": "files that this one is written over, relative to it",
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
}


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a configuration file."""
    made = TrainConfig.model_json_schema()
    definitions: dict[str, Any] = made.pop("$defs")
    definitions["Reader"] = {"anyOf": [{"$ref": f"#/$defs/reader_{name}"} for name in READERS]}
    definitions |= {f"reader_{name}": _reader(name, definitions) for name in READERS}
    definitions["Layer"]["maxProperties"] = 1
    definitions["Layer"] = {"anyOf": [{"enum": list(definitions["Layer"]["properties"])}, definitions["Layer"]]}
    relaxed: dict[str, Any] = _relaxed({"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "$defs": definitions})
    return {**relaxed, "properties": {"extends": _EXTENDS, **relaxed["properties"]}}


def _reader(name: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """A reader and its arguments."""
    made = arguments_model(READERS[name], set()).model_json_schema()
    definitions |= made.pop("$defs", {})
    meaning = (inspect.getdoc(READERS[name]) or "").partition("\n\n")[0]
    chosen = {"const": name, "description": "the kind of samples"}
    return {**made, "title": name, "description": meaning, "properties": {"reader": chosen, **made.get("properties", {})}}


def _relaxed(made: Any) -> Any:
    """Nothing required, references and null allowed for all values; unions by name any of which may fit."""
    if isinstance(made, list):
        return [_relaxed(entry) for entry in made]
    if not isinstance(made, dict):
        return made
    kept = {"anyOf" if key == "oneOf" else key: _relaxed(value) for key, value in made.items() if key not in ("required", "discriminator")}
    for maps, each in (("properties", _open), ("$defs", _relaxed)):
        if maps in made:
            kept[maps] = {name: each(value) for name, value in made[maps].items()}
    return kept


def _open(value: dict[str, Any]) -> dict[str, Any]:
    """A value, a reference, or null."""
    own = _relaxed(value)
    told = {key: own.pop(key) for key in ("description", "default", "title") if key in own}
    choices = own.pop("anyOf") if set(own) == {"anyOf"} else [own]
    return {**told, "anyOf": [*(choice for choice in choices if choice != {"type": "null"}), _REFERENCE, {"type": "null"}]}


# -------------------------------------------------------------------- tables

#: what is behind it is written by `refreshed`
MARK = "<!-- keys: from here on scripts/refresh_configuration writes -->\n"


def refreshed(page: str) -> str:
    """The page with the tables that are right today."""
    return page.partition(MARK)[0] + MARK + "\n" + tables() + "\n"


def tables() -> str:
    """A table per section: key, what may stand there, default, meaning; and the arguments of the readers."""
    found: dict[str, list[type[BaseModel]]] = {}
    for path, section in SECTIONS:
        if not path.startswith(("data.validation", "data.test")) and section not in found.get(path, ()):
            found.setdefault(path, []).append(section)
    return "\n\n".join([*(_table(path, each) for path, each in found.items() if fields_of(each[0])), _readers()])


def _table(path: str, each: list[type[BaseModel]]) -> str:
    """The keys of a section, or of all sections that a name chooses from: behind a key are the names that have it, unless all do."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for section in each:
        made = section.model_json_schema()
        for key, field in fields_of(section).items():
            kind = _kind(made["properties"][key], made.get("$defs", {}))
            is_name = key == "name" and tag_of(section)
            cells = (
                (key, ", ".join(f"`{tag_of(one)}`" for one in each), "needed", "which of them")
                if is_name
                else (key, kind, _default(field), str(field.description))
            )
            rows.setdefault(cells, []).append(str(tag_of(section)))
    lines = []
    for (key, *rest), names in rows.items():
        behind = f" ({', '.join(names)})" if len(names) < len(each) else ""
        lines.append(f"| `{key}`{behind} | " + " | ".join(cell.replace("|", "\\|") for cell in rest) + " |")
    meaning = "Chosen by `name`." if len(each) > 1 else str(each[0].__doc__)
    return "\n".join((f"### {f'`{path}`' if path else 'The top'}\n\n{meaning}\n", "| key | value | default | meaning |", "|---|---|---|---|", *lines))


def _readers() -> str:
    """The arguments of every reader, from its signature."""
    lines = ["### Readers\n\n| reader | argument | value | default |", "|---|---|---|---|"]
    for name, made in READERS.items():
        kinds = arguments_model(made, set()).model_json_schema()
        for key, parameter in inspect.signature(made).parameters.items():
            default = "needed" if parameter.default is parameter.empty else f"`{word(parameter.default)}`"
            lines.append(f"| `{name}` | `{key}` | {_kind(kinds['properties'][key], kinds.get('$defs', {}))} | {default} |")
    return "\n".join(lines)


def _default(field: FieldInfo) -> str:
    derived = notes_of(field).derived
    if derived or field.is_required():
        # nobody need write a section whose needed keys all follow from others
        needed = [
            one
            for kind in kinds_of(field.annotation)
            if isinstance(kind, type) and issubclass(kind, BaseModel)
            for one in fields_of(kind).values()
            if one.is_required()
        ]
        follows = bool(needed) and all(notes_of(one).derived for one in needed)
        return (f"`{derived}`" if "${" in derived else derived) or ("" if follows else "needed")
    default = field.get_default(call_default_factory=True)
    if isinstance(default, Section):
        return f"`{{name: {tag_of(type(default))}}}`" if tag_of(type(default)) else ""
    return f"`{word(default)}`"


def _kind(made: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """What may stand there, in words, from its JSON Schema."""
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
