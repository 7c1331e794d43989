"""A ZooKeeper session for the length of one command, and the options that say where ZooKeeper or the brokers are.

Strategy: commands that only look must not leave traces, so a chroot without a cluster is an error
(`consumerd.net.cluster.entry`). Credentials and TLS are not options, which every user of the machine could read: tools
take them from the daemon's own configuration file.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from consumerd.base.address import parse_addresses, split_addresses
from consumerd.base.clock import SystemClock
from consumerd.base.errors import ConfigError
from consumerd.cli.config_option import Decorated, file_option, servers_option, together
from consumerd.cli.numbers import seconds_option, zookeeper_option

if TYPE_CHECKING:
    from consumerd.base.settings.servers import ZooKeeperSection
    from consumerd.net.connect import Connection, Connector
    from consumerd.net.zk.session import Session
    from consumerd.service.config.model import Config

_T = TypeVar("_T")

#: Seconds that a command waits for ZooKeeper, or for a first broker: a person waits for its output.
SERVER_TIMEOUT = 10.0

DEFAULTS_OF_CONFIG = (
    "Configuration file of a daemon, whose servers (with credentials and TLS) and group are the defaults."
)


def named(name: str, option: str) -> str:
    """The value of `option`. Raises UsageError for an empty one, as of a variable that a script did not set."""
    if not name:
        raise click.BadParameter("must not be empty.", param_hint=option)
    return name


def zookeeper_options(*, required: bool = True) -> Callable[[Decorated], Decorated]:
    """`--zookeeper` (parameter `zookeeper`) and `--timeout` (parameter `timeout`, seconds)."""
    about = "ZooKeeper servers and chroot where brokers and groups register."
    return together(
        zookeeper_option("--zookeeper", about, required=required),
        timeout_option("ZooKeeper, or for the first broker"),
    )


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """The address of a command's ZooKeeper or brokers: an address, or a configuration file, or both."""

    #: "" if brokers are queried.
    connect: str
    timeout: float
    section: ZooKeeperSection | None = None
    #: The group of the configuration file.
    group: str | None = None
    #: Brokers of 0.8 or later to connect to first; none if ZooKeeper is queried.
    bootstrap: tuple[tuple[str, int], ...] = ()
    #: The configuration file, whose `[kafka]` has credentials and TLS.
    config: Config | None = None

    def group_or(self, group: str | None) -> str:
        """The group that was named, else that of the configuration. Raises UsageError without either."""
        name = self.group if group is None else group
        if name is None:
            raise click.UsageError("give --group, or a configuration that names it")
        return named(name, "--group")

    def run(self, work: Callable[[Session], Awaitable[_T]]) -> _T:
        """`with_session` with this address."""
        return with_session(self.connect, self.timeout, work, section=self.section)


def cluster_options(
    *, required: bool = True, flags: Sequence[str] = ("-c", "--config")
) -> Callable[[Decorated], Decorated]:
    """`--zookeeper`, `--bootstrap-server`, `-c` and `--timeout` as one parameter `cluster`; None if none is required.

    `flags`: how the configuration file is called.
    """

    def decorate(function: Decorated) -> Decorated:
        @functools.wraps(function)
        def wrapper(
            *args: Any,
            zookeeper: str | None,
            bootstrap_server: tuple[str, ...],
            config_file: Path | None,
            timeout: float,
            **options: Any,
        ) -> Any:
            given = zookeeper, bootstrap_server, config_file
            cluster = None
            if required or any(given):
                cluster = cluster_address(*given, timeout, options.get("group"), config_flag=flags[-1])
            return function(*args, cluster=cluster, **options)

        brokers = "Brokers of Kafka 0.8 or later to connect to first, instead of ZooKeeper."
        return together(
            zookeeper_options(required=False),
            servers_option("--bootstrap-server", about=brokers),
            file_option(*flags, "config_file", about=DEFAULTS_OF_CONFIG),
        )(wrapper)  # type: ignore[return-value]  # the same to click

    return decorate


