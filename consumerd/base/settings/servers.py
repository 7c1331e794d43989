"""The tables of servers, TLS and credentials."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

from consumerd.base.settings.setting import Field, Names, Seconds, SecretStr, Section

#: Seconds that a service waits for its servers when it starts: longer than a library's caller would.
_FIRST_CONNECTION = 30.0
#: The keys that say where the tokens of OAUTHBEARER come from.
_TOKEN_SOURCES: Final = ("token_endpoint", "token_file", "token_provider")
#: Keys that one of these has.
_OF_SOURCE: Final = {
    "token_scope": "token_endpoint",
    "token_parameters": "token_endpoint",
    "token_ca": "token_endpoint",
    "token_options": "token_provider",
}


class TlsSection(Section):
    """TLS to the servers."""

    ca: Path | None = Field(
        None,
        "PEM file with the certificate authorities to trust; the system's by default.",
        examples=["/etc/consumerd/ca.pem"],
    )
    certificate: Path | None = Field(
        None, "PEM file with the client certificate.", examples=["/etc/consumerd/client.pem"]
    )
    key: Path | None = Field(None, "PEM file with the client's private key.", examples=["/etc/consumerd/client.key"])
    key_password: SecretStr | None = Field(None, "Password of an encrypted key.", repr=False, since="0.2.0")
    key_password_file: Path | None = Field(
        None, "File whose first line is this password.", examples=["key-password"], since="0.2.0"
    )
    check_hostname: bool = Field(True, "Whether the server's certificate must match its host name.")


class LoginSection(Section):
    """What an authentication with SASL needs: a user and a password, or a principal of Kerberos and its keytab."""

    mechanism: str
    user: str | None = Field(None, "User name; not for GSSAPI.", min_length=1, examples=["consumerd"])
    password: SecretStr | None
    password_file: Path | None
    service: str
    principal: str | None = Field(
        None,
        "GSSAPI: principal to authenticate as; by default that of the credential cache, or the keytab's first.",
        min_length=1,
        examples=["consumerd/host.example.org@EXAMPLE.ORG"],
    )
    keytab: Path | None = Field(
        None,
        "GSSAPI: keytab file; without it the credential cache (KRB5CCNAME) must hold a ticket.",
        examples=["/etc/consumerd/consumerd.keytab"],
    )

    def rules(self) -> Iterator[str]:
        """The rules about several keys that are broken."""
        if self.mechanism == "GSSAPI":
            if self.user or self.password or self.password_file:
                yield "GSSAPI uses principal and keytab: remove user and password"
            return
        if self.principal or self.keytab:
            yield f"principal and keytab are for GSSAPI, not for {self.mechanism}"
        if self.user is None:
            yield f"{self.mechanism} needs a user"
        if self.password is None and self.password_file is None:
            yield "give exactly one of password and password_file"


class SaslSection(LoginSection):
    """Authentication with the brokers (SASL)."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER"] = Field(
        "SCRAM-SHA-512",
        "SASL mechanism. PLAIN and OAUTHBEARER send the password, or a token, as it is: use them over TLS only. "
        "GSSAPI is Kerberos.",
        names=Names(kafka="sasl.mechanism"),
    )
    user: str | None = Field(
        None,
        "User name, or the client id at `token_endpoint`; not for GSSAPI.",
        min_length=1,
        examples=["consumerd"],
        names=Names(kafka="sasl.oauthbearer.client.credentials.client.id"),
    )
    password: SecretStr | None = Field(
        None,
        "Password, or the client secret. Alternatives: `password_file`, or CONSUMERD_KAFKA__SASL__PASSWORD in the "
        "environment.",
        min_length=1,
        repr=False,
        names=Names(kafka="sasl.oauthbearer.client.credentials.client.secret"),
    )
    password_file: Path | None = Field(
        None,
        "File whose first line is the password, such as a mounted secret. A relative path of a secret is also looked "
        "for in $CREDENTIALS_DIRECTORY (systemd).",
        examples=["kafka-password"],
    )
    service: str = Field(
        "kafka",
        "GSSAPI: service name of the brokers, the first part of their principals (sasl.kerberos.service.name).",
        min_length=1,
    )
    token_endpoint: str | None = Field(
        None,
        "OAUTHBEARER: URL of the token endpoint, which is asked with `user` and `password` (OAuth 2.0 client "
        "credentials).",
        examples=["https://idp.example.org/oauth2/token"],
        names=Names(kafka="sasl.oauthbearer.token.endpoint.url"),
        since="0.2.0",
    )
    token_scope: str | None = Field(
        None,
        "OAUTHBEARER: scopes to request at `token_endpoint`, separated by spaces.",
        min_length=1,
        examples=["kafka"],
        names=Names(kafka="sasl.oauthbearer.scope"),
        since="0.2.0",
    )
    token_parameters: dict[str, str] = Field(
        description="OAUTHBEARER: further parameters of the request to `token_endpoint`.",
        default_factory=dict,
        repr=False,
        examples=[{"audience": "kafka"}],
        since="0.2.0",
    )
    token_ca: Path | None = Field(
        None,
        "OAUTHBEARER: PEM file with the authorities to trust at `token_endpoint`; the system's by default.",
        examples=["/etc/consumerd/idp-ca.pem"],
        since="0.2.0",
    )
    token_file: Path | None = Field(
        None,
        "OAUTHBEARER: file with a token, such as a projected one of Kubernetes; it is read again when it changes.",
        examples=["/var/run/secrets/kafka/token"],
        since="0.2.0",
    )
    token_provider: str | None = Field(
        None,
        "OAUTHBEARER: your own provider of tokens: an entry point of consumerd.token_providers, or module:attribute.",
        min_length=1,
        examples=["mypackage.tokens:Provider"],
        since="0.2.0",
    )
    token_options: dict[str, Any] = Field(
        description="OAUTHBEARER: keyword arguments of `token_provider`.",
        default_factory=dict,
        repr=False,
        since="0.2.0",
    )
    extensions: dict[str, str] = Field(
        description="OAUTHBEARER: extensions that the brokers expect (KIP-342), such as those of Confluent Cloud.",
        default_factory=dict,
        examples=[{"logicalCluster": "lkc-example", "identityPoolId": "pool-example"}],
        since="0.2.0",
    )

    def rules(self) -> Iterator[str]:
        given = [key for key in (*_TOKEN_SOURCES, *_OF_SOURCE, "extensions") if getattr(self, key)]
        if self.mechanism != "OAUTHBEARER":
            if given:
                yield f"{given[0]} is for OAUTHBEARER, not for {self.mechanism}"
            yield from super().rules()
            return
        if self.principal or self.keytab:
            yield "principal and keytab are for GSSAPI, not for OAUTHBEARER"
        sources = [key for key in _TOKEN_SOURCES if key in given]
        if len(sources) != 1:
            yield f"OAUTHBEARER needs exactly one of {', '.join(_TOKEN_SOURCES)}"
            return
        login = [key for key in ("user", "password", "password_file") if getattr(self, key) is not None]
        if sources == ["token_endpoint"]:
            if self.user is None or len(login) == 1:
                yield "token_endpoint needs user (the client id), and password or password_file (the client secret)"
        elif login:
            yield f"{login[0]} is for token_endpoint: remove it"
        for key, source in _OF_SOURCE.items():
            if key in given and source not in given:
                yield f"{key} is for {source}: remove it"


