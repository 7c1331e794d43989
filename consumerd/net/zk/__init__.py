"""The one supervised ZooKeeper session of a process (ring 1), on aiozk's protocol."""

from consumerd.net.zk.acl import parse_acl, split_acl
from consumerd.net.zk.connect_string import ConnectString, ZooKeeperHost, parse_connect_string
from consumerd.net.zk.connection import ConnectionLimits
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
from consumerd.net.zk.sasl import DigestMd5
from consumerd.net.zk.session import Session

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
    "parse_acl",
    "parse_connect_string",
    "split_acl",
]
