"""Detection of the dialect from nodes: one rule, for members and for tools that only read.

Ring 0. Strategy: a node has the dialect whose members can parse it, and a node that neither can parse has none: so
damaged nodes neither hide the dialect of the others nor count as a mixture. All other nodes must agree. The rule
recognises recordings of 0.7.2 and Jafka, of brokers of 0.8.2 to 3.9.1 and of the old consumers.
"""

from __future__ import annotations

from collections.abc import Mapping

from consumerd.base.partition import NO_BROKER, TopicPartition
from consumerd.wire.registry.dialect import Dialect
from consumerd.wire.registry.errors import DialectError, RegistryError
from consumerd.wire.registry.v08.broker import parse_broker_node
from consumerd.wire.registry.v08.subscription import parse_subscription_v08
from consumerd.wire.registry.values import parse_broker

_BROKERS = ((Dialect.V07, parse_broker), (Dialect.V08, parse_broker_node))


def broker_dialect(data: bytes | str | None) -> Dialect | None:
    """Return the dialect of a child of `/brokers/ids`; None for data that no broker writes."""
    for dialect, parse in _BROKERS:
        try:
            parse(0, data)
        except RegistryError:
            continue
        return dialect
    return None


def member_dialect(data: bytes | str | None) -> Dialect | None:
    """Return the dialect of a child of `/consumers/G/ids`; None for data of no member, and for a nudge's `{ }`."""
    try:
        parse_subscription_v08(data)
    except DialectError:
        return Dialect.V07
    except RegistryError:
        return None
    return Dialect.V08


def offset_dialect(name: str) -> Dialect | None:
    """Return the dialect of a name below `/consumers/G/offsets/T`: a number, or broker and partition; else None."""
    try:
        partition = TopicPartition.parse_any("", name)
    except ValueError:
        return None
    return Dialect.V08 if partition.broker == NO_BROKER else Dialect.V07


def agreed_dialect(said: Mapping[str, Dialect | None], place: str) -> Dialect | None:
    """Return the dialect of all nodes that have one; None if none has.

    `said`: a node's name in a sentence -> its dialect; `place`: the group or cluster that both cannot share. Raises
    DialectError, with one node of each, if there are both.
    """
    found: dict[Dialect, str] = {}
    for name, dialect in said.items():
        if dialect is not None:
            found.setdefault(dialect, name)
    if len(found) > 1:
        raise DialectError(
            f"{found[Dialect.V07]} is registered in the format of Kafka 0.7 and {found[Dialect.V08]} in that of "
            f"0.8 or later, which cannot share {place}: give each a ZooKeeper chroot and a group of its own"
        )
    return next(iter(found), None)
