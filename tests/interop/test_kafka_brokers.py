"""The brokers that the tests of the 0.8+ protocol run against: they start, keep their data, and leave their port."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.kafka import RELEASES
from tests.support.loopback_server import ask

if TYPE_CHECKING:
    from kazoo.client import KazooClient

pytestmark = pytest.mark.interop
#: One of each generation; the others in `make test-long`.
EVERYDAY = ("0.8.2.2", "3.9.1")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "version", [pytest.param(name, marks=[] if name in EVERYDAY else [pytest.mark.long]) for name in RELEASES]
)
async def test_broker_registers_restarts_and_stops(version: str, kafka: Any, zk: KazooClient) -> None:
    broker = await kafka(version, broker_id=3)
    port = broker.port
    if broker.zookeeper is not None:
        assert str(port).encode() in zk.get("/brokers/ids/3")[0]
    await broker.restart()
    assert broker.port == port
    # An API that no broker knows ends the connection, and nothing else.
    with pytest.raises(EOFError):
        await ask(port, struct.pack(">ihhih", 10, 999, 0, 1, -1), 4)
    await broker.stop()
    with pytest.raises(ConnectionRefusedError):
        await ask(port, b"", 1)
