"""Fetching messages of partitions from the broker that leads them (FETCH). One attempt.

Strategy: one request for all partitions, in the highest version that both sides have. Since version 13 topics are named
by id; where the id of one is unknown (brokers before 2.8 have none) version 12 names them. Fields that a version does
not have are left out by the codec. A request may be part of a fetch session (`consumerd.wire.v08.fetch_session`).
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Collection, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from consumerd.base import native as native_codec
from consumerd.net.client.channel import Channel
from consumerd.net.errors import BadFrameError
from consumerd.wire.v08.apis import FETCH
from consumerd.wire.v08.fetch_frame import FetchLimits, alone, fetch_parts, session_frame
from consumerd.wire.v08.fetch_session import NO_SESSION_ID, PartitionFetch, Place, SessionRequest, without_session
from consumerd.wire.v08.messages import encode_request
from consumerd.wire.v08.schema import NO_UUID
from consumerd.wire.v08.throttle import silence

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import (
        FetchRequest,
        FetchRequestPartition,
        FetchResponse,
        FetchResponsePartition,
    )

_T = TypeVar("_T")
#: The last version that names topics and not their ids.
LAST_WITH_NAMES: Final = 12
#: The first version in which the broker compares the reader's log with its own (KIP-595).
LAST_EPOCH_SINCE: Final = 12
#: The value of an unknown offset or epoch.
_UNKNOWN: Final = -1


class FetchedPartition(NamedTuple):
    """One partition of a response. `error`: its code, 0 for none. `data`: bytes, or with `views` a view of bytes.

    `readable_end`: the end of the readable messages: those that are replicated and, with `read_committed`, of
    transactions that have ended; -1 for unknown. `aborted`: (producer id, first offset) of aborted transactions.
    `diverged`: the broker's log is not the one that `last_epoch` is of, and there is no data. `preferred`: the id of a
    broker with a nearer replica to read from, and no data; -1 for none.
    """

    error: int
    data: bytes | memoryview
    readable_end: int
    aborted: tuple[tuple[int, int], ...]
    diverged: bool = False
    preferred: int = _UNKNOWN


class FetchedPartitions(NamedTuple):
    """A response. `error`: the code for all of it, 0 for none. `session_id`: that of its fetch session, 0 for none.

    `silence`: seconds for which the broker wants no other request, because of a quota; a response without any
    partitions is then an answer, too.
    """

    error: int
    silence: float
    partitions: Mapping[Place, FetchedPartition]
    session_id: int = NO_SESSION_ID

    @property
    def throttled(self) -> bool:
        """Whether a quota may have held messages back."""
        return self.silence > 0


#: Of their fields, without calls of Python code.
_fetched_partition: Final = functools.partial(tuple.__new__, FetchedPartition)
_made_response: Final = functools.partial(tuple.__new__, FetchedPartitions)
_made_limits: Final = functools.partial(tuple.__new__, FetchLimits)


async def fetch_partitions(
    channel: Channel,
    partitions: Collection[PartitionFetch] | SessionRequest,
    *,
    max_bytes: int,
    max_wait: float = 0.0,
    min_bytes: int = 0,
    read_committed: bool = False,
    rack: str = "",
    max_response: int | None = None,
    timeout: float | None = None,
    views: bool = False,
    received: Callable[[FetchedPartitions], object] | None = None,
) -> FetchedPartitions:
    """Fetch from each partition; the broker answers with an error where it does not lead.

    `partitions`: also the next request of a fetch session; the broker may then leave out those without anything new.
    The broker waits up to `max_wait` seconds for `min_bytes`; `timeout` (seconds) includes that. `read_committed`:
    only messages of committed transactions. `rack`: ours, by which a leader since 2.4 may name a nearer replica; empty
    for none. `views`: record sets may be views of the response, which they keep in memory, if that is hardly larger.
    `received`, which needs a `timeout`: called with the response as soon as it is here, where possible by the reader of
    the connection, and a turn of the loop before this returns; what it raises is raised here. Raises as `Channel.call`,
    and BadFrameError for a partition that comes twice; the connection is closed then.
    """
    request = partitions if isinstance(partitions, SessionRequest) else without_session(partitions)
    version = channel.versions.pick(FETCH, at_most=LAST_WITH_NAMES if NO_UUID in request.topics else None)
    limits = _made_limits((round(max_wait * 1000), min_bytes, max_bytes, int(read_committed)))

    def read(answer: FetchResponse | FetchedPartitions) -> FetchedPartitions:
        if isinstance(answer, FetchedPartitions):
            return answer
        return _fetched_partitions(channel, version, request, answer, read_committed=read_committed)

    if received is not None and timeout is not None:
        answered: asyncio.Future[FetchedPartitions] = asyncio.get_running_loop().create_future()
        settle = functools.partial(_settle, answered, read, received)
        prepared: Any = _UsualFetch(version, request, limits, rack, views)
        if channel.post(FETCH, prepared, settle, version=version, timeout=timeout, views=views):
            return await answered
    body = _body(version, request, limits, rack)
    fetched = read(
        await channel.call(FETCH, body, version=version, max_response=max_response, timeout=timeout, views=views)
    )
    if received is not None:
        received(fetched)
        await asyncio.sleep(0)  # those that `received` woke up have their turn before the caller, as above
    return fetched


class _UsualFetch:
    """A request whose response is read in one step, if it is of the usual shape; a `PreparedRequest`."""

    __slots__ = ("_limits", "_rack", "_request", "_version", "_views")

    def __init__(self, version: int, request: SessionRequest, limits: FetchLimits, rack: str, views: bool) -> None:
        self._version = version
        self._request = request
        self._limits = limits
        self._rack = rack
        self._views = views

    def encode(self, correlation_id: int, client_id: str | None) -> bytes:
        """The whole frame. Raises EncodeError."""
        version, request = self._version, self._request
        frame = session_frame(version, request, self._limits, self._rack, correlation_id, client_id)
        if frame is not None:
            return frame
        body = _body(version, request, self._limits, self._rack)
        return encode_request(FETCH, version, body, correlation_id=correlation_id, client_id=client_id)

    def decode(self, data: bytes) -> FetchedPartitions | None:
        """What `_fetched_partitions` makes of the fields; None if there is anything that it would not accept."""
        read = fetch_parts if (codec := native_codec.in_use) is None else codec.fetch_parts
        response = read(self._version, data, self._limits.isolation_level > 0, self._views)
        if response is None:
            return None
        throttle_time_ms, error, session_id, parts = response
        topics = self._request.topics
        found: dict[Place, FetchedPartition] = {}
        for topic, index, code, end, preferred, records in parts:
            name = topic if isinstance(topic, str) else topics.get(topic)
            if name is None:
                continue
            if (place := (name, index)) in found:
                return None
            found[place] = _fetched_partition((code, records, end, (), False, preferred))
        pause = silence(FETCH, self._version, {"throttle_time_ms": throttle_time_ms}) if throttle_time_ms else 0.0
        return _made_response((error, pause, found, session_id))


def _settle(
    answered: asyncio.Future[FetchedPartitions],
    read: Callable[[FetchResponse], FetchedPartitions],
    received: Callable[[FetchedPartitions], object],
    answer: FetchResponse | FetchedPartitions | Exception,
) -> None:
    """Read a response, unless its request was abandoned."""
    if answered.done():
        return
    try:
        if isinstance(answer, Exception):
            answered.set_exception(answer)
        else:
            fetched = answer if isinstance(answer, FetchedPartitions) else read(answer)
            received(fetched)
            answered.set_result(fetched)
    except Exception as error:
        answered.set_exception(error)


def _fetched_partitions(
    channel: Channel, version: int, request: SessionRequest, answer: FetchResponse, *, read_committed: bool
) -> FetchedPartitions:
    """What a response says. Raises BadFrameError, which ends the connection."""
    found: dict[Place, FetchedPartition] = {}
    for topic in answer["responses"]:
        name = topic["topic"] if version <= LAST_WITH_NAMES else request.topics.get(topic["topic_id"])
        if name is None:  # a topic that was not requested
            continue
        for part in topic["partitions"]:
            place = name, part["partition_index"]
            if place in found:
                channel.abort()
                raise BadFrameError(
                    f"broker {channel.address} sent {name}/{part['partition_index']} twice in a FETCH response",
                    blamed=True,
                )
            found[place] = _fetched(part, read_committed=read_committed)
    error, session_id = answer.get("error_code", 0), answer.get("session_id", NO_SESSION_ID)
    return FetchedPartitions(error, silence(FETCH, version, answer), found, session_id)


def _body(version: int, request: SessionRequest, limits: FetchLimits, rack: str) -> FetchRequest:
    """The fields of a request, as the codec of all APIs has them."""
    body: FetchRequest = {
        "max_wait_ms": limits.max_wait_ms,
        "min_bytes": limits.min_bytes,
        "max_bytes": limits.max_bytes,
        "isolation_level": limits.isolation_level,
        "session_id": request.session_id,
        "session_epoch": request.epoch,
        "topics": [
            {"topic": topic, "topic_id": topic_id, "partitions": parts}
            for topic, topic_id, parts in _by_topic(
                request.named, _entry_with_epoch if version >= LAST_EPOCH_SINCE else _entry
            )
        ],
    }
    if rack:
        body["rack_id"] = rack
    if request.forgotten:
        numbers: Callable[[PartitionFetch], int] = attrgetter("partition")
        body["forgotten_topics_data"] = [
            {"topic": topic, "topic_id": topic_id, "partitions": parts}
            for topic, topic_id, parts in _by_topic(request.forgotten, numbers)
        ]
    return body


def _by_topic(
    partitions: Collection[PartitionFetch], make: Callable[[PartitionFetch], _T]
) -> list[tuple[str, bytes, list[_T]]]:
    """What is said of each partition, by topic, in the order of the first partition of each."""
    by_topic: dict[tuple[str, bytes], list[_T]] = {}
    for each in partitions:
        by_topic.setdefault((each.topic, each.topic_id), []).append(make(each))
    return [(topic, topic_id, parts) for (topic, topic_id), parts in by_topic.items()]


def _entry(each: PartitionFetch) -> FetchRequestPartition:
    return {
        "partition": each.partition,
        "current_leader_epoch": each.leader_epoch,
        "fetch_offset": each.offset,
        "partition_max_bytes": each.max_bytes,
    }


def _entry_with_epoch(each: PartitionFetch) -> FetchRequestPartition:
    return {
        "partition": each.partition,
        "current_leader_epoch": each.leader_epoch,
        "fetch_offset": each.offset,
        "partition_max_bytes": each.max_bytes,
        "last_fetched_epoch": each.last_epoch,
    }


def _fetched(part: FetchResponsePartition, *, read_committed: bool) -> FetchedPartition:
    end = part["high_watermark"]
    aborted: tuple[tuple[int, int], ...] = ()
    if read_committed:
        if (stable := part.get("last_stable_offset", _UNKNOWN)) != _UNKNOWN:
            end = stable
        found = part.get("aborted_transactions") or ()
        aborted = tuple((each["producer_id"], each["first_offset"]) for each in found)
    diverged = part.get("diverging_epoch") is not None
    preferred = part.get("preferred_read_replica", _UNKNOWN)
    return FetchedPartition(part["error_code"], alone(part["records"]) or b"", end, aborted, diverged, preferred)
