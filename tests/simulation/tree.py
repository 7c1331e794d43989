"""ZooKeeper's tree with all of a node's Stat: transactions by number, applied all or not at all, and what they fire.

Strategy: a transaction is a value (`Transaction`), so that a follower's tree becomes equal to the leader's by applying
the same ones later. While one runs, each change notes how to take itself back. `consumerd.testing.memory_tree` is the
model of the same at the level of the port; here are the numbers that only the wire shows (zxids, cversion, pzxid).
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from consumerd.base.ports import Check, Create, Delete, Operation, SetData

if TYPE_CHECKING:
    from collections.abc import Callable

BAD_ARGUMENTS, NO_NODE, BAD_VERSION, NO_CHILDREN, NODE_EXISTS, NOT_EMPTY = -8, -101, -103, -108, -110, -111


class Change(IntEnum):
    """The events of a watch, with ZooKeeper's numbers."""

    CREATED = 1
    DELETED = 2
    DATA = 3
    CHILDREN = 4


class RefusedError(Exception):
    """An operation failed with ZooKeeper's `code`."""

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class Transaction(NamedTuple):
    """Operations of one session at one time (milliseconds), which all succeed or none."""

    zxid: int
    session: int
    time: int
    operations: tuple[Operation, ...]


class Node:
    """One node, with what its Stat says."""

    __slots__ = ("children", "ctime", "cversion", "czxid", "data", "mtime", "mzxid", "owner", "pzxid", "version")

    def __init__(self, data: bytes | None, owner: int, zxid: int, time: int) -> None:
        self.data = data
        self.owner = owner
        self.czxid = self.mzxid = self.pzxid = zxid
        self.ctime = self.mtime = time
        self.version = self.cversion = 0
        self.children: dict[str, None] = {}

    @property
    def stat(self) -> tuple[int, ...]:
        """In the order of the wire."""
        size = len(self.data) if self.data is not None else 0
        times = (self.czxid, self.mzxid, self.ctime, self.mtime)
        return (*times, self.version, self.cversion, 0, self.owner, size, len(self.children), self.pzxid)


def parent_of(path: str) -> str:
    """The path above."""
    return path.rpartition("/")[0] or "/"


class Tree:
    """Nodes by path. `fired(change, path)` is called for what a successful transaction changed, in order."""

    def __init__(self, fired: Callable[[Change, str], None] = lambda change, path: None) -> None:
        self.nodes = {"/": Node(b"", 0, 0, 0)}
        self.zxid = 0
        self._fired = fired
        self._undo: list[Callable[[], object]] = []
        self._events: list[tuple[Change, str]] = []
        self._owned: dict[int, dict[str, None]] = {}

    def node(self, path: str) -> Node:
        """Raises RefusedError(NO_NODE)."""
        node = self.nodes.get(path)
        if node is None:
            raise RefusedError(NO_NODE)
        return node

    def owned_by(self, session: int) -> list[str]:
        """The ephemerals of a session."""
        return list(self._owned.get(session, ()))

    def apply(self, transaction: Transaction) -> tuple[int, int] | None:
        """Carry it out. None, or which operation failed with which code: then nothing has changed."""
        self.zxid = transaction.zxid
        self._undo, self._events = [], []
        for index, operation in enumerate(transaction.operations):
            try:
                self._one(operation, transaction)
            except RefusedError as error:
                for back in reversed(self._undo):
                    back()
                return index, error.code
        events, self._events = self._events, []
        for change, path in events:
            self._fired(change, path)
        return None

    def end(self, session: int, zxid: int, time: int) -> Transaction:
        """The transaction that ends a session: it deletes its ephemeral nodes. Not applied yet."""
        return Transaction(zxid, 0, time, tuple(Delete(path) for path in self.owned_by(session)))

    def _one(self, operation: Operation, transaction: Transaction) -> None:
        match operation:
            case Check(path, version):
                self._check(path, version)
            case SetData(path, data, version):
                self._set(path, data, version, transaction)
            case Create(path, data, ephemeral):
                self._create(path, data, transaction.session if ephemeral else 0, transaction)
            case Delete(path, version):
                self._delete(path, version, transaction)

    def _check(self, path: str, version: int) -> Node:
        node = self.node(path)
        if version not in (-1, node.version):
            raise RefusedError(BAD_VERSION)
        return node

    def _set(self, path: str, data: bytes | None, version: int, transaction: Transaction) -> None:
        node = self._check(path, version)
        before = node.data, node.version, node.mzxid, node.mtime

        def back() -> None:
            node.data, node.version, node.mzxid, node.mtime = before

        self._undo.append(back)
        node.data, node.version = data, node.version + 1
        node.mzxid, node.mtime = transaction.zxid, transaction.time
        self._events.append((Change.DATA, path))

    def _create(self, path: str, data: bytes | None, owner: int, transaction: Transaction) -> None:
        if path in self.nodes:
            raise RefusedError(NODE_EXISTS)
        name = path.rpartition("/")[2]
        if not path.startswith("/") or name in ("", ".", "..") or "\0" in name:
            raise RefusedError(BAD_ARGUMENTS)
        above = parent_of(path)
        parent = self.node(above)
        if parent.owner:
            raise RefusedError(NO_CHILDREN)
        before = parent.cversion, parent.pzxid

        def back() -> None:
            del self.nodes[path], parent.children[name]
            parent.cversion, parent.pzxid = before
            if owner:
                del self._owned[owner][path]

        self._undo.append(back)
        self.nodes[path] = Node(data, owner, transaction.zxid, transaction.time)
        parent.children[name] = None
        parent.cversion, parent.pzxid = parent.cversion + 1, transaction.zxid
        if owner:
            self._owned.setdefault(owner, {})[path] = None
        self._events += [(Change.CREATED, path), (Change.CHILDREN, above)]

    def _delete(self, path: str, version: int, transaction: Transaction) -> None:
        node = self._check(path, version)
        if path == "/":
            raise RefusedError(BAD_ARGUMENTS)
        if node.children:
            raise RefusedError(NOT_EMPTY)
        above, name = parent_of(path), path.rpartition("/")[2]
        parent = self.node(above)
        before = parent.cversion, parent.pzxid

        def back() -> None:
            self.nodes[path] = node
            parent.children[name] = None
            parent.cversion, parent.pzxid = before
            if node.owner:
                self._owned.setdefault(node.owner, {})[path] = None

        self._undo.append(back)
        del self.nodes[path], parent.children[name]
        parent.cversion, parent.pzxid = parent.cversion + 1, transaction.zxid
        if node.owner:
            del self._owned[node.owner][path]
        self._events += [(Change.DELETED, path), (Change.CHILDREN, above)]
