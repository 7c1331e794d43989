"""Errors for which the broker closes a connection or stops.

The 0.7 protocol has no code for either: a refused request is answered by closing the connection (golden notes, 1).
The classes are distinguished in the log.
"""

from __future__ import annotations

from consumerd.base.errors import BrokerError


class RequestRefusedError(BrokerError):
    """The request is refused: its connection is closed, all others continue."""


class ListenError(BrokerError):
    """The broker cannot listen on its address."""
