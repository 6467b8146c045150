"""Configurations as text: YAML with the origin of every value in a comment, JSON, and a JSON Schema of all keys for editors."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import ModelField, TaggedUnionSchema

from jobflow.core.imports import IMPORT_PATH
from jobflow.data.readers import READERS
from jobflow.trainer.config.functions import arguments_model, makes_module
from jobflow.trainer.config.loading import Loaded
from jobflow.trainer.config.reading import value_of
from jobflow.trainer.config.schema import TrainConfig
from jobflow.trainer.config.tree import Path, dotted

#: rightmost column at which comments begin
WIDEST = 56
#: words that every YAML parser reads as strings
_PLAIN = re.compile(r"[A-Za-z_./][\w./+-]*(:[\w./+-]+)*")
_OLD_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


def show(loaded: Loaded) -> str:
    """Return all values as a YAML file that loads to the same configuration, with the origin of each value in a comment.

    Defaults of the builder's parameters appear as comments.
    """
    lines = list(_map(loaded.plain, "", (), loaded))
    width = min(WIDEST, max(len(text) for text, origin in lines if origin))
    return "\n".join(f"{text:<{width}}  # {origin}" if origin else text for text, origin in lines) + "\n"


def builder_defaults(loaded: Loaded) -> dict[str, Any]:
    """Return the defaults of the builder's parameters that the configuration omits, except defaults that JSON cannot represent."""
    try:
        parameters = {} if loaded.builder is None else inspect.signature(loaded.builder).parameters
    except (TypeError, ValueError):
        return {}
    module = loaded.builder is not None and makes_module(loaded.builder)
    arguments, defaults = loaded.plain["model"]["arguments"], {}
    kinds = (inspect.Parameter.KEYWORD_ONLY, *([inspect.Parameter.POSITIONAL_OR_KEYWORD] if module else []))
    for name, one in parameters.items():
        if one.kind in kinds and one.default is not one.empty and name not in arguments and name != "recompute":
            with suppress(TypeError, ValueError):
                defaults[name] = json.loads(json.dumps(one.default))
    return defaults


def show_json(loaded: Loaded) -> str:
    """Return {"config": all values, "origins": {key: {"file", "line", "column"}}} as JSON; keys with defaults have no origin."""
    return json.dumps({"config": loaded.plain, "origins": {key: vars(origin) for key, origin in loaded.origins.items()}}, indent=2) + "\n"


def _map(values: dict[str, Any], indent: str, path: Path, loaded: Loaded) -> Iterator[tuple[str, str]]:
    """Yield the lines of a map with the origins of their values; headings have no origin."""
    for name, value in values.items():
        begin, inside = f"{indent}{word(name)}:", (*path, name)
        entries = value if isinstance(value, list) and any(isinstance(entry, dict) for entry in value) else []
        if entries or (isinstance(value, dict) and value):
            yield begin, ""
            yield from () if entries else _map(value, f"{indent}  ", inside, loaded)
        else:
            yield f"{begin} {word(value)}", str(loaded.origin(dotted(inside)))
        for i, entry in enumerate(entries):
            for j, (text, origin) in enumerate(_entry(entry, (*inside, str(i)), loaded)):
                yield f"{indent}  {'  ' if j else '- '}{text}", origin
        if inside == ("model", "arguments"):
            owner = f"default of {loaded.config.model.builder}"
            yield from ((f"{indent}  # {key}: {word(default)}", owner) for key, default in builder_defaults(loaded).items())


def _entry(entry: Any, path: Path, loaded: Loaded) -> Iterator[tuple[str, str]]:
    """Return the lines of a list entry with the origins of their values."""
    return _map(entry, "", path, loaded) if isinstance(entry, dict) and entry else iter([(word(entry), str(loaded.origin(dotted(path))))])


def word(value: Any) -> str:
    """Format a value on one line of YAML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{word(name)}: {word(entry)}" for name, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(word, value)) + "]"
    if isinstance(value, float):
        text = repr(value)
        return re.sub(r"^(-?\d+)e", r"\1.0e", text) if "e" in text else {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(text, text)
    if not isinstance(value, str):
        return json.dumps(value)
    text = value.replace("${", "$${")
    is_plain = _PLAIN.fullmatch(text) and value_of(text) == text and text.lower() not in _OLD_WORDS
    return text if is_plain else json.dumps(text, ensure_ascii=False)


# -------------------------------------------------------------------- JSON Schema

# The schema describes single files, which may extend others.  So no key is required, and every value may be a reference, or null, which removes
# the value of another file.  Only `load` checks the complete configuration.
_REFERENCE = {"type": "string", "pattern": r"\$\{", "description": "a reference: ${a.key} or ${env:NAME}"}
_EXTENDS = {
    "description": "base files that this file overrides, relative to it",
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
}


class _ForOneFile(GenerateJsonSchema):
    """A generator of a schema for single files: no key is required, and references and null are allowed everywhere.

    A section that is selected by name may match any of its variants.
    """

    def field_is_required(self, field: Any, total: bool) -> bool:
        return False

    def model_field_schema(self, schema: ModelField) -> JsonSchemaValue:
        return {"anyOf": [super().model_field_schema(schema), _REFERENCE, {"type": "null"}]}

    def tagged_union_schema(self, schema: TaggedUnionSchema) -> JsonSchemaValue:
        return {"anyOf": super().tagged_union_schema(schema)["oneOf"]}


def schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a configuration file."""
    result = TrainConfig.model_json_schema(schema_generator=_ForOneFile)
    definitions: dict[str, Any] = result["$defs"]
    for name, reader in READERS.items():
        own = arguments_model(reader).model_json_schema(schema_generator=_ForOneFile)
        definitions |= own.pop("$defs", {})
        chosen = {"reader": {"const": name, "description": "the kind of samples"}, **own.get("properties", {})}
        meaning = (inspect.getdoc(reader) or "").partition("\n\n")[0]
        definitions[f"reader_{name}"] = {**own, "title": name, "description": meaning, "properties": chosen}
    definitions["Reader"] = {"anyOf": [{"$ref": f"#/$defs/reader_{name}"} for name in READERS]}
    for name, other in {"Layer": {}, "Metric": {"type": "string", "pattern": IMPORT_PATH}}.items():
        kinds = [{"enum": list(definitions[name]["properties"])}, {**definitions[name], "maxProperties": 1}]
        definitions[name] = {"anyOf": [*kinds, *([other] if other else [])]}
    definitions["StartFrom"] = {"anyOf": [{"type": "string", "description": "the path alone"}, definitions["StartFrom"]]}
    return {"$schema": GenerateJsonSchema.schema_dialect, **result, "properties": {"extends": _EXTENDS, **result["properties"]}}
