"""The common part of worlds in which ZooKeeper coordinates the group: the ensemble, and the account of owner nodes.

Subclasses add the brokers: of 0.7 (`tests.simulation.world`), or of 0.9 and later (`tests.simulation.old_kafka_world`).
"""

from __future__ import annotations

from typing import Any

from consumerd.base.partition import TopicPartition
from consumerd.testing.memory_tree import Change
from consumerd.wire.registry.paths import ids_path, offsets_root, owners_root
from consumerd.wire.registry.values import parse_offset
from tests.simulation.base_world import BaseWorld
from tests.simulation.network import Line
from tests.simulation.owner_account import OwnerAccount
from tests.simulation.ownership import Cause
from tests.simulation.zookeeper import SimulatedZooKeeper


class ZooKeeperWorld(BaseWorld):
    """One run. `round_trip`: seconds to ZooKeeper and back; `rate`: requests that it takes in a second."""

    account: OwnerAccount

    def __init__(
        self, seed: int = 0, *, round_trip: float = 0.001, rate: float = 20_000.0, jitter: float = 0.1
    ) -> None:
        super().__init__(seed)
        line = Line(round_trip / 2, jitter=jitter)
        self.zookeeper = SimulatedZooKeeper(self.kernel, self.network, line=line, rate=rate)
        self.zookeeper.observers.append(self._observe)
        self.account = OwnerAccount(self.kernel, self._news)
        #: The name by which members look for ZooKeeper.
        self.zookeeper_name = self.zookeeper.host
        self._offsets_root = offsets_root(self.group) + "/"
        self._owners_root = owners_root(self.group) + "/"
        self._ids_root = ids_path(self.group) + "/"
        #: Sessions that created an id node.
        self._registered: set[int] = set()

    def tables(self) -> dict[str, dict[str, Any]]:
        return {
            "group": {"id": self.group, "whitelist": ".*"},
            "zookeeper": {"connect": f"{self.zookeeper_name}:{self.zookeeper.port}"},
        }

    # -- members

    def living(self) -> list[str]:
        """The processes that are there."""
        return [name for name, daemon in self.daemons.items() if daemon.alive]

    def owners(self) -> dict[TopicPartition, str]:
        """Of each owned partition the process that owns it, as ZooKeeper has it."""
        tree, sessions = self.zookeeper.tree, self.zookeeper.sessions
        owners = {}
        for path, node in tree.nodes.items():
            if node.owner and path.startswith(self._owners_root):
                topic, _, name = path.removeprefix(self._owners_root).partition("/")
                owners[TopicPartition.parse_any(topic, name)] = sessions[node.owner].owner
        return owners

    @property
    def is_shared(self) -> bool:
        shares = self.shares()
        counts = [shares.get(name, 0) for name in self.living()]
        return bool(counts) and sum(counts) == len(self.partitions) and max(counts) - min(counts) <= 1

    # -- observing

    def _news(self, member: str) -> float:
        """Seconds for the watch, for reads and for the end of current batches; more round trips if a burst waits."""
        zookeeper = self.zookeeper
        return 2.0 + 20 * self.network.latency_of(member, (zookeeper.host, zookeeper.port))

    def _observe(self, change: Change, path: str) -> None:
        if path.startswith(self._owners_root) and change in (Change.CREATED, Change.DELETED):
            topic, _, name = path.removeprefix(self._owners_root).partition("/")
            if name:
                self._observe_owner(change, TopicPartition.parse_any(topic, name), path)
        if path.startswith(self._ids_root) and change is Change.CREATED:
            node = self.zookeeper.tree.nodes.get(path)
            if node is not None:  # that of a nudge is gone already
                self._registered.add(node.owner)
        if path.startswith(self._offsets_root) and change in (Change.CREATED, Change.DATA):
            topic, _, name = path.removeprefix(self._offsets_root).partition("/")
            if name:
                position = parse_offset(self.zookeeper.tree.nodes[path].data)
                self.account.committed(TopicPartition.parse_any(topic, name), position, self.zookeeper.serving)

    def _observe_owner(self, change: Change, partition: TopicPartition, path: str) -> None:
        zookeeper, account = self.zookeeper, self.account
        if change is Change.CREATED:
            owner = zookeeper.tree.nodes[path].owner
            if owner not in self._registered and zookeeper.sessions[owner].owner in self.daemons:
                account.violate(f"{zookeeper.sessions[owner].owner} claims {partition} without an id node")
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
