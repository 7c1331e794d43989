"""Authentication of a channel: which requests carry the tokens, how it ends, and what its errors say."""

from __future__ import annotations

import base64
import hashlib
import hmac
import threading
from typing import Any

import pytest

from consumerd.base.errors import ConfigError
from consumerd.net.client.errors import AuthenticationError
from consumerd.net.client.sasl import Plain, SaslAuthenticator, Scram
from consumerd.net.errors import ConnectError, ConnectionClosedError, RequestTimeoutError
from consumerd.wire.v08.apis import APIS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from consumerd.wire.v08.versions import BrokerRelease, BrokerVersions

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
        self.rejects = False
        self.sent: list[tuple[str, bytes]] = []
        self.timeouts: set[float] = set()

    def now(self) -> float:
        return 0.0

    async def call(self, api: Any, body: dict[str, Any], *, version: int | None = None, timeout: float) -> Any:
        self.timeouts.add(timeout)
        if api is SASL_HANDSHAKE:
            self.sent.append((f"handshake {version}", body["mechanism"].encode()))
            return {"error_code": 0, "mechanisms": ["B", "A"], **self.says}
        assert api is SASL_AUTHENTICATE
        self.sent.append(("wrapped", body["auth_bytes"]))
        if self.rejects:
            return {"error_code": 58, "error_message": "wrong password", "auth_bytes": b""}
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
        ({"error_code": 33, "mechanisms": []}, "it offers none$"),
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


async def test_wraps_tokens_only_where_the_broker_has_both_apis() -> None:
    for versions in (
        {SASL_HANDSHAKE.key: (0, 1)},
        {SASL_HANDSHAKE.key: (0, 0), SASL_AUTHENTICATE.key: (0, 2)},
    ):
        line = Line(BrokerRelease.V0_10_OR_NEWER, versions)
        await authenticated(line, Plain("alice", "x"))
        assert line.sent == [("handshake 0", b"PLAIN"), ("bare", b"\0alice\0x")]


async def test_error_is_the_reason_that_the_broker_gives() -> None:
    line = Line(BrokerRelease.V0_10_OR_NEWER, ALL)
    line.rejects = True
    with pytest.raises(AuthenticationError, match=r"broker:9092 refuses the authentication: .*: wrong password$"):
        await authenticated(line, Plain("alice", "x"))


async def test_gives_up_a_mechanism_that_makes_no_token_in_time() -> None:
    ended = threading.Event()

    class Stuck(Tokens):
        def first(self, host: str) -> bytes:
            ended.wait()
            return b""

    channel: Any = Line(BrokerRelease.V0_10_OR_NEWER, ALL)
    try:
        with pytest.raises(ConnectError, match=r"GSSAPI returned no token within 0\.01 s: check that the servers"):
            await SaslAuthenticator(lambda: Stuck("GSSAPI"), timeout=0.01)(channel)
    finally:
        ended.set()


async def test_plain_refuses_what_it_cannot_express() -> None:
    for user, password in (("al\0ice", "x"), ("alice", "\0"), ("\0", "\0")):
        with pytest.raises(ConfigError, match="holds a NUL"):
            Plain(user, password)
    assert not Plain("alice", "x").ends_unanswered


@pytest.mark.parametrize(("name", "digest"), [("SCRAM-SHA-256", "sha256"), ("SCRAM-SHA-512", "sha512")])
@pytest.mark.parametrize("honest", [True, False])
async def test_scram_proves_the_password_and_wants_the_same_of_the_broker(name: str, digest: str, honest: bool) -> None:
    scram = Scram(name, "alice", "secret")
    assert (scram.name, scram.ends_unanswered) == (name, False)
    first = scram.first("broker")
    assert first.startswith(b"n,,n=alice,r=")
    nonce = first.rpartition(b"r=")[2]
    assert len(nonce) >= 24
    assert Scram(name, "alice", "secret").first("broker") != first
    challenge = b"r=%s-theirs,s=%s,i=4096" % (nonce, base64.b64encode(b"salt"))
    proof = scram.respond(challenge)
    assert proof is not None
    said = b",".join((first[3:], challenge, proof.rpartition(b",p=")[0]))
    salted = hashlib.pbkdf2_hmac(digest, b"secret", b"salt", 4096)
    signature = hmac.digest(hmac.digest(salted, b"Server Key", digest), said, digest)
    if honest:
        assert scram.respond(b"v=" + base64.b64encode(signature)) is None
    else:
        with pytest.raises(AuthenticationError, match=rf"did not prove that it knows the password \({name}\)"):
            scram.respond(b"v=" + base64.b64encode(signature[::-1]))


async def test_scram_has_two_hashes() -> None:
    with pytest.raises(ConfigError, match="SCRAM-SHA-1 is none of SCRAM-SHA-256, SCRAM-SHA-512"):
        Scram("SCRAM-SHA-1", "alice", "x")
