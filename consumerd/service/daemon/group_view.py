"""The whole group as the status page shows it: who is there and who owns what.

Strategy: read only when the page is requested, at most every few seconds, and kept in between: the reads go to the same
ZooKeeper or coordinator that the group needs. What cannot be read in time leaves the page as it was, with a word about
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from consumerd.base.errors import ConsumerdError, reason_of
from consumerd.base.ports import Clock

if TYPE_CHECKING:
    from consumerd.operate.admin.snapshot import GroupSnapshot

#: Reads a group that this daemon is a member of.
ReadGroup = Callable[[], "Awaitable[GroupSnapshot]"]

_KEPT_FOR: Final = 3.0
_PATIENCE: Final = 3.0


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """The last state that was read. `failure` is the reason why there is no newer one."""

    #: Partitions that each live member owns, by its id.
    members: dict[str, int]
    #: Owners that are not live members, with the partitions that they hold.
    strangers: dict[str, int]
    #: Partitions of subscribed topics that have no owner.
    unowned: list[str]
    failure: str | None = None


class GroupWatch:
    """Looks at the group through `read`; None where there is no group to look at."""

    def __init__(self, clock: Clock, read: ReadGroup | None) -> None:
        self._clock = clock
        self._read = read
        self._seen: GroupSeen | None = None
        self._looked_at = float("-inf")
        self._looking = asyncio.Lock()

    async def look(self) -> GroupSeen | None:
        """The group, a few seconds old at most where it can be read."""
        if self._read is None:
            return None
        async with self._looking:
            if self._clock.monotonic() - self._looked_at > _KEPT_FOR:
                self._seen = await self._look(self._read)
                self._looked_at = self._clock.monotonic()
        return self._seen

    async def _look(self, read: ReadGroup) -> GroupSeen:
        try:
            async with asyncio.timeout(_PATIENCE):
                return _seen(await read())
        except (ConsumerdError, TimeoutError) as error:
            old = self._seen
            if old is None:
                return GroupSeen({}, {}, [], reason_of(error))
            return GroupSeen(old.members, old.strangers, old.unowned, reason_of(error))


def _seen(snapshot: GroupSnapshot) -> GroupSeen:
    view = snapshot.view
    owned = view.owned_by_member()
    return GroupSeen(
        {name: owned[name] for name in sorted(view.members)},
        {name: count for name, count in sorted(owned.items()) if name not in view.members},
        sorted(str(partition) for partition in snapshot.wanted() - view.owners.keys() - view.claims.keys()),
    )
