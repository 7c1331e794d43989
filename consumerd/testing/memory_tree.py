"""ZooKeeper's tree of nodes in memory: the rules of its operations and of its one-shot watches, without any I/O.

For simulations and tests only. Strategy: a dictionary of nodes by absolute path. Operations raise
`ServerError(code)` with the codes of the real server and note which watches they would fire; a multi keeps what each
touched path was before, and puts it back when an operation fails.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

from consumerd.base.ports import Check, Create, Delete, NodeStat, Operation, SetData
from consumerd.net.zk.errors import ServerError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

INVALID_PATH, NO_NODE, BAD_VERSION, NO_CHILDREN, NODE_EXISTS, NOT_EMPTY = -8, -101, -103, -108, -110, -111


class WatchKind(Enum):
    """The two kinds of watches."""

    DATA = "data"  #: armed by get and exists
    CHILDREN = "children"  #: armed by children


@dataclass(slots=True)
class TreeNode:
    """One node. `owner` is the session of an ephemeral, else 0."""

    data: bytes | None
    owner: int
    created_zxid: int
    modified_ms: int
    modified_zxid: int
    version: int = 0
    children: set[str] = field(default_factory=set)


def parent_of(path: str) -> str:
    """The path above."""
    return path.rpartition("/")[0] or "/"


class MemoryTree:
    """Nodes by path. `changed(kind, path)` is called after every successful operation, for each watch it touches."""

    def __init__(self, *, now_ms: Callable[[], int], changed: Callable[[WatchKind, str], None]) -> None:
        self._now_ms = now_ms
        self._changed = changed
        self._nodes = {"/": TreeNode(b"", 0, 0, 0, 0)}
        self._zxid = 0
        self._events: list[tuple[WatchKind, str]] = []
        #: While a multi runs: the former nodes of the changed paths (None: missing).
        self._before: dict[str, TreeNode | None] | None = None

    # -- reading

    def paths(self) -> list[str]:
        """All paths, sorted."""
        return sorted(self._nodes)

    def has(self, path: str) -> bool:
        """Is there such a node?"""
        return path in self._nodes

    def data(self, path: str) -> bytes | None:
        """A node's data. Raises ServerError(NO_NODE)."""
        return self._at(path).data

    def children(self, path: str) -> list[str]:
        """Names below a node, in no particular order. Raises ServerError(NO_NODE)."""
        return sorted(self._at(path).children, reverse=True)

    def stat(self, path: str) -> NodeStat:
        """A node's stat. Raises ServerError(NO_NODE)."""
        node = self._at(path)
        return NodeStat(
            node.version, node.owner, len(node.children), node.created_zxid, node.modified_ms, node.modified_zxid
        )

    def owned_by(self, session_id: int) -> list[str]:
        """The ephemerals of a session, sorted."""
        return sorted(path for path, node in self._nodes.items() if session_id and node.owner == session_id)

    # -- writing

    def create(self, path: str, data: bytes | None, owner: int = 0) -> None:
        """Raises ServerError: INVALID_PATH, NODE_EXISTS, NO_NODE (no parent), NO_CHILDREN (an ephemeral parent)."""
        self._apply([Create(path, data, ephemeral=owner != 0)], owner)

    def set(self, path: str, data: bytes | None, version: int = -1) -> None:
        """Raises ServerError: NO_NODE, BAD_VERSION."""
        # The port's SetData holds bytes, as members never write null data over something.
        self._run(lambda: self._set(path, data, version))

    def delete(self, path: str, version: int = -1) -> None:
        """Raises ServerError: NO_NODE, BAD_VERSION, NOT_EMPTY."""
        self._apply([Delete(path, version)], 0)

    def multi(self, operations: Sequence[Operation], session_id: int) -> tuple[int, int] | None:
        """All or nothing. The index and error code of the operation that failed, or None."""
        self._before = {}
        done = 0
        try:
            for operation in operations:
                self._one(operation, session_id)
                done += 1
        except ServerError as error:
            for path, node in self._before.items():
                if node is None:
                    self._nodes.pop(path, None)
                else:
                    self._nodes[path] = node
            self._events.clear()
            return done, error.code
        finally:
            self._before = None
        self._zxid += 1
        self._tell()
        return None

    def _apply(self, operations: Sequence[Operation], session_id: int) -> None:
        failure = self.multi(operations, session_id)
        if failure is not None:
            raise ServerError(failure[1])

    def _run(self, write: Callable[[], None]) -> None:
        write()
        self._zxid += 1
        self._tell()

    def _tell(self) -> None:
        events, self._events = self._events, []
        for kind, path in dict.fromkeys(events):
            self._changed(kind, path)

    def _one(self, operation: Operation, session_id: int) -> None:
        match operation:
            case Check(path, version):
                self._check(path, version)
            case SetData(path, data, version):
                self._set(path, data, version)
            case Create(path, data, ephemeral):
                self._create(path, data, session_id if ephemeral else 0)
            case Delete(path, version):
                self._delete(path, version)

    def _at(self, path: str) -> TreeNode:
        try:
            return self._nodes[path]
        except KeyError:
            raise ServerError(NO_NODE) from None

    def _touch(self, path: str) -> TreeNode | None:
        """The node, about to be changed."""
        node = self._nodes.get(path)
        if self._before is not None and path not in self._before:
            self._before[path] = replace(node, children=set(node.children)) if node else None
        return node

    def _check(self, path: str, version: int) -> None:
        if version not in (-1, self._at(path).version):
            raise ServerError(BAD_VERSION)

    def _set(self, path: str, data: bytes | None, version: int) -> None:
        self._check(path, version)
        node = self._touch(path)
        assert node is not None
        node.data, node.version, node.modified_ms = data, node.version + 1, self._now_ms()
        node.modified_zxid = self._zxid + 1
        self._events.append((WatchKind.DATA, path))

    def _create(self, path: str, data: bytes | None, owner: int) -> None:
        if path in self._nodes:
            raise ServerError(NODE_EXISTS)
        if not path.startswith("/"):
            raise ServerError(INVALID_PATH)
        above, name = parent_of(path), path.rpartition("/")[2]
        if self._at(above).owner:
            raise ServerError(NO_CHILDREN)
        if name in ("", ".", "..") or "\0" in name:
            raise ServerError(INVALID_PATH)
        self._touch(path)
        parent = self._touch(above)
        assert parent is not None
        parent.children.add(name)
        self._nodes[path] = TreeNode(data, owner, self._zxid + 1, self._now_ms(), self._zxid + 1)
        self._events += [(WatchKind.DATA, path), (WatchKind.CHILDREN, above)]

    def _delete(self, path: str, version: int) -> None:
        self._check(path, version)
        if path == "/":
            raise ServerError(INVALID_PATH)
        if self._nodes[path].children:
            raise ServerError(NOT_EMPTY)
        above = parent_of(path)
        self._touch(path)
        parent = self._touch(above)
        assert parent is not None
        parent.children.discard(path.rpartition("/")[2])
        del self._nodes[path]
        self._events += [(WatchKind.DATA, path), (WatchKind.CHILDREN, path), (WatchKind.CHILDREN, above)]
