"""Probes and metrics of brokers and mirrors as processes, between two clusters in one ZooKeeper server."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from consumerd.base.clock import SystemClock
from consumerd.base.metrics.catalogue import ALL_METRICS, BROKER_METRICS, MEMBER_METRICS, MIRROR_METRICS
from consumerd.demo.processes import BrokerProcess, Process
from consumerd.net.connect import connect
from consumerd.producer import Producer, StaticRouter
from tests.kill.mirrors import MirrorProcess

pytestmark = [pytest.mark.zookeeper]

Samples = dict[tuple[str, tuple[str, ...]], float]


async def get(process: Process, path: str) -> tuple[int, str]:
    (url,) = [event["url"] for event in process.events() if event["event"] == "http_listening"]
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as session, session.get(url + path) as response:
        return response.status, await response.text()


async def scrape(process: Process) -> tuple[Samples, set[str]]:
    """Samples by name and values of labels in the order of their names; and the names of our families."""
    status, text = await get(process, "metrics")
    assert status == 200
    families = list(text_string_to_metric_families(text))
    samples = {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }
    counters = {metric.name.removesuffix("_total"): metric.name for metric in ALL_METRICS}
    names = {family.name for family in families if family.name.startswith("consumerd_")}
    return samples, {counters.get(name, name) for name in names}


async def test_brokers_and_mirrors_serve_probes_and_metrics(tmp_path: Path, zk_root: str) -> None:
    listen: dict[str, str | int] = {"health.listen": "127.0.0.1:0", "health.metrics": "true", "log.flush.interval": 1}
    source = BrokerProcess(tmp_path / "s", f"{zk_root}/source", partitions=2, settings=listen)
    target = BrokerProcess(tmp_path / "t", f"{zk_root}/target", partitions=2, settings=listen)
    mirror = MirrorProcess(
        tmp_path, "--from-zookeeper", source.zookeeper or "", "--group", "g", "--topic", "alpha",
        "--to-zookeeper", target.zookeeper or "", "--health-listen", "127.0.0.1:0", "--metrics",
    )  # fmt: skip
    async with AsyncExitStack() as stack:
        for broker in (source, target):
            await stack.enter_async_context(broker)
        rng = random.Random(1)
        router = StaticRouter([("127.0.0.1", source.port)], rng=rng)
        async with Producer(router, connect=connect, clock=SystemClock(), rng=rng) as producer:
            await producer.send("alpha", [b"m-%d" % number for number in range(50)], partition=1)
        await stack.enter_async_context(mirror)
        async with asyncio.timeout(60):
            while True:
                found, names = await scrape(mirror)
                if found["consumerd_mirror_messages_confirmed_total", ("g", "alpha")] == 50:
                    break
                await asyncio.sleep(0.05)
        assert found["consumerd_mirror_messages_sent_total", ("g", "alpha")] == 50
        assert found["consumerd_handler_retries_total", ("g", "alpha")] == 0
        assert found["consumerd_mirror_reverse_mirrors", ("g",)] == 0
        assert ("consumerd_owned_partitions", ("g",)) in found
        assert found["consumerd_tasks", ()] > 5
        assert names <= {metric.name for metric in (*MEMBER_METRICS, *MIRROR_METRICS)}

        sent, names = await scrape(source)
        assert sent["consumerd_broker_messages_produced_total", ("0", "1", "alpha")] == 50
        assert sent["consumerd_broker_requests_total", ("0", "produce")] == 1
        assert sent["consumerd_broker_requests_total", ("0", "fetch")] >= 1
        assert sent["consumerd_broker_registered", ("0",)] == sent["consumerd_broker_ready", ("0",)] == 1
        assert sent["consumerd_broker_flush_duration_seconds_count", ("0",)] >= 1
        got, _ = await scrape(target)
        name = "consumerd_broker_log_bytes"
        assert got[name, ("0", "1", "alpha")] == sent[name, ("0", "1", "alpha")] > 0
        declared = {metric.name for metric in MEMBER_METRICS if "group" not in metric.labels}
        assert names <= declared | {metric.name for metric in BROKER_METRICS}
        for process in (source, target, mirror):
            assert await get(process, "healthz") == (200, "ok\n")
            assert await get(process, "readyz") == (200, "ok\n")


async def test_broker_answers_probes_while_it_waits_for_zookeeper(tmp_path: Path) -> None:
    broker = BrokerProcess(
        tmp_path,
        "127.0.0.1:1",
        settings={"health.listen": "127.0.0.1:0", "zk.connectiontimeout.ms": 300_000},
    )
    starting = asyncio.create_task(broker.start(300.0))
    try:
        async with asyncio.timeout(60):
            while not (broker.started and any(event["event"] == "http_listening" for event in broker.events())):
                await asyncio.sleep(0.05)
        assert await get(broker, "healthz") == (200, "ok\n")
        assert await get(broker, "readyz") == (503, "starting\n")
        assert (await get(broker, "metrics"))[0] == 404
    finally:
        starting.cancel()
        broker.kill()
        await asyncio.wait([starting])
