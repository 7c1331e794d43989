"""Errors of znode names and values.

Ring 0. Every function of this room that parses text of other programs raises these and nothing else.
"""

from __future__ import annotations

from consumerd.base.errors import ConsumerdError, ExitCode

#: Characters of a foreign text that an error message shows.
_SHOWN = 80


class RegistryError(ConsumerdError):
    """A znode's name or value is not in Kafka's format, or cannot be written in it."""

    exit_code = ExitCode.ZOOKEEPER


class NameRefusedError(RegistryError):
    """A name that no node can have; no request was sent to ZooKeeper."""

    exit_code = ExitCode.USAGE


class DialectError(RegistryError):
    """The znodes are those of the other dialect (0.7, or 0.8 and later), or of both: such a group is never joined."""


def shown(text: str) -> str:
    """Return `text` quoted, with control characters escaped, cut to a length that fits a sentence."""
    if len(text) > _SHOWN:
        return f"{text[:_SHOWN]!r}... ({len(text)} characters)"
    return repr(text)
