"""A message that its handler rejects is committed after its dead letter was confirmed, wherever a member crashes.

The daemon, the retries and the failure policy are the real ones; the place of the letters takes a while to store them,
and a while to confirm. A crash in between may repeat a letter, and never loses one. `account` checks at each commit
that everything before it was handled or is a confirmed letter.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from consumerd.handlers import Batch, DeadLetters, Handler, Letter, RejectedError, RetryPolicy, retrying
from consumerd.handlers.giving_up import GivingUp
from consumerd.wire.registry.paths import offset_path
from consumerd.wire.registry.values import parse_offset
from tests.simulation.daemon import Daemon, ProcessClock
from tests.simulation.threads import ThreadedLoop
from tests.simulation.world import World

if TYPE_CHECKING:
    import random

pytestmark = pytest.mark.timeout(900)

MESSAGES = 5
#: Seconds until a letter is stored, and then until that is confirmed.
STORES, CONFIRMS = 0.15, 0.15
_SETTINGS: dict[str, dict[str, Any]] = {"fetch": {"initial": "earliest"}, "commit": {"interval": 0.1}}


def is_rejected(payload: bytes) -> bool:
    """Whether the handler rejects a message."""
    return int(payload) % 2 == 0


class Story:
    """One partition, and the letters of all members."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.letters: list[int] = []
        #: Called before each turn of the first member from its first message on.
        self.watch: Callable[[Daemon], None] = lambda daemon: None
        self.begun = False
        world.account.count_all()
        world.topic("t", 1)
        (self.partition,) = world.partitions
        world.produce(self.partition, MESSAGES)

    def join(self, name: str) -> Daemon:
        made = self.world.daemons[name] = _Member(self, name)
        return made

    @property
    def committed(self) -> bool:
        node = self.world.zookeeper.tree.nodes.get(offset_path(self.world.group, self.partition))
        return node is not None and parse_offset(node.data) == self.world.end(self.partition)

    def check(self) -> Counter[int]:
        """The letters of each offset. Fails unless all rejected messages have one, and nothing else has."""
        assert not self.world.account.violations
        rejected = {
            offset for number, offset in enumerate(self.world.account.offsets(self.partition), 1) if number % 2 == 0
        }
        assert set(self.letters) == rejected
        return Counter(self.letters)


class _Letters(DeadLetters):
    def __init__(self, story: Story) -> None:
        self._story = story

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def write(self, letters: Sequence[Letter]) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(STORES)
        assert isinstance(loop, ThreadedLoop)
        if loop.dead:
            return
        self._story.letters += [each.message.offset for each in letters]
        await asyncio.sleep(CONFIRMS)
        for each in letters:
            self._story.world.account.handled(each.message.partition, [each.message.offset])


class _Rejecting(Handler):
    def __init__(self, story: Story) -> None:
        self._story = story

    async def handle(self, batch: Batch) -> None:
        self._story.begun = True
        batch.mark(0)
        for count, message in enumerate(batch.messages(), 1):
            if is_rejected(message.payload):
                raise RejectedError("an even number")
            self._story.world.account.handled(message.partition, [message.offset])
            batch.mark(count)


class _Member(Daemon):
    def __init__(self, story: Story, name: str) -> None:
        self._story = story
        settings = {**_SETTINGS, "group": {"consumer_id": name}}
        super().__init__(story.world, name, settings, 0.0, stubborn=False, lingering=False)

    def make_loop(self) -> ThreadedLoop:
        return ThreadedLoop(self.world.kernel, self.world.network, self.name, self._watched)

    def _watched(self, step: str) -> None:
        if self._story.begun and self.name == "a":
            self._story.watch(self)

    def make_handler(self, clock: ProcessClock, rng: random.Random) -> Handler:
        policy = RetryPolicy(on_failure="dead_letter")
        return retrying(_Rejecting(self._story), policy, clock=clock, rng=rng, dead_letters=_Letters(self._story))


def crash(number: int) -> Counter[int] | None:
    """Kill a member before turn `number` from its first message on; another one continues. The letters at the end.

    None if the member commits everything before that turn.
    """
    with World(0) as world:
        story, count = Story(world), itertools.count()

        def watch(daemon: Daemon) -> None:
            if next(count) == number:
                daemon.kill()

        story.watch = watch
        first = story.join("a")
        world.kernel.until(lambda: not first.alive or story.committed, 60.0, what="the member is killed, or commits")
        if first.alive:
            story.check()
            return None
        story.join("b")
        world.kernel.until(lambda: story.committed, 60.0, what="the next member commits")
        return story.check()


def crash_at(numbers: Iterable[int]) -> list[Counter[int]]:
    """The letters at the end after each crash, until a member commits before it."""
    found: list[Counter[int]] = []
    for number in numbers:
        letters = crash(number)
        if letters is None:
            return found
        found.append(letters)
    raise AssertionError("a member takes more turns than that")


def test_crash_loses_no_dead_letter() -> None:
    found = crash_at(range(1, 1000, 25))
    assert len(found) > 2


@pytest.mark.long
def test_crash_at_each_await_loses_no_dead_letter() -> None:
    found = crash_at(range(1000))
    repeats = [sum(letters.values()) - len(letters) for letters in found]
    assert set(repeats) == {0, 1}  # the one that was stored, but not confirmed


def test_finds_a_commit_before_a_dead_letter_is_confirmed() -> None:
    write = GivingUp._write
    tasks: list[asyncio.Task[None]] = []

    async def write_later(self: GivingUp, place: DeadLetters, letters: list[Letter]) -> None:
        tasks.append(asyncio.ensure_future(write(self, place, letters)))

    with mock.patch.object(GivingUp, "_write", write_later), pytest.raises(AssertionError, match="was not handled"):
        crash(10_000)
