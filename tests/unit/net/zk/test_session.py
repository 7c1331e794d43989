"""The session as it is put together: its settings, what it does with a new connection, and its end."""

from __future__ import annotations

import asyncio
import gc
import random
import ssl
import struct
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ConfigError
from consumerd.base.ports import SessionState
from consumerd.net.zk.errors import AuthFailed, NoAuth, NotConnected
from consumerd.net.zk.sasl import DigestMd5
from consumerd.net.zk.session import Session
from tests.support.scripted_zookeeper import (
    AUTH,
    CREATE,
    EXISTS,
    MULTI,
    SYNC,
    Peer,
    Server,
    good,
    granted,
    replied,
)
from tests.support.waiting import until

SASL = 102
NO_NODE, NO_AUTH, NODE_EXISTS, AUTH_FAILED, EXPIRED, UNIMPLEMENTED = -101, -102, -110, -115, -112, -6


def unstarted(connect: str = "127.0.0.1:1", **options: Any) -> Session:
    return Session(connect, clock=SystemClock(), rng=random.Random(1), **options)


class Request(NamedTuple):
    """What a client sent, without length and xid."""

    opcode: int
    body: bytes

    def text(self, offset: int = 0) -> str:
        (size,) = struct.unpack_from("!i", self.body, offset)
        return self.body[offset + 4 : offset + 4 + size].decode()


def answers(asked: list[Request], **codes: int | None) -> Callable[[Peer], Awaitable[None]]:
    """A script that notes the requests, and answers those of the named types with a code; None: with nothing."""
    named = {"auth": AUTH, "create": CREATE, "exists": EXISTS, "multi": MULTI, "sync": SYNC, "sasl": SASL}
    by_opcode = {named[name]: code for name, code in codes.items()}
    bodies = {SYNC: struct.pack("!i", 1) + b"/", MULTI: struct.pack("!i?i", -1, True, -1), CREATE: b"\0\0\0\1/"}

    async def script(peer: Peer) -> None:
        _, session_id = await peer.handshake()
        peer.write(granted(session_id or 5))
        while True:
            frame = await peer.frame()
            xid, opcode = struct.unpack_from("!ii", frame)
            asked.append(Request(opcode, frame[8:]))
            code = by_opcode.get(opcode, NO_NODE if opcode == EXISTS else 0)
            if code is not None:
                peer.write(replied(xid, b"" if code else bodies.get(opcode, b""), code=code))

    return script


@pytest.mark.parametrize(
    ("session_timeout", "connect_timeout"), [(0, 2), (-1, 2), (86_400.5, 2), (6, 0), (6, -1), (0, 0), (86_401, 2)]
)
async def test_refuses_timeouts_that_are_out_of_range(session_timeout: float, connect_timeout: float) -> None:
    with pytest.raises(ConfigError, match="session_timeout must be between 0 and 86400 s, and connect_timeout above 0"):
        unstarted(session_timeout=session_timeout, connect_timeout=connect_timeout)


async def test_keeps_its_settings() -> None:
    session = unstarted("a:1,b:2/base", session_timeout=86_400)
    assert session.connect == "a:1,b:2/base"
    assert session.session_timeout == 86_400
    assert unstarted().session_timeout == 6


@pytest.mark.parametrize("acl", ["creator", "creator-all", ["auth::r"]])
async def test_acl_for_the_creator_needs_an_identity(acl: Any) -> None:
    with pytest.raises(ConfigError, match="needs credentials in `auth` or `sasl`"):
        unstarted(acl=acl)
    unstarted(acl=acl, auth=[("digest", "u:p")])
    unstarted(acl=acl, ssl=ssl.create_default_context())
    unstarted(acl=acl, sasl=lambda: DigestMd5("u", "p"))
    unstarted(acl="open")


@pytest.mark.parametrize("credential", [("", "u:p"), ("digest", ":p"), ("digest", ""), ("digest", b":p")])
async def test_refuses_incomplete_credentials(credential: Any) -> None:
    with pytest.raises(ConfigError, match="user:password"):
        unstarted(auth=[credential])


async def test_calls_wait_for_a_connection_as_long_as_configured() -> None:
    """By default as long as a session lives."""
    for session in (unstarted(session_timeout=0.05), unstarted(session_timeout=80_000, wait_connected=0.05)):
        async with asyncio.timeout(60):
            with pytest.raises(NotConnected, match="no attempt was made yet"):
                await session.get("/")


