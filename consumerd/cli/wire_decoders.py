"""What `consumerd wire decode` reads: frames of either dialect, with or without their size or header.

Strategy: try what the bytes can be, the most complete form first. A form counts if all bytes can be read as it; if none
can, the error of the most complete one is the one to show. The codecs are those of `consumerd.wire`. What that of 0.7
leaves out is put back, so that a round trip says all: bytes after a request, which brokers ignore. An answer to a
MULTIFETCH does not say how many entries it has: here it has as many as fill it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final, Literal, NamedTuple, cast

import click

from consumerd.wire import v08
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

_SIZE: Final = struct.Struct(">i")
_TYPE: Final = struct.Struct(">h")

Form = Literal["frame", "message", "body"]


class Decoded(NamedTuple):
    """The decoded value, for JSON, and the encoder to the same form."""

    value: dict[str, Any]
    encode: Callable[[], bytes]


#: Reads the bytes of a form; of a frame, those after its size. Raises FrameError.
Decoder = Callable[[Form, bytes], Decoded]


def decode_form(data: bytes, form: str, decoder: Decoder, *, only_frames: bool = False) -> tuple[Form, Decoded]:
    """Read `data` in `form`, or for "auto" in the first that fits; gives the form, too.

    `only_frames`: for "auto", nothing but a frame fits, because nearly any bytes could be a message. Raises FrameError.
    """
    sized = len(data) >= 4 and int.from_bytes(data[:4], signed=True) == len(data) - 4
    if not sized and (form == "frame" or (form == "auto" and only_frames)):
        raise FrameError(f"{len(data)} bytes are not a frame: their first four must be the number of those that follow")
    forms: tuple[Form, ...] = ("frame", "message") if sized else ("message", "body")
    if only_frames:
        forms = ("frame",)
    if form != "auto":
        forms = (cast("Form", form),)
    errors = []
    for candidate in forms:
        try:
            return candidate, decoder(candidate, data[4:] if candidate == "frame" else data)
        except FrameError as error:
            errors.append(error)
    raise errors[0]


def number_of(option: str, text: str, names: Mapping[str, int]) -> int:
    """The number that `text` is or names. `names`: lower case, letters and digits alone. Raises UsageError."""
    plain = "".join(filter(str.isalnum, text)).lower()
    number = int(text) if text.isascii() and text.isdigit() else names.get(plain)
    if number is None or number not in names.values():
        known = ", ".join(f"{value} {name}" for name, value in names.items())
        raise click.UsageError(f"{option} {text} is not known; these are: {known}")
    return number


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


def v08_decoder(api_key: str, version: int, *, is_request: bool) -> Decoder:
    """The decoder of an API's requests or responses. Raises UsageError for an unknown API."""
    names = {api.name.lower(): key for key, api in v08.APIS.items()}
    names |= {api.alias.lower(): key for key, api in v08.APIS.items() if api.alias}
    api = v08.APIS[number_of("--api-key", api_key, names)]
    head = {"api": api.name, "api_key": api.key, "api_version": version}

    def body(data: bytes) -> Decoded:
        direction: v08.Direction = "request" if is_request else "response"
        value = v08.decode_body(api, direction, version, data)
        return Decoded(head | {"body": value}, lambda: v08.encode_body(api, direction, version, value))

    def request(data: bytes, cut: int) -> Decoded:
        found = v08.read_api(data)
        if found != (api.key, version):
            raise FrameError(
                f"the header of the request says API key {found[0]} and version {found[1]}, not {api.key} and {version}"
            )
        message = v08.decode_request(api, data)
        value = head | {"header": message.header._asdict(), "body": message.body}
        return Decoded(value, lambda: v08.encode_request_message(api, message)[cut:])

    def response(data: bytes, cut: int) -> Decoded:
        answered = v08.answered_version(api, version, data)
        message = v08.decode_response(api, answered, data)
        value = head | {"api_version": answered, "header": message.header._asdict(), "body": message.body}
        return Decoded(value, lambda: v08.encode_response(api, answered, message)[cut:])

    def decode(form: Form, data: bytes) -> Decoded:
        try:
            if form == "body":
                return body(data)
            return (request if is_request else response)(data, 0 if form == "frame" else _SIZE.size)
        except v08.UnsupportedVersionError as error:
            raise click.UsageError(str(error)) from None

    return decode
