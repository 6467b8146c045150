"""The keys of the schema, described: as JSON Schema for editors, and as tables in Markdown for docs/configuration.md.

JSON Schema is for single files, which may extend others: so no key is required, any value may be a reference, and null, which takes away
what another file says, may stand anywhere.  That all of it together is complete and fits, only `load` can tell.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any

from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import ModelField, TaggedUnionSchema

from jobflow.data.readers import READERS
from jobflow.trainer.config.functions import arguments_model
from jobflow.trainer.config.keys import SECTIONS, Model, fields_of, is_section, kinds_of, notes_of, tag_of
from jobflow.trainer.config.schema import Section, TrainConfig
from jobflow.trainer.config.showing import word

_REFERENCE = {"type": "string", "pattern": r"\$\{", "description": "a reference: ${a.key} or ${env:NAME}"}
_EXTENDS = {
    "description": "files that this one is written over, relative to it",
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
}


class _ForOneFile(GenerateJsonSchema):
    """Nothing is required, references and null are allowed for all values, and of sections that are chosen by name any may fit."""

    def field_is_required(self, field: Any, total: bool) -> bool:
        return False

    def model_field_schema(self, schema: ModelField) -> JsonSchemaValue:
        return {"anyOf": [super().model_field_schema(schema), _REFERENCE, {"type": "null"}]}

    def tagged_union_schema(self, schema: TaggedUnionSchema) -> JsonSchemaValue:
        return {"anyOf": super().tagged_union_schema(schema)["oneOf"]}


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a configuration file."""
    made = TrainConfig.model_json_schema(schema_generator=_ForOneFile)
    definitions: dict[str, Any] = made["$defs"]
    for name, reader in READERS.items():
        own = arguments_model(reader).model_json_schema(schema_generator=_ForOneFile)
        definitions |= own.pop("$defs", {})
        chosen = {"reader": {"const": name, "description": "the kind of samples"}, **own.get("properties", {})}
        meaning = (inspect.getdoc(reader) or "").partition("\n\n")[0]
        definitions[f"reader_{name}"] = {**own, "title": name, "description": meaning, "properties": chosen}
    definitions["Reader"] = {"anyOf": [{"$ref": f"#/$defs/reader_{name}"} for name in READERS]}
    definitions["Layer"] = {"anyOf": [{"enum": list(definitions["Layer"]["properties"])}, {**definitions["Layer"], "maxProperties": 1}]}
    return {"$schema": GenerateJsonSchema.schema_dialect, **made, "properties": {"extends": _EXTENDS, **made["properties"]}}


# -------------------------------------------------------------------- tables

#: what is behind it is written by `refreshed`
MARK = "<!-- keys: from here on scripts/refresh_configuration writes -->\n"


def refreshed(page: str) -> str:
    """The page with the tables that are right today."""
    return page.partition(MARK)[0] + MARK + "\n" + tables() + "\n"


def tables() -> str:
    """A table per section: key, what may stand there, default, meaning; and the arguments of the readers."""
    found: dict[str, dict[tuple[str, Model], None]] = {}
    for path, section in SECTIONS:
        head, _, inside = path.partition(".N")
        if not path.startswith(("data.validation", "data.test")):
            found.setdefault(head, {})[inside, section] = None
    return "\n\n".join([*(_table(path, list(each)) for path, each in found.items()), _readers()])


def _table(path: str, each: list[tuple[str, Model]]) -> str:
    """The keys of a section and of those inside its entries, or of all sections that a name chooses from: behind a key are the names that have it."""
    tags = [tag for _, section in each if (tag := tag_of(section))]
    rows: dict[tuple[str, ...], list[str]] = {}
    for inside, section in each:
        made = section.model_json_schema()
        for key, field in fields_of(section).items():
            kind, meaning = _kind(made["properties"][key], made.get("$defs", {})), str(field.description)
            if key == "name" and tags:
                kind, meaning = ", ".join(f"`{tag}`" for tag in tags), "which of them"
            rows.setdefault((f"{inside}.{key}".strip("."), kind, _default(field), meaning), []).append(tag_of(section) or "")
    lines = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for (key, *rest), names in rows.items():
        behind = f" ({', '.join(names)})" if len(names) < len(tags) else ""
        lines.append(f"| `{key}`{behind} | " + " | ".join(cell.replace("|", "\\|") for cell in rest) + " |")
    heading = f"### `{path}`" if path else "### The top"
    return "\n".join((f"{heading}\n\n{'Chosen by `name`.' if tags else each[0][1].__doc__}\n", *lines))


def _readers() -> str:
    """The arguments of every reader, from its signature."""
    lines = ["### Readers\n\n| reader | argument | value | default |", "|---|---|---|---|"]
    for name, made in READERS.items():
        kinds = arguments_model(made).model_json_schema()
        for key, parameter in inspect.signature(made).parameters.items():
            default = "needed" if parameter.default is parameter.empty else f"`{word(parameter.default)}`"
            lines.append(f"| `{name}` | `{key}` | {_kind(kinds['properties'][key], kinds.get('$defs', {}))} | {default} |")
    return "\n".join(lines)


def _default(field: FieldInfo) -> str:
    derived = notes_of(field).derived
    if derived:
        return f"`{derived}`" if "${" in derived else derived
    if field.is_required():
        # nobody need write a section whose needed keys all follow from others
        inside = [one for section in filter(is_section, kinds_of(field.annotation)) for one in fields_of(section).values() if one.is_required()]
        return "" if inside and all(notes_of(one).derived for one in inside) else "needed"
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
