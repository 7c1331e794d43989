"""Kerberos on real brokers, in the three forms that brokers know, with a real key distribution centre."""

from __future__ import annotations

import asyncio
import functools
import random
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.errors import BrokerError, ExitCode
from consumerd.base.java import find_java
from consumerd.demo.ports import free_port
from consumerd.demo.processes import DaemonProcess
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import AuthenticationError
from consumerd.net.client.opening import ChannelOpener
from consumerd.net.client.sasl import SaslAuthenticator
from consumerd.net.client.sasl_gssapi import GssapiIdentity
from consumerd.net.client.settings import ClientSettings
from consumerd.net.connect import connect
from consumerd.net.errors import ConnectError
from consumerd.wire.v08.versions import BrokerRelease
from tests.interop.kerberos import REALM, KeyDistributionCentre
from tests.interop.reauthentication import REAUTH, check_renewals
from tests.support.kafka import RELEASES

pytestmark = [pytest.mark.interop]
CLOCK = SystemClock()
MODULE = "com.sun.security.auth.module.Krb5LoginModule required"
#: Brokers look into these for the realm.
OPEN = [f"--add-{what}=java.security.jgss/sun.security.krb5=ALL-UNNAMED" for what in ("opens", "exports")]


def client_at(port: int, identity: GssapiIdentity) -> ClusterClient:
    settings = ClientSettings(versions_timeout=10)
    opener = ChannelOpener(
        functools.partial(connect, settings=settings.connection), settings, CLOCK,
        authenticate=SaslAuthenticator(identity),
    )  # fmt: skip
    return ClusterClient([("127.0.0.1", port)], opener, settings, clock=CLOCK, rng=random.Random(1))


async def start_broker(
    kafka: Any, version: str, kdc: KeyDistributionCentre, folder: Path, **settings: str | int
) -> int:
    """A broker with a listener for Kerberos; its port."""
    plain, port, controller = free_port(), free_port(), free_port()
    keys = kdc.keytab("kafka/127.0.0.1")
    login = (
        f'{MODULE} useKeyTab=true storeKey=true isInitiator=false keyTab="{keys}" principal="kafka/127.0.0.1@{REALM}";'
    )
    jaas = folder / "jaas.conf"
    jaas.write_text(f"KafkaServer {{\n {login}\n}};\n")
    public = f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{port}"
    config = {"listeners": public, "sasl.kerberos.service.name": "kafka", **settings}
    if RELEASES[version].kraft:
        config |= {
            "listeners": f"{public},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": public,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": "GSSAPI",
        }
    jvm = [f"-Djava.security.auth.login.config={jaas}", f"-Djava.security.krb5.conf={kdc.krb5_conf}", *OPEN]
    # Not the wheel's Java, which lacks jdk.security.jgss.
    await kafka(version, port=plain, config=config, jvm=jvm, java=find_java())
    return port


@pytest.mark.parametrize(
    "version",
    [
        pytest.param(version, marks=[] if version in ("0.9.0.1", "0.10.1.1", "3.9.1") else [pytest.mark.long])
        for version, release in RELEASES.items()
        if release.number >= (0, 9)
    ],
)
async def test_authenticates_with_a_ticket(
    version: str, kafka: Any, kdc: KeyDistributionCentre, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from consumerd.net.client.sasl_gssapi import GssapiIdentity

    port = await start_broker(kafka, version, kdc, tmp_path)
    keys = kdc.keytab("alice")
    async with client_at(port, GssapiIdentity(keytab=keys)) as client:

        async def led() -> int:
            await client.refresh(["events"], create=True)
            return (await client.leader("events", 0)).id

        assert await client.retrying("create a topic", led) == 1
        assert client.metadata.nodes[1].port == port
        channel = await client.any_channel()
        assert channel.versions.release is (
            BrokerRelease.V0_9 if version == "0.9.0.1" else BrokerRelease.V0_10_OR_NEWER
        )
        again = await client.private_channel(1)  # with the ticket that is there
        await again.close()

    begun = GssapiIdentity(keytab=keys)()
    begun.first("127.0.0.1")
    with pytest.raises(AuthenticationError, match="the server's token is not what Kerberos expects"):
        begun.respond(b"nonsense")
    with pytest.raises(BrokerError, match=r"GSSAPI: there is no ticket for kafkas@127\.0\.0\.1"):
        async with client_at(port, GssapiIdentity(keytab=keys, service="kafkas")) as client:
            await client.refresh()
    with pytest.raises(BrokerError, match=r"there is no ticket for kafka@127\.0\.0\.1"):
        async with client_at(port, GssapiIdentity()) as client:  # without a ticket
            await client.refresh()

    # A credential cache filled by kinit works like a keytab.
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path / 'tickets'}")
    await asyncio.to_thread(kdc.sign_in, keys, "alice")
    async with client_at(port, GssapiIdentity(principal=f"alice@{REALM}")) as client:
        await client.refresh()
    kdc.stop()
    with pytest.raises(ConnectError, match=r"GSSAPI: there is no ticket"):  # which is tried again, unlike a refusal
        async with client_at(port, GssapiIdentity(keytab=keys)) as client:
            await client.channel("127.0.0.1", port)
    async with client_at(port, GssapiIdentity()) as client:  # the ticket in the cache is enough
        await client.refresh()


@pytest.mark.long
@pytest.mark.parametrize("version", ["3.9.1", "4.1.0"])
async def test_authenticates_again_under_load_without_a_warning_or_a_disconnect(
    version: str, kafka: Any, kdc: KeyDistributionCentre, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = await start_broker(kafka, version, kdc, tmp_path, **{"connections.max.reauth.ms": REAUTH})
    identity = GssapiIdentity(keytab=kdc.keytab("alice"))
    async with client_at(port, identity) as client:
        await client.retrying("make the topic", lambda: client.refresh(["events"], create=True))
    await check_renewals(port, identity, monkeypatch)


async def test_daemon_authenticates_with_a_keytab(kafka: Any, kdc: KeyDistributionCentre, tmp_path: Path) -> None:
    port = await start_broker(kafka, "3.9.1", kdc, tmp_path)
    daemon = DaemonProcess(
        tmp_path,
        {
            "group": {"id": "g", "coordination": "kafka", "topics": {"events": 1}},
            "kafka": {
                "bootstrap": [f"127.0.0.1:{port}"],
                "sasl": {"mechanism": "GSSAPI", "keytab": str(kdc.keytab("bob"))},
            },
            "handler": {"name": "null"},
        },
    )
    async with daemon:
        assert await daemon.stop() == ExitCode.OK
