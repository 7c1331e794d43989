"""Random schedules of groups of Kafka 0.9 and later: coordinated by a broker, and with fixed partitions.

Strategy: as `tests.simulation.schedule`; a seed chooses how many brokers of which time there are and how far away, and
what happens. Kinds:

    calm     members join and leave in order (fixed: stop and start again), partitions are added, leaders and the
             coordinator move, brokers restart in order: nothing is lost, and nothing is delivered twice
    faulty   whatever else can happen to processes, connections and brokers

At every step: one delivery of a partition at a time, and only by the member that the coordinator knows as its owner;
commits are accepted of owners alone, never go back, and never run ahead of handlers. In the end everything is healed;
all is delivered, committed, and members leave. Each repeated message must be explained by a fault.

With fixed partitions a late commit of a dead process is not fenced. So a process that is killed there loses its
connections with all bytes in flight.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

from tests.simulation.base_schedule import SETTLED_WITHIN
from tests.simulation.consumer_coordinator import ConsumerCoordinator
from tests.simulation.daemon import Daemon
from tests.simulation.kafka_broker import CONSUMER_ERA, ERAS
from tests.simulation.kafka_logs import KafkaLogs
from tests.simulation.kafka_world import KafkaWorld
from tests.simulation.log_faults import GONE, LogFaults

KINDS = ("calm", "calm", "faulty", "faulty", "faulty")
_MOST_PARTITIONS = 24
_MOST_TOPICS = 3
#: Seconds besides the commit interval in which what was handled is committed: the handling, and a round trip.
_COMMITTED_WITHIN = 6.0


def _is_gone(daemon: Daemon) -> bool:
    return not daemon.alive


class Outcome(NamedTuple):
    """The summary of the events of a schedule."""

    seed: int
    kind: str
    era: str
    brokers: int
    partitions: int
    members: int
    generations: int
    messages: int
    repeated: int
    happened: tuple[str, ...]
    #: Equal for equal runs.
    digest: int


class ClusterSchedule(LogFaults[KafkaLogs, Outcome]):
    """The events of brokers and processes, for each way to assign partitions."""

    tests = "tests/simulation/test_kafka_schedules.py"
    fixed: ClassVar[bool]

    def __init__(self, seed: int, kind: str | None = None) -> None:
        super().__init__(seed, KINDS, kind)
        rng = self.rng
        self.era = rng.choice(ERAS)
        self.brokers = rng.choice((1, 2, 3, 3))
        #: From 1 to 200 ms, the near ones more often.
        self.round_trip = 0.001 * 200.0 ** (rng.random() ** 1.5)
        self.interval = rng.choice((0.5, 2.0, 10.0))
        self.latest = rng.random() < 0.3
        self._reconcile_interval = rng.choice((2.0, 5.0, 10.0))
        self.settings: dict[str, dict[str, Any]] = {
            "fetch": {"initial": "latest" if self.latest else "earliest"},
            "commit": {"interval": self.interval},
            "rebalance": {"reconcile_interval": self._reconcile_interval},
        }
        self._topics: dict[str, int] = {}

    def make_world(self) -> KafkaLogs:
        return KafkaWorld(
            self.seed, brokers=self.brokers, era=self.era, round_trip=self.round_trip, fixed=self.fixed
        )  # fmt: skip

    @property
    def description(self) -> str:
        return (
            f"{self.kind}, {self.brokers} brokers of {self.era.name}, round trip {self.round_trip * 1000:.1f} ms, "
            f"{self.settings}"
        )

    def play(self) -> None:
        world, rng = self.world, self.rng
        world.account.count_all(latest=self.latest)
        self._new_topic()
        self._start()
        if rng.random() < 0.7:
            self._settle()
        world.produce_steadily(rng.choice((3.0, 10.0, 20.0)))
        for _ in range(rng.randint(3, 8)):
            self._choose(self._steps())
            self._pass(rng.choice((0.0, 0.05, 0.5, 3.0, 8.0)) * rng.random())
        if rng.random() < 0.5:
            self._pass(rng.uniform(0.0, 15.0))
        self._end()

    # -- what subclasses say

    def _start(self) -> None:
        """The first processes."""
        raise NotImplementedError

    def _replace(self) -> None:
        """See that there is a process for everything, before the end."""
        raise NotImplementedError

    @property
    def _is_settled(self) -> bool:
        raise NotImplementedError

    # -- steps

    def _steps(self) -> list[tuple[float, Callable[[], None]]]:
        steps: list[tuple[float, Callable[[], None]]] = [
            (1, self._burst),
            (1, self._move_leaders),
            (1, self._move_coordinator),
            (1, self._roll_broker),
            *self._log_steps(),
        ]
        if self.kind == "faulty":
            steps += [
                (2, self._kill),
                (3, self._freeze),
                (1, self._suspend),
                (2, self._cut),
                (2, self._stall),
                (3, self._lose_reply),
                (2, self._crash_broker),
                (2, self._no_coordinator),
            ]
        return steps

    def _fault(self, what: str, names: Any, seconds: float = 0.0) -> None:
        super()._fault(what, names, seconds)
        self.faults[-1] = self.faults[-1]._replace(before=self.interval + _COMMITTED_WITHIN)

    def _new_topic(self) -> None:
        if len(self._topics) < _MOST_TOPICS:
            topic = f"t{len(self._topics)}"
            self._topics[topic] = self.rng.choice((1, 1, 2, 3, 5, 8))
            self._note(f"topic {topic}")
            self.world.topic(topic, self._topics[topic])

    def _more_partitions(self) -> None:
        topic = self.rng.choice(list(self._topics))
        more = self.rng.choice((1, 1, 3))
        if len(self.world.partitions) + more <= _MOST_PARTITIONS:
            self._note(f"partitions of {topic}")
            self._topics[topic] += more
            with self._growing(topic):
                self.world.topic(topic, self._topics[topic])

    def _topic_counts(self) -> dict[str, int]:
        return dict(self._topics)

    def _make_again(self, topic: str, partitions: int) -> None:
        self._topics[topic] = partitions
        self.world.topic(topic, partitions)

    def _gather(self) -> None:
        self.world.kafka.take_over(self.rng)
        self._replace()
        self._settle()
        self._pass(self._reconcile_interval + 2.0)
        self._settle()

    @property
    def _seen_when_stopped(self) -> bool:
        return not self.latest  # brokers drop the offsets of a topic with it

    @property
    def _seen_afterwards(self) -> bool:
        return self.era is ERAS[-1]

    @property
    def _gone_for(self) -> float | None:
        """Without ids, members look at the topics now and then; fixed ones have no look that shows it."""
        if self._seen_afterwards:
            return super()._gone_for
        return None if self.fixed else self._reconcile_interval + GONE

    @property
    def _cuts_seen(self) -> bool:
        return self.era is not ERAS[0]

    def _other(self, broker: int | None) -> int | None:
        others = [number for number in self.world.kafka.up() if number != broker]
        return self.rng.choice(others) if others else None

    def _move_leaders(self) -> None:
        kafka = self.world.kafka
        self._note("leaders move")
        for partition in self.world.partitions:
            leader = kafka.log(partition).leader
            other = self._other(leader)
            if leader is not None and other is not None and self.rng.random() < 0.6:
                kafka.lead(partition, other)

    def _move_coordinator(self) -> None:
        kafka = self.world.kafka
        other = self._other(kafka.coordinated_by)
        if other is not None and kafka.coordinated_by is not None:
            self._note(f"coordinator moves to {other}")
            kafka.coordinate(other)

    def _one_of_many(self) -> int | None:
        """A broker beside which another one runs."""
        up = self.world.kafka.up()
        return self.rng.choice(up) if len(up) > 1 else None

    def _roll_broker(self) -> None:
        """A broker restarts in order: its leaderships move before it stops."""
        kafka, number = self.world.kafka, self._one_of_many()
        if number is None:
            return
        self._note(f"roll broker {number}")
        for partition in self.world.partitions:
            if kafka.log(partition).leader == number:
                kafka.lead(partition, self._other(number))
        if kafka.coordinated_by == number and (other := self._other(number)) is not None:
            kafka.coordinate(other)
        kafka.stop_broker(number)
        self._later(self.rng.uniform(0.1, 8.0), lambda: self._start_broker(number))

    def _start_broker(self, number: int) -> None:
        broker = self.world.kafka.brokers[number]
        if not broker.up:
            self.world.kernel.note("schedule", f"broker {number} is back")
            broker.start()

    # -- faults

    def _crash_broker(self) -> None:
        """One ends at once; others take over after a while, and it comes back."""
        kafka, number = self.world.kafka, self._one_of_many()
        if number is None:
            return
        away = self.rng.choice((0.2, 3.0, 9.0)) * self.rng.uniform(0.7, 1.3)
        self._fault(f"crash of broker {number}, {away:.1f} s until others take over", None, away)
        kafka.stop_broker(number)
        self._later(away, lambda: kafka.take_over(self.rng))
        self._later(away + self.rng.uniform(0.1, 8.0), lambda: self._start_broker(number))

    def _no_coordinator(self) -> None:
        kafka = self.world.kafka
        if kafka.coordinated_by is None:
            return
        seconds = self.rng.choice((0.5, 4.0, 12.0)) * self.rng.uniform(0.7, 1.3)
        self._fault(f"no coordinator for {seconds:.1f} s", None, seconds)
        kafka.leave_group_alone()
        self._later(seconds, lambda: kafka.take_over(self.rng))

    def _links(self, daemon: Daemon) -> list[Any]:
        """All of its connections, or those to one broker."""
        links = self.world.network.links_of(daemon.name)
        addresses = sorted({link.address for link in links})
        if addresses and self.rng.random() < 0.5:
            address = self.rng.choice(addresses)
            links = [link for link in links if link.address == address]
        return links

    # -- the end

    def _settle(self, seconds: float = SETTLED_WITHIN) -> None:
        self.world.kernel.until(lambda: self._is_settled, seconds, what="all partitions are owned in fair shares")
        self._pass(1.5 + 20 * self.round_trip)

    def _end(self) -> None:
        world, account = self.world, self.world.account
        self._heal()
        world.kafka.take_over(self.rng)
        self._replace()
        self._settle()
        self._pass(self._reconcile_interval + 2.0)  # who has not seen a new topic yet joins again for it
        self._settle()
        self._note("all settled")
        world.kernel.until(
            lambda: not self.latest or account.begun >= set(world.partitions), 30.0, what="all partitions have begun"
        )
        for partition in sorted(world.partitions):
            world.produce(partition)
        world.finish()
        self._require(not account.lost, f"lost: {account.lost[:5]}")
        self._require_last_hand_overs()
        self._pass(self.interval + _COMMITTED_WITHIN)
        self._require(self._is_settled, "the group does not stay as it has settled")
        self._require(not account.uncommitted, f"not committed: {account.uncommitted[:5]}")
        world.produce_all()  # in flight, or just handled, when they leave
        self._pass(self.rng.uniform(0.0, 1.0))
        self._terminate(self._living)
        self._pass(0.5)
        self._require(not world.kafka.members(), f"members are left: {world.kafka.members()}")
        self._require(not account.uncommitted, f"not committed in the end: {account.uncommitted[:5]}")
        self._explain_repeats()

    def outcome(self) -> Outcome:
        world, account = self.world, self.world.account
        return Outcome(
            self.seed,
            self.kind,
            self.era.name,
            self.brokers,
            len(world.partitions),
            len(world.daemons),
            world.kafka.coordinator.generation,
            account.count,
            len(account.repeated),
            tuple(self.happened),
            hash(tuple(each.time for each in account.hand_overs)) ^ hash(world.kernel.now),
        )


class CoordinatedSchedule(ClusterSchedule):
    """A broker coordinates the group."""

    fixed = False

    def __init__(self, seed: int, kind: str | None = None) -> None:
        super().__init__(seed, kind)
        rng = self.rng
        self._most_members = 8 if rng.random() < 0.3 else 4
        session = rng.choice((6.0, 10.0))
        self.settings["group"] = {
            "session_timeout": session,
            "heartbeat_interval": session * rng.choice((0.1, 0.3, 0.5)),
            "rebalance_timeout": session + rng.choice((0.0, 4.0, 20.0)),
            "assignor": rng.choice(("range", "roundrobin")),
        }

    def _start(self) -> None:
        for _ in range(self.rng.randint(1, 3)):
            self._join()
            if self.rng.random() < 0.5:
                self._pass(self.rng.uniform(0.0, 3.0))

    def _replace(self) -> None:
        if not self._living:
            self._join()

    @property
    def _is_settled(self) -> bool:
        return self.world.is_shared

    def _steps(self) -> list[tuple[float, Callable[[], None]]]:
        return [
            (5, self._join),
            (4, self._leave),
            (1, self._new_topic),
            (1, self._more_partitions),
            *super()._steps(),
        ]

    def _join(self) -> None:
        if len(self._living) >= self._most_members:
            return
        self._names += 1
        name = f"m{self._names}"
        self._note(f"join {name}")
        self.world.daemon(name, self.settings, handling=self.rng.choice((0.0, 0.002, 0.05, 0.3)))

    def _provoke(self, daemon: Daemon) -> None:
        self.rng.choice((self._join, self._leave, lambda: None))()


class ConsumerProtocolSchedule(CoordinatedSchedule):
    """The broker assigns the partitions, too (KIP-848)."""

    def __init__(self, seed: int, kind: str | None = None) -> None:
        super().__init__(seed, kind)
        self.era = CONSUMER_ERA
        self.settings["group"] |= {"protocol": "consumer"}

    def make_world(self) -> KafkaLogs:
        world = super().make_world()
        coordinator = world.kafka.coordinator
        assert isinstance(coordinator, ConsumerCoordinator)
        coordinator.session = self.settings["group"]["session_timeout"]  # the longest that members may count on
        coordinator.interval = self.settings["group"]["heartbeat_interval"]
        return world

    @property
    def _seen_afterwards(self) -> bool:
        return True


class FixedSchedule(ClusterSchedule):
    """Processes with fixed partitions, each partition in one of them."""

    fixed = True

    def __init__(self, seed: int, kind: str | None = None) -> None:
        super().__init__(seed, kind)
        #: Of each place its partitions, and the process that is or was there last.
        self._places: list[tuple[dict[str, list[int]], Daemon]] = []

    def _start(self) -> None:
        rng, count = self.rng, self.rng.randint(1, 3)
        shares: list[dict[str, list[int]]] = [{} for _ in range(count)]
        for number, partition in enumerate(self.world.partitions):
            share = shares[number % count] if number < count else rng.choice(shares)
            share.setdefault(partition.topic, []).append(partition.partition)
        self._places = [(share, self._process(share)) for share in shares if share]

    def _process(self, share: dict[str, list[int]]) -> Daemon:
        self._names += 1
        name = f"m{self._names}"
        self._note(f"start {name}")
        settings = {**self.settings, "group": {"partitions": share}}
        return self.world.daemon(name, settings, handling=self.rng.choice((0.0, 0.002, 0.05, 0.3)))

    def _replace(self) -> None:
        """Start another process for each that has ended or was asked to leave."""
        for at, (share, daemon) in enumerate(self._places):
            if daemon.name in self._told_to_leave:
                self.world.kernel.until(partial(_is_gone, daemon), 30.0, what=f"{daemon.name} is gone")
            if not daemon.alive:
                self._places[at] = (share, self._process(share))

    @property
    def _is_settled(self) -> bool:
        return all(daemon.alive for _, daemon in self._places)

    def _other_count(self, partitions: int) -> int:
        return partitions

    def _require_last_hand_overs(self) -> None:
        """Nothing to check: no assignor assigns fixed partitions."""

    def _steps(self) -> list[tuple[float, Callable[[], None]]]:
        return [(4, self._leave), (6, self._start_again), *super()._steps()]

    def _start_again(self) -> None:
        for at, (share, daemon) in enumerate(self._places):
            if not daemon.alive:
                self._places[at] = (share, self._process(share))
                return

    def _kill(self) -> None:
        daemon = self._one()
        if daemon is not None:
            self._fault(f"kill {daemon.name}", [daemon.name])
            for link in self.world.network.links_of(daemon.name):
                link.cut()
            daemon.kill()
