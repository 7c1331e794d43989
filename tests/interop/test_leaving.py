"""The runbook docs/leaving.md, rehearsed by its very commands, from a 0.7 log to Kafka 3.9: no message is lost."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import ExitCode
from consumerd.demo.children import Child
from consumerd.demo.processes import BrokerProcess, DaemonProcess, clean_environment
from consumerd.handlers.forward.target_log import TargetLog
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.connect import connect
from consumerd.wire.v07 import LATEST, Codec, OffsetsRequest, ProduceRequest, encode_message_set
from tests.support.kafka import KafkaBroker
from tests.support.waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "leaving.md"
TOPICS = "clicks", "orders"
BROKERS = 2
#: Of each old topic, on each broker; the page gives the new ones as many as all brokers have together.
PER_BROKER = {"clicks": 2, "orders": 1}
PAGES_PARTITIONS = {"clicks": 4, "orders": 2}
CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY]
PATIENCE = 90.0


def blocks(language: str) -> dict[str, str]:
    """The blocks of the page in `language`, by the name in their first line."""
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    return {block.splitlines()[0].removeprefix("# "): block for block in found}


def handed(path: Path) -> list[str]:
    """The messages that a handler `print` got, without the output of `check` and without an incomplete line."""
    lines = path.read_text("utf-8").split("\n")[:-1] if path.exists() else []
    return [json.loads(line)["payload"] for line in lines if line.startswith("{")]


@contextlib.contextmanager
def running(child: Child) -> Iterator[Child]:
    child.start()
    try:
        yield child
    finally:
        child.end_now()


class Move:
    """Both clusters, what was produced where, and the commands of the page."""

    def __init__(
        self, zookeeper: str, old: list[BrokerProcess], new: KafkaBroker, directory: Path, partitions: dict[str, int]
    ) -> None:
        #: Of the new topics.
        self._partitions = partitions
        self._zookeeper = zookeeper
        self._old = old
        self.bootstrap = new.address
        self._directory = directory
        self._members = 0
        self.sent = 0
        #: The messages that old members got.
        self.handled: set[str] = set()

    # -- messages

    async def produce_old(self, wave: int) -> set[str]:
        """Forty messages to each old partition, plain and compressed, flushed when this returns."""
        texts = []
        for broker in self._old:
            connection = await connect("127.0.0.1", broker.port)
            for topic in TOPICS:
                for partition in range(PER_BROKER[topic]):
                    names = [f"{topic} {broker.broker_id}-{partition} {wave} {n:02}" for n in range(40)]
                    sets = b"".join(
                        encode_message_set([each.encode() for each in names[n : n + 5]], codec=CODECS[n // 5 % 3])
                        for n in range(0, 40, 5)
                    )
                    await connection.send(ProduceRequest(topic, partition, sets).encode())
                    await connection.request(OffsetsRequest(topic, partition, LATEST, 1).encode())
                    texts += names
            await connection.close()
        self.sent += len(texts)
        return set(texts)

    async def produce_new(self, wave: int) -> set[str]:
        """By a producer of another project, straight to the new cluster."""
        import aiokafka

        texts = {f"{topic} new {wave} {n:02}" for topic in TOPICS for n in range(40)}
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=self.bootstrap) as producer:
            for text in sorted(texts):
                await producer.send(text.partition(" ")[0], text.encode())
        return texts

    async def forwarded(self, client: ClusterClient) -> None:
        """Return when all that was sent is on the new cluster."""
        log = TargetLog(client)
        async with asyncio.timeout(PATIENCE):
            while True:
                found = (await client.refresh(list(TOPICS))).topics
                places = [(topic, number) for topic in TOPICS if topic in found for number in found[topic].partitions]
                if sum([(await log.bounds(*place)).end for place in places]) >= self.sent:
                    return
                await asyncio.sleep(0.2)

    async def forwarder_has_committed(self) -> None:
        """It does so every few seconds."""
        async with asyncio.timeout(PATIENCE):
            while await self.lag("leaving", f"--zookeeper {self._zookeeper}"):
                await asyncio.sleep(0.5)

    # -- the page's commands

    def _command(self, name: str, group: str) -> str:
        """A block of the page with our addresses and files."""
        text = blocks("sh")[name].replace("old-zk:2181/kafka", self._zookeeper).replace("new:9092", self.bootstrap)
        text = text.replace("--group events", f"--group {group}").replace("--replication-factor 3", "")  # of one broker
        for topic, number in PAGES_PARTITIONS.items():
            text = text.replace(f"--partitions {topic}={number}", f"--partitions {topic}={self._partitions[topic]}")
        return text

    def _environment(self) -> dict[str, str]:
        environment = clean_environment()
        return {**environment, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"}

    def child(self, name: str) -> Child:
        """A block whose last command runs until it is stopped, as a process."""
        head, _, last = self._command(name, "events").rpartition("\nconsumerd ")
        return Child(
            ["bash", "-ec", f"{head}\nexec consumerd {last}"],
            log=self._directory / f"{name}.log",
            stdout=self._directory / f"{name}.out",
            cwd=self._directory,
            env=self._environment(),
            name=name,
        )

    async def run(self, name: str, group: str = "events", *, code: ExitCode = ExitCode.OK) -> str:
        """Run a block whose first failing command exits with `code`; returns its output."""
        return await self._run(self._command(name, group), code)

    async def _run(self, text: str, code: ExitCode = ExitCode.OK) -> str:
        process = await asyncio.create_subprocess_exec(
            "bash", "-ec", text, cwd=self._directory, env=self._environment(),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        output, errors = await asyncio.wait_for(process.communicate(), PATIENCE)
        assert process.returncode == code, f"{text}{output.decode()}{errors.decode()}"
        return output.decode() + (errors.decode() if code else "")

    async def lag(self, group: str, where: str = "") -> int:
        """The lag of the group, by default on the new cluster; more than 0 while an offset is missing."""
        where = where or f"--bootstrap-server {self.bootstrap}"
        told = json.loads(await self._run(f"consumerd group lag {where} --group {group} --json"))
        if any(each["committed"] is None for each in told["partitions"].values()):
            return 1
        lag: int = told["total"]
        return lag

    async def planned(self, group: str) -> dict[str, int]:
        """Of the block `plan`: partition of the new cluster -> messages that are left there."""
        rows = [line.split("\t") for line in (await self.run("plan", group)).splitlines()]
        return {row[1]: int(row[4]) for row in rows}

    # -- consumers

    @contextlib.asynccontextmanager
    async def old_member(self, group: str, expected: set[str]) -> Any:
        """A member of the old group, which gets exactly `expected`, and leaves at the end."""
        self._members += 1
        config: dict[str, dict[str, Any]] = {
            "group": {"id": group, "topics": dict.fromkeys(TOPICS, 1)},
            "zookeeper": {"connect": self._zookeeper},
            "handler": {"name": "print"},
        }
        async with DaemonProcess(self._directory, config, name=f"old-{self._members}") as member:
            await until(lambda: len(handed(member.stdout_path)) >= len(expected))
            yield
            assert await member.stop() == ExitCode.OK
        assert Counter(handed(member.stdout_path)) == Counter(expected)
        self.handled |= expected

    async def old_member_handles(self, group: str, expected: set[str]) -> None:
        async with self.old_member(group, expected):
            pass

    async def foreign_member_handles(self, group: str, expected: set[str]) -> None:
        """A consumer of another project in the new group, likewise."""
        import aiokafka

        consumer = aiokafka.AIOKafkaConsumer(
            *TOPICS, bootstrap_servers=self.bootstrap, group_id=group, enable_auto_commit=False,
            auto_offset_reset="earliest",
        )  # fmt: skip
        found: Counter[str] = Counter()
        async with consumer, asyncio.timeout(PATIENCE):
            while not found.keys() >= expected:
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    found.update(record.value.decode() for record in records)
            await consumer.commit()
        self.account(found, expected)

    def account(self, found: Counter[str], expected: set[str]) -> None:
        """Nothing is missing. What comes twice does so where old partitions share a new one, as the page says."""
        if self._partitions == PAGES_PARTITIONS:
            assert found == Counter(expected)
        else:
            assert expected <= found.keys() <= self.handled | expected


@pytest.mark.parametrize(
    "partitions", [PAGES_PARTITIONS, pytest.param({"clicks": 3, "orders": 2}, marks=pytest.mark.long)], ids=str
)
async def test_runs_the_commands_of_the_runbook(
    partitions: dict[str, int], kafka: Any, cluster_client: Any, zk_root: str, tmp_path: Path, missing: Any
) -> None:
    if importlib.util.find_spec("aiokafka") is None:
        missing("aiokafka is not installed: see the dependency group `dev`")
    new = await kafka("3.9.1", config={"auto.create.topics.enable": "false"})
    counts = ",".join(f"{topic}:{number}" for topic, number in PER_BROKER.items())
    settings: dict[str, str | int] = {
        "log.flush.interval": 1,
        "log.file.size": 20_000,
        "topic.partition.count.map": counts,
    }
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(cluster_client(new))
        old = [BrokerProcess(tmp_path / f"b{n}", zk_root, broker_id=n, settings=settings) for n in range(BROKERS)]
        for broker in old:
            await stack.enter_async_context(broker)
        move = Move(zk_root, old, new, tmp_path, partitions)

        # Two groups in the middle of their work, one further than the other.
        first = await move.produce_old(1)
        await move.old_member_handles("billing", first)
        second = await move.produce_old(2)
        await move.old_member_handles("events", first | second)
        await move.run("look")
        saved = json.loads((tmp_path / "offsets-before.json").read_text("utf-8"))
        assert set(saved["groups"]) == {"billing", "events"}
        examined = asyncio.create_task(move.run("examine"))  # looks twice, with some time between

        forwarder = stack.enter_context(running(move.child("forward")))
        third = await move.produce_old(3)
        await move.forwarded(client)
        await move.forwarder_has_committed()
        await move.run("verify")
        await examined

        # One group moves early, goes back, and moves again. It has to be stopped for it.
        async with move.old_member("billing", second | third):
            told = await move.run("plan", "billing", code=ExitCode.REFUSED)
            assert "is alive and subscribes" in told
        fourth = await move.produce_old(4)
        await move.forwarded(client)
        # As many places as old partitions, and nothing is left there but what was not handled.
        plan = await move.planned("billing")
        assert plan.keys() == {f"{topic}/{n}" for topic in TOPICS for n in range(partitions[topic])}
        assert sum(plan.values()) >= len(fourth)
        if partitions == PAGES_PARTITIONS:
            assert set(plan.values()) == {40}
        await move.run("move", "billing")
        [backup] = tmp_path.glob("offsets-billing-*.json")
        before = json.loads(backup.read_text("utf-8"))
        nothing = {topic: dict.fromkeys(map(str, range(partitions[topic]))) for topic in TOPICS}
        assert before["groups"] == {"billing": nothing}
        await move.foreign_member_handles("billing", fourth)
        await move.old_member_handles("billing", fourth)  # the way back: what the new one handled comes again

        # The producers move, and the old log is drained.
        fifth = await move.produce_old(5)
        await move.old_member_handles("billing", fifth)
        forwarder.terminate()
        assert await forwarder.wait(PATIENCE) == ExitCode.OK
        await move.run("drain")
        latest = await move.produce_new(6)
        told = await move.run("verify", code=ExitCode.CHECK_FAILED)
        assert "foreign" in told
        await move.run("verify later")
        # Step 5 once more, from another place than the first time.
        assert sum((await move.planned("billing")).values()) >= len(latest)
        await move.run("move", "billing")
        assert len(list(tmp_path.glob("offsets-billing-*.json"))) == 2
        await move.foreign_member_handles("billing", latest)

        # The other group moves.
        left = third | fourth | fifth | latest
        assert sum((await move.planned("events")).values()) >= len(left)
        await move.run("move")
        config = blocks("toml")["events-new.toml"].replace("new:9092", move.bootstrap)
        (tmp_path / "events-new.toml").write_text(config, "utf-8")
        with running(move.child("start")) as member:
            output = tmp_path / "start.out"
            await until(lambda: left <= set(handed(output)))
            await move.run("check")
            member.terminate()
            assert await member.wait(PATIENCE) == ExitCode.OK
        texts = handed(output)
        move.account(Counter(texts), left)
        in_order(texts)
        assert await move.lag("events") == 0


def test_runs_every_command_of_the_page() -> None:
    """Each command of the page is in a block, and a test runs each block; sentences contain names only."""
    source = "".join(path.read_text("utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    for name in blocks("sh"):
        assert re.search(rf"""(run|child)\("{name}"|\("sh"\)\["{name}"\]|# {name}\\n""", source), name
    prose = re.sub(r"```.*?```", "", PAGE.read_text("utf-8"), flags=re.DOTALL)
    spoken_of = re.findall(r"`(consumerd\s[^`]*)`", prose)
    assert [command for command in spoken_of if " -" in command] == ["consumerd migrate offsets --translate"]


def in_order(texts: list[str]) -> None:
    """Each old partition's messages came in their order."""
    found = defaultdict(list)
    for topic, place, wave, number in (text.split(" ") for text in texts):
        if place != "new":
            found[topic, place].append((int(wave), int(number)))
    assert len(found) == BROKERS * sum(PER_BROKER.values())
    for key, numbers in found.items():
        assert numbers == sorted(numbers), key
