"""Files of certificates and secrets that change while a daemon runs: each new connection uses what they hold then."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import trustme
from cryptography import x509

from consumerd.base.clock import SystemClock
from consumerd.base.credentials import Renewed, read_secret
from consumerd.base.errors import ConfigError
from consumerd.base.partition import TopicPartition
from consumerd.base.settings.servers import (
    KafkaSection,
    SaslSection,
    TlsSection,
    ZooKeeperSaslSection,
    ZooKeeperSection,
)
from consumerd.base.settings.setting import SecretStr
from consumerd.handlers import Batch, HandlerContext, Message, load_handler
from consumerd.handlers.builtin.http import HttpRequestError
from consumerd.handlers.sparse_content import SparseContent
from consumerd.net.connect import connect
from consumerd.net.connection import ConnectionSettings
from consumerd.net.zk.sasl import DigestMd5
from consumerd.service.config.build import build_session
from consumerd.service.config.build_v08 import build_client_of, build_mechanism
from tests.support.receiver import Receiver

HOST = "127.0.0.1"
CLOCK, RNG = SystemClock(), random.Random(1)
AUTHORITY = trustme.CA()


def renewed_secret(path: Path) -> Renewed[str]:
    return Renewed("x_file", [path], lambda: read_secret(path, "x_file"))


def replace(path: Path, text: str) -> None:
    """As certificate tools and Kubernetes do: another file takes the name."""
    beside = path.with_suffix(".new")
    beside.write_text(text)
    beside.rename(path)


def test_value_follows_its_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("one")
    secret = renewed_secret(path)
    assert secret.now() == "one"
    replace(path, "two")
    with structlog.testing.capture_logs() as logs:
        assert [secret.now(), secret.now()] == ["two", "two"]
    assert logs == [{"event": "credentials_renewed", "log_level": "info", "what": "x_file", "files": [str(path)]}]


def test_value_follows_a_link_that_is_replaced(tmp_path: Path) -> None:
    """A mounted Secret of Kubernetes: files are links through one link to a folder."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "secret").write_text(name)
    (tmp_path / "data").symlink_to("one")
    (tmp_path / "secret").symlink_to("data/secret")
    secret = renewed_secret(tmp_path / "secret")
    (tmp_path / "beside").symlink_to("two")
    os.replace(tmp_path / "beside", tmp_path / "data")
    assert secret.now() == "two"


