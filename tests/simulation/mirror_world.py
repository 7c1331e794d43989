"""Two clusters of 0.7 and mirrors between them, which run as their command runs them; and the account of both sides.

Strategy: the source is `tests.simulation.world.World`; the target is a ZooKeeper of its own with two brokers, which
register a topic a while after its first message. A message counts as handled when the target has confirmed it: when it
is in a log there, and a later FETCH on the same connection was answered, or with `verify` answered with messages. So
the account reports each offset that is committed before the target confirmed what is before it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING, Any
from unittest import mock

from consumerd.daemon import mirroring
from consumerd.daemon.mirroring import MirrorTarget, mirror
from consumerd.mirror import handler as mirror_handler
from consumerd.partition import TopicPartition
from consumerd.registry import broker_path, offset_path, parse_offset, topic_broker_path
from consumerd.wire.v07 import Codec, FetchRequest, MultiProduceRequest, ProduceRequest, decode_batch
from tests.simulation.broker import REQUEST_TIME, SimulatedBroker
from tests.simulation.daemon import Daemon, ProcessClock
from tests.simulation.kernel import SimulationError
from tests.simulation.network import Line
from tests.simulation.process import ProcessLoop
from tests.simulation.threads import ThreadedLoop
from tests.simulation.world import World
from tests.simulation.zookeeper import SimulatedZooKeeper

if TYPE_CHECKING:
    from collections.abc import Callable

    from consumerd.config.model import Config
    from consumerd.producer import ProducerSettings
    from consumerd.wire.v07 import Request
    from tests.simulation.network import Link

TOPIC = "t"
#: Partitions of the topic on the source's broker, and on each of the target's.
PARTITIONS, TARGET_PARTITIONS = 3, 2
#: Messages that the mirror sends at once: a batch takes several pieces.
PIECE = 3
#: Seconds until a broker has registered a topic that it has got messages of.
_REGISTERS = 0.02
#: Seconds to a broker of the target, one way, and those in which an answer arrives.
_LATENCY = 0.0002
_ARRIVES = REQUEST_TIME + 1.5 * _LATENCY
_SETTINGS: dict[str, dict[str, Any]] = {"fetch": {"initial": "earliest"}, "commit": {"interval": 0.05}}

#: A message: its partition on the source, the offset of the message that holds it, and its number in the partition.
Message = tuple[TopicPartition, int, int]


class TargetBroker(SimulatedBroker):
    """A broker that registers itself and its topics in `registry`, as a broker does in its session."""

    registry: SimulatedZooKeeper

    @property
    def address(self) -> str:
        return f"target-{self.id}:{self.host}:{self.port}"

    def join(self) -> None:
        """Register the broker and the topics that it has."""
        self.registry.put(broker_path(self.id), self.address.encode())
        for topic, _ in self.store.logs:
            self.register(topic)

    def register(self, topic: str) -> None:
        """Register a topic, if the broker is registered."""
        if broker_path(self.id) in self.registry.tree.nodes:
            self.registry.put(topic_broker_path(topic, self.id), b"%d" % TARGET_PARTITIONS)

    def leave(self) -> None:
        """Stop, and lose the session."""
        self.stop()
        for path in (broker_path(self.id), topic_broker_path(TOPIC, self.id)):
            if path in self.registry.tree.nodes:
                self.registry.remove(path)


class MirrorWorld(World):
    """One run. `watcher` sees the steps of the target's brokers, `turns` each turn of a mirror's loop."""

    def __init__(self, seed: int, settings: ProducerSettings) -> None:
        super().__init__(seed)
        self.settings = settings
        self.watcher: Callable[[TargetBroker, Link, str], None] = lambda broker, link, step: None
        self.turns: Callable[[Daemon], None] = lambda daemon: None
        self.target = SimulatedZooKeeper(self.kernel, self.network, host="target", line=Line(0.0005))
        self.targets: dict[int, TargetBroker] = {}
        #: The messages of each payload.
        self.messages: dict[bytes, Message] = {}
        #: Of each connection to a broker of the target, what is stored there and not confirmed yet.
        self._unconfirmed: dict[Link, list[bytes]] = {}
        #: When and to which connection the confirmation of a message was sent, the last time.
        self._confirmed: dict[bytes, tuple[float, Link]] = {}
        #: Whether the mirror has sent something.
        self.begun = False
        self._patches += [
            mock.patch.object(mirror_handler, "MESSAGES", PIECE),
            mock.patch.object(mirroring, "SystemClock", _clock),
            mock.patch.object(mirroring, "SystemRandom", self._random),
        ]

    def _random(self) -> random.Random:
        return random.Random(f"{self.seed}/{_loop().name}")

    def begin(self) -> None:
        super().begin()
        self.account.count_all()
        self.topic(TOPIC, PARTITIONS)
        for number in range(2):
            made = TargetBroker(self.kernel, self.network, number, f"target{number}", 9092, Line(_LATENCY))
            made.registry, self.targets[number] = self.target, made
            made.watcher = self._watch_on(made)
            made.join()

    def produce(self, partition: TopicPartition, count: int = 1) -> None:
        """Append messages, some of which are compressed and hold several."""
        store = self.brokers[partition.broker].store
        for _ in range(count):
            inner = self.rng.choice((1, 1, 2, 4))
            offset = store.end(partition.topic, partition.partition)
            payloads = []
            for _ in range(inner):
                payloads.append(b"%d" % len(self.messages))
                number = sum(each[0] == partition for each in self.messages.values())
                self.messages[payloads[-1]] = partition, offset, number
            codec = Codec.GZIP if inner > 1 else Codec.NONE
            store.append(partition.topic, partition.partition, *payloads, codec=codec)
            self.account.produced(partition, offset)

    def join(self, name: str) -> Daemon:
        """Start a mirror."""
        made = self.daemons[name] = _Mirror(self, name)
        return made

    # -- the target's side

    def _watch_on(self, broker: TargetBroker) -> Callable[[Link, str, Request], None]:
        def watch(link: Link, step: str, request: Request) -> None:
            produced = step.startswith(("ProduceRequest", "MultiProduceRequest"))
            done = step.endswith("done")
            self.begun = self.begun or bool(produced and _payloads(request))
            if produced and done:
                self._unconfirmed.setdefault(link, []).extend(_payloads(request))
                self.kernel.after(_REGISTERS, lambda: broker.register(TOPIC))
            self.watcher(broker, link, step)
            if done and not link.ended and self._is_confirmation(request):
                self._confirm(link, self._unconfirmed.pop(link, []))

        return watch

    def _is_confirmation(self, request: Request) -> bool:
        """Whether its answer says that all before is stored: a verifying mirror wants to read it."""
        return isinstance(request, FetchRequest) and (request.max_size > 0 or not self.settings.verify)

    def _confirm(self, link: Link, payloads: list[bytes]) -> None:
        self._confirmed.update(dict.fromkeys(payloads, (self.kernel.now, link)))
        touched = {self.messages[payload][:2] for payload in payloads}
        for place in touched:
            if all(payload in self._confirmed for payload, each in self.messages.items() if each[:2] == place):
                self.account.handled(place[0], [place[1]])

    def unconfirmed(self, broker: TargetBroker, link: Link | None = None) -> set[bytes]:
        """What is stored and not confirmed, on a connection or on all connections to a broker.

        A confirmation that is on its way gets lost with its connection.
        """

        def concerns(other: Link) -> bool:
            return other is link if link is not None else other.address == (broker.host, broker.port)

        since = self.kernel.now - _ARRIVES
        found = {payload for other, sent in self._unconfirmed.items() if concerns(other) for payload in sent}
        return found | {payload for payload, (at, other) in self._confirmed.items() if at >= since and concerns(other)}

    # -- the source's side

    def committed(self, partition: TopicPartition) -> int:
        """The offset of a partition in the source's ZooKeeper; 0 without one."""
        node = self.zookeeper.tree.nodes.get(offset_path(self.group, partition))
        return 0 if node is None or not node.data else parse_offset(node.data)

    def uncommitted(self) -> set[bytes]:
        """Messages that are not committed on the source."""
        ends = {partition: self.committed(partition) for partition in self.partitions}
        return {payload for payload, (partition, offset, _) in self.messages.items() if offset >= ends[partition]}

    def all_committed(self) -> bool:
        """Whether all messages are."""
        return all(self.committed(partition) == self.end(partition) for partition in self.partitions)

    # -- the comparison

    def check(self, may_repeat: set[bytes], *, places_kept: bool) -> None:
        """Raise SimulationError where the target has not what it should.

        `may_repeat`: messages that it may have twice. `places_kept`: whether the target's brokers were there all the
        time, so that each source partition has one place.
        """
        if self.account.violations:
            raise SimulationError("\n".join(self.account.violations))
        logs = self._target_logs()
        counts = Counter(payload for log in logs.values() for payload in log)
        if counts.keys() != self.messages.keys():
            missing = self.messages.keys() - counts.keys()
            raise SimulationError(f"not on the target: {sorted(missing)}, or not of the source: {counts - Counter()}")
        wrong = [payload for payload, times in counts.items() if times > (2 if payload in may_repeat else 1)]
        if wrong:
            raise SimulationError(f"repeated on the target without a reason: {sorted(wrong)}")
        for place, log in logs.items():
            for partition in self.partitions:
                found = [self.messages[payload][2] for payload in dict.fromkeys(log) if self._is_of(payload, partition)]
                if found != sorted(found):
                    raise SimulationError(f"{partition} is out of order in {place}: {found}")
                if found and places_kept and place != _place_of(partition):
                    raise SimulationError(f"{partition} is in {place} instead of {_place_of(partition)}")

    def _is_of(self, payload: bytes, partition: TopicPartition) -> bool:
        return self.messages[payload][0] == partition

    def _target_logs(self) -> dict[tuple[int, int], list[bytes]]:
        return {
            (number, partition): list(decode_batch(bytes(log), 0).payloads)
            for number, broker in self.targets.items()
            for (_, partition), log in broker.store.logs.items()
        }


