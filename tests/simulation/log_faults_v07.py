"""What random schedules of groups of 0.7 do to logs: brokers that are rebuilt, topics and messages that are gone.

Strategy: as `tests.simulation.log_faults`. Old offsets lie inside of new messages, which is all that members can see. A
log that was cut looks like one that was created again, so its messages may be delivered again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tests.simulation.base_schedule import SETTLED_WITHIN
from tests.simulation.log_changes import NOTICED
from tests.simulation.log_faults import GONE, LogFaults
from tests.simulation.world import World

_Outcome = TypeVar("_Outcome")

#: The fault of unclean ends of logs.
CUT_LOGS = "cut logs"


class BrokerFaults(LogFaults[World, _Outcome]):
    """A schedule with these faults, if they are switched on."""

    #: Set by the schedule: of each topic on each broker its partitions, and those whose nodes are gone for a while.
    _topics: dict[tuple[str, int], int]
    _hidden: dict[tuple[str, int], int]
    #: Whether ZooKeeper stood still: then leases may end, and with them batches that handlers have.
    stood_still = False

    # -- what the schedule says

    def _join(self, latency: float | None = None) -> None:
        """One member more."""
        raise NotImplementedError

    def _settle(self) -> float:
        """Let time pass until everything is owned in fair shares."""
        raise NotImplementedError

    def _set_partitions(self, topic: str, broker: int, partitions: int) -> None:
        """Register a topic on a broker, or more partitions of it."""
        raise NotImplementedError

    # -- what LogFaults asks

    def _log_steps(self) -> list[tuple[float, Callable[[], None]]]:
        steps = super()._log_steps()
        return [*steps, (3, self._rebuild_broker), (2, self._stand_still)] if steps else []

    def _topic_counts(self) -> dict[str, int]:
        return {topic: count for (topic, broker), count in self._topics.items() if broker == 0}

    def _make_again(self, topic: str, partitions: int) -> None:
        self._topics[topic, 0] = partitions
        for (each, broker), count in list(self._topics.items()):
            if each == topic:
                self._set_partitions(topic, broker, count)

    def _gather(self) -> None:
        if not self._living:
            self._join()
        self._settle()

    def _truncate_logs(self) -> None:
        self.world.account.may_go_back = True
        super()._truncate_logs()
        now = self.world.kernel.now
        self._fault(CUT_LOGS, None)
        self.faults[-1] = self.faults[-1]._replace(start=now - NOTICED - 10.0)

    @property
    def _seen_when_stopped(self) -> bool:
        return True

    @property
    def _seen_afterwards(self) -> bool:
        return True

    @property
    def _cuts_seen(self) -> bool:
        return True

    # -- steps

    def _rebuild_broker(self) -> None:
        """A broker loses everything, and is back under its id with other messages."""
        self._be_whole()
        world, number = self.world, self.rng.choice(sorted(self.world.brokers))
        before = {each: 0 for each in world.partitions if each.broker == number}
        self._note(f"rebuild broker {number}")
        topics = world.rebuild_broker(number)
        self._pass(GONE * self.rng.uniform(0.1, 2.0))
        world.start_rebuilt(number, topics)
        for topic in topics:
            self._write_other(before, topic)
        self._pass(NOTICED)
        self._gather()

    def _stand_still(self) -> None:
        """ZooKeeper answers nobody for a while, and keeps all sessions: nobody owns what was another one's."""
        self._be_whole()
        # Those that leave would have others take partitions over in the meantime.
        leaving = [daemon for daemon in self.world.daemons.values() if daemon.name in self._told_to_leave]
        self.world.kernel.until(
            lambda: not any(daemon.alive for daemon in leaving), SETTLED_WITHIN, what="those that leave have left"
        )
        self._gather()
        zookeeper, seconds = self.world.zookeeper, self.rng.uniform(2.0, 4.0)
        self.stood_still = True
        self._note(f"ZooKeeper stands still for {seconds:.1f} s")
        for _ in range(8):
            self._burst()
            self._pass(0.1)
        links = [
            link
            for daemon in self._living
            for link in self.world.network.links_of(daemon.name, (zookeeper.host, zookeeper.port))
        ]
        for link in links:
            link.stall(up=False)
        self._pass(seconds)
        for link in links:
            link.stall(False)
        self._pass(NOTICED)
        self._gather()
