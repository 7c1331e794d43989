"""Several writes at once, all or nothing; on ZooKeeper servers without multi (before 3.4), one after the other.

Strategy: the order of the operations is such that stopping at the first that fails does no harm: guards come
first, the operations that they guard after them. Temporary nodes are deleted again. Where the answer is lost, nothing
is repeated: the nodes show whether the operations were carried out.
"""

from __future__ import annotations

from collections.abc import Sequence

from consumerd.base.errors import ZooKeeperError
from consumerd.base.ports import Create, Delete, SetData, ZooKeeper
from consumerd.net.cluster.reading import node
from consumerd.net.zk.errors import ConnectionLost, MultiFailed, NodeError


async def write_together(zk: ZooKeeper, operations: Sequence[Create | Delete | SetData]) -> None:
    """Carry out the operations. Raises MultiFailed with the first one that fails, and the errors of the session."""
    if zk.has_multi:
        try:
            await zk.multi(operations)
        except ConnectionLost:
            if not await _is_done(zk, operations):
                raise
        return
    passing = {operation.path for operation in operations if isinstance(operation, Create)} & {
        operation.path for operation in operations if isinstance(operation, Delete)
    }
    for index, operation in enumerate(operations):
        try:
            await _write(zk, operation)
        except ZooKeeperError as error:
            if isinstance(error, ConnectionLost) and await _is_done(zk, [operation]):
                continue
            for made in operations[:index]:
                if isinstance(made, Create) and made.path in passing:
                    await zk.delete_owned(made.path)  # another session may own it by now
            if not isinstance(error, NodeError):
                raise
            raise MultiFailed(index, error) from error


async def _is_done(zk: ZooKeeper, operations: Sequence[Create | Delete | SetData]) -> bool:
    """Whether each node is as the last operation on it leaves it."""
    for path, operation in {operation.path: operation for operation in operations}.items():
        found = await node(zk, path)
        if isinstance(operation, Delete):
            done = found is None
        else:
            owner = zk.session_id if isinstance(operation, Create) and operation.ephemeral else 0
            done = found is not None and (found[0], found[1].ephemeral_owner) == (operation.data or b"", owner)
        if not done:
            return False
    return True


async def _write(zk: ZooKeeper, operation: Create | Delete | SetData) -> None:
    match operation:
        case Create(path, data, ephemeral):
            await zk.create(path, data, ephemeral=ephemeral)
        case SetData(path, data, version):
            await zk.set(path, data, version=version)
        case Delete(path, version):
            await zk.delete(path, version=version)
