"""When the topics' nodes in ZooKeeper were created: a topic that was deleted and created again has a younger node.

Strategy: each node is read once, with a watch, and again when that fired, after a reconnect, or on demand
(`WatchedNodes`). Its data play no part and are not kept.
"""

from __future__ import annotations

from collections.abc import Callable

from consumerd.base.errors import BrokerError, ZooKeeperError
from consumerd.base.ports import Clock, ZooKeeper
from consumerd.net.cluster.watched import WatchedNodes
from consumerd.wire.registry.paths import topic_path


class TopicNodes:
    """The nodes of the topics that are asked for, in Kafka 0.8 and later."""

    def __init__(self, zk: ZooKeeper, clock: Clock) -> None:
        self._nodes = WatchedNodes(zk, clock, self._fired)
        self._subscribers: list[Callable[[str], None]] = []

    def subscribe(self, changed: Callable[[str], None]) -> None:
        """Call `changed` with a topic whose node may be another one than before."""
        self._subscribers.append(changed)

    def _fired(self, path: str) -> None:
        for changed in self._subscribers:
            changed(path.rpartition("/")[2])

    def refresh(self, topic: str) -> None:
        """Read the node again at the next call of `zxid`."""
        self._nodes.refresh(topic_path(topic))

    async def creation(self, topic: str) -> tuple[int, int | None]:
        """Return the transaction that created the topic's node, and its time in ms since 1970.

        The time is None once the node was written again. Raises BrokerError while the node cannot be read.
        """
        path = topic_path(topic)
        try:
            node = await self._nodes.node_if_there(path)
        except ZooKeeperError as error:
            raise BrokerError(f"the node of the topic {topic!r} cannot be read: {error}") from error
        if node is None:
            raise BrokerError(f"the topic {topic!r} has no node in ZooKeeper: it is being deleted, or not created yet")
        self._nodes.shorten(path, b"")
        stat = node.stat
        return stat.created_zxid, stat.modified_ms if stat.modified_zxid == stat.created_zxid else None

    async def zxid(self, topic: str) -> int:
        """Return the transaction that created the topic's node. Raises as `creation`."""
        return (await self.creation(topic))[0]
