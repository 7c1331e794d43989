"""Errors of a pipeline's tables."""

from __future__ import annotations

from typing import ClassVar

from consumerd.base.errors import ConfigError, ConsumerdError, CorruptDataError, ExitCode


class TableError(ConsumerdError):
    """A table's folder cannot be read or written."""

    exit_code: ClassVar[ExitCode] = ExitCode.SPARK


class TablePathError(ConfigError):
    """The path cannot hold a table of that kind."""


class TableOwnedError(ConsumerdError):
    """The table belongs to another checkpoint, whose batch numbers mean other rows; nothing was written."""

    exit_code: ClassVar[ExitCode] = ExitCode.REFUSED


class TableBehindError(ConsumerdError):
    """The checkpoint lists batches that the table does not have; nothing was written."""

    exit_code: ClassVar[ExitCode] = ExitCode.REFUSED


class TableSchemaError(ConsumerdError):
    """The rows do not fit the table's columns; nothing was written."""

    exit_code: ClassVar[ExitCode] = ExitCode.REFUSED


class TableCorruptError(CorruptDataError):
    """A file that describes the table is damaged."""
