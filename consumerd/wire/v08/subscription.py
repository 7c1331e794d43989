"""The values that members exchange through JoinGroup and SyncGroup (protocol type "consumer").

Strategy: two small structures, written and read here field by field: the broker passes them on as opaque bytes, and
they have a version of their own in front. A reader takes from a later version what it knows and ignores the rest, as
the JVM's does; each version only adds at the end. Version 1 adds the partitions that the member
owns, 2 the generation in which it got them, 3 the rack; assignments have not changed. Lengths are checked against what
is left before anything is made of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from consumerd.wire.errors import EncodeError, FrameError

#: The `protocol_type` of JoinGroup.
PROTOCOL_TYPE: Final = "consumer"
#: The latest version of both structures that is known here.
LATEST_VERSION: Final = 3
#: The generation of a member that has none yet.
NO_GENERATION: Final = -1

#: Partitions of each topic, in the order in which they are written.
TopicPartitions: TypeAlias = "tuple[tuple[str, tuple[int, ...]], ...]"

_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    """The subscription of a member: the `member_metadata` of JoinGroup, one for each assignor that it supports.

    `user_data` belongs to the assignor. `owned`, `generation` and `rack` are written from versions 1, 2 and 3 on.
    """

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: TopicPartitions = ()
    generation: int = NO_GENERATION
    rack: str | None = None
    version: int = 0

    def encode(self) -> bytes:
        """The bytes. Raises EncodeError for a version that is not known, and for what no field can hold."""
        _check_version(self.version)
        pieces = [_int16(self.version), _int32(len(self.topics)), *map(_string, self.topics), _bytes(self.user_data)]
        if self.version >= 1:
            pieces += _topic_partitions(self.owned)
        if self.version >= 2:
            pieces.append(_int32(self.generation))
        if self.version >= 3:
            pieces.append(_int16(-1) if self.rack is None else _string(self.rack))
        return b"".join(pieces)


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """The assignment of a member: the `member_assignment` of SyncGroup."""

    partitions: TopicPartitions
    user_data: bytes | None = None
    version: int = 0

    def encode(self) -> bytes:
        """The bytes. Raises EncodeError for a version that is not known, and for what no field can hold."""
        _check_version(self.version)
        return b"".join((_int16(self.version), *_topic_partitions(self.partitions), _bytes(self.user_data)))


def decode_metadata(data: bytes) -> MemberMetadata:
    """Read a member's metadata, of any version. Raises FrameError."""
    fields = _Fields(data, "metadata")
    version = fields.version()
    topics = tuple(fields.string() for _ in range(fields.count(2)))
    # Before 0.10 some clients left out the user data altogether.
    user_data = fields.bytes() if fields.left else None
    owned = fields.topic_partitions() if version >= 1 else ()
    generation = fields.int32() if version >= 2 else NO_GENERATION
    rack = fields.nullable_string() if version >= 3 else None
    return MemberMetadata(topics, user_data, owned, generation, rack, version)


def decode_assignment(data: bytes) -> MemberAssignment:
    """Read a member's assignment, of any version. Raises FrameError.

    An empty text means: without partitions; what the coordinator gives a member that the leader left out.
    """
    if not data:
        return MemberAssignment(())
    fields = _Fields(data, "assignment")
    version = fields.version()
    partitions = fields.topic_partitions()
    return MemberAssignment(partitions, fields.bytes() if fields.left else None, version)


def _check_version(version: int) -> None:
    if not 0 <= version <= LATEST_VERSION:
        raise EncodeError(
            f"version {version} of the consumer protocol is not supported; versions 0 to {LATEST_VERSION} are"
        )


def _int16(value: int) -> bytes:
    return _INT16.pack(value)


def _int32(value: int) -> bytes:
    try:
        return _INT32.pack(value)
    except struct.error:
        raise EncodeError(f"{value} does not fit into 32 bits") from None


def _string(text: str) -> bytes:
    try:
        written = text.encode()
        return _INT16.pack(len(written)) + written
    except (UnicodeEncodeError, struct.error):
        raise EncodeError(f"{text[:40]!r} cannot be encoded: must be UTF-8 text of at most 32767 bytes") from None


def _bytes(data: bytes | None) -> bytes:
    return _int32(-1) if data is None else _int32(len(data)) + data


def _topic_partitions(topics: TopicPartitions) -> Iterable[bytes]:
    pieces = [_int32(len(topics))]
    for topic, partitions in topics:
        pieces += (_string(topic), _int32(len(partitions)), *map(_int32, partitions))
    return pieces


class _Fields:
    """A reader over the bytes that another member wrote. Everything raises FrameError."""

    __slots__ = ("_data", "_position", "_what")

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._position = 0
        self._what = what

    @property
    def left(self) -> int:
        """The number of remaining bytes."""
        return len(self._data) - self._position

    def _take(self, size: int) -> bytes:
        if size > self.left:
            raise FrameError(f"a member's {self._what} ends {size - self.left} bytes before a field of it")
        start, self._position = self._position, self._position + size
        return self._data[start : self._position]

    def _int16(self) -> int:
        return int.from_bytes(self._take(2), signed=True)

    def int32(self) -> int:
        return int.from_bytes(self._take(4), signed=True)

    def version(self) -> int:
        """The version, or the latest one that is known here, if it is later."""
        version = self._int16()
        if version < 0:
            raise FrameError(f"a member's {self._what} has version {version}")
        return min(version, LATEST_VERSION)

    def count(self, smallest: int) -> int:
        """The length of an array whose entries have `smallest` bytes at least; null counts as empty."""
        length = self.int32()
        if length * smallest > self.left or length < -1:
            raise FrameError(f"a member's {self._what} claims {length} entries in {self.left} bytes")
        return max(length, 0)

    def nullable_string(self) -> str | None:
        size = self._int16()
        if size == -1:
            return None
        if size < 0:
            raise FrameError(f"a member's {self._what} has a text of {size} bytes")
        try:
            return self._take(size).decode()
        except UnicodeDecodeError:
            raise FrameError(f"a member's {self._what} has a text that is not UTF-8") from None

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise FrameError(f"a member's {self._what} has null for the name of a topic")
        return text

    def bytes(self) -> bytes | None:
        size = self.int32()
        if size < -1:
            raise FrameError(f"a member's {self._what} has user data of {size} bytes")
        return None if size == -1 else self._take(size)

    def topic_partitions(self) -> TopicPartitions:
        found = []
        for _ in range(self.count(6)):
            topic = self.string()
            found.append((topic, tuple(self.int32() for _ in range(self.count(4)))))
        return tuple(found)
