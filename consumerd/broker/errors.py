"""Why the broker closes a connection or gives up.

The 0.7 protocol has no words for either: a refused request is answered by closing the connection (golden notes, 1).
The classes say in the log which of the two it was.
"""

from __future__ import annotations

from consumerd.errors import BrokerError


class RequestRefusedError(BrokerError):
    """A request that cannot be honoured: its connection is closed, all others go on."""


class ListenError(BrokerError):
    """The broker cannot listen on its address."""
