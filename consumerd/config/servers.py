"""The tables that say which servers there are, and who we are to them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, model_validator

from consumerd.client.settings import ClientSettings
from consumerd.config.base import Seconds, Section
from consumerd.consumer.config import ConsumerConfig
from consumerd.defaults import default_of
from consumerd.zk import Session

#: Seconds that a service waits for its servers when it starts: longer than a library's caller would.
_FIRST_CONNECTION = 30.0


class TlsSection(Section):
    """TLS to the servers."""

    ca: Path | None = Field(
        None,
        description="PEM file with the authorities to trust; the system's by default.",
        examples=["/etc/consumerd/ca.pem"],
    )
    certificate: Path | None = Field(
        None, description="PEM file with the client certificate.", examples=["/etc/consumerd/client.pem"]
    )
    key: Path | None = Field(
        None, description="PEM file with the client's private key.", examples=["/etc/consumerd/client.key"]
    )
    check_hostname: bool = Field(True, description="Whether the certificate has to name the host.")


class ZooKeeperSection(Section):
    """The one ZooKeeper session."""

    connect: str = Field(
        default_of(ConsumerConfig, "zookeeper"),
        description="Hosts and, after them, the chroot (made when missing).",
        examples=["zk1:2181,zk2:2181,zk3:2181/kafka"],
    )
    session_timeout: Seconds = Field(
        default_of(Session, "session_timeout"), description="Seconds without contact after which the session is over."
    )
    connection_timeout: Seconds = Field(
        _FIRST_CONNECTION,
        description="Seconds to wait for a first connection before giving up (0.7.2: the session timeout).",
    )
    auth: tuple[SecretStr, ...] = Field(
        (), repr=False, description="Credentials, `digest:user:password` each; sent again after every reconnect."
    )
    acl: str = Field(
        default_of(Session, "acl"),
        description="Access of nodes that we create: `open`, `creator-all`, or `scheme:id:rwcda` entries with commas.",
    )
    tls: TlsSection | None = Field(None, description="Speak TLS (the server's secureClientPort).")


class SaslSection(Section):
    """Who we are, for brokers that ask."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI"] = Field(
        "SCRAM-SHA-512",
        description="How to prove it. PLAIN shows the password: use it over TLS only. GSSAPI is Kerberos.",
    )
    user: str | None = Field(
        None, min_length=1, description="Name of the user; not for GSSAPI.", examples=["consumerd"]
    )
    password: SecretStr | None = Field(
        None,
        min_length=1,
        repr=False,
        description="The password, or else `password_file`, or CONSUMERD_KAFKA__SASL__PASSWORD in the environment.",
    )
    password_file: Path | None = Field(
        None,
        description="File whose first line is the password, such as a mounted secret.",
        examples=["/run/secrets/kafka-password"],
    )
    service: str = Field(
        "kafka", min_length=1, description="GSSAPI: first part of the brokers' principals, whose second is their host."
    )
    principal: str | None = Field(
        None,
        min_length=1,
        description="GSSAPI: who we are; by default the principal of the credential cache, or the keytab's first.",
        examples=["consumerd/host.example.org@EXAMPLE.ORG"],
    )
    keytab: Path | None = Field(
        None,
        description="GSSAPI: file with our keys; without it the credential cache (KRB5CCNAME) must hold a ticket.",
        examples=["/etc/consumerd/consumerd.keytab"],
    )

    @model_validator(mode="after")
    def _of_the_mechanism(self) -> SaslSection:
        if self.mechanism == "GSSAPI":
            if self.user or self.password or self.password_file:
                raise ValueError("GSSAPI takes principal and keytab, no user and no password")
            return self
        if self.principal or self.keytab:
            raise ValueError(f"principal and keytab are for GSSAPI, not for {self.mechanism}")
        if self.user is None:
            raise ValueError(f"{self.mechanism} needs a user")
        if (self.password is None) == (self.password_file is None):
            raise ValueError("give exactly one of password and password_file")
        return self


class KafkaSection(Section):
    """The brokers of Kafka 0.8 and later. With coordination `zookeeper`, those that are registered there by default."""

    bootstrap: tuple[str, ...] = Field(
        ("127.0.0.1:9092",),
        min_length=1,
        description=(
            "Brokers to begin with, `host:port` each; they tell of the others. With coordination `zookeeper`, if this "
            "is left out: the registered ones, at a listener that speaks what tls and sasl say."
        ),
        examples=[["kafka1:9092", "kafka2:9092"]],
    )
    client_id: str = Field(
        default_of(ClientSettings, "client_id"), description="Who we say that we are: brokers write it to their logs."
    )
    connection_timeout: Seconds = Field(
        _FIRST_CONNECTION, description="Seconds to wait for a first broker that answers before giving up."
    )
    tls: TlsSection | None = Field(None, description="Speak TLS (a listener of SSL or SASL_SSL).")
    sasl: SaslSection | None = Field(None, description="Authenticate (a listener of SASL_PLAINTEXT or SASL_SSL).")
