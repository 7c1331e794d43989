"""The lines of one file of the `files` handler -> arrays of offsets, indexes and values, a bounded piece at a time.

Strategy: Arrow's JSON reader parses a piece of whole lines at once, and the result is checked in columns: the identity
that the directory names, offsets within the file's range, increasing positions. A piece that fails any check is read
again line by line, which is slower and tells which line is invalid and why. So valid files cost no Python per line, and
both ways return the same rows.

A line that cannot be read has no trustworthy offset. It gets the position after the line before it, as another index of
the same message: an identity that no message has, and the same at every reading.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
from collections.abc import Iterator
from typing import Any, BinaryIO, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

#: Bytes of lines that are read at once.
PIECE: Final = 4 << 20
#: The longest line: a message of the largest size that brokers take, in base64. Text with many escapes can be longer.
MAX_LINE: Final = 160 << 20

_NUMBERS: Final = ("broker", "partition", "offset", "index")
_MEMBERS: Final = pa.schema(
    [
        ("topic", pa.string()),
        *((name, pa.int64()) for name in _NUMBERS),
        ("payload", pa.string()),
        ("payload_base64", pa.string()),
    ]
)
_PARSE: Final = pa_json.ParseOptions(explicit_schema=_MEMBERS, unexpected_field_behavior="error")
_INT32: Final = 1 << 31


class ExpectedRange(NamedTuple):
    """The expectation from a file's path: the partition of its lines, and the range [start, end) of its log."""

    topic: str
    broker: int
    partition: int
    start: int
    end: int


class LineRows(NamedTuple):
    """Some lines in order. `offsets`: int64, `indexes`: int32, `values`: binary.

    `problems`: string, null for a line that is fine; None where all of them are.
    """

    offsets: pa.Array
    indexes: pa.Array
    values: pa.Array
    problems: pa.Array | None


class LineError(ValueError):
    """A line that is not a record of this file, with the reason."""


def read_rows(
    file: BinaryIO, expected: ExpectedRange, *, piece: int = PIECE, max_line: int = MAX_LINE
) -> Iterator[LineRows]:
    """All lines of `file`, in order. Never raises for its content; OSError comes through."""
    reader = _Reader(expected)
    for lines, flaw in _pieces(file, piece, max_line):
        if lines:
            yield reader.read(lines)
        if flaw is not None:
            yield reader.flawed(*flaw)


class _Flaw(NamedTuple):
    """Bytes that are not a line: as much as was kept of them, and a sentence."""

    raw: bytes | None
    problem: str


def _pieces(file: BinaryIO, piece: int, max_line: int) -> Iterator[tuple[bytes, _Flaw | None]]:
    """Whole lines, about `piece` bytes of them at once, each time with the incomplete line after them."""
    rest = b""
    while data := file.read(piece):
        end = data.rfind(b"\n") + 1
        if end:
            yield rest + data[:end], None
            rest = data[end:]
            continue
        rest += data
        if len(rest) > max_line:
            size, after = _skip_line(file, len(rest), piece)
            yield b"", _Flaw(None, f"a line of {size} bytes is longer than any message")
            rest = b""
            if after:
                end = after.rfind(b"\n") + 1
                yield after[:end], None
                rest = after[end:]
    if rest:
        yield b"", _Flaw(rest, "the file ends within a line")


def _skip_line(file: BinaryIO, size: int, piece: int) -> tuple[int, bytes]:
    """Read up to the next end of a line; return the length of the line, and the bytes read beyond it."""
    while data := file.read(piece):
        line, newline, after = data.partition(b"\n")
        size += len(line)
        if newline:
            return size, after
    return size, b""


