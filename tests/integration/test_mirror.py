"""`consumerd mirror` as a process, between two clusters in one ZooKeeper server."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import chain
from pathlib import Path

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ExitCode
from consumerd.demo.processes import BrokerProcess, consumerd_command
from consumerd.net.connect import connect
from consumerd.net.zk.session import Session
from consumerd.producer import Producer, ProducerSettings, StaticRouter
from consumerd.storage.log.dump import read_segment
from consumerd.testing.brokers import segments_of
from consumerd.wire.v07 import Codec
from tests.kill.mirrors import MirrorProcess

pytestmark = [pytest.mark.zookeeper]

PARTITIONS = 3
NEWER_BROKER = b'{"jmx_port":-1,"timestamp":"1","host":"127.0.0.1","version":1,"port":1}'


class Clusters:
    """A source and a target with one broker each."""

    def __init__(self, directory: Path, zk_root: str) -> None:
        self.directory = directory
        self.source_place, self.target_place = f"{zk_root}/source", f"{zk_root}/target"
        settings: dict[str, str | int] = {"log.flush.interval": 1}
        self.source = BrokerProcess(directory / "s", self.source_place, partitions=PARTITIONS, settings=settings)
        self.target = BrokerProcess(directory / "t", self.target_place, partitions=PARTITIONS, settings=settings)

    async def produce(self, topic: str, count: int, *, start: int = 0, codec: Codec = Codec.NONE) -> None:
        """Numbered messages, batch by batch round the partitions."""
        rng = random.Random(1)
        router = StaticRouter([("127.0.0.1", self.source.port)], rng=rng)
        settings = ProducerSettings(codec=codec)
        async with Producer(router, connect=connect, clock=SystemClock(), rng=rng, settings=settings) as producer:
            for first in range(start, start + count, 10):
                lines = [b"%s-%d" % (topic.encode(), n) for n in range(first, min(first + 10, start + count))]
                await producer.send(topic, lines, partition=first // 10 % PARTITIONS)

    def held(self, broker: BrokerProcess, topic: str) -> list[list[bytes]]:
        """The messages in the segment files of a broker, by partition."""
        found: list[list[bytes]] = []
        for partition in range(PARTITIONS):
            folder = broker.log_directory / f"{topic}-{partition}"
            segments = segments_of(folder)
            entries = [entry for path, start in segments for entry in read_segment(path, start) if entry.valid]
            found.append([payload for entry in entries for payload in entry.payloads])
        return found

    async def mirror(self, *arguments: str, group: str = "mirror") -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(
            *consumerd_command("mirror", "--from-zookeeper", self.source_place, "--group", group, *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, errors = await asyncio.wait_for(process.communicate(), 60)
        return process.returncode, errors.decode()

    async def committed(self, group: str, topic: str) -> dict[str, int]:
        async with Session(self.source_place, clock=SystemClock(), rng=random.Random()) as zk:
            root = f"/consumers/{group}/offsets/{topic}"
            return {name: int((await zk.get(f"{root}/{name}"))[0] or b"") for name in await zk.children(root)}


@asynccontextmanager
async def clusters(directory: Path, zk_root: str) -> AsyncIterator[Clusters]:
    made = Clusters(directory, zk_root)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(made.source)
        await stack.enter_async_context(made.target)
        yield made


async def test_mirrors_each_partition(tmp_path: Path, zk_root: str) -> None:
    async with clusters(tmp_path, zk_root) as made:
        await made.produce("alpha", 500)
        await made.produce("beta", 300, codec=Codec.GZIP)
        await made.produce("other", 10)
        arguments = ("--whitelist", "alpha|beta", "--to-zookeeper", made.target_place, "--exit-at-end")
        code, errors = await made.mirror(*arguments, "--codec", "gzip")
        assert code == 0, errors
        for topic in ("alpha", "beta"):
            assert made.held(made.target, topic) == made.held(made.source, topic)
            ends = {f"0-{p}": self_size(made.source, topic, p) for p in range(PARTITIONS)}
            assert await made.committed("mirror", topic) == ends
        assert not any(made.held(made.target, "other"))
        # Once more: nothing is left to do. Then what is new, and only that.
        assert (await made.mirror(*arguments))[0] == 0
        await made.produce("alpha", 50, start=500)
        code, errors = await made.mirror(*arguments, "--verify")
        assert code == 0, errors
        assert made.held(made.target, "alpha") == made.held(made.source, "alpha")
        assert '"sent": 50' in errors


def self_size(broker: BrokerProcess, topic: str, partition: int) -> int:
    """The end of a log."""
    return sum(path.stat().st_size for path, _ in segments_of(broker.log_directory / f"{topic}-{partition}"))


@pytest.mark.parametrize("any_partition", [False, True])
async def test_mirrors_to_a_list_of_brokers(tmp_path: Path, zk_root: str, any_partition: bool) -> None:
    async with clusters(tmp_path, zk_root) as made:
        await made.produce("alpha", 300)
        arguments = ["--topic", "alpha", "--to-broker", made.target.address, "--exit-at-end", "--codec", "snappy"]
        code, errors = await made.mirror(*arguments, *(["--any-partition"] if any_partition else []))
        assert code == 0, errors
        source, target = made.held(made.source, "alpha"), made.held(made.target, "alpha")
        assert sorted(chain(*target)) == sorted(chain(*source))
        if not any_partition:
            assert target == source  # also though the topic is new there


async def test_reports_refused_or_missing_targets(tmp_path: Path, zk_root: str) -> None:
    async with clusters(tmp_path, zk_root) as made:
        await made.produce("alpha", 10)
        newer = f"{zk_root}/newer"
        async with Session(newer, clock=SystemClock(), rng=random.Random()) as zk:
            for path, data in (("/brokers", None), ("/brokers/ids", None), ("/brokers/ids/1", NEWER_BROKER)):
                await zk.create(path, data)
        to = ("--to-zookeeper", made.target_place)
        cases = [
            (("--topic", "alpha", "--to-broker", made.source.address), ExitCode.REFUSED, "of the source listens on"),
            (
                ("--topic", "alpha", "--to-zookeeper", f"{zk_root}/no"),
                ExitCode.NOT_FOUND,
                "does not exist in ZooKeeper at",
            ),
            (("--topic", "alhpa", "--exit-at-end", *to), ExitCode.NOT_FOUND, "no broker has registered the topic"),
            (
                ("--topic", "alpha", "--to-zookeeper", newer),
                ExitCode.ZOOKEEPER,
                "run Kafka 0.8 or later: use --to-bootstrap-server",
            ),
            (
                ("--topic", "alpha", "--exit-at-end", *to, "--from-zookeeper", newer),
                ExitCode.ZOOKEEPER,
                "the source's brokers run Kafka 0.8 or later",
            ),
            (
                ("--topic", "alpha", "--max-message-bytes", "3", *to),
                ExitCode.HANDLER_FAILED,
                "from offset 0: a message for topic 'alpha' has 7 bytes and the limit is 3",
            ),
        ]
        outcomes = await asyncio.gather(
            *[made.mirror(*arguments, group=f"g{n}") for n, (arguments, _, _) in enumerate(cases)]
        )
        for (code, errors), (_, expected, words) in zip(outcomes, cases, strict=True):
            assert code == expected, errors
            last = errors.splitlines()[-1]
            assert last.startswith("consumerd: ")
            assert words in last
            assert "Traceback" not in errors


async def test_two_members_mirror_new_topics_and_stop_gracefully(tmp_path: Path, zk_root: str) -> None:
    async with clusters(tmp_path, zk_root) as made, AsyncExitStack() as stack:
        await made.produce("alpha", 100)
        there = ("--from-zookeeper", made.source_place, "--to-zookeeper", made.target_place)
        back = ("--from-zookeeper", made.target_place, "--to-zookeeper", made.source_place)
        first, second = (
            MirrorProcess(tmp_path, *there, "--group", "there", "--whitelist", "alpha|gamma", name=name)
            for name in ("first", "second")
        )
        await stack.enter_async_context(first)
        await stack.enter_async_context(second)
        await made.produce("gamma", 60)
        await made.produce("alpha", 100, start=100)
        async with asyncio.timeout(60):
            while True:
                alpha, gamma = (list(chain(*made.held(made.target, topic))) for topic in ("alpha", "gamma"))
                if len(set(alpha)) == 200 and len(set(gamma)) == 60:
                    break
                await asyncio.sleep(0.1)
        assert await first.stop() == 0
        assert await second.stop() == 0
        assert not [event for event in first.events() if event["event"] == "reverse_mirror_detected"]
        # Nothing came twice, although the partitions changed hands.
        assert len(alpha) == 200
        assert len(gamma) == 60
        # The other way round is remarked upon where the first one still runs.
        await first.start()
        reverse = MirrorProcess(tmp_path, *back, "--group", "back", "--topic", "beta", "--topic", "alpha", name="back")
        await stack.enter_async_context(reverse)
        (warning,) = [event for event in reverse.events() if event["event"] == "reverse_mirror_detected"]
        assert warning["member"].startswith("there_mirror-")
        assert warning["topics"] == ["alpha"]
        reverse.kill()  # before it makes rounds


async def test_takes_the_source_from_a_daemons_configuration(tmp_path: Path, zk_root: str) -> None:
    async with clusters(tmp_path, zk_root) as made:
        await made.produce("alpha", 30)
        path = tmp_path / "source.toml"
        path.write_text(
            f'[group]\nid = "g"\ntopics = {{alpha = 1}}\nconsumer_id = "pod-0"\n[zookeeper]\n'
            f"connect = {json.dumps(made.source_place)}\n[handler]\nname = 'nowhere'\n[log]\nlevel = 'warning'\n"
        )
        process = await asyncio.create_subprocess_exec(
            *consumerd_command("mirror", "-c", str(path), "--to-broker", made.target.address, "--exit-at-end"),
            stderr=asyncio.subprocess.PIPE,
        )
        _, errors = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0, errors.decode()
        assert errors == b""
        assert made.held(made.target, "alpha") == made.held(made.source, "alpha")


async def test_ctrl_c_stops_gracefully(tmp_path: Path, zk_root: str) -> None:
    async with clusters(tmp_path, zk_root) as made:
        await made.produce("alpha", 30)
        process = MirrorProcess(
            tmp_path, "--from-zookeeper", made.source_place, "--group", "g", "--topic", "alpha",
            "--to-broker", made.target.address,
        )  # fmt: skip
        async with process:
            async with asyncio.timeout(60):
                while sum(map(len, made.held(made.target, "alpha"))) < 30:
                    await asyncio.sleep(0.05)
            process.child.signal(signal.SIGINT)
            assert await process.wait(20) == 0
        assert await made.committed("g", "alpha")
