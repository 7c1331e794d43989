"""SIGHUP to a daemon at work: what can change changes, the rest is refused by name, and no message notices."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from typing import Any

import pytest

from consumerd.base.errors import ExitCode
from consumerd.base.partition import TopicPartition
from consumerd.demo.processes import format_toml

from .test_daemon_service import managed

pytestmark = [pytest.mark.zookeeper]

T0, T1, U0 = TopicPartition("t", 0, 0), TopicPartition("t", 0, 1), TopicPartition("u", 0, 0)

HANDLERS = """
import json


class Recording:
    def __init__(self, name, fails=False):
        self.name = name
        self.fails = fails

    async def start(self, context):
        if self.fails:
            raise RuntimeError("no database")

    async def handle(self, batch):
        for message in batch.messages():
            line = [self.name, str(batch.partition), message.offset, message.index, message.payload.decode()]
            print(json.dumps(line), flush=True)
"""


def recording(name: str, **options: Any) -> dict[str, Any]:
    return {"name": "reload_handlers:Recording", "options": {"name": name, **options}}


class Reloaded:
    """A daemon whose configuration changes under it."""

    def __init__(self, world: Any, daemon: Any) -> None:
        self._world = world
        self.daemon = daemon
        self._reloads = 0

    def rewrite(self, **tables: Any) -> None:
        self.daemon.config_path.write_text(format_toml(self._world.config(**tables)), "utf-8")

    def events(self, *names: str) -> list[dict[str, Any]]:
        return [event for event in self.daemon.events() if event["event"] in names]

    async def reload(self) -> dict[str, Any]:
        """Send SIGHUP, and return the event of its end."""
        names = ("configuration_reloaded", "configuration_rejected")
        before = len(self.events(*names))
        self.daemon.child.signal(signal.SIGHUP)
        await self._world.until(lambda: len(self.events(*names)) > before)
        return self.events(*names)[-1]

    def handled(self) -> list[list[Any]]:
        whole, _, _ = self.daemon.stdout_path.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]


@pytest.fixture
def start(world: Any) -> Any:
    (world.directory / "modules" / "reload_handlers.py").write_text(HANDLERS)

    async def make(**tables: Any) -> Reloaded:
        return Reloaded(world, await world.daemon(**tables))

    return make


async def test_reloads_handler_and_topics_while_messages_flow_without_loss_or_repetition(
    world: Any, start: Any
) -> None:
    await world.broker(partitions=2)
    for partition in (T0, T1, U0):
        await world.append(partition, b"first")
    sent = Counter({("t", b"first"): 2, ("u", b"first"): 1})
    stop = asyncio.Event()

    async def produce() -> None:
        number = 0
        while not stop.is_set():
            for partition in (T0, T1, U0):
                payload = b"%s-%d" % (str(partition).encode(), number)
                await world.append(partition, payload)
                sent[partition.topic, payload] += 1
            number += 1

    handler = recording("one")
    daemon = await start(handler=handler, commit={"interval": 0.1})
    async with asyncio.TaskGroup() as group:
        group.create_task(produce())

        async def until_by(name: str, topic: str, count: int) -> None:
            def seen() -> bool:
                lines = [line for line in daemon.handled() if line[0] == name and line[1].startswith(f"{topic}/")]
                return len(lines) >= count

            await world.until(seen)

        await until_by("one", "t", 10)
        daemon.rewrite(handler=recording("two"), group={"topics": {"t": 1, "u": 1}}, commit={"interval": 0.1})
        assert (await daemon.reload())["keys"] == ["group.topics", "handler.options"]
        await until_by("two", "t", 10)
        await until_by("two", "u", 10)
        daemon.rewrite(handler=recording("three"), group={"topics": {"u": 1}}, commit={"interval": 0.2})
        assert "commit.interval" in (await daemon.reload())["keys"]
        await until_by("three", "u", 10)
        await world.until(lambda: _released(world))
        daemon.rewrite(handler=recording("three"), group={"topics": {"t": 1, "u": 1}}, commit={"interval": 0.2})
        assert (await daemon.reload())["keys"] == ["group.topics"]
        stop.set()
    await world.until(lambda: len(daemon.handled()) >= sent.total())
    assert await daemon.daemon.stop() == ExitCode.OK
    handled = daemon.handled()
    identities = Counter((partition, offset, index) for _, partition, offset, index, _ in handled)
    assert set(identities.values()) == {1}
    assert Counter((line[1].split("/")[0], line[4].encode()) for line in handled) == sent
    # Each message went to one handler, and each partition's messages in order.
    for partition in (T0, T1, U0):
        lines = [line for line in handled if line[1] == str(partition)]
        assert [line[2] for line in lines] == sorted(line[2] for line in lines)


async def _released(world: Any) -> bool:
    return not await world.zk.children("/consumers/g/owners/t")


async def test_invalid_file_names_each_problem_and_changes_nothing(world: Any, start: Any) -> None:
    await world.broker()
    await world.append(T0, b"a")
    daemon = await start(handler=recording("one"))
    daemon.daemon.config_path.write_text('[group]\nid = "g"\ntopisc = { t = 1 }\n\n[fetch]\nsize = -1\n')
    rejected = await daemon.reload()
    path = daemon.daemon.config_path
    assert rejected["level"] == "error"
    assert [problem.split(": ")[0] for problem in rejected["problems"]] == [f"{path}:3", f"{path}:6"]
    assert "did you mean 'topics'?" in rejected["problems"][0]
    for text in ("not TOML at all", None):
        path.unlink() if text is None else path.write_text(text)
        assert len((await daemon.reload())["problems"]) == 1
    daemon.rewrite(handler={"name": "reload_handlers:Missing"})
    assert "has no attribute 'Missing'" in (await daemon.reload())["problems"][0]
    await world.append(T0, b"b")
    await world.until(lambda: [line[4] for line in daemon.handled()] == ["a", "b"])
    assert await daemon.daemon.stop() == ExitCode.OK


async def test_keys_that_need_a_restart_are_named_and_the_others_apply(world: Any, start: Any) -> None:
    await world.broker()
    await world.append(T0, b"a")
    daemon = await start(handler=recording("one"))
    daemon.rewrite(
        handler=recording("one"),
        fetch={"size": 1000, "idle_backoff": 0.05},
        zookeeper={"connection_timeout": 31.0},
        log={"level": "warning", "format": "json"},
        metrics={"summary_interval": 1.5},
    )
    daemon.daemon.child.signal(signal.SIGHUP)
    refused = await daemon.daemon.wait_for_event("configuration_keys_refused", 60)
    assert refused["keys"] == ["zookeeper.connection_timeout", "fetch.size"]
    assert refused["reason"] == "restart to apply: zookeeper.connection_timeout, fetch.size"
    assert refused["level"] == "warning"
    daemon.rewrite(handler=recording("one"), log={"level": "info", "format": "json"})
    assert "log.level" in (await daemon.reload())["keys"]


async def test_rate_and_commit_interval_change_at_once_and_with_the_same_handler(world: Any, start: Any) -> None:
    await world.broker()
    for payload in (b"a", b"b"):
        await world.append(T0, payload)
    end = await world.append(T0, b"c")
    daemon = await start(handler=recording("one") | {"max_rate": 0.001}, commit={"interval": 3600})
    await world.until(daemon.handled)
    daemon.rewrite(handler=recording("one") | {"max_rate": 1000.0}, commit={"interval": 0.1})
    assert (await daemon.reload())["keys"] == ["commit.interval", "handler.max_rate"]
    await world.until(lambda: [line[4] for line in daemon.handled()] == ["a", "b", "c"])

    async def committed() -> bool:
        return bool(await world.offset(T0) == end)

    await world.until(committed)
    assert daemon.events("handler_exchanged") == []
    daemon.rewrite(handler=recording("one") | {"max_rate": 0.001})
    await daemon.reload()
    for payload in (b"d", b"e"):
        await world.append(T0, payload)
    assert await daemon.daemon.stop() == ExitCode.OK  # without a wait for the rate
    assert len(daemon.handled()) <= 4


async def test_former_handler_goes_on_where_the_new_one_does_not_start(world: Any, start: Any) -> None:
    await world.broker()
    await world.append(T0, b"a")
    daemon = await start(handler=recording("one"))
    await world.until(daemon.handled)
    broken = {**recording("two", fails=True), "max_attempts": 1}
    daemon.rewrite(handler=broken)
    rejected = await daemon.reload()
    assert "no database" in rejected["problems"][0]
    await world.append(T0, b"b")
    await world.until(lambda: [line[:1] + line[4:] for line in daemon.handled()] == [["one", "a"], ["one", "b"]])
    daemon.rewrite(handler=recording("two"))
    assert (await daemon.reload())["keys"] == ["handler.options"]
    await world.append(T0, b"c")
    await world.until(lambda: daemon.handled()[-1][:1] + daemon.handled()[-1][4:] == ["two", "c"])


async def test_notifies_the_service_manager_of_a_reload(world: Any) -> None:
    await world.broker()
    await world.append(T0, b"a")
    async with managed(world) as (manager, process, path):
        assert await manager.told() == ["READY=1", "STATUS=member of the group"]
        process.send_signal(signal.SIGHUP)
        reloading, since, _ = await manager.told()
        assert reloading == "RELOADING=1"
        name, _, microseconds = since.partition("=")
        assert (name, int(microseconds) > 0) == ("MONOTONIC_USEC", True)
        assert await manager.told() == ["READY=1", "STATUS=member of the group"]
        path.write_text("not TOML at all")
        process.send_signal(signal.SIGHUP)
        assert (await manager.told())[0] == "RELOADING=1"
        rejected = "STATUS=member of the group; the configuration was rejected: see the log"
        assert await manager.told() == ["READY=1", rejected]
        process.send_signal(signal.SIGTERM)
        assert await manager.told() == ["STOPPING=1", "STATUS=draining"]
        assert await asyncio.wait_for(process.wait(), 60) == ExitCode.OK
