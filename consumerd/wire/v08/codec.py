"""Fields -> a reader and a writer: the one codec of all APIs.

Strategy: each version of each message is compiled once, when it is first used, to closures: `types` reads and writes
single values, `structures` what stands side by side; tagged fields, which end structures of flexible versions, are
here. Messages are plain dicts by the names of the fields: a dict is made as fast as a named tuple, can lack what a
version lacks, and prints as JSON.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cache
from itertools import groupby
from typing import Any, NamedTuple

from consumerd.wire.errors import EncodeError, FrameError
from consumerd.wire.v08 import types
from consumerd.wire.v08.schema import Api, Direction, Field, FieldType
from consumerd.wire.v08.structures import (
    UNKNOWN_TAGS,
    FieldCodec,
    FixedWidthFields,
    SingleField,
    Step,
    nullable_structure,
    rows_reader,
    smallest_of,
    structure_reader,
    structure_writer,
)
from consumerd.wire.v08.types import Append, Budget, Data, Reader, Writer
from consumerd.wire.varint import read_uvarint, uvarint

# Tagged fields: what ends every structure of a flexible version.
#
# Strategy: a count, then for each field its tag, its size and its bytes, in ascending order of tags. A field that is
# not there has its default, and one that is at its default is not written. Tags without a field here come from newer
# brokers: they are kept as bytes and written again.


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


@cache
def codec_of(api: Api[Any, Any], direction: Direction, version: int) -> FieldCodec:
    """The codec of one message without its header. Raises UnsupportedVersionError."""
    api.check(version)
    fields = api.request if direction == "request" else api.response
    return _structure(fields, version, flexible=api.is_flexible(version))


def _structure(fields: tuple[Field, ...], version: int, *, flexible: bool) -> FieldCodec:
    own = [field for field in fields if field.in_version(version)]
    steps = _steps([field for field in own if field.tag is None], version, flexible=flexible)
    read = structure_reader(steps)
    write = structure_writer(steps, fields, version, tags=flexible)
    if not flexible:
        return FieldCodec(read, write, smallest_of(steps))
    tagged = {
        field.tag: TaggedField(field, _value(field, version, flexible=True)) for field in own if field.tag is not None
    }
    return FieldCodec(tagged_reader(read, tagged), tagged_writer(write, tagged), smallest_of(steps) + 1)


def _steps(fields: list[Field], version: int, *, flexible: bool) -> list[Step]:
    steps: list[Step] = []
    for fixed, neighbours in groupby(fields, lambda field: field.type in types.FORMATS):
        if fixed:
            steps.append(_run(list(neighbours)))
        else:
            steps += [SingleField(each.name, _value(each, version, flexible=flexible)) for each in neighbours]
    return steps


def _run(fields: list[Field]) -> FixedWidthFields:
    letters = "".join(types.FORMATS[field.type] for field in fields)
    return FixedWidthFields(tuple(field.name for field in fields), struct.Struct(f">{letters}"))


def _value(field: Field, version: int, *, flexible: bool) -> FieldCodec:
    if field.type is FieldType.ARRAY:
        return _array(field, version, flexible=flexible)
    if field.type is FieldType.STRUCT:
        assert isinstance(field.of, tuple)
        structure = _structure(field.of, version, flexible=flexible)
        return nullable_structure(structure) if field.null_in(version) else structure
    return _single(field.type, nullable=field.null_in(version), compact=flexible)


def _single(kind: FieldType, *, nullable: bool, compact: bool) -> FieldCodec:
    if kind in types.FORMATS:
        return _number(types.FORMATS[kind])
    if kind is FieldType.UUID:
        return FieldCodec(types.read_uuid, types.write_uuid, types.UUID_SIZE)
    return FieldCodec(
        types.sized_reader(kind, nullable=nullable, compact=compact),
        types.sized_writer(kind, nullable=nullable, compact=compact),
        1 if compact else 2 if kind is FieldType.STRING else 4,
    )


def _number(letter: str) -> FieldCodec:
    layout = struct.Struct(f">{letter}")

    def read(data: Data, position: int, _budget: Budget) -> tuple[Any, int]:
        return layout.unpack_from(data, position)[0], position + layout.size

    def write(value: Any, append: Append) -> None:
        try:
            append(layout.pack(value))
        except struct.error:
            raise EncodeError(f"{value!r:.40} is not an integer of {8 * layout.size} bits") from None

    return FieldCodec(read, write, layout.size)


def _array(field: Field, version: int, *, flexible: bool) -> FieldCodec:
    nullable = field.null_in(version)
    smallest = 1 if flexible else 4
    if isinstance(field.of, FieldType):
        element = _single(field.of, nullable=False, compact=flexible)
    else:
        element = _structure(field.of, version, flexible=flexible)
    count = types.count_reader(element.smallest, nullable=nullable, compact=flexible)
    write_count = types.count_writer(nullable=nullable, compact=flexible)
    if isinstance(field.of, FieldType) and field.of in types.FORMATS:
        letter = types.FORMATS[field.of]
        return FieldCodec(types.numbers_reader(letter, count), types.numbers_writer(letter, write_count), smallest)
    write = types.elements_writer(element.write, write_count)
    if isinstance(field.of, tuple) and not flexible:
        steps = _steps([part for part in field.of if part.in_version(version)], version, flexible=False)
        if len(steps) == 1 and isinstance(steps[0], FixedWidthFields):
            return FieldCodec(rows_reader(steps[0], count), write, smallest)
    return FieldCodec(types.elements_reader(element.read, count), write, smallest)
