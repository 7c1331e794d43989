"""Starts of real brokers that fail: the error has the reason, and a port that is taken is replaced by another one."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import pytest
from kazoo.client import KazooClient

from consumerd.base.java import JavaRuntime, MissingRuntimeError
from consumerd.demo.ports import LOOPBACK, free_port
from tests.support.errors import KafkaStartError
from tests.support.kafka import RELEASES, KafkaBroker, KafkaRelease, kafka_jars

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]
EVERYDAY = "3.9.1"


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which somebody else listens."""
    port = free_port()
    with closing(socket.create_server((LOOPBACK, port))):
        yield port


@pytest.mark.parametrize(
    "release",
    [pytest.param(each, id=each.version, marks=[] if each.version == EVERYDAY else pytest.mark.long)
     for each in RELEASES.values()],
)  # fmt: skip
async def test_takes_another_port_where_its_own_is_taken_and_says_why_it_ends(
    release: KafkaRelease,
    broker_java: Callable[[KafkaRelease], JavaRuntime],
    zk: KazooClient,
    zk_root: str,
    taken: int,
    tmp_path: Path,
    missing: Callable[[str], NoReturn],
) -> None:
    try:
        jars = kafka_jars(release)
    except MissingRuntimeError as error:
        missing(str(error))
    zookeeper = None if release.kraft else zk_root
    broker = KafkaBroker(tmp_path / "broker", release, zookeeper, java=broker_java(release), jars=jars)
    broker.port = taken
    try:
        await broker.start()
        assert broker.port != taken
        broker.kill()
        broker.port = taken  # that of a server that answered is not replaced: clients may know it
        with pytest.raises(
            KafkaStartError, match=f"(ended with status 1|cannot listen on its port): .*{taken}.*already in use"
        ):
            await broker.start()
    finally:
        broker.kill()
