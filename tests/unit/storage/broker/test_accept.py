"""A client that comes at the very moment of the broker's end is not left with an open connection."""

from __future__ import annotations

import asyncio
import random
import socket
from pathlib import Path

import pytest

from consumerd.base.clock import SystemClock
from consumerd.storage.broker.config import BrokerConfig
from consumerd.storage.broker.server import Broker


@pytest.mark.parametrize("graceful", [True, False])
@pytest.mark.parametrize("turns", range(6))
async def test_closes_connections_with_the_broker(tmp_path: Path, turns: int, graceful: bool) -> None:
    config = BrokerConfig(log_dir=tmp_path, port=0, use_zookeeper=False)
    broker = Broker(config, clock=SystemClock(), rng=random.Random(1))
    task = asyncio.create_task(broker.run())
    await broker.ready.wait()
    with socket.create_connection(("127.0.0.1", broker.port)) as client:
        client.settimeout(5)
        for _ in range(turns):
            await asyncio.sleep(0)
        if graceful:
            broker.request_stop()
        else:
            task.cancel()
        await asyncio.wait([task])
        try:
            assert client.recv(1) == b""
        except ConnectionResetError:
            assert turns < 3  # it was never accepted
