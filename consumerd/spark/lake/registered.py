"""Messages that name their schema in a registry, for the columns of a table: each is read with its writer's schema.

Strategy: `consumerd.net.schemas` reads schemas and values, as for the daemon's decoders. A value of Avro or Protobuf
becomes what a JSON object of the same members would be, so that one rule casts the values of all formats to their
columns; a JSON message is read as any other JSON is. Schemas are kept for the life of the process, which has many
tasks.

An id that the registry does not have, and bytes that do not fit their schema, are an error of the message. A registry
that does not answer is none: RegistryUnavailableError ends the step, and nothing of its batch is committed.
"""

from __future__ import annotations

import base64
import importlib
import json
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, MutableMapping, MutableSequence, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from ssl import SSLContext
from typing import Any, Final, NamedTuple

from consumerd.base.credentials import find_file, read_secret
from consumerd.base.errors import ConfigError, reason_of
from consumerd.net.schemas.avro import parsed_schemas, read_value
from consumerd.net.schemas.errors import DecodeError
from consumerd.net.schemas.frames import read_frame
from consumerd.net.schemas.protobuf import message_reader
from consumerd.net.schemas.registry import RegisteredSchema, RegistryUnavailableError, SchemaCache, SchemaRegistry, keep
from consumerd.net.tls import make_tls_context

_TIMEOUT: Final = 10.0
_SCALARS: Final = frozenset({int, float, str, bool, type(None)})

#: Makes of a value's bytes, from a position on, its members by name. Raises DecodeError.
_Read = Callable[[bytes, int], Mapping[str, Any]]


class RegistrySettings(NamedTuple):
    """Where the schemas are, without a secret: files are read where a task runs. `reader`: Avro's, as JSON."""

    url: str
    user: str | None = None
    password_file: str | None = None
    token_file: str | None = None
    ca: str | None = None
    reader: str | None = None


class Misfit(str):
    """The reason why a message has no values."""

    __slots__ = ()


@lru_cache(8)
def open_schemas(settings: RegistrySettings, wanted: frozenset[str]) -> MessageSchemas:
    """The schemas of a registry, which tasks of this process share. Raises ConfigError."""
    return MessageSchemas(settings, wanted)


class MessageSchemas:
    """Reads messages by the schemas that they name. `wanted`: the members that are needed.

    Raises ConfigError for settings that cannot be used.
    """

    def __init__(self, settings: RegistrySettings, wanted: frozenset[str]) -> None:
        self._wanted = wanted
        try:
            for package in ("fastavro", "google.protobuf"):
                importlib.import_module(package)
        except ImportError as error:
            raise ConfigError(
                'parse = "schema_registry" needs the extra `schema-registry`: '
                "pip install 'consumerd[schema-registry]'."
            ) from error
        ca = None if settings.ca is None else find_file(Path(settings.ca))

        def trusted() -> SSLContext:
            return make_tls_context(ca=ca)

        self._cache = SchemaCache(
            SchemaRegistry(
                settings.url,
                user=settings.user,
                password=_secret("registry_password_file", settings.password_file),
                token=_secret("registry_token_file", settings.token_file),
                tls=trusted,
                timeout=_TIMEOUT,
            )
        )
        self._reader: Any = None
        if settings.reader is not None:
            try:
                self._reader = parsed_schemas([settings.reader], "avro_schema")
            except ValueError as error:
                raise ConfigError(f"{error}.") from error
        self._readers: OrderedDict[int | str, _Read | Misfit | None] = OrderedDict()

    def read(self, payload: bytes, headers: Sequence[tuple[str, bytes | None]]) -> Mapping[str, Any] | bytes | Misfit:
        """The members of a message, its JSON, or why it has none. Raises RegistryUnavailableError."""
        try:
            frame = read_frame(payload, headers)
        except DecodeError:
            return NOT_FRAMED
        read = self._read_of(frame.schema)
        if read is None:
            return frame.data[frame.start :]
        if isinstance(read, Misfit):
            return read
        try:
            found = read(frame.data, frame.start)
        except DecodeError:
            return Misfit(f"the message does not fit schema {frame.schema}")
        return found if isinstance(found, dict) else Misfit(f"schema {frame.schema} is not that of a record")

    def _read_of(self, key: int | str) -> _Read | Misfit | None:
        """How messages of a schema are read; None for JSON."""
        if key in self._readers:
            return self._readers[key]
        try:
            schema = self._cache.get(key)
            if schema is None:
                self._cache.load(key)
                schema = self._cache.get(key)
        except DecodeError as error:
            return Misfit(error)  # not kept here: the cache forgets it after a while
        except RegistryUnavailableError as error:
            raise RegistryUnavailableError(
                f"{error}; no message was given up for it: run the step again when the registry answers."
            ) from None
        assert schema is not None
        try:
            read: _Read | Misfit | None = self._made(schema)
        except DecodeError as error:
            read = Misfit(f"schema {key} cannot be used: {error}")
        keep(self._readers, key, read)
        return read

    def _made(self, schema: RegisteredSchema) -> _Read | None:
        if schema.kind == "AVRO":
            try:
                writer = parsed_schemas([*schema.references.values(), schema.text])
            except ValueError as error:
                raise DecodeError(str(error)) from error
            return lambda payload, start: read_value(payload, start, writer, self._reader)
        if schema.kind == "PROTOBUF":
            message = message_reader(schema)
            return lambda payload, start: _members(message(payload, start), self._wanted)
        if schema.kind == "JSON":
            return None
        raise DecodeError(f"unknown type {schema.kind!r}: it must be AVRO, PROTOBUF or JSON")


NOT_FRAMED: Final = Misfit("the message does not begin with the id of a schema")


def _secret(key: str, file: str | None) -> Callable[[], str] | None:
    return None if file is None else lambda: read_secret(Path(file), key)


def plain(value: Any) -> Any:
    """A value that is not nested as JSON has it: bytes in Base64, times in ISO 8601."""
    if type(value) in _SCALARS:
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def json_of(value: Any) -> str:
    """A nested value as JSON."""
    return json.dumps(value, default=plain)


def _members(message: Any, wanted: Collection[str] | None = None) -> Any:
    """A message of Protobuf's as a dict: also fields with the default value, but those that can be and are absent."""
    found = {}
    for field in message.DESCRIPTOR.fields:
        if (wanted is None or field.name in wanted) and (not field.has_presence or message.HasField(field.name)):
            found[field.name] = _value(getattr(message, field.name), field)
    return found


def _value(value: Any, field: Any) -> Any:
    if isinstance(value, MutableMapping):
        of = field.message_type.fields_by_name["value"]
        return {str(key): _value(each, of) for key, each in value.items()}
    if isinstance(value, MutableSequence):
        return [_value(each, field) for each in value]
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    if field.message_type is None:
        return value
    if field.message_type.file.package != "google.protobuf":
        return _members(value)
    return value.value if field.message_type.name.endswith("Value") and hasattr(value, "value") else _well_known(value)


def _well_known(value: Any) -> Any:
    from google.protobuf import json_format  # noqa: PLC0415 - of the extra

    try:
        return json_format.MessageToDict(value, preserving_proto_field_name=True)
    except Exception as error:  # of many types: a time out of range
        raise DecodeError(reason_of(error)) from None
