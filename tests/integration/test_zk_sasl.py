"""SASL on a real ZooKeeper: DIGEST-MD5 with its JAAS file, ACLs by it, reconnects, and what is refused."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ExitCode
from consumerd.base.ports import SessionEvent
from consumerd.demo.zookeeper import ZooKeeperServer, zookeeper_jars
from consumerd.net.zk.errors import AuthFailed, NoAuth
from consumerd.net.zk.sasl import DigestMd5
from consumerd.net.zk.session import Session
from consumerd.service.config.build import build_session
from consumerd.service.config.model import parse
from consumerd.testing.fault_proxy import FaultProxy
from tests.support.zookeeper_servers import TLS_JARS

pytestmark = [pytest.mark.zookeeper]

PASSWORD = 'hush "hush" \\ \u00fc'
LOGIN = """Server {
  org.apache.zookeeper.server.auth.DigestLoginModule required user_alice="hush \\"hush\\" \\\\ \u00fc" user_bob="other";
};
"""


async def server_with_login(zookeeper_factory: Any, folder: Path, **options: Any) -> ZooKeeperServer:
    jaas = folder / "jaas.conf"
    jaas.write_text(LOGIN, "utf-8")
    provider = {"authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"}
    jvm = [f"-Djava.security.auth.login.config={jaas}", "-Dfile.encoding=UTF-8"]
    jars = zookeeper_jars(*TLS_JARS)  # it needs Netty's classes, though it speaks no TLS
    server: ZooKeeperServer = await zookeeper_factory(config=provider, jvm=jvm, jars=jars, **options)
    return server


def session(connect: str, user: str | None = None, password: str = PASSWORD, **options: Any) -> Session:
    sasl = None if user is None else partial(DigestMd5, user, password)
    return Session(
        connect, clock=SystemClock(), rng=random.Random(1), session_timeout=10, connect_timeout=30, sasl=sasl, **options
    )


async def test_authenticates_on_each_connection_and_owns_what_it_creates(
    zookeeper_factory: Any, tmp_path: Path
) -> None:
    server = await server_with_login(zookeeper_factory, tmp_path)
    async with FaultProxy("127.0.0.1", server.port) as proxy:
        events: asyncio.Queue[SessionEvent] = asyncio.Queue()
        async with session(f"{proxy.connect}/kafka", "alice", acl="creator-all") as alice:
            alice.subscribe(lambda event, session_id: events.put_nowait(event))
            await alice.create("/mine", b"1")
            proxy.cut()
            assert await asyncio.wait_for(events.get(), 60) is SessionEvent.SUSPENDED
            assert await asyncio.wait_for(events.get(), 60) is SessionEvent.RECONNECTED
            assert (await alice.get("/mine"))[0] == b"1"
    for stranger in (session(f"{server.connect}/kafka"), session(f"{server.connect}/kafka", "bob", "other")):
        async with stranger:
            with pytest.raises(NoAuth):
                await stranger.get("/mine")
    async with session(f"{server.connect}/kafka", "alice") as again:
        assert (await again.get("/mine"))[0] == b"1"


@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("mallory", PASSWORD)])
async def test_a_refusal_ends_the_session_and_names_the_remedy(
    zookeeper_factory: Any, tmp_path: Path, user: str, password: str
) -> None:
    server = await server_with_login(zookeeper_factory, tmp_path)
    with pytest.raises(AuthFailed, match=r"refused the SASL credentials \(DIGEST-MD5\); check zookeeper\.sasl"):
        await session(server.connect, user, password).start()


async def test_a_server_without_a_login_is_an_error(zookeeper_factory: Any) -> None:
    server: ZooKeeperServer = await zookeeper_factory()
    with pytest.raises(AuthFailed, match=r"it has no SASL login|refused the SASL credentials"):
        await session(server.connect, "alice").start()


async def test_a_configuration_authenticates_by_a_password_in_a_file(zookeeper_factory: Any, tmp_path: Path) -> None:
    server = await server_with_login(zookeeper_factory, tmp_path)
    (tmp_path / "password").write_text(PASSWORD + "\n", "utf-8")
    document = {
        "zookeeper": {
            "connect": f"{server.connect}/kafka",
            "acl": "creator",
            "session_timeout": 30,
            "sasl": {"user": "alice", "password_file": str(tmp_path / "password")},
        },
        "group": {"id": "g", "topics": {"t": 1}},
        "handler": {"name": "null"},
    }
    config = parse(document, "test.toml", environment=False)
    async with build_session(config.zookeeper, clock=SystemClock(), rng=random.Random(1)) as alice:
        await alice.create("/mine", b"1")
    async with session(f"{server.connect}/kafka") as stranger:
        assert (await stranger.get("/mine"))[0] == b"1"
        with pytest.raises(NoAuth):
            await stranger.set("/mine", b"2")


async def test_daemon_ends_with_exit_code_5_when_it_is_refused(
    zookeeper_factory: Any, tmp_path: Path, world: Any
) -> None:
    server = await server_with_login(zookeeper_factory, tmp_path)
    login = {"user": "alice", "password": "not-hers"}
    outcome = await world.run(zookeeper={"connect": server.connect, "sasl": login})
    assert outcome.code == ExitCode.ZOOKEEPER
    assert "refused the SASL credentials (DIGEST-MD5); check zookeeper.sasl" in outcome.stderr
    assert "not-hers" not in outcome.stdout + outcome.stderr
