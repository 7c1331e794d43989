"""The context of a handler in a real member: it commits, pauses, resumes, logs and counts."""

from __future__ import annotations

from typing import Any

import aiohttp
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from consumerd.base.partition import TopicPartition

pytestmark = [pytest.mark.zookeeper]

TP = TopicPartition("t", 0, 0)


async def test_handler_commits_pauses_and_counts(world: Any) -> None:
    await world.broker()
    committed = await world.append(TP, b"one")
    end = await world.append(TP, b"commit", b"pause", b"two", b"three")
    daemon = await world.daemon(
        handler={"name": "bad_handlers:Steering", "max_batch": 1, "max_attempts": 7},
        commit={"interval": 600.0},
        health={"listen": "127.0.0.1:0", "metrics": True},
    )

    def events(name: str) -> list[dict[str, Any]]:
        return [event for event in daemon.events() if event["event"] == name]

    order = ["one", "commit", "pause", "resumed", "two", "three"]
    await world.until(lambda: daemon.stdout_path.read_text().split() == order)
    opened, asked, paused = (events(name)[0] for name in ("handler_opened", "handler_committed", "handler_paused"))
    assert (opened["handler"], opened["group"], opened["attempts"]) == ("bad_handlers:Steering", "g", 7)
    assert opened["consumer"] == daemon.consumer_id
    assert asked["offset"] == committed  # the current batch is not handled yet
    assert await world.offset(TP) == committed
    assert paused["partitions"] == ["t/0-0"]
    url = events("http_listening")[-1]["url"]
    async with aiohttp.ClientSession() as session, session.get(f"{url}metrics") as response:
        samples = {
            (sample.name, sample.labels.get("topic"), sample.labels.get("le")): sample.value
            for family in text_string_to_metric_families(await response.text())
            for sample in family.samples
        }
    name = "consumerd_handler_bad_handlers_steering"
    assert samples[f"{name}_seen_total", "t", None] == 5
    assert samples[f"{name}_size_bytes_bucket", None, "10.0"] == 5
    daemon.terminate()
    assert await daemon.wait(60.0) == 0
    assert await world.offset(TP) == end


def runs(pid: int) -> bool:
    try:
        return "zombie" not in psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return False


async def test_killed_worker_is_replaced_and_none_outlives_the_daemon(world: Any) -> None:
    await world.broker()
    await world.append(TP, b"one", b"forever")
    daemon = await world.daemon(handler={"name": "bad_handlers:Computing", "processes": 1, "max_batch": 1})

    def lines() -> list[list[str]]:
        return [line.split() for line in daemon.stdout_path.read_text().splitlines()]

    await world.until(lambda: len(lines()) == 2)
    (first, one), (again, forever) = lines()
    assert (one, forever, again) == ("one", "forever", first)
    psutil.Process(int(first)).kill()
    await world.until(lambda: len(lines()) == 3)
    second, what = lines()[-1]
    assert what == "forever"
    assert second != first
    failures = [event["reason"] for event in daemon.events() if event["event"] == "handler_failed"]
    assert failures == ["WorkerDiedError: the worker process died, perhaps because it ran out of memory"]
    psutil.Process(daemon.pid).kill()
    await world.until(lambda: not runs(int(second)))
