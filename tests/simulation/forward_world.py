"""A cluster of 0.7 and one of later brokers, and daemons with the handler `forward` that share a group.

Strategy: the daemon, the options of the handler, its client and its producer are the product's. The target is
`tests.simulation.kafka_broker.SimulatedKafka`, and has confirmed what is in its logs: they are those of all replicas.
For the source and the comparison see `tests.simulation.copy_world`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from unittest import mock

from consumerd.base.partition import TopicPartition
from consumerd.handlers import Handler, RetryPolicy, retrying
from consumerd.handlers.forward.identity import SourceMark
from consumerd.handlers.forward.settings import ForwardResume
from consumerd.service.daemon import forwarding
from consumerd.wire.v08.error_codes import ErrorCode
from tests.simulation.copy_world import PARTITIONS, TOPIC, CopyMember, CopyWorld
from tests.simulation.daemon import ProcessClock
from tests.simulation.kafka_broker import PRODUCER_ERAS, SimulatedKafka
from tests.simulation.network import Line, Link

if TYPE_CHECKING:
    import random

#: Partitions of the topic on the target.
TARGET_PARTITIONS = 2
#: Bytes of a chunk: a batch takes several.
_CHUNK = 300
#: Seconds until another broker leads the partitions of one that stopped.
_TAKEN_OVER = 0.3
#: The payload of what was forwarded from another cluster.
_FOREIGN = b"foreign"


class ForwardWorld(CopyWorld):
    """One run; `resume` is the option of the handler."""

    def __init__(self, seed: int, resume: ForwardResume) -> None:
        super().__init__(seed)
        self.resume = resume
        self.kafka = SimulatedKafka(self.kernel, self.network, PRODUCER_ERAS[-1])
        self.kafka.watcher = self._watch
        # The next owner begins at the last message that the target has, to compare it, and writes that offset if it
        # ends before it has forwarded the message behind it.
        self.account.may_go_back = resume is ForwardResume.TARGET
        self._patches.append(mock.patch.object(forwarding, "SystemRandom", self.random))

    def start_target(self) -> None:
        for number in range(2):
            self.kafka.add_broker(number, Line(0.0005))
        self.kafka.add_partitions(TOPIC, TARGET_PARTITIONS, self.rng)

    def make_member(self, name: str) -> CopyMember:
        return _Forwarder(self, name)

    def strike(self, fault: str, link: Link) -> set[bytes]:
        """`cut` the connection, stop its broker, or let the other broker lead its partitions; or partitions refuse.

        Nothing is repeated.
        """
        kafka = self.kafka
        if fault == "refused":  # with an error that the producer does not retry
            kafka.refusals = {place: [ErrorCode.UNKNOWN] for place in self._places()}
            return set()
        broker = next(number for number, each in kafka.brokers.items() if (each.host, each.port) == link.address)
        if fault == "cut":
            link.cut()
        elif fault == "broker stops":
            kafka.stop_broker(broker)
            self.kernel.after(_TAKEN_OVER, lambda: kafka.take_over(self.rng))
        else:
            for partition in self._places():
                if kafka.log(partition).leader == broker:
                    kafka.lead(partition, 1 - broker)
        return set()

    def after_kill(self) -> set[bytes]:
        self._forward_from_elsewhere()
        return set() if self.resume is ForwardResume.TARGET else super().after_kill()

    def _forward_from_elsewhere(self) -> None:
        """Another cluster's topic of the same name has the same messages, and is ahead."""
        for partition in self.partitions:
            offset = max(each[1] for each in self.messages.values() if each[0] == partition)
            log = self.kafka.log(self.place_of(partition))
            log.headers[len(log.payloads)] = SourceMark(partition, "elsewhere").headers(offset, 0, _FOREIGN)
            log.payloads.append(_FOREIGN)

    def _places(self) -> list[TopicPartition]:
        return [TopicPartition.numbered(TOPIC, number) for number in range(TARGET_PARTITIONS)]

    def _watch(self, link: Link, step: str) -> None:
        self.begun = True
        self.watcher(link, step)
        if step == "PRODUCE done":
            stored = {payload for log in self.logs().values() for payload in log}
            self.confirmed(stored, stored)

    def logs(self) -> dict[Any, Sequence[bytes]]:
        return {
            place: [payload for payload in self.kafka.log(place).payloads if payload != _FOREIGN]
            for place in self._places()
        }

    def place_of(self, partition: TopicPartition) -> TopicPartition:
        """As docs/handlers.md says: (broker * partitions_per_broker + partition) mod the target's partitions."""
        number = partition.broker * PARTITIONS + partition.partition
        return TopicPartition.numbered(TOPIC, number % TARGET_PARTITIONS)


class _Forwarder(CopyMember):
    """A daemon with the handler `forward`."""

    world: ForwardWorld

    def make_handler(self, clock: ProcessClock, rng: random.Random) -> Handler:
        inner = forwarding.forward(
            bootstrap=[f"{broker.host}:{broker.port}" for broker in self.world.kafka.brokers.values()],
            partitions_per_broker=PARTITIONS,
            chunk_bytes=_CHUNK,
            resume=self.world.resume.value,
            delivery_timeout=20.0,
            request_timeout=2.0,
        )
        return retrying(inner, RetryPolicy(max_attempts=1000, max_backoff=0.5), clock=clock, rng=rng)