async def test_start_waits_for_each_server_in_turn_or_as_long_as_the_caller_says() -> None:
    release = asyncio.Event()

    async def silent(peer: Peer) -> None:
        await peer.handshake()
        await release.wait()
        peer.write(granted(5))
        await peer.behave()

    async with Server(silent) as server:
        loop = asyncio.get_running_loop()
        three = f"127.0.0.1:{server.port},127.0.0.1:{server.port},127.0.0.1:{server.port}"
        began = loop.time()
        with pytest.raises(NotConnected):
            await unstarted(three, session_timeout=0.1, connect_timeout=0.2).start()
        assert loop.time() - began >= 0.55
        session = unstarted(f"127.0.0.1:{server.port}", session_timeout=80_000, connect_timeout=80_000)
        async with asyncio.timeout(60):
            with pytest.raises(NotConnected):
                await session.start(0.05)
        assert session.state is SessionState.CLOSED
        assert session._task is not None
        assert session._task.done()
        release.set()


async def test_wait_closed_returns_after_the_end() -> None:
    await unstarted().wait_closed()
    async with Server(good) as server:
        session, _ = server.session()
        await session.start()
        waiting = asyncio.create_task(session.wait_closed())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done()
        await session.close()
        await waiting


async def test_sends_each_credential_before_anything_else() -> None:
    asked: list[Request] = []
    async with Server(answers(asked)) as server:
        session, _ = server.session(auth=[("digest", "u:p"), ("x509", b"\xff")])
        async with session:
            first, second = asked[:2]
    assert (first.opcode, second.opcode) == (AUTH, AUTH)
    scheme = struct.pack("!i", 0) + struct.pack("!i", 6) + b"digest"
    assert first.body == scheme + struct.pack("!i", 3) + b"u:p"
    assert second.body == struct.pack("!ii", 0, 4) + b"x509" + struct.pack("!i", 1) + b"\xff"


async def test_names_the_scheme_that_the_server_refused() -> None:
    async with Server(answers([], auth=AUTH_FAILED)) as server:
        session, _ = server.session(auth=[("digest", "u:p")])
        with pytest.raises(AuthFailed, match="ZooKeeper refused the 'digest' credentials"):
            await session.start(60)


@pytest.mark.parametrize("kind", ["auth", "exists", "create"])
async def test_connects_again_when_a_session_ends_while_it_is_prepared(kind: str) -> None:
    """An expired session is not a refusal of the credentials, nor of the chroot."""
    asked: list[Request] = []
    async with Server(answers([], **{kind: EXPIRED}), answers(asked)) as server:
        session, _ = server.session(auth=[("digest", "u:p")], chroot="/base")
        async with session:
            assert server.served >= 2
            await until(lambda: session.state is SessionState.CONNECTED)


async def test_authenticates_with_sasl_before_it_sends_credentials() -> None:
    asked: list[Request] = []
    async with Server(answers(asked, sasl=AUTH_FAILED)) as server:
        session, _ = server.session(auth=[("digest", "u:p")], sasl=lambda: DigestMd5("u", "p"))
        with pytest.raises(AuthFailed, match=r"refused the SASL credentials \(DIGEST-MD5\)"):
            await session.start(60)
    assert [request.opcode for request in asked] == [SASL]


async def test_creates_the_chroot_of_a_new_session_alone() -> None:
    asked: list[Request] = []
    again: list[Request] = []

    async with Server(answers(asked), answers(again)) as server:
        session, _ = server.session(chroot="/base/inner")
        async with session:
            created = [request.text() for request in asked if request.opcode == CREATE]
            assert created == ["/base", "/base/inner"]
            live = session._lifecycle._connection
            assert live is not None
            live.kill("for the test")
            await until(lambda: session.state is SessionState.CONNECTED)
            assert session.session_id == 5
            assert {request.opcode for request in again} <= {SYNC}


async def test_names_the_chroot_that_may_not_be_created() -> None:
    async with Server(answers([], create=NO_AUTH)) as server:
        session, _ = server.session(chroot="/base")
        with pytest.raises(NoAuth, match="/base"):
            await session.start(60)


@pytest.mark.parametrize(("code", "has_multi"), [(0, True), (NO_AUTH, True), (UNIMPLEMENTED, False), (None, False)])
async def test_finds_out_whether_the_server_has_multi(code: int | None, has_multi: bool) -> None:
    """One before 3.4 does not answer a multi, or does not know it; a lookup after it is answered in any case."""
    asked: list[Request] = []
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    async with Server(answers(asked, multi=code, exists=NO_AUTH)) as server:
        session, _ = server.session()
        async with session:
            assert session.has_multi is has_multi
        lookups = [request for request in asked if request.opcode == EXISTS]
        assert [request.body for request in lookups] == [b"\0\0\0\1/\0"]  # the root, without a watch
        del session
        gc.collect()
    assert complaints == []
