"""Errors of reading and changing groups."""

from __future__ import annotations

from typing import ClassVar

from consumerd.base.errors import ConfigError, ConsumerdError, ExitCode, ZooKeeperError


class RefusedError(ConsumerdError):
    """A change was rejected because it would do harm; nothing was changed."""

    exit_code: ClassVar[ExitCode] = ExitCode.REFUSED


class CheckFailedError(ConsumerdError):
    """A requested check found something wrong."""

    exit_code: ClassVar[ExitCode] = ExitCode.CHECK_FAILED


class ChangedMeanwhileError(ZooKeeperError):
    """The group was changed concurrently."""


class IncompleteWriteError(ZooKeeperError):
    """ZooKeeper became unavailable in the middle of a change."""


class ArgumentError(ConfigError):
    """The cluster does not have what the command line asks for, or needs more arguments."""

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE


class OffsetFileError(ConfigError):
    """A file of offsets cannot be read, or is not of one of the two formats."""
