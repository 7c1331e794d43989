"""The table "A bad night" of docs/operations.md: each row is played, and says what the table says."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import inspect
import json
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from structlog.testing import capture_logs

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ExitCode
from consumerd.demo.processes import DaemonProcess
from consumerd.handlers import Batch, Handler, RetryPolicy, retrying
from consumerd.service.config.model import parse
from consumerd.service.daemon.health import UNREACHABLE_AFTER
from consumerd.service.daemon.monitor import Monitor
from consumerd.service.daemon.readings import read
from consumerd.testing import MemoryGroup
from consumerd.testing.clock import FakeClock
from tests.faults.hostile_kafka import TOPIC, HostileKafka
from tests.support.secure_gate import Lock, SecureGate

ROOT = Path(__file__).resolve().parents[2]
SECTION = (ROOT / "docs" / "operations.md").read_text().split("## A bad night\n")[1].split("\n## ")[0]
ROWS = {
    cells[0]: cells[1:]
    for line in SECTION.splitlines()
    if line.startswith("| ") and (cells := [cell.strip() for cell in line.strip("|").split("|")])[0] != "trouble"
}


@dataclass
class Seen:
    """What was seen of one trouble. `logged`: events at the level warning or above, or the text of the last line."""

    logged: set[str]
    unready: list[str] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None


class Night:
    """A group with one member, watched as in its daemon, by a clock of the test's."""

    def __init__(self, group: MemoryGroup) -> None:
        self.group = group
        self.clock = FakeClock()
        self.clock.jump(time.monotonic())  # the member's own clock
        tables = {"group": {"id": "group", "topics": {"t": 1}}, "handler": {"name": "null"}}
        self.monitor = Monitor(parse(tables, "test", environment=False), self.clock)

    async def begin(self, handler: Handler) -> Any:
        self.group.topic("t", 1)
        counts = self.monitor.main.handler_counts
        policy = RetryPolicy(initial_backoff=0.001, max_backoff=0.001, max_attempts=10**6)
        wrapped = retrying(handler, policy, clock=SystemClock(), rng=random.Random(1), counts=counts)
        member = await self.group.join("a", wrapped)
        self.monitor.watch(member.consumer)
        await self.group.until(lambda: len(member.consumer.views()) == 1 and member.consumer.brokers() == 1)
        await self.group.until(lambda: not self.monitor.unready)
        await self.look()
        return member

    async def look(self) -> None:
        await self.monitor.main.look_at_lag()
        self.monitor.main.look_after_health()

    def seen(self, logs: list[Any]) -> Seen:
        loud = {line["event"] for line in logs if line["log_level"] in ("warning", "error", "critical")}
        return Seen(loud, self.monitor.unready, {metric.name: value for metric, _, value in read(self.monitor)})


