"""Several real ZooKeeper servers on loopback that elect a leader among them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import structlog

from consumerd.base.java import JavaRuntime, find_java
from consumerd.demo.errors import ZooKeeperStartError
from consumerd.demo.ports import LOOPBACK, free_ports
from consumerd.demo.zookeeper import PROBE_SECONDS
from tests.support.zookeeper_servers import ConfiguredZooKeeper

if TYPE_CHECKING:
    from tests.support.slow_disk import SlowDisk

_ATTEMPTS: Final = 4
_POLL_SECONDS: Final = 0.02

log = structlog.get_logger(__name__)


class ZooKeeperEnsemble:
    """Servers that elect a leader among them, in `servers` (index 0, 1, ...). Arguments as `ConfiguredZooKeeper`'s.

    `disks`: those of the servers, which can be slow; none, or one for each.
    """

    def __init__(
        self,
        directory: Path,
        size: int = 3,
        *,
        tick_ms: int = 500,
        config: Mapping[str, str | int] | None = None,
        jvm: Sequence[str] = (),
        java: JavaRuntime | None = None,
        disks: Sequence[SlowDisk] = (),
    ) -> None:
        self._directory = directory
        self._size = size
        self._tick_ms = tick_ms
        self._config = dict(config or {})
        if disks:
            self._config["forceSync"] = "yes"  # tests are faster without
        self._jvm = jvm
        self._java = java
        self._disks = list(disks)
        self._known = False
        self.servers: list[ConfiguredZooKeeper] = self._make_servers()

    def _make_servers(self) -> list[ConfiguredZooKeeper]:
        ports = free_ports(3 * self._size)
        quorum = {i + 1: f"{LOOPBACK}:{ports[3 * i]}:{ports[3 * i + 1]}" for i in range(self._size)}
        return [
            ConfiguredZooKeeper(
                self._directory / str(i + 1), ports[3 * i + 2], tick_ms=self._tick_ms, config=self._config,
                jvm=self._jvm, java=self._java_of(i), servers=quorum, my_id=i + 1,
            )
            for i in range(self._size)
        ]  # fmt: skip

    def _java_of(self, number: int) -> JavaRuntime | None:
        """The Java of a server, on its disk."""
        if self._java is None or not self._disks:
            return self._java
        script = self._directory / f"java-{number + 1}"
        return dataclasses.replace(self._java, executable=self._disks[number].wrapper(self._java.executable, script))

    @property
    def connect(self) -> str:
        """All members as a client's connect string."""
        return ",".join(server.connect for server in self.servers)

    async def start(self, timeout: float = 60.0) -> None:
        """Start every member that does not run; returns when all serve. Errors as `ConfiguredZooKeeper.start`."""
        if self._java is None:  # once for all members
            java = await asyncio.to_thread(find_java)
            self._java = java
            self.servers = self._make_servers()
        for attempt in range(_ATTEMPTS):
            try:
                for server in self.servers:
                    if not server.running:
                        await server.launch(logging=attempt > 0)
                for server in self.servers:
                    await server.wait_ready(timeout)
            except ZooKeeperStartError:
                await self.stop()
                if self._known or attempt == _ATTEMPTS - 1:
                    raise
                log.info("zookeeper_ensemble_start_repeated")
                self.servers = self._make_servers()  # some port was taken, most likely
            except BaseException:
                for server in self.servers:
                    server.kill()
                raise
            else:
                self._known = True
                return

    async def leader(self, timeout: float = 30.0) -> int:
        """The index of the leading member; waits for an election, at most `timeout` seconds (ZooKeeperStartError)."""
        try:
            async with asyncio.timeout(timeout):
                while True:
                    for index, server in enumerate(self.servers):
                        if server.running and await server.mode(PROBE_SECONDS) == "leader":
                            return index
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise ZooKeeperStartError(f"the ensemble {self.connect} has no leader after {timeout:g} s") from None

    def kill(self, index: int) -> None:
        """SIGKILL one member."""
        self.servers[index].kill()

    async def stop(self) -> None:
        """End all members."""
        async with asyncio.TaskGroup() as group:
            for server in self.servers:
                group.create_task(server.stop())

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
