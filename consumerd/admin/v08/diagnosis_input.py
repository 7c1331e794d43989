"""One look at a group of Kafka 0.8 or later, with everything that its diagnosis needs.

Strategy: the survey first, then what brokers hold, who leads, and, where ZooKeeper has offsets, what brokers keep of
the same group. What a broker does not tell leaves a hole in the look, with the reason, and not the look undone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.admin.diagnosis_offsets import Look
from consumerd.admin.v08.group_source import ZooKeeperGroups
from consumerd.errors import BrokerError
from consumerd.wire.errors import WireError

if TYPE_CHECKING:
    from consumerd.admin.v08.group_source import GroupSource
    from consumerd.admin.v08.snapshot import V08Survey
    from consumerd.partition import TopicPartition


async def look_at_group(source: GroupSource, group: str, now: float) -> Look:
    """Look at `group`. `now`: seconds of any clock. Raises NotFoundError, ZooKeeperError, BrokerError as `source`."""
    survey = await source.survey(group)
    topics = await source.topics(survey.topics)
    ranges = await source.logs.ranges(partition for partition in survey.partitions() if survey.exists(partition))
    kept: dict[TopicPartition, int] = {}
    unknown: tuple[str, ...] = ()
    if isinstance(source, ZooKeeperGroups):
        try:
            kept = await _kept(source, survey)
        except (BrokerError, WireError) as error:
            unknown = (f"whether brokers keep offsets, too, is not known: {error}",)
    return Look(survey, ranges, now, topics, kept, unknown)


async def _kept(source: ZooKeeperGroups, survey: V08Survey) -> dict[TopicPartition, int]:
    return await source.kept_by_brokers(survey.group, filter(survey.exists, survey.view.offsets))
