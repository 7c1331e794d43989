"""A group of either dialect in a ZooKeeper in memory, for the diagnosis: four partitions, two members with two each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace as replaced

from consumerd.base.errors import BrokerError
from consumerd.base.partition import NO_BROKER, TopicPartition
from consumerd.net.connect import Connection
from consumerd.operate.admin.diagnosis import diagnose_group
from consumerd.operate.admin.diagnosis_offsets import DiagnosisInput
from consumerd.operate.admin.findings import GroupFinding, GroupFindingKind
from consumerd.operate.admin.group_source import GroupSource, V07Groups
from consumerd.operate.admin.logs import LogRange, LookupFailure
from consumerd.operate.admin.v08.group_source import ZooKeeperGroups
from consumerd.operate.admin.v08.logs import V08BrokerLogs
from consumerd.operate.admin.verification import GroupDifference, differences
from consumerd.testing.memory_zookeeper import MemorySession, MemoryZooKeeper
from consumerd.wire.registry.dialect import Dialect

#: Sessions: of the two members, and of one that ended.
A, B, DEAD = 0xA, 0xB, 0xD
ID_A, ID_B = "g_host-a-1353495600000-00c0ffee", "g_b"
STATE = '{"controller_epoch":1,"leader":%d,"version":1,"leader_epoch":0,"isr":[0]}'
#: The id node of a member that subscribes to `t` with one stream.
MEMBERS = {
    Dialect.V07: b'{ "t": 1 }',
    Dialect.V08: b'{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}',
}


async def nobody(host: str, port: int) -> Connection:
    raise BrokerError("away")


def told(found: list[GroupFinding]) -> list[tuple[GroupFindingKind, str]]:
    return [(finding.kind, finding.subject) for finding in found]


class GroupTree(MemoryZooKeeper):
    """A healthy group `g`; partitions of `t` go by their numbers."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__()
        self.dialect = dialect
        self.member = MEMBERS[dialect]
        self.partitions = [self.partition("t", number) for number in range(4)]
        if dialect is Dialect.V07:
            self.put("/brokers/ids/0", b"x:127.0.0.1:9092")
            self.put("/brokers/topics/t/0", b"4")
        else:
            self.put("/brokers/ids/0", b'{"jmx_port":-1,"timestamp":"1","host":"h","version":1,"port":1}')
            self.put_topic("t", [0, 0, 0, 0])
        self.put(f"/consumers/g/ids/{ID_A}", self.member, session_id=A)
        self.put(f"/consumers/g/ids/{ID_B}", self.member, session_id=B)
        self.deal({one: ((ID_B, 0), (ID_A, 0))[one.partition // 2] for one in self.partitions})
        for number in range(4):
            self.commit(number, b"10")

    def partition(self, topic: str, number: int) -> TopicPartition:
        return TopicPartition(topic, 0 if self.dialect is Dialect.V07 else NO_BROKER, number)

    def subject(self, number: int, topic: str = "t") -> str:
        return str(self.partition(topic, number))

    def owner(self, number: int, topic: str = "t") -> str:
        """The path of the owner node."""
        return f"/consumers/g/owners/{self.subject(number, topic)}"

    def offset(self, number: int, topic: str = "t") -> str:
        """The path of the offset node."""
        return f"/consumers/g/offsets/{self.subject(number, topic)}"

    def commit(self, number: int, data: bytes, topic: str = "t") -> None:
        self.put(self.offset(number, topic), data)

    def replace(self, path: str, data: bytes, session_id: int = 0) -> None:
        self.remove(path)
        self.put(path, data, session_id=session_id)

    def deal(self, owners: Mapping[TopicPartition, tuple[str, int]]) -> None:
        for partition, (name, stream) in owners.items():
            path = self.owner(partition.partition, partition.topic)
            self.replace(path, f"{name}-{stream}".encode(), A if name == ID_A else B)

    def put_topic(self, topic: str, leaders: list[int]) -> None:
        """A topic of 0.8 or later; -1 leads nothing."""
        partitions = {str(number): [0] for number in range(len(leaders))}
        self.put(f"/brokers/topics/{topic}", json.dumps({"version": 1, "partitions": partitions}).encode())
        for number, leader in enumerate(leaders):
            self.put(f"/brokers/topics/{topic}/partitions/{number}/state", (STATE % leader).encode())

    def source(self, zk: MemorySession) -> GroupSource:
        if self.dialect is Dialect.V07:
            return V07Groups(zk, nobody)
        return ZooKeeperGroups(zk, V08BrokerLogs(None, "away"))

    async def look(self, at: float = 0.0, **ranges: LogRange | LookupFailure) -> DiagnosisInput:
        """With logs of 0 to 100; `ranges`: those of others, by the number of the partition (`p0`)."""
        async with self.session() as zk:
            found = await self.source(zk).diagnosis_input("g")
        logs = {one: ranges.get(f"p{one.partition}", LogRange(0, 100)) for one in found.ranges}
        return replaced(found, ranges=logs, at=at)

    async def findings(self) -> list[GroupFinding]:
        return diagnose_group(await self.look())

    async def differences(self) -> list[GroupDifference]:
        return differences((await self.look()).snapshot)
