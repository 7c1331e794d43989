from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import trustme

from consumerd.net import connect as connect_module
from consumerd.net.connect import connect
from consumerd.net.errors import (
    BadFrameError,
    ClientCertificateError,
    ConnectError,
    ConnectionClosedError,
    TlsError,
    TlsResetError,
)
from consumerd.net.tls import certificate_remedy
from tests.support.scenes import on_both_loops

HOST = "127.0.0.1"
AUTHORITY = trustme.CA()
#: A request of four bytes.
REQUEST = bytes.fromhex("0000 0004 0000 0000")


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


@contextmanager
def demanding(version: ssl.TLSVersion) -> Iterator[int]:
    """The port of a server that verifies its client's certificate: of OpenSSL alone, as asyncio's sends no alert."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=AUTHORITY.cert_pem.bytes().decode())
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = context.maximum_version = version
    AUTHORITY.issue_cert(HOST).configure_cert(context)

    def talk() -> None:
        client, _ = listener.accept()
        with client.dup() as kept:  # a server that closes with the request unread sends a reset
            with pytest.raises(ssl.SSLError):
                context.wrap_socket(client, server_side=True)
            while kept.recv(4096):
                pass

    with socket.create_server((HOST, 0)) as listener, ThreadPoolExecutor(1) as threads:
        talked = threads.submit(talk)
        yield listener.getsockname()[1]
        talked.result()


async def ask(port: int, context: ssl.SSLContext, identity: str) -> bytes:
    connection = await connect(HOST, port, ssl=context, identity=identity)
    return await connection.request(REQUEST)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@on_both_loops
async def test_reports_a_refused_certificate_of_the_client(version: ssl.TLSVersion) -> None:
    client = trusting(AUTHORITY)
    trustme.CA().issue_cert("client").configure_cert(client)
    identity = certificate_remedy("client.pem", "tls.certificate", "tls.key")
    with demanding(version) as port, pytest.raises(ClientCertificateError) as caught:
        await ask(port, client, identity)
    assert str(caught.value) == (
        f"broker {HOST}:{port} refused the client's certificate (TLS alert unknown_ca): tls.certificate is client.pem; "
        "check which authority signed it, and whether it has expired"
    )


@on_both_loops
async def test_reports_a_missing_certificate_of_the_client() -> None:
    identity = certificate_remedy(None, "tls.certificate", "tls.key")
    with demanding(ssl.TLSVersion.TLSv1_3) as port, pytest.raises(ClientCertificateError) as caught:
        await ask(port, trusting(AUTHORITY), identity)
    assert str(caught.value) == (
        f"broker {HOST}:{port} refused the client's certificate (TLS alert certificate_required): set tls.certificate "
        "and tls.key, because the broker requires a certificate of its clients"
    )


@pytest.mark.parametrize("answered", [0, 1])
@on_both_loops
async def test_reset_before_the_first_response_may_be_a_refused_certificate(answered: int) -> None:
    async def answer_and_reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(answered):
            writer.write(await reader.readexactly(len(REQUEST)))
        await reader.readexactly(len(REQUEST))
        linger = struct.pack("ii", 1, 0)  # on, no seconds: the end is a reset
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    async with await serve(answer_and_reset) as server:
        port = server.sockets[0].getsockname()[1]
        connection = await connect(HOST, port, ssl=trusting(AUTHORITY))
        for _ in range(answered):
            assert await connection.request(REQUEST) == REQUEST[4:]
        with pytest.raises(ConnectionClosedError, match="is the broker still running") as caught:
            await connection.request(REQUEST)
    assert isinstance(caught.value, TlsResetError) == (not answered)
    guess = (
        "" if answered else "It may have refused the client's certificate: check the certificate in the client's SSL "
    )
    assert str(caught.value).partition("running? ")[2].startswith(guess)


@on_both_loops
async def test_reports_unreachable_broker_without_blaming_tls(peer: Any) -> None:
    async with peer(hang_up) as port:
        pass
    with pytest.raises(ConnectError, match="is it running, and is that its address") as caught:
        await connect(HOST, port, ssl=trusting(AUTHORITY))
    assert not isinstance(caught.value, TlsError)


async def test_names_the_limit_where_no_more_files_can_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(connect_module, "_first_that_answers", fails)
    with pytest.raises(
        ConnectError, match=r"Too many open files; raise the limit of this process \(ulimit -n"
    ) as caught:
        await connect(HOST, 9)
    assert "is it running" not in str(caught.value)


@on_both_loops
async def test_reports_tls_listener_on_plaintext_connect(peer: Any) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(5)
        writer.write(bytes.fromhex("15 0303 0002 0250"))  # a fatal alert: internal_error, as brokers in Java have it

    async with peer(talk) as port:
        connection = await connect(HOST, port)
        with pytest.raises(BadFrameError, match="answered with TLS on a plaintext connection"):
            await connection.request(b"\0\0\0\x08" + bytes(8))