def test_former_value_stays_while_the_file_cannot_be_used(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("one")
    secret = renewed_secret(path)
    path.unlink()
    with structlog.testing.capture_logs() as logs:
        assert [secret.now(), secret.now()] == ["one", "one"]
        path.write_text("\n")
        assert secret.now() == "one"
    assert [each["event"] for each in logs] == ["credentials_rejected"] * 2
    assert "No such file" in logs[0]["reason"]
    assert "holds no secret" in logs[1]["reason"]
    path.write_text("three")
    assert secret.now() == "three"


def test_first_value_must_be_usable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        renewed_secret(tmp_path / "none")


class Identity:
    """A client's certificate and key in files, issued again by `issue`."""

    def __init__(self, folder: Path) -> None:
        self.authority, self.certificate, self.key = (folder / f"{name}.pem" for name in ("ca", "client", "key"))
        AUTHORITY.cert_pem.write_to_path(self.authority)

    def issue(self) -> int:
        """Write a new certificate and then its key. Returns its serial number."""
        issued = AUTHORITY.issue_cert("client")
        issued.cert_chain_pems[0].write_to_path(self.certificate)
        issued.private_key_pem.write_to_path(self.key)
        return x509.load_pem_x509_certificate(self.certificate.read_bytes()).serial_number

    @property
    def files(self) -> dict[str, Any]:
        return {"ca": self.authority, "certificate": self.certificate, "key": self.key}


@contextlib.asynccontextmanager
async def closing_server() -> AsyncIterator[tuple[int, asyncio.Queue[int]]]:
    """A server that puts the serial number of each client's certificate into a queue, and closes the connection."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    AUTHORITY.issue_cert(HOST).configure_cert(context)
    AUTHORITY.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    shown: asyncio.Queue[int] = asyncio.Queue()

    async def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        shown.put_nowait(x509.load_der_x509_certificate(certificate).serial_number)
        writer.close()

    async with await asyncio.start_server(note, HOST, 0, ssl=context) as listening:
        yield listening.sockets[0].getsockname()[1], shown


async def zookeeper(port: int, tls: TlsSection) -> None:
    session = build_session(ZooKeeperSection(connect=f"{HOST}:{port}", tls=tls), clock=CLOCK, rng=RNG)
    try:
        await session.start(timeout=60)
    finally:
        await session.close()


async def brokers(port: int, tls: TlsSection) -> None:
    section = KafkaSection(bootstrap=(f"{HOST}:{port}",), tls=tls)
    async with build_client_of(section, ConnectionSettings(), clock=CLOCK, rng=RNG) as client:
        await client.retrying("find a broker", client.refresh, timeout=60)


async def http_handler(port: int, tls: TlsSection) -> None:
    files = {name: str(path) for name in ("ca", "certificate", "key") if (path := getattr(tls, name))}
    handler = load_handler("http", {"url": f"https://{HOST}:{port}/", "tls": files})
    await handler.start(HandlerContext("g", "g_1", CLOCK))
    partition = TopicPartition("t", 0, 0)
    try:
        while True:
            with pytest.raises(HttpRequestError):
                await handler.handle(Batch(partition, SparseContent([Message(partition, 0, 0, 9, b"x")])))
    finally:
        await handler.stop()


@pytest.mark.parametrize("client", [zookeeper, brokers, http_handler])
async def test_each_connection_shows_the_certificate_of_its_time(client: Any, tmp_path: Path) -> None:
    identity = Identity(tmp_path)
    first = identity.issue()
    async with closing_server() as (port, shown), asyncio.timeout(60):
        connecting = asyncio.create_task(client(port, TlsSection(**identity.files)))
        assert await shown.get() == first
        second = identity.issue()
        while (serial := await shown.get()) == first:
            pass
        assert serial == second
        connecting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await connecting


async def test_context_of_the_library_may_be_loaded_again(tmp_path: Path) -> None:
    """Programs pass a context of their own: new connections show the certificate that it was loaded with last."""
    identity, context = Identity(tmp_path), ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    async with closing_server() as (port, shown), asyncio.timeout(60):
        for _ in range(2):
            serial = identity.issue()
            context.load_cert_chain(identity.certificate, identity.key)
            connection = await connect(HOST, port, ssl=context)
            assert await shown.get() == serial
            await connection.close()


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text("first")
    return path


def test_each_authentication_with_brokers_has_the_password_of_its_time(password_file: Path) -> None:
    make = build_mechanism(SaslSection(mechanism="PLAIN", user="u", password_file=password_file))
    assert make().first("h") == b"\0u\0first"
    replace(password_file, "second")
    assert make().first("h") == b"\0u\0second"


def test_password_of_the_configuration_needs_no_file() -> None:
    make = build_mechanism(SaslSection(mechanism="PLAIN", user="u", password=SecretStr("own")))
    assert make().first("h") == b"\0u\0own"


class Sent:
    """The part of a connection to ZooKeeper that authenticates."""

    def __init__(self) -> None:
        self.auth: list[bytes] = []

    async def request(self, request: Any) -> None:
        self.auth.append(request.auth)


async def test_each_connection_to_zookeeper_sends_the_credentials_of_its_time(tmp_path: Path) -> None:
    path = tmp_path / "auth"
    path.write_text("digest:u:first")
    session = build_session(ZooKeeperSection(auth_file=path), clock=CLOCK, rng=RNG)
    sent = Sent()
    await session._prepare(sent, new=False)  # type: ignore[arg-type]
    replace(path, "digest:u:second\ndigest:v:third")
    await session._prepare(sent, new=False)  # type: ignore[arg-type]
    replace(path, "digest::no user")
    await session._prepare(sent, new=False)  # type: ignore[arg-type]
    assert sent.auth == [b"u:first", *[b"u:second", b"v:third"] * 2]


def test_each_authentication_with_zookeeper_has_the_password_of_its_time(password_file: Path) -> None:
    section = ZooKeeperSection(sasl=ZooKeeperSaslSection(user="u", password_file=password_file))
    make = build_session(section, clock=CLOCK, rng=RNG)._sasl
    assert make is not None
    challenge = b'realm="zk-sasl-md5",nonce="n",qop="auth",charset=utf-8,algorithm=md5-sess'

    def respond() -> bytes:
        mechanism = make()
        assert isinstance(mechanism, DigestMd5)
        mechanism._client._nonce = b"n"  # otherwise each response differs
        return mechanism.respond(challenge) or b""

    first = respond()
    assert respond() == first
    replace(password_file, "second")
    assert respond() != first


async def test_each_request_has_the_headers_of_its_time(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("Bearer first")
    partition = TopicPartition("t", 0, 0)
    async with Receiver() as receiver:
        handler = load_handler("http", {"url": receiver.url, "header_files": {"Authorization": str(token)}})
        await handler.start(HandlerContext("g", "g_1", CLOCK))
        for _ in range(2):
            await handler.handle(Batch(partition, SparseContent([Message(partition, 0, 0, 9, b"x")])))
            replace(token, "Bearer second")
        await handler.stop()
    assert [each.headers["Authorization"] for each in receiver.requests] == ["Bearer first", "Bearer second"]
