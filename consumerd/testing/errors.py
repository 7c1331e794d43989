"""Errors of tests that use the tools of this room."""

from __future__ import annotations

from consumerd.base.errors import ConsumerdError, ExitCode


class HarnessError(ConsumerdError):
    """A call that is not possible now, such as a delivery before the start."""

    exit_code = ExitCode.USAGE


class ContractError(AssertionError):
    """The handler under test broke the contract of handlers, so it would not do in a daemon (docs/handlers.md)."""
