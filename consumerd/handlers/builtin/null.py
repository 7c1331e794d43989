"""A handler that takes every batch and does nothing with it: for measuring, and for draining a group."""

from __future__ import annotations

from consumerd.handlers.api import Handler
from consumerd.handlers.messages import Batch


class NullHandler(Handler):
    """Counts messages and forgets them."""

    def __init__(self) -> None:
        #: Messages handled so far.
        self.messages = 0

    async def handle(self, batch: Batch) -> None:
        """Count the batch."""
        self.messages += len(batch)