class Working(Handler):
    """`work` is what a batch meets."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self.work = work
        self.called = asyncio.Event()

    async def handle(self, batch: Batch) -> None:
        self.called.set()
        await self.work()


async def nothing() -> None:
    """Handle at once."""


async def no_broker() -> Seen:
    async with MemoryGroup() as group:
        night = Night(group)
        member = await night.begin(Working(nothing))
        with capture_logs() as logs:
            group.zookeeper.remove("/brokers/topics/t/0")
            group.zookeeper.remove("/brokers/ids/0")
            await group.until(lambda: member.consumer.brokers() == 0 and member.consumer.settled)
            await night.look()
            night.clock.jump(UNREACHABLE_AFTER)
            await night.look()
        return night.seen(logs)


async def no_zookeeper(monkeypatch: pytest.MonkeyPatch) -> Seen:
    async with MemoryGroup() as group:
        session = group.zookeeper.session
        monkeypatch.setattr(group.zookeeper, "session", lambda **_: session(session_timeout=1.0))
        night = Night(group)
        member = await night.begin(Working(nothing))
        with capture_logs() as logs:
            group.zookeeper.disconnect(member.zk)
            async with asyncio.timeout(30):
                while not any(line["event"] == "lease_lost" for line in logs):
                    await asyncio.sleep(0.01)
            await night.look()
            seen = night.seen(logs)
        group.zookeeper.reconnect(member.zk)
        return seen


async def handled(work: Callable[[], Awaitable[None]], until: Callable[[Night, list[Any]], bool]) -> Seen:
    async with MemoryGroup() as group:
        night = Night(group)
        handler = Working(work)
        await night.begin(handler)
        with capture_logs() as logs:
            group.produce("t", [b"one"])
            await handler.called.wait()
            async with asyncio.timeout(30):
                while not until(night, logs):
                    await asyncio.sleep(0.01)
                    night.clock.jump(30.0)
                    night.monitor.main.look_after_health()
            return night.seen(logs)


async def handler_hangs() -> Seen:
    ends = asyncio.Event()

    def hangs(night: Night, logs: list[Any]) -> bool:
        if "handler_hung" in night.monitor.unready:
            ends.set()
        return ends.is_set()

    async def hang() -> None:
        await ends.wait()

    return await handled(hang, hangs)


async def handler_fails() -> Seen:
    async def fail() -> None:
        raise KeyError("id")

    def failed(night: Night, logs: list[Any]) -> bool:
        return any(line["event"] == "handler_failed" and "fail" in line["traceback"] for line in logs)

    return await handled(fail, failed)


async def disk_is_full() -> Seen:
    async def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/var/lib/t")

    return await handled(full, lambda night, logs: "disk_full" in night.monitor.unready)


FROZEN = """
import asyncio
from consumerd.service.daemon.logs import configure_logs
from consumerd.service.daemon.stalls import LoopWatch

async def main():
    configure_logs("info", "json")
    with LoopWatch(0.3):
        print("runs", flush=True)
        await asyncio.to_thread(input)