def cluster_address(
    zookeeper: str | None,
    servers: Sequence[str],
    path: Path | None,
    timeout: float,
    group: object = None,
    *,
    prefix: str = "--",
    config_flag: str = "--config",
) -> ClusterAddress:
    """The cluster of these options, completed by the configuration file `path`. Raises UsageError, ConfigError.

    `group`: of several subscriptions in the file, the one in this group says where it is; else the main one. `prefix`
    and `config_flag`: how the options are called.
    """
    if zookeeper is not None and servers:
        raise click.UsageError(f"give either {prefix}zookeeper or {prefix}bootstrap-server")
    if zookeeper is None and not servers and path is None:
        raise click.UsageError(f"give {prefix}zookeeper, {prefix}bootstrap-server, or {config_flag}")
    bootstrap = bootstrap_servers(servers, f"{prefix}bootstrap-server")
    if path is None:
        return ClusterAddress(zookeeper or "", timeout, bootstrap=bootstrap)
    from consumerd.service.config.model import load  # noqa: PLC0415

    config = load(path)
    config = next((own for own in config.by_subscription().values() if own.group.id == group), config)
    if zookeeper is None and not bootstrap and config.group.coordination != "zookeeper":
        from consumerd.service.config.build_v08 import build_bootstrap  # noqa: PLC0415

        bootstrap = tuple(build_bootstrap(config.kafka))
    connect = "" if bootstrap else zookeeper or config.zookeeper.connect
    return ClusterAddress(connect, timeout, config.zookeeper, config.group.id, bootstrap, config)


def bootstrap_servers(texts: Sequence[str], option: str = "--bootstrap-server") -> tuple[tuple[str, int], ...]:
    """The addresses of `option`, `HOST:PORT,...` once or several times. Raises BadParameter."""
    try:
        return tuple(parse_addresses(split_addresses(texts)))
    except ConfigError as error:
        raise click.BadParameter(str(error), param_hint=option) from None


def server_list(texts: Sequence[str], option: str) -> list[str]:
    """The texts of the addresses of `option`. Raises BadParameter."""
    bootstrap_servers(texts, option)
    return split_addresses(texts)


def timeout_option(server: str) -> Callable[[Decorated], Decorated]:
    """`--timeout` (parameter `timeout`, seconds). `server`: what the command waits for."""
    return seconds_option("--timeout", SERVER_TIMEOUT, f"How long to wait for {server}.")


broker_timeout_option = seconds_option("--broker-timeout", 5.0, "How long to wait for a broker.")
#: None where the configuration has to name it.
group_option = click.option("--group", help="Name of the consumer group. [default: the group of --config]")


def connector(timeout: float) -> Connector:
    """Connects to brokers; neither that nor one answer may take longer than `timeout` seconds."""
    from consumerd.net.connect import connect  # noqa: PLC0415
    from consumerd.net.connection import ConnectionSettings  # noqa: PLC0415

    settings = ConnectionSettings(connect_timeout=timeout, socket_timeout=timeout)

    async def open_connection(host: str, port: int) -> Connection:
        return await connect(host, port, settings=settings)

    return open_connection


def with_session(
    zookeeper: str, timeout: float, work: Callable[[Session], Awaitable[_T]], *, section: ZooKeeperSection | None = None
) -> _T:
    """Run `work` on a session of ZooKeeper at `zookeeper` and return its result; `section` has credentials and TLS.

    Raises ConfigError for an address that cannot be one, NotConnected when ZooKeeper cannot be reached within `timeout`
    seconds, NotFoundError for a chroot that does not exist, and what `work` raises.
    """

    async def main() -> _T:
        async with open_session(zookeeper, timeout, section) as session:
            return await work(session)

    return run_tool(main())


def run_tool(work: Coroutine[Any, Any, _T]) -> _T:
    """Run the work of a command, whose log has warnings and errors alone, and return its result.

    SIGTERM interrupts it, as Ctrl-C does.
    """
    from consumerd.service.daemon.logs import configure_logs  # noqa: PLC0415 - heavy imports only for the command that runs
    from consumerd.service.daemon.loop import sigterm_interrupts  # noqa: PLC0415

    configure_logs("warning", "auto")
    with sigterm_interrupts(work):
        return asyncio.run(work)


@asynccontextmanager
async def open_session(zookeeper: str, timeout: float, section: ZooKeeperSection | None) -> AsyncIterator[Session]:
    """A session as that of `with_session`, for work on several of them."""
    import random  # noqa: PLC0415

    from consumerd.net.cluster.entry import start_session  # noqa: PLC0415
    from consumerd.net.zk.session import Session  # noqa: PLC0415

    clock, rng, where = SystemClock(), random.Random(), "--zookeeper"
    if section is None:
        session = Session(zookeeper, clock=clock, rng=rng, wait_connected=timeout)
    else:
        from consumerd.service.config.build import build_session  # noqa: PLC0415

        where = "zookeeper.connect" if section.connect == zookeeper else where
        section = section.replace(connect=zookeeper)
        session = build_session(section, clock=clock, rng=rng, wait_connected=timeout)
    try:
        await start_session(session, timeout, clock, where=where)
        yield session
    finally:
        await session.close()
