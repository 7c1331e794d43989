"""One run: start everything, inject faults until the time is over, let things calm down, count."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from consumerd.base.java import MissingRuntimeError, find_java
from tests.support.kafka import RELEASES
from tests.support.postgres import PostgresServer, find_postgres
from tests.support.server_network import NoNetworkError, ServerNetwork
from tests.support.slow_disk import build_library
from tests.support.small_disk import small_disk
from tests.torture.account import Account, count
from tests.torture.play import Player
from tests.torture.report import Report
from tests.torture.schedule import Size, episodes
from tests.torture.sinks import DATABASE, FILES, Sinks
from tests.torture.stage import PATIENCE, SESSION_TIMEOUT, Log, Stage
from tests.torture.stage_v07 import OwnBrokerStage
from tests.torture.stage_v08 import CoordinatedStage, ZooKeeperKafkaStage
from tests.torture.watch import Watch

_DISK_BYTES: Final = 4 << 20
_CALM_SECONDS: Final = 120.0
_COUNT_PAUSE: Final = 1.0


@dataclass(frozen=True, slots=True)
class Options:
    """`seconds` of faults; `episodes` ends them earlier. `full_disks`: a small file system can be mounted here.

    `brokers`: a release of Kafka, None for consumerd's own broker of 0.7. `coordination`: `zookeeper` or `kafka`; by
    default in ZooKeeper up to 2.8. `cluster`: how many real brokers. `sinks`: exactly-once sinks beside the members;
    None: `files`, and `database` where PostgreSQL is installed. `files_handler`: another one in place of `files`.
    """

    seed: int
    seconds: float
    partitions: int = 8
    members: int = 3
    servers: int = 3
    kinds: tuple[str, ...] = ()
    full_disks: bool = True
    episodes: int | None = None
    brokers: str | None = None
    coordination: Literal["zookeeper", "kafka"] | None = None
    cluster: int = 1
    sinks: tuple[str, ...] | None = None
    files_handler: str = "files"


def choose_coordination(
    brokers: str | None, coordination: Literal["zookeeper", "kafka"] | None
) -> Literal["zookeeper", "kafka"]:
    """Where groups are coordinated. Raises ValueError for what the brokers do not have."""
    if brokers is None:
        if coordination == "kafka":
            raise ValueError("consumerd's own broker does not coordinate groups: give --brokers a release of Kafka")
        return "zookeeper"
    release = RELEASES[brokers]
    chosen = coordination or ("kafka" if release.kraft else "zookeeper")
    if chosen == "kafka" and release.number < (0, 9):
        raise ValueError(f"brokers of Kafka {brokers} do not coordinate groups: those of 0.9 and later do")
    if chosen == "zookeeper" and not release.zookeeper:
        raise ValueError(f"Kafka {brokers} has no ZooKeeper: those before 4.0 have")
    return chosen


def make_stage(options: Options, directory: Path, disk: Path) -> Stage:
    """The kind of stage that is asked for. Raises ValueError for one that does not exist."""
    coordination = choose_coordination(options.brokers, options.coordination)
    partitions, servers = options.partitions, options.servers
    if options.brokers is None:
        return OwnBrokerStage(directory, partitions=partitions, servers=servers, disk=disk)
    release = RELEASES[options.brokers]
    if coordination == "zookeeper":
        return ZooKeeperKafkaStage(
            directory, release, partitions=partitions, servers=servers, disk=disk, count=options.cluster
        )
    return CoordinatedStage(
        directory, release,
        members=options.members, partitions=partitions, disk=disk, count=options.cluster,
        servers=0 if release.kraft else 1,  # of ZooKeeper for brokers before KRaft, which does not suffer
    )  # fmt: skip


async def torture(options: Options, directory: Path, progress: Callable[[str], None]) -> Report:
    """Run in `directory`, which keeps all logs. `progress` gets a line for each episode."""
    with contextlib.ExitStack() as stack:
        disk = directory / "disk"
        if options.full_disks:
            stack.enter_context(small_disk(disk, _DISK_BYTES))
        else:
            disk.mkdir()
        sinks = None
        if chosen := choose_sinks(options.sinks):
            dsn = None
            if DATABASE in chosen:
                dsn = (await asyncio.to_thread(stack.enter_context, PostgresServer())).dsn
            sinks = Sinks(directory / "files", dsn, files_handler=options.files_handler)
        stage = make_stage(options, directory, disk)
        stage.sinks = sinks
        with contextlib.suppress(MissingRuntimeError):
            stage.slow_library = await asyncio.to_thread(build_library, directory)
        if stage.zookeeper_faults:
            network = None
            if len(stage.zookeepers) > 1:
                try:
                    network = await asyncio.to_thread(stack.enter_context, ServerNetwork(len(stage.zookeepers)))
                except NoNetworkError as error:
                    progress(f"servers of ZooKeeper are never cut from each other: {error}")
            stage.equip_zookeeper(await asyncio.to_thread(find_java), network)
        return await _torture(options, directory, stage, progress)


def slow_disks(stage: Stage) -> tuple[str, ...]:
    """Whose disks can be slow: those of members with files, of consumerd's own broker, of ZooKeeper."""
    can = {
        "member": stage.slow_library is not None and stage.sinks is not None,
        "broker": bool(stage.slow_brokers),
        "zookeeper": bool(stage.slow_zookeepers),
    }
    return tuple(name for name, slow in can.items() if slow)


