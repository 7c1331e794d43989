"""The values of Kafka 0.7's znodes, except the members' subscriptions: parse leniently, format exactly.

Ring 0. Sources: spec 001 and 004 (both broker forms), golden notes 4, recordings of 0.7.2 and Jafka trees. A `parse_`
function takes a node's data as it comes (bytes, text, or None for null data) and raises only RegistryError; a `format_`
function returns the text that 0.7.2 would write, to be stored as UTF-8.
"""

from __future__ import annotations

from typing import NamedTuple

from consumerd.wire.registry.errors import DialectError, RegistryError, shown
from consumerd.wire.registry.paths import check_name
from consumerd.wire.registry.text import decimal, text_of
from consumerd.wire.registry.v08.json import object_of

MAX_OFFSET = (1 << 63) - 1
#: Far above any real broker; a larger count is damage, and would fill the memory.
MAX_PARTITIONS = 100_000
MAX_BROKER_ID = (1 << 31) - 1


class RegisteredBroker(NamedTuple):
    """A live broker as registered. `creator` is `host-milliseconds`, or "" if the node does not have it."""

    id: int
    creator: str
    host: str
    port: int

    @property
    def address(self) -> tuple[str, int]:
        """The host and port to connect to."""
        return self.host, self.port


def parse_broker_id(name: str) -> int:
    """Read the broker id from the name of a child of `/brokers/ids` or `/brokers/topics/T`."""
    return decimal(name, "a broker id", least=0, most=MAX_BROKER_ID)


def parse_broker(broker: int, data: bytes | str | None) -> RegisteredBroker:
    """Read `creator:host:port` (0.7), `host:port` (spec 001) or Jafka's `creator:host:port:true`.

    Jafka writes `#` for the colons of an IPv6 host. Raises DialectError for the JSON of 0.8+ (other JSON is damage, and
    must not pass for a dialect), else RegistryError.
    """
    what = f"the address of broker {broker}"
    text = text_of(data, what)
    if text.lstrip().startswith("{") and object_of(text, what).keys() & {"version", "host", "endpoints"}:
        raise DialectError(f"broker {broker} is registered in the JSON of Kafka 0.8 or later; only 0.7 is read here")
    parts = text.split(":")
    if len(parts) == 4 and parts[3] in ("true", "false"):
        del parts[3]
    if len(parts) == 2:
        parts.insert(0, "")
    if len(parts) != 3 or not parts[1] or not parts[1].isprintable() or " " in parts[1]:
        raise RegistryError(f"{what} is {shown(text)}: expected creator:host:port or host:port")
    creator, host, port = parts
    return RegisteredBroker(
        broker, creator, host.replace("#", ":"), decimal(port, f"the port of broker {broker}", least=1, most=65535)
    )


def format_broker(broker: RegisteredBroker) -> str:
    """`creator:host:port`, or `host:port` without a creator.

    Raises RegistryError for a host or creator with a colon (IPv6): every 0.7 peer splits the value at colons.
    """
    for part in (broker.host, broker.creator):
        if ":" in part:
            raise RegistryError(
                f"the address {shown(part)} has a colon, which Kafka 0.7's registry cannot hold: "
                "announce a host name or an IPv4 address"
            )
    if not broker.host or not 1 <= broker.port <= 65535:
        raise RegistryError(f"broker {broker.id} cannot be registered at {broker.host!r} port {broker.port}")
    address = f"{broker.host}:{broker.port}"
    return f"{broker.creator}:{address}" if broker.creator else address


def make_creator_id(host: str, wall_ms: int) -> str:
    """Return the creator part of a broker's value, as 0.7.2 makes it: `host-milliseconds`."""
    return f"{host}-{wall_ms}"


def parse_partition_count(data: bytes | str | None) -> int:
    """Read the number of a broker's partitions of a topic: 1 or more."""
    what = "a partition count"
    return decimal(text_of(data, what), what, least=1, most=MAX_PARTITIONS)


def format_partition_count(count: int) -> str:
    """Return decimal text. Raises RegistryError for a value that `parse_partition_count` rejects."""
    return str(_within(count, "a partition count", 1, MAX_PARTITIONS))


def parse_offset(data: bytes | str | None) -> int:
    """Read a committed offset: 0 or more, in bytes of the partition's log."""
    what = "a committed offset"
    return decimal(text_of(data, what), what, least=0, most=MAX_OFFSET)


def format_offset(offset: int) -> str:
    """Return decimal text. Raises RegistryError for a value that `parse_offset` rejects."""
    return str(_within(offset, "an offset", 0, MAX_OFFSET))


def parse_owner(data: bytes | str | None) -> tuple[str, int]:
    """Read `consumerid-stream` as (consumer id, stream number)."""
    text = text_of(data, "the owner of a partition")
    consumer_id, dash, stream = text.rpartition("-")
    if not dash or not consumer_id:
        raise RegistryError(f"the owner of a partition is {shown(text)}: expected consumerid-stream")
    return consumer_id, decimal(stream, "the stream of an owner", least=0, most=MAX_BROKER_ID)


def format_owner(consumer_id: str, stream: int) -> str:
    """`consumerid-stream`."""
    return f"{check_name('consumer id', consumer_id)}-{_within(stream, 'a stream number', 0, MAX_BROKER_ID)}"


def make_consumer_id(group: str, host: str, wall_ms: int, random_64bits: int) -> str:
    """`group_host-milliseconds-xxxxxxxx`, the last part being the high 32 of 64 random bits (golden notes, 4)."""
    return check_name("consumer id", f"{group}_{host}-{wall_ms}-{(random_64bits >> 32) & 0xFFFFFFFF:08x}")


def configured_consumer_id(group: str, name: str) -> str:
    """`group_name`: the id of a member whose name is configured, so that a restart keeps its place in the order."""
    return check_name("consumer id", f"{group}_{name}")


def _within(number: int, what: str, least: int, most: int) -> int:
    if not least <= number <= most:
        raise RegistryError(f"{what} cannot be {number}: expected {least} to {most}")
    return number
