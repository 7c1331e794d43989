"""Errors of the ZooKeeper session: one class per case that a caller handles differently.

Strategy: three families. `NodeError` says that the server answered and refused, with the path (relative to the chroot).
`NotConnected` and `ConnectionLost` say that no answer came: the first was never sent and may be repeated freely, the
second may have been carried out. `SessionChanged` says that the session a call was bound to is over. The wire's error
codes (ZooKeeper's `KeeperException.Code`) are turned into these classes in one place, `error_for`.
"""

from __future__ import annotations

from consumerd.base.errors import ZooKeeperError


class NodeError(ZooKeeperError):
    """The server refused an operation on one node; `path` is relative to the chroot."""

    reason = "ZooKeeper refused the operation on {path}"

    def __init__(self, path: str) -> None:
        super().__init__(self.reason.format(path=path))
        self.path = path


class NoNode(NodeError):
    """The node, or the parent of a node to create, does not exist."""

    reason = "the ZooKeeper node {path} or its parent does not exist"


class NodeExists(NodeError):
    """A node to create already exists."""

    reason = "the ZooKeeper node {path} already exists"


class BadVersion(NodeError):
    """Another client has changed the node's data since it was read."""

    reason = "the ZooKeeper node {path} was modified concurrently"


class NotEmpty(NodeError):
    """A node to delete has children."""

    reason = "the ZooKeeper node {path} still has children"


class NoAuth(NodeError):
    """The ACL of the node denies access."""

    reason = "ZooKeeper denies access to {path}; check the node's ACL and the configured credentials"


class InvalidACL(NodeError):
    """The server does not accept the ACL configured for new nodes."""

    reason = (
        "ZooKeeper refuses the configured ACL for {path}; `auth` and `creator-all` need credentials that it accepts"
    )


class InvalidPath(NodeError):
    """The server does not accept the path or another argument."""

    reason = "ZooKeeper refuses {path!r} as a path"


class NoChildrenForEphemerals(NodeError):
    """Ephemeral nodes cannot have children."""

    reason = "the parent of {path} is an ephemeral ZooKeeper node, which cannot have children"


class QuotaExceeded(NodeError):
    """A write would exceed the quota of a node above, which the server enforces (3.7 and later)."""

    reason = (
        "the ZooKeeper quota of a node above {path} is exceeded (QuotaExceeded); raise it with `setquota`, or delete "
        "nodes that are not needed"
    )


class UnexpectedReply(NodeError):
    """The server answered with an error code that has no class of its own; `code` is the number."""

    def __init__(self, path: str, code: int) -> None:
        super().__init__(path)
        self.code = code
        self.args = (f"ZooKeeper answered with error {name_of(code)} for {path}",)


class NotConnected(ZooKeeperError):
    """There is no connection and the call was never sent: repeating it is always safe."""


class Throttled(NotConnected):
    """The server sheds load: it dropped the call, and its repetitions for the session timeout, without executing it."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"ZooKeeper sheds load (ThrottledOp): it has dropped a request for {path} again and again; relieve it, or "
            "raise zookeeper.throttled_op_wait_time on the server"
        )


class ConnectionLost(ZooKeeperError):
    """The connection ended after the call was sent: it is unknown whether the server executed it."""


class SessionChanged(ZooKeeperError):
    """The session that the call belongs to is over; `expected` and `actual` are session ids (0: none)."""

    def __init__(self, expected: int, actual: int = 0) -> None:
        now = f"the current one is {actual:#x}" if actual else "there is no current one"
        super().__init__(f"the ZooKeeper session {expected:#x} has ended ({now}); its ephemeral nodes are gone")
        self.expected = expected
        self.actual = actual


class MultiFailed(ZooKeeperError):
    """A multi was refused as a whole because of the operation at `index`; `cause` is its error."""

    def __init__(self, index: int, cause: ZooKeeperError) -> None:
        super().__init__(f"ZooKeeper refused a multi at operation {index}: {cause}")
        self.index = index
        self.cause = cause


class AuthFailed(ZooKeeperError):
    """ZooKeeper refused the credentials. Final: the session does not try again."""


class RequestTooLarge(ZooKeeperError):
    """A request above the server's `jute.maxbuffer`, refused here because the server would drop the connection."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"a request of {size} bytes is above ZooKeeper's limit of {limit} (jute.maxbuffer); split it or raise both"
        )
        self.size = size
        self.limit = limit


