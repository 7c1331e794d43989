"""What an outside client sees of the group: members, owners, committed offsets. Where the group lives makes the kind.

Strategy: a `Group` answers one look at a time; the watch (`tests.torture.watch`) polls it and keeps what follows from
looks. It asks servers directly, never through a proxy: a fault must not blind it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple

from consumerd.base.errors import BrokerError
from consumerd.base.partition import TopicPartition
from consumerd.member.offsets.kafka_store import KafkaOffsetStore
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import error_of
from consumerd.net.zk.errors import NoNode
from consumerd.net.zk.session import Session
from consumerd.wire.registry.paths import owner_path
from consumerd.wire.v08.apis import DESCRIBE_GROUPS
from consumerd.wire.v08.message_types import DescribeGroupsRequest, DescribeGroupsResponseMember
from consumerd.wire.v08.subscription import decode_assignment
from tests.kill.mirrors import TOPIC
from tests.torture.stage import GROUP, Member

#: Nodes that are read at once.
_AT_ONCE: Final = 50
#: Seconds after which a broker that does not answer leaves the watch blind. With a new connection, brokers of 0.9 take
#: three seconds, because they never answer the request for their versions.
_ANSWER_SECONDS: Final = 6.0


class Sighting(NamedTuple):
    """One look. `ids` are sorted; one that is there twice is a member that joined again before its former self left."""

    ids: tuple[str, ...]
    #: The names of the partitions that have an owner.
    owned: frozenset[str]


class Group(ABC):
    """The group under torture."""

    #: The event that a member logs when its session has ended.
    lost_event: ClassVar[str]

    def __init__(self, partitions: Sequence[TopicPartition]) -> None:
        self._partitions = list(partitions)

    @abstractmethod
    async def look(self) -> Sighting:
        """Members and owners now. Raises ConsumerdError while the servers do not answer."""

    @abstractmethod
    async def offsets(self) -> dict[str, int]:
        """The committed offsets by the partition's name. Raises ConsumerdError."""

    @abstractmethod
    async def shares(self) -> list[int]:
        """How many partitions each owner has, sorted. Raises ConsumerdError."""

    @abstractmethod
    def id_of(self, member: Member) -> str:
        """The id of a member in `Sighting.ids`. Raises ConsumerdError while it is not known."""

    @abstractmethod
    def suffers_from(self, kind: str) -> bool:
        """Whether a fault of this kind may end members' sessions, so that messages come again."""


class ZooKeeperGroup(Group):
    """A group whose members coordinate themselves in ZooKeeper."""

    lost_event = "session_expired"

    def __init__(self, session: Session, partitions: Sequence[TopicPartition]) -> None:
        super().__init__(partitions)
        self._session = session

    async def look(self) -> Sighting:
        try:
            ids = await self._session.children(f"/consumers/{GROUP}/ids")
            owned = await self._session.children(f"/consumers/{GROUP}/owners/{TOPIC}")
        except NoNode:
            return Sighting((), frozenset())
        return Sighting(tuple(sorted(ids)), frozenset(owned))

    async def offsets(self) -> dict[str, int]:
        names = sorted(partition.name for partition in self._partitions)
        found: dict[str, int] = {}
        for first in range(0, len(names), _AT_ONCE):
            some = names[first : first + _AT_ONCE]
            read = await asyncio.gather(*map(self._offset, some))
            found |= {name: offset for name, offset in zip(some, read, strict=True) if offset is not None}
        return found

    async def _offset(self, name: str) -> int | None:
        try:
            data, _ = await self._session.get(f"/consumers/{GROUP}/offsets/{TOPIC}/{name}")
        except NoNode:
            return None
        return int(data or b"0")

    async def shares(self) -> list[int]:
        held: Counter[int] = Counter()
        for partition in self._partitions:
            if (stat := await self._session.exists(owner_path(GROUP, partition))) is not None:
                held[stat.ephemeral_owner] += 1
        return sorted(held.values())

    def id_of(self, member: Member) -> str:
        return member.consumer_id

    def suffers_from(self, kind: str) -> bool:
        return not kind.startswith("broker")


class BrokerGroup(Group):
    """A group that a broker coordinates, as its coordinator describes it. Members are known by their client ids.

    While the group rebalances no partition has an owner: that is when members have released everything.
    """

    lost_event = "partitions_abandoned"

    def __init__(self, client: ClusterClient, partitions: Sequence[TopicPartition]) -> None:
        super().__init__(partitions)
        self._client = client
        self._store = KafkaOffsetStore(client, GROUP)

    async def look(self) -> Sighting:
        members = await self._members()
        owned = frozenset(name for member in members for name in _assigned(member))
        return Sighting(tuple(sorted(member["client_id"] for member in members)), owned)

    async def _members(self) -> list[DescribeGroupsResponseMember]:
        asked: DescribeGroupsRequest = {"groups": [GROUP]}
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                answer = await self._client.call_coordinator(GROUP, DESCRIBE_GROUPS, asked)
        except TimeoutError:
            raise BrokerError(f"the coordinator did not answer within {_ANSWER_SECONDS:g} s") from None
        [described] = answer["groups"]
        if error := error_of(described["error_code"], f"group {GROUP!r} cannot be described"):
            self._client.forget_coordinator(GROUP)
            raise error
        return described["members"]

    async def offsets(self) -> dict[str, int]:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                found = await self._store.load(self._partitions)
        except TimeoutError:
            raise BrokerError(f"the coordinator did not answer within {_ANSWER_SECONDS:g} s") from None
        return {partition.name: offset for partition, offset in found.items()}

    async def shares(self) -> list[int]:
        return sorted(len(names) for member in await self._members() if (names := _assigned(member)))

    def id_of(self, member: Member) -> str:
        return member.name

    def suffers_from(self, kind: str) -> bool:
        return True


def _assigned(member: DescribeGroupsResponseMember) -> list[str]:
    given = decode_assignment(member["member_assignment"]).partitions
    return [str(number) for topic, numbers in given if topic == TOPIC for number in numbers]
