"""SASL on a connection fed by hand: what is sent, and what each answer of a server means."""

from __future__ import annotations

import asyncio
import struct
from typing import Any, cast

import pytest

from consumerd.base.errors import ConfigError, ConsumerdError
from consumerd.base.ports import SaslMechanism
from consumerd.net.errors import ConnectError
from consumerd.net.zk.connect_string import ZooKeeperHost
from consumerd.net.zk.connection import ConnectionLimits, ZooKeeperConnection
from consumerd.net.zk.errors import AuthFailed, ConnectionLost, ServerError
from consumerd.net.zk.sasl import DigestMd5, SaslRequest, authenticate

CHALLENGE = b'realm="zk-sasl-md5",nonce="n0nce",qop="auth",charset=utf-8,algorithm=md5-sess'


class Script:
    """A mechanism that says what the test sets, and keeps what it gets."""

    name = "SCRIPT"

    def __init__(self, *tokens: bytes | Exception | None, unanswered_after: int = 99) -> None:
        self._tokens = list(tokens)
        self._unanswered_after = unanswered_after
        self.said = 0
        self.heard: list[bytes] = []

    @property
    def ends_unanswered(self) -> bool:
        return self.said >= self._unanswered_after

    def _next(self) -> Any:
        token = self._tokens.pop(0)
        self.said += 1
        if isinstance(token, Exception):
            raise token
        return token

    def first(self, host: str) -> bytes:
        assert host == "zk"
        return cast("bytes", self._next())

    def respond(self, challenge: bytes) -> bytes | None:
        self.heard.append(challenge)
        return cast("bytes | None", self._next())


class Server:
    """Stands where the socket is: answers the requests of a connection from a list."""

    def __init__(self, *answers: bytes | int | None) -> None:
        self._answers = list(answers)
        self.tokens: list[bytes] = []
        self.connection = ZooKeeperConnection(
            ZooKeeperHost("zk", 2181), "127.0.0.1", ssl=None, limits=ConnectionLimits(),
            on_watch=lambda path: None, on_end=lambda connection: None,
        )  # fmt: skip
        self.connection.connection_made(cast("Any", self))

    def write(self, data: bytes) -> None:
        size, xid, opcode, length = struct.unpack_from("!iiii", data)
        assert (size, opcode, length) == (len(data) - 4, 102, len(data) - 16)
        self.tokens.append(data[16:])
        asyncio.get_running_loop().call_soon(self._answer, xid)

    def _answer(self, xid: int) -> None:
        answer = self._answers.pop(0) if self._answers else "closed"
        if answer == "closed":
            self.connection.eof_received()
            return
        code = answer if isinstance(answer, int) else 0
        body = struct.pack("!iqi", xid, 0, code)
        if not code:
            token = cast("bytes | None", answer)
            body += struct.pack("!i", -1 if token is None else len(token)) + (token or b"")
        self.connection.data_received(struct.pack("!i", len(body)) + body)

    def abort(self) -> None:
        pass

    async def authenticate(self, mechanism: SaslMechanism) -> None:
        await authenticate(self.connection, mechanism)


async def test_exchanges_tokens_until_the_mechanism_has_none() -> None:
    server, script = Server(b"challenge", b"proof"), Script(b"", b"answer", None)
    await server.authenticate(script)
    assert server.tokens == [b"", b"answer"]
    assert script.heard == [b"challenge", b"proof"]


async def test_does_not_show_tokens() -> None:
    assert "secret" not in repr(SaslRequest(b"secret"))


async def test_ignores_the_answer_to_a_last_token() -> None:
    server, script = Server(b"offer", None), Script(b"ticket", b"choice", unanswered_after=2)
    await server.authenticate(script)
    assert server.tokens == [b"ticket", b"choice"]


@pytest.mark.parametrize("answers", [(None,), (b"challenge", None)])
async def test_a_null_token_is_a_server_without_sasl_or_a_refusal(answers: tuple[bytes | None, ...]) -> None:
    sentence = r"zk:2181 does not authenticate with SCRIPT: it has no SASL login .* or does not accept"
    with pytest.raises(AuthFailed, match=sentence):
        await Server(*answers).authenticate(Script(b"", b"answer", None))


@pytest.mark.parametrize("code", [-115, -124])
async def test_reports_refused_credentials(code: int) -> None:
    with pytest.raises(AuthFailed, match=r"zk:2181 refused the SASL credentials \(SCRIPT\); check zookeeper\.sasl"):
        await Server(code).authenticate(Script(b""))


async def test_reports_a_server_before_3_4() -> None:
    with pytest.raises(AuthFailed, match=r"has no SASL, which needs 3\.4 or later"):
        await Server(-6).authenticate(Script(b""))


async def test_leaves_errors_of_the_connection_to_the_session() -> None:
    with pytest.raises(ServerError):
        await Server(-118).authenticate(Script(b""))


async def test_a_closed_connection_is_tried_again_and_says_what_it_may_be() -> None:
    server = Server(b"challenge")
    with pytest.raises(ConnectionLost):
        await server.authenticate(Script(b"", b"answer", None))
    assert server.connection.end_reason == (
        "the server closed the connection during the authentication with SCRIPT: the user, password or ticket may be "
        "wrong"
    )


async def test_stops_a_server_that_never_ends() -> None:
    server = Server(*[b"more"] * 20)
    with pytest.raises(AuthFailed, match="did not complete the authentication with SCRIPT"):
        await server.authenticate(Script(*[b"again"] * 20))
    assert len(server.tokens) == 10


async def test_a_mechanism_that_cannot_reach_its_own_server_is_tried_again() -> None:
    server = Server()
    with pytest.raises(ConnectionLost, match="no ticket now"):
        await server.authenticate(Script(ConnectError("no ticket now")))
    assert server.connection.end_reason == "no ticket now"


async def test_an_error_of_the_mechanism_ends_the_session() -> None:
    with pytest.raises(AuthFailed, match="no authentication with ZooKeeper at zk:2181: it is over"):
        await Server(b"").authenticate(Script(b"", ConsumerdError("it is over")))


async def test_digest_md5_begins_with_an_empty_token_and_requires_the_servers_proof() -> None:
    server = Server(CHALLENGE, b"rspauth=00000000000000000000000000000000")
    with pytest.raises(
        AuthFailed, match=r"ZooKeeper sent an invalid DIGEST-MD5 message: the server's proof .* \(rspauth\) is wrong"
    ):
        await server.authenticate(DigestMd5("alice", "pw"))
    assert server.tokens[0] == b""
    assert b'username="alice",realm="zk-sasl-md5",nonce="n0nce"' in server.tokens[1]
    assert b'digest-uri="zookeeper/zk-sasl-md5"' in server.tokens[1]


async def test_digest_md5_uses_a_new_nonce_each_time() -> None:
    answers = {DigestMd5("alice", "pw").respond(CHALLENGE) for _ in range(3)}
    assert len(answers) == 3


async def test_digest_md5_needs_a_user() -> None:
    with pytest.raises(ConfigError, match="needs a user name"):
        DigestMd5("", "pw")
