"""A real ZooKeeper server as a child process on loopback: for the demo, for tests, for a laptop.

Strategy: the server runs without a logging backend, so the first start that fails is repeated with one, on another port
if the port was ours to choose; if that fails too, its log says why. Ready means: the server answers `srvr` with
its mode and `conf` with *our* data directory, so a stranger's server on the same port is never taken for ours. It runs
with the fewest jars of the installed pyspark: a logging backend doubles the start-up time.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final

import structlog

from consumerd.base.java import JavaRuntime, MissingRuntimeError, find_java
from consumerd.demo.children import Child, StartedChild
from consumerd.demo.errors import ZooKeeperStartError
from consumerd.demo.ports import LOOPBACK, free_port
from consumerd.service.config.properties import format_properties

_NEEDED: Final = ("zookeeper", "zookeeper-jute", "slf4j-api", "metrics-core", "snappy-java")
_LOGGING: Final = ("log4j-api", "log4j-core", "log4j-slf4j2-impl")
_JVM: Final = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData")
_MAIN: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_LOG4J: Final = {
    "status": "error",
    "rootLogger.level": "error",
    "rootLogger.appenderRef.out.ref": "out",
    "appender.out.type": "Console",
    "appender.out.name": "out",
    "appender.out.layout.type": "PatternLayout",
    "appender.out.layout.pattern": "%d %p %c{1} %m%n%ex{short}",
}
_BIND_FAILURES: Final = ("BindException", "Address already in use")
_ATTEMPTS: Final = 4
_POLL_SECONDS: Final = 0.02
#: While it starts, the server sometimes takes a question and never answers it.
PROBE_SECONDS: Final = 0.3

log = structlog.get_logger(__name__)


async def four_letter_word(port: int, word: str, *, host: str = LOOPBACK, timeout: float = 2.0) -> str:
    """ZooKeeper's answer to `srvr`, `conf`, `mntr`, ... Raises OSError or TimeoutError."""
    async with asyncio.timeout(timeout):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(word.encode("ascii"))
            return (await reader.read()).decode("utf-8", "replace")
        finally:
            writer.transport.abort()


