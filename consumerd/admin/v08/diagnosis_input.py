"""Everything that the diagnosis of a group of Kafka 0.8 or later needs.

Strategy: the snapshot first, then what brokers hold, who leads, and, where ZooKeeper has offsets, what brokers keep of
the same group. What a broker does not answer is missing, with the reason; the rest is still diagnosed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.admin.diagnosis_offsets import DiagnosisInput
from consumerd.admin.v08.group_source import ZooKeeperGroups
from consumerd.errors import BrokerError
from consumerd.wire.errors import WireError

if TYPE_CHECKING:
    from consumerd.admin.v08.group_source import GroupSource
    from consumerd.admin.v08.snapshot import V08GroupSnapshot
    from consumerd.partition import TopicPartition


async def read_diagnosis_input(source: GroupSource, group: str, now: float) -> DiagnosisInput:
    """Read `group`. `now`: seconds of any clock. Raises NotFoundError, ZooKeeperError, BrokerError as `source`."""
    snapshot = await source.snapshot(group)
    topics = await source.topics(snapshot.topics)
    ranges = await source.logs.ranges(partition for partition in snapshot.partitions() if snapshot.exists(partition))
    kept: dict[TopicPartition, int] = {}
    unknown: tuple[str, ...] = ()
    if isinstance(source, ZooKeeperGroups):
        try:
            kept = await _kept(source, snapshot)
        except (BrokerError, WireError) as error:
            unknown = (f"whether brokers keep offsets, too, is not known: {error}",)
    return DiagnosisInput(snapshot, ranges, now, topics, kept, unknown)


async def _kept(source: ZooKeeperGroups, snapshot: V08GroupSnapshot) -> dict[TopicPartition, int]:
    return await source.kept_by_brokers(snapshot.group, filter(snapshot.exists, snapshot.view.offsets))
