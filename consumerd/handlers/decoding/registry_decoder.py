"""The decoder `schema_registry`: messages that name their schema by its id in a registry (Avro, Protobuf, JSON Schema).

Strategy: a message begins with a zero byte and the id of its schema in four bytes, or has the schema's GUID in the
header `__value_schema_id`; Protobuf has the path to its message type behind that. Schemas are read once and kept. A
message whose schema is not here yet is not ready to be decoded (`NotReadyError`): the stage waits for the registry,
however long that takes, and messages before it are delivered meanwhile. An id that the registry does not have is an
error of its message alone.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import json
import re
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import structlog

from consumerd.base.backoff import Backoff
from consumerd.base.credentials import Renewed, read_secret
from consumerd.base.errors import ConfigError, ConsumerdError, reason_of
from consumerd.base.ports import Clock
from consumerd.base.settings.kind import checked
from consumerd.base.settings.setting import Seconds
from consumerd.handlers.decoding.api import DecodeError, NotReadyError, missing_extra
from consumerd.handlers.decoding.schema_registry import RegisteredSchema, SchemaRegistry
from consumerd.handlers.messages import Message
from consumerd.handlers.secret_options import Secret
from consumerd.handlers.threads import in_thread

log = structlog.get_logger(__name__)

#: The header with a schema's GUID, and the bytes before an id and before a GUID.
GUID_HEADER: Final = "__value_schema_id"
_ID, _GUID = 0, 1
_ID_SIZE, _GUID_SIZE = 5, 17
#: Schemas that are kept, and ids that the registry does not have; and for how long those are not asked for again.
_KEPT: Final = 10_000
_UNKNOWN_SECONDS: Final = 60.0
#: Numbers in the path to a message type of Protobuf.
_MOST_NESTED: Final = 100
_WELL_KNOWN: Final = re.compile(r"google/(protobuf|type)/[a-z_]+\.proto")

#: Decodes what is behind the id, in bytes from a position on. Raises DecodeError.
_Decode = Callable[[bytes, int], Any]


class Frame(NamedTuple):
    """The schema of a message, by id or GUID, and its value: `data` from `start` on.

    The value of Protobuf begins with the path to its message type.
    """

    schema: int | str
    data: bytes
    start: int


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
        path = None if ca is None else Path(ca)
        try:
            self._registry = SchemaRegistry(url, user=user, password=login, token=bearer, ca=path, timeout=timeout)
        except ConfigError as error:
            raise ValueError(str(error).removesuffix(".")) from error
        self._validate = validate
        self._readers = _reader_schemas(schema)
        self._decoders: OrderedDict[tuple[int | str, str], _Decode] = OrderedDict()
        self._schemas: OrderedDict[int | str, RegisteredSchema] = OrderedDict()
        self._unknown: OrderedDict[int | str, tuple[float, str]] = OrderedDict()
        self._loading = asyncio.Lock()

    def decode(self, message: Message) -> Any:
        """The value of `message`. Raises DecodeError, and NotReadyError while its schema is not here."""
        frame = read_frame(message)
        decode = self._decoders.get((frame.schema, message.topic))
        if decode is None:
            decode = self._made(frame.schema, message.topic)
        try:
            return decode(frame.data, frame.start)
        except DecodeError as error:
            raise DecodeError(f"{error} (schema {frame.schema})") from None

    def load_now(self, schema: int | str) -> None:
        """Read a schema. Blocks. Raises ConnectError while the registry is not there."""
        try:
            _keep(self._schemas, schema, self._registry.schema(schema))
        except DecodeError as error:
            _keep(self._unknown, schema, (time.monotonic() + _UNKNOWN_SECONDS, str(error)))

    def _made(self, schema: int | str, topic: str) -> _Decode:
        registered = self._schemas.get(schema)
        if registered is None:
            until, reason = self._unknown.get(schema, (0.0, ""))
            if until > time.monotonic():
                raise DecodeError(reason)
            raise _MissingSchemaError(self, schema)
        try:
            decode = self._decoder_of(registered, topic)
        except DecodeError as error:
            raise DecodeError(f"schema {schema}: {error}") from None
        _keep(self._decoders, (schema, topic), decode)
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
            while schema not in self._schemas and self._unknown.get(schema, (0.0,))[0] <= time.monotonic():
                try:
                    await in_thread(lambda: self.load_now(schema))
                except ConsumerdError as error:
                    pause, failed = backoff.next(), True
                    log.warning(
                        "schema_registry_unavailable", schema=schema, pause=round(pause, 3), reason=reason_of(error)
                    )
                    await clock.sleep(pause)
            if failed:
                log.info("schema_registry_available", url=self._registry.url)


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


def _keep(kept: OrderedDict[Any, Any], key: object, value: object) -> None:
    kept[key] = value
    if len(kept) > _KEPT:
        kept.popitem(last=False)


def _secret(name: str, value: str | None, file: str | None) -> Callable[[], str] | None:
    if value is not None and file is not None:
        raise ValueError(f"give exactly one of {name} and {name}_file")
    if file is not None:
        path = Path(file)
        return Renewed(f"the schema registry's {name}", [path], lambda: read_secret(path, f"{name}_file")).now
    return None if value is None else lambda: value


def read_frame(message: Message) -> Frame:
    """Return what a message says of its schema. Raises DecodeError."""
    for name, value in reversed(message.headers):
        if name == GUID_HEADER and value is not None and value[:1] == bytes([_GUID]):
            if len(value) < _GUID_SIZE:
                raise DecodeError(f"the header {GUID_HEADER} is truncated")
            guid = str(uuid.UUID(bytes=value[1:_GUID_SIZE]))
            return Frame(guid, value[_GUID_SIZE:] + message.payload, 0)
    payload = message.payload
    if len(payload) < _ID_SIZE or payload[0] != _ID:
        raise DecodeError("it does not begin with a zero byte and the id of a schema")
    return Frame(int.from_bytes(payload[1:_ID_SIZE]), payload, _ID_SIZE)


def _path(data: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """Return the path to a message type of Protobuf, and where it ends. Raises DecodeError."""
    count, at = _varint(data, at)
    if not 0 <= count <= _MOST_NESTED:
        raise DecodeError("the path to its message type has an invalid length")
    path = []
    for _ in range(count):
        number, at = _varint(data, at)
        path.append(number)
    return tuple(path) or (0,), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number in zigzag encoding, and where it ends."""
    number = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
    raise DecodeError("the path to its message type is truncated")


