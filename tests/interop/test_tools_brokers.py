"""The tools against real clusters of Kafka 0.8 and later: topics, groups in ZooKeeper, groups of brokers, offsets."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import structlog
from kazoo.client import KazooClient

from consumerd.base.errors import ExitCode
from consumerd.base.java import JavaRuntime, MissingRuntimeError
from consumerd.cli.main import run
from consumerd.demo.children import Child
from consumerd.demo.ports import free_port
from consumerd.demo.processes import clean_environment
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import error_of
from consumerd.service.config.properties import format_properties
from consumerd.wire.v08.apis import PRODUCE
from consumerd.wire.v08.message_types import ProduceRequest, ProduceRequestPartitionData
from consumerd.wire.v08.records import encode_message_set, encode_record_batch
from tests.support.commands import Done
from tests.support.exporter import exporting
from tests.support.jafka import java_command
from tests.support.kafka import RELEASES, KafkaRelease, kafka_jars
from tests.support.maven import fetch_jars

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]
GROUP, TOPIC = "g", "events"
EACH = 10


class Tool:
    """Runs a command line at one place, which may be `--zookeeper` or `--bootstrap-server` with its address."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *place: str) -> None:
        self._capsys = capsys
        self._place = place

    async def __call__(self, *arguments: str) -> Done:
        self._capsys.readouterr()
        try:
            code = await asyncio.to_thread(run, [*arguments[:2], *self._place, *arguments[2:]])
        finally:
            structlog.reset_defaults()
        return Done(code, *self._capsys.readouterr())

    async def well(self, *arguments: str) -> Done:
        done = await self(*arguments)
        assert done.code == 0, (arguments, done)
        return done

    async def until(self, right: Callable[[Any], bool], *arguments: str, seconds: float = 60) -> Any:
        """The JSON output of the command, as soon as it is `right`."""
        deadline = time.monotonic() + seconds
        while True:
            done = await self(*arguments, "--json")
            if done.code == 0 and right(found := json.loads(done.out)):
                return found
            assert time.monotonic() < deadline, done
            await asyncio.sleep(0.2)


async def served_metrics(*place: str) -> list[str]:
    """The lines of the metrics of the exporter at a place."""
    async with exporting(*place) as scrape:
        return await scrape()


async def fill(client: ClusterClient, topic: str, partition: int, stamp: int) -> None:
    """Append `EACH` messages with the time `stamp` (ms)."""

    async def attempt() -> None:
        leader = await client.leader(topic, partition)
        channel = await client.node_channel(leader.id)
        version = channel.versions.pick(PRODUCE, at_most=9)
        payloads = [b"%d" % number for number in range(EACH)]
        data = (
            encode_record_batch(payloads, timestamps=stamp)
            if version >= 3
            else encode_message_set(payloads, magic=int(version >= 2), timestamps=stamp if version >= 2 else -1)
        )
        parts: list[ProduceRequestPartitionData] = [{"index": partition, "records": data}]
        body: ProduceRequest = {
            "acks": -1,
            "timeout_ms": 5000,
            "topic_data": [{"name": topic, "partition_data": parts}],
        }
        answer = await channel.call(PRODUCE, body, version=version)
        if error := error_of(answer["responses"][0]["partition_responses"][0]["error_code"], "produce"):
            raise error

    await client.retrying("produce", attempt)


def versions(everyday: tuple[str, ...], *others: str) -> list[Any]:
    return [*everyday, *(pytest.param(version, marks=pytest.mark.long) for version in others)]


