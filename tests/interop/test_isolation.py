"""Transactions of another project's producer, read by a daemon with `isolation = "read_committed"`."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import ExitCode
from consumerd.base.partition import TopicPartition
from consumerd.demo.processes import DaemonProcess, clean_environment, consumerd_command
from consumerd.member.offsets.kafka_store import KafkaOffsetStore

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]
PLACE = TopicPartition.numbered("events", 0)


def printed(daemon: DaemonProcess) -> list[str]:
    return [json.loads(line)["payload"] for line in daemon.stdout_path.read_text("utf-8").splitlines()]


def lags(daemon: DaemonProcess) -> int | None:
    """The lag that it told last."""
    told = [event.get("lag") for event in daemon.events() if event["event"] == "summary"]
    return told[-1] if told else None


def doctor(address: str, group: str, *options: str) -> list[dict[str, Any]]:
    """What has to be fixed in a group. `options`: more of the command."""
    command = consumerd_command("group", "doctor", "--bootstrap-server", address, "--group", group, "--json", *options)
    done = subprocess.run(command, capture_output=True, env=clean_environment(), timeout=60, check=False)
    findings = [each for each in json.loads(done.stdout)["findings"] if not each["notice"]]
    assert done.returncode == (ExitCode.CHECK_FAILED if findings else ExitCode.OK)
    return findings


def names(kind: str, numbers: Iterable[int]) -> list[str]:
    return [f"{kind}-{number}" for number in numbers]


async def test_skips_aborted_messages(kafka: Any, cluster_client: Any, tmp_path: Path, missing: Any) -> None:
    if importlib.util.find_spec("confluent_kafka") is None:
        missing("confluent-kafka is not installed: see the dependency group `dev`")
    import confluent_kafka

    broker = await kafka("3.9.1", partitions=1)
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.address,
            "transactional.id": "a-test",
            "transaction.timeout.ms": 600_000,
            "linger.ms": 0,
        }
    )

    def write(kind: str, numbers: Iterable[int]) -> None:
        producer.begin_transaction()
        for payload in names(kind, numbers):
            producer.produce("events", payload.encode(), partition=0)
        producer.flush()

    def transactions() -> None:
        producer.init_transactions(120)
        for first in (0, 10):
            write("committed", range(first, first + 10))
            producer.commit_transaction()
            write("aborted", range(first, first + 10))
            producer.abort_transaction()
        write("open", range(5))

    def daemon(name: str, isolation: str) -> DaemonProcess:
        return DaemonProcess(
            tmp_path,
            {
                "group": {"id": name, "coordination": "fixed", "partitions": {"events": [0]}},
                "kafka": {"bootstrap": [broker.address]},
                "fetch": {"isolation": isolation},
                "commit": {"interval": 0.2},
                "metrics": {"summary_interval": 1},
                "handler": {"name": "print"},
            },
            name=name,
        )

    async def until(wanted: list[str], of: DaemonProcess) -> None:
        async with asyncio.timeout(120):
            while len(printed(of)) < len(wanted):
                await asyncio.sleep(0.1)
        assert printed(of) == wanted

    async with cluster_client(broker) as client:
        store = {name: KafkaOffsetStore(client, name) for name in ("all", "committed")}

        async def committed(name: str, wanted: int) -> None:
            async with asyncio.timeout(120):
                while (await client.retrying("offsets", lambda: store[name].load([PLACE]))).get(PLACE) != wanted:
                    await asyncio.sleep(0.1)

        await asyncio.to_thread(transactions)
        everything = daemon("all", "read_uncommitted")
        only = daemon("committed", "read_committed")
        async with everything, only:
            # 44 offsets: twenty committed, twenty aborted, four markers; then the open ones.
            first = names("committed", range(10)) + names("aborted", range(10))
            second = names("committed", range(10, 20)) + names("aborted", range(10, 20))
            await until([*first, *second, *names("open", range(5))], everything)
            await until(names("committed", range(20)), only)
            await committed("all", 49)
            # Only the open transaction blocks the partition: the position is at its beginning.
            await committed("committed", 44)
            # What is behind it is lag.
            async with asyncio.timeout(120):
                while lags(only) != 5 or lags(everything) != 0:
                    await asyncio.sleep(0.1)
            # The command line shows the same, and does not wait for the end of the open transaction.
            command = consumerd_command("consume", "--bootstrap-server", broker.address, "--topic", "events")
            command += ["--exit-at-end", "--isolation", "read_committed"]
            done = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, env=clean_environment(), timeout=60, check=False
            )
            assert done.stdout.decode().splitlines() == names("committed", range(20)), done
            # And the doctor names who is in the way.
            told = await asyncio.to_thread(doctor, broker.address, "committed")
            assert [(each["kind"], each["subject"]) for each in told] == [("open-transaction", "events/0")]
            assert "open since offset 44" in told[0]["says"]
            assert "none of the 5 messages" in told[0]["says"]
            assert "; transactional id 'a-test', Ongoing since 20" in told[0]["says"]
            assert re.search(r"the producer with id \d+ and epoch \d+, which wrote last at 20", told[0]["says"])
            assert await asyncio.to_thread(doctor, broker.address, "all") == []
            await asyncio.to_thread(producer.abort_transaction)
            await committed("committed", 50)
            assert await asyncio.to_thread(doctor, broker.address, "committed") == []
            await asyncio.to_thread(write, "late", range(3))
            await asyncio.to_thread(producer.commit_transaction)
            await until(names("committed", range(20)) + names("late", range(3)), only)
            await committed("committed", 54)
            assert await only.stop() == ExitCode.OK
            assert await everything.stop() == ExitCode.OK
