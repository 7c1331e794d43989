"""`python -m benchmarks rolling`: what a rolling restart costs in a group of the classic and of the consumer protocol.

Strategy: one real broker of 4.x with its default intervals; a producer writes to all partitions all the time, and
members are stopped in order and replaced, one after the other. A partition is without an owner in a gap of more than
half a second between its handled batches, longer than any that a settled group shows. Nothing may be lost.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import sys
import tempfile
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from consumerd.base.clock import SystemClock
from consumerd.base.java import find_java
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.opening import ChannelOpener
from consumerd.net.client.settings import ClientSettings
from consumerd.net.connect import connect
from tests.interop import group_harness
from tests.interop.group_harness import Group
from tests.support.kafka import RELEASES, KafkaBroker, kafka_jars

#: Seconds between handled batches of a partition from which on it counts as having no owner.
GAP: Final = 0.5
PROTOCOLS: Final = ("classic", "consumer")


class Cost(NamedTuple):
    """The cost of a rolling restart. Times in seconds; `unowned`: the sum over all partitions."""

    took: float
    unowned: float
    longest: float
    repeated: int
    messages: int


def unowned(group: Group, since: float, until: float) -> tuple[float, float]:
    """The seconds in which partitions had no owner, summed, and the longest of them."""
    handled: defaultdict[int, list[float]] = defaultdict(list)
    for record in group.all_records():
        if record.messages:
            handled[record.partition.partition].append(record.at)
    gaps = [
        after - before
        for times in handled.values()
        for before, after in itertools.pairwise(times)
        if after > since and before < until and after - before > GAP
    ]
    return sum(gaps), max(gaps, default=0.0)


async def measure(version: str, protocol: str, members: int, directory: Path) -> Cost:
    """Restart all members one after the other."""
    release = RELEASES[version]
    partitions = group_harness.PARTITIONS
    broker = KafkaBroker(
        directory / "kafka", release, None, java=find_java(minimum=25), jars=kafka_jars(release), partitions=partitions
    )
    await broker.start()
    settings = ClientSettings(retry_timeout=60)
    clock = SystemClock()
    opener = ChannelOpener(partial(connect, settings=settings.connection), settings, clock)
    async with ClusterClient(
        [("127.0.0.1", broker.port)], opener, settings, clock=clock, rng=random.Random(1)
    ) as client:
        group = Group({broker.broker_id: broker}, client, directory, find_java())
        start = partial(
            group.daemon, protocol=protocol, session_timeout=45.0, heartbeat_interval=3.0, rebalance_timeout=60.0
        )
        try:
            await group.create()
            group.begin_producing()
            running = [await start() for _ in range(members)]
            await group.until(lambda: group.fair(*running))
            began, at = time.monotonic(), clock.monotonic()
            for _ in range(members):
                await running.pop(0).stop()
                running.append(await start())
                await group.until(lambda: group.fair(*running))
            took, ended = time.monotonic() - began, clock.monotonic()
            await group.end_producing()
            repeated = await group.account()
            total, longest = unowned(group, at, ended)
            return Cost(took, total, longest, repeated, sum(map(len, group.sent.values())))
        finally:
            await group.close()
            broker.kill()


def main(arguments: list[str] | None = None) -> int:
    """Print a line for each protocol."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks rolling", description=__doc__)
    parser.add_argument("--version", default="4.1.0")
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--partitions", type=int, default=20)
    parser.add_argument("--protocol", action="append", choices=PROTOCOLS)
    options = parser.parse_args(arguments)
    group_harness.PARTITIONS = options.partitions
    for protocol in options.protocol or PROTOCOLS:
        with tempfile.TemporaryDirectory() as directory:
            cost = asyncio.run(measure(options.version, protocol, options.members, Path(directory)))
        sys.stdout.write(
            f"{protocol}: {options.members} members of {options.partitions} partitions restarted in {cost.took:.0f} s; "
            f"without an owner: {cost.unowned:.1f} partition-seconds, {cost.longest:.1f} s at most; "
            f"{cost.repeated} of {cost.messages} messages repeated\n"
        )
        sys.stdout.flush()
    return 0
