from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

import pytest
import trustme

from consumerd.net.connect import connect
from consumerd.net.errors import BadFrameError, ConnectError, TlsError
from tests.support.scenes import on_both_loops

HOST = "127.0.0.1"
AUTHORITY = trustme.CA()


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())


async def serve(talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]) -> asyncio.Server:
    """A broker with TLS whose certificate names 127.0.0.1 alone."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    AUTHORITY.issue_cert(HOST).configure_cert(context)
    return await asyncio.start_server(talk, HOST, 0, ssl=context)


async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


@pytest.mark.parametrize(
    ("host", "authority", "words"),
    [
        (
            HOST,
            trustme.CA(),
            r"its certificate is not accepted \(unable to get local issuer .*\); check which",
        ),
        ("localhost", AUTHORITY, r"its certificate is not accepted \(Hostname mismatch, .*'localhost'\); check which"),
    ],
)
@on_both_loops
async def test_reports_untrusted_certificate(host: str, authority: trustme.CA, words: str) -> None:
    async with await serve(hang_up) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(TlsError, match=rf"^cannot speak TLS with broker {host}:{port}: {words}"):
            await connect(host, port, ssl=trusting(authority))


@pytest.mark.parametrize("said", [b"", b"HTTP/1.0 400 Bad Request\r\n\r\n", b"\0\0\0\x02\0\0"])
@on_both_loops
async def test_reports_plaintext_listener_on_tls_connect(peer: Any, said: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(5)
        writer.write(said)

    async with peer(talk) as port:
        with pytest.raises(
            TlsError, match="the listener does not speak TLS, or closed the connection; is this the port of its"
        ):
            await connect(HOST, port, ssl=trusting(AUTHORITY))


@on_both_loops
async def test_reports_unreachable_broker_without_blaming_tls(peer: Any) -> None:
    async with peer(hang_up) as port:
        pass
    with pytest.raises(ConnectError, match="is it running, and is that its address") as caught:
        await connect(HOST, port, ssl=trusting(AUTHORITY))
    assert not isinstance(caught.value, TlsError)


@on_both_loops
async def test_reports_tls_listener_on_plaintext_connect(peer: Any) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(5)
        writer.write(bytes.fromhex("15 0303 0002 0250"))  # a fatal alert: internal_error, as brokers in Java have it

    async with peer(talk) as port:
        connection = await connect(HOST, port)
        with pytest.raises(BadFrameError, match="answered with TLS on a plaintext connection"):
            await connection.request(b"\0\0\0\x08" + bytes(8))
