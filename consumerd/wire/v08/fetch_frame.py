"""FETCH of the usual shape, without a walk through all fields: requests to brokers since 2.7, and responses.

Strategy: a consumer sends one after each response, and few partitions are named in both. Nearly all of their fields
have a fixed width. A body with other fields, many partitions or anything that does not fit is left to the codec of all
APIs, which writes the same bytes or names the error. So is a response with tagged fields or aborted transactions, or
that is invalid: the codec reads the same fields, or says what is wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from consumerd.base.native import FetchParts
from consumerd.wire.errors import FrameError
from consumerd.wire.v08.fetch_session import SessionRequest
from consumerd.wire.v08.types import Data
from consumerd.wire.varint import read_uvarint

FETCH_KEY: Final = 1
#: The first version with compact arrays and tagged fields, and the first that names topics by their ids.
FIRST_VERSION: Final = 12
_IDS_SINCE: Final = 13
#: The last version with a replica id, and the id that consumers have.
_LAST_WITH_REPLICA: Final = 14
_NO_REPLICA: Final = struct.pack(">i", -1)
_FIELDS: Final = frozenset(
    {"max_wait_ms", "min_bytes", "max_bytes", "isolation_level", "session_id", "session_epoch", "topics"}
)
_OPTIONAL: Final = frozenset({"rack_id"})
_TOPIC: Final = frozenset({"topic", "topic_id", "partitions"})
_PARTITION: Final = frozenset(
    {"partition", "current_leader_epoch", "fetch_offset", "partition_max_bytes", "last_fetched_epoch"}
)
_HEADER: Final = struct.Struct(">hhih")
_HEAD: Final = struct.Struct(">iiibii")
#: A partition with the start of a follower's log, which a consumer has not, and the end of its tagged fields.
_ENTRY: Final = struct.Struct(">iiqiqix")
_NO_START: Final = -1
#: No partitions to forget.
_NOTHING_FORGOTTEN: Final = b"\x01"
#: Numbers that a varint of one byte has.
_SMALL: Final = range(127)
_UUID_BYTES: Final = 16


def fetch_frame(version: int, body: Mapping[str, Any], correlation_id: int, client_id: str | None) -> bytes | None:
    """The frame of a FETCH request as `encode_request` gives it; None for a body that is left to the codec."""
    if version < FIRST_VERSION or client_id is None:
        return None
    if body.keys() != _FIELDS and body.keys() - _OPTIONAL != _FIELDS:
        return None
    try:
        topics = []
        for topic in body["topics"]:
            entries = topic["partitions"]
            if topic.keys() != _TOPIC or any(each.keys() != _PARTITION for each in entries):
                return None
            packed = [
                _ENTRY.pack(
                    each["partition"], each["current_leader_epoch"], each["fetch_offset"],
                    each["last_fetched_epoch"], _NO_START, each["partition_max_bytes"],
                )
                for each in entries
            ]  # fmt: skip
            topics.append(_topic(version, topic["topic"], topic["topic_id"], packed))
        numbers = (
            body["max_wait_ms"], body["min_bytes"], body["max_bytes"], body["isolation_level"], body["session_id"],
            body["session_epoch"],
        )  # fmt: skip
        return _frame(version, correlation_id, client_id, numbers, topics, body.get("rack_id", ""))
    except (struct.error, KeyError, AttributeError, TypeError, UnicodeEncodeError):
        return None


def _topic(version: int, name: str, topic_id: bytes, entries: list[bytes]) -> bytes | None:
    """A topic of a request, with its partitions; None if it is too large."""
    named = topic_id if version >= _IDS_SINCE else name.encode()
    if len(entries) not in _SMALL or len(named) not in _SMALL:
        return None
    if version < _IDS_SINCE:
        named = bytes((len(named) + 1,)) + named
    elif len(named) != _UUID_BYTES:
        return None
    return b"".join((named, bytes((len(entries) + 1,)), *entries, b"\0"))


def _frame(
    version: int,
    correlation_id: int,
    client_id: str,
    numbers: tuple[int, int, int, int, int, int],
    topics: list[bytes | None],
    rack: str,
) -> bytes | None:
    """A whole frame, with `numbers` as the fields before the topics; None if a part of it is too large."""
    client, place = client_id.encode(), rack.encode()
    if len(topics) not in _SMALL or None in topics or len(place) not in _SMALL:
        return None
    parts: tuple[bytes, ...] = (
        _HEADER.pack(FETCH_KEY, version, correlation_id, len(client)),
        client,
        b"\0" if version > _LAST_WITH_REPLICA else b"\0" + _NO_REPLICA,
        _HEAD.pack(*numbers),
        bytes((len(topics) + 1,)),
        *filter(None, topics),
        _NOTHING_FORGOTTEN,
        bytes((len(place) + 1,)),
        place,
        b"\0",
    )
    return sum(map(len, parts)).to_bytes(4) + b"".join(parts)


class FetchLimits(NamedTuple):
    """What a request says of its response. `isolation_level`: 1 for messages of committed transactions only."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int


def session_frame(
    version: int, request: SessionRequest, limits: FetchLimits, rack: str, correlation_id: int, client_id: str | None
) -> bytes | None:
    """The frame of a request that names partitions of one topic at most, as `fetch_frame` gives it of its fields.

    None for one that is left to the codec.
    """
    session_id, epoch, named, forgotten, _ = request
    if version < FIRST_VERSION or client_id is None or forgotten:
        return None
    try:
        topics: list[bytes | None] = []
        if named:
            topic, topic_id, entries = named[0].topic, named[0].topic_id, []
            for name, number, offset, max_bytes, leader_epoch, own_id, last_epoch in named:
                if name != topic or own_id != topic_id:
                    return None
                entries.append(_ENTRY.pack(number, leader_epoch, offset, last_epoch, _NO_START, max_bytes))
            topics.append(_topic(version, topic, topic_id, entries))
        return _frame(version, correlation_id, client_id, (*limits, session_id, epoch), topics, rack)
    except (struct.error, UnicodeEncodeError):
        return None


