"""Fetching messages of partitions from the broker that leads them (FETCH). One attempt.

Strategy: one request for all partitions, in the highest version that both sides have. Since version 13 topics are named
by id; where the id of one is unknown (brokers before 2.8 have none) version 12 names them. Fields that a version does
not have are left out by the codec.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from consumerd.net import BadFrameError
from consumerd.wire.v08.apis import FETCH
from consumerd.wire.v08.schema import NO_UUID
from consumerd.wire.v08.throttle import silence

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from consumerd.client.channel import Channel
    from consumerd.client.offsets import Place

#: The last version that names topics and not their ids.
LAST_WITH_NAMES: Final = 12
#: The first version in which the broker compares the reader's log with its own (KIP-595).
LAST_EPOCH_SINCE: Final = 12
#: The value of an unknown offset or epoch.
_UNKNOWN: Final = -1
#: A record set may be a view if no more than this part of its response is something else.
_REST: Final = 16


class PartitionFetch(NamedTuple):
    """One partition of a request: about `max_bytes` from `offset` on.

    `leader_epoch`: the leader's, -1 for unknown. `topic_id`: NO_UUID for unknown. `last_epoch`: of the last message
    before `offset`, -1 for unknown; brokers since 2.7 compare it with their log.
    """

    topic: str
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int = _UNKNOWN
    topic_id: bytes = NO_UUID
    last_epoch: int = _UNKNOWN


class FetchedPartition(NamedTuple):
    """One partition of a response. `error`: its code, 0 for none. `data`: bytes, or with `views` a view of bytes.

    `readable_end`: the end of the readable messages: those that are replicated and, with `read_committed`, of
    transactions that have ended; -1 for unknown. `aborted`: (producer id, first offset) of aborted transactions.
    `diverged`: the broker's log is not the one that `last_epoch` is of, and there is no data.
    """

    error: int
    data: bytes | memoryview
    readable_end: int
    aborted: tuple[tuple[int, int], ...]
    diverged: bool = False


class FetchedPartitions(NamedTuple):
    """A response. `error`: the code for all of it, 0 for none.

    `silence`: seconds for which the broker wants no other request, because of a quota; a response without any
    partitions is then an answer, too.
    """

    error: int
    silence: float
    partitions: Mapping[Place, FetchedPartition]

    @property
    def throttled(self) -> bool:
        """Whether a quota may have held messages back."""
        return self.silence > 0


async def fetch_partitions(
    channel: Channel,
    partitions: Sequence[PartitionFetch],
    *,
    max_bytes: int,
    max_wait: float = 0.0,
    min_bytes: int = 0,
    read_committed: bool = False,
    max_response: int | None = None,
    timeout: float | None = None,
    views: bool = False,
) -> FetchedPartitions:
    """Fetch from each partition; the broker answers with an error where it does not lead.

    The broker waits up to `max_wait` seconds for `min_bytes`; `timeout` (seconds) includes that. `read_committed`:
    only messages of committed transactions. `views`: record sets may be views of the response, which they keep in
    memory, if that is hardly larger. Raises as `Channel.call`, and BadFrameError for a partition that comes
    twice; the connection is closed then.
    """
    names = {each.topic_id: each.topic for each in partitions}
    at_most = LAST_WITH_NAMES if NO_UUID in names else None
    version = channel.versions.pick(FETCH, at_most=at_most)
    by_topic: dict[tuple[str, bytes], list[dict[str, Any]]] = {}
    for each in partitions:
        entry = {
            "partition": each.partition,
            "current_leader_epoch": each.leader_epoch,
            "fetch_offset": each.offset,
            "max_bytes": each.max_bytes,
        }
        if version >= LAST_EPOCH_SINCE:
            entry["last_fetched_epoch"] = each.last_epoch
        by_topic.setdefault((each.topic, each.topic_id), []).append(entry)
    body = {
        "max_wait_time": round(max_wait * 1000),
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": int(read_committed),
        "topics": [
            {"topic": topic, "topic_id": topic_id, "partitions": entries}
            for (topic, topic_id), entries in by_topic.items()
        ],
    }
    answer = await channel.call(FETCH, body, version=version, max_response=max_response, timeout=timeout, views=views)
    found: dict[Place, FetchedPartition] = {}
    for topic in answer["responses"]:
        name = topic["topic"] if version <= LAST_WITH_NAMES else names.get(topic["topic_id"])
        if name is None:  # a topic that was not requested
            continue
        for part in topic["partition_responses"]:
            place = name, part["partition"]
            if place in found:
                channel.abort()
                raise BadFrameError(
                    f"broker {channel.address} sent {name}/{part['partition']} twice in a FETCH response", blamed=True
                )
            found[place] = _fetched(part, read_committed=read_committed)
    return FetchedPartitions(answer.get("error_code", 0), silence(FETCH, version, answer), found)


def _fetched(part: dict[str, Any], *, read_committed: bool) -> FetchedPartition:
    stable = part.get("last_stable_offset", _UNKNOWN)
    aborted = part.get("aborted_transactions") or () if read_committed else ()
    return FetchedPartition(
        part["error_code"],
        _alone(part["record_set"]) or b"",
        stable if read_committed and stable != _UNKNOWN else part["high_watermark"],
        tuple((each["producer_id"], each["first_offset"]) for each in aborted),
        part.get("diverging_epoch") is not None,
    )


def _alone(data: bytes | memoryview | None) -> bytes | memoryview | None:
    """A record set that keeps little else in memory."""
    if isinstance(data, memoryview) and _REST * (len(data.obj) - len(data)) > len(data.obj):  # type: ignore[arg-type]
        return bytes(data)
    return data
