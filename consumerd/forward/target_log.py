"""Reading partitions of the target front to back, for whoever wants to know what is there.

Strategy: plain FETCH requests over the connections that the client has, one after the other, asking for no waiting.
What comes is decoded with the offsets and headers it has; a message that is larger than what was asked for is asked for
again in its size. The range is fixed before: a log that grows meanwhile is read no further.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from consumerd.client import error_of
from consumerd.errors import BrokerError, CorruptDataError
from consumerd.net import BadFrameError
from consumerd.wire.v08.apis import FETCH, OFFSETS
from consumerd.wire.v08.records import BatchEnd, decode_records

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from consumerd.client import ClusterClient
    from consumerd.wire.v08.records import Record, RecordSet
    from consumerd.wire.v08.schema import Api

#: The last version that names topics and not their ids.
_LAST_FETCH: Final = 12
_ISOLATION_SINCE: Final = 4
_OFFSETS_ISOLATION_SINCE: Final = 2
_EARLIEST: Final = -2
_LATEST: Final = -1
_FETCH_BYTES: Final = 1 << 20
_MOST_BYTES: Final = 256 << 20


class Bounds(NamedTuple):
    """The first offset that is kept, and the one that the next message will have."""

    start: int
    end: int


class TargetLog:
    """The partitions of the cluster behind `client`. What transactions have not committed is read like the rest."""

    def __init__(self, client: ClusterClient, *, fetch_bytes: int = _FETCH_BYTES) -> None:
        self._client = client
        self._fetch_bytes = fetch_bytes

    async def partitions(self, topic: str) -> list[int]:
        """The numbers of a topic's partitions, none where it does not exist. Raises BrokerError."""
        await self._client.retrying(f"find {topic}", partial(self._client.refresh, [topic]))
        known = self._client.metadata.topics.get(topic)
        return [] if known is None else sorted(known.partitions)

    async def bounds(self, topic: str, partition: int) -> Bounds:
        """Raises BrokerError where they cannot be had within the client's time for retries."""
        what = f"offsets of {topic}/{partition}"

        async def ask(time: int) -> int:
            return await self._client.retrying(what, lambda: self._offset(topic, partition, time))

        return Bounds(await ask(_EARLIEST), await ask(_LATEST))

    async def read(self, topic: str, partition: int, start: int, end: int) -> AsyncIterator[list[Record]]:
        """The records from `start` up to `end`, piece by piece.

        Raises CorruptDataError for what is no records, and BrokerError (BrokerRefusedError for offsets that are gone).
        """
        size, what = self._fetch_bytes, f"read {topic}/{partition}"
        while start < end:
            data = await self._client.retrying(what, partial(self._fetch, topic, partition, start, size))
            found = decode_records(data, start)
            records = [record for record in found.messages() if record.offset < end]
            if records:
                yield records
            if found.next_offset > start:
                start, size = found.next_offset, self._fetch_bytes
                continue
            size = self._larger(found, size, f"{topic}/{partition} offset {start}")

    def _larger(self, found: RecordSet, size: int, where: str) -> int:
        """What to ask for after an answer that brought nothing."""
        if found.end is BatchEnd.CORRUPT:
            raise CorruptDataError(f"the target has no records at {where}: {found.problem}")
        if size >= _MOST_BYTES:
            raise CorruptDataError(f"the target gives nothing at {where}, although it says that there is something")
        return min(_MOST_BYTES, max(found.needed or 0, 2 * size))

    async def _fetch(self, topic: str, partition: int, offset: int, size: int) -> bytes:
        entry = {"partition": partition, "fetch_offset": offset, "max_bytes": size}
        body: dict[str, Any] = {
            "replica_id": -1,
            "max_wait_time": 0,
            "min_bytes": 0,
            "max_bytes": size,
            "topics": [{"topic": topic, "partitions": [entry]}],
        }
        part = await self._ask(FETCH, topic, partition, body, at_most=_LAST_FETCH)
        data: bytes | None = part["record_set"]
        return data or b""

    async def _offset(self, topic: str, partition: int, time: int) -> int:
        entry: dict[str, Any] = {"partition": partition, "timestamp": time}
        body: dict[str, Any] = {"topics": [{"topic": topic, "partitions": [entry]}]}
        part = await self._ask(OFFSETS, topic, partition, body)
        found: list[int] = part["offsets"] if "offsets" in part else [part["offset"]]
        if not found or found[0] < 0:
            raise BrokerError(f"the target names no offset of {topic}/{partition}")
        return found[0]

    async def _ask(
        self, api: Api, topic: str, partition: int, body: dict[str, Any], *, at_most: int | None = None
    ) -> dict[str, Any]:
        """One request to the leader -> its answer for the partition. One attempt."""
        node = await self._client.leader(topic, partition)
        channel = await self._client.node_channel(node.id)
        version = channel.versions.pick(api, at_most=at_most)
        if api is OFFSETS and version == 0:
            body["topics"][0]["partitions"][0]["max_num_offsets"] = 1
        if version >= (_ISOLATION_SINCE if api is FETCH else _OFFSETS_ISOLATION_SINCE):
            body["isolation_level"] = 0
        answer = await channel.call(api, body, version=version)
        if error := error_of(answer.get("error_code", 0), f"broker {node.id} refuses to tell of {topic}/{partition}"):
            raise error
        parts = [part for told in answer["responses"] for part in told["partition_responses"]]
        if len(parts) != 1:
            raise BadFrameError(f"broker {node.id} answers for {len(parts)} partitions, and was asked for one")
        part: dict[str, Any] = parts[0]
        if error := error_of(part["error_code"], f"broker {node.id} refuses to tell of {topic}/{partition}"):
            if error.info.refresh:
                self._client.stale([topic])
            raise error
        return part
