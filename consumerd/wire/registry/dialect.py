"""The dialect of znodes: that of Kafka 0.7, or the JSON of 0.8 and later.

Ring 0. The two never share a group: their members do not even agree on the name of a partition. Here are their names
and what distinguishes the members' values, for their parsers; `registry.spoken` decides which dialect a cluster or
group speaks.
"""

from __future__ import annotations

import json
from enum import Enum

from consumerd.wire.registry.text import text_of


class Dialect(Enum):
    """The two formats of Kafka's znodes."""

    V07 = "0.7"
    V08 = "0.8+"


def subscription_dialect(data: bytes | str | None) -> Dialect:
    """Return the dialect of a child of `/consumers/G/ids`: 0.8+ has an object under the key `subscription`.

    In 0.7 every value is a number, also that of a topic of that name. Raises RegistryError when there is no text.
    """
    text = text_of(data, "the subscription of a member")
    if text.lstrip().startswith("{"):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return Dialect.V07  # neither dialect; the parser reports what is wrong
        if isinstance(value, dict) and isinstance(value.get("subscription"), dict):
            return Dialect.V08
    return Dialect.V07
