"""The one supervised ZooKeeper session of a process (ring 1), on aiozk's protocol.

In: `Session` and its calls. Out: replies, watch events and events of the session; a lease that says how long it surely
lives.

Files in reading order: session, base_session, lifecycle, supervisor, connection, requests, multi, watches, sasl, acl,
connect_string, errors.

Easy to miss:

- `children(watch=True)` of a missing node sets no watch; `exists(watch=True)` does.
- ZooKeeper checks names by UTF-16 units: it refuses characters above U+FFFF, as surrogates.
- A server that sheds load answers ThrottledOp without executing the request, a `sync` too. Such an answer does not pass
  the leader, so it proves nothing about the session: the lease stays, and the connection is kept, as another one would
  add load.
- ZooKeeper has no check that a node is missing. A multi that creates and deletes the node does the same, and no client
  sees the node.
"""

from typing import TYPE_CHECKING

from consumerd.base.lazy import lazy_names
from consumerd.net.zk.errors import (
    AuthFailed,
    BadReply,
    BadVersion,
    ConnectionLost,
    InvalidACL,
    InvalidPath,
    MultiFailed,
    NoAuth,
    NoChildrenForEphemerals,
    NodeError,
    NodeExists,
    NoNode,
    NotConnected,
    NotEmpty,
    RequestTooLarge,
    SessionChanged,
    UnexpectedReply,
)

if TYPE_CHECKING:
    from consumerd.net.zk.acl import parse_acl, split_acl
    from consumerd.net.zk.connect_string import ConnectString, ZooKeeperHost, parse_connect_string
    from consumerd.net.zk.connection import ConnectionLimits
    from consumerd.net.zk.sasl import DigestMd5
    from consumerd.net.zk.session import Session, check_credential
else:  # none of it in a daemon whose group a broker coordinates
    __getattr__ = lazy_names(
        __name__,
        {
            "consumerd.net.zk.acl": "parse_acl split_acl",
            "consumerd.net.zk.connect_string": "ConnectString ZooKeeperHost parse_connect_string",
            "consumerd.net.zk.connection": "ConnectionLimits",
            "consumerd.net.zk.sasl": "DigestMd5",
            "consumerd.net.zk.session": "Session check_credential",
        },
    )

__all__ = [
    "AuthFailed",
    "BadReply",
    "BadVersion",
    "ConnectString",
    "ConnectionLimits",
    "ConnectionLost",
    "DigestMd5",
    "InvalidACL",
    "InvalidPath",
    "MultiFailed",
    "NoAuth",
    "NoChildrenForEphemerals",
    "NoNode",
    "NodeError",
    "NodeExists",
    "NotConnected",
    "NotEmpty",
    "RequestTooLarge",
    "Session",
    "SessionChanged",
    "UnexpectedReply",
    "ZooKeeperHost",
    "check_credential",
    "parse_acl",
    "parse_connect_string",
    "split_acl",
]
