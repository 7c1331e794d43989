"""The launch of an embedded ZooKeeper server: its jars, its configuration file, its command line.

Strategy: the fewest jars of the installed pyspark with which the server runs. A logging backend doubles the start-up
time and is only added on request; netty only for TLS.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from consumerd.base.java import JavaRuntime, MissingRuntimeError
from consumerd.demo.ports import LOOPBACK
from consumerd.service.config.properties import format_properties

_NEEDED: Final = ("zookeeper", "zookeeper-jute", "slf4j-api", "metrics-core", "snappy-java")
_LOGGING: Final = ("log4j-api", "log4j-core", "log4j-slf4j2-impl")
_TLS: Final = (
    "netty-common", "netty-buffer", "netty-transport", "netty-transport-native-unix-common", "netty-resolver",
    "netty-handler", "netty-codec", "netty-codec-base", "netty-transport-classes-epoll",
)  # fmt: skip
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


@dataclass(frozen=True, slots=True)
class ZooKeeperTls:
    """PEM files for a second, encrypted port: `key_store` holds a PKCS #8 key and its chain, `trust_store` the CA."""

    key_store: Path
    trust_store: Path
    client_certificate: bool = False


def zookeeper_jars(*, logging: bool = False, tls: bool = False) -> list[Path]:
    """The jars of the installed pyspark that a server needs. Raises MissingRuntimeError naming the extra."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise MissingRuntimeError(
            "the embedded ZooKeeper takes its jars from pyspark, which is not installed: "
            "`pip install 'consumerd[embedded]'`"
        )
    folder = Path(spec.submodule_search_locations[0]) / "jars"
    found: list[Path] = []
    for name in (*_NEEDED, *(_LOGGING if logging else ()), *(_TLS if tls else ())):
        matches = sorted(folder.glob(f"{name}-[0-9]*.jar"))
        if not matches:
            raise MissingRuntimeError(f"{name}-*.jar, which ZooKeeper needs, is missing in {folder}: reinstall pyspark")
        found.append(matches[-1])
    return found


def write_zookeeper_config(
    directory: Path,
    port: int,
    *,
    tick_ms: int,
    secure_port: int | None = None,
    tls: ZooKeeperTls | None = None,
    servers: Mapping[int, str] | None = None,
    my_id: int | None = None,
    extra: Mapping[str, str | int] | None = None,
) -> Path:
    """Write `zoo.cfg`, the data directory with `myid`, and the logging configuration; returns the path of the first.

    `servers` maps an ensemble's ids to `host:quorum-port:election-port`.
    """
    data = directory / "data"
    data.mkdir(parents=True, exist_ok=True)
    settings: dict[str, str | int] = {
        "tickTime": tick_ms,
        "dataDir": str(data),
        "clientPort": port,
        "clientPortAddress": LOOPBACK,
        "maxClientCnxns": 0,
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "*",
        # Survives every death of a process; only a crash of the machine could lose the last writes.
        "forceSync": "no",
        "preAllocSize": 1024,
    }
    if tls is not None and secure_port is not None:
        settings |= {
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "secureClientPort": secure_port,
            "secureClientPortAddress": LOOPBACK,
            "ssl.keyStore.location": str(tls.key_store),
            "ssl.trustStore.location": str(tls.trust_store),
            "ssl.clientAuth": "need" if tls.client_certificate else "none",
        }
    if servers:
        settings |= {"initLimit": 20, "syncLimit": 6} | {f"server.{i}": text for i, text in servers.items()}
    if my_id is not None:
        (data / "myid").write_text(f"{my_id}\n", "ascii")
    (directory / "log4j2.properties").write_text(format_properties(_LOG4J), "ascii")
    path = directory / "zoo.cfg"
    path.write_text(format_properties(settings | dict(extra or {})), "ascii")
    return path


def zookeeper_command(
    java: JavaRuntime,
    config: Path,
    *,
    jvm: Sequence[str] = (),
    logging: bool = False,
    tls: bool = False,
    jars: Sequence[Path] | None = None,
) -> list[str]:
    """The argument list that runs a server on `config`, the file that `write_zookeeper_config` wrote.

    `jars`: the class path of another release than that of the installed pyspark.
    """
    class_path = zookeeper_jars(logging=logging, tls=tls) if jars is None else jars
    return [
        str(java.executable), *_JVM, *jvm,
        "-Dzookeeper.jmx.log4j.disable=true",
        f"-Dlog4j2.configurationFile={config.with_name('log4j2.properties')}",
        "-cp", ":".join(map(str, class_path)),
        _MAIN, str(config),
    ]  # fmt: skip
