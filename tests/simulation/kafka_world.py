"""The world of one group of Kafka 0.9 and later: brokers, topics, producers, member processes, and the account.

    with KafkaWorld(seed=1) as world:
        world.topic("events", 12)
        first = world.daemon("first")
        world.settle()

Members are coordinated by a broker unless their settings say otherwise (`fixed`). Beside the account, each delivery
and each commit is compared with the coordinator's state at that moment: no member may get a partition that was assigned
to another member, and no commit may be accepted for a partition that was not assigned to the committing member.
"""

from __future__ import annotations

from typing import Any

from consumerd.base.partition import TopicPartition
from tests.simulation.account import Account
from tests.simulation.daemon import Daemon
from tests.simulation.kafka_broker import ERAS, Era, SimulatedKafka
from tests.simulation.kafka_logs import KafkaLogs
from tests.simulation.network import Line


class KafkaAccount(Account):
    """The account, with the coordinator's view of who owns what."""

    #: Set by the world.
    kafka: SimulatedKafka

    def begin(
        self, member: str, partition: TopicPartition, offsets: list[int], contents: list[bytes] | None = None
    ) -> None:
        owner = self.kafka.owners().get(partition)
        if owner not in (None, member):
            self.violate(f"{member} is handed {partition} at {offsets[0]}, which was dealt to {owner}")
        super().begin(member, partition, offsets, contents)


class KafkaWorld(KafkaLogs):
    """One run. `round_trip`: seconds to each broker and back; `brokers`: how many; `fixed`: without a coordinator."""

    account: KafkaAccount

    def __init__(
        self,
        seed: int = 0,
        *,
        brokers: int = 1,
        era: Era = ERAS[-1],
        round_trip: float = 0.001,
        fixed: bool = False,
    ) -> None:
        super().__init__(seed)
        self.account = KafkaAccount(self.kernel)
        self.kafka = self.account.kafka = SimulatedKafka(self.kernel, self.network, era)
        self.kafka.commits.append(self._observe)
        self.fixed = fixed
        self.line = Line(round_trip / 2)
        self._brokers = brokers

    def begin(self) -> None:
        for number in range(self._brokers):
            self.kafka.add_broker(number, self.line)

    def tables(self) -> dict[str, dict[str, Any]]:
        bootstrap = [f"{broker.host}:{broker.port}" for broker in self.kafka.brokers.values()]
        group: dict[str, Any] = {"id": self.group, "coordination": "fixed" if self.fixed else "kafka"}
        if not self.fixed:
            group |= {"whitelist": ".*", "session_timeout": 6.0, "heartbeat_interval": 1.0, "rebalance_timeout": 12.0}
        return {"group": group, "kafka": {"bootstrap": bootstrap}}

    # -- topics

    def topic(self, topic: str, partitions: int) -> None:
        """Make a topic, or more partitions of it."""
        self.partitions += self.kafka.add_partitions(topic, partitions, self.rng)

    # -- the group

    def living(self) -> list[Daemon]:
        """The processes that are there."""
        return [daemon for daemon in self.daemons.values() if daemon.alive]

    def owners(self) -> dict[TopicPartition, str]:
        return self.kafka.owners()

    @property
    def is_shared(self) -> bool:
        """Whether the generation is stable, has the living members, and each topic is assigned in fair shares."""
        living = {daemon.name for daemon in self.living()}
        owners = self.owners()
        if (
            not self.kafka.stable
            or sorted(self.kafka.members()) != sorted(living)
            or owners.keys() != set(self.partitions)
        ):
            return False
        shares: dict[str, dict[str, int]] = {}
        for partition, owner in owners.items():
            shares.setdefault(partition.topic, dict.fromkeys(living, 0))[owner] += 1
        return all(max(topic.values()) - min(topic.values()) <= 1 for topic in shares.values())

    # -- observing

    def _observe(self, process: str, member_id: str, offsets: dict[TopicPartition, int]) -> None:
        owners = {} if self.fixed else self.owners()
        for partition, position in offsets.items():
            if not self.fixed and owners.get(partition) != process:
                self.account.violate(f"{process} commits {partition}, which was dealt to {owners.get(partition)}")
            self.account.committed(partition, position, process)
