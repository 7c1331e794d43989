"""One random schedule of a whole group, made from a seed: what happens, and what has to be true of it.

Strategy: a seed chooses a world (how far away ZooKeeper is, how many partitions on how many brokers, how members are
configured) and a kind of run, and then what happens at random times, one step after the other. Kinds:

    calm     members join and leave in order, topics and partitions come, brokers move: nothing is lost, and nothing is
             handed over twice
    priced   the same, one event after the other has settled: each costs no more requests than `requests` allows
    faulty   whatever else can happen to processes, connections, ZooKeeper and its nodes
    mixed    calm, beside consumers as the JVM's own
    rough    faulty, beside those

At every step the account looks on: one hand-over of a partition at a time, no offset is committed before it was
handled, none goes back (but by a JVM peer's hand). In the end everything is healed; the group has to settle, hand over
what there is, write all offsets, and leave. Of each repeated message a fault has to tell why.

What failed is told with its timeline. `CONSUMERD_SEED=<seed>` runs that schedule alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from consumerd.partition import TopicPartition
from consumerd.registry import broker_path, ids_path, offset_path, offsets_path, owners_root, topic_broker_path
from tests.simulation import requests
from tests.simulation.base_schedule import AFTERMATH, SETTLED_WITHIN, BaseSchedule
from tests.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.account import HandOver
    from tests.simulation.broker import SimulatedBroker
    from tests.simulation.daemon import Daemon
    from tests.simulation.jvm import JvmConsumer

KINDS = ("calm", "calm", "priced", "faulty", "faulty", "faulty", "faulty", "mixed", "rough")


class Price(NamedTuple):
    """What an event cost ZooKeeper, and what it may."""

    event: str
    members: int
    moved: int
    requests: int
    limit: int


class Outcome(NamedTuple):
    """What a schedule was made of."""

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


class Schedule(BaseSchedule[World, Outcome]):
    """The schedule of one seed; `kind`: instead of the one that the seed chooses."""

    def __init__(self, seed: int, kind: str | None = None) -> None:
        super().__init__(seed, KINDS, kind)
        rng = self.rng
        self.faulty = self.kind in ("faulty", "rough")
        self.with_jvm = self.kind in ("mixed", "rough")
        #: From 1 to 400 ms, the near ones more often.
        self.round_trip = 0.001 * 400.0 ** (rng.random() ** 1.5)
        self.latest = not self.with_jvm and rng.random() < 0.4
        self.prices: list[Price] = []
        self._topics: dict[tuple[str, int], int] = {}
        self._hidden: dict[tuple[str, int], int] = {}
        self._most_members = 8 if rng.random() < 0.3 else 4
        self._reconcile = rng.choice((4.0, 10.0, 30.0))
        if self.kind == "priced":
            self._reconcile = 3600.0
        self.settings: dict[str, dict[str, Any]] = {
            "fetch": {"initial": "latest" if self.latest else "earliest"},
            "commit": {"interval": 3600.0 if self.kind == "priced" else rng.choice((0.5, 2.0, 10.0))},
            "rebalance": {"reconcile_interval": self._reconcile},
        }

    # -- the run

    def make_world(self) -> World:
        return World(self.seed, round_trip=self.round_trip)

    @property
    def description(self) -> str:
        return f"{self.kind}, round trip {self.round_trip * 1000:.1f} ms, {self.settings}"

    def play(self) -> None:
        world, rng = self.world, self.rng
        world.account.count_all(latest=self.latest)
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
            world.produce_steadily(rng.choice((3.0, 10.0, 20.0)))
            for _ in range(rng.randint(3, 8)):
                self._step()
                self._pass(rng.choice((0.0, 0.05, 0.5, 3.0, 8.0)) * rng.random())
            if rng.random() < 0.5:
                self._pass(rng.uniform(0.0, 15.0))
        self._end()

    # -- steps

    def _step(self) -> None:
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
        ]
        if self.faulty:
            steps += [
                (2, self._kill),
                (3, self._freeze),
                (1, self._suspend),
                (2, self._cut),
                (2, self._stall),
                (3, self._lose_reply),
                (2, self._expire),
                (1, self._stale_follower),
                (1, self._outage),
                (2, self._delete_owner),
                (2, self._steal_owner),
            ]
        if self.with_jvm:
            steps += [(5, self._join_jvm), (4, self._leave_jvm)]
        if self.kind == "rough":
            steps += [(3, self._freeze_jvm), (2, self._kill_jvm)]
        self._choose(steps)

    @property
    def _living_jvm(self) -> list[JvmConsumer]:
        consumers = self.world.jvm_consumers.values()
        return [each for each in consumers if each.alive and each.name not in self._told_to_leave]

    def _join(self) -> None:
        if len(self._living) >= self._most_members:
            return
        self._names += 1
        name = f"{self.rng.choice('abc')}{self._names}"  # a newcomer may come before or behind the others
        self._note(f"join {name}")
        settings = {**self.settings, "group": {"consumer_id": name}}
        self.world.daemon(name, settings, handling=self.rng.choice((0.0, 0.002, 0.05, 0.3)))

    def _new_topic(self) -> None:
        if len({topic for topic, _ in self._topics}) >= 3:
            return
        topic = f"t{len(self._topics)}"
        for broker in self.world.brokers:
            if broker == 0 or self.rng.random() < 0.5:
                self._set_partitions(topic, broker, self.rng.choice((1, 1, 2, 3, 5, 8, 12)))
        self._note(f"topic {topic}")

    def _set_partitions(self, topic: str, broker: int, partitions: int) -> None:
        self._topics[topic, broker] = partitions
        self.world.topic(topic, partitions, broker=broker)

    def _more_partitions(self) -> None:
        places = [place for place in self._topics if place not in self._hidden]
        if places:
            place = self.rng.choice(places)
            self._note(f"partitions of {place}")
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

    def _slow_zookeeper(self) -> None:
        line = self.world.zookeeper.line
        before = self.round_trip / 2
        line.latency = 0.0005 * 400.0 ** self.rng.random()
        self._note(f"slow ZooKeeper: {2000 * line.latency:.0f} ms")
        self._later(self.rng.uniform(1.0, 15.0), lambda: setattr(line, "latency", before))

    # -- faults

    def _links(self, daemon: Daemon) -> list[Any]:
        """Of its connections, those to ZooKeeper more often than those to brokers."""
        zookeeper = self.world.zookeeper
        address = (zookeeper.host, zookeeper.port) if self.rng.random() < 0.8 else None
        return self.world.network.links_of(daemon.name, address)

    def _provoke(self, daemon: Daemon) -> None:
        self.rng.choice((self._join, self._leave, lambda: None))()

    def _may_repeat(self, again: HandOver) -> bool:
        # What a JVM peer read before it claimed, the other commits while it drains.
        return again.member in self.world.jvm_consumers

    def _expire(self) -> None:
        daemon = self._one()
        if daemon is not None:
            self._fault(f"expire {daemon.name}", [daemon.name])
            self.world.account.displaced(daemon.name, None, AFTERMATH)
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
            """It is gone, and whoever was connected goes to another server."""
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
        """An owner node goes while its owner lives, and may stand still."""
        owner = self.world.zookeeper.sessions[self.world.zookeeper.tree.nodes[path].owner].owner
        topic, _, name = path.removeprefix(owners_root(self.world.group) + "/").partition("/")
        self.world.account.displaced(owner, TopicPartition.parse(topic, name), 40.0)
        self.world.zookeeper.remove(path)

    def _delete_owner(self) -> None:
        nodes = self._owner_nodes()
        for path in self.rng.sample(nodes, min(len(nodes), self.rng.choice((1, 1, 5)))):
            self._fault(f"delete {path}", None)
            self._displace(path)

    def _steal_owner(self) -> None:
        """Somebody has overwritten the owner node with its own, and goes after a while."""
        nodes = self._owner_nodes()
        if not nodes:
            return
        path, zookeeper = self.rng.choice(nodes), self.world.zookeeper
        thief = zookeeper.peer("thief")
        seconds = self.rng.uniform(0.1, 8.0)
        self._fault(f"steal {path} for {seconds:.1f} s", None, seconds)
        self._displace(path)
        zookeeper.put(path, b"thief-0", session=thief)

        def give_back() -> None:
            node = zookeeper.tree.nodes.get(path)
            if node is not None and node.owner == thief:
                zookeeper.remove(path)

        self._later(seconds, give_back)

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
            self._fault(f"freeze {consumer.name} for {seconds:.1f} s", None, seconds + 12.0)
            consumer.freeze()
            self._later(seconds, lambda: consumer.thaw() if consumer.alive else None)

    def _kill_jvm(self) -> None:
        consumer = self._one_jvm()
        if consumer is not None:
            self._fault(f"kill {consumer.name}", None)
            consumer.kill()

    # -- events with a price

    def _priced_step(self) -> None:
        world, rng = self.world, self.rng
        before, counts, members = world.owners(), self._requests(), len(self._living)
        nodes = world.zookeeper.tree.nodes
        committed = {topic for topic, _ in self._topics if offsets_path(world.group, topic) in nodes}
        kind = rng.choice(("join", "leave", "partition"))
        if kind == "join" or members < 2:
            kind = "join"
            self._join()
        elif kind == "leave":
            self._leave()
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
        else:
            limit = requests.of_partitions(members, moved, topics, waited=waited, new_topics=new)
            least = requests.least_of_partitions(members, moved)
        self.prices.append(Price(kind, members, moved, total, limit))
        self._require(least <= total <= limit, f"{self.prices[-1]}, by {spent}; the lower bound is {least}")

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
        """Whether each topic is owned in fair shares by those that live, and nobody else is registered."""
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

    def _end(self) -> None:
        """Heal everything; then the group has to come to its end in order."""
        world, account = self.world, self.world.account
        self._note("heal")
        for undo in self._undo:
            undo()
        if not self._living:
            self._join()
        self._settle()
        self._note("all settled")
        # Where a partition begins at its end, that has to be known before there is something to lose.
        world.kernel.until(
            lambda: not self.latest or account.begun >= set(world.partitions), 20.0, what="all partitions have begun"
        )
        for partition in sorted(world.partitions):
            world.produce(partition)
        world.finish()
        self._require(not account.lost, f"lost: {account.lost[:5]}")
        self._require_last_hand_overs()
        if self.kind != "priced":
            self._pass(12.0 + self._reconcile * 1.2)
        self._require(self._is_shared, "the group does not stay as it has settled")
        ours = {daemon.name for daemon in self._living}
        owners = world.owners()
        if self.kind != "priced":
            behind = [each for each in account.uncommitted if owners[each] in ours]
            self._require(not behind, f"not committed: {behind[:5]}")
        self._leave_all()
        self._explain_repeats()

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