class ZooKeeperSaslSection(LoginSection, since="0.2.0"):
    """Authentication with ZooKeeper by SASL, on each connection."""

    mechanism: Literal["DIGEST-MD5", "GSSAPI"] = Field(
        "DIGEST-MD5", "SASL mechanism of the server's login: DIGEST-MD5 (use it over TLS only), or GSSAPI for Kerberos."
    )
    password: SecretStr | None = Field(
        None,
        "Password. Alternatives: `password_file`, or CONSUMERD_ZOOKEEPER__SASL__PASSWORD in the environment.",
        min_length=1,
        repr=False,
    )
    password_file: Path | None = Field(None, "File whose first line is the password.", examples=["zookeeper-password"])
    service: str = Field(
        "zookeeper", "GSSAPI: service name of the servers, the first part of their principals.", min_length=1
    )


class ZooKeeperSection(Section):
    """The ZooKeeper session."""

    connect: str = Field(
        "127.0.0.1:2181",
        "Hosts, followed by the chroot of the cluster.",
        names=Names(keyword="zookeeper", v07="zk.connect", v08="zookeeper.connect"),
        examples=["zk1:2181,zk2:2181,zk3:2181/kafka"],
    )
    allow_empty: bool = Field(
        False,
        "Start even if the chroot does not exist (it is created) or has neither brokers nor consumers. Otherwise the "
        "daemon waits for them for `connection_timeout`, and exits.",
        since="0.2.0",
    )
    session_timeout: Seconds = Field(
        6.0,
        "Seconds without contact after which the session expires.",
        names=Names(keyword="session_timeout", v07="zk.sessiontimeout.ms", v08="zookeeper.session.timeout.ms"),
    )
    connection_timeout: Seconds = Field(
        _FIRST_CONNECTION,
        "Seconds to wait for the first connection (0.7.2: the session timeout).",
        names=Names(v07="zk.connectiontimeout.ms", v08="zookeeper.connection.timeout.ms"),
    )
    auth: tuple[SecretStr, ...] = Field(
        (), "Credentials, each as `digest:user:password`; sent again after every reconnect.", repr=False
    )
    auth_file: Path | None = Field(
        None, "File with these credentials, one in each line.", examples=["zookeeper-auth"], since="0.2.0"
    )
    acl: str = Field(
        "open",
        "ACL of the nodes that consumerd creates: `open` (as members of 0.7 create them), `creator` (others may only "
        "read), `creator-all` (others have no access), or `scheme:id:cdrwa` entries separated by commas. All but "
        "`open` need `auth`, `sasl` or a client certificate.",
    )
    tls: TlsSection | None = Field(None, "Speak TLS (the server's secureClientPort).")
    sasl: ZooKeeperSaslSection | None = Field(None, "Authenticate by SASL.", since="0.2.0")


