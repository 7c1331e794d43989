"""ZooKeeper servers as no demo needs them: with TLS, as members of an ensemble, of another release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from consumerd.demo.ports import LOOPBACK, free_port
from consumerd.demo.zookeeper import ZooKeeperServer, zookeeper_jars

#: Netty, with which a server speaks TLS.
TLS_JARS: Final = (
    "netty-common", "netty-buffer", "netty-transport", "netty-transport-native-unix-common", "netty-resolver",
    "netty-handler", "netty-codec", "netty-codec-base", "netty-transport-classes-epoll",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ZooKeeperTls:
    """PEM files for a second, encrypted port: `key_store` holds a PKCS #8 key and its chain, `trust_store` the CA."""

    key_store: Path
    trust_store: Path
    client_certificate: bool = False

    def settings(self, port: int) -> dict[str, str | int]:
        """The keys of a server's configuration file."""
        return {
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "secureClientPort": port,
            "secureClientPortAddress": LOOPBACK,
            "ssl.keyStore.location": str(self.key_store),
            "ssl.trustStore.location": str(self.trust_store),
            "ssl.clientAuth": "need" if self.client_certificate else "none",
        }


class ConfiguredZooKeeper(ZooKeeperServer):
    """A server of which `servers` (id -> host:quorum-port:election-port) and `my_id` make a member of an ensemble.

    With `tls` it also listens on `secure_port`. `jvm`: further options. `jars`: the class path of another release.
    """

    def __init__(
        self,
        directory: Path,
        port: int | None = None,
        *,
        config: Mapping[str, str | int] | None = None,
        jvm: Sequence[str] = (),
        tls: ZooKeeperTls | None = None,
        servers: Mapping[int, str] | None = None,
        my_id: int | None = None,
        jars: Sequence[Path] | None = None,
        **more: Any,
    ) -> None:
        self.secure_port = None if tls is None else free_port()
        settings: dict[str, str | int] = {}
        if tls is not None and self.secure_port is not None:
            settings |= tls.settings(self.secure_port)
        if servers:
            settings |= {"initLimit": 20, "syncLimit": 6} | {f"server.{i}": text for i, text in servers.items()}
        super().__init__(directory, port, config=settings | dict(config or {}), **more)
        self._jvm = (*self._jvm, *jvm)
        self._jars = jars
        self._tls = tls is not None
        self._port_is_ours = port is None and servers is None
        if my_id is not None:
            self.name = f"zookeeper-{my_id}"
            self.data_directory.mkdir(parents=True, exist_ok=True)
            (self.data_directory / "myid").write_text(f"{my_id}\n", "ascii")

    def class_path(self, *, logging: bool) -> list[Path]:
        """Those that were given, or those of pyspark, with Netty for TLS."""
        if self._jars is not None:
            return list(self._jars)
        return [
            *super().class_path(logging=logging),
            *(zookeeper_jars(*TLS_JARS)[-len(TLS_JARS) :] if self._tls else ()),
        ]
