"""Partitions on live brokers of 0.8 and later.

Strategy: a snapshot is a METADATA request for partitions and leaders, then two OFFSETS requests per leader for where
the partitions begin and end; offsets count messages, so a partition can be cut anywhere without a search. An
unavailable partition is an error, as its messages would be missing silently. The end of a partition may move back for a
moment when a new leader does not yet know the committed offset: the planner waits for it, at most for the timeout.
"""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from consumerd.credentials import read_secret
from consumerd.errors import ConfigError
from consumerd.spark.source.choice import PartitionChoice
from consumerd.spark.source.offsets import LogOffset
from consumerd.spark.source.options import OptionError, SubscribePattern
from consumerd.spark.source.v08.client import KafkaClient
from consumerd.spark.source.v08.split import V08Split, cut
from consumerd.wire.v07 import EARLIEST, LATEST

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql.datasource import InputPartition

    from consumerd.spark.source.offsets import Key
    from consumerd.spark.source.options import BootstrapLocation, SourceOptions
    from consumerd.spark.source.v08.client import Address, TopicMetadata

#: Topics of the brokers' own, which patterns do not mean; old brokers do not mark them.
_INTERNAL: Final = ("__consumer_offsets", "__transaction_state")
#: Seconds between looks at an end that went back, and for which it is waited for.
_PAUSE: Final = 0.2
_PATIENCE: Final = 5.0


class V08Origin:
    """The chosen partitions of a cluster. Looks raise BrokerReadError."""

    def __init__(self, cluster: BootstrapLocation, options: SourceOptions) -> None:
        self._cluster = with_password(cluster)
        self._choice = PartitionChoice(options.topics)
        self._pattern = isinstance(options.topics, SubscribePattern)
        self._client = KafkaClient(self._cluster, options.timeout)
        self._topics: frozenset[str] = frozenset()
        #: The end of each partition when it was seen last.
        self._ends: dict[Key, LogOffset] = {}
        weakref.finalize(self, self._client.close)

    def snapshot(self) -> Mapping[Key, V08Log]:
        topics = self._client.topics(self._choice.wants_topic, self._choice.topics)
        self._topics = frozenset(topics)
        leaders = {
            (name, number): leader
            for name, topic in topics.items()
            if not (self._pattern and (topic.internal or name in _INTERNAL))
            for number, leader in topic.leaders.items()
            if self._choice.wants((name, str(number)))
        }
        starts = self._client.offsets(leaders, EARLIEST)
        ends = self._read_ends(leaders, topics)
        logs = [
            V08Log(
                *each, starts[each] or 0, max(starts[each] or 0, ends[each]), self._cluster, leader, self._before,
                topics[each[0]].topic_id,
            )
            for each, leader in sorted(leaders.items())
        ]  # fmt: skip
        self._ends = {log.key: LogOffset(log.end, log.topic_id) for log in logs}
        return {log.key: log for log in logs}

    def missing(self, found: Mapping[Key, object]) -> str | None:
        return self._choice.missing(found, self._topics)

    def _read_ends(
        self, partitions: Mapping[tuple[str, int], object], topics: Mapping[str, TopicMetadata]
    ) -> dict[tuple[str, int], int]:
        give_up = time.monotonic() + _PATIENCE
        while True:
            found = {each: end or 0 for each, end in self._client.offsets(partitions, LATEST).items()}
            former = {each: self._ends.get((each[0], str(each[1])), LogOffset(0)) for each in found}
            back = [
                each
                for each, end in found.items()
                if end < former[each].offset and former[each].may_be_of(topics[each[0]].topic_id)
            ]
            if not back or time.monotonic() > give_up:
                return found
            time.sleep(_PAUSE)

    def _before(self, log: V08Log, time_ms: int) -> int:
        return self._client.first_at((log.topic, log.partition), time_ms, log.start, log.end)


@dataclass(frozen=True)
class V08Log:
    """A snapshot of a partition; `leader`: its leader then. Every offset is a boundary."""

    topic: str
    partition: int
    start: int
    end: int
    location: BootstrapLocation
    leader: Address | None
    by_time: Callable[[V08Log, int], int] = field(repr=False)
    topic_id: str | None = None

    @property
    def key(self) -> Key:
        return self.topic, str(self.partition)

    @property
    def broker(self) -> None:
        return

    def gaps(self) -> tuple[tuple[int, int], ...]:
        """None: records that compaction removed count as read."""
        return ()

    def message_at(self, offset: int) -> int:
        return offset

    def resumed(self, offset: int) -> int:
        return offset

    def limited(self, start: int, most: int) -> int:
        return min(start + most, self.end)

    def before(self, time_ms: int) -> int:
        return self.by_time(self, time_ms)

    def splits(self, start: int, end: int, max_bytes: int) -> list[InputPartition]:
        """As the protocol says, but that `max_bytes` counts messages."""
        return [
            V08Split(self.topic, self.partition, low, high, self.location, self.leader, self.topic_id)
            for low, high in cut(start, end, max_bytes)
        ]


def with_password(cluster: BootstrapLocation) -> BootstrapLocation:
    """The cluster with the password itself, as executors need it. Raises OptionError."""
    login = cluster.login
    if login is None or login.password_file is None:
        return cluster
    try:
        password = read_secret(Path(login.password_file), "option kafka.sasl.password.file")
    except ConfigError as error:
        raise OptionError(str(error)) from error
    return replace(cluster, login=replace(login, password=password, password_file=None))
