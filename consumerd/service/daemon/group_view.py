"""The whole group as the status page shows it: who is there and who owns what.

Strategy: read only when the page is requested, at most every few seconds, and kept in between: the reads go to the same
ZooKeeper or coordinator that the group needs. A page waits for a moment only: what takes longer is read on, and is for
the next page. Until then, and where it cannot be read, the page has the former state with its time, or none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from consumerd.base.errors import ConsumerdError, reason_of
from consumerd.base.ports import Clock

if TYPE_CHECKING:
    from consumerd.operate.admin.snapshot import GroupSnapshot

log = structlog.get_logger(__name__)

#: Reads a group that this daemon is a member of.
ReadGroup = Callable[[], "Awaitable[GroupSnapshot]"]

_KEPT_FOR: Final = 3.0
#: Seconds for all answers of one reading.
_PATIENCE: Final = 10.0
#: Seconds from its start for which a page waits for a reading: an answer from nearby is there by then.
_AT_ONCE: Final = 0.2


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group as it was read at `at`, seconds of the clock."""

    at: float
    #: Partitions that each live member owns, by its id.
    members: dict[str, int]
    #: Owners that are not live members, with the partitions that they hold.
    strangers: dict[str, int]
    #: Partitions of subscribed topics that have no owner.
    unowned: list[str]


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """The last state that was read, None before the first; `failure` is the reason why there is no newer one."""

    state: GroupState | None = None
    failure: str | None = None


class GroupWatch:
    """Looks at the group through `read`, until `close`; None where there is no group to look at."""

    def __init__(self, clock: Clock, read: ReadGroup | None) -> None:
        self._clock = clock
        self._read = read
        self._seen = GroupSeen()
        self._began = self._ended = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def look(self) -> GroupSeen | None:
        """The group, a few seconds old at most where it can be read; what is known of it where that takes a while."""
        if self._read is None:
            return None
        if self._reading is None and self._clock.monotonic() - self._ended > _KEPT_FOR:
            self._began = self._clock.monotonic()
            self._reading = asyncio.create_task(self._renew(self._read), name="group-reading")
        left = self._began + _AT_ONCE - self._clock.monotonic()
        if self._reading is not None and left > 0:
            await asyncio.wait([self._reading], timeout=left)
        return self._seen

    async def close(self) -> None:
        """End a reading that is under way."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    async def _renew(self, read: ReadGroup) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                snapshot = await read()
            self._seen = GroupSeen(_state_of(snapshot, self._clock.monotonic()))
        except (ConsumerdError, TimeoutError) as error:
            self._seen = GroupSeen(self._seen.state, reason_of(error))
        except Exception as error:  # a defect, which takes nothing else of the page with it
            log.exception("monitor_failed", task="group-reading", reason=reason_of(error))
            self._seen = GroupSeen(self._seen.state, reason_of(error))
        finally:
            self._ended, self._reading = self._clock.monotonic(), None


def _state_of(snapshot: GroupSnapshot, at: float) -> GroupState:
    view = snapshot.view
    owned = view.owned_by_member()
    return GroupState(
        at,
        {name: owned[name] for name in sorted(view.members)},
        {name: count for name, count in sorted(owned.items()) if name not in view.members},
        sorted(str(partition) for partition in snapshot.wanted() - view.owners.keys() - view.claims.keys()),
    )
