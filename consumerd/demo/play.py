"""The demo's play: set the stage, let things happen to the group, wait for silence, count.

Strategy: everything is real and separate: a ZooKeeper, two broker processes, three daemon processes. Three tasks share
the play: the feed produces, the watch looks from outside (and notices a child that ends by itself), the script makes
things happen when the feed has come so far. The count at the end is made from the brokers' segment files and the
members' record files alone; a pipeline then lands what the members stored, and has to find the same number. However the
play ends, its processes end with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from consumerd.base.partition import TopicPartition
from consumerd.base.ports import Clock
from consumerd.base.settings.monitoring import HealthSection
from consumerd.demo.audit import audit, merge_records
from consumerd.demo.children import Child
from consumerd.demo.corpus import Corpus, Measure, measure, named_corpus, standard_library
from consumerd.demo.errors import ChildError, DemoInputError
from consumerd.demo.feed import Feed, message_limit
from consumerd.demo.ledger import Ledger, PartitionLedger
from consumerd.demo.pipeline import Pipeline, PipelineResult, missing_package
from consumerd.demo.processes import BrokerProcess, DaemonProcess
from consumerd.demo.result import DemoOptions, DemoResult
from consumerd.demo.view import MemberStanding, Standing, View
from consumerd.demo.watch import DemoSnapshot, Watch
from consumerd.demo.zookeeper import ZooKeeperServer
from consumerd.net.zk.session import Session
from consumerd.service.daemon.endpoints import check_http
from consumerd.wire.v07 import DecodeLimits

GROUP: Final = "demo"
TOPIC: Final = "lines"
BROKERS: Final = 2
PARTITIONS: Final = 4
#: Seconds after which ZooKeeper ends the session of a member that was killed.
SESSION_TIMEOUT: Final = 3.0
COMMIT_INTERVAL: Final = 1.0
_LOOK_EVERY: Final = 0.2
#: Seconds that a group has to assign its partitions, or to reduce its lag, before the demo reports it as stuck.
_PATIENCE: Final = 60.0
#: The endpoints of daemons that continue after the count, and the lines that they receive per second.
_SERVED: Final = HealthSection(listen="127.0.0.1:0", metrics=True)
_LINES_PER_SECOND: Final = 400


class _Endless(Corpus):
    """The same lines again and again."""

    def lines(self) -> Iterator[bytes]:
        while True:
            yield from super().lines()


class _Forgetful(Ledger):
    """A ledger for lines that are not counted."""

    def partition(self, partition: TopicPartition) -> PartitionLedger:
        return PartitionLedger()


class Demo:
    """One run. `await run()` once."""

    def __init__(self, options: DemoOptions, view: View, *, clock: Clock, rng: random.Random) -> None:
        self._options = options
        self._view = view
        self._clock = clock
        self._rng = rng
        self._started = clock.monotonic()
        self._brokers: list[BrokerProcess] = []
        self._daemons: list[DaemonProcess] = []
        #: What makes tables at the end, and its process, whose Spark starts before.
        self._pipeline: tuple[Pipeline, Child] | None = None
        #: The way in which the script ended a daemon, by name; one that is not in here has to run.
        self._ended: dict[str, str] = {}
        self._snapshot = DemoSnapshot()
        #: When the read of `_snapshot` began.
        self._snapshot_began = -1.0
        self._looked = asyncio.Condition()

    @property
    def _seconds(self) -> float:
        return self._clock.monotonic() - self._started

    def _tell(self, text: str) -> None:
        self._view.happened(self._seconds, text)

    async def run(self, finished: Callable[[DemoResult], None] = lambda _: None) -> DemoResult:
        """Play and count. Raises ConsumerdError when the play cannot continue. Leaves no process behind.

        `finished` is called with the result; with the option `keep` the daemons then run until this is cancelled.
        """
        if self._options.keep:
            check_http(_SERVED)
        named = self._options.input
        corpus = await asyncio.to_thread(standard_library if named is None else lambda: named_corpus(named))
        size = await asyncio.to_thread(measure, corpus)
        message_limit(size)
        with self._directory() as directory:
            return await self._run_in(directory, corpus, size, finished)

    @contextlib.contextmanager
    def _directory(self) -> Iterator[Path]:
        files = self._options.files
        if files is not None:
            try:
                files.mkdir(parents=True, exist_ok=True)
                if any(files.iterdir()):
                    raise DemoInputError(f"{files} is not empty: name a new directory for the files of the run")
            except OSError as error:
                raise DemoInputError(f"cannot write the files of the run to {files}: {error.strerror}") from error
            yield files.absolute()
            return
        made = Path(tempfile.mkdtemp(prefix="consumerd-demo-"))
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)

    async def _run_in(
        self, directory: Path, corpus: Corpus, size: Measure, finished: Callable[[DemoResult], None]
    ) -> DemoResult:
        ledger = Ledger()
        records = directory / "records"
        records.mkdir()
        self._tell(f"{size.lines:,} lines of {corpus.name}, {size.bytes:,} bytes, the longest has {size.longest:,}")
        with contextlib.ExitStack() as children:
            zookeeper = ZooKeeperServer(directory / "zookeeper")
            children.callback(zookeeper.kill)
            await zookeeper.start()
            self._tell(f"ZooKeeper serves on {zookeeper.connect}")
            await self._start_brokers(directory, zookeeper.connect, size, children)
            self._daemons = [self._daemon(directory, number, zookeeper.connect, size) for number in (1, 2, 3)]
            for daemon in self._daemons:
                children.callback(daemon.kill)
            await self._start_spark(directory, children)
            await self._play(zookeeper.connect, ledger, corpus, size, records)
            if not self._options.keep:
                for broker in self._brokers:
                    await broker.stop()
                await zookeeper.stop()
            result = await asyncio.to_thread(self._count, ledger, records, message_limit(size))
            if result.audit.sound and self._pipeline is not None:
                result = replace(result, pipeline=await self._land(*self._pipeline), seconds=self._seconds)
            elif self._pipeline is not None:
                await self._pipeline[1].stop()
            finished(result)
            if self._options.keep:
                await self._go_on(corpus, size)
        return result

    async def _go_on(self, corpus: Corpus, size: Measure) -> None:
        """Restart the daemons, with status pages, and send them lines, until cancelled."""
        for daemon in self._daemons:
            daemon.config["handler"] = {"name": "null"}
            # The printed address contains the token, which allows to pause a partition.
            token = secrets.token_hex(16)
            daemon.config["health"] = {"listen": _SERVED.listen, "metrics": _SERVED.metrics, "token": token}
            daemon.config["metrics"] = {"lag_interval": 2.0}
            await daemon.start()
            listening = await daemon.wait_for_event("http_listening", 30.0)
            self._tell(f"{daemon.name}: {listening['url'].replace('//', f'//demo:{token}@')}")
        self._tell("the demo goes on until it is stopped (Ctrl-C)")
        if not size.lines:
            await asyncio.Event().wait()
        ports = {broker.broker_id: broker.port for broker in self._brokers}
        feed = Feed(
            _Endless(corpus.files, corpus.name, corpus.max_lines, corpus.max_bytes), size, _Forgetful(), TOPIC, ports,
            PARTITIONS, seconds=size.lines / _LINES_PER_SECOND, clock=self._clock, rng=self._rng,
        )  # fmt: skip
        await feed.allow(math.inf)
        await feed.run()

    async def _start_spark(self, directory: Path, children: contextlib.ExitStack) -> None:
        """Start Spark while the daemons work, unless it is not installed or not to be used."""
        if not self._options.spark:
            return
        if (package := missing_package()) is not None:
            self._tell(f"no tables without the package {package}: pip install 'consumerd[spark]'")
            return
        pipeline = Pipeline(directory / "pipeline", directory / "files", TOPIC, self._options.report)
        child = await asyncio.to_thread(pipeline.prepare)
        children.callback(child.end_now)
        child.start()
        self._pipeline = pipeline, child

    async def _land(self, pipeline: Pipeline, child: Child) -> PipelineResult:
        self._tell("Spark lands what the daemons stored")
        await asyncio.to_thread(pipeline.declare, sum(self._snapshot.ends.values()))
        await pipeline.run(child, self._tell)
        result = await asyncio.to_thread(pipeline.result, child)
        self._tell(f"{result.rows_landed:,} rows landed, {result.gaps} gaps, {result.duplicates} duplicates")
        return result

    # -- the stage

    async def _start_brokers(
        self, directory: Path, zookeeper: str, size: Measure, children: contextlib.ExitStack
    ) -> None:
        limit = message_limit(size)
        settings = {
            "log.default.flush.scheduler.interval.ms": 100,
            "log.file.size": max(512 << 10, size.bytes // 64),  # so that segments roll
            "max.message.size": limit,
            "max.socket.request.bytes": max(100 << 20, limit + (2 << 20)),
        }
        for number in range(BROKERS):
            broker = BrokerProcess(
                directory / f"broker-{number}", zookeeper, broker_id=number, partitions=PARTITIONS, settings=settings
            )
            self._brokers.append(broker)
            children.callback(broker.kill)
        async with asyncio.TaskGroup() as group:
            for broker in self._brokers:
                group.create_task(broker.start())
        self._tell(f"brokers listen on {' and '.join(broker.address for broker in self._brokers)}")

    def _daemon(self, directory: Path, number: int, zookeeper: str, size: Measure) -> DaemonProcess:
        limit = message_limit(size)
        config: dict[str, dict[str, Any]] = {
            "group": {"id": GROUP, "consumer_id": f"daemon-{number}", "topics": {TOPIC: 1}},
            "zookeeper": {"connect": zookeeper, "session_timeout": SESSION_TIMEOUT},
            "fetch": {
                "max_size": max(64 << 20, limit + (1 << 20)),
                "partition_budget": max(16 << 20, 2 * limit),
                "budget": max(128 << 20, 4 * limit),
            },
            "commit": {"interval": COMMIT_INTERVAL},
            "handler": {
                "name": "consumerd.demo.recorder:RecordedFilesHandler",
                "options": {"records": str(directory / "records"), "files": str(directory / "files")},
            },
        }
        return DaemonProcess(directory / "daemons", config, name=f"daemon-{number}")

    # -- the play

    async def _play(self, zookeeper: str, ledger: Ledger, corpus: Corpus, size: Measure, records: Path) -> None:
        ports = {broker.broker_id: broker.port for broker in self._brokers}
        feed = Feed(
            corpus, size, ledger, TOPIC, ports, PARTITIONS,
            seconds=self._options.seconds, clock=self._clock, rng=self._rng,
        )  # fmt: skip
        logs = {broker.broker_id: broker.log_directory for broker in self._brokers}
        async with Session(zookeeper, clock=self._clock, rng=self._rng) as session:
            watch = Watch(session, GROUP, feed.partitions, logs, records)
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(self._watch(watch, feed, size), name="watch")
                feeding = group.create_task(feed.run(), name="feed")
                await self._script(feed, feeding)
                watching.cancel()

    async def _watch(self, watch: Watch, feed: Feed, size: Measure) -> None:
        while True:
            self._check_children()
            began = self._clock.monotonic()
            snapshot = await watch.read_snapshot()
            async with self._looked:
                self._snapshot, self._snapshot_began = snapshot, began
                self._looked.notify_all()
            self._view.update(
                Standing(self._seconds, feed.sent, size.lines, snapshot.handled, snapshot.lag, self._members(snapshot))
            )
            await self._clock.sleep(_LOOK_EVERY)

    def _check_children(self) -> None:
        started = [daemon for daemon in self._daemons if daemon.started and daemon.name not in self._ended]
        for process in (*self._brokers, *started):
            if not process.running:
                raise ChildError(
                    f"{process.name} exited unexpectedly with status {process.returncode}: {process.child.tail()}"
                )

    def _members(self, snapshot: DemoSnapshot) -> list[MemberStanding]:
        return [
            MemberStanding(
                daemon.name,
                self._ended.get(daemon.name, "running"),
                sum(owner == f"{GROUP}_{daemon.name}" for owner in snapshot.owners.values()),
            )
            for daemon in self._daemons
            if daemon.started
        ]

    async def _wait_for(
        self, what: str, condition: Callable[[DemoSnapshot], bool], progress: Callable[[DemoSnapshot], object]
    ) -> None:
        """Return when a snapshot that begins after the call fulfils `condition`.

        Raises ChildError when `progress` stands still for too long.
        """
        last: object = None
        began = since = self._clock.monotonic()
        async with self._looked:
            while self._snapshot_began < began or not condition(self._snapshot):
                if (now := progress(self._snapshot)) != last:
                    last, since = now, self._clock.monotonic()
                if self._clock.monotonic() - since > _PATIENCE:
                    raise ChildError(f"{what} did not happen within {_PATIENCE:g} s: {self._snapshot}")
                await self._looked.wait()

    async def _shared(self, *daemons: DaemonProcess) -> None:
        """Return when exactly these daemons own all partitions."""
        wanted = {f"{GROUP}_{daemon.name}" for daemon in daemons}

        def shared(snapshot: DemoSnapshot) -> bool:
            held = {snapshot.owners.get(partition) for partition in snapshot.holding}
            return bool(held) and held <= wanted and (held == wanted or len(snapshot.holding) < BROKERS * PARTITIONS)

        await self._wait_for(
            f"a group of {len(daemons)} members", shared, lambda snapshot: (snapshot.owners, snapshot.holding)
        )

    async def _script(self, feed: Feed, feeding: asyncio.Task[None]) -> None:
        first, second, third = self._daemons
        await feed.allow(0.35)
        await feed.reached(0.05)
        async with asyncio.TaskGroup() as group:
            group.create_task(first.start())
            group.create_task(second.start())
        await self._shared(first, second)
        self._tell(f"{first.name} and {second.name} share the partitions")
        await feed.allow(0.55)
        await feed.reached(0.3)
        await third.start()
        await self._shared(first, second, third)
        self._tell(f"{third.name} joined and has its share")
        await feed.allow(0.8)
        await feed.reached(0.5)
        await self._between_commits(first, feed)
        self._ended[first.name] = "killed"
        first.kill()
        self._tell(f"{first.name} killed with SIGKILL; ZooKeeper notices within {SESSION_TIMEOUT:g} s")
        await feed.allow(0.95)
        await feed.reached(0.75)
        await self._stop(second)
        self._tell(f"{second.name} stopped with SIGTERM: drained, committed, released")
        await feed.allow(1.0)
        await feeding
        self._tell(f"all {feed.sent:,} lines are produced")
        await self._shared(third)
        await self._wait_for(
            "lag 0", lambda snapshot: not snapshot.lag, lambda snapshot: (snapshot.committed, snapshot.handled)
        )
        self._tell("lag is 0")
        await self._stop(third)

    async def _between_commits(self, daemon: DaemonProcess, feed: Feed) -> None:
        """Return half an interval after a commit of this member: a kill right behind a commit would show little.

        With nothing left to handle no further commit may follow.
        """
        name = f"{GROUP}_{daemon.name}"
        before = dict(self._snapshot.committed)

        def committed(snapshot: DemoSnapshot) -> bool:
            mine = (partition for partition, owner in snapshot.owners.items() if owner == name)
            done = feed.idle and not snapshot.lag
            return done or any(snapshot.committed.get(each) != before.get(each) for each in mine)

        await self._wait_for(f"a commit of {daemon.name}", committed, lambda snapshot: snapshot.handled)
        await self._clock.sleep(COMMIT_INTERVAL / 2)

    async def _stop(self, daemon: DaemonProcess) -> None:
        self._ended[daemon.name] = "stopped"
        if status := await daemon.stop():
            raise ChildError(
                f"{daemon.name} did not stop cleanly but exited with status {status}: {daemon.child.tail()}"
            )

    # -- the count

    def _count(self, ledger: Ledger, records: Path, limit: int) -> DemoResult:
        limits = DecodeLimits(max_message_bytes=limit, max_decompressed_bytes=max(64 << 20, limit))
        logs = {broker.broker_id: broker.log_directory for broker in self._brokers}
        for partition in list(ledger.partitions):
            ledger.read_log(logs[partition.broker], partition, limits=limits)
        result = audit(ledger, merge_records(sorted(records.glob("*.ndjson"))))
        rebalances = sum(event["event"] == "rebalanced" for daemon in self._daemons for event in daemon.events())
        return DemoResult(result, rebalances, self._seconds)
