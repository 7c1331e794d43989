"""Real brokers that are reached by SASL_SSL alone, with PLAIN and SCRAM: users, certificates, and the broker itself.

Strategy: what every release since 0.10.2 understands: PKCS #12 stores, a JAAS file for both mechanisms, and one
listener for clients and brokers. SCRAM's users are made by the release's own tools, before the broker starts: in
ZooKeeper, or when the storage of a KRaft server is formatted. A broker is ready when it authenticates us and names
itself.
"""

from __future__ import annotations

import asyncio
import functools
import random
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import trustme
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12
from cryptography.x509 import load_pem_x509_certificate

from consumerd.base.clock import SystemClock
from consumerd.base.errors import BrokerError
from consumerd.demo.children import Child
from consumerd.demo.ports import LOOPBACK
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.opening import ChannelOpener
from consumerd.net.client.sasl import Plain, SaslAuthenticator
from consumerd.net.client.settings import ClientSettings
from consumerd.net.connect import connect
from tests.support.jafka import java_command
from tests.support.kafka import KafkaBroker

USER: Final = "alice"
#: In no way like anything else, so that it can be looked for in whatever is said.
PASSWORD: Final = "s3cr3t-0f-alice"
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_STORE_PASSWORD: Final = "store-pass"
_JAAS: Final = """KafkaServer {{
  org.apache.kafka.common.security.plain.PlainLoginModule required
    username="{user}" password="{password}" user_{user}="{password}";
  org.apache.kafka.common.security.scram.ScramLoginModule required username="{user}" password="{password}";
}};
"""


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files: the trusted authority, an unknown one, and the broker's stores. The name is 127.0.0.1 alone."""

    authority: Path
    stranger: Path
    key_store: Path
    trust_store: Path


def make_certificates(folder: Path, authority: trustme.CA | None = None) -> Certificates:
    """An authority, a new one by default, and a broker's certificate of it, in `folder`."""
    folder.mkdir()
    authority = authority or trustme.CA()
    made = Certificates(*(folder / name for name in ("authority.pem", "stranger.pem", "key.p12", "trust.p12")))
    authority.cert_pem.write_to_path(made.authority)
    trustme.CA().cert_pem.write_to_path(made.stranger)
    issued = authority.issue_cert(LOOPBACK)
    chain = [load_pem_x509_certificate(blob.bytes()) for blob in issued.cert_chain_pems]
    root = load_pem_x509_certificate(authority.cert_pem.bytes())
    lock = BestAvailableEncryption(_STORE_PASSWORD.encode())
    key: Any = load_pem_private_key(issued.private_key_pem.bytes(), None)
    made.key_store.write_bytes(
        pkcs12.serialize_key_and_certificates(b"broker", key, chain[0], [*chain[1:], root], lock)
    )
    trusted = [pkcs12.PKCS12Certificate(root, b"authority")]
    made.trust_store.write_bytes(pkcs12.serialize_java_truststore(trusted, lock))
    return made


def stores_of(files: Certificates) -> dict[str, str]:
    """The keys of a broker's configuration for its stores."""
    return {
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(files.key_store),
        "ssl.keystore.password": _STORE_PASSWORD,
        "ssl.key.password": _STORE_PASSWORD,
        "ssl.truststore.type": "PKCS12",
        "ssl.truststore.location": str(files.trust_store),
        "ssl.truststore.password": _STORE_PASSWORD,
    }


class SecureBroker(KafkaBroker):
    """As its base; the port is that of its listener for SASL_SSL, and there is no other for clients."""

    def __init__(self, *arguments: Any, certificates: Certificates, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.certificates = certificates
        self.directory.mkdir(parents=True, exist_ok=True)
        login = self.directory / "jaas.conf"
        login.write_text(_JAAS.format(user=USER, password=PASSWORD))
        self._jvm += (f"-Djava.security.auth.login.config={login}",)
        for name in MECHANISMS[1:]:
            self._format_options += ("--add-scram", f"{name}=[name={USER},password={PASSWORD}]")

    @property
    def plaintext_port(self) -> int:
        """The port on which a KRaft server uses no TLS: for its controllers, not for clients."""
        return self._voters[self.broker_id]

    def _settings(self) -> dict[str, str | int]:
        settings = super()._settings()
        listeners = str(settings["listeners"]).replace("PLAINTEXT://", "SASL_SSL://")
        settings |= {
            "listeners": listeners,
            "listener.security.protocol.map": "SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT",
            "security.inter.broker.protocol": "SASL_SSL",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "delete.topic.enable": "true",
            "auto.create.topics.enable": "false",
        }
        return settings | stores_of(self.certificates)

    def _launch(self) -> Child:
        if self.zookeeper is not None:
            self._make_users(self.zookeeper)
        return super()._launch()

    def _make_users(self, zookeeper: str) -> None:
        credentials = ",".join(f"{name}=[password={PASSWORD}]" for name in MECHANISMS[1:])
        command = java_command(
            self._java, self._jars, self.directory, "kafka.admin.ConfigCommand", "--zookeeper", zookeeper, "--alter",
            "--add-config", credentials, "--entity-type", "users", "--entity-name", USER,
        )  # fmt: skip
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=90, check=False)
        assert done.returncode == 0, done

    async def _answers(self) -> bool:
        settings, clock = ClientSettings(), SystemClock()
        trusting = await asyncio.to_thread(ssl.create_default_context, cafile=self.certificates.authority)
        opener = ChannelOpener(
            functools.partial(connect, settings=settings.connection, ssl=trusting), settings, clock,
            authenticate=SaslAuthenticator(functools.partial(Plain, USER, PASSWORD)),
        )  # fmt: skip
        address = (LOOPBACK, self.port)
        async with ClusterClient([address], opener, settings, clock=clock, rng=random.Random()) as client:
            try:
                return bool((await client.refresh()).nodes)
            except BrokerError:
                return False
