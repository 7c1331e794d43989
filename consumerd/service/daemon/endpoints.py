"""The endpoints of the daemon's HTTP server: probes, metrics, and the status with access control.

Strategy: one table of routes, made from the configuration, so that a path that is not served does not exist. Probes
return one word and no data: they may be open to every client.
"""

from __future__ import annotations

import json
import ssl
from functools import partial
from typing import TYPE_CHECKING, Literal

import structlog

from consumerd.base.address import parse_address
from consumerd.base.credentials import Renewed, find_file, secret_of
from consumerd.base.errors import ConfigError
from consumerd.base.partition import TopicPartition
from consumerd.base.settings.monitoring import HealthSection, HealthTlsSection
from consumerd.member.consumer.errors import NotAssignedError
from consumerd.net.http.access import Access, is_loopback
from consumerd.net.tls import make_tls_context
from consumerd.service.config.build import key_password
from consumerd.service.config.subscriptions import MAIN
from consumerd.service.daemon.monitor import Monitor
from consumerd.service.daemon.probes import check_extras, probe_routes
from consumerd.service.daemon.readings import read
from consumerd.service.daemon.status import read_status

if TYPE_CHECKING:
    from consumerd.net.http.server import Answer, HttpServer, Request, Route

log = structlog.get_logger(__name__)


def check_http(section: HealthSection) -> None:
    """Raise ConfigError for what would be refused at the start, short of the port being taken."""
    if section.listen is None:
        return
    check_extras(metrics=section.metrics)
    build_access(section)
    if section.tls is not None:
        build_server_tls(section.tls)


def build_access(section: HealthSection) -> Access:
    """Return the access rule of the status. Raises ConfigError where it needs authentication and none is set."""
    assert section.listen is not None
    host, _ = parse_address(section.listen, "health.listen", lowest=0)
    access = Access(host, _token(section), mutual=section.tls is not None and section.tls.client_ca is not None)
    if section.status and not access.is_private:
        raise ConfigError(
            f"health.status on {section.listen} would show the status to everybody: listen on 127.0.0.1, or set "
            "health.token, health.token_file or health.tls.client_ca."
        )
    return access


def _token(section: HealthSection) -> str | None:
    token = secret_of(section, "token", "health")
    return None if token is None else token.strip()


def build_server_tls(section: HealthTlsSection) -> ssl.SSLContext:
    """A server's context. Raises ConfigError for files that cannot be used."""
    password = key_password(section, "health.tls")
    key = find_file(section.key)
    try:
        return make_tls_context(
            server=True, ca=section.client_ca, certificate=section.certificate, key=key, password=password
        )
    except ConfigError as error:
        raise ConfigError(f"health.tls.{error}") from error


def build_server(monitor: Monitor) -> HttpServer:
    """The server that the configuration asks for, not started. Raises ConfigError."""
    section = monitor.config.health
    check_http(section)
    assert section.listen is not None
    from consumerd.net.http.server import HttpServer  # noqa: PLC0415 - the extra `http`

    host, port = parse_address(section.listen, "health.listen", lowest=0)
    routes = probe_routes(monitor, (lambda: read(monitor)) if section.metrics else None)
    renewed = Renewed("health.token_file", [section.token_file], lambda: build_access(section))
    access = renewed.now()
    if access.is_private if section.status is None else section.status:
        routes.update(_status_routes(monitor, renewed))
        if access.token is not None and section.tls is None and not is_loopback(host):
            log.warning("http_token_unprotected", listen=section.listen, reason="health.tls is not set")
    return HttpServer(host, port, routes, tls=_renewed_server_tls(section.tls))


def _renewed_server_tls(section: HealthTlsSection | None) -> ssl.SSLContext | None:
    """A server's context that serves each new connection with the files as they are at the time."""
    if section is None:
        return None
    files = (section.certificate, section.key, section.key_password_file, section.client_ca)
    renewed = Renewed("health.tls", files, lambda: build_server_tls(section))

    def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = renewed.now()

    context = renewed.now()
    context.sni_callback = choose  # called for each handshake, with or without a name
    return context


def _status_routes(monitor: Monitor, access: Renewed[Access]) -> dict[tuple[str, str], Route]:
    from consumerd.net.http.server import Answer  # noqa: PLC0415
    from consumerd.service.daemon.status_page import Choice, asset, render  # noqa: PLC0415

    async def status(request: Request) -> Answer:
        (await access.current()).check(request.headers)
        document = json.dumps(await read_status(monitor), indent=2)
        return Answer(f"{document}\n".encode(), "application/json")

    async def page(request: Request) -> Answer:
        rule = await access.current()
        rule.check(request.headers)
        word = rule.word if rule.may_change else None
        return Answer(
            render(await read_status(monitor), word=word, choice=Choice.of(request.query)), "text/html; charset=utf-8"
        )

    async def hold(verb: Literal["pause", "resume"], request: Request) -> Answer:
        (await access.current()).check_change(request.headers, request.form.get("word", ""))
        name = request.form.get("partition", "")
        try:
            _hold(monitor, verb, name, request.form.get("subscription", MAIN))
        except (NotAssignedError, ValueError):
            return Answer(f"{name[:200]} is not consumed by this member now\n".encode(), status=409)
        log.info("partition_paused" if verb == "pause" else "partition_resumed", partition=name)
        return Answer(status=303, headers={"Location": "/#partitions"})

    async def style(_: Request) -> Answer:
        return Answer(asset("status.css"), "text/css; charset=utf-8")

    async def script(_: Request) -> Answer:
        return Answer(asset("status.js"), "text/javascript; charset=utf-8")

    return {
        ("GET", "/"): page,
        ("GET", "/status.json"): status,
        ("GET", "/status.css"): style,
        ("GET", "/status.js"): script,
        ("POST", "/pause"): partial(hold, "pause"),
        ("POST", "/resume"): partial(hold, "resume"),
    }


def _hold(monitor: Monitor, verb: Literal["pause", "resume"], name: str, subscription: str) -> None:
    """Raise NotAssignedError for a partition that is not assigned, ValueError for an invalid name of a partition."""
    member = next((part.member for part in monitor.subscriptions if part.name == subscription), None)
    if member is None:
        raise ValueError(name)
    topic, _, number = name.rpartition("/")
    partition = TopicPartition.parse_any(topic, number)
    controls = member.controls
    (controls.pause if verb == "pause" else controls.resume)(partition)
