"""Every client that speaks TLS verifies its server unless the configuration says otherwise.

A server whose certificate is of an unknown authority, or names another host, gets no byte of the protocol: it notes
what arrives behind the handshake, and each client ends with an error that says why.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiozk.protocol import ConnectRequest

import consumerd
from consumerd.base.clock import SystemClock
from consumerd.base.credentials import Renewed
from consumerd.base.errors import ConsumerdError
from consumerd.base.partition import TopicPartition
from consumerd.base.settings.servers import KafkaSection, TlsSection, ZooKeeperSection
from consumerd.handlers import Batch, HandlerContext, Message, load_handler
from consumerd.handlers.builtin.http import HttpRequestError
from consumerd.handlers.sparse_content import SparseContent
from consumerd.net.connect import connect
from consumerd.net.connection import ConnectionSettings
from consumerd.net.zk.connect_string import ZooKeeperHost
from consumerd.net.zk.connection import ConnectionEnded, ConnectionLimits, ZooKeeperConnection
from consumerd.net.zk.errors import NotConnected
from consumerd.service.config.build import build_session, build_tls
from consumerd.service.config.build_v08 import build_client_of
from consumerd.spark.source.option_values import Tls
from consumerd.spark.source.v08.client import _context

Client = Callable[[int, Path], Awaitable[object]]


HOST = "127.0.0.1"
CLOCK, RNG = SystemClock(), random.Random(1)
#: The errors of clients; the retry policy treats that of the handler as a failed attempt.
REFUSED = (ConsumerdError, HttpRequestError)
KNOWN, UNKNOWN = trustme.CA(), trustme.CA()


@contextlib.asynccontextmanager
async def server(authority: trustme.CA, name: str) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A port that speaks TLS with a certificate for `name`, and what arrived there."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(name).configure_cert(context)
    arrived: list[bytes] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            arrived.append(await reader.read(1000))
        writer.close()

    async with await asyncio.start_server(note, HOST, 0, ssl=context) as listening:
        yield listening.sockets[0].getsockname()[1], arrived


async def zookeeper(port: int, authority: Path) -> None:
    """One attempt with the context of the session, which itself would try again and again."""
    section = ZooKeeperSection(connect=f"{HOST}:{port}", tls=TlsSection(ca=authority))
    session = build_session(section, clock=CLOCK, rng=RNG)
    tls = session._supervisor._ssl
    assert isinstance(tls, Renewed)
    connection = ZooKeeperConnection(
        ZooKeeperHost(HOST, port),
        HOST,
        ssl=tls.now(),
        limits=ConnectionLimits(),
        on_watch=lambda path: None,
        on_end=lambda ended: None,
    )
    try:
        await connection.connect()
        await connection.handshake(
            ConnectRequest(
                protocol_version=0, last_seen_zxid=0, timeout=4000, session_id=0, password=bytes(16), read_only=False
            )
        )
    except (OSError, ConnectionEnded) as error:
        raise NotConnected(str(error)) from error
    finally:
        connection.kill("the test is over")


async def broker_v07(port: int, authority: Path) -> None:
    connection = await connect(HOST, port, ssl=build_tls(TlsSection(ca=authority)))
    await connection.request(b"\0\0\0\x08" + bytes(8))


async def broker_v08(port: int, authority: Path) -> None:
    section = KafkaSection(bootstrap=(f"{HOST}:{port}",), tls=TlsSection(ca=authority))
    client = build_client_of(section, ConnectionSettings(), clock=CLOCK, rng=RNG)
    try:
        async with asyncio.timeout(60):
            await client.any_channel()
    finally:
        await client.close()


async def spark_source(port: int, authority: Path) -> None:
    connection = await connect(HOST, port, ssl=_context(Tls(ca=str(authority))))
    await connection.request(b"\0\0\0\x08" + bytes(8))


async def http_handler(port: int, authority: Path) -> None:
    handler = load_handler("http", {"url": f"https://{HOST}:{port}/", "tls": {"ca": str(authority)}})
    await handler.start(HandlerContext("g", "g_1", CLOCK))
    try:
        partition = TopicPartition("t", 0, 0)
        await handler.handle(Batch(partition, SparseContent([Message(partition, 0, 0, 9, b"x")])))
    finally:
        await handler.stop()


CLIENTS: list[Any] = [zookeeper, broker_v07, broker_v08, spark_source, http_handler]


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    path = tmp_path / "authority.pem"
    KNOWN.cert_pem.write_to_path(path)
    return path


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("issuer", "name", "words"),
    [
        (UNKNOWN, HOST, "unable to get local issuer"),
        (KNOWN, "other.example", "mismatch|doesn't match|is not valid for"),
    ],
    ids=["unknown authority", "another host name"],
)
async def test_rejects_a_server_that_it_cannot_verify(
    client: Client, issuer: trustme.CA, name: str, words: str, authority: Path
) -> None:
    async with server(issuer, name) as (port, arrived):
        with pytest.raises(REFUSED, match=words):
            await client(port, authority)
        assert not any(arrived)


@pytest.mark.parametrize("client", CLIENTS)
async def test_talks_to_a_server_that_it_can_verify(client: Client, authority: Path) -> None:
    """Else the test above would pass for a client that never connects."""
    async with server(KNOWN, HOST) as (port, arrived):
        with pytest.raises(REFUSED):  # which closes the connection in place of an answer
            await client(port, authority)
        assert any(arrived)


def test_system_authorities_are_trusted_where_no_file_is_named() -> None:
    for context in (build_tls(TlsSection()), _context(Tls())):
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname


def test_check_hostname_alone_is_what_the_configuration_can_turn_off() -> None:
    context = build_tls(TlsSection(check_hostname=False))
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert "verify" not in "".join(TlsSection.fields)


def test_contexts_are_made_in_one_place() -> None:
    package = Path(consumerd.__file__).parent
    made = [path.name for path in package.rglob("*.py") if "create_default_context" in path.read_text("utf-8")]
    assert made == ["tls.py"], "make_tls_context() of consumerd.net.tls makes every context"
