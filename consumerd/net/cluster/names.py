"""A name for the cluster of a member, the same for all members and after each restart, and another for other clusters.

Strategy: since 0.10.1 a cluster has an id, which METADATA tells. Before, what all members share is ZooKeeper's tree:
the node of the registrations has a transaction and a time of creation, whichever servers a connect string lists. A tree
that is built again has others. No peer writes data into that node, so the time of its last write is that of its
creation.
"""

from __future__ import annotations

from consumerd.base.ports import ZooKeeper
from consumerd.wire.registry.paths import broker_ids_path


class TreeName:
    """The name of the cluster whose brokers register in `zk`."""

    def __init__(self, zk: ZooKeeper) -> None:
        self._zk = zk
        #: By the session in which it was read: a tree that is built again does not know the session.
        self._names: dict[int, str] = {}

    async def read(self) -> str | None:
        """Return the name, None where no broker has registered yet. Raises ZooKeeperError."""
        session_id = self._zk.session_id
        if session_id not in self._names:
            stat = await self._zk.exists(broker_ids_path())
            self._names = {} if stat is None else {session_id: f"zk-{stat.created_zxid:x}-{stat.modified_ms:x}"}
        return self._names.get(session_id)
