"""What happens to the group, and what is measured of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import psutil

from benchmarks.group_stage.account import Account
from benchmarks.group_stage.feed import Feed
from benchmarks.group_stage.figures import Figures
from benchmarks.group_stage.line import HEARTBEATS, Line
from benchmarks.group_stage.members import TOPIC, Member, Ours
from benchmarks.group_stage.stage import Stage, UnsettledError, until
from consumerd.base.clock import SystemClock
from consumerd.demo.processes import BrokerProcess
from consumerd.net.zk.session import Session
from consumerd.wire.registry.paths import topic_broker_path

if TYPE_CHECKING:
    import argparse

#: A message that nobody was handed, so many seconds after the last hand-over of any, is lost.
QUIET = 8.0
#: Seconds for a member's log to say that it reads all that it owns.
BEGIN = 20.0
#: Seconds until a member that has just started is idle: its first commit and its caches' are done.
REST = 15.0
#: Promises: seconds of a graceful stop, percent of a core when idle, seconds from the last of many registrations.
STOP_SECONDS = 2.0
IDLE_PERCENT = 1.0
START_SECONDS = 5.0


async def check_line(stage: Stage, figures: Figures) -> None:
    """How long a round trip takes, and that what is in flight waits for nothing else."""
    path = topic_broker_path(TOPIC, 0)
    async with (
        Line(stage.zookeeper.port, stage.milliseconds) as line,
        Session(f"{line.connect}/kafka", clock=SystemClock(), rng=random.Random(1)) as zk,
    ):
        times = []
        for _ in range(30):
            began = time.monotonic()
            await zk.exists(path)
            times.append(time.monotonic() - began)
        began = time.monotonic()
        await asyncio.gather(*(zk.get(path) for _ in range(1000)))
        burst = time.monotonic() - began
    figures.add("ZooKeeper's round trip", statistics.median(times) * 1000, "ms")
    figures.add("1,000 pipelined reads", burst * 1000, "ms")
    figures.add("load average before", os.getloadavg()[0], "")


class Requests:
    """Requests of members since the last look, heartbeats left out."""

    def __init__(self, members: Sequence[Member], figures: Figures) -> None:
        self._members = members
        self._figures = figures
        self._counts = {member.name: Counter(member.line.counts) for member in members}

    def tell(self, event: str, *, each: bool = True, limit: float | None = None) -> None:
        """Add them to the figures as those of `event`; by member and kind, or all together."""
        total: Counter[str] = Counter()
        for member in self._members:
            spent = Counter(member.line.counts) - self._counts[member.name]
            for kind in HEARTBEATS:
                del spent[kind]
            self._counts[member.name] = Counter(member.line.counts)
            total += spent
            if each and spent:
                self._figures.spread(f"{event}: requests of {member.name}", spent, "", detail=True)
        if not each:
            self._figures.spread(f"{event}: requests", total, "", limit, detail=True)


async def came(
    what: str, figures: Figures, since: float, settled: Awaitable[float], limit: float | None = None
) -> None:
    """Seconds from `since` until the group settled; a promise is broken if it does not."""
    try:
        at = await settled
    except UnsettledError as error:
        figures.fail(f"{what}: {error}")
    else:
        figures.add(what, max(0.0, at - since), "s", limit)  # before it, where nothing had to move


async def finish(account: Account, members: Sequence[Member], since: float) -> None:
    """Wait until everything was delivered, or nothing has been for long.

    The members' lines to ZooKeeper are on this loop: a million messages are counted in a thread beside it, or else
    sessions would expire.
    """
    last = time.monotonic()
    while time.monotonic() - last < QUIET:
        if await asyncio.to_thread(account.read, members):
            last = time.monotonic()
        elif not await asyncio.to_thread(account.missing, since):
            return
        await asyncio.sleep(0.2)


async def report(account: Account, stage: Stage, figures: Figures, since: float) -> None:
    """Lost and repeated, and what the logs say of commits."""
    figures.add("messages", sum(sent.at >= since for sent in stage.feed.sent.values()), "")
    figures.spread("lost", await asyncio.to_thread(account.lost, since), "", 0)
    peers = {member.name for member in stage.members if member.reads_early}
    by_member = len(stage.members) == 2
    repeated, read_early = await asyncio.to_thread(account.repeated, by_member=by_member, peers=peers)
    figures.spread("repeated", repeated, "", 0)
    if peers:
        figures.spread("repeated, read by a peer before it claimed", read_early, "")
    late_commits(stage.members, figures)
    figures.add("load average after", os.getloadavg()[0], "")


def late_commits(members: Sequence[Member], figures: Figures) -> None:
    """What the logs say of last commits."""
    figures.add("last commits timed out", sum(member.late_commits() for member in members), "", 0)
    figures.add("positions not committed", sum(member.not_committed() for member in members), "", 0)


async def all_begun(members: Sequence[Member], partitions: int) -> None:
    """Return when the members say that they read everything, or do not say it in time."""

    def begun() -> bool:
        counts = [member.begun() for member in members]
        return None not in counts and sum(filter(None, counts)) >= partitions

    await until(begun, BEGIN if all(member.begun() is not None for member in members) else 3.0)


async def join_leave(stage: Stage, options: argparse.Namespace, figures: Figures) -> None:
    """The first member owns all, the second joins, both share, the second leaves, the first owns all again."""
    first = await stage.member(options.first, "first", options.initial)
    second = await stage.member(options.second, "second", options.initial)
    account, requests = Account(stage.feed.sent), Requests([first, second], figures)
    since = 0.0
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        if options.initial == "earliest":
            await stack.enter_async_context(stage.feed.running())
        starting = group.create_task(first.start())
        await asyncio.sleep(0)
        await came("first owns all", figures, first.started, stage.settled([first]))
        await starting
        await all_begun([first], stage.partitions)
        requests.tell("start")
        if options.initial == "latest":
            since = time.monotonic()
            await stack.enter_async_context(stage.feed.running())
        await asyncio.sleep(options.hold)

        account.phase(time.monotonic(), "join")
        starting = group.create_task(second.start())
        await asyncio.sleep(0)
        await came("shared", figures, second.started, stage.settled([first, second]))
        await starting
        await asyncio.sleep(options.hold)
        requests.tell("join")

        account.phase(time.monotonic(), "leave")
        left = time.time()
        leaving = group.create_task(second.leave())
        await came("owned again", figures, left, stage.settled([first]))
        figures.add("second has ended", await leaving, "s")
        await asyncio.sleep(options.hold)
        requests.tell("leave")
    await finish(account, [first, second], since)
    await report(account, stage, figures, since)
    await first.leave()


async def stop(stage: Stage, options: argparse.Namespace, figures: Figures) -> None:
    """One member that owns all is stopped by SIGTERM while messages come in."""
    member = await stage.member(options.first, "first", options.initial)
    account, requests = Account(stage.feed.sent), Requests([member], figures)
    async with stage.feed.running(), asyncio.TaskGroup() as group:
        starting = group.create_task(member.start())
        await asyncio.sleep(0)
        await came("first owns all", figures, member.started, stage.settled([member]))
        await starting
        await all_begun([member], stage.partitions)
        await asyncio.sleep(options.hold)
        requests.tell("start")
        figures.add("stopped", await member.leave(), "s", STOP_SECONDS)
        requests.tell("stop")
    account.read([member])
    committed = await stage.committed()
    late = [number for number, offset in account.reached.items() if committed.get(number, -1) <= offset]
    figures.add("positions", len(account.reached), "")
    figures.add("not committed", len(late), "", 0)
    late_commits([member], figures)
    figures.add("load average after", os.getloadavg()[0], "")


async def idle(stage: Stage, options: argparse.Namespace, figures: Figures) -> None:
    """One member that owns all, and nothing comes in: what it costs."""
    member = await stage.member("ours", "first", options.initial)
    assert isinstance(member, Ours)
    await member.start()
    await came("first owns all", figures, member.started, stage.settled([member]))
    await asyncio.sleep(REST)
    process = psutil.Process(member.process.pid)
    requests, beats = Requests([member], figures), member.line.heartbeats
    before, began = process.cpu_times(), time.monotonic()
    await asyncio.sleep(options.seconds)
    after, seconds = process.cpu_times(), time.monotonic() - began
    used = after.user + after.system - before.user - before.system
    figures.add("processor", used / seconds * 100, "%", IDLE_PERCENT)
    figures.add("heartbeats", member.line.heartbeats - beats, "")
    requests.tell(f"{seconds:.0f} s")
    figures.add("memory", process.memory_info().rss / 2**20, "MiB")
    figures.add("load average after", os.getloadavg()[0], "")
    await member.leave()


async def gather_group(
    stage: Stage, count: int, options: argparse.Namespace, figures: Figures, limit: float | None
) -> list[Member]:
    """Start so many daemons at once, and wait until they share."""
    names = [f"member-{number:03d}" for number in range(count)]
    members = [await stage.member("ours", name, options.initial, forked=True) for name in names]
    requests = Requests(members, figures)
    began = time.time()
    await asyncio.gather(*(member.start() for member in members))
    last = max([await stage.registered(member) for member in members])
    figures.add("last one registered", last - began, "s")
    await came("settled after that", figures, last, stage.settled(members), limit)
    await asyncio.sleep(options.hold)
    requests.tell("start", each=False)
    return members


async def leave_all(members: Sequence[Member], figures: Figures) -> None:
    """All leave at once."""
    figures.add("all have ended", max(await asyncio.gather(*(member.leave() for member in members))), "s")


async def start(stage: Stage, options: argparse.Namespace, figures: Figures) -> None:
    """`--members` daemons started at once, while messages come in."""
    account = Account(stage.feed.sent)
    async with stage.feed.running():
        members = await gather_group(stage, options.members, options, figures, START_SECONDS)
    await finish(account, members, 0.0)
    await report(account, stage, figures, 0.0)
    await leave_all(members, figures)


async def more(stage: Stage, options: argparse.Namespace, figures: Figures) -> None:
    """A group of `--members`, and a broker with one more partition of the topic comes."""
    members = await gather_group(stage, options.members, options, figures, None)
    async with one_partition_more(stage, members, options, figures):
        await leave_all(members, figures)
    figures.add("load average after", os.getloadavg()[0], "")


@contextlib.asynccontextmanager
async def one_partition_more(
    stage: Stage, members: Sequence[Member], options: argparse.Namespace, figures: Figures
) -> AsyncIterator[None]:
    """A broker comes with one, and stays for as long as the context."""
    requests = Requests(members, figures)
    directory, root = stage.directory / "broker-1", f"{stage.zookeeper.connect}/kafka"
    async with BrokerProcess(directory, root, broker_id=1, partitions=1) as broker:
        await Feed(broker.port, TOPIC, 1, 1.0).backlog(1)
        while (stat := await stage.zk.exists(topic_broker_path(TOPIC, 1))) is None:
            await asyncio.sleep(0.02)
        settled = stage.settled(members, partitions=stage.partitions + 1)
        await came("one partition more: settled", figures, stat.modified_ms / 1000, settled)
        await asyncio.sleep(options.hold)
        requests.tell("one partition more", each=False)
        yield


async def events(stage: Stage, options: argparse.Namespace, figures: Figures) -> None:
    """All but one of `--members` are there; the last one joins and leaves, a partition comes, all stop."""
    account = Account(stage.feed.sent)
    async with stage.feed.running():
        members = await gather_group(stage, options.members - 1, options, figures, None)
        last = await stage.member("ours", f"member-{options.members - 1:03d}", options.initial, forked=True)
        everybody = [*members, last]
        requests = Requests(everybody, figures)
        await last.start()
        joined = await stage.registered(last)
        await came("join: settled", figures, joined, stage.settled(everybody))
        await asyncio.sleep(options.hold)
        requests.tell("join", each=False)
        began = time.time()
        ended = asyncio.create_task(last.leave())
        await came("leave: settled", figures, began, stage.settled(members))
        await ended
        await asyncio.sleep(options.hold)
        requests.tell("leave", each=False)
    await finish(account, everybody, 0.0)
    await report(account, stage, figures, 0.0)
    async with one_partition_more(stage, members, options, figures):
        requests = Requests(members, figures)
        figures.add("all stop: ended", max(await asyncio.gather(*(member.leave() for member in members))), "s")
        requests.tell("all stop", each=False)


SCENARIOS = {"join-leave": join_leave, "stop": stop, "idle": idle, "start": start, "more": more, "events": events}
