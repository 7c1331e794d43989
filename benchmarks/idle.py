"""What a consumer costs that waits: processor time and memory with a thousand partitions on one broker, beside others.

    python -m benchmarks idle
    python -m benchmarks idle --protocols 0.8+ --rounds 1 --seconds 10 --tree ../other/consumerd

Each consumer is the only member of its group, in a process of its own with default settings, as in `latency`, but that
aiokafka runs on asyncio's own loop, which takes less memory. All wait beside each other, so that they see the same
minutes; a round is a period of `--seconds`. Processor time is that of all threads, exactly (schedstat, not ticks);
memory is what is resident (VmRSS) at the end of a period. For 0.7 the broker is Jafka, and the other is its consumer on
the JVM. Ratios are the other's figure by ours: above 1, ours costs less.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from benchmarks.jvm import processor_seconds
from benchmarks.kafka_clients import quiet
from benchmarks.race import OURS, Measurement, compared, show_if_possible
from benchmarks.waiting import JAFKA, V07, V08, Stage, add_options, jafka_stage, kafka_stage, subjects

NAME = "idle"
PARTITIONS = 1000
#: Seconds after the last consumer has begun to read: caches are written, first offsets committed; and polls of 0.7 have
#: reached their longest interval (docs/performance.md).
REST = {V08: 10.0, V07: 110.0}


def resident(pid: int) -> float:
    """MiB."""
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS:")).split()[1]) / 1024


async def waiting(stage: Stage, options: argparse.Namespace) -> list[Measurement]:
    """All consumers beside each other."""
    topic = await stage.topic(options.partitions)
    cpu: dict[str, list[float]] = defaultdict(list)
    memory: dict[str, list[float]] = defaultdict(list)
    async with contextlib.AsyncExitStack() as stack:
        pids = {}
        for name, python in subjects(options, stage.protocol).items():
            member = await stack.enter_async_context(stage.member(name, python, topic, "idle"))
            await member.ready(options.partitions)
            pids[name] = member.child.pid
        await asyncio.sleep(REST[stage.protocol])
        for _ in range(options.rounds):
            before, began = {name: processor_seconds(pid) for name, pid in pids.items()}, time.monotonic()
            await asyncio.sleep(options.seconds)
            lasted = time.monotonic() - began
            for name, pid in pids.items():
                cpu[name].append(100 * (processor_seconds(pid) - before[name]) / lasted)
                memory[name].append(resident(pid))
    return rows_of(f"{stage.protocol}, {options.partitions} partitions", cpu, memory)


def rows_of(case: str, cpu: Mapping[str, list[float]], memory: Mapping[str, list[float]]) -> list[Measurement]:
    """Both figures of each subject."""
    ours = OURS if OURS in cpu else next(iter(cpu))
    found = compared(NAME, f"{case}, processor time", "% of a core", cpu, ours=ours, less=True)
    return found + compared(NAME, f"{case}, resident", "MiB", memory, ours=ours, less=True)


async def measure(options: argparse.Namespace) -> list[Measurement]:
    """Both protocols, or one."""
    found: list[Measurement] = []
    if V08 in options.protocols:
        async with kafka_stage() as stage:
            found += await waiting(stage, options)
    if V07 in options.protocols and (JAFKA in subjects(options, V07) or options.subjects):
        async with jafka_stage(options.partitions) as old:
            found += await waiting(old, options)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Print a table or JSON."""
    description = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {NAME}", description=description)
    add_options(parser, rounds=3, seconds=20.0)
    parser.add_argument("--partitions", type=int, default=PARTITIONS, help=f"default: {PARTITIONS}")
    parser.add_argument(
        "--protocols", type=lambda text: text.split(","), default=[V08, V07], help=f"{V08}, {V07} or both (the default)"
    )
    options = parser.parse_args(arguments)
    quiet()
    return show_if_possible(lambda: asyncio.run(measure(options)), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
