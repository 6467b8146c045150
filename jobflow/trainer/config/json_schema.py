"""The schema as JSON Schema, so that editors complete keys, show what they mean, and mark what is wrong.

It is for single files, which may extend others: so no key is required, any value may be a reference, and null, which takes away what
another file says, may stand anywhere.  That all of it together is complete and fits, only `load` can tell.
"""

from __future__ import annotations

import inspect
from typing import Any

from jobflow.data.readers import READERS
from jobflow.trainer.config.outside import arguments_model
from jobflow.trainer.config.schema import TrainConfig

_REFERENCE = {"type": "string", "pattern": r"\$\{", "description": "a reference: ${a.key} or ${env:NAME}"}
_EXTENDS = {
    "description": "files that this one is written over, relative to it",
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
}


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a configuration file."""
    made = TrainConfig.model_json_schema(ref_template="#/$defs/{model}")
    definitions: dict[str, Any] = made.pop("$defs")
    definitions["Reader"] = {"anyOf": [{"$ref": f"#/$defs/reader_{name}"} for name in READERS]}
    definitions |= {f"reader_{name}": _reader(name, definitions) for name in READERS}
    definitions["Layer"]["maxProperties"] = 1
    definitions["Layer"] = {"anyOf": [{"enum": list(definitions["Layer"]["properties"])}, definitions["Layer"]]}
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "$defs": definitions}
    relaxed: dict[str, Any] = _relaxed(whole)
    return {**relaxed, "properties": {"extends": _EXTENDS, **relaxed["properties"]}}


def _reader(name: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """A reader and its arguments."""
    made = arguments_model(READERS[name], set()).model_json_schema(ref_template="#/$defs/{model}")
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
    kept = {key: _relaxed(value) for key, value in made.items() if key not in ("required", "oneOf", "discriminator", "properties", "$defs")}
    if "oneOf" in made:
        kept["anyOf"] = _relaxed(made["oneOf"])
    for maps in ("properties", "$defs"):
        if maps in made:
            kept[maps] = {name: (_open if maps == "properties" else _relaxed)(value) for name, value in made[maps].items()}
    return kept


def _open(value: dict[str, Any]) -> dict[str, Any]:
    """A value, a reference, or null."""
    own = _relaxed(value)
    told = {key: own.pop(key) for key in ("description", "default", "title") if key in own}
    choices = own.pop("anyOf") if set(own) == {"anyOf"} else [own]
    return {**told, "anyOf": [*(choice for choice in choices if choice != {"type": "null"}), _REFERENCE, {"type": "null"}]}
