"""Certificates of clients on a real broker that requires them, which expire and are renewed under a running daemon."""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ExitCode
from consumerd.demo.ports import free_port
from consumerd.demo.processes import DaemonProcess, clean_environment, consumerd_command, format_toml
from consumerd.producer.v08.producer import V08Producer
from tests.interop.secure_brokers import make_certificates, stores_of
from tests.support.kafka import SHORT_SESSION, KafkaBroker

pytestmark = [pytest.mark.interop, pytest.mark.long, pytest.mark.timeout(300)]
#: Seconds for which the first certificate is valid: a daemon starts and consumes in that time on a busy machine, too.
LIFETIME = 25


class ClientFiles:
    """A client's certificate and key in files, which `issue` writes, valid for some time."""

    def __init__(self, folder: Path, authority: trustme.CA) -> None:
        self.files = {"certificate": folder / "client.pem", "key": folder / "client.key"}
        self._authority = authority

    def issue(self, lifetime: timedelta) -> datetime:
        """Returns the end of its time."""
        until = datetime.now(UTC) + lifetime
        issued = self._authority.issue_cert("client", not_after=until)
        issued.cert_chain_pems[0].write_to_path(self.files["certificate"])
        issued.private_key_pem.write_to_path(self.files["key"])
        return until


async def start_broker(kafka: Any, version: str, folder: Path, authority: trustme.CA) -> tuple[KafkaBroker, int]:
    """A broker, and the port of its listener that requires certificates; ours without TLS is for the test."""
    certificates = make_certificates(folder / "tls", authority)
    ports = {"PLAINTEXT": free_port(), "SSL": free_port()}
    listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
    controller = free_port()
    config: dict[str, str | int] = {
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": listeners,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT",
        "ssl.client.auth": "required",
    }
    config |= stores_of(certificates)
    config |= SHORT_SESSION
    return await kafka(version, port=ports["PLAINTEXT"], partitions=1, config=config), ports["SSL"]


@pytest.mark.parametrize("version", ["3.9.1", "4.1.0"])
async def test_daemon_goes_on_with_the_certificate_that_replaced_an_expired_one(
    version: str, kafka: Any, cluster_client: Any, tmp_path: Path
) -> None:
    authority = trustme.CA()
    identity, former = ClientFiles(tmp_path, authority), tmp_path / "former"
    broker, port = await start_broker(kafka, version, tmp_path, authority)
    kafka_section: dict[str, Any] = {"bootstrap": [f"127.0.0.1:{port}"], "connection_timeout": 5}

    def tls(folder: Path) -> dict[str, str]:
        names = {name: str(folder / path.name) for name, path in identity.files.items()}
        return {"ca": str(tmp_path / "tls" / "authority.pem"), **names}

    def tool(*, anonymous: bool = False) -> subprocess.CompletedProcess[str]:
        """A command with the former files, or without any."""
        path = tmp_path / "tool.toml"
        group = {"id": "tools", "coordination": "kafka", "topics": {"events": 1}}
        files = tls(former)
        if anonymous:
            files = {"ca": files["ca"]}
        path.write_text(format_toml({"group": group, "kafka": kafka_section | {"tls": files}}))
        command = consumerd_command("topics", "list", "-c", str(path))
        return subprocess.run(command, capture_output=True, text=True, env=clean_environment(), timeout=60, check=False)

    until = identity.issue(timedelta(seconds=LIFETIME))
    former.mkdir()
    for path in identity.files.values():
        (former / path.name).write_bytes(path.read_bytes())
    config = {
        "group": {"id": "g", "coordination": "kafka", "topics": {"events": 1}, "session_timeout": 6.0},
        "kafka": kafka_section | {"tls": tls(tmp_path)},
        "fetch": {"initial": "earliest"},
        "handler": {"name": "print"},
    }
    async with cluster_client(broker) as client:
        await client.retrying("make the topic", lambda: client.refresh(["events"], create=True))
    async with (
        cluster_client(broker) as client,
        V08Producer(client, clock=SystemClock(), rng=random.Random(1)) as producer,
        DaemonProcess(tmp_path, config) as daemon,
    ):

        async def arrives(payload: str) -> None:
            await producer.send_many("events", [payload.encode()])
            async with asyncio.timeout(90):
                while payload not in printed():  # a process is watched from outside
                    await asyncio.sleep(0.1)

        def printed() -> list[str]:
            whole = daemon.stdout_path.read_text("utf-8").rpartition("\n")[0]
            return [json.loads(line)["payload"] for line in whole.splitlines()]

        def warnings() -> list[str]:
            return [event["event"] for event in daemon.events() if event["level"] != "info"]

        await arrives("with the first")
        assert (await asyncio.to_thread(tool)).returncode == ExitCode.OK
        at_the_start = warnings()
        identity.issue(timedelta(hours=1))
        await asyncio.sleep((until - datetime.now(UTC)).total_seconds() + 1)  # of the broker's time
        await arrives("on the connections of before")
        assert warnings() == at_the_start
        broker.kill()
        await broker.start()
        await arrives("with the second")
        renewed = await daemon.wait_for_event("credentials_renewed", 30)
        assert renewed["what"] == "kafka.tls"
        refused = await asyncio.to_thread(tool)
        assert refused.returncode == ExitCode.BROKER
        # Java's brokers name no better reason. A request that arrives too late makes a reset of the alert.
        sent = (
            f"refused the client's certificate(?: .TLS alert certificate_unknown.)?: kafka.tls.certificate is {former}"
        )
        assert re.search(sent, refused.stderr), refused.stderr
        refused = await asyncio.to_thread(tool, anonymous=True)
        assert refused.returncode == ExitCode.BROKER
        assert re.search(r"refused the client's certificate.*: set kafka\.tls\.certificate", refused.stderr), (
            refused.stderr
        )
        assert await daemon.stop() == ExitCode.OK
    assert list(dict.fromkeys(printed())) == ["with the first", "on the connections of before", "with the second"]
