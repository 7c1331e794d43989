"""The world of members that copy a topic of 0.7 to another cluster, and the comparison of both sides.

Strategy: the source is `tests.simulation.world.World`. `check` compares the logs of the target with what was produced:
all messages are there, each partition in order and in its place, and only those twice that may be. Subclasses have the
target, say which messages it has confirmed (these count as handled), and what may happen to it: `mirror_world`
(0.7) and `forward_world` (0.8 and later).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from consumerd.base.partition import TopicPartition
from consumerd.wire.registry.paths import offset_path
from consumerd.wire.registry.values import parse_offset
from consumerd.wire.v07 import Codec
from tests.simulation.daemon import Daemon
from tests.simulation.kernel import SimulationError
from tests.simulation.network import Link
from tests.simulation.process import ProcessLoop
from tests.simulation.threads import ThreadedLoop
from tests.simulation.world import World

TOPIC = "t"
#: Partitions of the topic on the source's broker.
PARTITIONS = 3
_SETTINGS: dict[str, dict[str, Any]] = {"fetch": {"initial": "earliest"}, "commit": {"interval": 0.05}}

#: A message: its partition on the source, the offset of the message that holds it, and its number in the partition.
Message = tuple[TopicPartition, int, int]


class CopyWorld(World):
    """One run. `watcher` sees the steps of the target's brokers, `turns` each turn of a member's loop."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.watcher: Callable[[Link, str], None] = lambda link, step: None
        self.turns: Callable[[Daemon], None] = lambda daemon: None
        #: The messages of each payload.
        self.messages: dict[bytes, Message] = {}
        #: Whether a member has sent something.
        self.begun = False

    # -- what subclasses say

    def start_target(self) -> None:
        """Start the brokers of the target."""
        raise NotImplementedError

    def make_member(self, name: str) -> CopyMember:
        """A new process."""
        raise NotImplementedError

    def strike(self, fault: str, link: Link) -> set[bytes]:
        """Let something happen to a connection or its broker. Returns messages that may be on the target twice."""
        raise NotImplementedError

    def after_kill(self) -> set[bytes]:
        """The messages that may be on the target twice when a member was killed."""
        return self.uncommitted()

    def logs(self) -> dict[Any, Sequence[bytes]]:
        """The messages of each partition of the target."""
        raise NotImplementedError

    def place_of(self, partition: TopicPartition) -> Any:
        """The partition of the target that a partition of the source belongs to."""
        raise NotImplementedError

    # -- the source

    def begin(self) -> None:
        super().begin()
        self.account.count_all()
        self.topic(TOPIC, PARTITIONS)
        self.start_target()

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
        """Start a member."""
        made = self.daemons[name] = self.make_member(name)
        return made

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

    def confirmed(self, payloads: Iterable[bytes], known: Iterable[bytes]) -> None:
        """The target has confirmed `payloads`, after those in `known`; outer messages are handled as a whole."""
        before = set(known)
        for place in {self.messages[payload][:2] for payload in payloads}:
            if all(payload in before for payload, each in self.messages.items() if each[:2] == place):
                self.account.handled(place[0], [place[1]])

    def check(self, may_repeat: set[bytes], *, places_kept: bool) -> None:
        """Raise SimulationError where the target has not what it should.

        `may_repeat`: messages that it may have twice. `places_kept`: whether the target's partitions were there all the
        time, so that each source partition has one place.
        """
        if self.account.violations:
            raise SimulationError("\n".join(self.account.violations))
        logs = self.logs()
        counts = Counter(payload for log in logs.values() for payload in log)
        if counts.keys() != self.messages.keys():
            missing, strange = self.messages.keys() - counts.keys(), counts.keys() - self.messages.keys()
            raise SimulationError(f"not on the target: {sorted(missing)}; not of the source: {sorted(strange)}")
        wrong = [payload for payload, times in counts.items() if times > (2 if payload in may_repeat else 1)]
        if wrong:
            raise SimulationError(f"repeated on the target without a reason: {sorted(wrong)}")
        for place, log in logs.items():
            for partition in self.partitions:
                found = [self.messages[payload][2] for payload in dict.fromkeys(log) if self._is_of(payload, partition)]
                if found != sorted(found):
                    raise SimulationError(f"{partition} is out of order in {place}: {found}")
                if found and places_kept and place != self.place_of(partition):
                    raise SimulationError(f"{partition} is in {place} instead of {self.place_of(partition)}")

    def _is_of(self, payload: bytes, partition: TopicPartition) -> bool:
        return self.messages[payload][0] == partition

    # -- what replaces the system's

    def random(self) -> random.Random:
        """The randomness of the process that runs, instead of the operating system's."""
        return random.Random(f"{self.seed}/{process_loop().name}")


class CopyMember(Daemon):
    """A process that copies, with a turn for each callback of its loop."""

    world: CopyWorld

    def __init__(self, world: CopyWorld, name: str) -> None:
        settings = {**_SETTINGS, "group": {"consumer_id": name}}
        super().__init__(world, name, settings, 0.0, stubborn=False, lingering=False)

    def make_loop(self) -> ThreadedLoop:
        return ThreadedLoop(self.world.kernel, self.world.network, self.name, self._watched)

    def _watched(self, step: str) -> None:
        if self.world.begun:
            self.world.turns(self)


def process_loop() -> ProcessLoop:
    """That of the process that runs."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ProcessLoop)
    return loop
