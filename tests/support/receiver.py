"""A receiver of the handler `http`: a real server on loopback that keeps what it is sent, and answers by a script."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from aiohttp import web

if TYPE_CHECKING:
    import ssl


Answering = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Received:
    """One request."""

    headers: Mapping[str, str]
    body: bytes

    @property
    def key(self) -> str:
        return self.headers["Idempotency-Key"]

    @property
    def records(self) -> list[dict[str, Any]]:
        body = gzip.decompress(self.body) if self.headers.get("Content-Encoding") == "gzip" else self.body
        if self.headers["Content-Type"] == "application/json":
            found: list[dict[str, Any]] = json.loads(body)
            return found
        return [json.loads(line) for line in body.splitlines()]


class Receiver:
    """Answers with what is in `script`, one entry for each request, and with 204 afterwards.

    `pause`: seconds between a request and its answer, so that a test can kill a process in between.
    """

    def __init__(self, tls: ssl.SSLContext | None = None, *, pause: float = 0.0) -> None:
        self._pause = pause
        self.requests: list[Received] = []
        self.script: deque[web.Response | Answering] = deque()
        self._tls = tls
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/events", self._take)
        self._runner = web.AppRunner(app, access_log=None, auto_decompress=False, shutdown_timeout=0.5)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls).start()
        port = self._runner.addresses[0][1]
        self.url = f"{'http' if self._tls is None else 'https'}://127.0.0.1:{port}/events"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(Received(request.headers, await request.read()))
        if self._pause:
            await asyncio.sleep(self._pause)
        if not self.script:
            return web.Response(status=204)
        answer = self.script.popleft()
        return await answer(request) if callable(answer) else answer


class OncePerKey:
    """The messages that a receiver keeps if it drops those it has, by Idempotency-Key (docs/handlers.md)."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self._ends: defaultdict[str, int] = defaultdict(int)

    def take(self, request: Received) -> None:
        partition, _, span = request.key.rpartition("/")
        start, _, end = span.partition("-")
        stored = self._ends[partition]
        assert int(start) <= stored or not stored, f"{request.key} leaves a gap after {stored}"
        self.records += [record for record in request.records if record["offset"] >= stored]
        self._ends[partition] = max(stored, int(end))
