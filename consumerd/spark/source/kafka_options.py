"""The options of the data source that are Kafka's own: how to connect to brokers of 0.8 and later, and what to read.

They have their names after `kafka.`, as in Spark's connector; those for files and logins have librdkafka's names, since
Python cannot read Java key stores. Unsupported settings are refused by name, not ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from consumerd.base.settings.kind import Lt, Unit
from consumerd.base.settings.setting import Field, Section, Setting
from consumerd.spark.source.option_texts import read_pairs
from consumerd.spark.source.option_values import BootstrapLocation, Login, Tls, TokenSource

_OAUTH: Final = "kafka.sasl.oauthbearer."
#: A number of bytes, perhaps with a unit.
TextBytes = Annotated[int, Unit("bytes"), Lt(1 << 63)]


def option(
    default: Any,
    about: str = "",
    *,
    of: str = "",
    requires: str = "",
    text: Callable[[str, str], Any] | None = None,
    **more: Any,
) -> Any:
    """An option: `about` is Markdown of docs/spark.md.

    `of`: what it is for: "where" the messages are, "what" to read, a "stream", a "batch" or live "brokers"; any read
    by default. `requires`: the option without which it has no effect. `text` reads it, if its type does not say how.
    """
    return Field(default, about, of=of, requires=requires, text=text, **more)


def option_name(setting: Setting) -> str:
    """The name that Spark's users write: in camel case, or as Kafka's clients have it."""
    if setting.name.startswith("kafka_"):
        return setting.name.replace("_", ".")
    first, *words = setting.name.split("_")
    return setting.alias or first + "".join(map(str.capitalize, words))


def _kafka(default: Any, about: str, **said: Any) -> Any:
    return option(default, about, requires="bootstrap", **said)


class KafkaOptions(Section):
    """The options after `kafka.`."""

    kafka_isolation_level: Literal["read_uncommitted", "read_committed"] = _kafka(
        "read_uncommitted", "`read_committed` skips messages of aborted and open transactions"
    )
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = _kafka(
        "PLAINTEXT", "`SSL`, `SASL_SSL` or `SASL_PLAINTEXT`, with the options below"
    )
    kafka_ssl_ca_location: str | None = _kafka(
        None, "PEM file with the authorities to trust, as the next two at the same path on every machine"
    )
    kafka_ssl_certificate_location: str | None = _kafka(None, "PEM file with the certificate of the client")
    kafka_ssl_key_location: str | None = _kafka(None, "PEM file with its key")
    kafka_ssl_endpoint_identification_algorithm: Literal["https", "none"] = _kafka(
        "https", "`none` disables hostname verification"
    )
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] = _kafka(
        "PLAIN", "`PLAIN` (the default), `SCRAM-SHA-256`, `SCRAM-SHA-512`, `OAUTHBEARER`"
    )
    kafka_sasl_username: str | None = _kafka(None, "user, or client id for a token endpoint")
    kafka_sasl_password: str | None = _kafka(None, "password, or client secret", repr=False)
    kafka_sasl_password_file: str | None = _kafka(
        None, "instead, a file that the driver reads, as all [secrets in files](operations.md#secrets)"
    )
    kafka_sasl_oauthbearer_token_endpoint_url: str | None = _kafka(None, "token endpoint for OAUTHBEARER")
    kafka_sasl_oauthbearer_scope: str | None = _kafka(None, "the scopes to request there")
    kafka_sasl_oauthbearer_ca_location: str | None = _kafka(
        None, "PEM file with the authorities to trust there, on every machine"
    )
    kafka_sasl_oauthbearer_token_file: str | None = _kafka(
        None, "instead, a file with a token, on every machine; it is read for each connection"
    )
    kafka_sasl_oauthbearer_extensions: tuple[tuple[str, str], ...] = _kafka(
        (), "`name=value,name=value`, such as `logicalCluster=lkc-example`", text=read_pairs
    )

    def cluster(self, servers: tuple[tuple[str, int], ...]) -> BootstrapLocation:
        """The cluster that these options describe."""
        protocol = self.kafka_security_protocol
        tls = Tls(
            self.kafka_ssl_ca_location,
            self.kafka_ssl_certificate_location,
            self.kafka_ssl_key_location,
            check_hostname=self.kafka_ssl_endpoint_identification_algorithm == "https",
        )
        return BootstrapLocation(
            servers,
            self.kafka_isolation_level == "read_committed",
            tls if "SSL" in protocol else None,
            self._login() if "SASL" in protocol else None,
        )

    def _login(self) -> Login:
        tokens = TokenSource(
            self.kafka_sasl_oauthbearer_token_endpoint_url,
            self.kafka_sasl_oauthbearer_scope,
            self.kafka_sasl_oauthbearer_ca_location,
            self.kafka_sasl_oauthbearer_token_file,
            self.kafka_sasl_oauthbearer_extensions,
        )
        return Login(
            self.kafka_sasl_username or "",
            self.kafka_sasl_password,
            self.kafka_sasl_password_file,
            self.kafka_sasl_mechanism,
            tokens if self.kafka_sasl_mechanism == "OAUTHBEARER" else None,
        )

    def kafka_rules(self, given: Mapping[str, Any]) -> Iterator[str]:
        """The rules about several of them that are broken; `given`: the options by name."""
        protocol = self.kafka_security_protocol
        for word, names in (("SSL", "kafka.ssl."), ("SASL", "kafka.sasl.")):
            named = [name for name in given if name.startswith(names)]
            if named and word not in protocol:
                yield f"option {named[0]} has no effect with kafka.security.protocol={protocol}; use one with {word}"
        if self.kafka_ssl_key_location is not None and self.kafka_ssl_certificate_location is None:
            yield "option kafka.ssl.key.location requires option kafka.ssl.certificate.location; set both"
        if "SASL" in protocol:
            yield from self._login_rules(given)

    def _login_rules(self, given: Mapping[str, Any]) -> Iterator[str]:
        user, mechanism = self.kafka_sasl_username, self.kafka_sasl_mechanism
        passwords = [each for each in (self.kafka_sasl_password, self.kafka_sasl_password_file) if each is not None]
        if mechanism == "OAUTHBEARER":
            yield from self._token_rules()
            if self.kafka_sasl_oauthbearer_token_file is not None:
                if user is not None or passwords:
                    yield f"option {_OAUTH}token.file excludes kafka.sasl.username and passwords: remove them"
                return
        elif named := [name for name in given if name.startswith(_OAUTH)]:
            yield f"option {named[0]} has no effect with kafka.sasl.mechanism={mechanism}; use OAUTHBEARER"
        if user is None or len(passwords) != 1:
            yield (
                f"kafka.security.protocol={self.kafka_security_protocol} needs kafka.sasl.username, and exactly one of "
                "kafka.sasl.password and kafka.sasl.password.file"
            )

    def _token_rules(self) -> Iterator[str]:
        from consumerd.net.client.sasl_oauth import check_endpoint, check_extensions  # noqa: PLC0415 - for few reads

        endpoint, file = self.kafka_sasl_oauthbearer_token_endpoint_url, self.kafka_sasl_oauthbearer_token_file
        if (endpoint is None) == (file is None):
            yield f"OAUTHBEARER needs exactly one of {_OAUTH}token.endpoint.url and {_OAUTH}token.file"
        if endpoint is not None and (rule := check_endpoint(endpoint)):
            yield f"option {_OAUTH}token.endpoint.url {rule}"
        scope, ca = self.kafka_sasl_oauthbearer_scope, self.kafka_sasl_oauthbearer_ca_location
        if endpoint is None and not (scope is ca is None):
            yield f"options {_OAUTH}scope and {_OAUTH}ca.location require {_OAUTH}token.endpoint.url"
        if rule := check_extensions(dict(self.kafka_sasl_oauthbearer_extensions)):
            yield f"option {_OAUTH}extensions: {rule}"
