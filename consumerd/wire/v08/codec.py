"""Fields -> a reader and a writer: the one codec of all APIs.

Strategy: each version of each message is compiled once, when it is first used, to closures: `types` reads and writes
single values, `structures` what stands side by side, `tagged` what ends structures of flexible versions. Messages are
plain dicts by the names of the fields: a dict is made as fast as a named tuple, can lack what a version lacks, and
prints as JSON.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

from consumerd.wire.errors import EncodeError
from consumerd.wire.v08 import types
from consumerd.wire.v08.schema import Api, Direction, Field, FieldType
from consumerd.wire.v08.structures import (
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
from consumerd.wire.v08.tagged import TaggedField, tagged_reader, tagged_writer
from consumerd.wire.v08.types import Append, Budget, Data


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
    run: list[Field] = []
    for field in fields:
        if field.type in types.FORMATS:
            run.append(field)
            continue
        if run:
            steps.append(_run(run))
            run = []
        steps.append(SingleField(field.name, _value(field, version, flexible=flexible)))
    if run:
        steps.append(_run(run))
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
