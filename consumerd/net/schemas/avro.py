"""Values of Avro, by fastavro (the extras `avro` and `schema-registry`).

Strategy: fastavro trusts schemas and checks little of the data. Two kinds of schema would give a few hostile bytes
power over the process, and are refused when they are read: one that contains itself, since nesting is bounded by the
stack alone (fastavro recurses in C), and an array whose items take no bytes, since its length is then bounded by
nothing. Every error of fastavro becomes a DecodeError, and so do bytes behind the value.

The format is that of the Avro specification 1.11, "Binary encoding".
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, cast

from consumerd.base.errors import reason_of
from consumerd.net.schemas.errors import DecodeError

_NESTED: Final = {"array": "items", "map": "values"}


def parsed_schemas(texts: Sequence[str | bytes], what: str = "the schema") -> Any:
    """The last one of schemas, parsed, which may name those before it. Raises ValueError, which begins with `what`."""
    from fastavro import parse_schema  # noqa: PLC0415 - of the extra

    try:
        documents = [json.loads(text) for text in texts]
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} is not JSON: {error}") from error
    named: dict[str, Any] = {}
    try:
        schemas = [parse_schema(document, named) for document in documents]
        problem = _Check(schemas).problem
    except Exception as error:
        raise ValueError(f"{what} is invalid: {reason_of(error)}") from error
    if problem is not None:
        raise ValueError(f"{what} {problem}")
    return schemas[-1]


@cache
def _schemaless_reader() -> Callable[..., Any]:
    from fastavro import schemaless_reader  # noqa: PLC0415 - of the extra

    return cast("Callable[..., Any]", schemaless_reader)


def read_value(payload: bytes, start: int, writer: Any, reader: Any = None) -> Any:
    """The value in `payload` from `start` on, resolved to the schema `reader` if there is one. Raises DecodeError."""
    data = io.BytesIO(payload)
    data.seek(start)
    try:
        value = _schemaless_reader()(data, writer, reader)
    except EOFError:
        raise DecodeError(f"it is truncated: {len(payload)} bytes are not a whole value") from None
    except Exception as error:  # of many types: IndexError, OverflowError, SchemaResolutionError
        raise DecodeError(f"it does not fit the schema: {reason_of(error)}") from None
    if left := len(payload) - data.tell():
        raise DecodeError(f"{left} bytes are left behind the value")
    return value


class _Check:
    """Looks through parsed schemas, of which later ones may name earlier ones, for what hostile data could abuse."""

    def __init__(self, schemas: Sequence[Any]) -> None:
        self._named: dict[str, Any] = {}
        self._open: list[str] = []
        self.problem: str | None = None
        for schema in schemas:
            self._least(schema)

    def _least(self, schema: Any) -> int:
        """The least number of bytes that a value takes: 0 or 1, where 1 is for more, too."""
        if isinstance(schema, list):  # a union begins with the number of its branch
            for branch in schema:
                self._least(branch)
            return 1
        if isinstance(schema, str):
            return self._of_name(schema)
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self._least(kind)
        if kind in _NESTED:
            if not self._least(schema[_NESTED[kind]]) and kind == "array":
                self.problem = (
                    "has an array whose items take no bytes, so that a message of a few bytes could hold any number of "
                    "them: give the items a field"
                )
            return 1
        if kind in ("record", "error"):
            self._named[schema["name"]] = schema
            self._open.append(schema["name"])
            sizes = [self._least(field["type"]) for field in schema["fields"]]
            self._open.pop()
            return max(sizes, default=0)
        if "name" in schema:
            self._named[schema["name"]] = schema
        if kind == "fixed":
            return min(int(schema["size"]), 1)
        return self._of_name(kind)

    def _of_name(self, name: str) -> int:
        if name in self._open:
            self.problem = (
                f"contains itself ({name}), so that a hostile message could be nested until the process crashes: use a "
                "decoder of your own"
            )
            return 1
        if name in self._named:
            named = self._named[name]
            if named["type"] in ("record", "error"):
                return max((self._least(field["type"]) for field in named["fields"]), default=0)
            return min(int(named["size"]), 1) if named["type"] == "fixed" else 1
        return 0 if name == "null" else 1
