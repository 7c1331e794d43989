"""A request and a response of each API in its first, its first flexible and its last version, made from the schemas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from consumerd.wire.v08 import (
    APIS,
    Api,
    Field,
    FieldType,
    RequestHeader,
    RequestMessage,
    ResponseHeader,
    ResponseMessage,
    encode_request_message,
    encode_response,
)

_VALUES: Final[dict[FieldType, Any]] = {
    FieldType.BOOLEAN: True,
    FieldType.INT8: 1,
    FieldType.INT16: 2,
    FieldType.INT32: 3,
    FieldType.INT64: 1000,
    FieldType.STRING: "events",
    FieldType.BYTES: b"bytes",
    FieldType.RECORDS: b"records",
    FieldType.UUID: bytes(range(16)),
}


def _value(field: Field, version: int) -> Any:
    if field.type is FieldType.ARRAY:
        of = field.of
        return [_VALUES[of] if isinstance(of, FieldType) else _body(of, version)] * 2
    if field.type is FieldType.STRUCT:
        assert isinstance(field.of, tuple)
        return _body(field.of, version)
    return _VALUES[field.type]


def _body(fields: Sequence[Field], version: int) -> dict[str, Any]:
    return {field.name: _value(field, version) for field in fields if field.in_version(version)}


def _versions() -> Iterator[tuple[Api[Any, Any], int]]:
    for api in APIS.values():
        first, last = api.versions
        chosen = {first, last, *([api.flexible] if api.flexible is not None and first <= api.flexible <= last else [])}
        for version in sorted(chosen):
            yield api, version


def request_frames() -> dict[str, bytes]:
    """Requests by API and version, without their sizes."""
    found = {}
    for api, version in _versions():
        header = RequestHeader(api.key, version, 7, "client")
        message = RequestMessage(header, _body(api.request, version))
        found[f"{api.name}-{version}"] = encode_request_message(api, message)[4:]
    return found


def response_frames() -> dict[str, bytes]:
    """Responses likewise, behind the API's key and the number of the version, a byte each."""
    found = {}
    for api, version in _versions():
        message = ResponseMessage(ResponseHeader(7), _body(api.response, version))
        frame = encode_response(api, version, message)[4:]
        found[f"{api.name}-{version}"] = bytes([api.key, version - api.versions[0]]) + frame
    return found