def _reader_schemas(schema: str | Mapping[str, str] | None) -> dict[str, Any]:
    if schema is None:
        return {}
    from consumerd.handlers.decoding.avro_decoder import read_schema  # noqa: PLC0415 - of the extra

    by_topic = {"": schema} if isinstance(schema, str) else schema
    return {topic: read_schema(Path(file)) for topic, file in by_topic.items()}


def _avro(schema: RegisteredSchema, reader: Any) -> _Decode:
    from consumerd.handlers.decoding.avro_decoder import parsed_schemas, read_value  # noqa: PLC0415 - of the extra

    try:
        writer = parsed_schemas([*schema.references.values(), schema.text])
    except ValueError as error:
        raise DecodeError(str(error)) from error

    return lambda payload, start: read_value(payload, start, writer, reader)


def _json(schema: RegisteredSchema, *, validate: bool) -> _Decode:
    check: Callable[[Any], None] | None = None
    if validate:
        check = _json_check(schema)

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


def _json_check(schema: RegisteredSchema) -> Callable[[Any], None]:
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


def _protobuf(schema: RegisteredSchema) -> _Decode:
    from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory  # noqa: PLC0415

    pool: Any = descriptor_pool.DescriptorPool()
    added: set[str] = set()

    def add(name: str, text: str) -> Any:
        file = descriptor_pb2.FileDescriptorProto()
        file.ParseFromString(base64.b64decode(text, validate=True))
        file.name = name
        for needed in file.dependency:
            if needed not in added and needed not in schema.references and _WELL_KNOWN.fullmatch(needed):
                _add_well_known(pool, needed, added)
        pool.Add(file)
        added.add(name)
        return file

    try:
        for name, text in schema.references.items():
            add(name, text)
        main = add("the schema", schema.text)
        file = pool.FindFileByName(main.name)
    except Exception as error:  # of many types: base64, protobuf's own, TypeError
        raise DecodeError(f"the schema is invalid: {reason_of(error)}") from error
    types: dict[tuple[int, ...], Any] = {}
    names = [each.name for each in main.message_type]

    def type_of(path: tuple[int, ...]) -> Any:
        try:
            found, proto = file.message_types_by_name[names[path[0]]], main.message_type[path[0]]
            for number in path[1:]:
                proto = proto.nested_type[number]
                found = found.nested_types_by_name[proto.name]
        except (IndexError, KeyError):
            raise DecodeError(f"the schema has no message type {list(path)}") from None
        types[path] = message_factory.GetMessageClass(found)
        return types[path]

    def decode(payload: bytes, start: int) -> Any:
        path, start = _path(payload, start)
        made = (types.get(path) or type_of(path))()
        try:
            made.ParseFromString(payload[start:])
            return json_format.MessageToDict(made, preserving_proto_field_name=True)
        except Exception as error:  # of many types
            raise DecodeError(f"it does not fit {made.DESCRIPTOR.full_name}: {reason_of(error)}") from None

    return decode


def _add_well_known(pool: Any, name: str, added: set[str]) -> None:
    """Add one of the files that come with Protobuf, which registries do not list as references."""
    descriptor = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2").DESCRIPTOR
    for needed in descriptor.dependencies:
        if needed.name not in added:
            _add_well_known(pool, needed.name, added)
    pool.AddSerializedFile(descriptor.serialized_pb)
    added.add(name)
