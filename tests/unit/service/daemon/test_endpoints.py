"""Requirements of the HTTP server before it starts: its extras, a way to authenticate clients, and usable files."""

from __future__ import annotations

import asyncio
import ssl
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme

from consumerd.base.errors import ConfigError
from consumerd.base.settings.monitoring import HealthSection, HealthTlsSection
from consumerd.service.config.model import parse
from consumerd.service.daemon.endpoints import build_server, check_http
from consumerd.service.daemon.monitor import Monitor
from consumerd.testing.clock import FakeClock


def monitor(**health: Any) -> Monitor:
    tables = {"group": {"id": "g", "topics": {"t": 1}}, "health": {"listen": "127.0.0.1:0", **health}}
    return Monitor(parse(tables, "test", environment=False), FakeClock())


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        ("consumerd.net.http.server", r"health\.listen needs the extra `http`: pip install 'consumerd\[http\]'\."),
        ("consumerd.base.metrics.exposition", r"health\.metrics needs the extra `metrics`: pip install"),
    ],
)
def test_names_the_extra_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, module: str, sentence: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # as the import of a missing package fails
    with pytest.raises(ConfigError, match=sentence):
        check_http(HealthSection(listen="127.0.0.1:0", metrics=True))
    check_http(HealthSection())


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "10.0.0.1:8080"])
def test_refuses_a_status_that_everybody_could_see(listen: str) -> None:
    with pytest.raises(ConfigError, match="would show the status to everybody"):
        check_http(HealthSection(listen=listen, status=True))
    check_http(HealthSection(listen=listen))


def test_refuses_a_token_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"health\.token_file: cannot read .*: No such file"):
        check_http(HealthSection(listen="127.0.0.1:0", token_file=tmp_path / "none"))


def test_refuses_certificates_that_cannot_be_used(tmp_path: Path) -> None:
    tls = HealthTlsSection(certificate=tmp_path / "none", key=tmp_path / "none")
    with pytest.raises(ConfigError, match=r"health\.tls\.certificate: .*: No such file"):
        check_http(HealthSection(listen="127.0.0.1:0", tls=tls))


async def test_serves_the_status_to_client_certificates_alone(tmp_path: Path) -> None:
    ours, clients, others = trustme.CA(), trustme.CA(), trustme.CA()
    server = ours.issue_cert("127.0.0.1")
    server.cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
    server.private_key_pem.write_to_path(tmp_path / "server.key")
    clients.cert_pem.write_to_path(tmp_path / "clients.pem")
    tls = {
        "certificate": tmp_path / "server.pem",
        "key": tmp_path / "server.key",
        "client_ca": tmp_path / "clients.pem",
    }

    def context(issuer: trustme.CA | None) -> ssl.SSLContext:
        made = ssl.create_default_context()
        ours.configure_trust(made)
        if issuer is not None:
            issuer.issue_cert("operator@example.org").configure_cert(made)
        return made

    async with build_server(monitor(tls=tls)) as running, aiohttp.ClientSession() as session:
        async with session.get(f"{running.url}status.json", ssl=context(clients)) as answer:
            assert (answer.status, (await answer.json())["group"]) == (200, "g")
        for issuer in (None, others):
            with pytest.raises(aiohttp.ClientError):
                async with session.get(f"{running.url}healthz", ssl=context(issuer)):
                    pass


async def test_new_connections_use_the_certificates_and_the_token_of_their_time(tmp_path: Path) -> None:
    ours, operators, successors = trustme.CA(), trustme.CA(), trustme.CA()
    files = {name: tmp_path / f"{name}.pem" for name in ("certificate", "key", "client_ca")}
    token = tmp_path / "token"

    def issue(clients: trustme.CA, secret: str) -> bytes:
        """Replace all files; the certificate that clients are shown now, DER."""
        server = ours.issue_cert("127.0.0.1")
        server.cert_chain_pems[0].write_to_path(files["certificate"])
        server.private_key_pem.write_to_path(files["key"])
        clients.cert_pem.write_to_path(files["client_ca"])
        token.write_text(secret)
        return ssl.PEM_cert_to_DER_cert(server.cert_chain_pems[0].bytes().decode())

    async def request(issuer: trustme.CA, secret: str) -> tuple[int | None, bytes]:
        """The status of the answer, None if there was none, and the server's certificate."""
        context = ssl.create_default_context()
        ours.configure_trust(context)
        issuer.issue_cert("operator@example.org").configure_cert(context)
        port = int(running.url.rpartition(":")[2].strip("/"))
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        question = f"GET /status.json HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {secret}\r\n\r\n"
        try:
            writer.write(question.encode())
            line = await reader.readline()
        except (ssl.SSLError, ConnectionError):
            line = b""
        finally:
            writer.transport.abort()
        return int(line.split()[1]) if line else None, shown

    former, latter = "f" * 32, "l" * 32
    first = issue(operators, former)
    async with build_server(monitor(tls=files, token_file=token)) as running:
        assert await request(operators, former) == (200, first)
        second = issue(successors, latter)
        assert await request(successors, latter) == (200, second)
        assert await request(successors, former) == (401, second)
        assert await request(operators, latter) == (None, second)
