"""Requirements of the HTTP server before it starts: its extras, a way to authenticate clients, and usable files."""

from __future__ import annotations

import ssl
import sys
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import trustme

from consumerd.config.model import parse
from consumerd.config.monitoring import HealthSection
from consumerd.daemon.endpoints import build_server, check_http
from consumerd.daemon.monitor import Monitor
from consumerd.errors import ConfigError
from consumerd.testing.clock import FakeClock

if TYPE_CHECKING:
    from pathlib import Path


def monitor(**health: Any) -> Monitor:
    tables = {"group": {"id": "g", "topics": {"t": 1}}, "health": {"listen": "127.0.0.1:0", **health}}
    return Monitor(parse(tables, "test", environment=False), FakeClock())


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        ("consumerd.http.server", r"health\.listen needs the extra `http`: pip install 'consumerd\[http\]'\."),
        ("consumerd.metrics.exposition", r"health\.metrics needs the extra `metrics`: pip install"),
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
    tls = {"certificate": tmp_path / "none", "key": tmp_path / "none"}
    with pytest.raises(ConfigError, match=r"health\.tls\.certificate: .*: No such file"):
        check_http(HealthSection.model_validate({"listen": "127.0.0.1:0", "tls": tls}))


@pytest.mark.asyncio
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
