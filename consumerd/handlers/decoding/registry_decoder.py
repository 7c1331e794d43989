"""The decoder `schema_registry`: messages that name their schema by its id in a registry (Avro, Protobuf, JSON Schema).

Strategy: `consumerd.net.schemas` reads the schemas and the values. A message whose schema is not here yet is not ready
to be decoded (`NotReadyError`): the stage waits for the registry, however long that takes, and messages before it are
delivered meanwhile. An id that the registry does not have is an error of its message alone.
"""

from __future__ import annotations

import asyncio
import importlib
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from ssl import SSLContext
from typing import Any

import structlog

from consumerd.base.backoff import Backoff
from consumerd.base.credentials import Renewed, find_file, read_secret
from consumerd.base.errors import ConfigError, ConsumerdError, reason_of
from consumerd.base.ports import Clock
from consumerd.base.settings.kind import checked
from consumerd.base.settings.setting import Seconds
from consumerd.handlers.decoding.api import NotReadyError, missing_extra
from consumerd.handlers.messages import Message
from consumerd.handlers.secrets import Secret
from consumerd.handlers.threads import in_thread
from consumerd.net.schemas.avro import parsed_schemas, read_value
from consumerd.net.schemas.errors import DecodeError
from consumerd.net.schemas.frames import read_frame
from consumerd.net.schemas.json_schema import json_check
from consumerd.net.schemas.protobuf import message_reader, misfit
from consumerd.net.schemas.registry import RegisteredSchema, SchemaCache, SchemaRegistry, keep
from consumerd.net.tls import make_tls_context

log = structlog.get_logger(__name__)

#: Decodes what is behind the id, in bytes from a position on. Raises DecodeError.
_Decode = Callable[[bytes, int], Any]


class RegistryDecoder:
    """Messages framed as by Confluent's serializers. Options:

    `url`: of the registry's API. `user` with `password` or `password_file`, or `token` or `token_file` (a bearer
    token): the login; files are read again when they change. `ca`: a PEM file with the authorities to trust. `schema`:
    for Avro, the file of the reader's schema (`.avsc`), or a table of such files by topic; without it values are as
    they were written. `validate`: whether JSON is checked against its schema. `timeout`: seconds for each request.
    """

    @checked
    def __init__(
        self,
        url: str,
        user: str | None = None,
        password: Secret[str | None] = None,
        password_file: str | None = None,
        token: Secret[str | None] = None,
        token_file: str | None = None,
        ca: str | None = None,
        schema: str | Mapping[str, str] | None = None,
        validate: bool = False,
        timeout: Seconds = 10.0,
    ) -> None:
        _require_packages(validate=validate)
        login = _secret("password", password, password_file)
        bearer = _secret("token", token, token_file)
        if (user is None) != (login is None) or (bearer is not None and user is not None):
            raise ValueError("give user and password (or password_file), or token (or token_file), or none of them")
        try:
            tls = _trusted(None if ca is None else Path(ca)) if url.startswith("https:") else None
            registry = SchemaRegistry(url, user=user, password=login, token=bearer, tls=tls, timeout=timeout)
        except ConfigError as error:
            raise ValueError(str(error).removesuffix(".")) from error
        self._cache = SchemaCache(registry)
        self._validate = validate
        self._readers = _reader_schemas(schema)
        self._decoders: OrderedDict[tuple[int | str, str], _Decode] = OrderedDict()
        self._loading = asyncio.Lock()

    def decode(self, message: Message) -> Any:
        """The value of `message`. Raises DecodeError, and NotReadyError while its schema is not here."""
        frame = read_frame(message.payload, message.headers)
        decode = self._decoders.get((frame.schema, message.topic))
        if decode is None:
            decode = self._made(frame.schema, message.topic)
        try:
            return decode(frame.data, frame.start)
        except DecodeError as error:
            raise DecodeError(f"{error} (schema {frame.schema})") from None

    def _made(self, schema: int | str, topic: str) -> _Decode:
        registered = self._cache.get(schema)
        if registered is None:
            raise _MissingSchemaError(self, schema)
        try:
            decode = self._decoder_of(registered, topic)
        except DecodeError as error:
            raise DecodeError(f"schema {schema}: {error}") from None
        keep(self._decoders, (schema, topic), decode)
        return decode

    def _decoder_of(self, schema: RegisteredSchema, topic: str) -> _Decode:
        if schema.kind == "AVRO":
            return _avro(schema, self._readers.get(topic, self._readers.get("")))
        if schema.kind == "PROTOBUF":
            return _protobuf(schema)
        if schema.kind == "JSON":
            return _json(schema, validate=self._validate)
        raise DecodeError(f"unknown type {schema.kind!r}: it must be AVRO, PROTOBUF or JSON")

    async def load(self, schema: int | str, clock: Clock) -> None:
        """Read a schema, as often as that takes. One request at a time: all wait for the same registry."""
        async with self._loading:
            backoff, failed = Backoff(0.2, 30.0, Random()), False
            while not self._cache.has_result(schema):
                try:
                    await in_thread(lambda: self._cache.load(schema))
                except ConsumerdError as error:
                    pause, failed = backoff.next(), True
                    log.warning(
                        "schema_registry_unavailable", schema=schema, pause=round(pause, 3), reason=reason_of(error)
                    )
                    await clock.sleep(pause)
            if failed:
                log.info("schema_registry_available", url=self._cache.registry.url)


