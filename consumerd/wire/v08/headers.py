"""Headers of requests (versions 0 to 2) and of responses (0 and 1).

Strategy: the header's version follows from the API and its version, and nothing on the wire says it. Flexible versions
end both headers with tagged fields; the client id stays an ordinary nullable string there. Two exceptions: version 0 of
ControlledShutdown came before client ids, and the answer to ApiVersions never has tagged fields, because its reader
does not know yet what the broker can do.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from consumerd.wire.errors import EncodeError, FrameError
from consumerd.wire.v08.codec import read_tags, write_tags
from consumerd.wire.v08.schema import Api, FieldType
from consumerd.wire.v08.types import Append, Budget, Data, sized_reader, sized_writer

_REQUEST = struct.Struct(">hhi")
_CORRELATION_ID = struct.Struct(">i")
_read_client_id = sized_reader(FieldType.STRING, nullable=True, compact=False)
_write_client_id = sized_writer(FieldType.STRING, nullable=True, compact=False)

API_VERSIONS_KEY = 18
CONTROLLED_SHUTDOWN_KEY = 7


class RequestHeader(NamedTuple):
    """`api_key`, `api_version`: what is asked. `correlation_id`: comes back with the answer. `client_id`: who asks, for
    logs and quotas. `tags`: tagged fields as they came, {tag: bytes}.
    """

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    tags: dict[int, bytes] = {}  # noqa: RUF012  # never changed


class ResponseHeader(NamedTuple):
    """`correlation_id`: that of the request. `tags`: tagged fields as they came, {tag: bytes}."""

    correlation_id: int
    tags: dict[int, bytes] = {}  # noqa: RUF012  # never changed


def request_header_version(api: Api[Any, Any], version: int) -> int:
    """0: no client id; 1: with it; 2: with tagged fields."""
    if api.is_flexible(version):
        return 2
    return 0 if api.key == CONTROLLED_SHUTDOWN_KEY and version == 0 else 1


def response_header_version(api: Api[Any, Any], version: int) -> int:
    """0: the correlation id alone; 1: with tagged fields."""
    return int(api.is_flexible(version) and api.key != API_VERSIONS_KEY)


def read_api(data: Data) -> tuple[int, int]:
    """The API key and version with which a request begins (without its size). Raises FrameError."""
    if len(data) < _REQUEST.size:
        raise FrameError(f"a request of {len(data)} bytes has no room for its header")
    key, version, _ = _REQUEST.unpack_from(data)
    return key, version


def read_request_header(data: Data, header_version: int, budget: Budget) -> tuple[RequestHeader, int]:
    """The header and the position after it. Raises FrameError."""
    read_api(data)
    key, version, correlation_id = _REQUEST.unpack_from(data)
    position = _REQUEST.size
    client_id = None
    tags: dict[int, bytes] = {}
    try:
        if header_version > 0:
            client_id, position = _read_client_id(data, position, budget)
        if header_version > 1:
            tags, position = _read_tags(data, position, budget)
    except FrameError as error:
        raise FrameError(f"client_id or tagged fields of the header: {error}") from None
    except (struct.error, IndexError):
        raise FrameError("the message ends within its header") from None
    return RequestHeader(key, version, correlation_id, client_id, tags), position


def read_correlation_id(data: Data) -> int:
    """The correlation id with which every response begins (without its size). Raises FrameError."""
    if len(data) < _CORRELATION_ID.size:
        raise FrameError(f"a response of {len(data)} bytes has no room for its correlation id")
    number: int = _CORRELATION_ID.unpack_from(data)[0]
    return number


def read_response_header(data: Data, header_version: int, budget: Budget) -> tuple[ResponseHeader, int]:
    """The header and the position after it. Raises FrameError."""
    correlation_id = read_correlation_id(data)
    if header_version == 0:
        return ResponseHeader(correlation_id), _CORRELATION_ID.size
    try:
        tags, position = _read_tags(data, _CORRELATION_ID.size, budget)
    except IndexError:
        raise FrameError("the message ends within its header") from None
    return ResponseHeader(correlation_id, tags), position


def _read_tags(data: Data, position: int, budget: Budget) -> tuple[dict[int, bytes], int]:
    places, position = read_tags(data, position, budget)
    return {tag: bytes(data[start:end]) for tag, start, end in places}, position


def write_request_header(header: RequestHeader, header_version: int, append: Append) -> None:
    """Write a request's header. Raises EncodeError."""
    try:
        append(_REQUEST.pack(header.api_key, header.api_version, header.correlation_id))
    except struct.error:
        raise EncodeError(f"the numbers of a request header do not fit: {header!r:.80}") from None
    if header_version > 0:
        try:
            _write_client_id(header.client_id, append)
        except EncodeError as error:
            raise EncodeError(f"client_id: {error}") from None
    if header_version > 1:
        write_tags(header.tags, append)


def write_response_header(header: ResponseHeader, header_version: int, append: Append) -> None:
    """Write a response's header. Raises EncodeError."""
    try:
        append(_CORRELATION_ID.pack(header.correlation_id))
    except struct.error:
        raise EncodeError(f"{header.correlation_id!r:.40} is not a correlation id") from None
    if header_version > 0:
        write_tags(header.tags, append)
