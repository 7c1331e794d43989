"""A ZooKeeper ensemble whose servers have hosts of their own and can be cut from each other, not from their clients."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from consumerd.base.java import JavaRuntime
from consumerd.demo.zookeeper import PROBE_SECONDS, four_letter_word
from tests.support.server_network import ServerNetwork
from tests.support.zookeeper_ensemble import ZooKeeperEnsemble
from tests.support.zookeeper_servers import ConfiguredZooKeeper

if TYPE_CHECKING:
    from tests.support.slow_disk import SlowDisk

_CLIENT_PORT, _QUORUM_PORT, _ELECTION_PORT = 2181, 2888, 3888
_SESSION: Final = re.compile(r"sid=0x([0-9a-f]+)")


class HostServer(ConfiguredZooKeeper):
    """A server that listens on an address of its own."""

    host: str

    @property
    def connect(self) -> str:
        """`host:port`, as a client's connect string."""
        return f"{self.host}:{self.port}"

    async def mode(self, timeout: float = 2.0) -> str | None:
        """`leader`, `follower`; None while it does not serve."""
        answer = await self._ask("srvr", timeout)
        found = re.search(r"^Mode: (\w+)", answer, re.MULTILINE)
        return found and found[1]

    async def sessions(self) -> set[int]:
        """The ids of the sessions whose clients are connected to this server; none while it does not serve."""
        return {int(each, 16) for each in _SESSION.findall(await self._ask("cons", PROBE_SECONDS))}

    async def _is_ours(self) -> bool:
        return f"dataDir={self.data_directory}/" in await self._ask("conf", PROBE_SECONDS)

    async def _ask(self, word: str, timeout: float) -> str:
        try:
            return await four_letter_word(self.port, word, host=self.host, timeout=timeout)
        except (OSError, TimeoutError):
            return ""


class PartitionedEnsemble(ZooKeeperEnsemble):
    """One server in each namespace of `network`, which must be there before the start and until the end."""

    def __init__(
        self,
        directory: Path,
        network: ServerNetwork,
        *,
        java: JavaRuntime,
        tick_ms: int = 250,
        config: Mapping[str, str | int] | None = None,
        disks: Sequence[SlowDisk] = (),
    ) -> None:
        self.network = network
        super().__init__(directory, len(network.hosts), tick_ms=tick_ms, config=config, java=java, disks=disks)

    def _make_servers(self) -> list[ConfiguredZooKeeper]:
        return list(map(self._make_server, range(self._size)))

    def _make_server(self, number: int) -> HostServer:
        directory = self._directory / str(number + 1)
        hosts = self.network.hosts
        runtime = self._java_of(number)
        assert runtime is not None
        java = self.network.wrapper(number, runtime.executable, directory / "java")
        server = HostServer(
            directory,
            _CLIENT_PORT,
            tick_ms=self._tick_ms,
            config={**self._config, "clientPortAddress": hosts[number]},
            java=dataclasses.replace(runtime, executable=java),
            servers={i + 1: f"{host}:{_QUORUM_PORT}:{_ELECTION_PORT}" for i, host in enumerate(hosts)},
            my_id=number + 1,
        )
        server.host = hosts[number]
        return server

    def host_server(self, number: int) -> HostServer:
        """The server in a namespace of the network."""
        server = self.servers[number]
        assert isinstance(server, HostServer)
        return server