#: After the correlation id and no tagged fields: the throttle time, the error and the session.
_RESPONSE: Final = struct.Struct(">4xxihi")
#: A partition up to its aborted transactions: those, null or none, have one byte; and the preferred replica.
_READ: Final = struct.Struct(">ihqqqBi")
#: The first version with the addresses of nodes.
_NODES_SINCE: Final = 16


#: An offset that the broker did not return.
_UNKNOWN: Final = -1
#: A record set may be a view if no more than this part of its response is something else.
_REST: Final = 16
#: What a response has of a partition, in the order of its fields: index, error, high watermark, last stable offset,
#: start of the log, 0 for aborted transactions that are null, preferred replica, records.
PartitionRow: TypeAlias = tuple[int, int, int, int, int, int, int, Data | None]


class FetchRows(NamedTuple):
    """A FETCH response. `topics`: the id (the name before version 13) of each, and the rows of its partitions."""

    throttle_time_ms: int
    error_code: int
    session_id: int
    topics: list[tuple[bytes | str, list[PartitionRow]]]


def fetch_parts(version: int, data: bytes, committed: bool, views: bool, /) -> FetchParts | None:
    """What a consumer reads of a FETCH response; None for one that is left to the codec.

    `committed`: the readable end is the last stable offset, if there is one.
    `views`: records may be views of the data, if these are hardly larger. The native codec has the same function.
    """
    rows = fetch_rows(version, memoryview(data) if views else data)
    if rows is None:
        return None
    throttle_time_ms, error_code, session_id, topics = rows
    parts = []
    for topic, found in topics:
        for index, error, high_watermark, stable, _, _, preferred, records in found:
            end = stable if committed and stable != _UNKNOWN else high_watermark
            parts.append((topic, index, error, end, preferred, alone(records) or b""))
    return throttle_time_ms, error_code, session_id, parts


def alone(data: Data | None) -> Data | None:
    """A record set that keeps little else in memory."""
    if isinstance(data, memoryview) and _REST * (len(data.obj) - len(data)) > len(data.obj):  # type: ignore[arg-type]
        return bytes(data)
    return data


def fetch_fields(version: int, data: Data) -> dict[str, Any] | None:
    """The fields of a FETCH response as `decode_response` gives them; None for one that is left to the codec."""
    rows = fetch_rows(version, data)
    if rows is None:
        return None
    throttle_time_ms, error_code, session_id, topics = rows
    name = "topic_id" if version >= _IDS_SINCE else "topic"
    fields = {
        "throttle_time_ms": throttle_time_ms,
        "error_code": error_code,
        "session_id": session_id,
        "responses": [
            {name: topic, "partitions": [_partition_fields(row) for row in parts]} for topic, parts in topics
        ],
    }
    return fields if version < _NODES_SINCE else fields | {"node_endpoints": []}


def _partition_fields(row: PartitionRow) -> dict[str, Any]:
    index, error, high_watermark, stable, start, aborted, replica, records = row
    return {
        "partition_index": index,
        "error_code": error,
        "high_watermark": high_watermark,
        "last_stable_offset": stable,
        "log_start_offset": start,
        "aborted_transactions": [] if aborted else None,
        "preferred_read_replica": replica,
        "records": records,
        "diverging_epoch": None,
        "current_leader": None,
        "snapshot_id": None,
    }


def fetch_rows(version: int, data: Data) -> FetchRows | None:
    """A FETCH response without a name for each field; None for one that is left to the codec."""
    if version < FIRST_VERSION:
        return None
    try:
        throttle_time_ms, error_code, session_id = _RESPONSE.unpack_from(data)
        topics, position = data[_RESPONSE.size], _RESPONSE.size + 1
        if data[4] or topics - 1 not in _SMALL:
            return None
        responses: list[tuple[bytes | str, list[PartitionRow]]] = []
        for _ in range(topics - 1):
            if version >= _IDS_SINCE:
                end = position + _UUID_BYTES
                topic: bytes | str = bytes(data[position:end])
            else:
                size, position = read_uvarint(data, position)
                if not size:
                    return None
                end = position + size - 1
                topic = str(data[position:end], "utf-8")
            count, position = data[end], end + 1
            if count - 1 not in _SMALL:
                return None
            rows, position = _partition_rows(data, position, count - 1)
            if rows is None or data[position]:
                return None
            position += 1
            responses.append((topic, rows))
        if data[position] or position + 1 != len(data):
            return None
    except (struct.error, IndexError, UnicodeDecodeError, FrameError):
        return None
    return FetchRows(throttle_time_ms, error_code, session_id, responses)


def _partition_rows(data: Data, position: int, count: int) -> tuple[list[PartitionRow] | None, int]:
    """The rows of a topic's partitions, and the position after them; None for what is left to the codec."""
    rows: list[PartitionRow] = []
    for _ in range(count):
        index, error, high_watermark, stable, start, aborted, replica = _READ.unpack_from(data, position)
        position += _READ.size
        if (size := data[position]) > _SMALL.stop:
            size, position = read_uvarint(data, position)
        else:
            position += 1
        end = position + size - 1 if size else position
        if aborted > 1 or data[end]:
            return None, end
        rows.append(
            (index, error, high_watermark, stable, start, aborted, replica, data[position:end] if size else None)
        )
        position = end + 1
    return rows, position
