"""Tagged fields: what ends every structure of a flexible version.

Strategy: a count, then for each field its tag, its size and its bytes, in ascending order of tags. A field that is not
there has its default, and one that is at its default is not written. Tags without a field here come from newer brokers:
they are kept as bytes and written again.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from consumerd.wire.errors import EncodeError, FrameError
from consumerd.wire.v08.schema import Field
from consumerd.wire.v08.structures import UNKNOWN_TAGS, FieldCodec
from consumerd.wire.v08.types import Append, Budget, Data, Reader, Writer
from consumerd.wire.v08.varint import read_uvarint, uvarint


class TaggedField(NamedTuple):
    """A tagged field that a schema describes, and the codec of its value."""

    field: Field
    codec: FieldCodec

    def read(self, piece: Data, budget: Budget) -> Any:
        """The value in `piece`, which it has to fill. Raises FrameError."""
        name = self.field.name
        try:
            content, end = self.codec.read(piece, 0, budget)
        except FrameError as error:
            raise FrameError(f"{name}: {error}") from None
        except (struct.error, IndexError):
            raise FrameError(f"{name}: its {len(piece)} bytes end within it") from None
        if end != len(piece):
            raise FrameError(f"{name}: it ends after {end} of its {len(piece)} bytes")
        return content

    def encoded(self, content: Any) -> bytes:
        """The bytes of a value. Raises EncodeError."""
        parts: list[Any] = []
        try:
            self.codec.write(content, parts.append)
        except EncodeError as error:
            raise EncodeError(f"{self.field.name}: {error}") from None
        return b"".join(parts)


def read_tags(data: Data, position: int, budget: Budget) -> tuple[list[tuple[int, int, int]], int]:
    """Find the tagged fields at `position`: (tag, start, end) of each, in order. Raises FrameError, IndexError."""
    count, position = read_uvarint(data, position)
    if count * 2 > len(data) - position:
        raise FrameError(f"{count} tagged fields where {len(data) - position} bytes are left")
    budget[0] -= count
    if budget[0] < 0:
        raise FrameError("a message has more elements than the limit allows")
    places = []
    last = -1
    for _ in range(count):
        tag, position = read_uvarint(data, position)
        size, position = read_uvarint(data, position)
        if tag <= last:
            raise FrameError(f"tagged field {tag} after {last}; tags ascend")
        if size > len(data) - position:
            raise FrameError(f"tagged field {tag} of {size} bytes where {len(data) - position} are left")
        places.append((tag, position, position + size))
        last, position = tag, position + size
    return places, position


def write_tags(pieces: dict[int, bytes], append: Append) -> None:
    """Write tagged fields, {tag: bytes}. Raises EncodeError."""
    append(uvarint(len(pieces)))
    for tag in sorted(pieces):
        append(uvarint(tag))
        append(uvarint(len(pieces[tag])))
        append(pieces[tag])


def tagged_reader(read_plain: Reader, tagged: Mapping[int, TaggedField]) -> Reader:
    """The reader of a structure with tagged fields."""
    defaults = {known.field.name: known.field.default for known in tagged.values()}
    lists = tuple(name for name, default in defaults.items() if default == ())

    def read(data: Data, position: int, budget: Budget) -> tuple[Any, int]:
        value, position = read_plain(data, position, budget)
        if defaults:
            value.update(defaults)
            for name in lists:
                value[name] = []
        try:
            if data[position] == 0:
                return value, position + 1
            places, position = read_tags(data, position, budget)
        except IndexError:
            raise FrameError("the message ends before its tagged fields") from None
        for tag, start, end in places:
            known = tagged.get(tag)
            if known is None:
                value.setdefault(UNKNOWN_TAGS, {})[tag] = bytes(data[start:end])
            else:
                value[known.field.name] = known.read(data[start:end], budget)
        return value, position

    return read


def tagged_writer(write_plain: Writer, tagged: Mapping[int, TaggedField]) -> Writer:
    """The writer of a structure with tagged fields."""

    def write(value: Any, append: Append) -> None:
        write_plain(value, append)
        pieces: dict[int, bytes] = {}
        for tag, known in tagged.items():
            field = known.field
            content = value.get(field.name, field.default)
            if not field.is_default(content):
                pieces[tag] = known.encoded(content)
        unknown = value.get(UNKNOWN_TAGS)
        if unknown:
            _add_unknown(pieces, unknown, tagged)
        write_tags(pieces, append)

    return write


def _add_unknown(pieces: dict[int, bytes], unknown: Any, tagged: Mapping[int, TaggedField]) -> None:
    if not isinstance(unknown, dict):
        raise EncodeError(f"{UNKNOWN_TAGS}: must be a dict of bytes by tag, not {unknown!r:.40}")
    for tag, piece in unknown.items():
        if tag in tagged or not isinstance(tag, int) or not isinstance(piece, bytes):
            raise EncodeError(f"{UNKNOWN_TAGS}: {tag!r:.20} is the tag of a known field, or not an int with bytes")
        pieces[tag] = piece
