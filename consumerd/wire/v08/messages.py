"""Whole requests and responses: header and body, with the size before them when encoded.

Strategy: encoders give the whole frame, size included, in one piece; decoders take the frame without its size, because
the reader of the socket has consumed it. A message must end where its frame ends: anything else means another version
than the requested one. A response does not name its request: the caller passes API and version.

ApiVersions is the exception: a broker that does not know the version that was asked answers in version 0 with error 35.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple

from consumerd.wire.errors import EncodeError, FrameError
from consumerd.wire.v08.codec import codec_of
from consumerd.wire.v08.fetch_frame import FETCH_KEY, fetch_fields, fetch_frame
from consumerd.wire.v08.headers import (
    API_VERSIONS_KEY,
    RequestHeader,
    ResponseHeader,
    read_api,
    read_request_header,
    read_response_header,
    request_header_version,
    response_header_version,
    write_request_header,
    write_response_header,
)
from consumerd.wire.v08.schema import Api, Direction, RequestT, ResponseT
from consumerd.wire.v08.types import Budget, Data

_SIZE = struct.Struct(">i")
_INT16 = struct.Struct(">h")
_UNSUPPORTED_VERSION = 35


@dataclass(frozen=True, slots=True)
class MessageLimits:
    """The limits of a decoder.

    `max_elements`: limit of the elements of all arrays of one message together. A partition of a Metadata answer is one
    element, and so is each number of its replicas; small elements cost a hundred times their bytes in memory.
    """

    max_elements: int = 2_000_000


DEFAULT_MESSAGE_LIMITS = MessageLimits()


class RequestMessage(NamedTuple, Generic[RequestT]):
    """A decoded request: its header, and its fields by name."""

    header: RequestHeader
    body: RequestT


class ResponseMessage(NamedTuple, Generic[ResponseT]):
    """A decoded response: its header, and its fields by name."""

    header: ResponseHeader
    body: ResponseT


def encode_request(
    api: Api[Any, Any], version: int, body: Mapping[str, Any], *, correlation_id: int, client_id: str | None
) -> bytes:
    """The whole frame. `client_id` is left out where the header has no place for it.

    Raises EncodeError with the path to the field, UnsupportedVersionError.
    """
    if api.key == FETCH_KEY and (frame := fetch_frame(version, body, correlation_id, client_id)) is not None:
        return frame
    header = RequestHeader(api.key, version, correlation_id, client_id)
    return encode_request_message(api, RequestMessage(header, body))


def encode_request_message(api: Api[Any, Any], message: RequestMessage[Any]) -> bytes:
    """The whole frame of a request with the header that it has. Raises as `encode_request`."""
    return _encoded(api, "request", message.header.api_version, message)


def encode_response(api: Api[Any, Any], version: int, message: ResponseMessage[Any]) -> bytes:
    """The whole frame of a response. Raises EncodeError with the path to the field, UnsupportedVersionError."""
    return _encoded(api, "response", version, message)


def _encoded(
    api: Api[Any, Any], direction: Direction, version: int, message: RequestMessage[Any] | ResponseMessage[Any]
) -> bytes:
    codec = codec_of(api, direction, version)
    parts: list[Any] = [b""]
    try:
        if isinstance(message, RequestMessage):
            write_request_header(message.header, request_header_version(api, version), parts.append)
        else:
            write_response_header(message.header, response_header_version(api, version), parts.append)
        codec.write(message.body, parts.append)
        return _framed(parts)
    except EncodeError as error:
        raise EncodeError(f"a {api.name} {direction} of version {version} cannot be made: {error}") from None


def _framed(parts: list[Any]) -> bytes:
    size = sum(map(len, parts))
    try:
        parts[0] = _SIZE.pack(size)
    except struct.error:
        raise EncodeError(f"{size} bytes are too many for one frame") from None
    return b"".join(parts)


def decode_request(
    api: Api[RequestT, Any], data: Data, *, limits: MessageLimits = DEFAULT_MESSAGE_LIMITS
) -> RequestMessage[RequestT]:
    """Read a request, in the version that its header says. `data`: the frame without its size.

    Raises FrameError for any bytes that are not such a request, UnsupportedVersionError for an unknown version.
    """
    key, version = read_api(data)
    if key != api.key:
        raise FrameError(f"a request has API key {key}, not {api.key} ({api.name})")
    header_version = request_header_version(api, version)
    return RequestMessage(*_decoded(api, "request", version, data, limits, read_request_header, header_version))


def decode_response(
    api: Api[Any, ResponseT], version: int, data: Data, *, limits: MessageLimits = DEFAULT_MESSAGE_LIMITS
) -> ResponseMessage[ResponseT]:
    """Read the response to a request of `version`. `data`: the frame without its size.

    Raises FrameError for any bytes that are not such a response, UnsupportedVersionError for an unknown version.
    """
    version = answered_version(api, version, data)
    header_version = response_header_version(api, version)
    return ResponseMessage(*_decoded(api, "response", version, data, limits, read_response_header, header_version))


def decode_response_body(api: Api[Any, ResponseT], version: int, data: Data) -> ResponseT:
    """As `decode_response`, of what follows the header alone."""
    if api.key == FETCH_KEY and (fields := fetch_fields(version, data)) is not None:
        return fields  # type: ignore[return-value]  # a call of `cast` for each message
    return decode_response(api, version, data).body


def decode_body(
    api: Api[Any, Any],
    direction: Direction,
    version: int,
    data: Data,
    *,
    limits: MessageLimits = DEFAULT_MESSAGE_LIMITS,
) -> dict[str, Any]:
    """Read a message that has no header. Raises FrameError, UnsupportedVersionError."""
    _, body = _decoded(api, direction, version, data, limits)
    assert isinstance(body, dict)
    return body


def _decoded(
    api: Api[Any, Any],
    direction: Direction,
    version: int,
    data: Data,
    limits: MessageLimits,
    read_header: Callable[[Data, int, Budget], tuple[Any, int]] | None = None,
    header_version: int = 0,
) -> tuple[Any, Any]:
    """Header and body."""
    codec = codec_of(api, direction, version)
    budget = [limits.max_elements]
    header, position = None, 0
    try:
        if read_header is not None:
            header, position = read_header(data, header_version, budget)
        body, position = codec.read(data, position, budget)
        if position != len(data):
            raise FrameError(f"it ends after {position} bytes")
    except FrameError as error:
        raise FrameError(
            f"{len(data)} bytes are not a valid {api.name} {direction} of version {version}: {error}"
        ) from None
    return header, body


def encode_body(api: Api[Any, Any], direction: Direction, version: int, body: Mapping[str, Any]) -> bytes:
    """A message without size and header. Raises EncodeError, UnsupportedVersionError."""
    codec = codec_of(api, direction, version)
    parts: list[Any] = []
    try:
        codec.write(body, parts.append)
    except EncodeError as error:
        raise EncodeError(f"a {api.name} {direction} of version {version} cannot be made: {error}") from None
    return b"".join(parts)


def answered_version(api: Api[Any, Any], version: int, data: Data) -> int:
    """The version in which `data` answers a request of `version`: 0 where a broker refuses a version of ApiVersions."""
    if api.key == API_VERSIONS_KEY and len(data) >= 6 and _INT16.unpack_from(data, 4)[0] == _UNSUPPORTED_VERSION:
        return 0
    return version
