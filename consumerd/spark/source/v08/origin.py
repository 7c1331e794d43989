"""Partitions on live brokers of 0.8 and later.

Strategy: a snapshot is a METADATA request for partitions and leaders, then two OFFSETS requests per leader for where
the partitions begin and end; offsets count messages, so a partition can be cut anywhere without a search. An
unavailable partition is an error, as its messages would be missing silently. The end of a partition may move back for a
moment when a new leader does not yet know the committed offset: the planner waits for it, at most for the timeout.

Only leader epochs show that a log was cut off and has grown again (KIP-320). The leader tells where an epoch ends in
its log; one answer says both whether a position of that epoch is of this log, and, while the epoch lasts, that messages
behind the position are of it, too. So it usually takes one more request per leader.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from consumerd.base.credentials import read_secret
from consumerd.base.errors import ConfigError
from consumerd.base.partition import LogId
from consumerd.member.fetch.log_changes import LogChange, find_change
from consumerd.net.client.epochs import EpochEnd
from consumerd.spark.source.choice import PartitionChoice
from consumerd.spark.source.logs import EveryOffset
from consumerd.spark.source.offsets import Key, LogOffset
from consumerd.spark.source.option_texts import OptionError
from consumerd.spark.source.option_values import BootstrapLocation, SubscribePattern
from consumerd.spark.source.options import SourceOptions
from consumerd.spark.source.split import V08Split
from consumerd.spark.source.v08.client import Address, KafkaClient, TopicLeaders
from consumerd.wire.v07 import EARLIEST, LATEST

if TYPE_CHECKING:
    from consumerd.spark.source.split import Split

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
        #: Each partition when it was seen last, and what leaders said since of ends of epochs; None: they do not tell.
        self._logs: dict[Key, V08Log] = {}
        self._epoch_ends: dict[tuple[Key, int], EpochEnd | None] = {}
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
                topics[each[0]].topic_id, topics[each[0]].epochs.get(each[1], -1),
            )
            for each, leader in sorted(leaders.items())
        ]  # fmt: skip
        self._logs = {log.key: log for log in logs}
        self._epoch_ends.clear()
        return self._logs

    def missing(self, found: Mapping[Key, object]) -> str | None:
        return self._choice.missing(found, self._topics)

    def compared(self, known: Mapping[Key, LogOffset]) -> Mapping[Key, LogChange | None]:
        epochs = {key: each.leader_epoch for key, each in known.items() if each.leader_epoch is not None}
        found: dict[Key, LogChange | None] = {}
        for key, end in self._ends_of(epochs).items():
            position, epoch, log = known[key], epochs[key], self._logs[key]
            leader_epoch = log.leader_epoch
            if leader_epoch < 0 and end.end_offset < position.offset:  # metadata before 2.1 name none
                later = self._ends_of({key: epoch + 1}).get(key)
                leader_epoch = epoch + (later is not None and later.end_offset >= 0)
            former, now = LogId.from_text(position.topic_id, epoch), LogId.from_text(log.topic_id, None)
            _, change = find_change(position.offset, former, now, leader_epoch, end)
            if change is not None or end.end_offset >= position.offset:
                found[key] = change
        return found

    def with_epochs(self, offsets: Mapping[Key, LogOffset]) -> Mapping[Key, LogOffset]:
        found = {key: each._replace(leader_epoch=None) for key, each in offsets.items()}
        searches = {
            key: find_epoch(each.offset, log.leader_epoch, each.leader_epoch)
            for key, each in offsets.items()
            if (log := self._logs.get(key)) is not None and log.start < each.offset <= log.end
        }
        asked = {key: next(search) for key, search in searches.items()}
        while asked:
            ends = self._ends_of(asked)
            for key in tuple(asked):
                try:
                    asked[key] = searches[key].send(ends.get(key))
                except StopIteration as done:
                    found[key] = found[key]._replace(leader_epoch=done.value)
                    del asked[key]
        return found

    def _ends_of(self, epochs: Mapping[Key, int]) -> dict[Key, EpochEnd]:
        """Where epochs end, asked once per snapshot; without partitions whose brokers do not tell."""
        unknown = {each for each in epochs.items() if each not in self._epoch_ends}
        if unknown:
            reported = self._client.epoch_ends({(topic, int(name)): epoch for (topic, name), epoch in unknown})
            self._epoch_ends |= {(key, epoch): reported.get((key[0], int(key[1]))) for key, epoch in unknown}
        ends = {key: self._epoch_ends[key, epoch] for key, epoch in epochs.items()}
        return {key: end for key, end in ends.items() if end is not None}

    def _read_ends(
        self, partitions: Mapping[tuple[str, int], object], topics: Mapping[str, TopicLeaders]
    ) -> dict[tuple[str, int], int]:
        give_up = time.monotonic() + _PATIENCE
        while True:
            found = {each: end or 0 for each, end in self._client.offsets(partitions, LATEST).items()}
            former = {each: self._logs.get((each[0], str(each[1]))) for each in found}
            back = [
                each
                for each, log in former.items()
                if log is not None
                and found[each] < log.end
                and LogOffset(log.end, log.topic_id).may_be_of(topics[each[0]].topic_id)
            ]
            if not back or time.monotonic() > give_up:
                return found
            time.sleep(_PAUSE)

    def _before(self, log: V08Log, time_ms: int) -> int:
        return self._client.first_at((log.topic, log.partition), time_ms, log.start, log.end)


@dataclass(frozen=True)
class V08Log(EveryOffset):
    """A snapshot of a partition; `leader`: its leader then. Every offset is a boundary.

    `leader_epoch`: the leader's, -1 where brokers do not tell it.
    """

    topic: str
    partition: int
    start: int
    end: int
    location: BootstrapLocation
    leader: Address | None
    by_time: Callable[[V08Log, int], int] = field(repr=False)
    topic_id: str | None = None
    leader_epoch: int = -1

    broker = None

    @property
    def key(self) -> Key:
        return self.topic, str(self.partition)

    def before(self, time_ms: int) -> int:
        return self.by_time(self, time_ms)

    def splits(self, start: int, end: int, max_bytes: int) -> list[Split]:
        """As the protocol says, but that `max_bytes` counts messages."""
        return [
            V08Split(self.topic, self.partition, low, high, self.location, self.leader, self.topic_id)
            for low, high in cut(start, end, max_bytes)
        ]


def cut(start: int, end: int, most: int) -> list[tuple[int, int]]:
    """[start, end) in pieces of about the same size, none larger than `most`; 0: in one piece."""
    if start >= end:
        return []
    pieces = -(-(end - start) // most) if most else 1
    return list(pairwise(start + (end - start) * number // pieces for number in range(pieces + 1)))


def find_epoch(offset: int, latest: int, known: int | None) -> Generator[int, EpochEnd | None, int | None]:
    """Find the leader epoch of the message before `offset`, which is in the log.

    Yields an epoch whose end is to be asked for, takes the answer (None: the broker does not tell), and returns the
    epoch; None if the log's messages have none. The ends of epochs grow with them, so the first that ends at `offset`
    or later is the one. `latest`: the leader's, -1 for unknown. `known`: of an earlier message, None for unknown.
    """
    low, high = (-1 if known is None else known - 1), (latest if latest >= 0 else None)
    guess, step, bracketed = (max(0, latest - 1) if known is None else known), 1, False
    while True:
        end = yield guess
        if end is None or (end.end_offset < 0 and (latest >= 0 or guess == low + 1)):
            return None
        if end.end_offset < 0:  # the log has no epoch as late as this
            high = guess - 1
        elif end.end_offset >= offset:
            high = end.leader_epoch if low < end.leader_epoch < guess else guess
        else:
            bracketed = guess != known
            low = guess
        if high is None:
            guess = 2 * guess + 1
        elif high <= low + 1:
            return high if high > low else None
        else:
            guess, step = ((low + high) // 2 if bracketed else max(low + 1, high - step)), 2 * step


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
