"""`consumerd broker`: run a Kafka 0.7 broker until a signal stops it."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import random
import resource
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import structlog

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ExitCode
from consumerd.cli.numbers import PositiveInt, zookeeper_option
from consumerd.cli.setting_option import setting_option
from consumerd.net.zk.session import Session
from consumerd.service.config.properties import read_properties
from consumerd.service.daemon.broker_readings import monitored
from consumerd.service.daemon.logs import configure_logs
from consumerd.storage.broker.config import WITHOUT_EFFECT, BrokerConfig
from consumerd.storage.broker.server import Broker

logger = structlog.get_logger(__name__)

#: Options that are another spelling of a property.
_SPELLINGS = {
    "port": "port",
    "log_dir": "log.dir",
    "broker_id": "brokerid",
    "partitions": "num.partitions",
    "zookeeper": "zk.connect",
    "health_listen": "health.listen",
}


_EXAMPLE = """\b
Example:
  consumerd broker --port 9092 --log-dir /var/lib/kafka --zookeeper 127.0.0.1:2181/kafka \\
    --partitions 4 --set log.flush.interval=1
"""


@click.command("broker", epilog=_EXAMPLE)
@setting_option(
    "--port",
    setting="consumerd.storage.broker.config:BrokerConfig.port",
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 takes a free one. [default: {default}]",
)
@click.option("--log-dir", type=click.Path(path_type=Path, file_okay=False), help="Directory of the logs.")
@setting_option(
    "--broker-id",
    setting="consumerd.storage.broker.config:BrokerConfig.broker_id",
    type=click.IntRange(0),
    help="Id of this broker in ZooKeeper. [default: {default}]",
)
@setting_option(
    "--partitions",
    setting="consumerd.storage.broker.config:BrokerConfig.partitions",
    type=PositiveInt(),
    help="Number of partitions of each topic on this broker. [default: {default}]",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on and to announce.")
@zookeeper_option("--zookeeper", "ZooKeeper servers and chroot to register in.", metavar="HOST:PORT[/CHROOT]")
@click.option("--no-zookeeper", is_flag=True, help="Do not register in ZooKeeper.")
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File server.properties of Kafka 0.7; options and --set override it.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Broker property, as in server.properties; may be given several times.",
)
@click.option(
    "--health-listen",
    metavar="HOST:PORT",
    help="Address of an HTTP server for /healthz and /readyz (requires the extra http).  [default: none]",
)
@click.option(
    "--metrics",
    is_flag=True,
    help="With --health-listen: serve /metrics for Prometheus, too (requires the extra metrics).",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Lowest level of log messages to show.",
)
def command(**options: Any) -> int:
    """Run a Kafka 0.7 broker.

    Once the broker serves requests (and is registered), it prints one line of JSON with the port to standard output;
    the log goes to standard error. SIGTERM and SIGINT stop it after the current requests; a second signal forces the
    exit, and the next start then checks the logs.
    """
    configure_logs(options.pop("log_level"), "auto")
    config = _config(options)
    for name in config.ignored:
        logger.warning("property_without_effect", name=name, reason=WITHOUT_EFFECT[name])
    _raise_descriptor_limit(config)
    return int(_runner()(_main(config)))


def _config(options: dict[str, Any]) -> BrokerConfig:
    """Properties and options as one configuration. Raises ConfigError, UsageError."""
    given: dict[str, str] = {}
    for setting in options["settings"]:
        name, equals, value = setting.partition("=")
        if not equals:
            raise click.UsageError(f"--set {setting} has no value: write --set key=value")
        given[name.strip()] = value
    for option, name in _SPELLINGS.items():
        value = options[option]
        if value is None:
            continue
        if given.setdefault(name, str(value)) != str(value):
            spelling = f"--{option.replace('_', '-')}"
            raise click.UsageError(f"{spelling} and --set {name} contradict each other: give one of them")
    if options["no_zookeeper"]:
        if options["zookeeper"] is not None:
            raise click.UsageError("--zookeeper and --no-zookeeper contradict each other: give one of them")
        given["enable.zookeeper"] = "false"
    if options["metrics"] and given.setdefault("health.metrics", "true") != "true":
        raise click.UsageError("--metrics and --set health.metrics contradict each other: give one of them")
    if options["metrics"] and "health.listen" not in given and options["file"] is None:
        raise click.UsageError("--metrics needs --health-listen: give an address such as 127.0.0.1:8080")
    properties = {**(read_properties(options["file"]) if options["file"] else {}), **given}
    host = options["host"]
    announced = None
    if host in ("", "0.0.0.0", "::"):  # nosec B104  # noqa: S104 - only asked whether it is a wildcard, which cannot be announced
        announced = socket.gethostname()
    return BrokerConfig.from_properties(
        properties, host=host, advertised_host=None if "hostname" in properties else announced
    )


def _runner() -> Callable[[Coroutine[Any, Any, ExitCode]], ExitCode]:
    """The runner of uvloop where it is installed, else of asyncio."""
    try:
        run: Callable[[Coroutine[Any, Any, ExitCode]], ExitCode] = importlib.import_module("uvloop").run
    except ImportError:
        return asyncio.run
    return run


def _raise_descriptor_limit(config: BrokerConfig) -> None:
    """Raise the limit of open files to the hard limit, as a JVM does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS says that there is no limit, and then refuses
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    if soft != resource.RLIM_INFINITY and config.max_connections > soft:
        logger.warning("more_connections_than_descriptors", connections=config.max_connections, descriptors=soft)


async def _main(config: BrokerConfig) -> ExitCode:
    if config.threads is not None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(config.threads, "disk"))
    clock, rng = SystemClock(), random.Random()
    async with monitored(config, clock) as monitor:
        if not config.use_zookeeper:
            broker = Broker(config, clock=clock, rng=rng)
            monitor.watch(broker)
            return await _serve(broker)
        assert config.zookeeper is not None
        session = Session(
            config.zookeeper,
            session_timeout=config.zk_session_ms / 1000,
            connect_timeout=(config.zk_connection_ms or config.zk_session_ms) / 1000,
            clock=clock,
            rng=rng,
        )
        async with session:
            broker = Broker(config, clock=clock, rng=rng, zookeeper=session)
            monitor.watch(broker)
            return await _serve(broker)


async def _serve(broker: Broker) -> ExitCode:
    """Run until the first signal, then stop gracefully; a second one, or one during the start, ends it at once."""
    loop = asyncio.get_running_loop()
    running = loop.create_task(broker.run(), name="broker")
    ready = loop.create_task(broker.ready.wait(), name="broker ready")
    signals = 0

    def on_signal() -> None:
        nonlocal signals
        signals += 1
        if signals > 1 or not broker.ready.is_set():
            running.cancel()
        else:
            broker.request_stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
        if broker.ready.is_set():
            _announce(broker)
        await running
    except asyncio.CancelledError:
        if not signals:
            raise
        return ExitCode.FORCED if signals > 1 else ExitCode.OK
    finally:
        ready.cancel()
        running.cancel()
        await asyncio.wait({ready, running})
    return ExitCode.OK


def _announce(broker: Broker) -> None:
    line = {"event": "ready", "broker": broker.config.broker_id, "host": broker.config.host, "port": broker.port}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
