"""Messages as NDJSON: one JSON object per line, with the whole identity, so that no line is ambiguous.

`{"topic":"t","broker":0,"partition":1,"offset":71,"index":0,"payload":"text"}`; where a payload is not UTF-8, there is
`payload_base64` in place of `payload`. Text is kept exactly: decoding the JSON and encoding to UTF-8 gives the bytes.

Of brokers of 0.8 and later, `broker` is null, `payload` may be null (a tombstone), and where a message has them, there
are `key` (or `key_base64`), `timestamp` in milliseconds, and `headers`, a list of `[name, base64 or null]`.

Where a decoder has made values, `consumerd consume` adds `value`, or `error` for a message that could not be decoded.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from datetime import date, time
from json.encoder import encode_basestring
from typing import Any

from consumerd.base.partition import NO_BROKER
from consumerd.handlers.chunks import in_chunks
from consumerd.handlers.contents import known_timestamp
from consumerd.handlers.messages import Batch, Message


def payload_field(payload: bytes | None, name: str = "payload") -> str:
    """The member of the JSON object that holds `payload`."""
    if payload is None:
        return f'"{name}":null'
    try:
        # Twice as fast as json.dumps of the whole record, which counts at a million messages per second.
        return f'"{name}":{encode_basestring(payload.decode())}'
    except UnicodeDecodeError:
        return f'"{name}_base64":"{base64.b64encode(payload).decode()}"'


def value_field(value: Any, name: str = "value") -> bytes:
    """The member of the JSON object that holds a decoded value.

    Bytes are in base64, dates and times in ISO 8601, numbers that JSON does not have as in Protobuf's JSON mapping;
    what else JSON does not have is text. Raises RecursionError for a value that is nested too deeply, or contains
    itself.
    """
    plain = _plain(value)
    try:
        return f'"{name}":{json.dumps(plain, ensure_ascii=False, separators=(",", ":"))}'.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return f'"{name}":{json.dumps(plain, separators=(",", ":"))}'.encode()


def _plain(value: Any) -> Any:
    """`value` of types that JSON has."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {_plain_key(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | Set):
        return [_plain(each) for each in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, date | time):
        return value.isoformat()
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return str(value)


def _plain_key(key: Any) -> Any:
    plain = _plain(key)
    return str(plain) if isinstance(plain, list | dict) else plain


def _later_fields(message: Message) -> str:
    """The members that only messages of 0.8 and later have, each with a comma before it."""
    fields = "" if message.key is None else f",{payload_field(message.key, 'key')}"
    if (timestamp := known_timestamp(message.timestamp)) is not None:
        fields += f',"timestamp":{timestamp}'
    if message.headers:
        headers = [
            [name, None if value is None else base64.b64encode(value).decode()] for name, value in message.headers
        ]
        fields += f',"headers":{json.dumps(headers, separators=(",", ":"))}'
    return fields


def _origin(batch: Batch) -> str:
    """Return the beginning of each line of the batch, up to the offset."""
    topic, broker, partition = batch.partition
    place = "null" if broker == NO_BROKER else broker
    return f'{{"topic":{encode_basestring(topic)},"broker":{place},"partition":{partition},"offset":'


def encode_pieces(batch: Batch, lines: int, size: int) -> Iterator[bytes]:
    """As `encode_records`, with as many lines joined as are at most `lines` and, if more than one, `size` bytes.

    Where payloads are not objects yet they do not become objects for this.
    """
    buffer = batch.buffer
    if buffer is None:
        yield from map(b"".join, in_chunks(encode_records(batch), lines, size, len))
        return
    origin, number = _origin(batch).encode(), buffer.first
    end = buffer.first + len(batch)
    while number < end:
        piece, number = buffer.payloads.json_lines(origin, buffer.offset, number, lines, size)
        yield piece


def encode_records(batch: Batch) -> Iterator[bytes]:
    """One line, newline included, for every message of `batch`, made as it is consumed."""
    origin = _origin(batch)
    if batch.keys is not None:
        return (
            f'{origin}{message.offset},"index":0,{payload_field(message.payload)}{_later_fields(message)}}}\n'.encode()
            for message in batch.messages()
        )
    return (
        f'{origin}{offset},"index":{index},{payload_field(payload)}}}\n'.encode()
        for _, offset, index, _, payload in batch.messages()
    )
