"""Schemas that were read from a registry, and ids that it does not have.

Strategy: a schema with an id never changes, so it is kept; an id that is unknown may be registered later, so it is
asked for again after a minute.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any, Final

from consumerd.net.schemas.errors import DecodeError
from consumerd.net.schemas.registry import RegisteredSchema, SchemaRegistry

#: Schemas that are kept, and ids that the registry does not have; and for how long those are not asked for again.
KEPT: Final = 10_000
_UNKNOWN_SECONDS: Final = 60.0


class SchemaCache:
    """The schemas of one registry, by id or GUID."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self.registry = registry
        self._schemas: OrderedDict[int | str, RegisteredSchema] = OrderedDict()
        self._unknown: OrderedDict[int | str, tuple[float, str]] = OrderedDict()

    def get(self, key: int | str) -> RegisteredSchema | None:
        """The schema with an id, None if it has to be read first. Raises DecodeError if the registry lacks it."""
        schema = self._schemas.get(key)
        if schema is None:
            until, reason = self._unknown.get(key, (0.0, ""))
            if until > time.monotonic():
                raise DecodeError(reason)
        return schema

    def load(self, key: int | str) -> None:
        """Read a schema; `get` has the result. Blocks. Raises ConnectError while the registry is not there."""
        try:
            keep(self._schemas, key, self.registry.schema(key))
        except DecodeError as error:
            keep(self._unknown, key, (time.monotonic() + _UNKNOWN_SECONDS, str(error)))

    def has_result(self, key: int | str) -> bool:
        """Whether `get` has the schema, or an error."""
        return key in self._schemas or self._unknown.get(key, (0.0,))[0] > time.monotonic()


def keep(kept: OrderedDict[Any, Any], key: object, value: object) -> None:
    """Add a value to a cache, whose oldest one is dropped where it is full."""
    kept[key] = value
    if len(kept) > KEPT:
        kept.popitem(last=False)
