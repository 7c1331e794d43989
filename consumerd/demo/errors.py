"""Errors of the servers and child processes that the demo starts."""

from __future__ import annotations

from consumerd.base.errors import ConsumerdError, ExitCode, ZooKeeperError


class ChildError(ConsumerdError):
    """A child process of ours ended, or did not get ready, against the plan."""

    exit_code = ExitCode.CHECK_FAILED


class ZooKeeperStartError(ZooKeeperError):
    """The embedded ZooKeeper did not start."""


class DemoInputError(ConsumerdError):
    """The demo's input is missing, unreadable or empty."""

    exit_code = ExitCode.NOT_FOUND


class AuditError(ConsumerdError):
    """The records of a demo or test run cannot be read."""

    exit_code = ExitCode.CHECK_FAILED
