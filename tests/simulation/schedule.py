"""One random schedule of a whole group, made from a seed: what happens, and what has to be true of it.

Strategy: a seed chooses a world (how far away ZooKeeper is, how many partitions on how many brokers, how members are
configured) and a kind of run, and then what happens at random times, one step after the other. Kinds:

    calm     members join and leave in order, topics and partitions come, brokers move: nothing is lost, and nothing is
             delivered twice
    priced   the same, one event after the other has settled: each costs no more requests than `requests` allows
    faulty   whatever else can happen to processes, connections, ZooKeeper and its nodes
    large    calm, with some hundred partitions, and nothing but the drains writes offsets
    churn    members near ZooKeeper and far from it come and go, commit all the time, and owner nodes vanish meanwhile
    mixed    calm, beside consumers as the JVM's own
    rough    faulty, beside those
    nodes    calm, but id nodes are deleted, left behind by processes that start again, or written by others

The account checks every step: one delivery of a partition at a time, by its owner; offsets are committed only after
they were handled, and only by the owner; none moves backwards (except through a JVM peer), and committed messages are
not delivered again. A member may learn late only of changes that others made to its nodes. At the end all faults are
repaired; the group has to settle, deliver all messages, write all offsets, and leave. Each repeated message must be
explained by a fault that ended the ownership of the member that got it first.

A failure is reported with its timeline. `CONSUMERD_SEED=<seed>` runs that schedule alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from consumerd.base.partition import TopicPartition
from consumerd.group.rules import V08Rules
from consumerd.wire.registry.nudge import nudge_operations
from consumerd.wire.registry.paths import (
    broker_path,
    id_path,
    ids_path,
    offset_path,
    offsets_path,
    owners_root,
    topic_broker_path,
)
from consumerd.wire.registry.subscription import StaticSubscription
from tests.simulation import requests
from tests.simulation.account import HandOver
from tests.simulation.base_schedule import AFTERMATH, SETTLED_WITHIN, Fault
from tests.simulation.broker import SimulatedBroker
from tests.simulation.daemon import Daemon
from tests.simulation.jvm import JvmConsumer
from tests.simulation.log_faults_v07 import CUT_LOGS, BrokerFaults
from tests.simulation.network import Line
from tests.simulation.ownership import Cause, End
from tests.simulation.world import World

KINDS = ("calm", "calm", "priced", "large", "churn", *4 * ("faulty",), "mixed", "rough")
#: Played where a test names it only: the seeds of the others keep their schedules.
NODES = "nodes"
#: Seconds after which a session that a fault keeps from its server has timed out, and the server has seen it.
TIMES_OUT = 9.0
#: Seconds to ZooKeeper, one way, for members that hear late of what others do.
FAR = 0.15
#: Seconds within which what others do is not hindered by a topic that cannot be read, or by a broker that moves.
UNHINDERED = 20.0


def _explains(fault: Fault, first: HandOver, again: HandOver, ends: list[End]) -> bool:
    """Whether this fault explains that the message of `first` was delivered once more.

    `ends`: how the ownership of the member that got it first ended in between. Where it did not end, only the lease.
    """
    if fault.names is not None and first.member not in fault.names:
        return False
    if fault.what == CUT_LOGS:  # 0.7 cannot tell such a log from one of another broker, with any reader
        return fault.start <= again.time <= fault.end + AFTERMATH
    if ends:
        return any(
            fault.start <= end.time <= fault.end + TIMES_OUT and (end.cause is Cause.TAKEN or not fault.takes)
            for end in ends
        )
    return first.member == again.member and fault.start <= again.time and first.time <= fault.end + AFTERMATH


class Price(NamedTuple):
    """The requests to ZooKeeper for an event, and their limit."""

    event: str
    members: int
    moved: int
    requests: int
    limit: int


class Outcome(NamedTuple):
    """The summary of the events of a schedule."""

    seed: int
    kind: str
    partitions: int
    members: int
    messages: int
    prices: tuple[Price, ...]
    repeated: int
    happened: tuple[str, ...]
    #: Equal for equal runs.
    digest: int


class Schedule(BrokerFaults[Outcome]):
    """The schedule of one seed; `kind`: instead of the one that the seed chooses."""

    def __init__(self, seed: int, kind: str | None = None) -> None:
        super().__init__(seed, KINDS, kind)
        rng = self.rng
        self.faulty = self.kind in ("faulty", "rough")
        self.large = self.kind == "large"
        self.churn = self.kind == "churn"
        self.with_jvm = self.kind in ("mixed", "rough")
        #: From 1 to 400 ms, the near ones more often.
        self.round_trip = 0.001 * 400.0 ** (rng.random() ** 1.5)
        if self.large:
            self.round_trip = rng.uniform(0.01, 0.06)
        self.latest = not self.with_jvm and rng.random() < 0.4
        self.prices: list[Price] = []
        self._topics = {}
        self._hidden = {}
        self._most_members = 8 if rng.random() < 0.3 else 4
        self._reconcile = rng.choice((4.0, 10.0, 30.0))
        if self.kind == "priced":
            self._reconcile = 3600.0
        #: Whether members are at different distances from ZooKeeper.
        self._scattered = self.churn or (self.kind not in ("priced", "large") and rng.random() < 0.3)
        #: The process that was cut off from ZooKeeper last: it happens to the same one again.
        self._unlucky = ""
        #: Of each process its consumer id.
        self._ids: dict[str, str] = {}
        #: The distance of members from ZooKeeper, where it differs from that of all others.
        self._latencies: dict[str, float] = {}
        self.settings: dict[str, dict[str, Any]] = {
            "fetch": {"initial": "latest" if self.latest else "earliest"},
            "commit": {"interval": rng.choice((0.5, 2.0, 10.0))},
            "rebalance": {"reconcile_interval": self._reconcile},
        }
        if self.kind == "priced" or self.large:
            self.settings["commit"]["interval"] = 3600.0
        if self.churn:
            self.settings["commit"]["interval"] = rng.choice((0.1, 0.3))
            self.settings["rebalance"]["drain_timeout"] = rng.choice((0.1, 0.5, 4.0))

    # -- the run

    def make_world(self) -> World:
        return World(self.seed, round_trip=self.round_trip)

    @property
    def description(self) -> str:
        return f"{self.kind}, round trip {self.round_trip * 1000:.1f} ms, {self.settings}"

    def play(self) -> None:
        world, rng = self.world, self.rng
        world.account.count_all(latest=self.latest)
        if self.kind != "priced" and rng.random() < 0.3:
            self._silent_address()
        for broker in range(1, rng.randint(1, 3)):
            world.add_broker(broker)
        self._new_topic()
        for _ in range(rng.randint(1, 3)):
            self._join()
            if rng.random() < 0.5:
                self._pass(rng.uniform(0.0, 3.0))
        if rng.random() < 0.7 or self.kind == "priced":
            self._settle()
        if self.kind == "priced":
            for _ in range(rng.randint(2, 4)):
                self._priced_step()
        else:
            world.produce_steadily(rng.choice((3.0, 10.0, 20.0)) if not self.large else 60.0)
            pauses = (0.0, 0.05, 0.2, 0.5, 1.5) if self.churn else (0.0, 0.05, 0.5, 3.0, 8.0)
            for _ in range(rng.randint(2, 4) if self.large else rng.randint(3, 5) if self.churn else rng.randint(3, 8)):
                self._step()
                self._pass(rng.choice(pauses) * rng.random())
            if rng.random() < 0.5:
                self._pass(rng.uniform(0.0, 15.0))
        self._end()

    def _silent_address(self) -> None:
        """The name of ZooKeeper stands for two addresses, of which the first leads nowhere."""
        world = self.world
        world.zookeeper_name = "zookeepers"
        world.network.names["zookeepers"] = ["nowhere", world.zookeeper.host]
        world.network.silent.add("nowhere")

    # -- steps

    def _step(self) -> None:
        if self.large or self.churn:
            steps: list[tuple[float, Callable[[], None]]] = [(4, self._join), (3, self._leave)]
            if self.churn:
                steps += [(4, self._overtake), (1, self._delete_owner), (1, self._slow_zookeeper)]
            self._choose(steps)
            return
        self._choose(self._usual_steps())

    def _usual_steps(self) -> list[tuple[float, Callable[[], None]]]:
        steps: list[tuple[float, Callable[[], None]]] = [
            (4, self._join),
            (3, self._leave),
            (1, self._new_topic),
            (1, self._more_partitions),
            (1, self._burst),
            (0.5, self._move_broker),
            (0.5, self._restart_broker),
            (0.5, self._new_broker),
            (0.5, self._hide_topic),
            (0.5, self._slow_zookeeper),
            (0.6, self._forbid_topic),
            (0.6, self._watched_move),
            *(() if self.with_jvm else self._log_steps()),
        ]
        if self.faulty:
            steps += [
                (2, self._kill),
                (3, self._freeze),
                (2, self._suspend),
                (2, self._cut),
                (2, self._stall),
                (3, self._cut_off),
                (3, self._lose_reply),
                (2, self._expire),
                (1, self._stale_follower),
                (1, self._outage),
                (2, self._delete_owner),
                (2, self._steal_owner),
                (2, self._join_and_delete),
            ]
        if self.with_jvm:
            steps += [(5, self._join_jvm), (4, self._leave_jvm)]
        if self.kind == "rough":
            steps += [(3, self._freeze_jvm), (2, self._kill_jvm)]
        if self.kind == NODES:
            steps += [(6, self._restart), (4, self._delete_id), (4, self._strange_id), (2, self._nudge)]
        return steps

    def _fault(
        self,
        what: str,
        names: Iterable[str] | None,
        seconds: float = 0.0,
        *,
        disturbs: bool = True,
        takes: bool = False,
    ) -> None:
        """`disturbs`: it keeps news of ZooKeeper from whom it hits. `takes`: see Fault."""
        names = None if names is None else list(names)
        super()._fault(what, names, seconds)
        self.faults[-1] = self.faults[-1]._replace(takes=takes)
        if disturbs:
            for name in (None,) if names is None else names:
                self.world.account.disturbed(name, seconds + TIMES_OUT)

    @property
    def _living_jvm(self) -> list[JvmConsumer]:
        consumers = self.world.jvm_consumers.values()
        return [each for each in consumers if each.alive and each.name not in self._told_to_leave]

    def _join(self, latency: float | None = None, consumer_id: str = "") -> None:
        """One member more. `latency`: seconds to ZooKeeper, one way; by default as the schedule has it."""
        if len(self._living) >= self._most_members:
            return
        self._names += 1
        name = f"{self.rng.choice('abc')}{self._names}"  # a newcomer may come before or behind the others
        self._note(f"join {name} {consumer_id}")
        settings = {**self.settings, "group": {"consumer_id": consumer_id or name}}
        self._ids[name] = consumer_id or name
        handling = self.rng.choice((0.0, 0.002, 0.05) if self.churn else (0.0, 0.002, 0.05, 0.3))
        if self.faulty and self.rng.random() < 0.5:
            handling = 0.3
        if self._scattered and latency is None:
            latency = 0.0005 * 400.0 ** self.rng.random()
        if latency is not None:
            zookeeper = self.world.zookeeper
            self.world.network.set_line(name, (zookeeper.host, zookeeper.port), Line(latency))
            self._latencies[name] = latency
        peculiar = {each: self.faulty and self.rng.random() < 0.3 for each in ("stubborn", "lingering")}
        self.world.daemon(name, settings, handling=handling, **peculiar)

    def _new_topic(self) -> None:
        if len({topic for topic, _ in self._topics}) >= 3:
            return
        topic = f"t{len(self._topics)}"
        for broker in self.world.brokers:
            if broker == 0 or self.rng.random() < 0.5:
                counts = (60, 100, 150) if self.large else (1, 1, 2, 3, 5, 8, 12)
                self._set_partitions(topic, broker, self.rng.choice(counts))
        self._note(f"topic {topic}")

    def _set_partitions(self, topic: str, broker: int, partitions: int) -> None:
        self._topics[topic, broker] = partitions
        self.world.topic(topic, partitions, broker=broker)

    def _more_partitions(self) -> None:
        places = [place for place in self._topics if place not in self._hidden]
        if places:
            place = self.rng.choice(places)
            self._note(f"partitions of {place}")
            with self._growing(place[0]):
                self._set_partitions(*place, self._topics[place] + self.rng.choice((1, 1, 3)))

    def _new_broker(self) -> None:
        broker = len(self.world.brokers)
        if broker >= 4:
            return
        self._note(f"broker {broker} is new")
        self.world.add_broker(broker)
        if self.rng.random() < 0.7:
            self._set_partitions(self.rng.choice(list(self._topics))[0], broker, self.rng.randint(1, 4))

    def _hide_topic(self) -> None:
        """A topic's node goes, and comes back in the end, or sooner."""
        places = [place for place in self._topics if place not in self._hidden]
        if len(places) < 2:
            return
        place = self.rng.choice(places)
        self._note(f"gone {place}")
        self._hidden[place] = self._topics[place]
        self.world.zookeeper.remove(topic_broker_path(*place))

        def back() -> None:
            if self._hidden.pop(place, None) is not None:
                self._note(f"back {place}")
                self.world.zookeeper.put(topic_broker_path(*place), b"%d" % self._topics[place])

        self._later(self.rng.uniform(0.1, 15.0), back)

    def _broker(self) -> SimulatedBroker:
        return self.rng.choice(list(self.world.brokers.values()))

    def _move_broker(self) -> None:
        broker = self._broker()
        self._note(f"move broker {broker.id}")
        self._names += 1
        broker.move(f"broker{broker.id}-{self._names}", 9092, silent=self.rng.random() < 0.5)
        self.world.zookeeper.put(broker_path(broker.id), broker.address.encode())

    def _restart_broker(self) -> None:
        broker = self._broker()
        self._note(f"restart broker {broker.id}")
        broker.stop()
        self._later(self.rng.uniform(0.1, 5.0), broker.start)

    def _watched_move(self) -> None:
        """A broker moves while nothing else happens, and its old address does not answer any more."""
        if self._hidden or self.faulty or self.with_jvm or not self._living:
            return
        self._heal()
        self._settle()
        broker = self._broker()
        self._pass(3.0)
        self._note(f"move broker {broker.id}, watched")
        self._names += 1
        broker.move(f"broker{broker.id}-{self._names}", 9092, silent=True)
        self.world.zookeeper.put(broker_path(broker.id), broker.address.encode())
        for partition in self.world.partitions:
            if partition.broker == broker.id:
                self.world.produce(partition)
        fresh = {(each, offsets[-1]) for each in self.world.partitions if (offsets := self.world.account.offsets(each))}
        self.world.kernel.until(
            lambda: not fresh & {each[:2] for each in self.world.account.lost},
            UNHINDERED,
            what="the broker is found where it is now",
        )

    def _forbid_topic(self) -> None:
        """The node of a topic cannot be read for a while: the others are shared all the same."""
        self._new_topic()
        places = [place for place in self._topics if place not in self._hidden]
        if self.faulty or len({topic for topic, _ in places}) < 2 or len(self._living) >= self._most_members:
            return
        if self._living_jvm:  # they share nothing while there is a topic that they cannot read
            return
        if self.world.zookeeper.forbidden:  # one at a time: all others are to be shared
            return
        topic, broker = self.rng.choice(places)
        self._note(f"unreadable {topic} at {broker}")
        path = topic_broker_path(topic, broker)
        zookeeper = self.world.zookeeper
        zookeeper.forbidden.add(path)
        zookeeper.put(path, b"%d" % self._topics[topic, broker])  # who has it in mind has to read it again

        def back() -> None:
            if path in zookeeper.forbidden:
                self._note(f"readable {topic} at {broker}")
                zookeeper.forbidden.discard(path)
                zookeeper.put(path, b"%d" % self._topics[topic, broker])

        self._later(3 * UNHINDERED, back)
        self._pass(self.rng.uniform(0.0, 2.0))
        self._join()
        self._unhindered({other for other, _ in places} - {topic})

    def _unhindered(self, topics: set[str]) -> None:
        """Partitions of these topics are owned within a while, in spite of events elsewhere."""
        wanted = {each for each in self.world.partitions if each.topic in topics}

        def shared() -> bool:
            owners = self.world.owners()
            if not wanted <= owners.keys():
                return False
            names = sorted(daemon.name for daemon in self._living)
            return all(
                self._fairly({each: owners[each] for each in wanted if each.topic == topic}, names) for topic in topics
            )

        self.world.kernel.until(shared, 2 * UNHINDERED, what=f"{sorted(topics)} are shared")

    def _slow_zookeeper(self) -> None:
        line = self.world.zookeeper.line
        before = self.round_trip / 2
        line.latency = 0.0005 * 400.0 ** self.rng.random()
        self._note(f"slow ZooKeeper: {2000 * line.latency:.0f} ms")
        self._later(self.rng.uniform(1.0, 15.0), lambda: setattr(line, "latency", before))

    # -- faults

    def _busy(self, daemon: Daemon) -> Daemon:
        """Perhaps a slow member instead, with a current batch and more in its lanes."""
        if self.rng.random() < 0.3:
            return daemon
        slow = max(self._living, key=lambda each: (not each.loop.stopped, each.peculiar, each.handling, each.name))
        if slow.loop.stopped:
            return daemon
        owners, before, rounds = self.world.owners(), len(self.world.account.hand_overs), 0
        for _ in range(12):  # an idle partition is polled once a second
            for partition in self.world.partitions:
                if owners.get(partition) == slow.name:
                    self.world.produce(partition)
            self._pass(self.rng.uniform(0.02, 0.15))
            rounds += any(each.member == slow.name for each in self.world.account.hand_overs[before:])
            if rounds == 2:
                break
        return daemon if slow.loop.stopped or slow not in self._living else slow

    def _isolate(self, daemon: Daemon, seconds: float) -> None:
        """Its network may come back later than the machine."""
        if self.rng.random() < 0.6:
            name, host, later = daemon.name, self.world.zookeeper.host, self.rng.uniform(0.5, 3.0)
            self.world.network.cut_off(name, host)
            self.world.account.disturbed(name, seconds + later + TIMES_OUT)
            self._later(seconds + later, lambda: self.world.network.cut_off(name, host, False))

    def _cut_off(self) -> None:
        """A process and ZooKeeper cannot reach each other; brokers are not concerned."""
        known = [daemon for daemon in self._living if daemon.name == self._unlucky]
        daemon = known[0] if known and self.rng.random() < 0.7 else self._one()
        network, host = self.world.network, self.world.zookeeper.host
        if daemon is None:
            return
        if not known:
            daemon = self._busy(daemon)
        name = self._unlucky = daemon.name
        for _ in range(self.rng.choice((1, 1, 2))):
            seconds = self.rng.choice((2.0, 9.0, 12.0)) * self.rng.uniform(0.7, 1.3)
            self._fault(f"cut-off {name} for {seconds:.1f} s", [name], seconds)
            network.cut_off(name, host)
            self._later(seconds, lambda: network.cut_off(name, host, False))
            if self.rng.random() < 0.5:
                self._pass(seconds + self.rng.uniform(1.0, 5.0))
                if not daemon.alive or daemon.loop.stopped or daemon not in self._living:
                    break
                self._busy(daemon)

    def _links(self, daemon: Daemon) -> list[Any]:
        """Of its connections, those to ZooKeeper more often than those to brokers."""
        zookeeper = self.world.zookeeper
        address = (zookeeper.host, zookeeper.port) if self.rng.random() < 0.8 else None
        return self.world.network.links_of(daemon.name, address)

    def _provoke(self, daemon: Daemon) -> None:
        self.rng.choice((self._join, self._leave, lambda: None))()

    def _is_explained(self, first: HandOver, again: HandOver) -> bool:
        if not again.owned:
            return True  # the account has made sure that it could not know better
        since = first.time if first.owned else 0.0
        ends = self.world.account.ownership.ends_between(first.member, again.partition, since, again.time)
        if any(_explains(fault, first, again, ends) for fault in self.faults):
            return True
        # The deadline of a drain comes before the end of a handler that takes longer.
        daemon = self.world.daemons.get(first.member)
        slow = self.stood_still or (daemon is not None and (self.churn or daemon.lingering))
        if slow and (first.member, again.partition, again.offset) in self.world.account.cancelled:
            return True
        # A JVM peer reads the offset before it claims, and the other member commits while it drains.
        return again.member in self.world.jvm_consumers

    def _expire(self) -> None:
        daemon = self._one()
        if daemon is not None:
            self._fault(f"expire {daemon.name}", [daemon.name])
            self.world.zookeeper.expire(daemon.name)

    def _stale_follower(self) -> None:
        zookeeper = self.world.zookeeper
        lag = self.rng.choice((0.02, 0.2, 1.0))
        cut = [daemon for daemon in self._living if self.rng.random() < 0.5]
        self._fault(f"follower that is {lag:g} s behind", [daemon.name for daemon in cut])
        follower = zookeeper.entry = zookeeper.follow(lag)
        for daemon in cut:
            for link in self.world.network.links_of(daemon.name, (zookeeper.host, zookeeper.port)):
                link.cut()

        def heal() -> None:
            """The server is down, and its clients connect to another one."""
            zookeeper.entry = zookeeper.leader
            connections = list(follower.connections)
            self._fault("follower is gone", [connection.link.client for connection in connections])
            for connection in connections:
                connection.link.cut()

        self._later(self.rng.uniform(1.0, 20.0), heal)

    def _outage(self) -> None:
        zookeeper = self.world.zookeeper
        if zookeeper.down:
            return
        seconds = self.rng.choice((1.0, 5.0, 12.0)) * self.rng.uniform(0.7, 1.3)
        self._fault(f"outage of ZooKeeper for {seconds:.1f} s", None, seconds)
        zookeeper.stop()
        self._later(seconds, zookeeper.start)

    def _owner_nodes(self) -> list[str]:
        tree, root = self.world.zookeeper.tree, owners_root(self.world.group) + "/"
        return [path for path, node in tree.nodes.items() if node.owner and path.startswith(root)]

    def _displace(self, path: str) -> None:
        """An owner node is deleted while its owner lives, and may be frozen."""
        self.world.zookeeper.remove(path)

    def _delete_owner(self) -> None:
        daemon = self._one()
        if self.faulty and daemon is not None:
            self._busy(daemon)
        nodes = self._owner_nodes()
        for path in self.rng.sample(nodes, min(len(nodes), self.rng.choice((1, 1, 5)))):
            self._fault(f"delete {path}", None, disturbs=False, takes=True)
            self._displace(path)

    def _join_and_delete(self) -> None:
        """Owner nodes vanish while they change hands, or all of a newcomer's."""
        before = set(self.world.daemons)
        self._join()
        self._pass(self.rng.uniform(0.0, 6.0))
        if self.rng.random() < 0.5:
            self._delete_owner()
            return
        new = self.world.daemons.keys() - before
        owners = self.world.owners()
        for path in self._owner_nodes():
            topic, _, name = path.removeprefix(owners_root(self.world.group) + "/").partition("/")
            if owners.get(TopicPartition.parse(topic, name)) in new:
                self._fault(f"delete {path}", None, disturbs=False, takes=True)
                self._displace(path)

    def _overtake(self) -> None:
        """All owners are far from ZooKeeper. A near member joins, and takes over, before the others learn of it."""
        world = self.world
        far = [daemon for daemon in self._living if self._latencies[daemon.name] > FAR / 2]
        for daemon in self._living:
            if daemon not in far[:1]:
                self._note(f"leave {daemon.name}")
                self._told_to_leave.add(daemon.name)
                daemon.terminate()
        if not far:
            self._join(self.rng.uniform(FAR, 2 * FAR))
        self._settle()
        before = set(world.daemons)
        self._join(0.0005)
        new = [f"{world.group}_{name}" for name in world.daemons if name not in before]
        for _ in range(80):
            self._burst()
            self._pass(0.025)
            if new[0] in world.zookeeper.tree.nodes[ids_path(world.group)].children:
                break
        if self.rng.random() < 0.5:
            self._pass(self.rng.uniform(0.0, 0.1))
        for path in self._owner_nodes():
            if self.rng.random() < 0.9:
                self._fault(f"delete {path}", None, disturbs=False, takes=True)
                self._displace(path)
        for _ in range(20):
            self._burst()
            self._pass(0.025)

    def _steal_owner(self) -> None:
        """Another client has overwritten the owner node with its own, and leaves after a while."""
        nodes = self._owner_nodes()
        if not nodes:
            return
        path, zookeeper = self.rng.choice(nodes), self.world.zookeeper
        thief = zookeeper.peer("thief")
        seconds = self.rng.uniform(0.1, 8.0)
        self._fault(f"steal {path} for {seconds:.1f} s", None, seconds, disturbs=False, takes=True)
        self._displace(path)
        zookeeper.put(path, b"thief-0", session=thief)

        def give_back() -> None:
            node = zookeeper.tree.nodes.get(path)
            if node is not None and node.owner == thief:
                zookeeper.remove(path)

        self._later(seconds, give_back)

    # -- id nodes

    def _restart(self) -> None:
        """A process is killed, and another one with its consumer id starts while its nodes are still there."""
        daemon = self._one()
        if daemon is None or not self._first_with_its_id(daemon):
            return
        self._fault(f"kill {daemon.name}", [daemon.name])
        daemon.kill()
        self._pass(3.0 * self.rng.random())
        self._join(consumer_id=self._ids[daemon.name])

    def _first_with_its_id(self, daemon: Daemon) -> bool:
        """Whether no other process waits for its id node."""
        session = self.world.zookeeper.tree.nodes.get(id_path(self.world.group, self._id_of(daemon)))
        return session is not None and self.world.zookeeper.sessions[session.owner].owner == daemon.name

    def _id_of(self, daemon: Daemon) -> str:
        return f"{self.world.group}_{self._ids[daemon.name]}"

    def _delete_id(self) -> None:
        """A confused peer deletes the id node of a member."""
        daemon = self._one()
        if daemon is not None:
            self._note(f"delete id of {daemon.name}")
            self.world.zookeeper.remove(id_path(self.world.group, self._id_of(daemon)))

    def _strange_id(self) -> None:
        """For a while there is an id that cannot be read; or that of the other dialect, which keeps newcomers out."""
        text = self.rng.choice(("", "beans", '{"beans": 0}'))
        if self._is_shared:
            text = self.rng.choice((text, V08Rules().format(StaticSubscription({"t0": 1}), 0)))
        self._note(f"strange id {text!r}")
        path, zookeeper = id_path(self.world.group, "strange"), self.world.zookeeper
        zookeeper.put(path, text.encode(), session=zookeeper.peer("strange"))
        self._pass(8.0 * self.rng.random())
        zookeeper.remove(path)

    def _nudge(self) -> None:
        self._note("nudge")
        self.world.zookeeper.commit(nudge_operations(self.world.group, "peer"))

    # -- peers

    def _join_jvm(self) -> None:
        if len(self._living_jvm) < 2:
            self._names += 1
            name = f"{self.rng.choice('abc')}{self._names}jvm"
            self._note(f"join {name}")
            self.world.account.careless.add(name)
            self.world.jvm(name)

    def _one_jvm(self) -> JvmConsumer | None:
        return self.rng.choice(self._living_jvm) if self._living_jvm else None

    def _leave_jvm(self) -> None:
        consumer = self._one_jvm()
        if consumer is not None:
            self._note(f"leave {consumer.name}")
            self._told_to_leave.add(consumer.name)
            consumer.terminate()

    def _freeze_jvm(self) -> None:
        consumer = self._one_jvm()
        if consumer is not None and not consumer.loop.stopped:
            seconds = self.rng.uniform(1.0, 20.0)
            self._fault(f"freeze {consumer.name} for {seconds:.1f} s", None, seconds + 12.0, disturbs=False)
            consumer.freeze()
            self._later(seconds, lambda: consumer.thaw() if consumer.alive else None)

    def _kill_jvm(self) -> None:
        consumer = self._one_jvm()
        if consumer is not None:
            self._fault(f"kill {consumer.name}", None, disturbs=False)
            consumer.kill()

    # -- events with a price

    def _priced_step(self) -> None:
        world, rng = self.world, self.rng
        before, counts, members, seconds = world.owners(), self._requests(), len(self._living), 0.0
        nodes = world.zookeeper.tree.nodes
        committed = {topic for topic, _ in self._topics if offsets_path(world.group, topic) in nodes}
        kind = rng.choice(("join", "leave", "partition", "burst"))
        if kind == "join" or members < 2:
            kind = "join"
            self._join()
        elif kind == "leave":
            self._leave()
        elif kind == "burst":
            seconds = self._write_often()
        else:
            self._more_partitions()
        if len(self._living) == members and kind == "join":
            return  # there were as many as may be
        waited = self._settle()
        after = world.owners()
        moved = sum(after.get(partition) != owner for partition, owner in before.items()) + len(after) - len(before)
        spent = {name: count - counts.get(name, 0) for name, count in self._requests().items()}
        total, names = sum(spent.values()), {topic for topic, _ in self._topics}
        topics, new, layout = len(names), len(names - committed), (len(self._topics), len(world.brokers))
        if kind == "join":
            limit = requests.of_join(members, moved, topics, *layout, waited=waited, new_topics=new)
            least = requests.least_of_join(members, moved, topics, *layout)
        elif kind == "leave":
            limit = requests.of_leave(members - 1, moved, topics, waited=waited, new_topics=new)
            least = requests.least_of_leave(members - 1, moved)
        elif kind == "burst":
            limit = requests.of_burst(members, seconds)
            least = requests.least_of_burst(members)
        else:
            limit = requests.of_partitions(members, moved, topics, waited=waited, new_topics=new)
            least = requests.least_of_partitions(members, moved)
        self.prices.append(Price(kind, members, moved, total, limit))
        self._require(least <= total <= limit, f"{self.prices[-1]}, by {spent}; the lower bound is {least}")

    def _write_often(self) -> float:
        """A topic's node is written again and again; for how long."""
        place = self.rng.choice(list(self._topics))
        began = self.world.kernel.now
        self._note(f"burst {place}")
        for _ in range(self.rng.randint(20, 60)):
            self.world.zookeeper.put(topic_broker_path(*place), b"%d" % self._topics[place])
            self._pass(0.003)
        return self.world.kernel.now - began

    def _requests(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for (name, kind), count in self.world.zookeeper.requests.items():
            if kind not in requests.HEARTBEATS:
                counts[name] = counts.get(name, 0) + count
        return counts

    # -- the end

    def _settle(self, seconds: float = SETTLED_WITHIN) -> float:
        took = self.world.kernel.until(lambda: self._is_shared, seconds, what="all partitions are owned in fair shares")
        self._pass(1.5 + 20 * self.round_trip)
        return took

    @property
    def _is_shared(self) -> bool:
        """Whether each topic is owned in fair shares by those that live, and no other member is registered."""
        world = self.world
        processes: list[Daemon | JvmConsumer] = [*world.daemons.values(), *world.jvm_consumers.values()]
        living = {each.name for each in processes if each.alive}
        owners = world.owners()
        if not living or owners.keys() != set(world.partitions) or not set(owners.values()) <= living:
            return False
        ids = world.zookeeper.tree.nodes.get(ids_path(world.group))
        if ids is None or len(ids.children) != len(living):
            return False
        shares: dict[str, dict[str, int]] = {}
        for partition, owner in owners.items():
            topic = shares.setdefault(partition.topic, dict.fromkeys(living, 0))
            topic[owner] += 1
        return all(max(topic.values()) - min(topic.values()) <= 1 for topic in shares.values())

    def _all_know(self, since: float) -> bool:
        """Whether nothing from before is still to come: stopped members have left, and others have a session that
        ZooKeeper has heard of since."""
        world = self.world
        processes: list[Daemon | JvmConsumer] = [*world.daemons.values(), *world.jvm_consumers.values()]
        heard = {session.owner for session in world.zookeeper.sessions.values() if session.heard > since}
        return not any(each.alive and each.name in self._told_to_leave for each in processes) and all(
            each.name in heard for each in processes if each.alive
        )

    @staticmethod
    def _fairly(owners: dict[TopicPartition, str], names: list[str]) -> bool:
        """Whether so many members own as much as others, except for one partition, and no other member does."""
        counts = dict.fromkeys(names, 0)
        for owner in owners.values():
            if owner not in counts:
                return False
            counts[owner] += 1
        return max(counts.values()) - min(counts.values()) <= 1

    def _end(self) -> None:
        """Heal everything; then the group has to come to its end in order."""
        world, account = self.world, self.world.account
        self._heal()
        if not self._living:
            self._join()
        healed = world.kernel.now
        world.kernel.until(
            lambda: self._is_shared and self._all_know(healed), SETTLED_WITHIN, what="all partitions are owned for good"
        )
        self._settle()
        self._note("all settled")
        # A partition that starts at its end has to be started before messages can be lost.
        world.kernel.until(
            lambda: not self.latest or account.begun >= set(world.partitions), 20.0, what="all partitions have begun"
        )
        for partition in sorted(world.partitions):
            world.produce(partition)
        world.finish()
        self._require(not account.lost, f"lost: {account.lost[:5]}")
        self._require_last_hand_overs()
        if self.with_jvm:
            self._set_back()
        if self.kind == "priced" or self.large:
            self._pass(3.0)
        else:
            self._pass(12.0 + self._reconcile * 1.2)
        self._require(self._is_shared, "the group does not stay as it has settled")
        ours = {daemon.name for daemon in self._living}
        owners = world.owners()
        if self.kind != "priced" and not self.large:
            behind = [each for each in account.uncommitted if owners[each] in ours]
            self._require(not behind, f"not committed: {behind[:5]}")
        self._leave_all()
        self._explain_repeats()

    def _set_back(self) -> None:
        """A peer that was frozen before all this commits the messages that it had then."""
        world = self.world
        ours = {daemon.name for daemon in self._living}
        owned = [partition for partition, owner in sorted(world.owners().items()) if owner in ours]
        for partition in self.rng.sample(owned, min(2, len(owned))):
            self._note(f"set back {partition}")
            world.account.careless.add("a thawed peer")
            world.zookeeper.serving = "a thawed peer"
            world.zookeeper.put(offset_path(world.group, partition), b"0")
            world.zookeeper.serving = ""

    def _leave_all(self) -> None:
        world = self.world
        leaving: list[Daemon | JvmConsumer] = [*self._living_jvm, *self._living]
        self._terminate(leaving)
        ids = world.zookeeper.tree.nodes[ids_path(world.group)].children
        self._require(not ids and not self._owner_nodes(), f"nodes are left: {list(ids)}, {self._owner_nodes()}")
        account = world.account
        self._require(not account.uncommitted or self.with_jvm, f"not committed in the end: {account.uncommitted[:5]}")
        for partition in world.partitions:
            node = world.zookeeper.tree.nodes.get(offset_path(world.group, partition))
            self._require(node is not None, f"{partition} has no offset")

    # -- for people

    def outcome(self) -> Outcome:
        world, account = self.world, self.world.account
        digest = hash(tuple(each.time for each in account.hand_overs)) ^ hash(world.kernel.now)
        return Outcome(
            self.seed,
            self.kind,
            len(world.partitions),
            len(world.daemons) + len(world.jvm_consumers),
            account.count,
            tuple(self.prices),
            len(account.repeated),
            tuple(self.happened),
            digest,
        )
