"""Real brokers whose logs become other ones beneath a reader: topics that are made again, and unclean elections.

Strategy: the topic has one partition, and every message a text of its own, so that messages at the same offset of logs
that follow one another are told apart. Readers are a member of ours and, in a group of its own, Kafka's own consumer of
the brokers' release. The functions here do one change each and return the texts that were written after it.

A log loses its end where a follower that missed the last messages is elected: a third broker, without the topic, keeps
the quorum and the committed offsets meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from consumerd.base.partition import TopicPartition
from consumerd.demo.audit import read_records
from consumerd.demo.children import Child
from consumerd.demo.ledger import digest
from consumerd.demo.processes import DaemonProcess
from consumerd.member.offsets.kafka_store import KafkaOffsetStore
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import BrokerRefusedError
from consumerd.operate.admin.v08.topic_nodes import TopicPlan
from consumerd.operate.admin.v08.topic_requests import TopicsByRequests
from consumerd.wire.v08.error_codes import ErrorCode
from tests.interop.group_harness import LONG_SESSION, PATIENCE, TOPIC, Group, said_by_java
from tests.support.kafka import KafkaBroker

PLACE: Final = TopicPartition.numbered(TOPIC, 0)
OURS, THEIRS = "ours", "theirs"
#: Messages before the change; those that only the leader has; those after the change, of each kind of change.
FIRST, UNREPLICATED, AFTER_CUT, AFTER_NEW = 100, 50, 150, 300
#: Seconds for which our member is stopped.
FROZEN = 2.0
_TIMEOUT = 20.0


class Readers:
    """A topic of one partition on real brokers, a member of ours, and Kafka's own consumer."""

    def __init__(self, group: Group, replicas: Sequence[int]) -> None:
        self.group = group
        self.replicas = tuple(replicas)
        self.ours: DaemonProcess | None = None
        self.theirs: Child | None = None
        self._theirs_before: list[Child] = []
        self._written = 0
        #: The end of the log.
        self._end = 0

    @property
    def client(self) -> ClusterClient:
        return self.group.client

    @property
    def brokers(self) -> Mapping[int, KafkaBroker]:
        return self.group.brokers

    # -- the topic

    async def create(self) -> None:
        """Make the topic, led by the first of its replicas."""
        plan = TopicPlan(TOPIC, assignment={0: self.replicas})
        await TopicsByRequests(self.client).create(plan, timeout=_TIMEOUT)
        await self.wait_for_leader(self.replicas[0])

    async def recreate(self, count: int = AFTER_NEW) -> list[bytes]:
        """Delete the topic, make it again, and write messages."""
        await TopicsByRequests(self.client).delete(TOPIC, timeout=_TIMEOUT)
        self._end = 0
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    await self.create()
                    break
                except BrokerRefusedError as error:  # brokers before 2.x delete topics after their answer
                    if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                        raise
                    await asyncio.sleep(0.1)
        return await self.write(count)

    async def write(self, count: int) -> list[bytes]:
        """So many messages, each with a text of its own."""
        texts = [b"text-%d" % number for number in range(self._written, self._written + count)]
        self._written += count
        self._end += count
        for start in range(0, count, 10):
            await self.group.produce(0, texts[start : start + 10])
        return texts

    def forget(self, count: int) -> None:
        """The log has lost so many messages at its end."""
        self._end -= count

    async def wait_for_leader(self, broker: int, *, in_sync: Sequence[int] | None = None) -> None:
        """Until `broker` leads, with exactly these replicas in sync."""

        async def led() -> bool:
            self.client.stale([TOPIC])
            part = (await self.client.refresh([TOPIC])).topics[TOPIC].partitions.get(0)
            return part is not None and part.leader == broker and (in_sync is None or sorted(part.isr) == list(in_sync))

        async with asyncio.timeout(PATIENCE):
            while not await self.client.retrying("metadata", led):
                await asyncio.sleep(0.2)  # brokers do not tell of elections

    # -- readers

    async def read_by_ours(
        self, *, pause: float = 0.01, fetch: Mapping[str, Any] | None = None, zookeeper: str | None = None
    ) -> None:
        """Start our member, of a group that a broker coordinates or ZooKeeper."""
        session = {} if zookeeper else {"session_timeout": LONG_SESSION, "rebalance_timeout": LONG_SESSION}
        self.ours = await self.group.daemon(id=OURS, pause=pause, fetch=fetch, zookeeper=zookeeper, **session)

    def events(self, name: str) -> list[dict[str, Any]]:
        """What our members logged under this name."""
        return [event for daemon in self.group.daemons for event in daemon.events() if event["event"] == name]

    async def until_started(self) -> None:
        """Until our member has begun to read its partition."""
        assert self.ours is not None
        await self.ours.wait_for_event("partition_started", PATIENCE)

    async def write_to_added(self, count: int) -> list[bytes]:
        """So many messages in partition 1, once a broker leads it."""

        async def led() -> bool:
            self.client.stale([TOPIC])
            part = (await self.client.refresh([TOPIC])).topics[TOPIC].partitions.get(1)
            return part is not None and part.leader is not None

        async with asyncio.timeout(PATIENCE):
            while not await self.client.retrying("metadata", led):
                await asyncio.sleep(0.1)  # brokers do not tell of elections
        texts = [b"added-%d" % number for number in range(count)]
        await self.group.produce(1, texts)
        return texts

    async def until_ours_has(self, texts: list[bytes]) -> None:
        """Until our member has all of these."""
        wanted = set(map(digest, texts))
        await self.group.until(lambda: wanted <= self.delivered_to_ours().keys(), PATIENCE)

    async def read_by_theirs(self) -> None:
        """Start Kafka's own consumer."""
        self.theirs = await self.group.java_member("range", THEIRS)

    async def stop(self) -> None:
        """Both leave in order."""
        if self.ours is not None:
            await self.ours.stop()
            self.ours = None
        if self.theirs is not None:
            await self.group.leave(self.theirs)
            self._theirs_before.append(self.theirs)
            self.theirs = None

    def delivered_to_ours(self) -> Counter[int]:
        """How often our members were handed each text, by its digest."""
        records = (record for path in self.group.records.glob("*.ndjson") for record in read_records(path))
        return Counter(checksum for record in records for _, _, checksum in record.messages)

    def delivered_to_theirs(self) -> Counter[int]:
        """How often Kafka's own consumers were handed each text, by its digest."""
        children = [*self._theirs_before, *([] if self.theirs is None else [self.theirs])]
        records = (record for child in children for record in said_by_java(child))
        return Counter(checksum for record in records for _, _, checksum in record.messages)

    async def until_all_have(self, texts: list[bytes], limit: float = PATIENCE) -> None:
        """Until each reader that runs has all of these, and the group of each has committed them."""
        wanted = set(map(digest, texts))

        def all_have() -> bool:
            return (self.ours is None or wanted <= self.delivered_to_ours().keys()) and (
                self.theirs is None or wanted <= self.delivered_to_theirs().keys()
            )

        await self.group.until(all_have, limit)
        end = self._end
        for reader, group in ((self.ours, OURS), (self.theirs, THEIRS)):
            async with asyncio.timeout(limit):
                while reader is not None and await self.committed(group) != end:
                    await asyncio.sleep(0.1)  # nothing tells when an offset moves

    async def committed(self, group: str) -> int | None:
        """The committed offset of a group."""
        store = KafkaOffsetStore(self.client, group)
        return (await self.client.retrying("offsets", lambda: store.load([PLACE]))).get(PLACE)

    async def missing_after(self, texts: list[bytes], seconds: float) -> tuple[int, int]:
        """How many of these texts our member and Kafka's own consumer lack, once they lack none or time is up.

        A reader that does not run lacks none.
        """
        wanted = set(map(digest, texts))

        def missing() -> tuple[int, int]:
            ours = set() if self.ours is None else wanted - self.delivered_to_ours().keys()
            theirs = set() if self.theirs is None else wanted - self.delivered_to_theirs().keys()
            return len(ours), len(theirs)

        end = asyncio.get_running_loop().time() + seconds
        while any(missing()) and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.2)  # records of other processes are polled
        return missing()


