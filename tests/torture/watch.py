"""What an outside client sees of the group: owners, members, committed offsets.

ZooKeeper's tree is the outside world: it is polled, since watching it would change what is tested.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Final

from consumerd.errors import ConsumerdError
from consumerd.registry import owner_path
from consumerd.zk import NoNode
from tests.kill.mirrors import TOPIC
from tests.torture.stage import GROUP

if TYPE_CHECKING:
    from tests.torture.stage import Stage

_POLL_SECONDS: Final = 0.05
_OFFSETS_SECONDS: Final = 1.0
_AT_ONCE: Final = 50


class Watch:
    """Polls until cancelled. Times are seconds of the monotonic clock."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._names = {partition.name for partition in stage.partitions}
        self._absent: dict[str, float] = {}
        #: Since `reset`: the longest time for which one partition had no owner node.
        self.longest_gap = 0.0
        #: Polls that ZooKeeper did not answer.
        self.blind = 0
        self.owned: set[str] = set()
        self.ids: set[str] = set()
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
        session = self._stage.session
        while True:
            asked = time.monotonic()
            try:
                ids = await session.children(f"/consumers/{GROUP}/ids")
                owned = await session.children(f"/consumers/{GROUP}/owners/{TOPIC}")
            except NoNode:
                ids, owned = [], []
            except ConsumerdError:
                self.blind += 1
                self._absent.clear()  # how long it was is not known
                await asyncio.sleep(_POLL_SECONDS)
                continue
            self.owned, self.ids = self._names.intersection(owned), set(ids)
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
        names = sorted(self._names)
        for first in range(0, len(names), _AT_ONCE):
            some = names[first : first + _AT_ONCE]
            for name, offset in zip(some, await asyncio.gather(*map(self._offset, some)), strict=True):
                if offset is None:
                    continue
                if offset < (before := self._offsets.get(name, 0)):
                    self.set_back.append(f"the offset of {name} went from {before} to {offset}")
                self._offsets[name] = offset
        return self._offsets

    async def _offset(self, name: str) -> int | None:
        try:
            data, _ = await self._stage.session.get(f"/consumers/{GROUP}/offsets/{TOPIC}/{name}")
        except NoNode:
            return None
        return int(data or b"0")

    def settled(self, since: float) -> bool:
        """Whether, seen after `since`, the members are those that shall run and every partition has an owner."""
        try:
            expected = {member.consumer_id for member in self._stage.running}
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

    async def shares(self) -> list[int]:
        """How many partitions each owner has."""
        held: dict[int, int] = {}
        for partition in self._stage.partitions:
            if (stat := await self._stage.session.exists(owner_path(GROUP, partition))) is not None:
                held[stat.ephemeral_owner] = held.get(stat.ephemeral_owner, 0) + 1
        return sorted(held.values())
