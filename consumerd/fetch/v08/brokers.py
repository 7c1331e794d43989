"""Fetching from brokers of 0.8 and later: each partition from its leader, over its broker's shared connections.

Strategy: leaders change, so the leader is looked up before every request, in the client's metadata, which a broker's
NOT_LEADER error marks as stale and the next look-up refreshes, once for all partitions. Brokers wait for new messages
themselves, and responses hold many partitions, so requests are left to one `BrokerSource` per broker. It lives as long
as the pool: leaders come back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from consumerd.client import list_offsets, topic_error
from consumerd.errors import BrokerError
from consumerd.fetch.fetcher import PartitionResponse
from consumerd.fetch.policies import FetchServices
from consumerd.fetch.response import FetchOutcome
from consumerd.fetch.v08.broker_source import BrokerSource, PartitionRequest
from consumerd.wire.v07 import LATEST
from consumerd.wire.v08.error_codes import ErrorCode, error_info
from consumerd.wire.v08.records import decode_records

if TYPE_CHECKING:
    from random import Random

    from consumerd.client import ClusterClient
    from consumerd.fetch.lane import Lane
    from consumerd.fetch.listener import FetchListener
    from consumerd.fetch.settings import FetchSettings
    from consumerd.partition import TopicPartition
    from consumerd.ports import Clock
    from consumerd.wire import WireError
    from consumerd.wire.v08.records import RecordSet


class V08Source:
    """One partition at its leader; see `PartitionSource`."""

    def __init__(self, partition: TopicPartition, lane: Lane, brokers: V08Brokers) -> None:
        self.idle = False
        self._partition = partition
        self._lane = lane
        self._brokers = brokers
        self._settings = brokers.services.settings
        #: The last response was empty although there was something to read.
        self._passed_over = False

    async def ask(self, offset: int, size: int) -> PartitionResponse | None:
        """Fetch with memory reserved for it, or wait for new messages, whose memory is counted when they are here.

        None, because of a quota of the broker: it is waited out in the next call.
        """
        source, epoch = await self._brokers.leader(self._partition)
        await source.wait_out_quota()
        answer = asyncio.get_running_loop().create_future()
        if self.idle:
            # Less than `min_bytes` of one partition would never be enough, however much there is of it.
            size = max(self._settings.poll_bytes, self._settings.min_bytes)
            fetched = await source.poll(PartitionRequest(self._partition, offset, size, epoch, answer))
            if fetched is None:
                return None
            reservation = self._lane.budget.charge(len(fetched.data))
        else:
            reservation = await self._lane.budget.reserve(size)
            try:
                fetched = await source.fetch(PartitionRequest(self._partition, offset, size, epoch, answer))
            except BaseException:
                reservation.release()
                raise
            if fetched is None:
                reservation.release()
                return None
        error, data, readable_end, aborted = fetched
        return PartitionResponse(source.node_id, error, data, size, reservation, readable_end, aborted)

    async def decode(self, response: PartitionResponse, offset: int) -> RecordSet:
        """Decode in one step."""
        return decode_records(response.data, offset, limits=self._settings.limits, aborted=response.aborted)

    def classified(self, outcome: FetchOutcome, response: PartitionResponse, offset: int) -> None:
        """Wait at the end of the log. If the response was full of other partitions, ask again at once, one time."""
        self._brokers.services.counters.denied.discard(self._partition)
        if outcome is FetchOutcome.EMPTY:
            self.idle = self._passed_over or response.readable_end <= offset
            self._passed_over = not self.idle
        elif outcome is FetchOutcome.PROGRESS:
            self.idle = self._passed_over = False
        elif outcome is FetchOutcome.CUT:
            self.idle = False

    def refusal(self, error: int) -> str | None:
        """Return the reason in words for a response with an error; None for an offset out of range."""
        if error == ErrorCode.OFFSET_OUT_OF_RANGE:
            return None
        if error_info(error).refresh:
            self._brokers.refresh_leader(self._partition)
        if error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            self._brokers.services.counters.denied.add(self._partition)
        return str(topic_error(error, f"a fetch of {self._partition}", self._partition.topic, "Read"))

    def failed(self, error: BrokerError | WireError) -> bool:
        """Back off, and look for another leader."""
        self._brokers.refresh_leader(self._partition)
        return True

    def pause(self) -> None:
        """Do nothing: nothing is sent without the fetcher."""

    def resume(self) -> None:
        """Do nothing."""


class V08Brokers:
    """The brokers of a cluster of 0.8 or later; see `FetchBrokers`. `client` stays the caller's."""

    def __init__(
        self, client: ClusterClient, settings: FetchSettings, clock: Clock, rng: Random, listener: FetchListener
    ) -> None:
        self.services = FetchServices(settings, clock, rng, listener, self.list_offsets)
        self._client = client
        self._sources: dict[int, BrokerSource] = {}
        self._tasks: asyncio.TaskGroup | None = None

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Run the sources of brokers in `tasks`."""
        self._tasks = tasks

    def source(self, partition: TopicPartition, lane: Lane) -> V08Source:
        """Return a new source for one fetcher."""
        return V08Source(partition, lane, self)

    def release(self, partition: TopicPartition) -> tuple[()]:
        """Return no tasks: brokers stay connected."""
        self.services.counters.denied.discard(partition)
        return ()

    async def leader(self, partition: TopicPartition) -> tuple[BrokerSource, int]:
        """Return the source of the partition's leader, and the leader's epoch (-1 for unknown). Raises BrokerError."""
        node = await self._client.leader(partition.topic, partition.partition)
        source = self._sources.get(node.id)
        if source is None:
            assert self._tasks is not None  # fetchers run
            services = self.services
            source = self._sources[node.id] = BrokerSource(
                node.id, self._client, services.settings, services.counters, services.clock
            )
            self._tasks.create_task(source.run(), name=f"source {node.id}")
        known = self._client.metadata.topics[partition.topic].partitions[partition.partition]
        return source, known.leader_epoch

    def refresh_leader(self, partition: TopicPartition) -> None:
        """Look the leader up again: the broker does not lead the partition, or cannot be reached."""
        self._client.stale([partition.topic])

    async def list_offsets(self, partition: TopicPartition, time: int, max_number: int = 1) -> tuple[int, ...]:
        """Ask the leader for offsets: `time` is EARLIEST, LATEST or milliseconds since the epoch.

        One attempt. Since 0.10.1 at most one offset, that of the first message at `time` or after; before, up to
        `max_number` starts of segments, newest first. Empty where there is none. Raises BrokerError, FrameError.
        """
        return await self._listed(partition, time, max_number, read_committed=self.services.settings.read_committed)

    async def log_end(self, partition: TopicPartition) -> int:
        """Ask the leader for the high watermark. Raises as `list_offsets`."""
        if not (offsets := await self._listed(partition, LATEST, 1, read_committed=False)):
            raise BrokerError(f"the leader of {partition} returned no end of it")
        return offsets[0]

    async def _listed(
        self, partition: TopicPartition, time: int, max_number: int, *, read_committed: bool
    ) -> tuple[int, ...]:
        node = await self._client.leader(partition.topic, partition.partition)
        channel = await self._client.node_channel(node.id)
        place = partition.topic, partition.partition
        listed = await list_offsets(
            channel,
            [place],
            time,
            read_committed=read_committed,
            max_number=max_number,
        )
        if (found := listed.get(place)) is None:
            raise BrokerError(f"broker {node.id} returned no offset of {partition}: it is not in its answer")
        if error := topic_error(found.error, f"broker {node.id} returned no offset of {partition}", partition.topic):
            if error.info.refresh:
                self.refresh_leader(partition)
            raise error
        return found.offsets
