"""Framed, pipelined connections to brokers (ring 1). See `connection` for the rules they keep."""

from consumerd.net.connect import Connection, Connector, connect
from consumerd.net.connection import BrokerConnection, ConnectionSettings
from consumerd.net.errors import (
    BadFrameError,
    ConnectError,
    ConnectionClosedError,
    FrameTooLargeError,
    RequestTimeoutError,
    TlsError,
    UnexpectedTlsError,
)

__all__ = [
    "BadFrameError",
    "BrokerConnection",
    "ConnectError",
    "Connection",
    "ConnectionClosedError",
    "ConnectionSettings",
    "Connector",
    "FrameTooLargeError",
    "RequestTimeoutError",
    "TlsError",
    "UnexpectedTlsError",
    "connect",
]
