"""The daemon over HTTP: probes that tell a hung handler from a dead process, and metrics of what it really does."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from consumerd.base.errors import ExitCode
from consumerd.base.metrics.catalogue import MEMBER_METRICS
from consumerd.base.partition import TopicPartition
from consumerd.demo.processes import DaemonProcess

pytestmark = [pytest.mark.zookeeper]

TP = TopicPartition("t", 0, 0)
LOOPBACK = {"listen": "127.0.0.1:0", "metrics": True}


class Client:
    """Asks daemons over HTTP."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    def url(self, daemon: DaemonProcess) -> str:
        return str([event["url"] for event in daemon.events() if event["event"] == "http_listening"][-1])

    async def get(self, daemon: DaemonProcess, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
        async with self._session.get(self.url(daemon) + path.removeprefix("/"), headers=headers) as response:
            return response.status, await response.text()

    async def post(
        self, daemon: DaemonProcess, path: str, form: Mapping[str, str], headers: Mapping[str, str]
    ) -> tuple[int, str]:
        url = self.url(daemon) + path.removeprefix("/")
        async with self._session.post(url, data=form, headers=headers, allow_redirects=False) as response:
            return response.status, await response.text()

    async def metrics(self, daemon: DaemonProcess) -> dict[tuple[str, tuple[str, ...]], float]:
        """Each sample by its name and the values of its labels, sorted by their names."""
        status, text = await self.get(daemon, "/metrics")
        assert status == 200
        return {
            (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


@pytest_asyncio.fixture
async def client() -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as session:
        yield Client(session)


async def test_hung_handler_is_not_ready_but_alive(world: Any, client: Client) -> None:
    await world.broker()
    await world.append(TP, b"one")
    daemon = await world.daemon(handler={"name": "bad_handlers:Stalled"}, health={**LOOPBACK, "hung_after": 3.0})

    async def is_hung() -> bool:
        return bool(await client.get(daemon, "/readyz") == (503, "handler_hung\n"))

    await world.until(is_hung)
    samples = await client.metrics(daemon)
    assert samples["consumerd_handlers_hung", ("g",)] == 1
    assert samples["consumerd_handler_busy_seconds", ("g",)] >= 3.0
    assert samples["consumerd_session_up", ("g",)] == 1
    assert samples["consumerd_member_ready", ("g",)] == 0
    assert await client.get(daemon, "/healthz") == (200, "ok\n")
    await daemon.wait_for_event("handler_hung", 60)
    (hung,) = (event for event in daemon.events() if event["event"] == "handler_hung")
    assert (hung["level"], hung["partitions"]) == ("warning", ["t/0-0"])
    errors = json.loads((await client.get(daemon, "/status.json"))[1])["errors"]
    assert "handler_hung" in [error["event"] for error in errors]
    assert await world.zk.children("/consumers/g/ids") == [daemon.consumer_id]
    assert await world.zk.children("/consumers/g/owners/t") == ["0-0"]


async def test_metrics_report_handled_messages_and_lag(world: Any, client: Client) -> None:
    await world.broker()
    end = await world.append(TP, b"one", b"two", b"three")
    daemon = await world.daemon(health=LOOPBACK, metrics={"lag_interval": 0.1}, commit={"interval": 0.1})
    await world.until_printed(daemon, "one", "two", "three")
    await world.until(lambda: world.offset(TP))

    async def knows_lag() -> bool:
        samples = await client.metrics(daemon)
        return ("consumerd_lag_bytes", ("0", "g", "0", "t")) in samples and samples[
            "consumerd_commits_total", ("g",)
        ] > 0

    await world.until(knows_lag)
    samples = await client.metrics(daemon)
    here = ("0", "g", "0", "t")
    assert samples["consumerd_messages_handled_total", here] == 3
    assert samples["consumerd_bytes_handled_total", here] == end
    assert samples["consumerd_position_offset", here] == end
    assert samples["consumerd_committed_offset", here] == end
    assert samples["consumerd_lag_bytes", here] == 0
    assert samples["consumerd_lag_seconds", here] == 0
    assert samples["consumerd_handler_duration_seconds_count", ("g", "t")] >= 1
    assert samples["consumerd_batch_messages_sum", ("g", "t")] == 3
    assert samples["consumerd_messages_fetched_total", ("g",)] == 3
    assert samples["consumerd_owned_partitions", ("g",)] == samples["consumerd_assigned_partitions", ("g",)] == 1
    assert (
        samples["consumerd_rebalances_total", ("g",)] == samples["consumerd_rebalance_duration_seconds_count", ("g",)]
    )
    assert samples["consumerd_member_ready", ("g",)] == 1
    assert not [name for name, _ in samples if name == "consumerd_lag"]
    assert await client.get(daemon, "/readyz") == (200, "ok\n")
    declared = {metric.name for metric in MEMBER_METRICS}
    _, text = await client.get(daemon, "/metrics")
    families = {family.name for family in text_string_to_metric_families(text) if family.name.startswith("consumerd_")}
    assert {name if name in declared else f"{name}_total" for name in families} <= declared


async def test_counts_failures_retries_and_dead_letters(world: Any, client: Client) -> None:
    await world.broker()
    await world.append(TP, b"one", b"bad", b"three")
    daemon = await world.daemon(
        handler={
            "name": "bad_handlers:Failing",
            "options": {"text": "bad"},
            "max_attempts": 3,
            "initial_backoff": 0.01,
            "on_failure": "dead_letter",
            "dead_letter": str(world.directory / "letters.ndjson"),
        },
        health=LOOPBACK,
    )

    async def handled() -> bool:
        samples = await client.metrics(daemon)
        return samples.get(("consumerd_messages_handled_total", ("0", "g", "0", "t"))) == 3

    await world.until(handled)
    samples = await client.metrics(daemon)
    assert samples["consumerd_handler_failures_total", ("g", "t")] == 3
    assert samples["consumerd_handler_retries_total", ("g", "t")] == 2
    assert samples["consumerd_messages_dead_lettered_total", ("g", "t")] == 1
    assert samples["consumerd_messages_skipped_total", ("g", "t")] == 0


async def test_serves_metrics_only_if_enabled(world: Any, client: Client) -> None:
    await world.broker()
    await world.append(TP, b"one")
    daemon = await world.daemon(health={"listen": "127.0.0.1:0"})
    assert (await client.get(daemon, "/metrics"))[0] == 404


async def test_logs_a_summary_in_one_line(world: Any) -> None:
    await world.broker()
    await world.append(TP, b"one", b"two")
    daemon = await world.daemon(metrics={"summary_interval": 0.2})
    await world.until_printed(daemon, "one", "two")

    def summed() -> int:
        return sum(event["messages"] for event in daemon.events() if event["event"] == "summary")

    await world.until(lambda: summed() == 2)
    last = [event for event in daemon.events() if event["event"] == "summary"][-1]
    assert last["group"] == "g"
    assert last["partitions"] == 1
    assert last["lag_bytes"] == 0
    assert last["ready"] is True


async def test_reports_an_address_in_use(world: Any) -> None:
    await world.broker()
    first = await world.daemon(health={"listen": "127.0.0.1:0"}, group={"topics": {"t": 1}})
    url = [event["url"] for event in first.events() if event["event"] == "http_listening"][-1]
    address = url.removeprefix("http://").rstrip("/")
    outcome = await world.run(health={"listen": address})
    assert outcome.code == ExitCode.CONFIG
    assert f"health.listen: cannot listen on {address}" in outcome.sentences[-1]


async def test_the_log_names_the_codec_and_why_a_native_one_is_refused(
    world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("CONSUMERD_PURE", raising=False)
    (tmp_path / "consumerd_native.py").write_text("INTERFACE, __version__ = 0, '0.0.1'\n")
    await world.broker()
    daemon = await world.daemon()
    (codec,) = (event["codec"] for event in daemon.events() if event["event"] == "starting")
    assert codec == "pure codec, because consumerd-native 0.0.1 is for another version of consumerd"


# -- the status


async def test_status_shows_owners_and_recent_errors(world: Any, client: Client) -> None:
    await world.broker(partitions=2)
    for number in range(2):
        await world.append(TopicPartition("t", 0, number), b"one", b"bad")
    handler = {
        "name": "bad_handlers:Failing",
        "options": {"text": "bad"},
        "max_attempts": 2,
        "initial_backoff": 0.01,
        "on_failure": "skip",
    }
    first = await world.daemon("first", health=LOOPBACK, handler=handler, metrics={"lag_interval": 0.1})
    second = await world.daemon("second", handler=handler)

    async def shared() -> bool:
        status = json.loads((await client.get(first, "/status.json"))[1])
        counts = [member["partitions"] for member in status["members"]["live"] or ()]
        return counts == [1, 1] and len(status["partitions"]) == 1 and status["partitions"][0]["lag"] == 0

    await world.until(shared)
    _, text = await client.get(first, "/status.json")
    status = json.loads(text)
    assert status["group"] == "g"
    assert status["ready"] is status["alive"] is True
    assert {member["id"]: member["this"] for member in status["members"]["live"]} == {
        first.consumer_id: True,
        second.consumer_id: False,
    }
    assert status["members"]["unowned"] == []
    (row,) = status["partitions"]
    assert (row["state"], row["lag_unit"]) == ("consuming", "bytes")
    assert status["totals"]["messages"] == 4
    assert status["totals"]["skipped"] == 2
    assert {error["event"] for error in status["errors"]} >= {"handler_failed", "messages_skipped"}
    assert [len(each["lost"]) for each in status["rebalances"]] == [1, 0]
    page = (await client.get(first, "/"))[1]
    assert first.consumer_id in page
    assert second.consumer_id in page
    assert "messages_skipped" in page
    assert 'method="post"' not in page  # no client is authorised for changes without a token


async def test_status_shows_no_secrets(world: Any, client: Client) -> None:
    await world.broker()
    await world.append(TP, b"one")
    secrets = ("hush-hush-token-0", "hush-hush-zk", "hush-hush-dsn", "hush-hush-url")
    token, credential, dsn, url = secrets
    daemon = await world.daemon(
        zookeeper={"auth": [f"digest:user:{credential}"]},
        handler={
            "name": "bad_handlers:Failing",
            "options": {"text": "one"},
            "on_failure": "skip",
            "max_attempts": 1,
        },
        group={"consumer_id": "a", "topics": {"t": 1}},
        health={**LOOPBACK, "token": token},
        spark={"config": {"password": dsn, "url": f"s3://user:{url}@host"}},
    )
    assert (await client.get(daemon, "/status.json"))[0] == 401
    assert (await client.get(daemon, "/"))[0] == 401
    assert (await client.get(daemon, "/healthz"))[0] == 200
    headers = {"Authorization": f"Bearer {token}"}

    async def skipped() -> bool:
        return "messages_skipped" in (await client.get(daemon, "/status.json", headers))[1]

    await world.until(skipped)
    for path in ("/status.json", "/", "/metrics"):
        status, text = await client.get(daemon, path, headers)
        assert status == 200
        assert not [secret for secret in secrets if secret in text]


async def test_token_allows_pausing_and_resuming_a_partition(world: Any, client: Client) -> None:
    await world.broker()
    await world.append(TP, b"one")
    token = "0123456789abcdef"
    daemon = await world.daemon(health={**LOOPBACK, "token": token})
    await world.until_printed(daemon, "one")
    headers = {"Authorization": f"Bearer {token}"}
    page = (await client.get(daemon, "/", headers))[1]
    word = re.findall(r'name="word" value="(\w+)"', page)[0]
    form = {"word": word, "partition": "t/0-0"}
    assert (await client.post(daemon, "/pause", form, {}))[0] == 401
    assert (await client.post(daemon, "/pause", {**form, "word": "x"}, headers))[0] == 403
    assert (await client.post(daemon, "/pause", {**form, "partition": "t/0-7"}, headers))[0] == 409
    assert (await client.post(daemon, "/pause", {**form, "partition": "nonsense"}, headers))[0] == 409
    assert (await client.post(daemon, "/pause", form, headers))[0] == 303
    samples = await client.metrics(daemon)
    assert samples["consumerd_paused_partitions", ("g",)] == 1
    assert 'action="/resume"' in (await client.get(daemon, "/", headers))[1]
    await world.append(TP, b"two")
    assert (await client.post(daemon, "/resume", form, headers))[0] == 303
    await world.until_printed(daemon, "one", "two")
    assert {event["event"] for event in daemon.events()} >= {"partition_paused", "partition_resumed"}


async def test_rejects_an_unprotected_public_status_at_the_start(world: Any) -> None:
    outcome = await world.run(health={"listen": "0.0.0.0:0", "status": True})
    assert outcome.code == ExitCode.CONFIG
    assert "would show the status to everybody" in outcome.sentences[-1]
    checked = await world.run(command="check", health={"listen": "0.0.0.0:0", "status": True})
    assert checked.code == outcome.code
    assert checked.sentences[-1].endswith(outcome.sentences[-1].removeprefix("consumerd:"))  # after file and line


async def test_public_address_serves_probes_without_status(world: Any, client: Client) -> None:
    await world.broker()
    await world.append(TP, b"one")
    daemon = await world.daemon(health={"listen": "0.0.0.0:0"})

    async def is_ready() -> bool:
        return bool(await client.get(daemon, "/readyz") == (200, "ok\n"))

    await world.until(is_ready)
    assert await client.get(daemon, "/healthz") == (200, "ok\n")
    for path in ("/", "/status.json", "/metrics"):
        assert (await client.get(daemon, path))[0] == 404


async def test_answers_probes_while_zookeeper_is_unavailable(world: Any, client: Client) -> None:
    daemon = DaemonProcess(
        world.directory,
        world.config(zookeeper={"connect": "127.0.0.1:1", "connection_timeout": 300.0}, health=LOOPBACK),
    )
    starting = asyncio.create_task(daemon.start(300.0))
    try:
        await world.until(lambda: daemon.started and any(each["event"] == "http_listening" for each in daemon.events()))
        assert await client.get(daemon, "/healthz") == (200, "ok\n")
        assert await client.get(daemon, "/readyz") == (503, "starting\n")
    finally:
        starting.cancel()
        daemon.kill()
        await asyncio.wait([starting])
