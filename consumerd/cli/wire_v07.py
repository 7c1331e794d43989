"""`consumerd wire decode` for Kafka 0.6 and 0.7.

Strategy: the codec of `consumerd.wire.v07`; what it leaves out is put back, so that a round trip says all: bytes after
a request, which brokers ignore. An answer to a MULTIFETCH does not say how many entries it has: here it has as many
as fill it.
"""

from __future__ import annotations

import struct
from dataclasses import asdict
from typing import Any

import click

from consumerd.cli.wire_forms import Decoded, Decoder, Form, number_of
from consumerd.wire.errors import FrameError
from consumerd.wire.v07 import (
    FetchResponse,
    MultiFetchResponse,
    OffsetsResponse,
    RequestType,
    decode_fetch_response,
    decode_multifetch_response,
    decode_offsets_response,
    decode_request,
)

_SIZE = struct.Struct(">i")
_TYPE = struct.Struct(">h")


def v07_decoder(kind: str, *, is_request: bool) -> Decoder:
    """The decoder of a type's requests or responses. Raises UsageError for an unknown type, or one without answers."""
    kinds = {known.name.lower(): int(known) for known in RequestType}
    number = RequestType(number_of("--type", kind, kinds))
    if not is_request and number in (RequestType.PRODUCE, RequestType.MULTIPRODUCE):
        raise click.UsageError(f"brokers of 0.7 do not answer {number.name} requests")

    def decode(form: Form, data: bytes) -> Decoded:
        if form == "body" and is_request:
            data = _TYPE.pack(number) + data
        described, frame = _request(number, data) if is_request else _response(number, data)
        if "ignored" in described and form != "frame":
            raise FrameError(f"a {number.name} request ends before the last {len(described['ignored'])} bytes")
        cut = {"frame": 0, "message": _SIZE.size, "body": _SIZE.size + (_TYPE.size if is_request else 0)}[form]
        return Decoded({"type": number.name, **described}, lambda: frame[cut:])

    return decode


def _request(number: RequestType, data: bytes) -> tuple[dict[str, Any], bytes]:
    if len(data) >= _TYPE.size and _TYPE.unpack_from(data)[0] != number:
        raise FrameError(f"the request is of type {_TYPE.unpack_from(data)[0]}, not {number} ({number.name})")
    request = decode_request(data)
    encoded = request.encode()[_SIZE.size :]
    ignored = data[len(encoded) :]
    described = {"body": asdict(request)} | ({"ignored": ignored} if ignored else {})
    return described, _SIZE.pack(len(encoded) + len(ignored)) + encoded + ignored


def _response(number: RequestType, data: bytes) -> tuple[dict[str, Any], bytes]:
    answer: FetchResponse | MultiFetchResponse | OffsetsResponse
    if number is RequestType.MULTIFETCH:
        answer = decode_multifetch_response(data, _entries(data))
    else:
        answer = decode_fetch_response(data) if number is RequestType.FETCH else decode_offsets_response(data)
    frame = answer.encode()
    if frame[_SIZE.size :] != data:  # clients would decode it without an error
        raise FrameError(
            f"{len(data)} bytes are not a {number.name} response: their error code is unknown to 0.7, or "
            "further bytes follow it"
        )
    return {"body": asdict(answer)}, frame


def _entries(data: bytes) -> int:
    """Return the number of entries that fill the response to a MULTIFETCH; the codec validates them."""
    count, position = 0, _TYPE.size
    while position + _SIZE.size <= len(data):
        (size,) = _SIZE.unpack_from(data, position)
        count += 1
        if size < 0:
            break
        position += _SIZE.size + size
    return count
