from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from consumerd.demo.ports import free_port
from consumerd.testing.fault_proxy import Direction, FaultProxy, FrameSplitter

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Echo; after the client's FIN say goodbye."""
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.write(b"bye")
    except ConnectionError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def proxied(
    hook: Callable[[Direction, bytes], bytes] | None = None, *, frames: bool = False
) -> AsyncIterator[FaultProxy]:
    port = free_port()
    async with (
        await asyncio.start_server(_answer, "127.0.0.1", port),
        FaultProxy("127.0.0.1", port, hook=hook, frames=frames) as proxy,
    ):
        yield proxy


@asynccontextmanager
async def connected(proxy: FaultProxy) -> AsyncIterator[Streams]:
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


async def echo(streams: Streams, data: bytes) -> bytes:
    streams[1].write(data)
    return await streams[0].readexactly(len(data))


async def silence(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(0.15):
            await reader.read(1)
    except TimeoutError:
        return True
    return False


async def test_forwards_large_data_both_ways_and_counts() -> None:
    data = bytes(range(256)) * 8_192
    async with proxied() as proxy, connected(proxy) as (reader, writer):
        writer.write(data)
        writer.write_eof()
        assert await reader.read(-1) == data + b"bye"
        assert proxy.accepted == 1
        assert proxy.forwarded == {Direction.TO_SERVER: len(data), Direction.TO_CLIENT: len(data) + 3}
        while proxy.open_connections:
            await asyncio.sleep(0.005)


async def test_cut_right_after_accept_closes_the_connection() -> None:
    def cut(direction: Direction, data: bytes) -> bytes:
        proxy.cut(rst=True)
        return data

    async with proxied(cut) as proxy, connected(proxy) as streams:
        streams[1].write(b"gone")
        with pytest.raises(ConnectionResetError):
            await streams[0].read(-1)
        assert proxy.accepted == 1


async def test_dead_server_resets_the_client() -> None:
    async with FaultProxy("127.0.0.1", free_port()) as proxy, connected(proxy) as (reader, _):
        with pytest.raises(ConnectionResetError):
            await reader.read(-1)


async def test_stall_holds_data_until_healed() -> None:
    async with proxied() as proxy, connected(proxy) as old:
        assert await echo(old, b"x") == b"x"
        proxy.stall()
        async with connected(proxy) as new:
            old[1].write(b"held")
            new[1].write(b"held too")
            assert await silence(old[0])
            assert await silence(new[0])
            proxy.heal()
            assert await old[0].readexactly(4) == b"held"
            assert await new[0].readexactly(8) == b"held too"


async def test_stalls_one_direction_only() -> None:
    async with proxied() as proxy, connected(proxy) as streams:
        proxy.stall(Direction.TO_CLIENT)
        streams[1].write(b"abc")
        while proxy.forwarded[Direction.TO_SERVER] < 3:
            await asyncio.sleep(0.005)
        assert await silence(streams[0])
        assert proxy.forwarded[Direction.TO_CLIENT] == 0


async def test_delay_adds_latency_each_way() -> None:
    async with proxied() as proxy, connected(proxy) as streams:
        assert await echo(streams, b"x") == b"x"
        proxy.delay(0.3)
        loop = asyncio.get_running_loop()
        started = loop.time()
        for _ in range(10):
            streams[1].write(b"chunk")
            await asyncio.sleep(0.01)
        assert await streams[0].readexactly(50) == b"chunk" * 10
        took = loop.time() - started
        assert 0.6 <= took < 5.0  # ten chunks one after the other would take 6 s
        proxy.heal()
        started = loop.time()
        assert await echo(streams, b"y") == b"y"
        assert loop.time() - started < 0.6


async def test_half_close_ends_one_direction() -> None:
    async with proxied() as proxy, connected(proxy) as streams:
        assert await echo(streams, b"x") == b"x"
        proxy.half_close(Direction.TO_SERVER)
        assert await streams[0].read(-1) == b"bye"  # the server saw the FIN and its answer still came
    async with proxied() as proxy, connected(proxy) as streams:
        assert await echo(streams, b"x") == b"x"
        proxy.half_close(Direction.TO_CLIENT)
        assert await streams[0].read(-1) == b""
        streams[1].write(b"still sent")
        while proxy.forwarded[Direction.TO_SERVER] < 11:
            await asyncio.sleep(0.005)


async def test_blackhole_drops_bytes_and_healing_resets_the_connection() -> None:
    async with proxied() as proxy, connected(proxy) as spoilt, connected(proxy) as idle:
        assert await echo(spoilt, b"x") == b"x"
        assert await echo(idle, b"x") == b"x"
        proxy.blackhole(Direction.TO_CLIENT)
        spoilt[1].write(b"reply lost")
        while proxy.forwarded[Direction.TO_SERVER] < 12:
            await asyncio.sleep(0.005)
        assert await silence(spoilt[0])
        proxy.heal()
        with pytest.raises(ConnectionResetError):
            await spoilt[0].read(-1)
        assert await echo(idle, b"y") == b"y"


async def test_hook_sees_whole_frames_and_can_change_them() -> None:
    seen: list[tuple[Direction, bytes]] = []

    def hook(direction: Direction, data: bytes) -> bytes:
        seen.append((direction, data))
        if direction is Direction.TO_SERVER and data.endswith(b"drop"):
            return b""
        return data.replace(b"change", b"CHANGE")

    frames = [b"\0\0\0\x04drop", b"\0\0\0\0", b"\0\0\0\x06change"]
    async with proxied(hook, frames=True) as proxy, connected(proxy) as streams:
        sent = b"".join(frames)
        for start in range(0, len(sent), 5):
            streams[1].write(sent[start : start + 5])
            await asyncio.sleep(0.005)
        assert await streams[0].readexactly(14) == b"\0\0\0\0\0\0\0\x06CHANGE"
    assert [data for direction, data in seen if direction is Direction.TO_SERVER] == frames


async def test_hook_can_cut_the_connection() -> None:
    def hook(direction: Direction, data: bytes) -> bytes:
        if direction is Direction.TO_CLIENT:
            proxy.cut()
        return data

    async with proxied(hook) as proxy, connected(proxy) as streams:
        streams[1].write(b"x")
        assert await streams[0].read(-1) == b""
        assert proxy.forwarded[Direction.TO_SERVER] == 1


async def test_reports_a_failing_hook() -> None:
    reported: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))

    def hook(direction: Direction, data: bytes) -> bytes:
        raise LookupError("a defect of the test")

    async with proxied(hook) as proxy, connected(proxy) as streams:
        streams[1].write(b"x")
        assert await streams[0].read(-1) == b""
    assert len(reported) == 1
    assert isinstance(reported[0], ExceptionGroup)
    assert reported[0].subgroup(LookupError) is not None


async def test_close_ends_all_connections() -> None:
    async with proxied() as proxy, connected(proxy) as streams:
        assert await echo(streams, b"x") == b"x"
        proxy.stall()
        await proxy.close()
        assert proxy.open_connections == 0
        assert await streams[0].read(-1) == b""
        proxy.heal()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", proxy.port)


async def test_joins_split_frames() -> None:
    splitter = FrameSplitter()
    assert splitter.feed(b"\0\0") == []
    assert splitter.feed(b"\0\x01a\0\0\0\0\0") == [b"\0\0\0\x01a", b"\0\0\0\0"]
