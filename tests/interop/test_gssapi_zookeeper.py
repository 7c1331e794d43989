"""Kerberos with a real ZooKeeper and a real key distribution centre, by the configuration of a daemon."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.java import JavaRuntime
from consumerd.demo.zookeeper import ZooKeeperServer, zookeeper_jars
from consumerd.net.zk.errors import AuthFailed, NoAuth
from consumerd.net.zk.session import Session
from consumerd.service.config.build import build_session
from consumerd.service.config.model import parse
from tests.interop.kerberos import REALM, KeyDistributionCentre
from tests.support.zookeeper_servers import TLS_JARS

pytestmark = [pytest.mark.interop, pytest.mark.zookeeper]
MODULE = "com.sun.security.auth.module.Krb5LoginModule required"


#: Of Java's Kerberos: the login module, and the mechanism.
MODULES = {"jdk.security.auth", "jdk.security.jgss"}


@pytest.fixture
def kerberos_java(java: JavaRuntime, missing: Callable[[str], NoReturn]) -> None:
    """The servers' Java has Kerberos; that of the wheel has not."""
    listed = subprocess.run([java.executable, "--list-modules"], capture_output=True, text=True, check=True, timeout=60)
    if absent := MODULES - {line.partition("@")[0] for line in listed.stdout.splitlines()}:
        missing(f"{java.executable} has no {' and no '.join(sorted(absent))}: install a JDK")


async def start_server(zookeeper_factory: Any, kdc: KeyDistributionCentre, folder: Path) -> ZooKeeperServer:
    keys = kdc.keytab("zookeeper/127.0.0.1")
    jaas = folder / "jaas.conf"
    jaas.write_text(
        f'Server {{\n {MODULE} useKeyTab=true storeKey=true isInitiator=false keyTab="{keys}" '
        f'principal="zookeeper/127.0.0.1@{REALM}";\n}};\n'
    )
    jvm = [f"-Djava.security.auth.login.config={jaas}", f"-Djava.security.krb5.conf={kdc.krb5_conf}"]
    provider = {"authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"}
    jars = zookeeper_jars(*TLS_JARS)
    server: ZooKeeperServer = await zookeeper_factory(config=provider, jvm=jvm, jars=jars)
    return server


def session_of(server: ZooKeeperServer, **sasl: Any) -> Session:
    document = {
        "zookeeper": {
            "connect": f"{server.connect}/kafka",
            "acl": "creator",
            "session_timeout": 30,
            "sasl": {"mechanism": "GSSAPI"} | sasl,
        },
        "group": {"id": "g", "topics": {"t": 1}},
        "handler": {"name": "null"},
    }
    section = parse(document, "test.toml", environment=False).zookeeper
    return build_session(section, clock=SystemClock(), rng=random.Random(1))


@pytest.mark.usefixtures("kerberos_java")
async def test_authenticates_with_a_ticket(zookeeper_factory: Any, kdc: KeyDistributionCentre, tmp_path: Path) -> None:
    server = await start_server(zookeeper_factory, kdc, tmp_path)
    keys = kdc.keytab("alice")
    async with session_of(server, keytab=str(keys)) as alice:
        await alice.create("/mine", b"1")
    async with Session(f"{server.connect}/kafka", clock=SystemClock(), rng=random.Random(1)) as stranger:
        assert (await stranger.get("/mine"))[0] == b"1"
        with pytest.raises(NoAuth):
            await stranger.set("/mine", b"2")
    with pytest.raises(AuthFailed, match=r"GSSAPI: there is no ticket for somebody@127\.0\.0\.1"):
        await session_of(server, keytab=str(keys), service="somebody").start()