class KafkaSection(Section):
    """The brokers of Kafka 0.8 and later. With coordination `zookeeper`, the registered ones by default."""

    bootstrap: tuple[str, ...] = Field(
        ("127.0.0.1:9092",),
        "Brokers to connect to first, each as `host:port`; they name the others. By default with coordination "
        "`zookeeper`: the registered brokers, at a listener that matches tls and sasl.",
        min_length=1,
        examples=[["kafka1:9092", "kafka2:9092"]],
    )
    client_id: str = Field(
        "consumerd",
        "Name that brokers write to their logs and metrics.",
        names=Names(keyword="client_id", v08="client.id"),
    )
    rack: str = Field(
        "",
        "Rack or availability zone of this process, as `broker.rack` names it: partitions are then read from a replica "
        "there, where the brokers (2.4 and later) set `replica.selector.class`. Empty: from their leaders. "
        "The Java client calls it client.rack.",
        names=Names(keyword="rack"),
        examples=["eu-west-1a"],
        since="0.2.0",
    )
    connection_timeout: Seconds = Field(_FIRST_CONNECTION, "Seconds to wait for the first response of a broker.")
    tls: TlsSection | None = Field(None, "Speak TLS (a listener of SSL or SASL_SSL).")
    sasl: SaslSection | None = Field(None, "Authenticate (a listener of SASL_PLAINTEXT or SASL_SSL).")
