"""Messages as the buffers of columns in Arrow's layout, as the native codec makes them: no object for any message.

Strategy: plain `bytes`, so that this ring needs no Arrow library, and no memory addresses are exchanged.
Source: https://arrow.apache.org/docs/format/Columnar.html
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

#: Names and values in the order in which the producer wrote them; names may repeat, values may be null.
Headers: TypeAlias = "tuple[tuple[str, bytes | None], ...]"


class BinaryBuffers(NamedTuple):
    """A column of bytes. `validity` has a bit for each value, or is empty where no value is null."""

    validity: bytes
    offsets: bytes
    data: bytes


class HeaderBuffers(NamedTuple):
    """A column of lists of headers: 32-bit `offsets`, one more than there are lists; names and values of all lists."""

    offsets: bytes
    names: BinaryBuffers
    values: BinaryBuffers


class ColumnBuffers(NamedTuple):
    """Consecutive messages. Numbers have 64 bits, those of `index` 32, in this machine's byte order.

    None: `index` is 0 for all messages, no message has a `key`, a timestamp or headers. `timestamp` is validity and
    milliseconds. `headers` are a mapping by number of the message, where they were read by the pure codec.
    """

    payload: BinaryBuffers
    offset: bytes
    next_offset: bytes
    index: bytes | None = None  # type: ignore[assignment]  # hides `tuple.index`, which is not used
    key: BinaryBuffers | None = None
    timestamp: tuple[bytes, bytes] | None = None
    headers: HeaderBuffers | Mapping[int, Headers] | None = None
