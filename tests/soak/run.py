"""One run: start everything, measure full speed, send at a part of it, inject faults, let it calm down, compare."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from consumerd.demo.processes import Process
from tests.soak.account import count, read_logs
from tests.soak.sampling import Sampler
from tests.soak.stage import BUDGET, SoakStage
from tests.soak.verdict import measure, memory_limit, not_flat, too_large
from tests.torture.play import Player
from tests.torture.report import Report
from tests.torture.schedule import Size, episodes
from tests.torture.sinks import SinkCount, check_database, check_files
from tests.torture.stage import GROUP, PATIENCE, SESSION_TIMEOUT
from tests.torture.watch import Watch

#: Limit for all groups to commit all of the log after the last fault, in seconds.
_CALM_SECONDS: Final = 600.0
#: Processes that lived shorter are not asked whether they grew: seconds, and part of the run.
_LONG_LIFE: Final = 60.0
_LONG_PART: Final = 0.5


@dataclass(frozen=True, slots=True)
class Options:
    """`seconds` of load; `rate` in messages per second, or the part `speed` of what a calibration measures."""

    seed: int
    seconds: float
    rate: float | None = None
    speed: float = 0.5
    #: Seconds from the beginning of a fault to that of the next; None: no faults.
    fault_every: float | None = 10.0
    partitions: int = 8
    members: int = 3
    servers: int = 3
    kinds: tuple[str, ...] = ()
    full_disks: bool = True
    sample_every: float = 5.0
    calibration: float = 20.0


async def soak(
    options: Options, directory: Path, disk: Path, dsn: str, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Run in `directory`, which keeps all logs, with a sink in the database of `dsn`; the record of the run."""
    stop = asyncio.Event()
    async with SoakStage(
        directory, partitions=options.partitions, servers=options.servers, disk=disk, dsn=dsn
    ) as stage:
        watch = Watch(stage)
        player = Player(stage, watch, options.members, progress)
        tasks = [asyncio.create_task(watch.run()), asyncio.create_task(stage.produce(stop))]
        try:
            progress("the group begins")
            await stage.warm_up()
            for number in range(options.members):
                member = await stage.join(0.0)
                member.stays = number == 0
            if not await watch.wait_settled(PATIENCE):
                raise RuntimeError(f"the group never began: its logs are in {directory}")
            full = None
            if options.rate is None:
                progress("calibration")
                full = await _calibrate(stage, options.calibration)
            stage.rate = rate = options.rate or options.speed * (full or 0.0)
            sampler = Sampler(lambda: _processes(stage), GROUP, options.sample_every)
            tasks.append(asyncio.create_task(sampler.run()))
            sent_before = stage.sent_messages
            faults_at, seconds = await _load(options, player, tasks, progress)
            sent = stage.sent_messages - sent_before
            progress("calm")
            stop.set()
            await tasks[1]
            if not await watch.wait_settled(PATIENCE):
                player.findings.append(f"not every partition had an owner {PATIENCE:g} s after the last fault")
            if behind := await stage.wait_committed(_CALM_SECONDS):
                player.findings.append(f"not committed {_CALM_SECONDS:g} s after the last fault: {behind}")
            await watch.read_offsets()
            shares = await stage.group.shares()
            stopped = time.monotonic()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for member in stage.running:
                member.ended_at = time.monotonic()
                if (code := await member.stop(PATIENCE)) != 0:
                    player.findings.append(f"{member.name} ended with {code} after SIGTERM: {member.child.tail(2)}")
            progress(f"comparison, {time.monotonic() - stopped:.1f} s after the first SIGTERM")
            contents = await asyncio.to_thread(read_logs, stage)
            account = await asyncio.to_thread(count, stage, contents, player.causes)
            sinks = {
                "files": await asyncio.to_thread(check_files, contents.logs, stage.files),
                "database": await check_database(contents.logs, dsn),
            }
        finally:
            stop.set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        report = Report(
            options.seed, seconds, options.partitions, options.servers, account, player, watch.set_back, shares,
            stage.load(), stage.title,
        )  # fmt: skip
        return _record(options, stage, report, sampler, sinks, faults_at, sent / seconds, rate, full)


