"""What can go wrong while splits are read. Every class takes one sentence, so that it can be pickled in a worker."""

from __future__ import annotations

from consumerd.errors import BrokerError, ConfigError, ConsumerdError, CorruptDataError, ExitCode


class ColumnError(ConfigError):
    """A schema asks for a column that the source does not have, or by another type."""


class FileReadError(ConsumerdError):
    """A file or URL of a split cannot be read: no permission, no such host, no library for it."""

    exit_code = ExitCode.NOT_FOUND


class DataLossError(ConsumerdError):
    """Offsets that were planned are not there any more."""

    exit_code = ExitCode.NOT_FOUND


class MalformedMessageError(CorruptDataError):
    """Bytes that are no message, in mode FAILFAST."""


class SplitBoundaryError(CorruptDataError):
    """A split does not end where a message ends, so some messages would be lost and others invented."""


class BrokerReadError(BrokerError):
    """A broker cannot be reached, hangs up, is too slow, or answers what is no answer."""


class BrokerUnavailableError(BrokerReadError):
    """A broker cannot be reached, or hangs up."""


class BrokerTimeoutError(BrokerReadError):
    """A broker takes too long."""


class BrokerRejectedError(BrokerReadError):
    """A broker does not do what it is asked, and asking again would not help."""


class OffsetUnavailableError(BrokerReadError):
    """A broker's log does not reach to the offset: retention has been there, or it began anew."""
