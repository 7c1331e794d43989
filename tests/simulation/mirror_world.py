"""Two clusters of 0.7 and mirrors between them, which run as their command runs them.

Strategy: the target is a ZooKeeper of its own with two brokers, which register a topic a while after its first message.
It has confirmed a message when that is in a log there, and a later FETCH on the same connection was answered, or with
`verify` answered with the message. So the account reports each offset that is committed before the target confirmed
what is before it. For the source and the comparison see `tests.simulation.copy_world`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

from consumerd.daemon import mirroring
from consumerd.daemon.mirroring import MirrorTarget, mirror
from consumerd.mirror import handler as mirror_handler
from consumerd.registry import broker_path, topic_broker_path
from consumerd.wire.v07 import FetchRequest, MultiProduceRequest, ProduceRequest, decode_batch
from tests.simulation.broker import REQUEST_TIME, SimulatedBroker
from tests.simulation.copy_world import PARTITIONS, TOPIC, CopyMember, CopyWorld, process_loop
from tests.simulation.daemon import ProcessClock
from tests.simulation.network import Line
from tests.simulation.zookeeper import SimulatedZooKeeper

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence
    from typing import Any

    from consumerd.config.model import Config
    from consumerd.partition import TopicPartition
    from consumerd.producer import ProducerSettings
    from consumerd.wire.v07 import Request
    from tests.simulation.network import Link

#: Partitions of the topic on each of the target's brokers.
TARGET_PARTITIONS = 2
#: Messages that the mirror sends at once: a batch takes several pieces.
PIECE = 3
#: Seconds until a broker has registered a topic that it has got messages of.
_REGISTERS = 0.02
#: Seconds for which a broker is away: longer than the producer tries, so that the handler tries again.
_AWAY = 6.0
#: Seconds to a broker of the target, one way, and those in which an answer arrives.
_LATENCY = 0.0002
_ARRIVES = REQUEST_TIME + 1.5 * _LATENCY


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
        #: Of each connection to a broker of the target, what is stored there and not confirmed yet.
        self._unconfirmed: dict[Link, list[bytes]] = {}
        #: When and to which connection the confirmation of a message was sent, the last time.
        self._confirmed: dict[bytes, tuple[float, Link]] = {}
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
            found = self._unknown(link.address, link)
            link.cut()
            return found
        broker = next(each for each in self.targets.values() if (each.host, each.port) == link.address)
        found = self._unknown(link.address)
        if fault == "broker restarts":
            broker.stop()
        else:
            broker.leave()
            self.kernel.after(_AWAY, broker.join)
        self.kernel.after(_AWAY, broker.start)
        return found

    def _unknown(self, address: tuple[str, int], link: Link | None = None) -> set[bytes]:
        """What is stored and, as far as the mirror knows, not confirmed on one connection, or all to a broker.

        A confirmation that is on its way gets lost with its connection.
        """

        def concerns(other: Link) -> bool:
            return other is link if link is not None else other.address == address

        since = self.kernel.now - _ARRIVES
        found = {payload for other, sent in self._unconfirmed.items() if concerns(other) for payload in sent}
        return found | {payload for payload, (at, other) in self._confirmed.items() if at >= since and concerns(other)}

    def _watch_on(self, broker: TargetBroker) -> Callable[[Link, str, Request], None]:
        def watch(link: Link, step: str, request: Request) -> None:
            produced = step.startswith(("ProduceRequest", "MultiProduceRequest"))
            done = step.endswith("done")
            self.begun = self.begun or bool(produced and _payloads(request))
            if produced and done:
                self._unconfirmed.setdefault(link, []).extend(_payloads(request))
                self.kernel.after(_REGISTERS, lambda: broker.register(TOPIC))
            self.watcher(link, step)
            if done and not link.ended and isinstance(request, FetchRequest):
                waiting = self._unconfirmed.pop(link, [])
                told = self._told(broker, request, waiting)
                self._unconfirmed[link] = [payload for payload in waiting if payload not in told]
                self._confirmed.update(dict.fromkeys(told, (self.kernel.now, link)))
                self.confirmed(told, self._confirmed)

        return watch

    def _told(self, broker: TargetBroker, request: FetchRequest, waiting: list[bytes]) -> set[bytes]:
        """Those of `waiting` that the answer confirms: all that came before, or with `verify` those in it."""
        if not self.settings.verify:
            return set(waiting)
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


def _payloads(request: Request) -> list[bytes]:
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
