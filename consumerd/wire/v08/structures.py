"""Structures of untagged fields: their reader and writer.

Strategy: neighbours of fixed width make a run, which one `struct` reads or writes. A value that has exactly the fields
of the version is written as it is; any other is first made complete, or refused, by `_Adjuster`. Errors gain the name
of the field at each level on their way out, so that the sentence names the path.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from consumerd.wire.errors import EncodeError, FrameError
from consumerd.wire.v08.schema import REQUIRED, Field
from consumerd.wire.v08.types import Append, Budget, Data, Reader, Writer

#: Key under which a structure's unknown tagged fields are kept, {tag: bytes}; never the name of a field.
UNKNOWN_TAGS = "_unknown_tags"

#: Before a structure that may be null.
_NULL, _PRESENT = b"\xff", b"\x01"


class FieldCodec(NamedTuple):
    """Both directions of one value; `smallest`: the fewest bytes that it can have."""

    read: Reader
    write: Writer
    smallest: int


class FixedWidthFields(NamedTuple):
    """Neighbours of fixed width."""

    names: tuple[str, ...]
    layout: struct.Struct


class SingleField(NamedTuple):
    """A field with a codec of its own."""

    name: str
    codec: FieldCodec


Step = FixedWidthFields | SingleField


def smallest_of(steps: Iterable[Step]) -> int:
    """The fewest bytes that `steps` can have."""
    return sum(step.layout.size if isinstance(step, FixedWidthFields) else step.codec.smallest for step in steps)


#: `at` is the number of the step that is under way, for the errors.
_READER = """
def read(data, position, budget):
    at = 0
    try:{steps}
        pass
    except FrameError as error:
        raise FrameError(NAMES[at] + ": " + str(error)) from None
    except ENDED:
        raise FrameError(NAMES[at] + ": the message ends before or within it") from None
    return {{{items}}}, position