def zookeeper_jars(*more: str) -> list[Path]:
    """The jars of the installed pyspark that a server needs, and those of these names.

    Raises MissingRuntimeError naming the extra.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise MissingRuntimeError(
            "the embedded ZooKeeper takes its jars from pyspark, which is not installed: "
            "`pip install 'consumerd[embedded]'`"
        )
    folder = Path(spec.submodule_search_locations[0]) / "jars"
    found: list[Path] = []
    for name in (*_NEEDED, *more):
        matches = sorted(folder.glob(f"{name}-[0-9]*.jar"))
        if not matches:
            raise MissingRuntimeError(f"{name}-*.jar, which ZooKeeper needs, is missing in {folder}: reinstall pyspark")
        found.append(matches[-1])
    return found


class ZooKeeperServer(StartedChild):
    """One server in `directory` (created; data stays over restarts), on `port` or a free one.

    `tick_ms` decides the session timeouts that clients may ask for: 2 to 20 ticks. `config` adds or overrides keys of
    its configuration file. Raises MissingRuntimeError from `start` where Java or pyspark is missing.
    """

    _GRACE: ClassVar = 5.0

    def __init__(
        self,
        directory: Path,
        port: int | None = None,
        *,
        tick_ms: int = 500,
        config: Mapping[str, str | int] | None = None,
        java: JavaRuntime | None = None,
    ) -> None:
        self.directory = directory.absolute()
        self.port = port or free_port()
        self.tick_ms = tick_ms
        self.name = "zookeeper"
        self._port_is_ours = port is None
        self._config = dict(config or {})
        self._jvm: tuple[str, ...] = _JVM
        self._java = java

    @property
    def connect(self) -> str:
        """`host:port`, as a client's connect string."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int:
        """The server's pid. Raises ZooKeeperStartError before `start`."""
        if self._child is None:
            raise ZooKeeperStartError(f"{self.name} was not started")
        return self._child.pid

    @property
    def log_path(self) -> Path:
        """The file of its output."""
        return self.directory / "zookeeper.log"

    @property
    def data_directory(self) -> Path:
        """Snapshots and transaction log."""
        return self.directory / "data"

    async def start(self, timeout: float = 30.0) -> None:
        """Start and wait until it serves; nothing happens when it runs. A former process is first waited for.

        Raises ZooKeeperStartError with the end of its log, or MissingRuntimeError.
        """
        if self.running:
            return
        logging = False
        for attempt in range(_ATTEMPTS):
            self._child = await self.launch(logging=logging)
            try:
                await self.wait_ready(timeout)
            except ZooKeeperStartError:
                bind_failed = any(sign in self._child.output() for sign in _BIND_FAILURES)
                await self.stop()
                if attempt == _ATTEMPTS - 1 or (logging and not (bind_failed and self._port_is_ours)):
                    raise
                log.info("zookeeper_start_retried", port=self.port, log=str(self.log_path))
                logging = True  # so that the next failure says why
                if self._port_is_ours:
                    self.port = free_port()
            except BaseException:
                self._child.end_now()
                raise
            else:
                self._port_is_ours = False  # clients may know it by now
                return

    async def launch(self, *, logging: bool = False) -> Child:
        """Start the process without waiting until it serves (the members of an ensemble wait for each other)."""
        if self._child is not None:
            await self._child.wait()
        if self._java is None:
            self._java = await asyncio.to_thread(find_java)
        config = self._write_config()
        command = [
            str(self._java.executable), *self._jvm,
            "-Dzookeeper.jmx.log4j.disable=true",
            f"-Dlog4j2.configurationFile={config.with_name('log4j2.properties')}",
            "-cp", ":".join(map(str, self.class_path(logging=logging))),
            _MAIN, str(config),
        ]  # fmt: skip
        child = Child(command, log=self.log_path, name=self.name, cwd=self.directory)
        child.start()
        self._child = child
        return child

    def class_path(self, *, logging: bool) -> list[Path]:
        """The jars that it runs with. Raises MissingRuntimeError."""
        return zookeeper_jars(*(_LOGGING if logging else ()))

    def _write_config(self) -> Path:
        """Write `zoo.cfg` and the logging configuration, and make the data directory; return the path of the first."""
        self.data_directory.mkdir(parents=True, exist_ok=True)
        settings: dict[str, str | int] = {
            "tickTime": self.tick_ms,
            "dataDir": str(self.data_directory),
            "clientPort": self.port,
            "clientPortAddress": LOOPBACK,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
            # Survives every death of a process; only a crash of the machine could lose the last writes.
            "forceSync": "no",
            "preAllocSize": 1024,
        }
        (self.directory / "log4j2.properties").write_text(format_properties(_LOG4J), "ascii")
        path = self.directory / "zoo.cfg"
        path.write_text(format_properties(settings | self._config), "ascii")
        return path

    async def mode(self, timeout: float = 2.0) -> str | None:
        """`standalone`, `leader`, `follower`; None while it does not serve."""
        try:
            answer = await four_letter_word(self.port, "srvr", timeout=timeout)
        except (OSError, TimeoutError):
            return None
        for line in answer.splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ").strip()
        return None

    async def wait_ready(self, timeout: float = 30.0) -> None:
        """Return when it serves. Raises ZooKeeperStartError when it ended or is not ready after `timeout` seconds."""
        assert self._child is not None
        try:
            async with asyncio.timeout(timeout):
                while await self.mode(PROBE_SECONDS) is None or not await self._is_ours():
                    if not self._child.running:
                        raise ZooKeeperStartError(
                            f"the embedded {self.name} ended with status {self._child.returncode} "
                            f"({self.log_path}): {self._child.tail()}"
                        )
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise ZooKeeperStartError(
                f"the embedded {self.name} on {self.connect} did not serve within {timeout:g} s "
                f"({self.log_path}): {self._child.tail()}"
            ) from None

    async def _is_ours(self) -> bool:
        try:
            return f"dataDir={self.data_directory}/" in await four_letter_word(self.port, "conf", timeout=PROBE_SECONDS)
        except (OSError, TimeoutError):
            return False
