"""Whose znodes are these: Kafka 0.7's, or the JSON of 0.8 and later?

Ring 0. The two never share a group: their members do not even agree on what a partition is called. The brokers' own
nodes decide; the members' nodes are looked at too, because a group may outlive its brokers. Only what is needed to
tell them apart is read here; recordings of 0.8.2 .. 3.9.1 brokers and of the old consumers agree with it.
"""

from __future__ import annotations

import json
from enum import Enum
from typing import TYPE_CHECKING

from consumerd.registry.errors import DialectError
from consumerd.registry.text import text_of

if TYPE_CHECKING:
    from collections.abc import Iterable


class Dialect(Enum):
    """The two ways in which Kafka's generations write their znodes."""

    V07 = "0.7"
    V08 = "0.8+"


def broker_dialect(data: bytes | str | None) -> Dialect:
    """The dialect of a child of `/brokers/ids`. Raises RegistryError when there is no text."""
    text = text_of(data, "the address of a broker")
    return Dialect.V08 if text.lstrip().startswith("{") else Dialect.V07


def subscription_dialect(data: bytes | str | None) -> Dialect:
    """The dialect of a child of `/consumers/G/ids`: 0.8+ has an object under the key `subscription`.

    In 0.7 every value is a number, also that of a topic of that name. Raises RegistryError when there is no text.
    """
    text = text_of(data, "the subscription of a member")
    if text.lstrip().startswith("{"):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return Dialect.V07  # neither dialect; whoever parses it says what is wrong
        if isinstance(value, dict) and isinstance(value.get("subscription"), dict):
            return Dialect.V08
    return Dialect.V07


def detect_dialect(
    brokers: Iterable[bytes | str | None], subscriptions: Iterable[bytes | str | None] = ()
) -> Dialect | None:
    """The one dialect that all nodes speak; None when there are no nodes to tell it by.

    Raises DialectError when both are found, RegistryError for a node without text.
    """
    found = {broker_dialect(data) for data in brokers} | {subscription_dialect(data) for data in subscriptions}
    if len(found) > 1:
        raise DialectError(
            "the brokers and members registered here mix Kafka 0.7 with 0.8 or later: "
            "give each generation a ZooKeeper chroot and a group of its own"
        )
    return next(iter(found), None)


def require_v07(brokers: Iterable[bytes | str | None], subscriptions: Iterable[bytes | str | None] = ()) -> None:
    """Raise DialectError unless everything found speaks 0.7, or nothing is there yet."""
    if detect_dialect(brokers, subscriptions) is Dialect.V08:
        raise DialectError(
            "the brokers or members registered here speak the JSON dialect of Kafka 0.8 or later: "
            "a group of Kafka 0.7 cannot be joined there; check the chroot of the ZooKeeper address"
        )


def require_v08(brokers: Iterable[bytes | str | None], subscriptions: Iterable[bytes | str | None] = ()) -> None:
    """Raise DialectError unless everything found speaks the JSON of 0.8 and later, or nothing is there yet."""
    if detect_dialect(brokers, subscriptions) is Dialect.V07:
        raise DialectError(
            "the brokers or members registered here speak the dialect of Kafka 0.7: "
            "a group of Kafka 0.8 or later cannot be joined there; check the chroot of the ZooKeeper address"
        )
