"""What a user waits for: from the start of a member to its first message, from a member's end to the next owner's.

    python -m benchmarks startup                                         all cases: some 20 minutes
    python -m benchmarks startup --cases zk1,classic --members 1,2 --rounds 1
    python -m benchmarks startup --cases classic --subjects consumerd --timeline

Cases: `zk1`, `zk10` (a group in ZooKeeper, whose answers take 1 or 10 ms, on a broker of 3.9.1); `classic` and
`consumer` (a group at a broker of 4.x, by its classic protocol and by that of KIP-848). Beside consumerd are Kafka's
Java consumer of that release and confluent-kafka (librdkafka), where they can take part.

A message goes to each of ten partitions every 20 ms, so that a figure is waiting and not the absence of messages. All
members have default settings, but begin with what comes; the broker does not hold the first rebalance back
(`group.initial.rebalance.delay.ms`, 3 s by default, is 0). Seconds, less is better:

    start, N     from before the process is started to its first message, as the last one of a group of N
    handover, N  from SIGTERM to a member of N to the first message, at another, of a partition that it had; and
                 `all`: to that of the last such partition (Java's member leaves at the end of its input)
    reload       (consumerd) from SIGHUP, the commit interval being changed, to the event `configuration_reloaded`

With `--timeline` each figure of consumerd is followed by the events of its log, with the seconds at which they came.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks import latency_clients
from benchmarks.kafka_clients import quiet
from benchmarks.latency_clients import REPORT, message
from benchmarks.race import OURS, Measurement, compared, show_if_possible
from benchmarks.waiting import KafkaStage, add_options, client_command, handler, subjects
from consumerd.base.clock import SystemClock
from consumerd.base.java import find_java
from consumerd.demo.children import Child
from consumerd.demo.ports import free_port
from consumerd.demo.processes import clean_environment, format_toml, parse_event
from consumerd.demo.zookeeper import ZooKeeperServer
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.opening import ChannelOpener
from consumerd.net.client.settings import ClientSettings
from consumerd.net.connect import connect
from consumerd.net.zk.session import Session
from tests.support.jafka import java_command
from tests.support.jafka_clients import compile_java
from tests.support.kafka import RELEASES, KafkaBroker, kafka_jars

NAME = "startup"
PARTITIONS = 10
#: Seconds between two messages of a partition; for anything that is waited for; without a second reader, to be settled.
INTERVAL, PATIENCE, SETTLED = 0.02, 120.0, 1.0
ZOOKEEPER = {"zk1": 0.001, "zk10": 0.01}
CASES = (*ZOOKEEPER, "classic", "consumer")
JAVA, LIBRDKAFKA = "Java consumer", "confluent-kafka"
TESTS = Path(__file__).parents[1] / "tests" / "interop"


class Stage(KafkaStage):
    """A broker with its topic, whose partitions get messages all the time, and members of groups."""

    def __init__(
        self, folder: Path, broker: KafkaBroker, client: ClusterClient, case: str, zookeeper: str | None
    ) -> None:
        super().__init__(folder, broker, client)
        self.case = case
        self._zookeeper = zookeeper

    def config(self, topic: str, group: str) -> dict[str, dict[str, Any]]:
        found = super().config(topic, group)
        if self._zookeeper is not None:
            found["group"] = {"id": group, "topics": {topic: 1}}
            found["kafka"] = {}
            found["zookeeper"] = {"connect": self._zookeeper}
        elif self.case == "consumer":
            found["group"]["protocol"] = "consumer"
        return {**found, "log": {"format": "json"}}

    async def feed(self, topic: str) -> None:
        """A message to each partition every INTERVAL, until cancelled."""
        while True:
            now = time.monotonic_ns()
            await self.produce(topic, {number: [message(0, 0, now)] for number in range(PARTITIONS)})
            await asyncio.sleep(INTERVAL)

    def names(self, options: argparse.Namespace) -> dict[str, str | None]:
        """The subjects that can be members here, with the interpreter of ours."""
        ours = subjects(options, self.protocol)
        found: dict[str, str | None] = {name: python for name, python in ours.items() if python is not None}
        if self._zookeeper is None:
            wanted = tuple(options.subjects or ("",))
            found |= {name: None for name in (JAVA, LIBRDKAFKA) if name.startswith(wanted)}
        return found

    def member(self, name: str, python: str | None, topic: str, group: str) -> Noted:  # type: ignore[override]
        """Start a member; it need not have joined."""
        folder = self.folder / self.new_name("member")
        folder.mkdir()
        if python is not None:
            shutil.copy(latency_clients.__file__, folder)
            config = folder / "daemon.toml"
            config.write_text(format_toml({**self.config(topic, group), "handler": handler("note")}), "utf-8")
            command = [python, "-P", "-m", "consumerd", "run", "-c", str(config)]
        elif name == JAVA:
            # A group by its classic protocol is what both have by default.
            settings = ["auto.offset.reset=latest", *(["group.protocol=consumer"] if self.case == "consumer" else [])]
            classes, jars = self._classes()
            command = java_command(
                find_java(), [classes, *jars], folder, "KafkaMember", self.address, group, topic, *settings
            )
        else:
            own = ["group.protocol=consumer"] if self.case == "consumer" else []
            command = client_command("note", name, self.address, group, topic, *own)
        return Noted(command, folder, pipe=name == JAVA)

    @functools.cache  # noqa: B019 - one stage of a process
    def _classes(self) -> tuple[Path, list[Path]]:
        jars, classes = kafka_jars(self._broker.release), self.folder / "classes"
        compile_java(find_java(), [TESTS / "java" / "KafkaMember.java"], jars, classes)
        return classes, jars


class Noted:
    """A member in a process of its own that notes each message."""

    def __init__(self, command: Sequence[str], folder: Path, *, pipe: bool) -> None:
        self.folder = folder
        self._report = folder / "report"
        environ = {**clean_environment(), "PYTHONPATH": str(folder), REPORT: str(self._report)}
        self.child = Child(command, log=folder / "log", name=folder.name, env=environ, pipe=pipe)
        self.pipe = pipe
        #: When it was started: by the clock of messages, and by that of logs.
        self.began, self.wall = time.monotonic_ns(), time.time()
        self.child.start()

    def messages(self, since: int = 0) -> list[tuple[int, int]]:
        """(time, partition) of each message delivered after `since`, in order."""
        if self.pipe:
            said = [line.split(" ") for line in self.child.output().rpartition("\n")[0].splitlines()]
            found = [(int(line[1]), int(line[2])) for line in said if line[0] == "MSG"]
        else:
            text = self._report.read_text("ascii") if self._report.exists() else ""
            pairs = [line.split(" ") for line in text.rpartition("\n")[0].splitlines()]
            found = [(int(at), int(partition)) for partition, at in pairs]
        return [each for each in found if each[0] > since]

    async def first(self) -> float:
        """Seconds from its start to its first message."""
        end = time.monotonic() + PATIENCE
        while not (found := self.messages()):
            if self.child.returncode is not None or time.monotonic() > end:
                raise SystemExit(f"{self.child.argv} got no message: {self.child.tail()}")
            await asyncio.sleep(0.02)
        return (found[0][0] - self.began) / 1e9

    def leave(self) -> int:
        """Ask it to end; returns the time."""
        at = time.monotonic_ns()
        if self.pipe:
            self.child.close_stdin()
        else:
            self.child.terminate()
        return at

    def events(self, since: float, until: float) -> list[str]:
        """Seconds after `since` and name of each event of its log up to `until`, by the wall clock."""
        found = []
        for line in self.child.output().splitlines():
            if (event := parse_event(line)) is not None:
                at = datetime.fromisoformat(event["timestamp"]).timestamp()
                if since <= at <= until:
                    found.append(f"{at - since:8.3f} {event['event']}")
        return found


async def settled(members: Sequence[Noted]) -> dict[Noted, set[int]]:
    """Return once each partition has one reader and each member a partition; who has which."""
    end = time.monotonic() + PATIENCE
    while True:
        await asyncio.sleep(SETTLED)
        since = time.monotonic_ns() - int(SETTLED / 2 * 1e9)
        shares = {member: {partition for _, partition in member.messages(since)} for member in members}
        total = sum(map(len, shares.values()))
        if all(shares.values()) and total == PARTITIONS and len(set().union(*shares.values())) == PARTITIONS:
            return shares
        if time.monotonic() > end:
            ended = [member.child.tail() for member in members if member.child.returncode is not None]
            counts = sorted(map(len, shares.values()))
            raise SystemExit(f"a group of {len(members)} does not settle: partitions {counts}; {ended}")


async def taken_over(since: int, partitions: set[int], members: Sequence[Noted]) -> tuple[float, float]:
    """Seconds from `since` to the first message of one of `partitions` at one of `members`, and of all of them."""
    end = time.monotonic() + PATIENCE
    while True:
        first: dict[int, int] = {}
        for at, partition in sorted(found for member in members for found in member.messages(since)):
            if partition in partitions:
                first.setdefault(partition, at)
        if first.keys() == partitions:
            return (min(first.values()) - since) / 1e9, (max(first.values()) - since) / 1e9
        if time.monotonic() > end:
            raise SystemExit(f"nobody took over {sorted(partitions - first.keys())} within {PATIENCE:g} s")
        await asyncio.sleep(0.02)


class Round:
    """What one subject was measured at, in turns with the others."""

    def __init__(self, stage: Stage, options: argparse.Namespace) -> None:
        self._stage = stage
        self._options = options
        self.figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def _add(self, what: str, name: str, seconds: float, told: tuple[Noted, float] | None = None) -> None:
        """One figure; `told`: the daemon, and the time by the wall clock at which it began."""
        self.figures[f"{self._stage.case}, {what}"][name].append(seconds)
        if self._options.timeline and told is not None:
            member, since = told
            print(f"{self._stage.case}, {what}, {name}: {seconds:.3f} s", file=sys.stderr)
            for line in member.events(since, since + seconds + 0.05):
                print(f"  {line}", file=sys.stderr)

    async def group(self, name: str, python: str | None, topic: str, size: int) -> None:
        """Start a group of `size`, let one leave, and (of one) reload."""
        group = self._stage.new_name("group")
        members: list[Noted] = []
        ours = python is not None
        try:
            while len(members) < size - 1:
                members.append(self._stage.member(name, python, topic, group))
            if members:
                await settled(members)
            last = self._stage.member(name, python, topic, group)
            members.append(last)
            self._add(f"start, {size}", name, await last.first(), (last, last.wall) if ours else None)
            shares = await settled(members)
            if size > 1:
                leaver, *others = members
                wall, since = time.time(), leaver.leave()
                first, every = await taken_over(since, shares[leaver], others)
                self._add(f"handover, {size}", name, first, (leaver, wall) if ours else None)
                self._add(f"handover, {size}, all", name, every, (last, wall) if ours else None)
            elif ours:
                self._add("reload", name, await reload(last))
        finally:
            for member in members:
                member.leave()
            async with asyncio.TaskGroup() as ending:
                for member in members:
                    ending.create_task(member.child.stop(10))


async def reload(member: Noted) -> float:
    """Seconds from SIGHUP to the event."""
    config = member.folder / "daemon.toml"
    config.write_text(config.read_text("utf-8") + "[commit]\ninterval = 7.0\n", "utf-8")
    wall = time.time()
    member.child.signal(signal.SIGHUP)
    await member.child.wait_for_line(
        lambda line: (parse_event(line) or {}).get("event") == "configuration_reloaded", PATIENCE
    )
    (at,) = [
        datetime.fromisoformat(event["timestamp"]).timestamp()
        for event in map(parse_event, member.child.output().splitlines())
        if event is not None and event["event"] == "configuration_reloaded"
    ]
    return at - wall


@contextlib.asynccontextmanager
async def opened(case: str, options: argparse.Namespace) -> AsyncIterator[Stage]:
    """Start the servers of a case."""
    with tempfile.TemporaryDirectory(prefix="consumerd-bench-") as name:
        folder, settings, clock = Path(name), ClientSettings(), SystemClock()
        async with contextlib.AsyncExitStack() as stack:
            zookeeper = far = None
            if case in ZOOKEEPER:
                server = await stack.enter_async_context(ZooKeeperServer(folder / "zookeeper"))
                async with Session(server.connect, clock=clock, rng=random.Random()) as session:
                    await session.create("/kafka", b"")
                zookeeper = f"{server.connect}/kafka"
                port, target = free_port(), server.connect.rpartition(":")[2]
                script = TESTS / "clients" / "delaying_proxy.py"
                command = [sys.executable, str(script), str(port), target, str(ZOOKEEPER[case])]
                proxy = Child(command, log=folder / "proxy.log", name="proxy", pipe=True)
                stack.callback(proxy.end_now)
                proxy.start()
                await proxy.wait_for_line("READY".__eq__, 60.0)
                far = f"127.0.0.1:{port}/kafka"
            release = RELEASES["3.9.1" if case in ZOOKEEPER else options.release]
            jvm = ["-Xmx512m", "-XX:TieredStopAtLevel=4"]
            broker = KafkaBroker(folder / "broker", release, zookeeper, java=find_java(), jvm=jvm)
            await broker.start()
            stack.callback(broker.kill)
            opener = ChannelOpener(functools.partial(connect, settings=settings.connection), settings, clock)
            host, _, port_text = broker.address.rpartition(":")
            client = await stack.enter_async_context(
                ClusterClient([(host, int(port_text))], opener, settings, clock=clock, rng=random.Random())
            )
            yield Stage(folder, broker, client, case, far)


def rows_of(case: str, figures: Mapping[str, list[float]]) -> list[Measurement]:
    """Ours beside the others; each by itself where ours cannot take part."""
    if OURS in figures:
        return compared(NAME, case, "s", figures, less=True)
    return [
        Measurement(NAME, case, name, statistics.median(rounds), "s", rounds=len(rounds))
        for name, rounds in figures.items()
    ]


async def measure(options: argparse.Namespace) -> list[Measurement]:
    """All cases."""
    found: list[Measurement] = []
    for case in options.cases:
        async with opened(case, options) as stage:
            topic = await stage.topic(PARTITIONS)
            feeding = asyncio.create_task(stage.feed(topic))
            try:
                turns = Round(stage, options)
                for _ in range(options.rounds):
                    for size in options.members:
                        for name, python in stage.names(options).items():
                            await turns.group(name, python, topic, size)
                            if feeding.done():
                                feeding.result()
            finally:
                feeding.cancel()
                await asyncio.wait([feeding])
            for what, figures in turns.figures.items():
                found += rows_of(what, figures)
        print(f"{case} done", file=sys.stderr, flush=True)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Print a table or JSON."""
    description = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {NAME}", description=description)
    add_options(parser, rounds=3, seconds=0.0)
    parser.add_argument("--cases", type=lambda text: text.split(","), default=list(CASES), help=", ".join(CASES))
    parser.add_argument(
        "--members",
        type=lambda text: [int(size) for size in text.split(",")],
        default=[1, 2, 10],
        help="sizes of groups",
    )
    parser.add_argument("--release", default="4.1.0", help="of Kafka, for groups at a broker (default: 4.1.0)")
    parser.add_argument("--timeline", action="store_true", help="to standard error: the events of each figure of ours")
    options = parser.parse_args(arguments)
    quiet()
    if unknown := sorted(set(options.cases) - set(CASES)):
        parser.error(f"there is no case {', '.join(unknown)}: there is {', '.join(CASES)}")
    return show_if_possible(lambda: asyncio.run(measure(options)), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
