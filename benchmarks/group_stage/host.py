"""Many daemons by one parent that forks (`benchmarks.group_stage.forking`): each is a process of its own still."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from consumerd.demo.children import Child
from consumerd.demo.errors import ChildError
from consumerd.demo.processes import clean_environment, format_toml, parse_event

#: Seconds between looks at what the parent says, and at a daemon's log.
LOOK_EVERY = 0.2


class Host:
    """The parent. `async with`."""

    def __init__(self, directory: Path) -> None:
        self._log = directory / "host.log"
        self._child = Child(
            [sys.executable, "-m", "benchmarks.group_stage.forking"],
            log=self._log, name="host", pipe=True, cwd=Path(__file__).parents[2], env=clean_environment(),
        )  # fmt: skip
        self._read = 0
        self._said: dict[tuple[str, str], str] = {}

    @property
    def running(self) -> bool:
        """Whether it is there, and so its daemons may be."""
        return self._child.running

    async def __aenter__(self) -> Host:
        self._child.start()
        await self._child.wait_for_line("READY".__eq__, 60)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._child.end_now()

    def said(self, first: str, second: str) -> str | None:
        """What it has said after these two words."""
        with self._log.open("rb") as log:
            log.seek(self._read)
            whole = log.read().rpartition(b"\n")[0]
        if whole:
            self._read += len(whole) + 1
            lines = (line.decode().split(" ") for line in whole.splitlines())
            self._said.update({(words[0], words[1]): words[2] for words in lines if len(words) == 3})
        return self._said.get((first, second))

    def fork(self, config: Path, log: Path) -> None:
        """Start a daemon."""
        self._child.stdin.write(f"{config} {log}\n".encode())
        self._child.stdin.flush()


class ForkedDaemon:
    """`consumerd.demo.processes.DaemonProcess` by a `Host`."""

    def __init__(self, host: Host, directory: Path, config: Mapping[str, Mapping[str, Any]], *, name: str) -> None:
        self._host = host
        self._config = config
        self._path = directory / f"{name}.toml"
        self._log = directory / f"{name}.log"
        self.name = name
        self.pid = 0

    @property
    def started(self) -> bool:
        """Whether it was started."""
        return bool(self.pid)

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return bool(self.pid) and self._host.running and self._host.said("ended", str(self.pid)) is None

    def events(self) -> Iterator[dict[str, Any]]:
        """What it has logged so far."""
        with contextlib.suppress(FileNotFoundError):
            for line in self._log.read_text("utf-8").splitlines():
                if (event := parse_event(line)) is not None:
                    yield event

    async def start(self, timeout: float) -> None:
        """Start and wait until it is a member of its group. Raises ChildError."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(format_toml({**self._config, "log": {"format": "json"}}), "utf-8")
        deadline = time.monotonic() + timeout
        self._host.fork(self._path, self._log)
        while (said := self._host.said("started", str(self._path))) is None:
            await self._pause(deadline)
        self.pid = int(said)
        while not self._is_ready():
            if not self.running:
                raise ChildError(f"{self.name} ended early; see {self._log}")
            await self._pause(deadline)

    def _is_ready(self) -> bool:
        return self._log.exists() and b'"ready"' in self._log.read_bytes()

    async def _pause(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise ChildError(f"{self.name} was not ready in time; see {self._log}")
        await asyncio.sleep(LOOK_EVERY)

    def _send(self, number: signal.Signals) -> None:
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self._send(signal.SIGKILL)

    async def wait(self, timeout: float) -> int:
        """Its exit status. Raises ChildError."""
        deadline = time.monotonic() + timeout
        while (status := self._host.said("ended", str(self.pid))) is None:
            await self._pause(deadline)
        return int(status)
