"""Two clusters of 0.7 and mirrors between them, which run as their command runs them.

Strategy: the target is a ZooKeeper of its own with two brokers, which register a topic a while after its first message.
It has confirmed a message when that is in a log there, and a later FETCH on the same connection was answered, or with
`verify` answered with the message. So the account reports each offset that is committed before the target confirmed
what is before it. For the source and the comparison see `tests.simulation.copy_world`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from unittest import mock

from consumerd.base.partition import TopicPartition
from consumerd.handlers.mirror import handler as mirror_handler
from consumerd.producer import ProducerSettings
from consumerd.service.config.model import Config
from consumerd.service.daemon import mirroring
from consumerd.service.daemon.mirroring import MirrorTarget, mirror
from consumerd.wire.registry.paths import broker_path, topic_broker_path
from consumerd.wire.v07 import FetchRequest, MultiProduceRequest, ProduceRequest, Request, decode_batch
from tests.simulation.broker import REQUEST_TIME, SimulatedBroker
from tests.simulation.confirmations import Confirmations
from tests.simulation.copy_world import PARTITIONS, TOPIC, CopyMember, CopyWorld, process_loop
from tests.simulation.daemon import ProcessClock
from tests.simulation.network import Line, Link
from tests.simulation.zookeeper import SimulatedZooKeeper

if TYPE_CHECKING:
    import random

#: Partitions of the topic on each of the target's brokers.
TARGET_PARTITIONS = 2
#: Messages that the mirror sends at once: a batch takes several pieces.
PIECE = 3
#: Seconds until a broker has registered a topic that it has got messages of.
_REGISTERS = 0.02
#: Seconds for which a broker is unavailable: longer than the producer tries, so that the handler tries again.
_AWAY = 6.0
#: Seconds to a broker of the target, one way.
_LATENCY = 0.0002


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


class MirrorWorld(CopyWorld):
    """One run, with the settings of the mirror's producer."""

    def __init__(self, seed: int, settings: ProducerSettings) -> None:
        super().__init__(seed)
        self.settings = settings
        self.target = SimulatedZooKeeper(self.kernel, self.network, host="target", line=Line(0.0005))
        self.targets: dict[int, TargetBroker] = {}
        self._confirmations = Confirmations(self.kernel, REQUEST_TIME + 1.5 * _LATENCY)
        self._patches += [
            mock.patch.object(mirror_handler, "MESSAGES", PIECE),
            mock.patch.object(mirroring, "SystemClock", _clock),
            mock.patch.object(mirroring, "SystemRandom", self.random),
        ]

    def start_target(self) -> None:
        for number in range(2):
            made = TargetBroker(self.kernel, self.network, number, f"target{number}", 9092, Line(_LATENCY))
            made.registry, self.targets[number] = self.target, made
            made.watcher = self._watch_on(made)
            made.join()

    def make_member(self, name: str) -> CopyMember:
        return _Mirror(self, name)

    def strike(self, fault: str, link: Link) -> set[bytes]:
        """`cut` the connection, let its broker restart, or leave its cluster for a while."""
        if fault == "cut":
            found = self._confirmations.unknown(link.address, link)
            link.cut()
            return found
        broker = next(each for each in self.targets.values() if (each.host, each.port) == link.address)
        found = self._confirmations.unknown(link.address)
        if fault == "broker restarts":
            broker.stop()
        else:
            broker.leave()
            self.kernel.after(_AWAY, broker.join)
        self.kernel.after(_AWAY, broker.start)
        return found

    def _watch_on(self, broker: TargetBroker) -> Callable[[Link, str, Request], None]:
        def watch(link: Link, step: str, request: Request) -> None:
            produced = step.startswith(("ProduceRequest", "MultiProduceRequest"))
            done = step.endswith("done")
            self.begun = self.begun or bool(produced and produced_payloads(request))
            if produced and done:
                self._confirmations.stored(link, produced_payloads(request))
                self.kernel.after(_REGISTERS, lambda: broker.register(TOPIC))
            self.watcher(link, step)
            if done and not link.ended and isinstance(request, FetchRequest):
                told = self._told(broker, request, self._confirmations.waiting(link))
                self._confirmations.confirm(link, told)
                self.confirmed(told, self._confirmations.confirmed)

        return watch

    def _told(self, broker: TargetBroker, request: FetchRequest, waiting: set[bytes]) -> set[bytes]:
        """Those of `waiting` that the answer confirms: all that came before, or with `verify` those in it."""
        if not self.settings.verify:
            return waiting
        log = bytes(broker.store.logs.get((request.topic, request.partition), b""))
        read = decode_batch(log[request.offset : request.offset + request.max_size], request.offset).payloads
        return {payload for payload in waiting if payload in read}

    def logs(self) -> dict[Any, Sequence[bytes]]:
        return {
            (number, partition): decode_batch(bytes(log), 0).payloads
            for number, broker in self.targets.items()
            for (_, partition), log in broker.store.logs.items()
        }

    def place_of(self, partition: TopicPartition) -> tuple[int, int]:
        """As docs/tools.md says: (broker * p + partition) mod n of the target's partitions, by broker and number."""
        places = [(broker, number) for broker in range(2) for number in range(TARGET_PARTITIONS)]
        return places[(partition.broker * PARTITIONS + partition.partition) % len(places)]


def _clock() -> ProcessClock:
    return ProcessClock(process_loop())


def produced_payloads(request: Request) -> list[bytes]:
    """The messages of a PRODUCE or MULTIPRODUCE request; none of another one."""
    produces = request.produces if isinstance(request, MultiProduceRequest) else (request,)
    return [
        payload
        for each in produces
        if isinstance(each, ProduceRequest) and each.messages
        for payload in decode_batch(each.messages, 0).payloads
    ]


class _Mirror(CopyMember):
    """`consumerd mirror --to-zookeeper`."""

    world: MirrorWorld

    async def serve(self, config: Config, clock: ProcessClock, rng: random.Random) -> None:
        zookeeper = self.world.target
        await mirror(config, MirrorTarget(f"{zookeeper.host}:{zookeeper.port}", settings=self.world.settings))