@pytest.mark.zookeeper
@pytest.mark.parametrize("version", versions(("0.8.2.2",), "0.9.0.1", "0.10.1.1"))
async def test_lists_topics_and_groups_of_zookeeper(
    version: str,
    kafka: Any,
    cluster_client: Any,
    zk: KazooClient,
    zk_root: str,
    java: JavaRuntime,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    broker = await kafka(version, config={"delete.topic.enable": "true"})
    tool = Tool(capsys, "--zookeeper", zk_root)
    create = ("topics", "create", "--topic", TOPIC, "--partitions", "3", "--replication-factor", "1")

    if not version.startswith("0.10.1"):
        done = await Tool(capsys, "--bootstrap-server", f"127.0.0.1:{broker.port}")(*create)
        assert done.code == ExitCode.BROKER
        assert "give --zookeeper instead" in done.err
    assert (await tool(*create, "--replication-factor", "2")).code == ExitCode.USAGE
    await tool.well(*create, "--config", "retention.ms=99999999999")
    assert zk.get(f"/config/topics/{TOPIC}")[0] == b'{"version":1,"config":{"retention.ms":"99999999999"}}'
    done = await tool(*create)
    assert done.code == ExitCode.REFUSED
    assert "already" in done.err
    assert [TOPIC, "3", "1", "0"] in (await tool.well("topics", "list")).rows

    async with cluster_client(broker) as client:
        for partition in range(3):
            await fill(client, TOPIC, partition, int(time.time() * 1000))
    described = (await tool.well("topics", "describe", "--topic", TOPIC)).rows
    address = f"{broker.broker_id} 127.0.0.1:{broker.port}"
    assert described[2] == [f"{TOPIC}/2", address, str(broker.broker_id), str(broker.broker_id), "0", "10", "10", ""]

    # A group of an old consumer of the JVM.
    def consumer(group: str, **settings: str | int) -> Child:
        folder = tmp_path / f"member-{group}"
        folder.mkdir()
        properties: dict[str, str | int] = {
            "group.id": group, "consumer.id": "c", "auto.commit.interval.ms": 200,
            "zookeeper.session.timeout.ms": 2000, "zookeeper.connect": zk_root,
        }  # fmt: skip
        properties |= {key.replace("_", "."): value for key, value in settings.items()}
        (folder / "consumer.properties").write_text(format_properties(properties), "ascii")
        arguments = ["--zookeeper", zk_root, "--topic", TOPIC, "--from-beginning",
                     "--consumer.config", str(folder / "consumer.properties")]  # fmt: skip
        command = java_command(java, kafka_jars(RELEASES[version]), folder, "kafka.tools.ConsoleConsumer", *arguments)
        return Child(command, log=folder / "log")

    async with consumer(GROUP):
        await tool.until(lambda found: found["total"] == 0 and not found["unknown"], "group", "lag", "--group", GROUP)
        lag = (await tool.well("group", "lag", "--group", GROUP, "--json")).json
        assert lag["unit"] == "messages"
        assert lag["partitions"][f"{TOPIC}/1"]["committed"] == lag["partitions"][f"{TOPIC}/1"]["end"] == EACH
        found = await tool.until(lambda found: not found["unowned"], "group", "describe", "--group", GROUP)
        assert (found["coordinator"], found["problems"]) == ("zookeeper", [])
        assert found["rule"].startswith("range or roundrobin")
        assert {each["owner"] for each in found["partitions"].values()} == {f"{GROUP}_c-0"}
        await tool.well("group", "verify", "--group", GROUP)
        plan = (await tool.well("group", "plan", "--group", GROUP, "--json")).json
        assert plan == {name: each["owner"] for name, each in found["partitions"].items()}
        done = await tool("offsets", "set", "--group", GROUP, f"{TOPIC}/0=5", "--execute")
        assert done.code == ExitCode.REFUSED
        assert "is alive and subscribes" in done.err
        assert (await tool("group", "delete", "--group", GROUP, "--execute")).code == ExitCode.REFUSED
        assert (await tool.well("group", "doctor", "--group", GROUP, "--interval", "1")).rows == []
        zk.delete(f"/consumers/{GROUP}/owners/{TOPIC}/1")
        done = await tool("group", "doctor", "--group", GROUP, "--interval", "0", "--fix", "--execute", "--json")
        assert [(each["kind"], each["subject"]) for each in done.json["findings"]] == [
            ("gave-up", f"{GROUP}_c"), ("unowned", f"{TOPIC}/1"),
        ]  # fmt: skip
        assert (done.code, done.json["steps"], done.json["remaining"]) == (0, ["nudge the group"], [])
    async with consumer("k", offsets_storage="kafka", dual_commit_enabled="false"):
        await tool.until(lambda found: found["total"] == 0 and not found["unknown"], "group", "lag", "--group", "k")
    await tool.until(lambda found: not found["members"], "group", "describe", "--group", "k")
    assert (await tool.well("offsets", "get", "--group", "k")).rows[0] == [
        f"{TOPIC}/0", "", "", "a broker keeps it: 10",
    ]  # fmt: skip
    done = await tool.well("offsets", "export", "--group", "k")
    assert (done.out, "3 offsets of group k, which a broker keeps" in done.err) == ("", True)
    done = await tool("offsets", "set", "--group", "k", f"{TOPIC}/0=5", "--execute")
    assert (done.code, "--bootstrap-server" in done.err) == (ExitCode.REFUSED, True)
    at_broker = Tool(capsys, "--bootstrap-server", f"127.0.0.1:{broker.port}")
    await at_broker.well("offsets", "set", "--group", "k", f"{TOPIC}/0=5", "--execute")
    assert (await tool.well("group", "lag", "--group", "k", "--json")).json["total"] == EACH - 5
    rows = (await tool.well("group", "describe", "--group", "k")).rows
    assert rows[0] == ["partition", f"{TOPIC}/0", "", "5", "a broker keeps the offset"]
    zk.create(f"/consumers/k/offsets/{TOPIC}/1", b"7", makepath=True)
    zk.create(f"/consumers/k/offsets/{TOPIC}/2", b"77", makepath=True)
    zk.create(f"/consumers/k/offsets/{TOPIC}/3", b"3", makepath=True)
    await at_broker("offsets", "set", "--group", "k", f"{TOPIC}/2=78", "--execute", "--force")
    done = await tool("group", "doctor", "--group", "k")
    assert (done.code, [tuple(row[1:3]) for row in done.rows]) == (ExitCode.CHECK_FAILED, [
        ("no-members", "k"), ("offset-out-of-range", f"{TOPIC}/2"), ("offset-without-partition", f"{TOPIC}/3"),
        ("stores-differ", f"{TOPIC}/1"), ("stores-differ", f"{TOPIC}/2"),
    ])  # fmt: skip
    zk.delete("/consumers/k", recursive=True)
    await tool.until(lambda found: not found["members"], "group", "describe", "--group", GROUP)

    assert (await tool.well("group", "list")).rows == [[GROUP]]
    exported = (await tool.well("offsets", "export")).out
    assert exported == "".join(f"/consumers/{GROUP}/offsets/{TOPIC}/{number}:10\n" for number in range(3))
    (tmp_path / "offsets.txt").write_text(exported)
    reset = ("offsets", "reset", "--group", GROUP)
    done = await tool.well(*reset, "--to", "earliest")
    assert [row[1:4] for row in done.rows] == [[f"{TOPIC}/{number}", "10", "0"] for number in range(3)]
    assert "dry run" in done.err
    await tool.well(*reset, "--to", "earliest", "--execute")
    assert (await tool.well("group", "lag", "--group", GROUP, "--json")).json["total"] == 3 * EACH
    sums = f'kafka_consumergroup_group_sum_lag{{cluster_name="kafka",group="{GROUP}"}} {3.0 * EACH}'
    assert sums in await served_metrics("--zookeeper", zk_root)
    done = await tool.well(*reset, "--topic", TOPIC, "--partition", "1", "--to", "+4", "--execute")
    assert [row[1:4] for row in done.rows] == [[f"{TOPIC}/1", "0", "4"]]
    done = await tool(*reset, "--partition", "1", "--to", "77", "--execute")
    assert (done.code, "the broker has 0 to 10" in done.err) == (ExitCode.REFUSED, True)
    done = await tool.well(*reset, "--at-time", "1000", "--json")
    assert {each["after"] for each in done.json["changes"]} == {0}
    done = await tool("offsets", "set", "--group", GROUP, f"{TOPIC}/{broker.broker_id}-0=5")
    assert done.code == ExitCode.USAGE
    await tool.well("offsets", "import", "offsets.txt", "--rename", f"{GROUP}=h", "--execute")
    got = (await tool.well("offsets", "get", "--group", "h")).rows
    assert [row[:2] for row in got] == [[f"{TOPIC}/{number}", "10"] for number in range(3)]
    assert zk.get(f"/consumers/h/offsets/{TOPIC}/2")[0] == b"10"
    done = await tool.well("group", "delete", "--group", "h", "--execute", "--backup", "h.json")
    assert json.loads((tmp_path / "h.json").read_text())["groups"] == {"h": {TOPIC: {"0": 10, "1": 10, "2": 10}}}
    assert (await tool.well("group", "list")).rows == [[GROUP]]

    assert (await tool.well("topics", "delete", "--topic", TOPIC)).rows == [[TOPIC, "3", "30"]]
    done = await tool.well("topics", "delete", "--topic", TOPIC, "--execute", "--timeout", "60", "--json")
    assert done.json == {"topics": {TOPIC: {"partitions": 3, "messages": 30}}, "executed": True, "marked": []}
    assert (await tool("topics", "describe", "--topic", TOPIC)).code == ExitCode.NOT_FOUND


async def member(bootstrap: str) -> Any:
    """A member of `GROUP` of another project, which has been given all of `TOPIC`."""
    import aiokafka

    consumer = aiokafka.AIOKafkaConsumer(
        TOPIC, bootstrap_servers=bootstrap, group_id=GROUP, client_id="other", auto_offset_reset="earliest",
        enable_auto_commit=False,
    )  # fmt: skip
    await consumer.start()
    while len(consumer.assignment()) < 3:
        await consumer.getmany(timeout_ms=100)
    return consumer


@pytest.mark.parametrize("version", versions(("0.10.1.1", "3.9.1"), "0.11.0.3", "1.1.1", "2.8.2", "4.1.0"))
async def test_lists_topics_and_groups_of_brokers(
    version: str,
    kafka: Any,
    cluster_client: Any,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    missing: Callable[[str], NoReturn],
) -> None:
    if importlib.util.find_spec("aiokafka") is None:
        missing("aiokafka is not installed")
    monkeypatch.chdir(tmp_path)
    number = RELEASES[version].number
    broker = await kafka(version, config={"delete.topic.enable": "true"})
    bootstrap = f"127.0.0.1:{broker.port}"
    tool = Tool(capsys, "--bootstrap-server", bootstrap)
    create = ("topics", "create", "--topic", TOPIC)

    if number < (2, 4):
        done = await tool(*create)
        assert (done.code, "give --partitions" in done.err) == (ExitCode.USAGE, True)
    if number >= (0, 10, 2):
        await tool.well(*create, "--partitions", "3", "--replication-factor", "1", "--dry-run")
        assert [TOPIC] not in [row[:1] for row in (await tool.well("topics", "list")).rows]
    done = await tool(*create, "--replica-assignment", "77")
    assert (done.code, "not alive" in done.err) == (ExitCode.USAGE, True)
    settings = ("--config", "retention.ms=99999999999")
    await tool.well(*create, "--partitions", "3", "--replication-factor", "1", *settings, "--timeout", "30")
    done = await tool(*create, "--replica-assignment", str(broker.broker_id))
    assert (done.code, "TOPIC_ALREADY_EXISTS" in done.err) == (ExitCode.BROKER, True)
    now = int(time.time() * 1000)
    async with cluster_client(broker) as client:
        for partition in range(3):
            await fill(client, TOPIC, partition, now - 60_000)
            await fill(client, TOPIC, partition, now)
    described = (await tool.well("topics", "describe", "--topic", TOPIC, "--json")).json
    assert described["brokers"] == {str(broker.broker_id): bootstrap}
    assert described["topics"][TOPIC]["partitions"]["2"] == {
        "leader": broker.broker_id, "replicas": [broker.broker_id], "in_sync": [broker.broker_id], "earliest": 0,
        "latest": 2 * EACH, "messages": 2 * EACH, "remark": None,
    }  # fmt: skip

    consumer = await member(bootstrap)
    try:
        committed: dict[Any, Any] = dict.fromkeys(consumer.assignment(), 2 * EACH - 1)
        committed[next(each for each in committed if each.partition == 1)] = (2 * EACH - 1, "by \x1bhand")
        await consumer.commit(committed)
        found = await tool.until(lambda found: found["state"] == "Stable", "group", "describe", "--group", GROUP)
        ((name, told),) = found["members"].items()
        assert (told["subscription"], told["client"]) == (TOPIC, "other at 127.0.0.1")
        assert found["partitions"] == {
            f"{TOPIC}/{number}": {"owner": name, "planned": None, "offset": 2 * EACH - 1}
            | ({"metadata": "by \x1bhand"} if number == 1 else {})
            for number in range(3)
        }
        rows = (await tool.well("group", "describe", "--group", GROUP)).rows
        assert [row[-1] for row in rows if row[0] == "partition"] == ["", "by \\x1bhand", ""]
        assert (await tool.well("offsets", "get", "--group", GROUP)).rows == [
            [f"{TOPIC}/{number}", str(2 * EACH - 1), "", "", "by \\x1bhand" if number == 1 else ""]
            for number in range(3)
        ]
        assert (await tool.well("offsets", "get", "--group", GROUP, "--json")).json["offsets"] == {
            f"{TOPIC}/{number}": {"offset": 2 * EACH - 1, "written": None}
            | ({"metadata": "by \x1bhand"} if number == 1 else {})
            for number in range(3)
        }
        assert (found["coordinator"], found["unowned"], found["problems"]) == ("broker", [], [])
        lag = (await tool.well("group", "lag", "--group", GROUP, "--json")).json
        assert (lag["total"], lag["unit"], lag["unknown"]) == (3, "messages", [])
        ages = [each["lag_seconds"] for each in lag["partitions"].values()]
        assert max(ages) == pytest.approx(time.time() - now / 1000, abs=10)  # of messages 20, not of those before
        of_group = f'cluster_name="kafka",group="{GROUP}"'
        owner = f'client_id="other",cluster_name="kafka",consumer_id="{name}",group="{GROUP}",member_host="127.0.0.1"'
        served = await served_metrics("--bootstrap-server", bootstrap)
        assert {
            f"kafka_consumergroup_group_sum_lag{{{of_group}}} 3.0",
            f'kafka_consumergroup_group_lag{{{owner},partition="1",topic="{TOPIC}"}} 1.0',
        } <= {*served}
        name_of_age = f"kafka_consumergroup_group_max_lag_seconds{{{of_group}}} "
        (age,) = [float(line.removeprefix(name_of_age)) for line in served if line.startswith(name_of_age)]
        assert age == pytest.approx(time.time() - now / 1000, abs=10)
        for force in ([], ["--force"]):
            done = await tool("offsets", "set", "--group", GROUP, f"{TOPIC}/0=5", "--execute", *force)
            assert (done.code, "is alive and subscribes" in done.err) == (ExitCode.REFUSED, True)
        assert (await tool.well("group", "doctor", "--group", GROUP, "--interval", "0")).rows == []
        for what in ("plan", "verify"):
            done = await tool("group", what, "--group", GROUP)
            assert (done.code, "group describe" in done.err) == (ExitCode.USAGE, True)
        assert (await tool("group", "delete", "--group", GROUP, "--execute")).code == ExitCode.REFUSED
    finally:
        await consumer.stop()
    assert (await tool.well("group", "list")).rows == [[GROUP]]
    assert (await tool("group", "describe", "--group", "nobody")).code == ExitCode.NOT_FOUND

    exported = (await tool.well("offsets", "export", "--format", "json")).out
    assert json.loads(exported)["groups"] == {GROUP: {TOPIC: {"0": 19, "1": 19, "2": 19}}}
    (tmp_path / "offsets.json").write_text(exported)
    reset = ("offsets", "reset", "--group", GROUP)
    assert (await tool.well(*reset, "--to", "earliest", "--execute", "--backup", "before.json")).rows[0][2:4] == [
        "19", "0",
    ]  # fmt: skip
    done = await tool.well(*reset, "--at-time", str(now - 1000), "--json")
    assert {each["after"] for each in done.json["changes"]} == {EACH}
    done = await tool(*reset, "--partition", "1", "--to", "77", "--execute")
    assert (done.code, "the broker has 0 to 20" in done.err) == (ExitCode.REFUSED, True)
    await tool.well("offsets", "set", "--group", GROUP, f"{TOPIC}/2=7", "--execute")
    got = (await tool.well("offsets", "get", "--group", GROUP)).rows
    assert [row[:2] for row in got] == [[f"{TOPIC}/0", "0"], [f"{TOPIC}/1", "0"], [f"{TOPIC}/2", "7"]]
    other = "team/h"  # no name for a node in ZooKeeper
    await tool.well("offsets", "import", "offsets.json", "--rename", f"{GROUP}={other}", "--execute")
    assert (await tool.well("group", "lag", "--group", other, "--json")).json["total"] == 3
    await tool.well("offsets", "import", "before.json", "--execute")
    assert (await tool.well("group", "lag", "--group", GROUP, "--json")).json["total"] == 3

    assert len((await tool.well("offsets", "get", "--group", other)).rows) == 3
    assert len((await tool.well(*reset[:3], other, "--to", "latest")).rows) == 3
    done = await tool("offsets", "export", "--group", other)
    assert (done.code, "use --format json" in done.err) == (ExitCode.CONFIG, True)
    done = await tool("group", "delete", "--group", other, "--execute")
    if number < (1, 1):
        assert (done.code, "before 1.1" in done.err) == (ExitCode.BROKER, True)
    else:
        assert done.code == 0, done
        assert (await tool("group", "describe", "--group", other)).code == ExitCode.NOT_FOUND
    assert [TOPIC, "3", "60"] in (await tool.well("topics", "delete", "--topic", TOPIC)).rows
    await tool.well("topics", "delete", "--topic", TOPIC, "--execute", "--timeout", "30")
    assert (await tool("topics", "delete", "--topic", TOPIC)).code == ExitCode.NOT_FOUND


@pytest.mark.zookeeper
async def test_takes_credentials_from_the_configuration(
    kafka: Any, zk_root: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    login = tmp_path / "jaas.conf"
    users = 'username="admin" password="a" user_admin="a" user_alice="wonder land"'
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    login.write_text(f"KafkaServer {{\n{module} required {users};\n}};\n")
    secure, plain = free_port(), free_port()
    broker = await kafka(
        "0.10.1.1",
        jvm=[f"-Djava.security.auth.login.config={login}"],
        port=plain,
        config={
            "listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{secure}",
            "sasl.enabled.mechanisms": "PLAIN",
        },
    )
    file = tmp_path / "daemon.toml"
    text = f"""
        [group]
        id = "{GROUP}"
        coordination = "kafka"
        topics = {{ {TOPIC} = 1 }}
        [kafka]
        bootstrap = ["127.0.0.1:{secure}"]
        sasl = {{ mechanism = "PLAIN", user = "alice", password = "wonder land" }}
        [handler]
        name = "null"
    """
    file.write_text(text)
    tool = Tool(capsys, "-c", str(file))
    await tool.well("topics", "create", "--topic", TOPIC, "--partitions", "1", "--replication-factor", "1")
    described = await tool.until(
        lambda found: found["topics"][TOPIC]["partitions"]["0"]["messages"] == 0, "topics", "describe"
    )
    assert described["brokers"] == {str(broker.broker_id): f"127.0.0.1:{secure}"}
    await tool.well("offsets", "set", f"{TOPIC}/0=0", "--execute", "--backup", str(tmp_path / "backup.json"))
    assert (await tool.well("group", "lag", "--json")).json["group"] == GROUP

    # In ZooKeeper the listener is found that takes these credentials.
    await tool.well("topics", "describe", "--zookeeper", zk_root, "--topic", TOPIC)
    file.write_text(text.replace("wonder land", "wrong"))
    done = await tool("topics", "list", "--timeout", "1")
    assert (done.code, "PLAIN" in done.err) == (ExitCode.BROKER, True)
    done = await tool.well("topics", "describe", "--zookeeper", zk_root, "--topic", TOPIC)
    assert "PLAIN" in done.rows[0][-1]


@pytest.mark.long
@pytest.mark.zookeeper
@pytest.mark.parametrize("version", ["0.8.2.2", "0.10.1.1"])
async def test_shows_replicas_and_a_dead_broker(
    version: str,
    kafka: Any,
    cluster_client: Any,
    zk_root: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = [await kafka(version) for _ in range(2)]
    tool = Tool(capsys, "--zookeeper", zk_root)
    by_request = Tool(capsys, "--bootstrap-server", f"127.0.0.1:{first.port}")
    await tool.well("topics", "create", "--topic", TOPIC, "--partitions", "4", "--replication-factor", "2")
    states = (await tool.well("topics", "describe", "--topic", TOPIC, "--json")).json["topics"][TOPIC]["partitions"]
    assert sorted(state["leader"] for state in states.values()) == [1, 1, 2, 2]
    assert {tuple(sorted(state["replicas"])) for state in states.values()} == {(1, 2)}
    # Leaders are in ZooKeeper before the brokers learn of them, and of the topic.
    described = {"partitions": 4, "replicas": 2, "without_leader": 0}
    await by_request.until(lambda found: found["topics"].get(TOPIC) == described, "topics", "list")
    assert [TOPIC, "4", "2", "0"] in (await by_request.well("topics", "list")).rows
    async with cluster_client(first) as client:
        for partition in range(4):
            await fill(client, TOPIC, partition, int(time.time() * 1000))
    await tool.well("offsets", "reset", "--group", GROUP, "--topic", TOPIC, "--to", "earliest", "--execute")
    if version.startswith("0.10.1"):
        await by_request.well("topics", "create", "--topic", "pairs", "--replica-assignment", "1:2,2:1")
        done = await by_request("topics", "delete", "--topic", "pairs", "--execute", "--timeout", "1")
        assert (done.code, "delete.topic.enable" in done.err) == (ExitCode.BROKER, True)  # it is not, by default

    second.kill()
    for each in (tool, by_request):
        found = await each.until(
            lambda found: all(
                (one["leader"], one["messages"]) == (1, EACH) for one in found["topics"][TOPIC]["partitions"].values()
            ),
            "topics", "describe", "--topic", TOPIC,
        )  # fmt: skip
        assert list(found["brokers"]) == ["1"]
    assert (await tool.well("group", "lag", "--group", GROUP, "--json")).json["total"] == 4 * EACH
    done = await tool("topics", "create", "--topic", "more", "--partitions", "1", "--replication-factor", "2")
    assert (done.code, "1 are alive" in done.err) == (ExitCode.USAGE, True)


@pytest.mark.long
async def test_share_group_has_no_lag_and_says_so(
    kafka: Any,
    broker_java: Callable[[KafkaRelease], JavaRuntime],
    cluster_client: Any,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    missing: Callable[[str], NoReturn],
) -> None:
    release = RELEASES["4.3.1"]
    try:
        jars = await asyncio.to_thread(fetch_jars, [f"org.apache.kafka:kafka-tools:{release.version}"])
    except MissingRuntimeError as error:
        missing(str(error))
    state = "share.coordinator.state.topic"
    config = {f"{state}.replication.factor": 1, f"{state}.min.isr": 1, f"{state}.num.partitions": 1}
    broker = await kafka(release.version, partitions=1, config=config)
    bootstrap = f"127.0.0.1:{broker.port}"
    async with cluster_client(broker) as client:
        await client.retrying("make the topic", lambda: client.refresh([TOPIC], create=True))
        await fill(client, TOPIC, 0, int(time.time() * 1000))
    tool = Tool(capsys, "--bootstrap-server", bootstrap)
    command = java_command(
        broker_java(release), jars, tmp_path / "member", "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
        "--bootstrap-server", bootstrap, "--topic", TOPIC, "--group", GROUP,
    )  # fmt: skip
    async with Child(command, log=tmp_path / "member.log", env=clean_environment(), name="a member of a share group"):
        async with asyncio.timeout(90):
            while GROUP not in (await tool("group", "list")).out.split():
                await asyncio.sleep(0.5)
        done = await tool("group", "lag", "--group", GROUP)
        assert (done.code, done.out) == (ExitCode.CHECK_FAILED, "")
        assert f"the lag of group '{GROUP}' is unknown: it is a share group" in done.err
