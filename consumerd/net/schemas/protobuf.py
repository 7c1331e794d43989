"""Messages of Protobuf, by the package `protobuf` (the extra `schema-registry`), from schemas in their binary form."""

from __future__ import annotations

import base64
import importlib
import re
from collections.abc import Callable
from typing import Any, Final

from consumerd.base.errors import reason_of
from consumerd.net.schemas.errors import DecodeError
from consumerd.net.schemas.registry import RegisteredSchema
from consumerd.wire.errors import CorruptMessageError
from consumerd.wire.v08.records.varint import read_varlong

#: Numbers in the path to a message type.
_MOST_NESTED: Final = 100
_WELL_KNOWN: Final = re.compile(r"google/(protobuf|type)/[a-z_]+\.proto")


def message_reader(schema: RegisteredSchema) -> Callable[[bytes, int], Any]:
    """What reads a message of Protobuf's, in bytes from the path to its type on. Raises DecodeError, and so does it."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: PLC0415

    pool: Any = descriptor_pool.DescriptorPool()
    added: set[str] = set()

    def add(name: str, text: str) -> Any:
        file = descriptor_pb2.FileDescriptorProto()
        file.ParseFromString(_binary(text))
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
    except DecodeError:
        raise
    except Exception as error:  # of many types: protobuf's own, TypeError
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

    def read(payload: bytes, start: int) -> Any:
        path, start = _path(payload, start)
        made = (types.get(path) or type_of(path))()
        try:
            made.ParseFromString(payload[start:])
        except Exception as error:  # of many types
            raise misfit(made, error) from None
        return made

    return read


def misfit(message: Any, error: Exception) -> DecodeError:
    """The error of bytes that are not a message of this type."""
    return DecodeError(f"it does not fit {message.DESCRIPTOR.full_name}: {reason_of(error)}")


def _binary(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise DecodeError(
            "the registry does not return the schema in its binary form (format=serialized); register it in that form"
        ) from None


def _path(data: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """Return the path to a message type of Protobuf, and where it ends. Raises DecodeError."""
    path = []
    try:
        count, at = read_varlong(data, at)
        if not 0 <= count <= _MOST_NESTED:
            raise DecodeError("the path to its message type has an invalid length")
        for _ in range(count):
            number, at = read_varlong(data, at)
            path.append(number)
    except (IndexError, CorruptMessageError):
        raise DecodeError("the path to its message type is truncated") from None
    return tuple(path) or (0,), at


def _add_well_known(pool: Any, name: str, added: set[str]) -> None:
    """Add one of the files that come with Protobuf, which registries do not list as references."""
    descriptor = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2").DESCRIPTOR
    for needed in descriptor.dependencies:
        if needed.name not in added:
            _add_well_known(pool, needed.name, added)
    pool.AddSerializedFile(descriptor.serialized_pb)
    added.add(name)
