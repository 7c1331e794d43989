"""The world of one group: ZooKeeper, brokers, topics, producers, member processes, and the account of it all.

    with World(seed=1, round_trip=0.005) as world:
        world.topic("events", 600)
        first = world.daemon("first")
        world.settle()

Strategy: plain synchronous calls; `run`, `until` and what waits let virtual time pass. At the end every process is
unwound, and what no process may do (an exception that nobody took) is raised.
"""

from __future__ import annotations

import asyncio
import gc
import random
from typing import TYPE_CHECKING, Any, Self
from unittest import mock

import structlog

from consumerd.partition import TopicPartition
from consumerd.registry import broker_path, offsets_root, owners_root, parse_offset, topic_broker_path
from tests.simulation.account import Account
from tests.simulation.broker import SimulatedBroker
from tests.simulation.daemon import Daemon
from tests.simulation.jvm import JvmConsumer
from tests.simulation.kernel import Kernel, SimulationError
from tests.simulation.network import Line, Network
from tests.simulation.ownership import Cause
from tests.simulation.process import ProcessLoop
from tests.simulation.tree import Change
from tests.simulation.zookeeper import SimulatedZooKeeper

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping
    from types import TracebackType

#: Between two steps of the producers, in seconds.
_PRODUCE_EVERY = 0.01


