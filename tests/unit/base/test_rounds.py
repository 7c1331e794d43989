"""Group commit: one round at a time, and all that is asked for meanwhile in the next."""

from __future__ import annotations

import asyncio

import pytest

from consumerd.base.rounds import Rounds
from tests.support.waiting import turns


class Work:
    """Notes the items of each round; a round ends when it is let go, with what `outcomes` says."""

    def __init__(self) -> None:
        self.rounds: list[list[str]] = []
        self.under_way = 0
        self.error: Exception | None = None
        self._go = asyncio.Semaphore(0)
        self.made = Rounds(self.perform)

    async def perform(self, items: list[str]) -> int:
        assert self.under_way == 0, "two at the same time"
        self.under_way += 1
        try:
            self.rounds.append(items)
            await self._go.acquire()
            if self.error is not None:
                raise self.error
            return len(self.rounds)
        finally:
            self.under_way -= 1

    def ask(self, *items: str) -> asyncio.Task[int]:
        return asyncio.create_task(self.made.take_part(items))

    async def end(self, rounds: int = 1) -> None:
        for _ in range(rounds):
            self._go.release()
        await turns()


async def test_combines_simultaneous_requests_in_one_round() -> None:
    work = Work()
    tasks = [work.ask(item) for item in "abca"]
    await turns()
    assert work.rounds == [["a", "b", "c"]]
    await work.end()
    assert [task.result() for task in tasks] == [1] * 4


async def test_all_of_a_round_continue_in_the_same_turn() -> None:
    """So what each of them asks for next is one round again."""
    work = Work()
    later: list[list[str]] = []

    async def note(items: list[str]) -> None:
        later.append(items)

    after = Rounds(note)

    async def both(item: str) -> None:
        await work.made.take_part([item])
        await after.take_part([item])

    tasks = [asyncio.create_task(both(item)) for item in "abcd"]
    await turns()
    await work.end()
    await asyncio.wait_for(asyncio.gather(*tasks), 60)
    assert [sorted(items) for items in later] == [["a", "b", "c", "d"]]


async def test_gathers_later_requests_in_next_round() -> None:
    work = Work()
    first = work.ask("a")
    await turns()
    others = [work.ask("b")]
    await turns()
    others.append(work.ask("c"))
    await turns()
    others.append(work.ask("a"))
    await turns()
    assert work.rounds == [["a"]]
    await work.end()
    assert first.result() == 1
    assert work.rounds == [["a"], ["b", "c", "a"]]
    assert not any(task.done() for task in others)
    await work.end()
    assert [task.result() for task in others] == [2] * 3
    assert len(work.rounds) == 2


async def test_error_reaches_only_its_round() -> None:
    work = Work()
    first = work.ask("a")
    await turns()
    others = [work.ask("b"), work.ask("c")]
    await work.end()
    work.error = ValueError("as it were")
    await work.end()
    assert first.result() == 1
    for task in others:
        with pytest.raises(ValueError, match="as it were"):
            task.result()
    work.error = None
    last = work.ask("d")
    await work.end()
    assert last.result() == 3


async def test_cancelled_performer_leaves_round_to_next() -> None:
    work = Work()
    first = work.ask("a")
    second = work.ask("b")
    await turns()
    first.cancel()
    await turns()
    assert first.cancelled()
    assert work.rounds == [["a", "b"], ["a", "b"]]
    await work.end()
    assert second.result() == 2


async def test_requests_before_and_after_a_cancellation_share_the_next_round() -> None:
    work = Work()
    first = work.ask("a")
    second = work.ask("b")
    await turns()
    third = work.ask("c")
    await turns()
    first.cancel()
    await turns()
    last = work.ask("d")
    await turns()
    await work.end()
    assert second.result() == 2
    assert work.rounds[2:] == [["c", "d"]]
    await work.end()
    assert third.result() == last.result() == 3


async def test_cancelled_round_blocks_nobody() -> None:
    work = Work()
    first = work.ask("a")
    await turns()
    first.cancel()
    await turns()
    second = work.ask("b")
    await work.end()
    assert second.result() == 2
    await asyncio.wait_for(work.made.wait_for(["a", "b"]), 60)


async def test_wait_for_lasts_until_round_ended() -> None:
    work = Work()
    await work.made.wait_for(["a"])  # there was no round yet
    first = work.ask("a", "b")
    await turns()
    later = work.ask("c")
    await turns()
    waiting = asyncio.create_task(work.made.wait_for(["x", "b"]))
    unconcerned = asyncio.create_task(work.made.wait_for(["x"]))
    await turns()
    assert not waiting.done()
    assert unconcerned.done()
    await work.end()
    assert first.done()
    await turns()
    await work.end()
    assert waiting.done()
    assert later.done()
