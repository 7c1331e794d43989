"""Messages that cannot be had: fail, skip, park; and that the neighbours never notice."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import Awaitable
from typing import Any, get_args

import pytest
from structlog.testing import capture_logs

from consumerd.base.errors import BrokerError
from consumerd.base.partition import UNKNOWN_LOG, LogId, TopicPartition
from consumerd.base.settings.processing import BadMessagePolicy, OutOfRangePolicy
from consumerd.member.fetch.errors import CorruptPartitionError, MessageTooLargeError
from consumerd.member.fetch.log_changes import LogChange, LogChangeKind
from consumerd.member.fetch.policies import FetchingOverError, FetchPolicies, PartitionFailures
from consumerd.member.fetch.response import FetchDecision, FetchOutcome
from consumerd.member.fetch.settings import FetchSettings
from consumerd.wire.batch import memory_of
from consumerd.wire.v07 import EARLIEST, LATEST, Codec, OffsetsRequest, encode_message, encode_message_set
from tests.support.fetching import FetchingInMemory

T0 = TopicPartition("t", 0, 0)
FAIL, SKIP, PARK = "fail", "skip", "park"
BEFORE = encode_message_set([b"before 1", b"before 2"])
AFTER = encode_message_set([b"after 1", b"after 2"])
LARGE = encode_message(b"x" * 5000)


def damaged() -> bytes:
    message = bytearray(encode_message(b"damaged"))
    message[-1] ^= 0xFF
    return bytes(message)


async def test_fails_at_corrupt_message_after_good_ones(rig: Any, scripted_log: Any) -> None:
    async with rig() as r:
        r.broker.logs["t", 0] = scripted_log(0, BEFORE + damaged() + AFTER)
        lane = r.add()
        assert await r.take(lane, 2) == [b"before 1", b"before 2"]
        _, partition, error = await r.listener.first("failed")
        assert partition == T0
        assert isinstance(error, CorruptPartitionError)
        assert error.offset == len(BEFORE) == r.pool.position(T0)
        count = len(r.broker.requests)
        await asyncio.sleep(0.03)
        assert len(r.broker.requests) == count
        assert r.pool.counters.failed == 1


async def test_skips_corrupt_message(rig: Any, scripted_log: Any) -> None:
    async with rig(corrupt=SKIP) as r:
        bad = damaged()
        r.broker.logs["t", 0] = scripted_log(0, BEFORE + bad + AFTER)
        lane = r.add()
        assert await r.take(lane, 4) == [b"before 1", b"before 2", b"after 1", b"after 2"]
        _kind, partition, offset, next_offset, _ = await r.listener.first("skipped")
        assert (partition, offset, next_offset) == (T0, len(BEFORE), len(BEFORE) + len(bad))
        assert r.pool.counters.skipped == 1


@pytest.mark.parametrize("policy", [SKIP, PARK])
async def test_parks_corruption_of_unknown_length(rig: Any, scripted_log: Any, policy: BadMessagePolicy) -> None:
    async with rig(corrupt=policy) as r:
        r.broker.logs["t", 0] = scripted_log(0, BEFORE + b"\xff" * 200)
        r.broker.logs["t", 1] = scripted_log(0)
        lane, other = r.add(), r.add(number=1)
        assert await r.take(lane, 2) == [b"before 1", b"before 2"]
        _, partition, reason = await r.listener.first("parked")
        assert partition == T0
        assert str(len(BEFORE)) in reason
        assert r.pool.partitions == {T0, TopicPartition("t", 0, 1)}
        r.broker.logs["t", 1].segments[0] += AFTER
        assert await r.take(other, 2) == [b"after 1", b"after 2"]
        r.broker.logs["t", 0] = scripted_log(0, BEFORE + AFTER)
        r.pool.seek(T0, len(BEFORE))  # parking ends by seeking
        assert await r.take(lane, 2) == [b"after 1", b"after 2"]


async def test_skips_oversize_message(rig: Any, scripted_log: Any) -> None:
    async with rig(size=1000, poll_bytes=1000, max_size=4000, oversize=SKIP) as r:
        r.broker.logs["t", 0] = scripted_log(0, BEFORE + LARGE + AFTER)
        lane = r.add()
        assert await r.take(lane, 4) == [b"before 1", b"before 2", b"after 1", b"after 2"]
        _, _, offset, next_offset, reason = await r.listener.first("skipped")
        assert (offset, next_offset) == (len(BEFORE), len(BEFORE) + len(LARGE))
        assert f"{len(LARGE)} bytes" in reason


async def test_waits_for_rest_of_torn_tail(rig: Any, scripted_log: Any) -> None:
    """Bytes visible before their end: no failure, no tight loop, one look at the end of the log."""
    async with rig(poll_backoff_min=0.005, idle_backoff=0.05) as r:
        log = r.broker.logs["t", 0] = scripted_log(0, BEFORE + AFTER[:15])
        lane = r.add()
        assert await r.take(lane, 2) == [b"before 1", b"before 2"]
        began, before = time.monotonic(), len(r.broker.requests)
        await r.until(lambda: len(r.broker.requests) >= before + 8)
        # Each pause is at least half of the shortest back-off, and they grow; fetches that make sure come on top.
        assert time.monotonic() - began > 4 * 0.005 / 2
        assert len(r.broker.fetches(OffsetsRequest)) == 1
        assert r.listener.events == []
        log.segments[0] += AFTER[15:]
        assert await r.take(lane, 2) == [b"after 1", b"after 2"]


@pytest.mark.parametrize("policy", get_args(BadMessagePolicy))
async def test_treats_torn_end_of_old_segment_as_corruption(
    rig: Any, scripted_log: Any, policy: BadMessagePolicy
) -> None:
    """A fetch never crosses a segment, so no size and no patience gets past it (golden notes, 1 and 3)."""
    async with rig(corrupt=policy) as r:
        torn = AFTER[:15]
        r.broker.logs["t", 0] = scripted_log(0, BEFORE + torn, AFTER)
        lane = r.add()
        assert await r.take(lane, 2) == [b"before 1", b"before 2"]
        if policy is SKIP:
            assert await r.take(lane, 2) == [b"after 1", b"after 2"]
            _, _, offset, next_offset, _ = await r.listener.first("skipped")
            assert (offset, next_offset) == (len(BEFORE), len(BEFORE) + len(torn))
        else:
            event = await r.listener.first("failed" if policy is FAIL else "parked")
            assert "cut off after 15 bytes" in str(event[-1])


async def test_continues_after_segment_roll_between_checks(rig: Any, scripted_log: Any) -> None:
    """The tail was completed and a new segment begun while we asked for the end of the log."""
    async with rig() as r:
        log = r.broker.logs["t", 0] = scripted_log(0, BEFORE + AFTER[:15])
        lane = r.add()
        assert await r.take(lane, 2) == [b"before 1", b"before 2"]
        while not r.broker.fetches(OffsetsRequest):
            await asyncio.sleep(0)
        log.segments[0] += AFTER[15:]
        log.segments.append(bytearray(BEFORE))
        assert await r.take(lane, 4) == [b"after 1", b"after 2", b"before 1", b"before 2"]
        assert r.listener.events == []


async def test_skipped_messages_move_position_at_end_of_log(rig: Any, scripted_log: Any) -> None:
    """Empty wrapper, skipped message, reset: each leaves a batch without messages, so that a commit gets past it."""
    async with rig(corrupt=SKIP) as r:
        wrapper, bad = encode_message(gzip.compress(b""), codec=Codec.GZIP), damaged()
        end = 100 + len(wrapper) + len(bad)
        r.broker.logs["t", 0] = scripted_log(100, wrapper + bad)
        lane = r.add(offset=30)
        got: list[Any] = []
        async with asyncio.timeout(60):
            while not got or got[-1].next_offset < end:
                got.append(await lane.get())
                lane.finished(got[-1])
        assert [(batch.start_offset, batch.next_offset, len(batch)) for batch in got] == [
            (30, 100, 0),
            (100, 100 + len(wrapper), 0),
            (100 + len(wrapper), end, 0),
        ]


# -- the decisions alone, at offset 100 of a log

LOG, NEW = LogId(b"o" * 16, 3), LogId(b"n" * 16)
CORRUPT, OVERSIZE, TORN = FetchOutcome.CORRUPT, FetchOutcome.OVERSIZE, FetchOutcome.TORN


class Decided(FetchingInMemory):
    """The policies of one partition, and what they decided."""

    def __init__(self, log: LogId | None = LOG, **settings: Any) -> None:
        super().__init__(T0, FetchSettings(**settings))
        self.first, self.end = (10, 3), (1000, 500)
        self.policies = FetchPolicies(T0, self.lane, self.services)
        if log is not None:
            self.policies.log = log

    async def over(self, decision: Awaitable[Any]) -> tuple[Any, ...]:
        """The event with which a decision ends the fetching; nothing goes into the lane."""
        with pytest.raises(FetchingOverError):
            await decision
        (event,) = self.listener.events
        assert self.queued == []
        assert (self.counters.failed, self.counters.parked) == ((1, 0) if event[0] == "failed" else (0, 1))
        return event

    async def decide(self, outcome: FetchOutcome, next_offset: int | None, offset: int = 100) -> Any:
        decision = FetchDecision(outcome, size=77, next_offset=next_offset, reason="damaged")
        if outcome is CORRUPT:
            return self.policies.corrupt(offset, decision)
        return await (self.policies.oversize if outcome is OVERSIZE else self.policies.torn)(offset, decision)


@pytest.mark.parametrize("outcome", [CORRUPT, OVERSIZE])
@pytest.mark.parametrize("next_offset", [None, 150])
@pytest.mark.parametrize("policy", [FAIL, SKIP, PARK])
async def test_policy_for_a_bad_message(outcome: FetchOutcome, next_offset: int | None, policy: Any) -> None:
    r = Decided(corrupt=FAIL if outcome is OVERSIZE else policy, oversize=policy if outcome is OVERSIZE else FAIL)
    if policy is SKIP and next_offset is not None:
        assert await r.decide(outcome, next_offset) == 150
        assert r.listener.events == [("skipped", T0, 100, 150, "damaged")]
        assert r.queued == [(100, 150, 0, LOG)]
        assert r.lane.head is not None
        assert r.lane.head.memory_bytes == memory_of(0, 0)
        assert (r.counters.skipped, r.counters.failed, r.counters.parked, r.budget.used) == (1, 0, 0, 0)
        return
    with capture_logs() as logs:
        kind, _, told = await r.over(r.decide(outcome, next_offset))
    if policy is FAIL:
        assert (kind, told.offset) == ("failed", 100)
        assert [(each["event"], each["partition"], each["offset"]) for each in logs] == [
            ("partition_failed", str(T0), 100)
        ]
        assert ("77 bytes" if outcome is OVERSIZE else "(damaged)") in logs[0]["reason"]
    else:
        assert (kind, told) == ("parked", f"{outcome.value} at offset 100: damaged")


@pytest.mark.parametrize(("needed", "size"), [(5000, "needs 5000 bytes"), (None, "needs more")])
async def test_names_the_size_of_a_message_that_is_too_large(needed: int | None, size: str) -> None:
    assert str(MessageTooLargeError(T0, 100, needed, 4000)) == (
        f"the message at offset 100 of t/0-0 {size}, and fetch.max_size is 4000; raise it, or set fetch.oversize to"
        " skip or park"
    )


@pytest.mark.parametrize(
    ("end", "next_offset", "beyond"),
    [((1000,), 1000, False), ((1000,), 1001, True), ((), 1, True)],
)
async def test_oversize_message_that_ends_beyond_the_log_is_corrupt(
    end: tuple[int, ...], next_offset: int, beyond: bool
) -> None:
    r = Decided(oversize=SKIP, corrupt=SKIP)
    r.end = end
    if beyond:
        assert (await r.over(r.decide(OVERSIZE, next_offset, 0)))[2] == (
            "corrupt at offset 0: damaged, which is more than the log holds"
        )
    else:
        assert await r.decide(OVERSIZE, next_offset, 0) == next_offset
    assert r.listed == [LATEST]


async def test_looks_for_the_end_of_the_log_behind_a_torn_message_every_ten_seconds() -> None:
    r = Decided(corrupt=SKIP)
    r.end = (110,)
    looks = []
    with capture_logs() as logs:
        for seconds in (0, 9.9, 0.1, 9.9, 0.1):
            r.clock.jump(seconds)
            assert await r.decide(TORN, 110) is None
            looks.append(len(r.listed))
        assert looks == [1, 1, 2, 2, 3]
        assert await r.decide(TORN, 111) is None  # it grew
        r.end = (111,)
        assert await r.decide(TORN, 111, 101) is None
        assert len(r.listed) == 5
    assert [(each["event"], each["offset"]) for each in logs] == [("message_cut_off", each) for each in (100, 100, 101)]
    assert (r.listener.events, r.queued) == ([], [])


async def test_torn_message_within_the_log_is_corrupt_and_looked_at_again_when_it_is_met_again() -> None:
    r = Decided(corrupt=SKIP)
    r.end = (111,)
    assert [await r.decide(TORN, 110) for _ in range(4)] == [None, 110, None, 110]
    assert r.listed == [LATEST, LATEST]
    assert r.listener.events == [("skipped", T0, 100, 110, "damaged")] * 2


@pytest.mark.parametrize(
    ("policy", "first", "end", "offset", "new"),
    [
        ("earliest", (10, 3), (1000,), 5, 10),
        ("earliest", (10, 3), (1000,), 2000, 10),
        ("earliest", (), (1000,), 5, 5),
        ("latest", (10,), (1000, 3), 5, 1000),
        ("latest", (10,), (1000, 3), 2000, 1000),
        ("latest", (10,), (), 2000, 2000),
        ("nearest", (10,), (1000,), 9, 10),
        ("nearest", (10,), (1000,), 1001, 1000),
        ("nearest", (), (1000,), 1001, 1001),
        ("nearest", (10,), (), 1001, 1001),
        # The log has it by now, as after an election: nothing is passed over.
        ("nearest", (10,), (1000,), 10, 10),
        ("nearest", (10,), (1000,), 600, 600),
        ("nearest", (10,), (1000,), 1000, 1000),
    ],
)
async def test_policy_for_an_offset_out_of_range(
    policy: OutOfRangePolicy, first: tuple[int, ...], end: tuple[int, ...], offset: int, new: int
) -> None:
    r = Decided(out_of_range=policy)
    r.first, r.end = first, end
    assert await r.policies.out_of_range(offset) == new
    moved = new != offset
    assert r.listener.events == [("reset", T0, offset, new)] * moved
    # The batch moves the position backwards, too. Which epoch the message before it is of is not known.
    assert r.queued == [(min(offset, new), new, 0, LOG._replace(leader_epoch=None))] * moved
    assert (r.counters.resets, r.counters.failed, r.budget.used) == (moved, 0, 0)


REPLACED = LogChange(LogChangeKind.REPLACED, 100, LOG, NEW)
TRUNCATED = LogChange(LogChangeKind.TRUNCATED, 100, LOG, LOG, 40)


@pytest.mark.parametrize(
    ("change", "new", "listed"),
    [(REPLACED, 10, [EARLIEST]), (TRUNCATED, 40, []), (TRUNCATED._replace(divergence=0), 0, [])],
)
async def test_policies_for_a_log_that_is_another_one(change: LogChange, new: int, listed: list[int]) -> None:
    r = Decided()
    assert await r.policies.log_changed(change) == new
    assert r.listed == listed
    assert r.listener.events == [("log_changed", T0, change, new)]
    assert r.queued == [(new, new, 0, change.now)]
    assert (r.counters.replaced_logs, r.counters.truncated_logs) == ((1, 0) if change is REPLACED else (0, 1))
    r = Decided(log_changed="park")
    assert await r.over(r.policies.log_changed(change)) == ("parked", T0, f"its log {change}")
    r = Decided(log_changed="stop")
    kind, _, error = await r.over(r.policies.log_changed(change))
    assert (kind, error.change, r.listed) == ("failed", change, [])


async def test_waits_for_the_first_offset_of_a_new_log() -> None:
    r = Decided()
    r.first = ()
    with pytest.raises(BrokerError, match="no broker returned the first offset of t/0-0 yet"):
        await r.policies.log_changed(REPLACED)
    assert (r.listener.events, r.queued, r.counters.replaced_logs) == ([], [], 0)


async def test_skips_nothing_that_ends_beyond_every_offset() -> None:
    r = Decided(corrupt=SKIP)
    kind, _, error = await r.over(r.decide(CORRUPT, 2**63))
    assert (kind, error.broker, error.offset, r.counters.skipped) == ("failed", T0.broker, 100, 0)
    r = Decided(None, corrupt=SKIP)
    assert await r.decide(CORRUPT, 2**63 - 1) == 2**63 - 1
    assert r.queued == [(100, 2**63 - 1, 0, UNKNOWN_LOG)]


async def test_logs_a_failure_of_many_partitions_in_one_line() -> None:
    failures = PartitionFailures()
    partitions = [TopicPartition.numbered("t", number) for number in range(3)]
    with capture_logs() as logs:
        for offset, partition in enumerate(partitions):
            failures.add(partition, offset, "the broker is gone", refused=False)
        failures.add(partitions[1], 7, "the broker is gone", refused=True)
        assert logs == []  # more may follow in this turn of the loop
        await asyncio.sleep(0)
        failures.add(partitions[2], 9, "the broker is gone", refused=False)  # again: not one of those that follow
        await asyncio.sleep(0)
    assert [(each["event"], each["partition"], each["offset"], each.get("more")) for each in logs] == [
        ("fetch_failed", "t/0", 0, 2),
        ("fetch_refused", "t/1", 7, None),
        ("fetch_failed", "t/2", 9, None),
    ]
    assert {each["reason"] for each in logs} == {"the broker is gone"}
    assert {each["log_level"] for each in logs} == {"warning"}


async def test_logs_the_end_of_an_outage_of_many_partitions_in_one_line() -> None:
    failures = PartitionFailures()
    with capture_logs() as logs:
        for number in range(1000):
            failures.recovered(TopicPartition.numbered("t", number), 5)
        await asyncio.sleep(0)
    assert logs == [{"event": "fetch_recovered", "partition": "t/0", "offset": 5, "more": 999, "log_level": "info"}]


async def test_logs_partitions_that_fail_one_after_the_other_in_two_lines() -> None:
    failures = PartitionFailures(window=0.05)
    partitions = [TopicPartition.numbered("t", number) for number in range(100)]
    with capture_logs() as logs:
        for partition in partitions:
            failures.add(partition, 5, "too many open files", refused=False)
            await asyncio.sleep(0)
        assert len(logs) == 1
        async with asyncio.timeout(30):
            while len(logs) < 2:
                await asyncio.sleep(0.01)
        failures.add(partitions[0], 5, "too many open files", refused=False)
        await asyncio.sleep(0)
    assert [(each["partition"], each.get("more")) for each in logs] == [("t/0", None), ("t/1", 98), ("t/0", None)]
