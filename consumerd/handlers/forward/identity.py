"""The identity of a forwarded message at its source, and its checksum, as record headers.

Strategy: one header for each part, all with the prefix `consumerd.source.`, their values in ASCII so that every tool
shows them: topic, broker, partition, offset (of the outermost message), index (of the leaf in a compressed one), crc
(CRC-32 of the payload, 8 hex digits, as the old log had it; none for a null payload). Partitions of 0.8 and later have
no broker, and no header for it. `topic_id` and `leader_epoch` tell the log that the offset is of, where the source's
brokers tell them. `cluster` is there where the forwarder was given a name for the source.

Headers that the message had already stay in front. A message that was forwarded more than once has several identities,
one behind the other, and the last one counts as a whole: a field of an earlier identity that the last one lacks
(a broker, a topic id, a name) does not belong to it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from consumerd.base.partition import NO_BROKER, UNKNOWN_LOG, LogId, TopicPartition
from consumerd.wire.crc import crc32
from consumerd.wire.v08.records import Headers

#: The prefix of the names of the headers.
PREFIX: Final = "consumerd.source."
_CLUSTER, _TOPIC, _BROKER = PREFIX + "cluster", PREFIX + "topic", PREFIX + "broker"
_PARTITION, _OFFSET = PREFIX + "partition", PREFIX + "offset"
_INDEX, _CRC = PREFIX + "index", PREFIX + "crc"
_TOPIC_ID, _LEADER_EPOCH = PREFIX + "topic_id", PREFIX + "leader_epoch"
_INT64: Final = 1 << 63
_DIGITS: Final = 19


class SourceIdentity(NamedTuple):
    """The values of the headers. `crc`: of the original payload, None for a null one. `cluster`: None if unnamed.

    `log`: the log that the offset is of, as far as the source told.
    """

    partition: TopicPartition
    offset: int
    index: int  # type: ignore[assignment]  # the word of the protocol
    crc: int | None
    cluster: str | None = None
    log: LogId = UNKNOWN_LOG

    @property
    def place(self) -> tuple[int, int]:
        """Offset and index: grows from message to message of a partition."""
        return self.offset, self.index

    def __str__(self) -> str:
        named = "" if self.cluster is None else f" of source {self.cluster!r}"
        return f"{self.partition} offset {self.offset} index {self.index}{named}"


class SourceMark:
    """Makes the headers of one source partition's messages."""

    def __init__(self, partition: TopicPartition, cluster: str | None = None) -> None:
        same: list[tuple[str, bytes | None]] = [] if cluster is None else [(_CLUSTER, cluster.encode())]
        same.append((_TOPIC, partition.topic.encode()))
        if partition.broker != NO_BROKER:
            same.append((_BROKER, b"%d" % partition.broker))
        same.append((_PARTITION, b"%d" % partition.partition))
        self._of_partition = self._same = tuple(same)

    def read_from(self, log: LogId) -> None:
        """Make the headers of messages of `log` from now on."""
        reported: list[tuple[str, bytes | None]] = []
        if log.topic_id_text is not None:
            reported.append((_TOPIC_ID, log.topic_id_text.encode()))
        if log.leader_epoch is not None:
            reported.append((_LEADER_EPOCH, b"%d" % log.leader_epoch))
        self._same = (*self._of_partition, *reported)

    def headers(self, offset: int, index: int, payload: bytes | None) -> Headers:
        """The headers of one message."""
        here: Headers = (*self._same, (_OFFSET, b"%d" % offset), (_INDEX, b"%d" % index))
        return here if payload is None else (*here, (_CRC, b"%08x" % crc32(payload)))


def read_identity(headers: Headers) -> SourceIdentity | None:
    """The identity in headers; None where they have none, or an invalid one."""
    found = dict(headers)
    try:
        if len(found) < len(headers):
            found = dict(_last(headers))
        partition = _partition(found[_TOPIC], found.get(_BROKER, _NONE), found[_PARTITION])
        crc = _checksum(found[_CRC]) if _CRC in found else None
        cluster = found.get(_CLUSTER)
        name = None if cluster is None else cluster.decode()
        log = _log(found.get(_TOPIC_ID), found.get(_LEADER_EPOCH, _NONE))
        return SourceIdentity(partition, _number(found[_OFFSET]), _number(found[_INDEX]), crc, name, log)
    except (KeyError, ValueError):  # a UnicodeDecodeError is one
        return None


def _last(headers: Headers) -> Headers:
    """Return the last of several identities, which begins with its topic, or with its name and topic.

    Raises ValueError where there is none.
    """
    begin = max(number for number, (name, _) in enumerate(headers) if name == _TOPIC)
    return headers[begin - 1 if begin and headers[begin - 1][0] == _CLUSTER else begin :]


#: In the place of a header that is not there.
_NONE: Final = b""


@lru_cache(maxsize=4096)
def _partition(topic: bytes | None, broker: bytes | None, partition: bytes | None) -> TopicPartition:
    """The partition, cached, as few of them repeat. Raises ValueError."""
    if not topic:
        raise ValueError(topic)
    return TopicPartition(topic.decode(), NO_BROKER if broker == _NONE else _number(broker), _number(partition))


@lru_cache(maxsize=4096)
def _log(topic_id: bytes | None, leader_epoch: bytes | None) -> LogId:
    """The log, cached likewise. Raises ValueError."""
    text = None if topic_id is None else topic_id.decode()
    return LogId.from_text(text, None if leader_epoch == _NONE else _number(leader_epoch))


def _number(value: bytes | None) -> int:
    if value is None or len(value) > _DIGITS or not value.isdigit():
        raise ValueError(value)
    number = int(value)
    if number >= _INT64:
        raise ValueError(value)
    return number


_HEX: Final = frozenset(b"0123456789abcdef")


def _checksum(value: bytes | None) -> int:
    if value is None or len(value) != len("00000000") or not _HEX.issuperset(value):
        raise ValueError(value)
    return int(value, 16)
