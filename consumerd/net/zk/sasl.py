"""SASL with ZooKeeper: DIGEST-MD5 (user and password) or GSSAPI (Kerberos), on each connection before all else.

Strategy: a mechanism makes tokens from the server's; each goes in a request of its own (type 102, servers from 3.4),
which is answered with the server's next token. A server tells in several ways that it refuses: since 3.6 with
AuthFailed; before, by closing the connection, or, with `allowSaslFailedClients`, by a null token, which a server
without SASL sends as well. A closed connection may be a failure of the network: it is tried again, and the reason says
what it may be. Tokens are made in a thread, because Kerberos may ask a server of its own.
"""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar

from consumerd.base.errors import ConfigError, ConsumerdError
from consumerd.base.ports import SaslMechanism
from consumerd.net.errors import ConnectError
from consumerd.net.zk.errors import AUTH_CODES, UNIMPLEMENTED, AuthFailed, ConnectionLost, ServerError
from consumerd.net.zk.requests import read_buffer
from consumerd.wire.digest_md5 import DigestMd5Client, DigestMd5Error

if TYPE_CHECKING:
    from consumerd.net.zk.connection import ZooKeeperConnection

#: Service and server name of every ZooKeeper server in DIGEST-MD5 (ZooKeeper's SaslServer is created with these).
DIGEST_URI: Final = "zookeeper/zk-sasl-md5"
#: Limit of tokens, more than any mechanism exchanges.
_MOST_TOKENS: Final = 10
_HEADER: Final = struct.Struct("!ii")  # opcode, length of the token
_T = TypeVar("_T")


@dataclass(slots=True)
class SaslRequest:
    """One token of ours (GetSASLRequest in zookeeper.jute); the answer is the server's, or None."""

    token: bytes = field(repr=False)

    opcode: ClassVar = 102
    special_xid: ClassVar = None

    def serialize(self) -> bytes:
        """Return the request without its xid."""
        return _HEADER.pack(self.opcode, len(self.token)) + self.token

    @staticmethod
    def read(frame: bytes, offset: int) -> bytes | None:
        """Return the server's token (None: null), of the reply that begins at `offset`."""
        return read_buffer(frame, offset)[0]


class DigestMd5:
    """One authentication with DIGEST-MD5 (RFC 2831). Raises ConfigError for an empty user."""

    name = "DIGEST-MD5"
    ends_unanswered = False

    def __init__(self, user: str, password: str) -> None:
        if not user:
            raise ConfigError("DIGEST-MD5 needs a user name.")
        self._client = DigestMd5Client(user, password, uri=DIGEST_URI, nonce=secrets.token_urlsafe(24))

    def first(self, host: str) -> bytes:
        """The empty token: the server begins."""
        return b""

    def respond(self, challenge: bytes) -> bytes | None:
        """The answer to the challenge, then None. Raises AuthFailed."""
        try:
            return self._client.respond(challenge)
        except DigestMd5Error as error:
            raise AuthFailed(f"ZooKeeper sent an invalid DIGEST-MD5 message: {error}") from error


async def authenticate(connection: ZooKeeperConnection, mechanism: SaslMechanism) -> None:
    """Authenticate `connection`. Raises AuthFailed, ConnectionLost, ServerError (with a code of the connection)."""
    name = mechanism.name
    token: bytes | None = await _made(connection, mechanism.first, connection.host)
    for _ in range(_MOST_TOKENS):
        if token is None:
            return
        challenge = await _exchange(connection, name, token)
        if mechanism.ends_unanswered:
            return
        if challenge is None:
            raise AuthFailed(
                f"ZooKeeper at {connection.where} does not authenticate with {name}: it has no SASL login (a section "
                "Server in its JAAS file), or does not accept these credentials"
            )
        token = await _made(connection, mechanism.respond, challenge)
    raise AuthFailed(f"ZooKeeper at {connection.where} did not complete the authentication with {name}")


async def _exchange(connection: ZooKeeperConnection, name: str, token: bytes) -> bytes | None:
    try:
        challenge: bytes | None = await connection.request(SaslRequest(token))
    except ServerError as error:
        if error.code in AUTH_CODES:
            raise AuthFailed(
                f"ZooKeeper at {connection.where} refused the SASL credentials ({name}); check zookeeper.sasl, and the "
                "server's JAAS file"
            ) from None
        if error.code == UNIMPLEMENTED:
            raise AuthFailed(f"ZooKeeper at {connection.where} has no SASL, which needs 3.4 or later") from None
        raise
    except ConnectionLost:
        connection.explain(f"during the authentication with {name}: the user, password or ticket may be wrong")
        raise
    return challenge


async def _made(connection: ZooKeeperConnection, make: Callable[[_T], bytes | None], of: _T) -> bytes | None:
    """Return the mechanism's token."""
    try:
        return await asyncio.to_thread(make, of)
    except AuthFailed:
        raise
    except ConnectError as error:  # such as a key distribution centre that does not answer
        connection.kill(str(error))
        raise ConnectionLost(str(error)) from error
    except ConsumerdError as error:
        raise AuthFailed(f"no authentication with ZooKeeper at {connection.where}: {error}") from error
