"""Checks of JSON values against a schema, by the package `jsonschema` (the extra `schema-registry`)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from consumerd.base.errors import reason_of
from consumerd.net.schemas.errors import DecodeError
from consumerd.net.schemas.registry import RegisteredSchema


def json_check(schema: RegisteredSchema) -> Callable[[Any], None]:
    """What raises DecodeError for a value that does not fit the schema. Raises it where the schema is invalid."""
    import jsonschema  # noqa: PLC0415 - of the extra
    import referencing  # noqa: PLC0415 - jsonschema has it
    from referencing.jsonschema import DRAFT7  # noqa: PLC0415

    try:
        documents = {name: json.loads(text) for name, text in schema.references.items()}
        document = json.loads(schema.text)
        resources = [
            (name, referencing.Resource.from_contents(each, default_specification=DRAFT7))
            for name, each in documents.items()
        ]
        kind = jsonschema.validators.validator_for(document, default=jsonschema.Draft7Validator)
        kind.check_schema(document)
        validator = kind(document, registry=referencing.Registry().with_resources(resources))
    except Exception as error:  # of many types, of two packages
        raise DecodeError(f"the schema is invalid: {reason_of(error)}") from error

    def check(value: Any) -> None:
        try:
            problem = next(validator.iter_errors(value), None)
        except Exception as error:  # a reference that leads nowhere, or in a circle
            raise DecodeError(f"the schema cannot be applied: {reason_of(error)}") from None
        if problem is not None:
            raise DecodeError(f"it does not fit the schema at {problem.json_path}: {problem.validator}")

    return check
