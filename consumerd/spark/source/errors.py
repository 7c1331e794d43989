"""Errors while splits are read. Every class takes one sentence, so that it can be pickled in a worker."""

from __future__ import annotations

from consumerd.base.errors import BrokerError, ConfigError, ConsumerdError, CorruptDataError, ExitCode


class ColumnError(ConfigError):
    """A schema names a column that the source does not have, or gives it another type."""


class FileReadError(ConsumerdError):
    """A file or URL cannot be read: no permission, no such host, or its library is missing."""

    exit_code = ExitCode.NOT_FOUND


class DataLossError(ConsumerdError):
    """Offsets that were planned to be read no longer exist."""

    exit_code = ExitCode.NOT_FOUND


class MalformedMessageError(CorruptDataError):
    """Bytes that are not a valid message, in mode FAILFAST."""


class SplitBoundaryError(CorruptDataError):
    """A split does not end at a message boundary, so reading it would lose messages and invent others."""


class BrokerReadError(BrokerError):
    """A broker is unreachable, closes the connection, times out, or sends an invalid response."""


class BrokerUnavailableError(BrokerReadError):
    """A broker is unreachable, or closes the connection."""


class BrokerTimeoutError(BrokerReadError):
    """A broker does not respond in time."""


class BrokerRejectedError(BrokerReadError):
    """A broker rejects a request, and a retry would not help."""


class OffsetUnavailableError(BrokerReadError):
    """A broker does not have the offset: retention deleted it, or the topic was created again."""


class LogReplacedError(BrokerReadError):
    """A topic has another id than the planned one: it was deleted and created again."""