def choose_sinks(asked: tuple[str, ...] | None) -> tuple[str, ...]:
    """The sinks of a run: those that are asked for, else all that this machine has."""
    if asked is not None:
        return asked
    try:
        find_postgres()
    except MissingRuntimeError:
        return (FILES,)
    return (FILES, DATABASE)


async def _torture(options: Options, directory: Path, stage: Stage, progress: Callable[[str], None]) -> Report:
    stop = asyncio.Event()
    async with stage:
        size = Size(
            options.members, stage.zookeeper_faults, SESSION_TIMEOUT, options.kinds, options.full_disks,
            member_links=stage.member_links, brokers=len(stage.brokers),
            slow_disks=slow_disks(stage), little_memory=True, zookeeper_links=stage.network is not None,
            secured=stage.lock is not None,
        )  # fmt: skip
        watch = Watch(stage)
        player = Player(stage, watch, options.members, progress)
        watching = asyncio.create_task(watch.run())
        producing = asyncio.create_task(stage.produce(stop))
        try:
            await stage.warm_up()
            await asyncio.gather(*(stage.join(0.02) for _ in range(options.members)))
            if not await watch.wait_settled(PATIENCE):
                raise RuntimeError(f"the group never began: its logs are in {directory}")
            started = time.monotonic()
            for number, episode in enumerate(episodes(options.seed, size)):
                over = time.monotonic() - started >= options.seconds
                if over or number == options.episodes or watching.done() or producing.done():
                    break
                await player.episode(episode)
            seconds = time.monotonic() - started
            for task in (watching, producing):
                if task.done():
                    task.result()  # raises what ended it
            progress("calm")
            stop.set()
            await producing
            if not await watch.wait_settled(PATIENCE):
                player.findings.append(f"not every partition had an owner {PATIENCE:g} s after the last fault")
            account, log = await _count(stage, player)
            sinks = {} if stage.sinks is None else await stage.sinks.wait_exact(log, _CALM_SECONDS)
            await watch.read_offsets()
            return Report(
                options.seed, seconds, options.partitions, len(stage.zookeepers), account, player, watch.set_back,
                await stage.group.shares(), stage.load(), stage.title, sinks,
            )  # fmt: skip
        finally:
            stop.set()
            watching.cancel()
            producing.cancel()
            await asyncio.gather(watching, producing, return_exceptions=True)


async def _count(stage: Stage, player: Player) -> tuple[Account, Log]:
    """Count until everything was delivered, or no longer than it may take; the log with which it was compared."""
    end = time.monotonic() + _CALM_SECONDS
    while True:
        log = await stage.read_log()
        account = await asyncio.to_thread(count, stage, log, player.causes)
        if account.complete or time.monotonic() > end:
            return account, log
        await asyncio.sleep(_COUNT_PAUSE)
