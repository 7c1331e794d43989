"""Errors of this protocol beside `consumerd.wire.errors`."""

from __future__ import annotations

from consumerd.base.errors import BrokerError
from consumerd.wire.errors import WireError


class UnsupportedVersionError(WireError):
    """An API key or a version of it that no schema here describes."""


class UnsupportedApiError(BrokerError):
    """The broker has no version of an API that this client knows, or not the requested feature."""
