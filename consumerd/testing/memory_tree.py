"""ZooKeeper's tree of nodes in memory: the rules of its operations and of its one-shot watches, without any I/O.

For simulations and tests only. Strategy: a transaction is a value (`Transaction`), so that a follower's tree becomes
equal to the leader's by applying the same ones later. While one runs, each change notes how to take itself back.
Operations raise `ServerError(code)` with the codes of the real server. `Tree` has all of a node's Stat, as the wire
shows it; `MemoryTree` is the same for one server without followers, which reads and writes by path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, IntEnum
from typing import NamedTuple

from consumerd.base.ports import Check, Create, Delete, NodeStat, Operation, SetData
from consumerd.net.zk.errors import ServerError

INVALID_PATH, NO_NODE, BAD_VERSION, NO_CHILDREN, NODE_EXISTS, NOT_EMPTY = -8, -101, -103, -108, -110, -111


class Change(IntEnum):
    """The events of a watch, with ZooKeeper's numbers."""

    CREATED = 1
    DELETED = 2
    DATA = 3
    CHILDREN = 4


class Transaction(NamedTuple):
    """Operations of one session at one time (milliseconds), which all succeed or none."""

    zxid: int
    session: int
    time: int
    operations: tuple[Operation, ...]


class TreeNode:
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

    def __init__(self) -> None:
        self.nodes = {"/": TreeNode(b"", 0, 0, 0)}
        self.zxid = 0
        self.fired: Callable[[Change, str], None] = lambda *_: None
        self._undo: list[Callable[[], object]] = []
        self._events: list[tuple[Change, str]] = []
        self._owned: dict[int, dict[str, None]] = {}

    def node(self, path: str) -> TreeNode:
        """Raises ServerError(NO_NODE)."""
        node = self.nodes.get(path)
        if node is None:
            raise ServerError(NO_NODE)
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
            except ServerError as error:
                for back in reversed(self._undo):
                    back()
                return index, error.code
        events, self._events = self._events, []
        for change, path in events:
            self.fired(change, path)
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

    def _check(self, path: str, version: int) -> TreeNode:
        node = self.node(path)
        if version not in (-1, node.version):
            raise ServerError(BAD_VERSION)
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
            raise ServerError(NODE_EXISTS)
        name = path.rpartition("/")[2]
        if not path.startswith("/") or name in ("", ".", "..") or "\0" in name:
            raise ServerError(INVALID_PATH)
        above = parent_of(path)
        parent = self.node(above)
        if parent.owner:
            raise ServerError(NO_CHILDREN)
        before = parent.cversion, parent.pzxid

        def back() -> None:
            del self.nodes[path], parent.children[name]
            parent.cversion, parent.pzxid = before
            if owner:
                del self._owned[owner][path]

        self._undo.append(back)
        self.nodes[path] = TreeNode(data, owner, transaction.zxid, transaction.time)
        parent.children[name] = None
        parent.cversion, parent.pzxid = parent.cversion + 1, transaction.zxid
        if owner:
            self._owned.setdefault(owner, {})[path] = None
        self._events += [(Change.CREATED, path), (Change.CHILDREN, above)]

    def _delete(self, path: str, version: int, transaction: Transaction) -> None:
        node = self._check(path, version)
        if path == "/":
            raise ServerError(INVALID_PATH)
        if node.children:
            raise ServerError(NOT_EMPTY)
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


class WatchKind(Enum):
    """The two kinds of watches."""

    DATA = "data"  #: armed by get and exists
    CHILDREN = "children"  #: armed by children


def watches_of(change: Change) -> tuple[WatchKind, ...]:
    """The watches on a path that a change of it fires, in order."""
    if change is Change.DELETED:
        return WatchKind.DATA, WatchKind.CHILDREN
    return (WatchKind.CHILDREN if change is Change.CHILDREN else WatchKind.DATA,)


class MemoryTree(Tree):
    """The tree of one server. `changed(kind, path)` is called after every transaction, for each watch that it fires."""

    def __init__(self, *, now_ms: Callable[[], int], changed: Callable[[WatchKind, str], None]) -> None:
        super().__init__()
        self.fired = self._note
        self._now_ms = now_ms
        self._changed = changed
        #: The watches that the present transaction fires, each once.
        self._watches: dict[tuple[WatchKind, str], None] = {}

    # -- reading

    def paths(self) -> list[str]:
        """All paths, sorted."""
        return sorted(self.nodes)

    def has(self, path: str) -> bool:
        """Is there such a node?"""
        return path in self.nodes

    def data(self, path: str) -> bytes | None:
        """A node's data. Raises ServerError(NO_NODE)."""
        return self.node(path).data

    def children(self, path: str) -> list[str]:
        """Names below a node, in no particular order. Raises ServerError(NO_NODE)."""
        return sorted(self.node(path).children, reverse=True)

    def stat(self, path: str) -> NodeStat:
        """A node's stat. Raises ServerError(NO_NODE)."""
        node = self.node(path)
        return NodeStat(node.version, node.owner, len(node.children), node.czxid, node.mtime, node.mzxid)

    # -- writing

    def create(self, path: str, data: bytes | None, owner: int = 0) -> None:
        """Raises ServerError: INVALID_PATH, NODE_EXISTS, NO_NODE (no parent), NO_CHILDREN (an ephemeral parent)."""
        self._write(Create(path, data, ephemeral=owner != 0), owner)

    def set(self, path: str, data: bytes | None, version: int = -1) -> None:
        """Raises ServerError: NO_NODE, BAD_VERSION."""
        # The port's SetData holds bytes, as members never write null data over something.
        self._write(SetData(path, data, version))  # type: ignore[arg-type]

    def delete(self, path: str, version: int = -1) -> None:
        """Raises ServerError: NO_NODE, BAD_VERSION, NOT_EMPTY."""
        self._write(Delete(path, version))

    def multi(self, operations: Sequence[Operation], session_id: int) -> tuple[int, int] | None:
        """All or nothing. The index and error code of the operation that failed, or None."""
        failure = self.apply(Transaction(self.zxid + 1, session_id, self._now_ms(), tuple(operations)))
        watches, self._watches = self._watches, {}
        for kind, path in watches:
            self._changed(kind, path)
        return failure

    def _write(self, operation: Operation, session_id: int = 0) -> None:
        failure = self.multi([operation], session_id)
        if failure is not None:
            raise ServerError(failure[1])

    def _note(self, change: Change, path: str) -> None:
        self._watches.update(dict.fromkeys((kind, path) for kind in watches_of(change)))