class _MissingSchemaError(NotReadyError):
    def __init__(self, decoder: RegistryDecoder, schema: int | str) -> None:
        super().__init__(f"schema {schema} is not read yet")
        self._decoder = decoder
        self._schema = schema

    async def load(self, clock: Clock) -> None:
        await self._decoder.load(self._schema, clock)


def _require_packages(*, validate: bool) -> None:
    """Raise HandlerLoadError where a package of the extra is missing: which one is needed, only schemas tell."""
    try:
        for package in ("fastavro", "google.protobuf", *(("jsonschema",) if validate else ())):
            importlib.import_module(package)
    except ImportError as error:
        raise missing_extra("schema_registry", "schema-registry") from error


def _trusted(ca: Path | None) -> Callable[[], SSLContext]:
    return Renewed("the schema registry's ca", [ca], lambda: make_tls_context(ca=ca and find_file(ca))).now


def _secret(name: str, value: str | None, file: str | None) -> Callable[[], str] | None:
    if value is not None and file is not None:
        raise ValueError(f"give exactly one of {name} and {name}_file")
    if file is not None:
        path = Path(file)
        return Renewed(f"the schema registry's {name}", [path], lambda: read_secret(path, f"{name}_file")).now
    return None if value is None else lambda: value


def _reader_schemas(schema: str | Mapping[str, str] | None) -> dict[str, Any]:
    if schema is None:
        return {}
    from consumerd.handlers.decoding.avro_decoder import read_schema  # noqa: PLC0415 - of the extra

    by_topic = {"": schema} if isinstance(schema, str) else schema
    return {topic: read_schema(Path(file)) for topic, file in by_topic.items()}


def _avro(schema: RegisteredSchema, reader: Any) -> _Decode:
    try:
        writer = parsed_schemas([*schema.references.values(), schema.text])
    except ValueError as error:
        raise DecodeError(str(error)) from error

    return lambda payload, start: read_value(payload, start, writer, reader)


def _json(schema: RegisteredSchema, *, validate: bool) -> _Decode:
    check: Callable[[Any], None] | None = None
    if validate:
        check = json_check(schema)

    def decode(payload: bytes, start: int) -> Any:
        try:
            value = json.loads(payload[start:])
        except RecursionError:
            raise DecodeError("it is nested too deeply") from None
        except ValueError as error:
            raise DecodeError(f"it is not JSON: {reason_of(error)}") from None
        if check is not None:
            check(value)
        return value

    return decode


def _protobuf(schema: RegisteredSchema) -> _Decode:
    from google.protobuf import json_format  # noqa: PLC0415 - of the extra

    read = message_reader(schema)

    def decode(payload: bytes, start: int) -> Any:
        made = read(payload, start)
        try:
            return json_format.MessageToDict(made, preserving_proto_field_name=True)
        except Exception as error:  # of many types
            raise misfit(made, error) from None

    return decode
