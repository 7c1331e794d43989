"""Options of brokers of 0.8 and later: their texts, and what they mean together.

Strategy: settings of Kafka's own clients go by their names after `kafka.`, as with Spark's connector; files and logins
by the names that librdkafka has, since the JVM's key stores are none of Python's. What is not supported is refused by
name, not left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from consumerd.spark.source.option_texts import OptionError, read_address, read_text
from consumerd.spark.source.option_values import BootstrapPlace, Login, Tls
from consumerd.wire.scram import SCRAM_HASHES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_ISOLATION: Final = ("read_uncommitted", "read_committed")


def read_servers(name: str, value: str) -> tuple[tuple[str, int], ...]:
    """Addresses, separated by commas."""
    servers: dict[tuple[str, int], None] = {}
    for piece in value.split(","):
        servers[read_address(name, piece)] = None
    return tuple(servers)


def _one_of(*words: str, hint: str = "") -> Callable[[str, str], str]:
    def read(name: str, value: str) -> str:
        found = next((word for word in words if word.lower() == value.strip().lower()), None)
        if found is None:
            raise OptionError(f"the option {name} is {value!r}; it is one of {', '.join(words)}{hint}")
        return found

    return read


#: Name -> how its text is read.
KAFKA_READERS: Final[Mapping[str, Callable[[str, str], Any]]] = {
    "kafka.isolation.level": _one_of(*_ISOLATION),
    "kafka.security.protocol": _one_of(*_PROTOCOLS),
    "kafka.ssl.ca.location": read_text,
    "kafka.ssl.certificate.location": read_text,
    "kafka.ssl.key.location": read_text,
    "kafka.ssl.endpoint.identification.algorithm": _one_of("https", "none"),
    "kafka.sasl.mechanism": _one_of("PLAIN", *SCRAM_HASHES, hint=": others are not supported in Spark"),
    "kafka.sasl.username": read_text,
    "kafka.sasl.password": read_text,
    "kafka.sasl.password.file": read_text,
}
#: Other spellings of options.
ALIASES: Final[Mapping[str, str]] = {"kafka.bootstrap.servers": "bootstrap"}
#: What settings of a JVM client begin with that say how to connect, what is read and in which form: one of these that
#: is not supported is refused, since without it something else would happen.
DECIDING: Final = (
    "kafka.ssl.", "kafka.sasl.", "kafka.security.", "kafka.isolation.", "kafka.bootstrap.", "kafka.key.deserializer",
    "kafka.value.deserializer", "kafka.auto.offset.", "kafka.interceptor.",
)  # fmt: skip
#: Options of the same use where offsets count bytes, and where they count messages.
BY_UNIT: Final[Mapping[str, str]] = {
    "maxSplitBytes": "maxRecordsPerPartition",
    "maxBytesPerTrigger": "maxOffsetsPerTrigger",
}


def bootstrap_place(given: Mapping[str, Any]) -> BootstrapPlace:
    """The place that these options describe. Raises OptionError where they contradict each other."""
    protocol = given.get("kafka.security.protocol", "PLAINTEXT")
    for word, names in (("SSL", "kafka.ssl."), ("SASL", "kafka.sasl.")):
        named = [name for name in given if name.startswith(names)]
        if named and word not in protocol:
            raise OptionError(
                f"the option {named[0]} means nothing with kafka.security.protocol={protocol}; give one with {word}"
            )
    tls = login = None
    if "SSL" in protocol:
        certificate, key = given.get("kafka.ssl.certificate.location"), given.get("kafka.ssl.key.location")
        if key is not None and certificate is None:
            raise OptionError("the option kafka.ssl.key.location needs kafka.ssl.certificate.location; give both")
        named = given.get("kafka.ssl.endpoint.identification.algorithm", "https") == "https"
        tls = Tls(given.get("kafka.ssl.ca.location"), certificate, key, check_hostname=named)
    if protocol.startswith("SASL"):
        user = given.get("kafka.sasl.username")
        password, file = given.get("kafka.sasl.password"), given.get("kafka.sasl.password.file")
        if user is None or (password is None) == (file is None):
            raise OptionError(
                f"kafka.security.protocol={protocol} needs kafka.sasl.username, and exactly one of "
                "kafka.sasl.password and kafka.sasl.password.file"
            )
        login = Login(user, password, file, given.get("kafka.sasl.mechanism", "PLAIN"))
    return BootstrapPlace(
        given["bootstrap"], given.get("kafka.isolation.level") == "read_committed", tls, login
    )  # fmt: skip