def _place_of(partition: TopicPartition) -> tuple[int, int]:
    """As docs/tools.md says: (broker * p + partition) mod n of the target's partitions, by broker and number."""
    places = [(broker, number) for broker in range(2) for number in range(TARGET_PARTITIONS)]
    return places[(partition.broker * PARTITIONS + partition.partition) % len(places)]


def _payloads(request: Request) -> list[bytes]:
    produces = request.produces if isinstance(request, MultiProduceRequest) else (request,)
    return [
        payload
        for each in produces
        if isinstance(each, ProduceRequest) and each.messages
        for payload in decode_batch(each.messages, 0).payloads
    ]


def _loop() -> ProcessLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ProcessLoop)
    return loop


def _clock() -> ProcessClock:
    return ProcessClock(_loop())


class _Mirror(Daemon):
    """`consumerd mirror --to-zookeeper`."""

    world: MirrorWorld

    def __init__(self, world: MirrorWorld, name: str) -> None:
        settings = {**_SETTINGS, "group": {"consumer_id": name}}
        super().__init__(world, name, settings, 0.0, stubborn=False, lingering=False)

    def make_loop(self) -> ThreadedLoop:
        return ThreadedLoop(self.world.kernel, self.world.network, self.name, self._watched)

    def _watched(self, step: str) -> None:
        if self.world.begun:
            self.world.turns(self)

    async def serve(self, config: Config, clock: ProcessClock, rng: random.Random) -> None:
        zookeeper = self.world.target
        await mirror(config, MirrorTarget(f"{zookeeper.host}:{zookeeper.port}", settings=self.world.settings))
