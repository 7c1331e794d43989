"""A name for the cluster of a member, the same for all members and after each restart, and another for other clusters.

Strategy: since 0.10.1 a cluster has an id, which METADATA tells. Before, what all members share is ZooKeeper's tree:
the node of the registrations has a transaction and a time of creation, whichever servers a connect string lists. A tree
that is built again has others. No peer writes data into that node, so the time of its last write is that of its
creation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.registry import broker_ids_path

if TYPE_CHECKING:
    from consumerd.ports import ZooKeeper


class TreeName:
    """The name of the cluster whose brokers register in `zk`."""

    def __init__(self, zk: ZooKeeper) -> None:
        self._zk = zk
        #: The session in which it was read: a tree that is built again does not know the session.
        self._session_id = 0
        self._name: str | None = None

    async def read(self) -> str | None:
        """Return the name, None where no broker has registered yet. Raises ZooKeeperError."""
        session_id = self._zk.session_id
        if self._name is None or session_id != self._session_id:
            stat = await self._zk.exists(broker_ids_path())
            self._name = None if stat is None else f"zk-{stat.created_zxid:x}-{stat.modified_ms:x}"
            self._session_id = session_id
        return self._name
