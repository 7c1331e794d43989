"""Connections in memory: in order within one, and the faults that a network has."""

import asyncio
import random
from collections.abc import Iterator

import pytest

from tests.simulation.kernel import Kernel
from tests.simulation.network import Line, Link, Network
from tests.simulation.process import ProcessLoop


class Echo:
    """Sends back what comes, and remembers when."""

    def __init__(self, link: Link, kernel: Kernel) -> None:
        self.link = link
        self.kernel = kernel
        self.seen: list[tuple[float, bytes]] = []
        self.is_lost = False

    def received(self, data: bytes) -> None:
        self.seen.append((self.kernel.now, data))
        self.link.send(data)

    def lost(self) -> None:
        self.is_lost = True


class Place:
    """A network with an echo at `echo:7`, 10 ms away, and a process."""

    def __init__(self) -> None:
        self.kernel = Kernel()
        self.network = Network(self.kernel, random.Random(1))
        self.peers: list[Echo] = []
        self.streams: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.network.listen("echo", 7, self._accept, Line(0.01, jitter=0.5))
        self.loop = ProcessLoop(self.kernel, self.network, "client")

    async def open(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection that stays open until the process ends."""
        self.streams.append(await asyncio.open_connection(host, port))
        return self.streams[-1]

    def _accept(self, link: Link) -> Echo:
        self.peers.append(Echo(link, self.kernel))
        return self.peers[-1]


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.loop.unwind()


def test_bytes_arrive_in_order_after_a_round_trip(place: Place) -> None:
    async def talk() -> float:
        reader, writer = await place.open("echo", 7)
        begun = place.loop.time()
        for number in range(100):
            writer.write(b"%d " % number)
            await asyncio.sleep(0.001)
        data = await reader.readuntil(b"99 ")
        assert data == b"".join(b"%d " % number for number in range(100))
        writer.close()
        await writer.wait_closed()
        return place.loop.time() - begun

    assert 0.12 <= place.loop.play(talk()) <= 0.14


def test_connections_overtake_each_other(place: Place) -> None:
    async def talk() -> None:
        streams = [await place.open("echo", 7) for _ in range(20)]
        for number, (_, writer) in enumerate(streams):
            writer.write(b"%d" % number)
        await asyncio.gather(*(reader.read(2) for reader, _ in streams))

    place.loop.play(talk())
    seen = [(when, int(data)) for peer in place.peers for when, data in peer.seen]
    order = [number for _, number in sorted(seen)]
    assert order != sorted(order)
    assert sorted(order) == list(range(20))


def test_refuses_connections_without_a_listener_and_times_out_at_a_silent_address(place: Place) -> None:
    place.network.silent.add("void")

    async def try_both() -> None:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("echo", 8)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5.0):
                await asyncio.open_connection("void", 7)

    place.loop.play(try_both())


def test_cut_resets_both_sides_and_loses_bytes_in_flight(place: Place) -> None:
    async def talk() -> None:
        reader, writer = await place.open("echo", 7)
        writer.write(b"lost")
        (link,) = place.network.links
        link.cut()
        with pytest.raises(ConnectionResetError):
            await reader.read(4)

    place.loop.play(talk())
    place.kernel.run(1.0)
    (peer,) = place.peers
    assert peer.is_lost
    assert peer.seen == []


def test_stall_delays_all_bytes(place: Place) -> None:
    async def talk() -> bytes:
        reader, writer = await place.open("echo", 7)
        (link,) = place.network.links
        link.stall(up=False)
        writer.write(b"one ")
        await asyncio.sleep(5.0)
        writer.write(b"two ")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10.0):
                await reader.read(1)
        link.stall(False)
        return await reader.readuntil(b"two ")

    assert place.loop.play(talk()) == b"one two "


def test_lost_reply_never_arrives_though_its_request_did(place: Place) -> None:
    async def talk() -> None:
        reader, writer = await place.open("echo", 7)
        (link,) = place.network.links
        link.lose_reply = True
        writer.write(b"asked")
        with pytest.raises(ConnectionResetError):
            await reader.read(5)

    place.loop.play(talk())
    (peer,) = place.peers
    assert [data for _, data in peer.seen] == [b"asked"]


def test_dead_process_closes_its_connections(place: Place) -> None:
    async def talk() -> None:
        await place.open("echo", 7)

    place.loop.play(talk())
    place.loop.kill()
    place.network.close_all_of("client")
    place.kernel.run(0.1)
    assert place.peers[0].is_lost


def test_writer_waits_while_nothing_is_read(place: Place) -> None:
    async def talk() -> int:
        _, writer = await place.open("echo", 7)
        (link,) = place.network.links
        link.stall()
        written = 0

        async def write_on() -> None:
            nonlocal written
            while True:
                writer.write(bytes(65536))
                written += 65536
                await writer.drain()

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(write_on(), 5.0)
        link.stall(False)
        await writer.drain()
        return written

    assert 256 * 1024 < place.loop.play(talk()) < 1024 * 1024