class BadReply(ZooKeeperError):
    """The other side sent bytes that are not ZooKeeper's protocol; the connection is dropped."""


class ServerError(Exception):
    """The bare error code of a reply, before the call that knows the path turns it into an error of this module."""

    def __init__(self, code: int) -> None:
        super().__init__(f"ZooKeeper answered with error {name_of(code)}")
        self.code = code


#: Codes after which this connection is of no use: ConnectionLoss, UnknownSession, SessionExpired, SessionMoved.
CONNECTION_CODES = frozenset({-4, -12, -112, -118})
#: The server does not know the type of the request.
UNIMPLEMENTED = -6
#: The server was overloaded, and dropped the request without executing it (3.7 and later).
THROTTLED = -127
#: Codes that say nothing about the request: it may succeed on another connection.
PASSING_CODES = CONNECTION_CODES | {THROTTLED}
#: AuthFailed, and the closed session of a server that insists on another scheme.
AUTH_CODES = frozenset({-115, -124})

_BY_CODE: dict[int, type[NodeError]] = {
    -8: InvalidPath,
    -101: NoNode,
    -102: NoAuth,
    -103: BadVersion,
    -108: NoChildrenForEphemerals,
    -110: NodeExists,
    -111: NotEmpty,
    -114: InvalidACL,
    -125: QuotaExceeded,
}

#: The names of all codes of ZooKeeper 3.9 (KeeperException.Code).
NAMES = {
    0: "Ok",
    -1: "SystemError",
    -2: "RuntimeInconsistency",
    -3: "DataInconsistency",
    -4: "ConnectionLoss",
    -5: "MarshallingError",
    -6: "Unimplemented",
    -7: "OperationTimeout",
    -8: "BadArguments",
    -12: "UnknownSession",
    -13: "NewConfigNoQuorum",
    -14: "ReconfigInProgress",
    -100: "APIError",
    -101: "NoNode",
    -102: "NoAuth",
    -103: "BadVersion",
    -108: "NoChildrenForEphemerals",
    -110: "NodeExists",
    -111: "NotEmpty",
    -112: "SessionExpired",
    -113: "InvalidCallback",
    -114: "InvalidACL",
    -115: "AuthFailed",
    -118: "SessionMoved",
    -119: "NotReadOnly",
    -120: "EphemeralOnLocalSession",
    -121: "NoWatcher",
    -122: "RequestTimeout",
    -123: "ReconfigDisabled",
    -124: "SessionClosedRequireSaslAuth",
    -125: "QuotaExceeded",
    -127: "ThrottledOp",
}


def name_of(code: int) -> str:
    """Return an error code with its name, as ZooKeeper's documents call it: `SessionExpired (-112)`."""
    name = NAMES.get(code)
    return str(code) if name is None else f"{name} ({code})"


def error_for(code: int, path: str) -> ZooKeeperError:
    """Return the declared error for a reply's error code; `path` is the caller's, relative to the chroot."""
    if code in AUTH_CODES:
        return AuthFailed("ZooKeeper refused the credentials; check the configured auth scheme and secret")
    if code in CONNECTION_CODES:
        return ConnectionLost(f"ZooKeeper closed the connection during a request for {path} (code {name_of(code)})")
    if code == THROTTLED:
        return Throttled(path)
    known = _BY_CODE.get(code)
    return known(path) if known else UnexpectedReply(path, code)
