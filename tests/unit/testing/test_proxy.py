"""The proxy for any test; what its faults do to bytes is tested with the proxy itself (tests/unit/demo)."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from consumerd.testing import Direction, LoopbackBroker, LoopbackProxy, ProxyFactory

#: A FETCH of zero bytes of topic t, and its answer.
REQUEST = bytes.fromhex("00000015 0001 0001 74 00000000 0000000000000000 00000000")
ANSWER = bytes.fromhex("00000002 0000")


@pytest.fixture
def proxy(consumerd_broker: LoopbackBroker, consumerd_proxy_factory: ProxyFactory) -> LoopbackProxy:
    return consumerd_proxy_factory(consumerd_broker.host, consumerd_broker.port)


@pytest.fixture
def client(proxy: LoopbackProxy) -> Iterator[socket.socket]:
    """A client that blocks, through the proxy, and has asked once."""
    with socket.create_connection((proxy.host, proxy.port), timeout=5) as made:
        assert ask(made) == ANSWER
        yield made


def ask(client: socket.socket) -> bytes:
    client.sendall(REQUEST)
    return client.recv(100)


def test_forwards_and_counts(proxy: LoopbackProxy, client: socket.socket) -> None:
    assert proxy.connect == f"127.0.0.1:{proxy.port}"
    assert (proxy.accepted, proxy.open_connections) == (1, 1)
    assert proxy.forwarded(Direction.TO_SERVER) == len(REQUEST)
    assert proxy.forwarded(Direction.TO_CLIENT) == len(ANSWER)


def test_cuts_connections(proxy: LoopbackProxy, client: socket.socket) -> None:
    proxy.cut()
    assert client.recv(1) == b""
    with socket.create_connection((proxy.host, proxy.port), timeout=5) as other:
        assert ask(other) == ANSWER
        proxy.cut(rst=True)
        with pytest.raises(ConnectionResetError):
            other.recv(1)


def test_stalls_and_heals(proxy: LoopbackProxy, client: socket.socket) -> None:
    proxy.stall(Direction.TO_CLIENT)
    client.settimeout(0.05)
    with pytest.raises(TimeoutError):
        ask(client)
    client.settimeout(5)
    proxy.heal()
    assert client.recv(100) == ANSWER


def test_loses_bytes(proxy: LoopbackProxy, client: socket.socket) -> None:
    proxy.blackhole()
    client.settimeout(0.05)
    with pytest.raises(TimeoutError):
        ask(client)
    client.settimeout(5)
    proxy.heal()
    with pytest.raises(ConnectionResetError):
        client.recv(100)


def test_refuses_and_heals(proxy: LoopbackProxy, client: socket.socket) -> None:
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((proxy.host, proxy.port))
    assert ask(client) == ANSWER
    proxy.heal()
    with socket.create_connection((proxy.host, proxy.port), timeout=5) as other:
        assert ask(other) == ANSWER


def test_delays(proxy: LoopbackProxy, client: socket.socket) -> None:
    proxy.delay(0.1)
    client.settimeout(0.05)
    with pytest.raises(TimeoutError):
        ask(client)
    client.settimeout(5)
    assert client.recv(100) == ANSWER


def test_half_closes(proxy: LoopbackProxy, client: socket.socket) -> None:
    proxy.half_close(Direction.TO_CLIENT)
    assert client.recv(1) == b""


def test_hook_alters_frames(consumerd_broker: LoopbackBroker, consumerd_proxy_factory: ProxyFactory) -> None:
    frames: list[tuple[Direction, bytes]] = []

    def hook(direction: Direction, frame: bytes) -> bytes:
        frames.append((direction, frame))
        return frame[:-1] + b"\x01" if direction is Direction.TO_CLIENT else frame

    proxy = consumerd_proxy_factory(consumerd_broker.host, consumerd_broker.port, hook=hook, frames=True)
    with socket.create_connection((proxy.host, proxy.port), timeout=5) as client:
        assert ask(client) == ANSWER[:-1] + b"\x01"
    assert frames == [(Direction.TO_SERVER, REQUEST), (Direction.TO_CLIENT, ANSWER)]


def test_passes_on_the_death_of_a_broker(
    consumerd_broker: LoopbackBroker, proxy: LoopbackProxy, client: socket.socket
) -> None:
    consumerd_broker.kill()
    assert client.recv(1) == b""
