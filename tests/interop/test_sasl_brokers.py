"""Listeners with SASL and TLS on real brokers: each mechanism, in each form, and what is said when it fails."""

from __future__ import annotations

import functools
import random
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.errors import BrokerError
from consumerd.base.ports import SaslMechanism
from consumerd.demo.ports import free_port
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.opening import ChannelOpener
from consumerd.net.client.sasl import Plain, SaslAuthenticator, Scram
from consumerd.net.client.settings import ClientSettings
from consumerd.net.connect import connect
from tests.support.kafka import RELEASES

pytestmark = pytest.mark.interop
CLOCK = SystemClock()
JAAS = "org.apache.kafka.common.security.{0} required {1};"


def client_at(
    port: int, mechanism: Callable[[], SaslMechanism] | None = None, tls: ssl.SSLContext | None = None
) -> ClusterClient:
    settings = ClientSettings()
    opener = ChannelOpener(
        functools.partial(connect, settings=settings.connection, ssl=tls),
        settings,
        CLOCK,
        authenticate=SaslAuthenticator(mechanism) if mechanism else None,
    )
    return ClusterClient([("127.0.0.1", port)], opener, settings, clock=CLOCK, rng=random.Random(1))


#: With a list of users in a file. Since 1.0 tokens have an envelope, before they are bare.
WITH_ZOOKEEPER = [name for name, release in RELEASES.items() if release.number >= (0, 10) and not release.kraft]


@pytest.mark.parametrize(
    "version", [pytest.param(each, marks=[] if each == "0.10.1.1" else [pytest.mark.long]) for each in WITH_ZOOKEEPER]
)
async def test_authenticates_with_plain_to_brokers_of_zookeeper(version: str, kafka: Any, tmp_path: Path) -> None:
    login = tmp_path / "jaas.conf"
    users = 'username="admin" password="a" user_admin="a" user_alice="wonder land"'
    login.write_text("KafkaServer {\n" + JAAS.format("plain.PlainLoginModule", users) + "\n};\n")
    port = free_port()
    broker = await kafka(
        version,
        jvm=[f"-Djava.security.auth.login.config={login}"],
        port=(plain := free_port()),
        config={
            "listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{port}",
            "sasl.enabled.mechanisms": "PLAIN",
        },
    )
    assert broker.port == plain
    async with client_at(port, lambda: Plain("alice", "wonder land")) as client:
        metadata = await client.refresh(["events"], create=True)
        assert metadata.nodes[1].port == port  # the listener that we came in by
    async with client_at(port, lambda: Plain("alice", "wrong")) as client:
        bare = RELEASES[version].number < (1,)
        says = "closed the connection during authentication with PLAIN" if bare else "refuses the authentication"
        with pytest.raises(BrokerError, match=says):
            await client.refresh()
    async with client_at(port, lambda: Scram("SCRAM-SHA-256", "alice", "x")) as client:
        with pytest.raises(BrokerError, match="does not support SCRAM-SHA-256; it offers PLAIN"):
            await client.refresh()
    async with client_at(plain, lambda: Plain("alice", "wonder land")) as client:
        with pytest.raises(BrokerError, match="is this its SASL listener"):
            await client.refresh()