async def recreated_while_frozen(readers: Readers) -> list[bytes]:
    """The topic is made again while our member is stopped (SIGSTOP) for two seconds."""
    assert readers.ours is not None
    readers.ours.pause()
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.sleep(FROZEN))
            recreating = tasks.create_task(readers.recreate())
    finally:
        readers.ours.resume()
    return recreating.result()


async def recreated_behind_a_slow_handler(readers: Readers) -> list[bytes]:
    """The topic is made again while the fetcher of our member waits for its handler (see `SLOW`)."""
    await readers.write(FIRST)
    return await readers.recreate()


#: Arguments of `read_by_ours` with which a handler takes seconds, and the lane before it is soon full.
SLOW_PAUSE, SLOW_FETCH = 2.0, {"size": 2048, "partition_budget": 4096}


async def leave_the_follower_behind(readers: Readers) -> list[bytes]:
    """The follower is killed, and the leader gets messages that it never has; those."""
    leader, follower = readers.replicas
    readers.brokers[follower].kill()
    await readers.wait_for_leader(leader, in_sync=[leader])
    return await readers.write(UNREPLICATED)


async def elect_the_follower(readers: Readers) -> list[bytes]:
    """The leader is killed, and the follower that missed messages leads; it gets others in their place."""
    leader, follower = readers.replicas
    readers.brokers[leader].kill()
    await readers.brokers[follower].start(PATIENCE)
    await readers.wait_for_leader(follower)
    readers.forget(UNREPLICATED)
    return await readers.write(AFTER_CUT)
