"""Authentication: SASL on a fresh channel.

Strategy: the mechanism makes tokens from the broker's, this module sends them in the form that the broker supports
(spec 002, SASL authentication sequence): since 1.0 in SASL_AUTHENTICATE, which answers with a reason; from 0.10 on
bare, after a SASL_HANDSHAKE; in 0.9, which has GSSAPI alone, bare from the first byte on. A broker that rejects
the bare token closes the connection. Where a broker's answer has a lifetime, the client authenticates again in time, on
the same connection (`consumerd.net.client.sasl_session`). Tokens are made in a thread: a mechanism may ask a server of
its own, or take long to hash.
"""

from __future__ import annotations

import asyncio
import importlib
import math
import secrets
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from consumerd.base.errors import BrokerError, ConfigError
from consumerd.net.client.errors import AuthenticationError, error_of
from consumerd.net.errors import ConnectError, ConnectionClosedError, RequestTimeoutError
from consumerd.wire.scram import SCRAM_HASHES, ScramClient, ScramError
from consumerd.wire.v08.apis import SASL_AUTHENTICATE, SASL_HANDSHAKE
from consumerd.wire.v08.error_codes import ErrorCode
from consumerd.wire.v08.versions import BrokerRelease

if TYPE_CHECKING:
    from consumerd.base.ports import SaslMechanism
    from consumerd.net.client.channel import Channel
    from consumerd.net.client.sasl_session import SaslSession
    from consumerd.wire.v08.message_types import SaslAuthenticateRequest, SaslHandshakeRequest

#: Limit of tokens, more than any mechanism exchanges.
_MOST_TOKENS: Final = 10
_T = TypeVar("_T")
GSSAPI: Final = "GSSAPI"


class Plain:
    """PLAIN (RFC 4616): user and password in plaintext, which only TLS keeps secret."""

    name = "PLAIN"
    ends_unanswered = False

    def __init__(self, user: str, password: str) -> None:
        if "\0" in user or "\0" in password:
            raise ConfigError("a user name or password for PLAIN holds a NUL, which nothing can escape.")
        self._token = f"\0{user}\0{password}".encode()

    def first(self, host: str) -> bytes:
        return self._token

    def respond(self, challenge: bytes) -> bytes | None:
        return None


class Scram:
    """SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802): neither side shows the password, and both prove that they know it."""

    ends_unanswered = False

    def __init__(self, name: str, user: str, password: str) -> None:
        if name not in SCRAM_HASHES:
            raise ConfigError(f"{name} is none of {', '.join(SCRAM_HASHES)}.")
        self.name = name
        self._client = ScramClient(name, user, password, secrets.token_urlsafe(24))

    def first(self, host: str) -> bytes:
        return self._client.first()

    def respond(self, challenge: bytes) -> bytes | None:
        try:
            return self._client.respond(challenge)
        except ScramError as error:
            raise AuthenticationError(
                f"the broker did not prove that it knows the password ({self.name}): {error}"
            ) from error


