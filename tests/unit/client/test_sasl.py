"""Authentication of a channel: which requests carry the tokens, how it ends, and what its errors say."""

from __future__ import annotations

from typing import Any

import pytest

from consumerd.client import AuthenticationError, BrokerRelease, BrokerVersions, Plain, SaslAuthenticator
from consumerd.net import ConnectionClosedError, RequestTimeoutError
from consumerd.wire.v08.apis import APIS, SASL_AUTHENTICATE, SASL_HANDSHAKE

pytestmark = pytest.mark.asyncio
ALL = {key: api.versions for key, api in APIS.items()}


class Tokens:
    """A mechanism that gives one token after the other, and keeps the challenges."""

    def __init__(self, name: str, *tokens: bytes, ends_unanswered: bool = False) -> None:
        self.name, self.tokens, self.ends_unanswered = name, list(tokens), ends_unanswered
        self.challenges: list[bytes] = []
        self.host = ""

    def first(self, host: str) -> bytes:
        self.host = host
        return self.tokens.pop(0)

    def respond(self, challenge: bytes) -> bytes | None:
        self.challenges.append(challenge)
        return self.tokens.pop(0) if self.tokens else None


class Line:
    """A channel; `answers` of SASL_HANDSHAKE and SASL_AUTHENTICATE are changed by `says`."""

    address = "broker:9092"

    def __init__(self, release: BrokerRelease, versions: dict[int, tuple[int, int]], **says: Any) -> None:
        self.versions = BrokerVersions(self.address, release, versions)
        self.says = says
        self.sent: list[tuple[str, bytes]] = []
        self.timeouts: set[float] = set()

    async def call(self, api: Any, body: dict[str, Any], *, version: int | None = None, timeout: float) -> Any:
        self.timeouts.add(timeout)
        if api is SASL_HANDSHAKE:
            self.sent.append((f"handshake {version}", body["mechanism"].encode()))
            return {"error_code": 0, "enabled_mechanisms": ["B", "A"], **self.says}
        assert api is SASL_AUTHENTICATE
        self.sent.append(("wrapped", body["auth_bytes"]))
        return {"error_code": 0, "error_message": None, "auth_bytes": b"challenge", **self.says}

    async def exchange_token(self, token: bytes, timeout: float) -> bytes:
        self.timeouts.add(timeout)
        self.sent.append(("bare", token))
        if error := self.says.get("raises"):
            raise error
        return b"bare challenge"

    async def send_token(self, token: bytes) -> None:
        self.sent.append(("unanswered", token))


async def authenticated(line: Line, mechanism: Any) -> None:
    channel: Any = line
    await SaslAuthenticator(lambda: mechanism)(channel)


async def test_wraps_tokens_where_the_broker_can() -> None:
    line, mechanism = Line(BrokerRelease.V0_10_OR_NEWER, ALL), Tokens("SCRAM", b"one", b"two")
    await authenticated(line, mechanism)
    assert line.sent[1:] == [("wrapped", b"one"), ("wrapped", b"two")]
    assert line.sent[0] != ("handshake 0", b"SCRAM")
    assert mechanism.challenges == [b"challenge", b"challenge"]
    assert mechanism.host == "broker"
    assert line.timeouts == {10.0}


async def test_sends_bare_tokens_to_brokers_before_wrapping() -> None:
    served = {SASL_HANDSHAKE.key: (0, 0)}
    for ends_unanswered, how in ((False, "bare"), (True, "unanswered")):
        line = Line(BrokerRelease.V0_10_OR_NEWER, served)
        mechanism = Tokens("GSSAPI", b"one", ends_unanswered=ends_unanswered)
        await authenticated(line, mechanism)
        assert line.sent == [("handshake 0", b"GSSAPI"), (how, b"one")]
        assert mechanism.challenges == ([] if ends_unanswered else [b"bare challenge"])


async def test_brokers_of_0_9_get_tokens_of_gssapi_alone() -> None:
    line = Line(BrokerRelease.V0_9, {})
    await authenticated(line, Tokens("GSSAPI", b"one"))
    assert line.sent == [("bare", b"one")]
    with pytest.raises(AuthenticationError, match=r"is of 0\.9, which supports only GSSAPI, not PLAIN"):
        await authenticated(line, Plain("alice", "x"))
    assert SaslAuthenticator(lambda: Tokens("GSSAPI")).speaks_first
    assert not SaslAuthenticator(lambda: Plain("alice", "x")).speaks_first


async def test_errors_name_what_the_broker_offers_and_says() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"error_code": 33}, "does not support SCRAM; it offers A, B$"),
        ({"error_code": 33, "enabled_mechanisms": []}, "it offers none$"),
        ({"error_code": 34}, "is this its SASL listener"),
    ]
    for says, match in cases:
        with pytest.raises(AuthenticationError, match=match):
            await authenticated(Line(BrokerRelease.V0_10_OR_NEWER, ALL, **says), Tokens("SCRAM", b"one"))


async def test_connection_that_ends_rejects_the_credentials_and_a_timeout_does_not() -> None:
    served = {SASL_HANDSHAKE.key: (0, 0)}
    line = Line(BrokerRelease.V0_10_OR_NEWER, served, raises=ConnectionClosedError("closed"))
    with pytest.raises(AuthenticationError, match="closed the connection during authentication with PLAIN"):
        await authenticated(line, Plain("alice", "x"))
    line = Line(BrokerRelease.V0_10_OR_NEWER, served, raises=RequestTimeoutError("silent"))
    with pytest.raises(RequestTimeoutError, match="silent"):
        await authenticated(line, Plain("alice", "x"))


async def test_gives_up_a_mechanism_that_never_ends() -> None:
    with pytest.raises(AuthenticationError, match="did not complete the authentication with SCRAM"):
        await authenticated(Line(BrokerRelease.V0_10_OR_NEWER, ALL), Tokens("SCRAM", *[b"more"] * 100))
