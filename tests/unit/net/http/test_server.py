"""The HTTP server under clients that mean no good: limits hold, and others are served meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import aiohttp
import pytest

from consumerd.base.errors import ConfigError
from consumerd.net.http.access import AccessRefusedError
from consumerd.net.http.server import LONGEST_BODY, Answer, HttpServer, Request


async def hello(_: Request) -> Answer:
    return Answer(b"hello")


async def large(_: Request) -> Answer:
    return Answer(bytes(64 << 20))


async def broken(_: Request) -> Answer:
    raise ZeroDivisionError


async def refused(_: Request) -> Answer:
    raise AccessRefusedError(401, "no")


async def echo(request: Request) -> Answer:
    return Answer(request.form["said"].encode())


ROUTES = {
    ("GET", "/"): hello,
    ("GET", "/large"): large,
    ("GET", "/broken"): broken,
    ("GET", "/refused"): refused,
    ("POST", "/echo"): echo,
}


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[HttpServer]:
    async with HttpServer("127.0.0.1", 0, ROUTES, **settings) as server:
        yield server


async def get(
    server: HttpServer, path: str = "", method: str = "GET", **options: Any
) -> tuple[int, str, dict[str, str]]:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as session,
        session.request(method, server.url + path, **options) as response,
    ):
        return response.status, await response.text(), dict(response.headers)


@asynccontextmanager
async def connected(server: HttpServer) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def closed(reader: asyncio.StreamReader) -> bytes:
    """The bytes received until the server closes the connection."""
    try:
        async with asyncio.timeout(60):
            return await reader.read()
    except ConnectionResetError:
        return b""


async def test_sends_headers_that_isolate_pages() -> None:
    async with serving() as server:
        status, text, headers = await get(server)
        assert (status, text) == (200, "hello")
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["Cache-Control"] == "no-store"
        assert (await get(server, method="HEAD"))[0] == 200
        assert (await get(server, "echo", "POST", data={"said": "ü"}))[1] == "ü"


async def test_error_responses_reveal_nothing() -> None:
    async with serving() as server:
        assert (await get(server, "broken"))[:2] == (500, "internal error\n")
        status, text, headers = await get(server, "refused")
        assert (status, text, headers["WWW-Authenticate"][:5]) == (401, "no\n", "Basic")
        assert (await get(server, "none"))[0] == 404
        assert (await get(server, method="POST"))[0] == 405
        assert (await get(server, "echo", "POST", data={"said": "x" * (LONGEST_BODY + 1)}))[0] == 413
        assert (await get(server, "x" * 10_000))[0] == 400
        assert (await get(server, headers={"X": "x" * 10_000}))[0] == 400


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HT", b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nsaid="]
)
async def test_closes_a_request_that_never_ends(sent: bytes) -> None:
    async with serving(longest_state=0.2) as server, connected(server) as (reader, writer):
        writer.write(sent)
        await closed(reader)


async def test_closes_a_slow_request() -> None:
    async with serving(longest_state=0.2) as server, connected(server) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n")
        end = asyncio.create_task(closed(reader))
        for _ in range(2000):
            if end.done():
                break
            writer.write(b"X: y\r\n")
            await asyncio.wait([end], timeout=0.03)
        assert end.done()


async def test_drops_a_response_that_is_not_read() -> None:
    async with serving(longest_state=0.2) as server, connected(server) as (reader, writer):
        writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(60):
            await reader.readline()
            while server.connections:
                await asyncio.sleep(0.02)


async def test_closes_connections_above_the_limit() -> None:
    async with serving(most_connections=2) as server:
        async with AsyncExitStack() as stack:
            for _ in range(2):
                reader, writer = await stack.enter_async_context(connected(server))
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                assert b"200" in await asyncio.wait_for(reader.readline(), 60)
            reader, _ = await stack.enter_async_context(connected(server))
            assert await closed(reader) == b""
        async with asyncio.timeout(60):
            while server.connections:
                await asyncio.sleep(0.02)
        assert (await get(server))[0] == 200


async def test_close_does_not_wait_for_clients() -> None:
    async with serving() as server, AsyncExitStack() as stack:
        reader, writer = await stack.enter_async_context(connected(server))
        writer.write(b"GET / HT")
        await server.close()
        await closed(reader)


async def test_reports_a_port_in_use() -> None:
    async with serving() as server:
        other = HttpServer("127.0.0.1", server.port, ROUTES)
        with pytest.raises(ConfigError, match=rf"health\.listen: cannot listen on 127\.0\.0\.1:{server.port}"):
            await other.start()
