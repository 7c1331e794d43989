"""A daemon with every secret of the configuration, logging all it can: none of them comes out."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from consumerd.base.errors import ExitCode
from consumerd.base.partition import TopicPartition
from consumerd.demo.processes import format_toml
from tests.unit.service.config.test_secrets import MARKER, document

pytestmark = [pytest.mark.zookeeper]

TP = TopicPartition("t", 0, 0)


HANDLER = """
from consumerd.handlers import Secret


class Sink:
    def __init__(self, dsn: Secret[str]):
        self.dsn = dsn

    async def handle(self, batch):
        print("in hand", flush=True)
        if any(payload == b"poison" for payload in batch):
            raise ValueError("cannot digest that")
"""


async def test_logs_at_debug_level_have_no_secret(world: Any) -> None:
    """Also not those of a reload that changes all of them, of a failure, and of the stacks at SIGUSR1."""
    (world.directory / "modules" / "secret_handler.py").write_text(HANDLER)
    tables = document()
    del tables["zookeeper"]["tls"], tables["zookeeper"]["sasl"]  # the server of the tests has neither
    tables["health"]["listen"] = "127.0.0.1:0"
    del tables["health"]["tls"]  # there are no such files
    tables["handler"] = {"name": "secret_handler:Sink", "options": {"dsn": MARKER}, "max_attempts": 1}
    tables["log"] = {"level": "debug"}
    tables["group"] = {"id": "g", "topics": {"t": 1}}
    await world.broker()
    await world.append(TP, b"one")
    daemon = await world.daemon(**tables)
    await world.until(lambda: "in hand" in daemon.stdout_path.read_text())
    changed = world.config(**tables)
    text = format_toml({**changed, "log": {"level": "debug", "format": "json"}})
    daemon.config_path.write_text(text.replace(MARKER, f"{MARKER}-2"), "utf-8")
    daemon.child.signal(signal.SIGHUP)
    refused = await daemon.wait_for_event("configuration_keys_refused", 60)
    assert {"zookeeper.auth", "kafka.sasl", "health.token"} <= {*refused["keys"]}
    await daemon.wait_for_event("configuration_reloaded", 60)
    daemon.config_path.write_text(f'{text}[unknown]\nkey = "{MARKER}"\n', "utf-8")
    daemon.child.signal(signal.SIGHUP)
    await daemon.wait_for_event("configuration_rejected", 60)
    daemon.child.signal(signal.SIGUSR1)
    await daemon.wait_for_event("task_stack", 60)
    await world.append(TP, b"poison")
    assert await daemon.wait(60) == ExitCode.HANDLER_FAILED
    assert "cannot digest that" in daemon.child.output()
    assert MARKER not in daemon.child.output() + daemon.stdout_path.read_text()
