"""What random schedules do to logs: topics that are made again, logs that are cut, partitions that come.

Strategy: `LogFaults.log_changes` switches all of it on, for every schedule. Each change happens to a group that is
whole, which then has the time to notice it (`NOTICED`); what is known about a change while its members were disturbed
in other ways may be too little for anybody. In what way members see it is random: they run, one of them is frozen, or
none is there. Nothing that these faults do explains that a message is delivered twice, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar, TypeVar

from consumerd.base.partition import TopicPartition
from tests.simulation.base_schedule import SETTLED_WITHIN, BaseSchedule
from tests.simulation.base_world import BaseWorld
from tests.simulation.log_changes import NOTICED

_World = TypeVar("_World", bound=BaseWorld)
_Outcome = TypeVar("_Outcome")

#: Seconds for which a topic is gone, where members have to see that, and where they need not.
GONE, HARDLY_GONE = 3.0, 0.5


class LogFaults(BaseSchedule[_World, _Outcome]):
    """A schedule with these faults, if they are switched on."""

    #: Whether logs become other ones.
    log_changes: ClassVar[bool] = False

    # -- what subclasses say

    def _topic_counts(self) -> dict[str, int]:
        """The topics that may be made again, with their numbers of partitions."""
        raise NotImplementedError

    def _make_again(self, topic: str, partitions: int) -> None:
        """Make a topic after it was deleted."""
        raise NotImplementedError

    def _gather(self) -> None:
        """Let the group be whole: at least one member, and everything owned."""
        raise NotImplementedError

    def _other_count(self, partitions: int) -> int:
        """How many partitions a topic has the next time."""
        return self.rng.choice((partitions, partitions, max(1, partitions - 1), partitions + 1))

    @property
    def _seen_when_stopped(self) -> bool:
        """Whether a group without members finds out afterwards that a topic was made again."""
        raise NotImplementedError

    @property
    def _seen_afterwards(self) -> bool:
        """Whether members find out that a topic was made again, which they did not see gone."""
        raise NotImplementedError

    @property
    def _gone_for(self) -> float | None:
        """Seconds for which a topic is gone until running members see that it is; None: they never do."""
        return GONE

    @property
    def _cuts_seen(self) -> bool:
        """Whether members find out that a log was cut and written on."""
        raise NotImplementedError

    # -- steps

    def _log_steps(self) -> list[tuple[float, Callable[[], None]]]:
        if not self.log_changes:
            return []
        return [(3, self._recreate_topic), (3, self._truncate_logs)]

    def _be_whole(self) -> None:
        """Everything is healed, the group is whole, and has begun to read every log."""
        world = self.world
        self._heal()
        self._gather()
        world.kernel.until(
            lambda: world.account.begun >= set(world.partitions) or world.account.counts_all,
            SETTLED_WITHIN,
            what="all partitions have begun",
        )

    def _recreate_topic(self) -> None:
        counts, gone_for = self._topic_counts(), self._gone_for
        if not counts or gone_for is None:
            return
        self._be_whole()
        topic = self.rng.choice(sorted(counts))
        before = {each: self.world.end(each) for each in self.world.partitions if each.topic == topic}
        partitions = self._other_count(counts[topic])
        ways = ["running", *(["frozen"] if self._seen_afterwards else [])]
        ways += ["stopped"] if self._seen_when_stopped else []
        way = self.rng.choice(ways)
        self._note(f"recreate {topic} with {partitions} partitions instead of {len(before)}, members {way}")
        frozen = self._one() if way == "frozen" else None
        if way == "stopped":
            self._leave_together()
        if frozen is not None:
            frozen.freeze()
        self.world.delete_topic(topic)
        self._pass(HARDLY_GONE if frozen is not None else gone_for * self.rng.uniform(1.0, 2.0))
        self._make_again(topic, partitions)
        self._write_other(before, topic)
        if frozen is not None:
            self._pass(self.rng.uniform(0.0, 1.5))
            frozen.thaw()
        self._pass(NOTICED)
        self._gather()

    def _write_other(self, before: dict[TopicPartition, int], topic: str) -> None:
        """Fewer messages than before, as many, or more. Partitions that are new count from their beginning."""
        for partition in sorted(each for each in self.world.partitions if each.topic == topic):
            former = len(self.world.account.former(partition))
            if partition not in before:
                self.world.account.log_added(partition)
            count = self.rng.choice((0, former // 2, former, 2 * former + 3))
            self.world.produce(partition, count)

    def _truncate_logs(self) -> None:
        """Unclean elections: the last messages are gone, and others may come in their place."""
        if not self._cuts_seen:
            return
        self._be_whole()
        for partition in sorted(self.world.partitions):
            offsets = self.world.account.offsets(partition)
            if offsets and self.rng.random() < 0.6:
                lost = self.rng.randint(1, min(len(offsets), 30))
                self._note(f"truncate {partition} by {lost} of {len(offsets)}")
                self.world.truncate_log(partition, lost)
                self.world.produce(partition, self.rng.choice((0, lost // 2, lost, 2 * lost + 3)))
        self._pass(NOTICED)
        self._gather()

    @contextmanager
    def _growing(self, topic: str) -> Iterator[None]:
        """Partitions that are added to a topic which the group has begun to read count from their beginning."""
        known = set(self.world.partitions)
        begun = self.world.account.begun >= {each for each in known if each.topic == topic}
        yield
        for partition in sorted(set(self.world.partitions) - known) if begun and self.log_changes else ():
            self.world.account.log_added(partition)

    def _leave_together(self) -> None:
        leaving = self._living
        for daemon in leaving:
            self._told_to_leave.add(daemon.name)
            daemon.terminate()
        for daemon in leaving:
            self.world.until_ended(daemon)