"""


def structure_reader(steps: Sequence[Step]) -> Reader:
    """The reader of a structure: a dict by the names of its fields.

    It is made as source, as `collections.namedtuple` makes its methods: a loop over the steps takes twice as long.
    """
    names = [step.names[0] if isinstance(step, FixedWidthFields) else step.name for step in steps]
    scope: dict[str, Any] = {"FrameError": FrameError, "ENDED": (struct.error, IndexError), "NAMES": names}
    lines, items = [], []
    for at, step in enumerate(steps):
        if isinstance(step, FixedWidthFields):
            values = [f"value_{at}_{number}" for number in range(len(step.names))]
            scope[f"unpack_{at}"] = step.layout.unpack_from
            lines += [f"{', '.join(values)}, = unpack_{at}(data, position)", f"position += {step.layout.size}"]
            items += [f"{name!r}: {value}" for name, value in zip(step.names, values, strict=True)]
        else:
            scope[f"read_{at}"] = step.codec.read
            lines.append(f"value_{at}, position = read_{at}(data, position, budget)")
            items.append(f"{step.name!r}: value_{at}")
        lines.append(f"at = {at + 1}")
    exec(_READER.format(steps="".join(f"\n        {line}" for line in lines), items=", ".join(items)), scope)  # nosec B102  # noqa: S102
    read: Reader = scope["read"]
    return read


def rows_reader(run: FixedWidthFields, count: Reader) -> Reader:
    """The reader of an array of structures that are one run each: all rows in one sweep."""
    names, layout = run

    def read(data: Data, position: int, budget: Budget) -> tuple[Any, int]:
        length, position = count(data, position, budget)
        if length is None:
            return None, position
        end = position + length * layout.size
        return [dict(zip(names, row, strict=True)) for row in layout.iter_unpack(data[position:end])], end

    return read


def nullable_structure(codec: FieldCodec) -> FieldCodec:
    """The codec of a structure that may be null: a byte before it is -1 for null, and 1 otherwise."""

    def read(data: Data, position: int, budget: Budget) -> tuple[Any, int]:
        marker = data[position]
        if marker == _NULL[0]:
            return None, position + 1
        if marker != _PRESENT[0]:
            raise FrameError(f"a structure begins with the byte {marker}; expected 1, or 255 for null")
        return codec.read(data, position + 1, budget)

    def write(value: Any, append: Append) -> None:
        append(_NULL if value is None else _PRESENT)
        if value is not None:
            codec.write(value, append)

    return FieldCodec(read, write, 1)


def structure_writer(steps: Sequence[Step], fields: Iterable[Field], version: int, *, tags: bool) -> Writer:
    """The writer of a structure. `fields`: those of all versions; `tags`: whether it may have tagged fields."""
    adjuster = _Adjuster(fields, version, tags=tags)
    known = adjuster.known
    parts: list[tuple[str, Callable[[Any], Any], struct.Struct | None, Any]] = [
        (step.names[0], _getter(step.names), step.layout, step)
        if isinstance(step, FixedWidthFields)
        else (step.name, itemgetter(step.name), None, step.codec.write)
        for step in steps
    ]

    def write(value: Any, append: Append) -> None:
        if not isinstance(value, dict):
            raise EncodeError(f"must be a dict of fields, not {value!r:.40}")
        if value.keys() != known:
            value = adjuster.adjust(value)
        name, rest = "", None
        try:
            for name, get, layout, rest in parts:  # noqa: B007  # the errors name it
                if layout is not None:
                    append(layout.pack(*get(value)))
                else:
                    rest(get(value), append)
        except EncodeError as error:
            raise EncodeError(f"{name}: {error}") from None
        except struct.error:
            assert isinstance(rest, FixedWidthFields)
            raise _misfit(rest, value) from None

    return write


def _getter(names: tuple[str, ...]) -> Callable[[Any], Any]:
    if len(names) > 1:
        return itemgetter(*names)
    (name,) = names
    return lambda value: (value[name],)


def _misfit(run: FixedWidthFields, value: dict[str, Any]) -> EncodeError:
    """The error that names which number of a run does not fit."""
    for name, letter in zip(run.names, run.layout.format[1:], strict=True):
        try:
            struct.pack(f">{letter}", value[name])
        except struct.error:
            bits = 8 * struct.calcsize(f">{letter}")
            return EncodeError(f"{name}: {value[name]!r:.40} is not an integer of {bits} bits")
    raise AssertionError("every number fits by itself")


class _Adjuster:
    """Makes a value have exactly the fields of a version: defaults for what it lacks, without what may be ignored."""

    __slots__ = ("_defaults", "_kept", "_others", "_tags", "_version", "known")

    def __init__(self, fields: Iterable[Field], version: int, *, tags: bool) -> None:
        fields = tuple(fields)
        own = {field.name: field for field in fields if field.in_version(version)}
        self.known = frozenset(own)
        self._version = version
        self._tags = tags
        self._kept = self.known | {UNKNOWN_TAGS} if tags else self.known
        self._defaults = {name: field.default for name, field in own.items() if field.default is not REQUIRED}
        self._others = {field.name: field for field in fields if field.name not in own}

    def adjust(self, value: dict[str, Any]) -> dict[str, Any]:
        strange = value.keys() - self.known
        if strange:
            for name in strange:
                self._check_other(name, value[name])
            value = {name: content for name, content in value.items() if name in self._kept}
        complete = self._defaults | value
        if not complete.keys() >= self.known:
            missing = ", ".join(sorted(self.known - complete.keys()))
            raise EncodeError(f"{missing}: is required")
        return complete

    def _check_other(self, name: str, content: Any) -> None:
        """Refuse a field that this version does not have, unless nothing is lost without it."""
        if name == UNKNOWN_TAGS:
            if content and not self._tags:
                raise EncodeError(f"{name}: version {self._version} has no tagged fields")
            return
        field = self._others.get(name)
        if field is None:
            raise EncodeError(f"{name}: no version has a field of this name")
        if not field.ignorable and not field.is_default(content):
            raise EncodeError(
                f"{name}: version {self._version} does not have this field, and {content!r:.40} cannot be left out"
            )
