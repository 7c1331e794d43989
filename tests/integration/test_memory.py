"""A member never grows past its byte budget + 100 MB, whatever the messages look like: neither while its handler is
stalled, nor while a handler that comes with consumerd works through the largest message there can be, nor while several
partitions have large ones.

Strategy: the daemon is a process of its own and waits for its topic, so its size while idle can be read. Then a broker
comes up with logs that were written before. When the handler has a batch and the process is idle again, the kernel's
high-water mark shows the largest size that the process ever had: no peak is missed in between.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from consumerd.base.partition import TopicPartition
from consumerd.demo.processes import BrokerProcess, Process, consumerd_command, format_toml
from consumerd.wire import compress
from consumerd.wire.v07 import Codec, encode_message, encode_message_set

pytestmark = [
    pytest.mark.zookeeper,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc"),
]

MIB = 1 << 20
BUDGET = 32 * MIB
ALLOWED = BUDGET + 100 * 10**6
PARTITIONS = 4


def plain(size: int) -> bytes:
    return encode_message_set([bytes(size)] * (MIB // (size + 10)))


def gzip(size: int, unpacked: int) -> bytes:
    """One compressed message that unpacks to `unpacked` bytes of messages of `size` bytes."""
    return encode_message_set([bytes(size)] * (unpacked // (size + 10)), codec=Codec.GZIP)


def copies(payload: bytes, unpacked: int) -> bytes:
    """One compressed message that unpacks to as many messages of one payload as fit into `unpacked` bytes."""
    message = encode_message(payload)
    return encode_message(compress(Codec.GZIP, message * (unpacked // len(message))), codec=Codec.GZIP)


CASES: dict[str, tuple[Callable[[], bytes], int]] = {
    # what is repeated, and how many bytes of it make a log
    "100 B": (lambda: plain(100), 48 * MIB),
    "2 B": (lambda: plain(2), 48 * MIB),  # bytes objects of 0 and 1 B are shared by the interpreter, and cost nothing
    "gzip of 100 B": (lambda: gzip(100, MIB), 2 * MIB),
    "gzip of 2 B": (lambda: gzip(2, MIB), 2 * MIB),
    "large gzip of 1 kB": (lambda: gzip(1000, 16 * MIB), MIB),
    "128 kB of empty messages": (lambda: copies(b"", 64 * MIB), 1),
    "largest gzip of 2 B": (lambda: copies(b"ab", 64 * MIB), 1),
}


def peak(pid: int) -> int:
    """The largest resident size that a process ever had, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def write_logs(directory: Path, block: bytes, size: int) -> None:
    for number in range(PARTITIONS):
        log = directory / f"t-{number}"
        log.mkdir(parents=True)
        with (log / f"{0:020d}.kafka").open("wb") as segment:
            for _ in range(max(1, size // len(block))):
                segment.write(block)
    (directory / ".kafka_cleanshutdown").touch()


async def quiet(process: psutil.Process) -> None:
    """Return when a process has used no time worth mentioning for a while."""
    idle = 0
    while idle < 5:
        before = process.cpu_times()
        await asyncio.sleep(0.2)
        after = process.cpu_times()
        idle = idle + 1 if after.user + after.system - before.user - before.system < 0.03 else 0


@pytest.mark.parametrize("case", CASES)
async def test_memory_is_bounded_while_a_handler_stalls(world: Any, case: str) -> None:
    make, size = CASES[case]
    write_logs(world.log_dir(), make(), size)
    daemon = await world.daemon(
        group={"dialect": "0.7"},  # without a broker, nothing else says so
        fetch={"budget": BUDGET, "partition_budget": BUDGET},
        handler={"name": "bad_handlers:Stalled"},
        rebalance={"drain_timeout": 0.1},
    )
    process = psutil.Process(daemon.pid)
    await quiet(process)
    rest = process.memory_info().rss
    await world.broker(partitions=PARTITIONS)
    async with asyncio.timeout(60):
        await world.until(lambda: "in hand" in daemon.stdout_path.read_text(), 30)
        await quiet(process)
    grown = peak(daemon.pid) - rest
    assert daemon.running
    assert grown <= ALLOWED, f"{grown / 1e6:.0f} MB more than the {rest / 1e6:.0f} MB at rest"
    assert grown > BUDGET / 4, "the budget was not used: nothing was tested"


HANDLERS: dict[str, dict[str, Any]] = {
    "files": {"name": "files", "options": {"directory": "out"}},
    "print": {"name": "print"},
    "each": {"name": "bad_handlers:Each"},
    "dead letters": {
        "name": "bad_handlers:Refusing",
        "on_failure": "dead_letter",
        "max_attempts": 1,
        "dead_letter": "dead",
        "dead_letter_max_size": 1 << 34,
    },
}
#: Leaves of one compressed message, with the growth that is allowed while they are handled. As lists half a million
#: and their lines take 150 MB.
SIZES = [(500_000, 50 * 10**6), pytest.param(6_600_000, ALLOWED, marks=[pytest.mark.long, pytest.mark.timeout(1800)])]


@pytest.mark.parametrize(("leaves", "allowed"), SIZES)
@pytest.mark.parametrize("handler", HANDLERS)
async def test_memory_is_bounded_by_a_message_that_expands_to_very_many(
    world: Any, handler: str, leaves: int, allowed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world.directory)
    block = copies(b"", 10 * leaves)
    write_logs(world.log_dir(), block, 1)
    daemon = await world.daemon(
        group={"dialect": "0.7"},
        fetch={"budget": BUDGET, "partition_budget": BUDGET},
        handler=HANDLERS[handler],
    )
    await grows_by(world, daemon, allowed, lambda: world.broker(partitions=1), (TopicPartition("t", 0, 0), len(block)))


@pytest.mark.parametrize(("leaves", "allowed"), SIZES)
async def test_mirror_memory_is_bounded_by_a_message_that_expands_to_very_many(
    world: Any, leaves: int, allowed: int
) -> None:
    block = copies(b"", 10 * leaves)
    write_logs(world.log_dir(1), block, 1)
    await world.broker(0)
    await world.append(TopicPartition("t", 0, 0), b"first")
    target = BrokerProcess(world.directory / "target", f"{world.chroot}/target")
    config = world.config(fetch={"budget": BUDGET, "partition_budget": BUDGET})
    mirror = Mirror(world.directory, world.write(format_toml(config)), target.address)
    async with target, mirror:
        await world.until(lambda: world.offset(TopicPartition("t", 0, 0)))
        await grows_by(world, mirror, allowed, lambda: world.broker(1), (TopicPartition("t", 1, 0), len(block)))


@pytest.mark.parametrize("handler", [{"name": "null"}, HANDLERS["files"]], ids=["null", "files"])
async def test_memory_is_bounded_while_partitions_get_large_messages_in_turn(
    world: Any, handler: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing keeps a batch that was handled, and no thread keeps the memory of its lines."""
    monkeypatch.chdir(world.directory)
    block = encode_message_set([b"%07d" % number * 1000 for number in range(4000)], codec=Codec.GZIP)  # 28 MB
    write_logs(world.log_dir(), block, 2 * len(block))
    daemon = await world.daemon(
        group={"dialect": "0.7"},
        fetch={"budget": BUDGET, "partition_budget": BUDGET},
        handler=handler,
    )
    ends = [(TopicPartition("t", 0, number), 2 * len(block)) for number in range(PARTITIONS)]
    await grows_by(world, daemon, ALLOWED, lambda: world.broker(partitions=PARTITIONS), *ends)


class Mirror(Process):
    """`consumerd mirror` of what a configuration says to a broker."""

    def __init__(self, directory: Path, config: str, target: str) -> None:
        super().__init__("mirror", directory)
        self._command = consumerd_command("mirror", "-c", config, "--to-broker", target)

    async def start(self, timeout: float = 30.0) -> None:
        await self._launch(self._command, "ready", timeout)


async def grows_by(
    world: Any, process: Any, allowed: int, begin: Callable[[], Any], *ends: tuple[TopicPartition, int]
) -> None:
    """Let an idle process handle partitions, and measure its growth once they are committed to their ends."""
    one = psutil.Process(process.pid)
    await quiet(one)
    rest = one.memory_info().rss
    await begin()
    for partition, end in ends:
        await world.until(partial(committed, world, process, partition, end), 1500)
    grown = peak(process.pid) - rest
    assert grown <= allowed, f"{grown / 1e6:.0f} MB more than the {rest / 1e6:.0f} MB at rest"


async def committed(world: Any, process: Any, partition: TopicPartition, end: int) -> bool:
    assert process.running
    return bool(await world.offset(partition) == end)