def extra(module: str, mechanism: str, named: str) -> Any:
    """Import a module that is only installed with the extra `named`. Raises ConfigError."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{mechanism} needs the package {module}: install it with `pip install 'consumerd[{named}]'`."
        ) from error


class SaslAuthenticator:
    """Authenticates channels: `await authenticator(channel)`. `mechanism()` begins a new authentication.

    `timeout`: seconds that the broker may take for one token, and the mechanism to make one.
    """

    def __init__(self, mechanism: Callable[[], SaslMechanism], *, timeout: float = 10.0) -> None:
        self._mechanism = mechanism
        self._timeout = timeout

    @property
    def speaks_first(self) -> bool:
        """Whether it can authenticate at a broker of 0.9, which reads the first bytes as a token of GSSAPI."""
        return self._mechanism().name == GSSAPI

    async def __call__(self, channel: Channel) -> None:
        """Authenticate `channel`. Raises AuthenticationError, and BrokerError if the connection ends meanwhile."""
        await self._authenticate(channel, None)

    async def _authenticate(self, channel: Channel, session: SaslSession | None) -> None:
        """Authenticate `channel`, again if it has a `session`: then requests go on until the first token is made."""
        mechanism = await asyncio.to_thread(self._mechanism)  # it may read a file
        host = channel.address.rpartition(":")[0]
        token: bytes | None = None
        if session is not None:
            token = await self._made(mechanism.name, mechanism.first, host)
            session.hold()
        wrapped = await self._handshake(channel, mechanism.name)
        if session is None:
            token = await self._made(mechanism.name, mechanism.first, host)
        until = math.inf
        for _ in range(_MOST_TOKENS):
            if token is None:
                break
            if wrapped:
                challenge, until = await self._wrapped(channel, mechanism, token)
            elif mechanism.ends_unanswered:
                await channel.send_token(token)  # a broker that rejects it closes the connection on the next request
                break
            else:
                challenge = await self._bare(channel, mechanism, token)
            token = await self._made(mechanism.name, mechanism.respond, challenge)
        else:
            raise AuthenticationError(
                f"broker {channel.address} did not complete the authentication with {mechanism.name}"
            )
        if until == math.inf and (doubt := getattr(mechanism, "without_lifetime", None)) is not None:
            channel.doubt = doubt()
        if until < math.inf or session is not None:
            channel.authenticated(until, partial(self._authenticate, channel))

    async def _made(self, name: str, make: Callable[[_T], bytes | None], of: _T) -> bytes | None:
        """Return the mechanism's token; a thread that exceeds the timeout is left running."""
        try:
            async with asyncio.timeout(self._timeout):
                return await asyncio.to_thread(make, of)
        except TimeoutError:
            raise ConnectError(
                f"{name} returned no token within {self._timeout:g} s: check that the servers it uses are reachable"
            ) from None

    async def _handshake(self, channel: Channel, name: str) -> bool:
        """Agree on the mechanism; return whether tokens are sent in SASL_AUTHENTICATE."""
        if channel.versions.release is BrokerRelease.V0_9:
            if name != GSSAPI:
                raise AuthenticationError(f"broker {channel.address} is of 0.9, which supports only GSSAPI, not {name}")
            return False
        wrapped = channel.versions.has(SASL_AUTHENTICATE) and channel.versions.has(SASL_HANDSHAKE, 1)
        version = channel.versions.pick(SASL_HANDSHAKE, at_most=None if wrapped else 0)
        body: SaslHandshakeRequest = {"mechanism": name}
        answer = await channel.call(SASL_HANDSHAKE, body, version=version, timeout=self._timeout)
        code = answer["error_code"]
        if code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            offered = ", ".join(sorted(answer["mechanisms"])) or "none"
            raise AuthenticationError(f"broker {channel.address} does not support {name}; it offers {offered}")
        if error := error_of(code, f"broker {channel.address} does not authenticate"):
            raise AuthenticationError(f"{error}; is this its SASL listener?")
        return wrapped

    async def _wrapped(self, channel: Channel, mechanism: SaslMechanism, token: bytes) -> tuple[bytes, float]:
        """Return the broker's token, and the time on the channel's clock until which the authentication lasts."""
        body: SaslAuthenticateRequest = {"auth_bytes": token}
        began = channel.now()  # the lifetime begins at the broker, at some time from now on
        answer = await channel.call(SASL_AUTHENTICATE, body, timeout=self._timeout)
        what = f"broker {channel.address} refuses the authentication"
        if error := error_of(answer["error_code"], what, answer.get("error_message")):
            refusal: Callable[[str], BrokerError] = getattr(mechanism, "refusal", AuthenticationError)
            raise refusal(str(error))
        lifetime = answer.get("session_lifetime_ms", 0) / 1000
        return answer["auth_bytes"], began + lifetime if lifetime > 0 else math.inf

    async def _bare(self, channel: Channel, mechanism: SaslMechanism, token: bytes) -> bytes:
        try:
            return await channel.exchange_token(token, self._timeout)
        except RequestTimeoutError:
            raise
        except ConnectionClosedError as error:
            raise AuthenticationError(
                f"broker {channel.address} closed the connection during authentication with {mechanism.name}: the user "
                "or password is wrong, or its log says more"
            ) from error
