"""The JSON Schema of a configuration file, from the model, for editors that complete and check TOML.

Strategy: the draft is 7, which TOML language servers support. Secrets are `writeOnly`, as pydantic marks them.
The schema knows types, ranges and names; rules about several keys are left to `consumerd check`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, create_model
from pydantic.json_schema import GenerateJsonSchema

from consumerd.service.config.model import Config
from consumerd.service.config.validation import Table, model_of

DIALECT = "http://json-schema.org/draft-07/schema#"


def config_schema(tables: Mapping[str, type[BaseModel]]) -> dict[str, Any]:
    """The schema of a whole file; `tables` are those of other rooms, which the daemon's model does not type."""
    types: dict[str, Any] = {name: field.annotation for name, field in model_of(Config).model_fields.items()}
    # All optional: a file may hold the pipelines alone, or leave a table to the environment.
    optional: dict[str, Any] = {name: (table | None, None) for name, table in (types | dict(tables)).items()}
    whole = create_model("Configuration", __base__=Table, **optional)
    schema = whole.model_json_schema(ref_template="#/definitions/{model}", schema_generator=_WithoutNull)
    definitions = schema.pop("$defs")
    for name, table in schema["properties"].items():
        kept = ("$ref",) if "$ref" in table else ("type", "items")  # of an array of tables
        schema["properties"][name] = {key: table[key] for key in kept}
    return {
        "$schema": DIALECT,
        **schema,
        "title": "consumerd",
        "description": "Configuration of consumerd.",
        "definitions": definitions,
    }


class _WithoutNull(GenerateJsonSchema):
    """TOML has no null: a key that may be None is one that may be left out."""

    def nullable_schema(self, schema: Any) -> dict[str, Any]:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: Any) -> dict[str, Any]:
        made = super().default_schema(schema)
        if made.get("default", "") is None:
            del made["default"]
        return made
