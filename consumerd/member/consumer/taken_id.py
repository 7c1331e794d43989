"""The wait for an id node of another session: that of a dead process like ours, or of a live one.

Strategy: nothing in the node tells which, but time: the server deletes the node of a dead process with its session.
Its timeout may have been longer than ours (servers grant at most 20 ticks, by default 40 s), and begins again when
ZooKeeper restarts. So only time counts in which we are connected without interruption, and the holder is the same.
"""

from __future__ import annotations

from typing import Final

import structlog

from consumerd.base.errors import IdTakenError
from consumerd.base.ports import Clock
from consumerd.wire.registry.paths import id_path

log = structlog.get_logger(__name__)

#: Seconds for which the session of a dead process is waited for, at least.
PATIENCE: Final = 60.0


class TakenId:
    """The session that holds the id of one member, as far as its snapshots show."""

    def __init__(self, group: str, consumer_id: str, clock: Clock) -> None:
        self._group = group
        self._consumer_id = consumer_id
        self._clock = clock
        #: None: no other session holds it. 0: it is a persistent node.
        self._holder: int | None = None
        self._since = 0.0

    def seen(self, holder: int | None, ours: int, patience: float) -> None:
        """Note the owner of the id node in a snapshot. `patience`: the wait for it, in seconds, to be logged."""
        if holder == ours:
            holder = None
        if holder == self._holder:
            return
        self._holder, self._since = holder, self._clock.monotonic()
        if holder is not None:
            log.warning(
                "waiting_for_consumer_id",
                group=self._group,
                consumer=self._consumer_id,
                session=f"{holder:#x}",
                seconds=max(patience, PATIENCE),
            )

    def interrupted(self) -> None:
        """Note that we are connected again: the server may have been down, and counts from the beginning."""
        self._since = self._clock.monotonic()

    def refusal(self, patience: float) -> IdTakenError | None:
        """Return the error of a node that has outlived any dead process; None as long as it may be one's."""
        if self._holder == 0:
            return IdTakenError(
                f"the consumer id {self._consumer_id!r} is held by a persistent node "
                f"({id_path(self._group, self._consumer_id)}), which does not expire; delete it, or choose another "
                "consumer_id."
            )
        if self._holder is None or self._clock.monotonic() - self._since < max(patience, PATIENCE):
            return None
        return IdTakenError(
            f"the consumer id {self._consumer_id!r} is held by another live member of group {self._group!r} (session "
            f"{self._holder:#x}); give each member its own consumer_id."
        )
