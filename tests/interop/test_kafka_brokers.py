"""The brokers that the tests of the 0.8+ protocol run against: they start, keep their data, and leave their port."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NoReturn

import pytest

from consumerd.embedded import JavaRuntime, MissingRuntimeError
from consumerd.embedded.kafka import RELEASES, KafkaBroker, kafka_jars
from consumerd.embedded.server import ask

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kazoo.client import KazooClient

pytestmark = pytest.mark.interop
#: One of each generation; the others in `make test-long`.
EVERYDAY = ("0.8.2.2", "0.10.1.1", "3.9.1")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "version", [pytest.param(name, marks=[] if name in EVERYDAY else [pytest.mark.long]) for name in RELEASES]
)
async def test_a_broker_starts_and_names_itself(
    version: str, java: JavaRuntime, zk: KazooClient, zk_root: str, tmp_path: Path, missing: Callable[[str], NoReturn]
) -> None:
    release = RELEASES[version]
    try:
        jars = kafka_jars(release)
    except MissingRuntimeError as error:
        missing(str(error))
    zookeeper = None if release.kraft else zk_root
    async with KafkaBroker(tmp_path / "broker", release, zookeeper, java=java, jars=jars, broker_id=3) as broker:
        port = broker.port
        if zookeeper is not None:
            assert str(port).encode() in zk.get("/brokers/ids/3")[0]
        await broker.restart()
        assert broker.port == port
        # An API that no broker knows ends the connection, and nothing else.
        with pytest.raises(EOFError):
            await ask(port, struct.pack(">ihhih", 10, 999, 0, 1, -1), 4)
    with pytest.raises(ConnectionRefusedError):
        await ask(port, b"", 1)
