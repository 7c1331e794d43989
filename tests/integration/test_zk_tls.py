"""Sessions over TLS to a real server: verified both ways, refused with a sentence, and coming back after a cut."""

from __future__ import annotations

import asyncio
import random
import ssl
from dataclasses import replace
from typing import Any

import pytest
import trustme

from consumerd.base.clock import SystemClock
from consumerd.base.ports import SessionEvent
from consumerd.net.zk.errors import NoAuth, NotConnected
from consumerd.net.zk.session import Session
from consumerd.testing.fault_proxy import FaultProxy
from tests.conftest import TlsFiles
from tests.support.zookeeper_servers import ConfiguredZooKeeper


def session_over(context: ssl.SSLContext | None, connect: str, **options: Any) -> Session:
    return Session(connect, clock=SystemClock(), rng=random.Random(1), ssl=context, session_timeout=4, **options)


async def test_connects_over_tls(zookeeper_factory: Any, tls_files: TlsFiles) -> None:
    server: ConfiguredZooKeeper = await zookeeper_factory(tls=replace(tls_files.zookeeper, client_certificate=True))
    known = ssl.create_default_context(cafile=str(tls_files.authority))
    known.load_cert_chain(tls_files.client)

    async with FaultProxy("127.0.0.1", server.secure_port or 0) as proxy:
        events: asyncio.Queue[SessionEvent] = asyncio.Queue()
        async with session_over(known, f"{proxy.connect}/tls", acl="creator-all") as session:
            session.subscribe(lambda event, session_id: events.put_nowait(event))
            session_id = session.session_id
            await session.create("/large", bytes(900_000))
            for rst in (False, True):
                proxy.cut(rst=rst)
                assert await asyncio.wait_for(events.get(), 60) is SessionEvent.SUSPENDED
                assert await asyncio.wait_for(events.get(), 60) is SessionEvent.RECONNECTED
            data, _ = await session.get("/large")
            assert data == bytes(900_000)
            assert session.session_id == session_id
            await session.create_ephemeral("/mine", b"", wait=0)

        async with session_over(None, f"{server.connect}/tls") as plain:
            with pytest.raises(NoAuth):  # the certificate was the creator's identity
                await plain.get("/large")
            assert await plain.exists("/mine") is None

    secure = f"127.0.0.1:{server.secure_port}"
    stranger = ssl.create_default_context(cadata=trustme.CA().cert_pem.bytes().decode())
    with pytest.raises(NotConnected, match="CERTIFICATE_VERIFY_FAILED"):
        await session_over(stranger, secure).start(0.5)
    unknown = ssl.create_default_context(cafile=str(tls_files.authority))
    with pytest.raises(NotConnected):  # no certificate of its own
        await session_over(unknown, secure).start(0.5)
    with pytest.raises(NotConnected):  # plain text to the encrypted port
        await session_over(None, secure).start(0.5)
