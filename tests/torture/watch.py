"""What an outside client sees of the group over time: partitions without an owner, offsets that went back.

The servers are the outside world: they are polled, since watching them would change what is tested.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Final

from consumerd.base.errors import ConsumerdError

if TYPE_CHECKING:
    from tests.torture.stage import Stage

_POLL_SECONDS: Final = 0.05
_OFFSETS_SECONDS: Final = 1.0


class Watch:
    """Polls until cancelled. Times are seconds of the monotonic clock."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._names = frozenset(partition.name for partition in stage.partitions)
        self._absent: dict[str, float] = {}
        #: Since `reset`: the longest time for which one partition had no owner.
        self.longest_gap = 0.0
        #: Looks that the servers did not answer.
        self.blind = 0
        self.owned: frozenset[str] = frozenset()
        self.ids: tuple[str, ...] = ()
        #: When owners and members were read last.
        self.seen_at = 0.0
        self._offsets: dict[str, int] = {}
        self.set_back: list[str] = []

    def reset(self) -> None:
        """Forget the gaps so far; one that is open begins now."""
        now = time.monotonic()
        self._absent = dict.fromkeys(self._absent, now)
        self.longest_gap = 0.0

    async def run(self) -> None:
        """Watch owners and offsets."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_owners())
            group.create_task(self._watch_offsets())

    async def _watch_owners(self) -> None:
        while True:
            asked = time.monotonic()
            try:
                seen = await self._stage.group.look()
            except ConsumerdError:
                self.blind += 1
                self._absent.clear()  # how long it was is not known
                await asyncio.sleep(_POLL_SECONDS)
                continue
            self.owned, self.ids = self._names & seen.owned, seen.ids
            now = self.seen_at = time.monotonic()
            for name in self._names - self.owned:
                self._absent.setdefault(name, asked)
            for name in list(self._absent):
                self.longest_gap = max(self.longest_gap, now - self._absent[name])
                if name in self.owned:
                    del self._absent[name]
            await asyncio.sleep(_POLL_SECONDS)

    async def _watch_offsets(self) -> None:
        while True:
            started = time.monotonic()
            with contextlib.suppress(ConsumerdError):
                await self.read_offsets()
            await asyncio.sleep(max(_OFFSETS_SECONDS, 4 * (time.monotonic() - started)))

    async def read_offsets(self) -> dict[str, int]:
        """The committed offsets by partition; notes those that went back."""
        for name, offset in sorted((await self._stage.group.offsets()).items()):
            if offset < (before := self._offsets.get(name, 0)):
                self.set_back.append(f"the offset of {name} went from {before} to {offset}")
            self._offsets[name] = offset
        return self._offsets

    def settled(self, since: float) -> bool:
        """Whether, seen after `since`, the members are those that shall run and every partition has an owner."""
        try:
            expected = tuple(sorted(map(self._stage.group.id_of, self._stage.running)))
        except ConsumerdError:  # one that has not logged its id yet
            return False
        return self.seen_at > since and self.ids == expected and self.owned == self._names

    async def wait_settled(self, limit: float, *, since: float | None = None) -> bool:
        """Wait for it, at most `limit` seconds; whether it came."""
        since = time.monotonic() if since is None else since
        end = time.monotonic() + limit
        while not self.settled(since):
            if time.monotonic() > end:
                return False
            await asyncio.sleep(_POLL_SECONDS)
        return True
