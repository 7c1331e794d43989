"""The broker and the daemon as child processes, as an operator would run them: for the demo and for kill tests.

Strategy: the real command line (`python -m consumerd ...`) on a real configuration file, in an environment without the
overrides of the user's own daemons. The process itself reports that it is ready: the broker's line on standard output,
the daemon's log event. A restart is a new process on the same files and, for a broker, the same port.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from consumerd.base.native import PURE
from consumerd.demo.children import Child, StartedChild
from consumerd.demo.errors import ChildError
from consumerd.demo.ports import LOOPBACK, free_port
from consumerd.service.config.toml_text import toml_key, toml_value

_ATTEMPTS: Final = 4


def consumerd_command(*arguments: str) -> list[str]:
    """The argument list that runs `consumerd` with this interpreter; `-P`: never the one in the working directory."""
    return [sys.executable, "-P", "-m", "consumerd", *arguments]


def clean_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without what would reach into a daemon's configuration or notify a service manager.

    What chooses the codec stays: a demo or test of the pure one is one of all processes.
    """
    environ = os.environ if environ is None else environ
    return {
        name: value
        for name, value in environ.items()
        if name == PURE or (not name.startswith("CONSUMERD_") and name != "NOTIFY_SOCKET")
    }


def format_toml(tables: Mapping[str, Mapping[str, Any] | Sequence[Mapping[str, Any]]]) -> str:
    """Tables of strings, numbers, booleans, lists and (inline) tables of those as TOML; None leaves a key out.

    A list of tables becomes an array of tables.
    """
    lines = []
    for name, value in tables.items():
        is_table = isinstance(value, Mapping)
        for table in [value] if isinstance(value, Mapping) else value:
            lines.append(f"[{name}]" if is_table else f"[[{name}]]")
            lines += [f"{toml_key(key)} = {toml_value(item)}" for key, item in table.items() if item is not None]
    return "\n".join([*lines, ""])


def parse_event(line: str) -> dict[str, Any] | None:
    """A line of JSON log as its fields; None for any other text."""
    if not line.startswith("{"):
        return None
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) and "event" in fields else None


class Process(StartedChild):
    """A `consumerd` process that can be started again after each end. `directory` takes its files."""

    _GRACE = 30.0

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.directory = directory.absolute()

    @property
    def child(self) -> Child:
        """The present (or last) process. Raises ChildError before the first start."""
        if self._child is None:
            raise ChildError(f"{self.name} was not started")
        return self._child

    @property
    def started(self) -> bool:
        """Whether it was ever started."""
        return self._child is not None

    @property
    def log_path(self) -> Path:
        """The process's log: standard error, and the broker's standard output."""
        return self.directory / f"{self.name}.log"

    @property
    def pid(self) -> int:
        """The pid of the present (or last) process."""
        return self.child.pid

    @property
    def returncode(self) -> int | None:
        """The exit status of the last process (negative: its signal); None while it runs."""
        return self.child.returncode

    def events(self) -> Iterator[dict[str, Any]]:
        """The events that the present (or last) process has logged so far."""
        for line in self.child.output().splitlines():
            if (event := parse_event(line)) is not None:
                yield event

    async def wait_for_event(self, name: str, timeout: float, **fields: Any) -> dict[str, Any]:
        """The first logged event of this name with these fields. Raises ChildError when it ends or time runs out."""

        def wanted(line: str) -> bool:
            event = parse_event(line)
            return event is not None and {"event": name, **fields}.items() <= event.items()

        event = parse_event(await self.child.wait_for_line(wanted, timeout))
        assert event is not None
        return event

    def terminate(self) -> None:
        """SIGTERM; `wait` for the end."""
        self.child.terminate()

    async def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return the exit status. Raises TimeoutError."""
        return await self.child.wait(timeout)

    async def _launch(self, command: Sequence[str], event: str, timeout: float, stdout: Path | None = None) -> None:
        """Run `command` until it logs `event`; it is ended when it does not."""
        if self.running:
            raise ChildError(f"{self.name} is already running")
        self.directory.mkdir(parents=True, exist_ok=True)
        self._child = Child(command, log=self.log_path, name=self.name, env=clean_environment(), stdout=stdout)
        self._child.start()
        try:
            await self.wait_for_event(event, timeout)
        except BaseException:
            self._child.end_now()
            raise


class BrokerProcess(Process):
    """`consumerd broker` on loopback, registered at the connect string `zookeeper`, or nowhere with None.

    `settings` are broker properties by their 0.7 names. The port is free at the first start and then stays.
    """

    def __init__(
        self,
        directory: Path,
        zookeeper: str | None,
        *,
        broker_id: int = 0,
        partitions: int = 1,
        port: int | None = None,
        settings: Mapping[str, str | int] | None = None,
    ) -> None:
        super().__init__(f"broker-{broker_id}", directory)
        self.zookeeper = zookeeper
        self.broker_id = broker_id
        self.partitions = partitions
        self.port = port or free_port()
        self._port_is_ours = port is None
        self.settings = dict(settings or {})

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def log_directory(self) -> Path:
        """The directory of its segment files."""
        return self.directory / "data"

    async def start(self, timeout: float = 30.0) -> None:
        """Start and wait until it serves and is registered. Raises ChildError with the end of its log."""
        for attempt in range(_ATTEMPTS):
            where = ["--zookeeper", self.zookeeper] if self.zookeeper else ["--no-zookeeper"]
            command = consumerd_command(
                "broker", "--port", str(self.port), "--log-dir", str(self.log_directory),
                "--broker-id", str(self.broker_id), "--partitions", str(self.partitions), *where,
                *(f"--set={name}={value}" for name, value in self.settings.items()),
            )  # fmt: skip
            try:
                await self._launch(command, "ready", timeout)
            except ChildError:
                if not self._port_is_ours or attempt == _ATTEMPTS - 1 or "in use" not in self.child.output():
                    raise
                self.port = free_port()
            else:
                self._port_is_ours = False  # clients may know it by now
                return


class DaemonProcess(Process):
    """`consumerd run` on a configuration of tables, such as `{"group": {"id": "g", "topics": {"t": 1}}, ...}`.

    Arrays of tables are lists.

    Its log is JSON, independent of the configuration; the output of its handler goes to `stdout_path`.
    """

    def __init__(self, directory: Path, config: Mapping[str, Any], *, name: str = "daemon") -> None:
        super().__init__(name, directory)
        self.config: dict[str, Any] = {
            table: dict(keys) if isinstance(keys, Mapping) else list(keys) for table, keys in config.items()
        }

    @property
    def config_path(self) -> Path:
        """The file that it is run on, written at each start."""
        return self.directory / f"{self.name}.toml"

    @property
    def stdout_path(self) -> Path:
        """The file of its standard output."""
        return self.directory / f"{self.name}.out"

    @property
    def consumer_id(self) -> str:
        """The consumer id of the current (or last) process. Raises ChildError before it has logged it."""
        ids: list[str] = [event["consumer"] for event in self.events() if event["event"] == "starting"]
        if not ids:
            raise ChildError(f"the consumer id of {self.name} is unknown: its log has no event 'starting'")
        return ids[-1]

    async def start(self, timeout: float = 30.0) -> None:
        """Start and wait until it is a member of its group. Raises ChildError with the end of its log."""
        self.directory.mkdir(parents=True, exist_ok=True)
        log = {**self.config.get("log", {}), "format": "json"}
        self.config_path.write_text(format_toml({**self.config, "log": log}), "utf-8")
        await self._launch(
            consumerd_command("run", "-c", str(self.config_path)), "ready", timeout, stdout=self.stdout_path
        )
