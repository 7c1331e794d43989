"""A small HTTP server on the running loop, by aiohttp: few connections, short requests, limits on everything.

Strategy: aiohttp parses and answers; what it leaves open is bounded here. A connection beyond the last allowed is
closed at once. One look each second closes connections that have been in the same state for too long, whichever it is:
bytes of a request that never ends, an answer that is not read, silence. A route is a coroutine that makes an `Answer`
of a `Request`; an exception is logged and answered with 500, and has no effect on other requests.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Self

import structlog
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from consumerd.base.address import format_address
from consumerd.base.errors import ConfigError, reason_of
from consumerd.net.http.access import AccessRefusedError

log = structlog.get_logger(__name__)

#: Connections at once; a probe, Prometheus and a few browsers need a dozen.
MOST_CONNECTIONS: Final = 64
#: Seconds for which a connection may be in one state: waiting, sending a request, taking an answer.
LONGEST_STATE: Final = 20.0
#: Bytes of a request line, of a header, and of a body.
LONGEST_LINE: Final = 4096
LONGEST_FIELD: Final = 8190
LONGEST_BODY: Final = 16 * 1024
#: Seconds that requests under way have at the end.
_END: Final = 0.5
#: Nothing of ours is to be kept, framed, sniffed, or to load anything from elsewhere.
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class Request:
    """The parts of a request that are passed to a route."""

    headers: Mapping[str, str]
    #: The fields of a form that was sent.
    form: Mapping[str, str]
    #: The fields of the query.
    query: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """The response of a route."""

    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Route = Callable[[Request], Awaitable[Answer]]


class HttpServer:
    """Serves `routes`, by method and path, from `start` to `close`."""

    def __init__(
        self,
        host: str,
        port: int,
        routes: Mapping[tuple[str, str], Route],
        *,
        tls: ssl.SSLContext | None = None,
        longest_state: float = LONGEST_STATE,
        most_connections: int = MOST_CONNECTIONS,
    ) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._longest_state = longest_state
        self._most = most_connections
        #: Requests of each connection, and how many there were when this was last seen to have changed.
        self._requests: Counter[asyncio.BaseProtocol] = Counter()
        self._seen: dict[asyncio.BaseProtocol, tuple[int, float]] = {}
        self._sockets: asyncio.Server | None = None
        self._watch: asyncio.Task[None] | None = None
        app = web.Application(client_max_size=LONGEST_BODY, middlewares=[self._outermost])
        for (method, path), route in routes.items():
            for each in ("GET", "HEAD") if method == "GET" else (method,):
                app.router.add_route(each, path, _handler(route))
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=_END,
            keepalive_timeout=longest_state,
            max_line_size=LONGEST_LINE,
            max_field_size=LONGEST_FIELD,
        )

    @property
    def port(self) -> int:
        """The port on which it listens, once it was started."""
        assert self._sockets is not None
        return int(self._sockets.sockets[0].getsockname()[1])

    @property
    def connections(self) -> int:
        """The number of connections that are open now."""
        server = self._runner.server
        return 0 if server is None else len(server.connections)

    @property
    def url(self) -> str:
        """The URL for a client on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)  # nosec B104  # noqa: S104 - the address to show
        return f"{'http' if self._tls is None else 'https'}://{format_address(host, self.port)}/"

    async def start(self) -> None:
        """Listen. Raises ConfigError where that is not possible."""
        await self._runner.setup()
        server = self._runner.server
        assert server is not None

        def connected() -> asyncio.BaseProtocol:
            return _Closed() if len(server.connections) >= self._most else server()

        try:
            self._sockets = await asyncio.get_running_loop().create_server(
                connected, self._host, self._port, ssl=self._tls, reuse_address=True, backlog=self._most
            )
        except OSError as error:
            await self._runner.cleanup()
            reason = error.strerror or reason_of(error)
            raise ConfigError(
                f"health.listen: cannot listen on {format_address(self._host, self._port)}: {reason}."
            ) from error
        self._watch = asyncio.create_task(self._close_the_slow(server), name="http connections")
        log.info("http_listening", url=self.url)

    async def close(self) -> None:
        """Close all connections, those with a request under way after a moment."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        if self._sockets is not None:
            self._sockets.close()
        server = self._runner.server
        connections = [] if server is None else server.connections
        await self._runner.cleanup()
        for connection in connections:
            _abort(connection)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @web.middleware
    async def _outermost(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        self._requests[request.protocol] += 1
        try:
            response = await handler(request)
        except web.HTTPException as error:  # no such path, a body too large
            response = web.Response(status=error.status, text=f"{error.reason}\n", headers=_allowed(error))
        except AccessRefusedError as error:
            response = web.Response(status=error.status, text=f"{error}\n")
            if error.status == web.HTTPUnauthorized.status_code:
                response.headers["WWW-Authenticate"] = 'Basic realm="consumerd", charset="UTF-8"'
        except Exception as error:
            log.exception("http_request_failed", path=request.path, reason=reason_of(error))
            response = web.Response(status=500, text="internal error\n")
        response.headers.update(_HEADERS)
        return response

    async def _close_the_slow(self, server: web.Server) -> None:
        while True:
            await asyncio.sleep(min(1.0, self._longest_state / 4))
            now, seen = time.monotonic(), self._seen
            self._seen = {}
            for connection in server.connections:
                count = self._requests[connection]
                before, since = seen.get(connection, (-1, now))
                self._seen[connection] = count, since if before == count else now
                if before == count and now - since > self._longest_state:
                    _abort(connection)
            self._requests = Counter({connection: self._requests[connection] for connection in self._seen})


def _abort(connection: RequestHandler) -> None:
    """End it at once: a mere close would wait until the client has read the written bytes."""
    if connection.transport is not None:
        connection.transport.abort()


def _handler(route: Route) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        form = await request.post() if request.method == "POST" else {}
        fields = {name: value for name, value in form.items() if isinstance(value, str)}
        answer = await route(Request(request.headers, fields, request.query))
        headers = {"Content-Type": answer.content_type, **answer.headers}
        return web.Response(body=answer.body, status=answer.status, headers=headers)

    return handle


def _allowed(error: web.HTTPException) -> dict[str, str]:
    return {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}


class _Closed(asyncio.Protocol):
    """A connection beyond the last that is allowed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()
