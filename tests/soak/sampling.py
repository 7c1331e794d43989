"""What each process uses, every few seconds: resident memory, file descriptors, asyncio tasks, processor time, lag.

Strategy: memory, descriptors and time are the kernel's figures, so they come whatever the process does; tasks, lag and
counts are those of its metrics, and are left out while it does not answer (it may be frozen, or starved). The pid shows
that a process is a new one. The largest size is the kernel's high-water mark: no peak is missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from consumerd.demo.processes import Process

_ANSWER_SECONDS: Final = 2.0
_MIB: Final = 1 << 20


@dataclass(slots=True)
class Life:
    """One process from its first sample to its last; the lists are as long as `at`. None: it did not answer."""

    name: str
    pid: int
    at: list[float] = field(default_factory=list)
    #: MiB.
    resident: list[float] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    tasks: list[int | None] = field(default_factory=list)
    #: Messages handled since the start of the process, of the first group.
    handled: list[float | None] = field(default_factory=list)
    #: MiB of the log that are not handled, of all groups.
    lag: list[float | None] = field(default_factory=list)
    #: Seconds of the processor since its start.
    processor: list[float] = field(default_factory=list)
    #: MiB: the largest that it ever was.
    peak: float = 0.0

    @property
    def seconds(self) -> float:
        """From its first to its last sample."""
        return self.at[-1] - self.at[0]

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)


def parse_metrics(text: str, group: str) -> dict[str, float]:
    """Sums over all labels but the group: tasks; messages handled by `group`; bytes of lag of all groups."""
    found = {"tasks": 0.0, "handled": 0.0, "lag": 0.0}
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if name == "consumerd_tasks":
            found["tasks"] = float(value)
        elif name.startswith("consumerd_messages_handled_total{") and f'group="{group}"' in name:
            found["handled"] += float(value)
        elif name.startswith("consumerd_lag_bytes{"):
            found["lag"] += float(value)
    return found


async def scrape(port: int) -> str:
    """The metrics served at a port of loopback. Raises OSError, TimeoutError, ValueError for any other response."""
    async with asyncio.timeout(_ANSWER_SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
        finally:
            writer.close()
    if b" 200 " not in head.split(b"\r\n")[0]:
        raise ValueError(f"/metrics answered {head[:80]!r}")
    return body.decode()


def peak(pid: int) -> float:
    """The largest resident size that a process ever had, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


class Sampler:
    """Samples until cancelled. `processes` gives those that run now, each with the port of its metrics, or None."""

    def __init__(
        self, processes: Callable[[], Iterable[tuple[Process, int | None]]], group: str, interval: float
    ) -> None:
        self._processes = processes
        self._group = group
        self._interval = interval
        self.started = time.monotonic()
        self.lives: dict[int, Life] = {}

    async def run(self) -> None:
        """Sample all processes at once, every interval."""
        while True:
            due = time.monotonic() + self._interval
            await asyncio.gather(*(self._sample(*each) for each in self._processes()))
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _sample(self, process: Process, port: int | None) -> None:
        found: dict[str, float] = {}
        at = time.monotonic() - self.started
        try:
            one = psutil.Process(pid := process.pid)
            with one.oneshot():
                resident, descriptors, spent = one.memory_info().rss, one.num_fds(), one.cpu_times()
            highest = peak(pid)
        except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError, StopIteration):
            return  # it ended meanwhile
        if port is not None:
            with contextlib.suppress(OSError, TimeoutError, ValueError):
                found = parse_metrics(await scrape(port), self._group)
        life = self.lives.setdefault(pid, Life(process.name, pid))
        life.at.append(round(at, 2))
        life.resident.append(round(resident / _MIB, 2))
        life.descriptors.append(descriptors)
        life.processor.append(round(spent.user + spent.system, 2))
        life.tasks.append(int(found["tasks"]) if found else None)
        life.handled.append(found.get("handled"))
        life.lag.append(round(found["lag"] / _MIB, 3) if found else None)
        life.peak = max(life.peak, round(highest, 2))