asyncio.run(main())
"""


async def process_is_frozen() -> Seen:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FROZEN, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert await process.stdout.readline() == b"runs\n"
    process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(1.5)  # that is the trouble
    process.send_signal(signal.SIGCONT)
    line = json.loads(await process.stderr.readline())
    assert line["level"] == "warning"
    await process.communicate(b"\n")
    return Seen({line["event"]})


async def daemon(tmp_path: Path, port: int, kafka: dict[str, Any]) -> Seen:
    """Run a daemon to its end."""
    lines = ["[group]", 'id = "g"', 'coordination = "kafka"', "topics = { t = 1 }", "[handler]", 'name = "null"']
    lines += ["[kafka]", f'bootstrap = ["127.0.0.1:{port}"]', "connection_timeout = 0.5"]
    for table, values in kafka.items():
        lines += [f"[kafka.{table}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    path = tmp_path / "config.toml"
    path.write_text("\n".join(lines))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "consumerd", "run", "-c", str(path), stderr=subprocess.PIPE
    )
    _, said = await asyncio.wait_for(process.communicate(), 60)
    return Seen({said.decode().strip().splitlines()[-1]}, exit_code=process.returncode)


async def password_is_refused(tmp_path: Path) -> Seen:
    lock = Lock(tmp_path)
    tables = lock.client_tables()
    lock.password = "another"
    return await daemon_at(tmp_path, lock, tables)


async def certificate_has_expired(tmp_path: Path) -> Seen:
    lock = Lock(tmp_path)
    lock.expire()
    return await daemon_at(tmp_path, lock, lock.client_tables())


async def daemon_at(tmp_path: Path, lock: Lock, tables: dict[str, Any]) -> Seen:
    async with HostileKafka(random.Random(1)) as broker, SecureGate(lock, "127.0.0.1", broker.port) as gate:
        return await daemon(tmp_path, gate.port, tables)


TROUBLE: dict[str, Any] = {
    "no broker is left": no_broker,
    "ZooKeeper does not answer": no_zookeeper,
    "a handler hangs": handler_hangs,
    "a handler fails": handler_fails,
    "the disk of the handler is full": disk_is_full,
    "the process was frozen": process_is_frozen,
    "the brokers refuse the password": password_is_refused,
    "the brokers' certificate has expired": certificate_has_expired,
}


async def test_every_trouble_of_the_table_is_played() -> None:
    assert set(ROWS) == set(TROUBLE)


@pytest.mark.parametrize("trouble", TROUBLE)
async def test_trouble_says_what_the_table_says(trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play = TROUBLE[trouble]
    offered = {"tmp_path": tmp_path, "monkeypatch": monkeypatch}
    seen: Seen = await play(**{name: offered[name] for name in inspect.signature(play).parameters})
    log, unready, metrics, alerts, process = ROWS[trouble]
    told = re.findall("`(.+?)`", log)
    assert told
    if seen.exit_code is None:
        assert set(told) <= seen.logged
        assert seen.unready == re.findall("`(.+?)`", unready)
        assert "exits" not in process
    else:
        (line,) = seen.logged
        assert all(text in line for text in told)
        assert f"exits with {seen.exit_code} " in process
    for name, is_above, value in re.findall(r"`(\w+)` is (above )?(\d+|absent)", metrics):
        if value == "absent":
            assert name not in seen.metrics
        else:
            assert seen.metrics[name] > int(value) if is_above else seen.metrics[name] == int(value)
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "consumerd-alerts.yaml").read_text())
    expressions = {rule["alert"]: rule["expr"] for group in rules["groups"] for rule in group["rules"]}
    names = re.findall(r"`(\w+)` is", metrics)
    for alert in re.findall("`(.+?)`", alerts):
        assert alert in expressions
        assert not names or any(name in expressions[alert] for name in names)


class Secured:
    """A broker that has a password and a certificate, and the configuration of a daemon that consumes from it."""

    def __init__(self, folder: Path, broker: HostileKafka, lock: Lock, gate: SecureGate) -> None:
        self.broker = broker
        self.lock = lock
        self.gate = gate
        broker.port = gate.port
        tables = {
            "group": {"id": "g", "coordination": "kafka", "topics": {TOPIC: 1}, "heartbeat_interval": 0.2},
            "kafka": {"bootstrap": [f"127.0.0.1:{gate.port}"], **lock.client_tables()},
            "commit": {"interval": 0.1},
            "handler": {"name": "null"},
        }
        self.daemon = DaemonProcess(folder, tables)

    async def handled(self, message: bytes) -> None:
        """Send a message; return when it was committed."""
        log = self.broker.log[0]
        log.append(message)
        async with asyncio.timeout(60):
            while self.broker.committed.get(0) != len(log):
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def secured(folder: Path) -> AsyncIterator[Secured]:
    async with HostileKafka(random.Random(1)) as broker:
        lock = Lock(folder)
        async with SecureGate(lock, "127.0.0.1", broker.port) as gate:
            scene = Secured(folder, broker, lock, gate)
            async with scene.daemon:
                await scene.handled(b"before")
                yield scene


async def test_certificate_that_expires_while_a_member_runs_stops_it_only_until_it_is_renewed(tmp_path: Path) -> None:
    async with secured(tmp_path) as scene:
        scene.lock.expire()
        scene.gate.cut()
        failed = await scene.daemon.wait_for_event("coordinator_unavailable", 60, level="warning")
        assert "certificate has expired" in failed["reason"]
        scene.lock.renew()
        await scene.handled(b"after")
        assert await scene.daemon.stop() == ExitCode.OK


async def test_password_that_is_refused_while_a_member_runs_stops_it_only_until_it_has_the_new_one(
    tmp_path: Path,
) -> None:
    async with secured(tmp_path) as scene:
        scene.lock.password = "second"
        scene.gate.cut()
        failed = await scene.daemon.wait_for_event("coordinator_unavailable", 60, level="warning")
        assert "refuses the authentication" in failed["reason"]
        scene.lock.tell_clients()
        await scene.handled(b"after")
        assert await scene.daemon.stop() == ExitCode.OK