class _Reader:
    """Turns lines to rows, and knows the position of the last one."""

    def __init__(self, expected: ExpectedRange) -> None:
        self._expected = expected
        #: (offset, index) of the last row; before the first one, what every position is above.
        self._last = (expected.start, -1)

    def read(self, lines: bytes) -> LineRows:
        rows = self._at_once(lines)
        if rows is None:
            rows = self._one_by_one(lines)
        self._last = (rows.offsets[-1].as_py(), rows.indexes[-1].as_py())
        return rows

    def flawed(self, raw: bytes | None, problem: str) -> LineRows:
        offset, index = self._last = (self._last[0], self._last[1] + 1)
        return LineRows(
            pa.array([offset], pa.int64()),
            pa.array([index], pa.int32()),
            pa.array([raw], pa.binary()),
            pa.array([problem], pa.string()),
        )

    def _at_once(self, lines: bytes) -> LineRows | None:
        options = pa_json.ReadOptions(use_threads=False, block_size=len(lines))
        try:
            table = pa_json.read_json(io.BytesIO(lines), read_options=options, parse_options=_PARSE)
            table.validate(full=True)  # that text is UTF-8
        except pa.ArrowInvalid:
            return None
        if table.num_rows != lines.count(b"\n"):
            return None
        found = {name: table[name].combine_chunks() for name in _MEMBERS.names}
        if not self._is_ours(found):
            return None
        values = _values(found["payload"], found["payload_base64"])
        return None if values is None else LineRows(found["offset"], found["index"].cast(pa.int32()), values, None)

    def _is_ours(self, found: dict[str, pa.Array]) -> bool:
        """Whether every row has the file's identity, and a position in it that is above the one before."""
        expected, offsets, indexes = self._expected, found["offset"], found["index"]
        if any(found[name].null_count for name in ("topic", *_NUMBERS)):
            return False
        first = (offsets[0].as_py(), indexes[0].as_py())
        if not (self._last < first and expected.start <= first[0] and offsets[-1].as_py() < expected.end):
            return False
        step = pc.subtract(offsets.slice(1), offsets.slice(0, len(offsets) - 1))
        rises = pc.greater(indexes.slice(1), indexes.slice(0, len(indexes) - 1))
        checks = (
            pc.equal(found["topic"], expected.topic),
            pc.equal(found["broker"], expected.broker),
            pc.equal(found["partition"], expected.partition),
            pc.and_(pc.greater_equal(indexes, 0), pc.less(indexes, _INT32)),
            pc.or_(pc.greater(step, 0), pc.and_(pc.equal(step, 0), rises)),
        )
        return all(pc.all(check, min_count=0).as_py() for check in checks)

    def _one_by_one(self, lines: bytes) -> LineRows:
        offsets: list[int] = []
        indexes: list[int] = []
        values: list[bytes] = []
        problems: list[str | None] = []
        last = self._last
        for line in lines.split(b"\n")[:-1]:
            try:
                offset, index, value = parse_line(line, self._expected, last)
                problem = None
            except LineError as error:
                offset, index, value, problem = last[0], last[1] + 1, line, str(error)
            last = (offset, index)
            offsets.append(offset)
            indexes.append(index)
            values.append(value)
            problems.append(problem)
        return LineRows(
            pa.array(offsets, pa.int64()),
            pa.array(indexes, pa.int32()),
            pa.array(values, pa.binary()),
            pa.array(problems, pa.string()) if any(problem is not None for problem in problems) else None,
        )


def _values(texts: pa.Array, encoded: pa.Array) -> pa.Array | None:
    """The payloads; None where a line has neither or both, or invalid base64."""
    plain = texts.cast(pa.binary())
    if not texts.null_count:
        return plain if encoded.null_count == len(encoded) else None
    if not pc.all(pc.xor(texts.is_valid(), encoded.is_valid())).as_py():
        return None
    try:
        decoded = [None if text is None else base64.b64decode(text, validate=True) for text in encoded.to_pylist()]
    except (binascii.Error, ValueError):
        return None
    return pc.coalesce(plain, pa.array(decoded, pa.binary()))


def parse_line(line: bytes, expected: ExpectedRange, last: tuple[int, int]) -> tuple[int, int, bytes]:
    """(offset, index, payload) of one line, given the position of the line before it. Raises LineError."""
    try:
        record = json.loads(line.decode(), object_pairs_hook=_members)
    except (ValueError, RecursionError) as error:
        raise LineError(f"the line is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise LineError("the line is not a JSON object")
    unknown = [name for name in record if name not in _MEMBERS.names]
    if unknown:
        raise LineError(f"the line has the field {unknown[0][:80]!r}, which is not a field of a record")
    for name, wanted in (("topic", expected.topic), ("broker", expected.broker), ("partition", expected.partition)):
        found = record.get(name)
        if type(found) is not type(wanted) or found != wanted:
            raise LineError(f"the line has {name} {str(found)[:80]!r}, and its directory {wanted!r}")
    position = (_number(record, "offset"), _number(record, "index"))
    if not expected.start <= position[0] < expected.end:
        raise LineError(f"offset {position[0]} is not within the file's range, {expected.start} to {expected.end}")
    if position[1] >= _INT32:
        raise LineError(f"index {position[1]} is out of range")
    if position <= last:
        raise LineError(f"offset {position[0]}, index {position[1]} does not follow offset {last[0]}, index {last[1]}")
    return *position, _payload(record)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a field occurs twice")
    return members


def _number(record: dict[str, Any], name: str) -> int:
    found = record.get(name)
    if type(found) is not int or found < 0:
        raise LineError(f"{name} is {str(found)[:80]!r}, not a whole number of at least 0")
    return found


def _payload(record: dict[str, Any]) -> bytes:
    text, encoded = record.get("payload"), record.get("payload_base64")
    if (text is None) == (encoded is None):
        raise LineError("the line must have exactly one of payload and payload_base64")
    if isinstance(text, str):
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            raise LineError(f"payload is not text: {error.reason}") from error
    if isinstance(encoded, str):
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError) as error:
            raise LineError(f"payload_base64 is not base64: {error}") from error
    raise LineError("the payload is not a string")
