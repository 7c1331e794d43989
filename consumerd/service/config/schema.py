"""The JSON Schema of a configuration file, from the declarations, for editors that complete and check TOML.

Strategy: the draft is 7, which TOML language servers support. Secrets are `writeOnly`.
The schema knows types, ranges and names; rules about several keys are left to `consumerd check`.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Union, get_args, get_origin

from consumerd.base.settings.kind import Ge, Gt, Le, Lt, kind_of
from consumerd.base.settings.setting import SecretStr, Section, Setting, as_json
from consumerd.service.config.model import Config

DIALECT = "http://json-schema.org/draft-07/schema#"
_NAMES: Final[Mapping[Any, str]] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_LIMITS: Final = {Gt: "exclusiveMinimum", Ge: "minimum", Lt: "exclusiveMaximum", Le: "maximum"}
_LENGTHS: Final = {"string": "Length", "array": "Items", "object": "Properties"}


def config_schema(tables: Mapping[str, type[Section]]) -> dict[str, Any]:
    """The schema of a whole file; `tables` are those of other rooms, which the daemon's model does not type."""
    definitions: dict[str, Any] = {}
    # All optional: a file may hold the pipelines alone, or leave a table to the environment.
    properties = {name: _type(hint, {}, definitions) for name, hint in (Config.hints() | dict(tables)).items()}
    return {
        "$schema": DIALECT,
        "title": "consumerd",
        "description": "Configuration of consumerd.",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "definitions": dict(sorted(definitions.items())),
    }


def _define(table: type[Section], definitions: dict[str, Any]) -> None:
    if table.__name__ in definitions:
        return
    definitions[table.__name__] = {}  # a table is not within itself, but two may have the same one
    hints = table.hints()
    names = {field.alias or name: name for name, field in table.fields.items()}
    keys = {key: _key(table.fields[name], hints[name], definitions) for key, name in names.items()}
    required = [key for key, name in names.items() if table.fields[name].required]
    definitions[table.__name__] = {
        "type": "object",
        "description": inspect.getdoc(table) or "",
        "properties": keys,
        **({"required": required} if required else {}),
        "additionalProperties": table.extra,
    }


def _key(field: Setting, hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    found = _type(hint, field.more, definitions)
    if field.about:
        found["description"] = field.about
    if "$ref" not in found and not field.required and field.value() is not None:
        found["default"] = as_json(field.value())
    if "examples" in field.more:
        found["examples"] = as_json(field.more["examples"])
    return found


def _type(hint: Any, more: Mapping[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    found = _shape(hint, more, definitions)
    for limit in ("min", "max"):
        if f"{limit}_length" in more and "type" in found:
            found[f"{limit}{_LENGTHS[found['type']]}"] = more[f"{limit}_length"]
    return found


def _shape(hint: Any, more: Mapping[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):  # TOML has no null: a key that may be None is one that may be left out
        shapes = [_shape(each, more, definitions) for each in arguments if each is not type(None)]
        return shapes[0] if len(shapes) == 1 else {"anyOf": shapes}
    if origin is Annotated and get_origin(arguments[0]) in (dict, list, tuple):
        return _shape(arguments[0], more, definitions)
    if hint is Any:
        return {}
    if isinstance(hint, type) and issubclass(hint, Section):
        _define(hint, definitions)
        found = {"$ref": f"#/definitions/{hint.__name__}"}
        return {"anyOf": [found, {"type": "string"}]} if hint.short else found
    if origin is dict:
        return {"type": "object", "additionalProperties": _shape(arguments[1], {}, definitions)}
    if hint in (list, tuple) or origin in (list, tuple):
        return {"type": "array", "items": _shape(arguments[0], {}, definitions) if arguments else {}}
    if hint is SecretStr:
        return {"type": "string", "format": "password", "writeOnly": True}
    if hint is Path:
        return {"type": "string", "format": "path"}
    kind = kind_of(hint, **more)
    bounds = {_LIMITS[type(each)]: each.limit for each in kind.bounds}
    return {"type": _NAMES[kind.type], **({"enum": [*kind.choices]} if kind.choices else {}), **bounds}