class World:
    """One run. `round_trip`: seconds to ZooKeeper and back; `rate`: requests that it takes in a second."""

    group = "group"

    def __init__(
        self, seed: int = 0, *, round_trip: float = 0.001, rate: float = 20_000.0, jitter: float = 0.1
    ) -> None:
        self.seed = seed
        self.rng = random.Random(f"world/{seed}")
        self.kernel = Kernel()
        self.network = Network(self.kernel, random.Random(f"network/{seed}"))
        line = Line(round_trip / 2, jitter=jitter)
        self.zookeeper = SimulatedZooKeeper(self.kernel, self.network, line=line, rate=rate)
        self.zookeeper.observers.append(self._observe)
        self.account = Account(self.kernel)
        self.account.news = self._news
        #: The name by which members look for ZooKeeper.
        self.zookeeper_name = self.zookeeper.host
        self.brokers: dict[int, SimulatedBroker] = {}
        self.daemons: dict[str, Daemon] = {}
        self.jvm_consumers: dict[str, JvmConsumer] = {}
        self.partitions: list[TopicPartition] = []
        self._offsets_root = offsets_root(self.group) + "/"
        self._owners_root = owners_root(self.group) + "/"
        self._producing = 0.0
        self._due = 0.0
        self._produced = 0
        self._patches: list[Any] = [
            mock.patch("socket.gethostname", return_value="host"),
            mock.patch("os._exit", self._exit),
        ]

    def __enter__(self) -> Self:
        for patch in self._patches:
            patch.start()
        gc.disable()  # what it finds depends on what ran before
        structlog.configure(
            processors=[self._log],
            wrapper_class=structlog.make_filtering_bound_logger(20),
            cache_logger_on_first_use=False,
        )
        self.add_broker(0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for loop in self.kernel.loops:
                loop.unwind()
        finally:
            gc.enable()
            structlog.reset_defaults()
            for patch in self._patches:
                patch.stop()
        if error is None and self.kernel.failures:
            raise SimulationError("\n".join(self.kernel.failures))

    # -- the cluster

    def add_broker(self, broker: int, *, latency: float = 0.0002) -> SimulatedBroker:
        """Start and register a broker."""
        made = SimulatedBroker(self.kernel, self.network, broker, f"broker{broker}", 9092, Line(latency))
        self.brokers[broker] = made
        self.zookeeper.put(broker_path(broker), made.address.encode())
        return made

    def topic(self, topic: str, partitions: int, *, broker: int = 0) -> None:
        """Register a topic on a broker, or more partitions of it."""
        self.zookeeper.put(topic_broker_path(topic, broker), b"%d" % partitions)
        known = set(self.partitions)
        self.partitions += [
            each for number in range(partitions) if (each := TopicPartition(topic, broker, number)) not in known
        ]

    def produce(self, partition: TopicPartition, count: int = 1) -> None:
        """Append messages, one set each."""
        store = self.brokers[partition.broker].store
        for _ in range(count):
            self._produced += 1
            offset = store.end(partition.topic, partition.partition)
            store.append(partition.topic, partition.partition, b"%d" % self._produced)
            self.account.produced(partition, offset)

    def produce_all(self) -> None:
        """One message to every partition."""
        for partition in self.partitions:
            self.produce(partition)

    def produce_steadily(self, per_second: float) -> None:
        """From now on so many messages in a second, to partitions by turns; 0 ends it."""
        began, self._producing = self._producing == 0.0, per_second
        if began and per_second:
            self.kernel.after(_PRODUCE_EVERY, self._produce_some)

    def _produce_some(self) -> None:
        if not self._producing:
            return
        self._due += self._producing * _PRODUCE_EVERY
        while self._due >= 1.0 and self.partitions:
            self._due -= 1.0
            self.produce(self.partitions[self._produced % len(self.partitions)])
        self.kernel.after(_PRODUCE_EVERY, self._produce_some)

    # -- members

    def daemon(
        self,
        name: str,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        handling: float = 0.002,
        stubborn: bool = False,
        lingering: bool = False,
    ) -> Daemon:
        """Start one more process, whose handler takes `handling` seconds for a batch.

        `stubborn`: the handler swallows its cancellation, and ends in its own time. `lingering`: some take long.
        """
        made = self.daemons[name] = Daemon(self, name, settings or {}, handling, stubborn=stubborn, lingering=lingering)
        return made

    def jvm(self, name: str, *, initial: str = "earliest") -> JvmConsumer:
        """Start a consumer of another implementation."""
        made = self.jvm_consumers[name] = JvmConsumer(self, name, initial=initial)
        return made

    def owners(self) -> dict[TopicPartition, str]:
        """Of each owned partition the process that owns it, as ZooKeeper has it."""
        tree, sessions = self.zookeeper.tree, self.zookeeper.sessions
        owners = {}
        for path, node in tree.nodes.items():
            if node.owner and path.startswith(self._owners_root):
                topic, _, name = path.removeprefix(self._owners_root).partition("/")
                owners[TopicPartition.parse(topic, name)] = sessions[node.owner].owner
        return owners

    def shares(self) -> dict[str, int]:
        """How many partitions each process owns."""
        counts: dict[str, int] = {}
        for owner in self.owners().values():
            counts[owner] = counts.get(owner, 0) + 1
        return counts

    @property
    def is_shared(self) -> bool:
        """Whether all partitions are owned, and all processes that live own as many as others, but for one."""
        shares = self.shares()
        processes: list[tuple[str, Daemon | JvmConsumer]] = [*self.daemons.items(), *self.jvm_consumers.items()]
        living = [name for name, process in processes if process.alive]
        counts = [shares.get(name, 0) for name in living]
        return bool(counts) and sum(counts) == len(self.partitions) and max(counts) - min(counts) <= 1

    # -- time

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.kernel.run(seconds)

    def until_shared(self, seconds: float = 60.0) -> float:
        """Let time pass until `is_shared`; how long that took."""
        return self.kernel.until(lambda: self.is_shared, seconds, what="all partitions are owned in fair shares")

    def settle(self, seconds: float = 60.0, *, calm: float = 3.0) -> float:
        """Until all is owned, and `calm` seconds more; messages count from here. How long the first part took."""
        took = self.until_shared(seconds)
        self.run(calm)
        self.account.count_from(self.ends())
        return took

    def finish(self, seconds: float = 60.0) -> None:
        """Produce no more, and let time pass until nothing is outstanding, or what is lost is lost."""
        self.produce_steadily(0)
        until = self.kernel.now + seconds
        while self.account.lost and self.kernel.now < until:
            self.run(0.5)
        self.run(1.0)

    def until_ended(self, daemon: Daemon | JvmConsumer, seconds: float = 60.0) -> float:
        """Let time pass until a process has ended; how long that took."""
        return self.kernel.until(lambda: daemon.ended, seconds, what=f"{daemon.name} has ended", every=0.01)

    def ends(self) -> dict[TopicPartition, int]:
        """Where the logs end."""
        return {each: self.end(each) for each in self.partitions}

    def end(self, partition: TopicPartition) -> int:
        """Where a log ends."""
        return self.brokers[partition.broker].store.end(partition.topic, partition.partition)

    def timeline(self, *, last: int = 200) -> str:
        """What happened, for people."""
        return "\n".join(f"{time:12.6f} {who:>12}  {what}" for time, who, what in self.kernel.timeline[-last:])

    # -- observing

    def _news(self, member: str) -> float:
        """Seconds: for the watch, and to look, and to end what is in hand; more round trips where one burst waits."""
        zookeeper = self.zookeeper
        return 2.0 + 20 * self.network.latency_of(member, (zookeeper.host, zookeeper.port))

    def _observe(self, change: Change, path: str) -> None:
        if path.startswith(self._owners_root) and change in (Change.CREATED, Change.DELETED):
            topic, _, name = path.removeprefix(self._owners_root).partition("/")
            if name:
                self._observe_owner(change, TopicPartition.parse(topic, name), path)
        if path.startswith(self._offsets_root) and change in (Change.CREATED, Change.DATA):
            topic, _, name = path.removeprefix(self._offsets_root).partition("/")
            if name:
                position = parse_offset(self.zookeeper.tree.nodes[path].data)
                self.account.committed(TopicPartition.parse(topic, name), position, self.zookeeper.serving)

    def _observe_owner(self, change: Change, partition: TopicPartition, path: str) -> None:
        zookeeper, account = self.zookeeper, self.account
        if change is Change.CREATED:
            owner = zookeeper.tree.nodes[path].owner
            account.claimed(partition, zookeeper.sessions[owner].owner if owner else "")
            return
        claim = account.ownership.claim(partition)
        if zookeeper.ending == "timed out":
            cause = Cause.TIMED_OUT
        elif zookeeper.ending == "closed" or (claim is not None and zookeeper.serving == claim.member):
            cause = Cause.RELEASED
        else:
            cause = Cause.TAKEN
        account.unclaimed(partition, cause)

    def _log(self, logger: Any, method: str, entry: MutableMapping[str, Any]) -> Mapping[str, Any]:
        """What daemons log goes to the timeline, warnings with a mark."""
        loop = asyncio._get_running_loop()
        if isinstance(loop, ProcessLoop) and not loop.dead:
            name = entry.pop("event")
            mark = "" if method == "info" else "! "
            self.kernel.note(
                loop.name, " ".join([f"{mark}{name}", *(f"{key}={value}" for key, value in entry.items())])
            )
        raise structlog.DropEvent

    def _exit(self, code: int) -> None:
        """A daemon forces its end."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ProcessLoop)
        self.daemons[loop.name].kill()