async def _calibrate(stage: SoakStage, seconds: float) -> float:
    """Messages per second from the first that is sent until the last is committed, without a limit and a fault."""
    if behind := await _caught_up(stage):
        raise RuntimeError(f"not all groups handled the first messages: {behind}")
    before, started = stage.sent_messages, time.monotonic()
    await asyncio.sleep(seconds)
    if behind := await _caught_up(stage):
        raise RuntimeError(f"not all groups kept up: {behind}")
    return (stage.sent_messages - before) / (time.monotonic() - started)


async def _caught_up(stage: SoakStage) -> list[str]:
    with stage.hold():
        return await stage.wait_committed(_CALM_SECONDS)


async def _load(
    options: Options, player: Player, tasks: Sequence[asyncio.Task[None]], progress: Callable[[str], None]
) -> tuple[list[float], float]:
    """Inject a fault whenever one is due until the time is over; when faults began, and how long it took."""
    started = time.monotonic()
    faults_at: list[float] = []
    end = started + options.seconds
    size = Size(options.members, options.servers, SESSION_TIMEOUT, options.kinds, options.full_disks)
    schedule = episodes(options.seed, size)
    due = started + (options.fault_every or 0.0)
    while (now := time.monotonic()) < end:
        for task in tasks:
            if task.done():
                task.result()  # raises what ended it
                raise RuntimeError("sending, watching or sampling has ended")
        if options.fault_every is None or due > end:
            progress("load without faults")
            await asyncio.sleep(min(10.0, end - now))
            continue
        await asyncio.sleep(max(0.0, due - now))
        faults_at.append(round(time.monotonic() - started, 1))
        await player.episode(next(schedule))
        # An episode that took longer than the interval is followed by the next one at once.
        due = max(due + options.fault_every, time.monotonic())
    return faults_at, time.monotonic() - started


def _processes(stage: SoakStage) -> Iterator[tuple[Process, int | None]]:
    for member in stage.running:
        if member.joined and member.running:
            yield member, stage.port_of(member)
    if stage.broker.running:
        yield stage.broker, stage.broker_port


def _record(
    options: Options,
    stage: SoakStage,
    report: Report,
    sampler: Sampler,
    sinks: dict[str, SinkCount],
    faults_at: list[float],
    sent_rate: float,
    rate: float,
    full: float | None,
) -> dict[str, Any]:
    lives = list(sampler.lives.values())
    members = [life for life in lives if life.name.startswith("member")]
    stays = stage.members[0].name
    long = [life for life in lives if life.seconds >= max(_LONG_LIFE, _LONG_PART * options.seconds)]
    grown = [measure(life) for life in long]
    violations = list(report.broken)
    if beyond := report.account.repeated_beyond:
        violations += [f"{beyond} messages came again without a fault that explains it", *report.account.findings]
    for name, found in sinks.items():
        if not found.exact:
            violations.append(f"the sink {name} is not exact: {asdict(found)}")
    violations += [text for each in grown for text in not_flat(each)]
    limit = memory_limit(BUDGET, stage.smallest)
    violations += too_large(members, limit)
    if not any(each.name == stays for each in grown) and options.seconds >= 2 * _LONG_LIFE:
        violations.append(f"{stays}, which was to stay, has no life of that length")
    figures = report.as_json()
    for name in ("violations", "seconds", "skipped"):
        del figures[name]
    return {
        "title": f"{options.seconds / 60:.0f} minutes at {rate:.0f} messages per second"
        + ("" if options.fault_every is None else f", a fault every {options.fault_every:g} s"),
        **figures,
        "seconds": round(report.seconds, 1),
        "full_speed": None if full is None else round(full),
        "rate_asked": round(rate),
        "rate_sent": round(sent_rate),
        "sending_interrupted": stage.producer_errors,
        "episodes": len(faults_at),
        "fault_every": None if not faults_at else round(report.seconds / sum(report.player.kinds.values()), 1),
        "sinks": {name: asdict(found) for name, found in sinks.items()},
        "processes": len(lives),
        "largest_member": max(life.peak for life in members),
        "member_at_rest": round(stage.smallest / (1 << 20), 1),
        "memory_limit": round(limit, 1),
        "growth": [each.as_json() for each in grown],
        "violations": violations,
        "stays": stays,
        "rated": "handled by the first group",
        "faults_at": faults_at,
        "lives": [life.as_json() for life in lives],
    }
