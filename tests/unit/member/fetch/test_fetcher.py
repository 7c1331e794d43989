"""One fetcher and a source in memory: what it asks for, when it compares logs, what it does after failures."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import astuple
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumerd.base.errors import BrokerError
from consumerd.base.partition import UNKNOWN_LOG, LogId, TopicPartition
from consumerd.member.fetch.fetcher import Fetcher, PartitionResponse, Put
from consumerd.member.fetch.lane import Lane
from consumerd.member.fetch.listener import FetchCounters
from consumerd.member.fetch.log_changes import LogChange, LogChangeKind
from consumerd.member.fetch.response import FetchOutcome
from consumerd.member.fetch.settings import FetchSettings
from consumerd.net.errors import BadFrameError
from consumerd.wire.v07 import decode_batch, encode_message, encode_message_set
from tests.support.fetching import FetchingInMemory

P = TopicPartition("t", 7, 0)
OLD, NEW = LogId(b"o" * 16, 1), LogId(b"n" * 16)
MESSAGE = encode_message(b"p" * 90)  # 100 bytes
CUT = MESSAGE[:64]
NOISE = b"\xff" * 60
OVERSIZE = encode_message(b"x" * 5000)[:60]
REFUSED, OUT_OF_RANGE = 6, 1
SKIP = "skip"


class ScriptedSource:
    """Answers each request by the next step of a script: fields of a response, None or an error. Then it is `done`."""

    def __init__(self, lane: Lane, steps: tuple[Any, ...]) -> None:
        self.idle = False
        self.identifies = False
        self.doubts = False
        self.done = asyncio.Event()
        #: Offset, size and log of each request; offset and log of each comparison.
        self.asked: list[tuple[int, int, LogId]] = []
        self.compared: list[tuple[int, LogId]] = []
        #: The results of comparisons: the log, and how it changed; without one, the log stays.
        self.found: deque[tuple[LogId, LogChange | None]] = deque()
        self.outcomes: list[FetchOutcome] = []
        self.pauses: list[str] = []
        #: The leader epoch of messages.
        self.epoch: int | None = None
        self.backs_off = True
        self._lane = lane
        self._steps = deque(steps)

    async def ask(self, offset: int, size: int, log: LogId, put: Put) -> PartitionResponse | None:
        self.asked.append((offset, size, log))
        await asyncio.sleep(0)
        if not self._steps:
            self.done.set()
            await asyncio.Event().wait()
        step = self._steps.popleft()
        if isinstance(step, Exception):
            raise step
        if step is None:
            return None
        fields: dict[str, Any] = {"data": step} if isinstance(step, bytes) else dict(step)
        self.doubts = fields.pop("doubts", False)
        whole: dict[str, Any] = {"broker": 8, "error": 0, "data": b"", "asked": size} | fields
        return PartitionResponse(reservation=self._lane.budget.charge(size), **whole)

    def is_doubtful(self) -> bool:
        return self.doubts

    async def compare(self, offset: int, log: LogId) -> tuple[LogId, LogChange | None]:
        self.compared.append((offset, log))
        self.doubts = False
        return self.found.popleft() if self.found else (log, None)

    async def decode(self, response: PartitionResponse, offset: int) -> Any:
        if response.data == b"undecodable":
            raise BadFrameError("undecodable")
        batch = decode_batch(response.data, offset)
        if self.epoch is not None:
            batch.log = LogId(leader_epoch=self.epoch)
        return batch

    def classified(self, outcome: FetchOutcome, response: PartitionResponse, offset: int) -> None:
        self.outcomes.append(outcome)

    def refusal(self, error: int) -> str | None:
        return None if error == OUT_OF_RANGE else f"error {error}"

    def failed(self, error: Exception) -> bool:
        return self.backs_off

    def pause(self) -> None:
        self.pauses.append("pause")

    def resume(self) -> None:
        self.pauses.append("resume")


class Scene(FetchingInMemory):
    """A fetcher, and what it did until its script was at its end."""

    def __init__(self, *steps: Any, offset: int = 0, log: LogId = UNKNOWN_LOG, **settings: Any) -> None:
        usual: dict[str, Any] = {"size": 64, "poll_bytes": 64, "max_size": 400}
        usual |= {"retry_backoff_min": 1.0, "retry_backoff_max": 8.0}
        super().__init__(P, FetchSettings(**usual | settings))
        self.source = ScriptedSource(self.lane, steps)
        self.fetcher = Fetcher(P, offset, self.lane, self.source, self.services, log)
        self.used = 0
        self.batches: list[tuple[int, int, int, LogId]] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the fetcher meanwhile; its bytes are released at the end."""
        async with asyncio.timeout(5), asyncio.TaskGroup() as group:
            task = group.create_task(self.fetcher.run())
            task.add_done_callback(lambda _: self.source.done.set())
            yield
            task.cancel()
        self.lane.close()
        assert self.budget.used == 0, "bytes leaked"

    async def play(self) -> None:
        """Run the fetcher until it asks for more than the script has, or ends."""
        async with self.running():
            await self.source.done.wait()
            self.used, self.batches = self.budget.used, self.queued

    @property
    def events(self) -> list[tuple[Any, ...]]:
        """The listener's events of the partition; errors as text."""
        assert {event[1] for event in self.listener.events} <= {P}
        return [
            (kind, *(str(each) if isinstance(each, Exception) else each for each in told))
            for kind, _, *told in self.listener.events
        ]

    @property
    def offsets(self) -> list[int]:
        """The offset of each request."""
        return [offset for offset, _, _ in self.source.asked]

    @property
    def sizes(self) -> list[int]:
        return [size for _, size, _ in self.source.asked]


async def played(*steps: Any, **how: Any) -> Scene:
    scene = Scene(*steps, **how)
    await scene.play()
    return scene


def wide(data: bytes, **fields: Any) -> dict[str, Any]:
    """A response that is shorter than the request."""
    return {"data": data, "asked": 400} | fields


@pytest.mark.parametrize(
    ("steps", "compared"),
    [
        ([MESSAGE, wide(CUT)], []),
        ([MESSAGE, NOISE], []),
        ([MESSAGE, OVERSIZE], []),
        ([wide(CUT)], [0]),
        ([NOISE], [0]),
        ([OVERSIZE], [0]),
        ([CUT, MESSAGE], []),  # cut off by the size of the request
        ([b"", MESSAGE], []),
        ([wide(CUT), wide(CUT), wide(CUT)], [0]),  # once: then the log is known to have the offset
        ([NOISE, NOISE], [0]),
        ([OVERSIZE, OVERSIZE], [0]),
        ([MESSAGE, b"", NOISE], [100]),
        ([MESSAGE, b"", wide(CUT)], [100]),
        # Torn bytes that grow are appended to: it may be a log that is another one.
        ([MESSAGE, wide(CUT[:10]), wide(CUT[:10])], []),
        ([MESSAGE, wide(CUT[:10]), wide(CUT[:11])], [100]),
        ([MESSAGE, wide(CUT[:11]), wide(CUT[:10])], []),
        ([MESSAGE, wide(CUT[:10]), CUT, wide(CUT[:11])], []),  # not from one request to the next
        ([MESSAGE, CUT, wide(MESSAGE[:70])], []),
        # Another connection may lead to another log.
        ([MESSAGE, wide(NOISE, connection=1)], [100]),
        ([wide(MESSAGE, connection=1), wide(NOISE, connection=1)], []),
        ([wide(MESSAGE, connection=1), wide(NOISE, connection=2)], [100]),
    ],
)
async def test_compares_the_log_when_what_is_unreadable_may_be_of_another_one(
    steps: list[Any], compared: list[int]
) -> None:
    r = await played(*steps, corrupt=SKIP, oversize=SKIP)
    assert [offset for offset, _ in r.source.compared] == compared


async def test_torn_bytes_at_another_offset_have_not_grown() -> None:
    """The torn end of a segment was skipped, and the next message is torn as well."""
    r = await played(MESSAGE, *[wide(CUT[:10])] * 2, wide(CUT[:11]), corrupt=SKIP)
    assert r.events == [("skipped", 100, 110, "a message cut off after 10 bytes")]
    assert r.offsets == [0, 100, 100, 110, 110]
    assert r.source.compared == []


async def test_grows_requests_for_a_message_and_begins_again_behind_it() -> None:
    r = await played(CUT, MESSAGE[:100], b"", CUT, MESSAGE)
    assert r.sizes == [64, 100, 64, 64, 100, 64]
    assert r.offsets == [0, 0, 100, 100, 100, 200]
    assert (r.counters.grown, r.counters.received_bytes) == (2, 64 + 100 + 64 + 100)
    assert [outcome.name for outcome in r.source.outcomes] == ["CUT", "PROGRESS", "EMPTY", "CUT", "PROGRESS"]


@pytest.mark.parametrize("step", [{"error": OUT_OF_RANGE}, wide(OVERSIZE), {"diverged": True}])
async def test_begins_with_the_ordinary_size_where_a_policy_continues(step: dict[str, Any]) -> None:
    r = Scene(MESSAGE, CUT, step, log=OLD, oversize=SKIP)
    r.first, r.end = (20,), (100_000,)
    r.source.found.append((OLD, truncated(100, OLD, 40)))
    await r.play()
    assert r.sizes == [64, 64, 100, 64]
    assert r.offsets[:3] == [0, 100, 100] != r.offsets[1:]


async def test_waits_for_messages_like_an_idle_partition_behind_a_torn_message() -> None:
    r = await played(MESSAGE, wide(CUT))
    assert r.source.idle
    assert r.offsets == [0, 100, 100]


async def test_totals_begin_at_zero() -> None:
    assert not any(astuple(FetchCounters()))


async def test_counts_messages_and_holds_what_they_take() -> None:
    two = encode_message_set([b"a", b"b"])
    r = Scene(two, MESSAGE)
    await r.play()
    assert (r.counters.batches, r.counters.messages, r.counters.received_bytes) == (2, 3, len(two) + 100)
    held = decode_batch(two, 0).memory_bytes + decode_batch(MESSAGE, 0).memory_bytes
    assert r.used == held


async def test_releases_a_response_that_cannot_be_decoded_and_asks_again() -> None:
    r = await played(b"undecodable", MESSAGE, b"")
    assert r.offsets == [0, 0, 100, 100]
    assert r.used == decode_batch(MESSAGE, 0).memory_bytes
    assert r.counters.received_bytes == 100


async def test_decodes_when_others_are_within_the_budget() -> None:
    r = Scene(MESSAGE)
    others = r.budget.charge(2 << 20)
    async with r.running():
        while not r.source.asked:
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(r.lane) == 0
        others.release()
        assert len(await r.lane.get()) == 1


async def test_an_empty_response_needs_no_memory() -> None:
    r = Scene(b"", b"")
    others = r.budget.charge(2 << 20)
    async with r.running():
        await r.source.done.wait()
        others.release()
    assert r.offsets == [0, 0, 0]


async def test_sends_nothing_while_paused_and_tells_the_source() -> None:
    r = Scene(MESSAGE)
    paused = [r.fetcher.paused]
    r.fetcher.pause()
    paused.append(r.fetcher.paused)
    async with r.running():
        for _ in range(10):
            await asyncio.sleep(0)
        assert r.source.asked == []
        r.fetcher.resume()
        await r.lane.get()
    paused.append(r.fetcher.paused)
    assert (paused, r.source.pauses) == ([False, True, False], ["pause", "resume"])


async def test_fails_where_a_message_would_end_beyond_every_offset() -> None:
    r = await played(MESSAGE, offset=2**63 - 100)
    assert r.events[0][1].startswith(f"broker 8 sent messages at offset {2**63 - 100} of t/7-0 that end at")
    assert (r.counters.batches, r.counters.failed, r.used) == (0, 1, 0)
    r = await played(MESSAGE, offset=2**63 - 101)
    assert r.events == []


# -- failures


@pytest.mark.parametrize(
    ("step", "event", "reason"),
    [
        (BrokerError("gone"), "fetch_failed", "gone"),
        (BadFrameError("invalid"), "fetch_failed", "invalid"),
        ({"error": REFUSED}, "fetch_refused", "error 6"),
        (
            {"diverged": True},
            "fetch_refused",
            "the broker reports a diverging log, and an epoch that agrees",
        ),
    ],
)
async def test_logs_a_failure_once_and_backs_off_until_it_ends(step: Any, event: str, reason: str) -> None:
    with capture_logs() as logs:
        r = await played(*[step] * 5, MESSAGE, *[step] * 2, b"", b"")
    assert [(each["event"], each["offset"], each.get("reason")) for each in logs] == [
        (event, 0, reason),
        ("fetch_recovered", 100, None),
        (event, 100, reason),
        ("fetch_recovered", 100, None),
    ]
    assert {each["partition"] for each in logs} == {str(P)}
    bases = [1, 2, 4, 8, 8, 1, 2]
    assert all(base / 2 <= slept <= base for base, slept in zip(bases, r.clock.sleeps, strict=True))
    assert r.counters.errors == ({REFUSED: 7} if "error 6" in reason else {})
    assert r.offsets == [0] * 6 + [100] * 5


async def test_repeats_at_once_what_another_request_lost() -> None:
    r = Scene(BrokerError("gone"), None, MESSAGE)
    r.source.backs_off = False
    with capture_logs() as logs:
        await r.play()
    assert (r.clock.sleeps, logs, r.offsets) == ([], [], [0, 0, 0, 100])


@pytest.mark.parametrize("first", [(), (BrokerError("gone"),)])
async def test_resets_at_once_and_backs_off_before_the_next_reset(first: tuple[Any, ...]) -> None:
    refused = {"error": OUT_OF_RANGE}
    r = Scene(*first, refused, refused, refused, offset=500)
    r.first = (20,)
    with capture_logs() as logs:
        await r.play()
    assert r.offsets == [500] * len(first) + [500, 20, 20, 20]
    assert r.events == [("reset", 500, 20)]
    assert r.counters.resets == 1
    assert r.counters.errors == {OUT_OF_RANGE: 3}
    # After each refusal but the first: before the log is asked, and where it has no other offset.
    bases = [1, 2, 8, 8, 8, 8] if first else [2, 4, 8, 8]
    assert all(base / 2 <= slept <= base for base, slept in zip(bases, r.clock.sleeps, strict=True)), r.clock.sleeps
    assert [each["event"] for each in logs] == ["fetch_failed"] * len(first) + ["fetch_refused"] * 2
    assert [each[:3] for each in r.batches] == [(20, 20, 0)]


async def test_says_that_the_broker_returned_no_other_offset() -> None:
    r = Scene({"error": OUT_OF_RANGE}, MESSAGE, offset=30)
    r.first = ()
    with capture_logs() as logs:
        await r.play()
    assert (logs[0]["event"], logs[0]["reason"]) == (
        "fetch_refused",
        "offset 30 is out of range, and the broker returned no other",
    )
    assert len(r.clock.sleeps) == 1
    assert r.events == []


async def test_failure_that_comes_and_goes_is_logged_less_and_less_often_and_one_that_lasts_at_once() -> None:
    flaps = [{"error": REFUSED}, b""] * 600
    with capture_logs() as logs:
        r = await played(*flaps, *[BrokerError("gone")] * 3, b"", b"")
    refused = [each for each in logs if each["event"] == "fetch_refused"]
    assert sum(r.clock.sleeps) > 400
    assert 5 <= len(refused) <= 14, "after 5 s, and with pauses that double up to a minute"
    assert [each["event"] for each in logs if each["event"] != "fetch_refused"][-2:] == [
        "fetch_failed",
        "fetch_recovered",
    ]


@pytest.mark.parametrize("reasons", [2, 50], ids=["in turn", "with a number"])
async def test_failures_that_come_and_go_for_several_reasons_share_the_pauses_of_one(reasons: int) -> None:
    flaps = [step for number in range(600) for step in ({"error": REFUSED + number % reasons}, b"")]
    with capture_logs() as logs:
        r = await played(*flaps)
    refused = [each for each in logs if each["event"] == "fetch_refused"]
    assert sum(r.clock.sleeps) > 400
    assert 5 <= len(refused) <= 20, "each new reason once, then one of them after each pause"
    assert len({each["reason"] for each in refused[:2]}) == 2, "a new reason is logged at once"


async def test_failure_that_lasts_is_logged_though_it_has_come_and_gone_just_before() -> None:
    with capture_logs() as logs:
        await played({"error": REFUSED}, MESSAGE, *[{"error": REFUSED}] * 8, MESSAGE)
    assert [each["event"] for each in logs] == ["fetch_refused", "fetch_recovered"] * 2


async def test_offset_that_stays_out_of_range_after_a_reset_is_logged_less_and_less_often() -> None:
    refused = {"error": OUT_OF_RANGE}
    r = Scene(*[refused] * 200, MESSAGE, refused, refused, offset=500)
    r.first = (20,)
    with capture_logs() as logs:
        await r.play()
    *said, recovered, again = logs
    assert {(each["event"], each["offset"], each["reason"]) for each in [*said, again]} == {
        ("fetch_refused", 20, "offset 20 is out of range, and the broker returned no other")
    }
    assert recovered["event"] == "fetch_recovered"
    assert sum(r.clock.sleeps) > 1500
    assert 6 <= len(said) <= 9, "after 10 s, and with pauses that double"


# -- logs


def replaced(offset: int, former: LogId) -> LogChange:
    return LogChange(LogChangeKind.REPLACED, offset, former, NEW)


def truncated(offset: int, former: LogId, divergence: int) -> LogChange:
    return LogChange(LogChangeKind.TRUNCATED, offset, former, former, divergence)


async def test_compares_a_doubtful_position_before_it_is_used() -> None:
    r = Scene(MESSAGE, offset=40, log=OLD)
    r.source.doubts = True
    r.source.found.append((NEW, replaced(40, OLD)))
    await r.play()
    assert r.source.compared == [(40, OLD)]
    assert r.source.asked[0] == (0, 64, NEW)
    assert [each[:3] for each in r.batches] == [(0, 0, 0), (0, 100, 1)]
    assert r.counters.replaced_logs == 1


async def test_compares_a_doubtful_position_once() -> None:
    r = Scene(NOISE, offset=40, log=OLD, corrupt="park")
    r.source.doubts = True
    await r.play()
    assert r.source.compared == [(40, OLD)]
    assert [event[0] for event in r.events] == ["parked"]


async def test_drops_a_response_that_may_be_of_another_log() -> None:
    r = await played(wide(MESSAGE, doubts=True), b"", offset=40, log=OLD)
    assert r.source.compared == [(40, OLD)]
    assert r.offsets == [40, 40, 40]
    assert (r.counters.messages, r.used) == (0, 0)


@pytest.mark.parametrize("error", [{"diverged": True}, {"error": OUT_OF_RANGE}])
async def test_continues_at_once_in_a_log_that_was_cut_off(error: dict[str, Any]) -> None:
    r = Scene(error, MESSAGE, offset=150, log=OLD)
    r.source.identifies = True
    r.source.found.append((OLD, truncated(150, OLD, 100)))
    await r.play()
    assert r.offsets == [150, 100, 200]
    assert (r.clock.sleeps, r.listed) == ([], [])
    assert (r.counters.truncated_logs, r.counters.replaced_logs, r.counters.resets) == (1, 0, 0)
    assert r.events == [("log_changed", truncated(150, OLD, 100), 100)]


async def test_asks_again_without_a_reset_where_more_is_known_of_the_log() -> None:
    """The epoch of the position was wrong, not its offset."""
    r = Scene({"error": OUT_OF_RANGE}, MESSAGE, offset=150, log=OLD)
    r.source.identifies = True
    r.source.found.append((OLD._replace(leader_epoch=None), None))
    await r.play()
    assert [(offset, log) for offset, _, log in r.source.asked[:2]] == [
        (150, OLD),
        (150, OLD._replace(leader_epoch=None)),
    ]
    assert (r.listed, r.clock.sleeps) == ([], [])


@pytest.mark.parametrize("identifies", [False, True])
async def test_resets_in_the_same_log(identifies: bool) -> None:
    r = Scene({"error": OUT_OF_RANGE}, MESSAGE, offset=150, log=OLD)
    r.source.identifies = identifies
    await r.play()
    assert r.source.compared == [(150, OLD)] * identifies
    assert r.events == [("reset", 150, 0)]
    assert r.batches[0] == (0, 0, 0, OLD._replace(leader_epoch=None))


@pytest.mark.parametrize(
    ("log", "ends", "gone"),
    [
        (OLD, [130], 30),
        (OLD, [0], 0),
        (OLD, [90, 130], 30),
        (OLD, [130, -1], 30),  # not known any more: what was seen last
        (OLD, [], None),
        (OLD, [None], None),  # a response that does not tell it
        (OLD._replace(topic_id=None), [130], None),
    ],
)
async def test_knows_how_many_messages_went_with_a_replaced_log(
    log: LogId, ends: list[int | None], gone: int | None
) -> None:
    answers = [b"" if end is None else {"readable_end": end} for end in ends]
    r = Scene(*answers, {"diverged": True}, {"diverged": True}, offset=100, log=log)
    r.source.found += [(NEW, replaced(100, log)), (NEW, replaced(0, NEW))]
    await r.play()
    first, second = (event[1] for event in r.events)
    assert first.messages_gone == gone
    assert second.messages_gone is None  # the end of the former log is not that of this one


async def test_comparison_that_finds_the_same_log_keeps_what_is_known_of_it() -> None:
    r = Scene(CUT, wide(b"", readable_end=130), {"diverged": True}, {"diverged": True}, offset=100, log=OLD)
    r.source.found += [(OLD, None), (NEW, replaced(100, OLD))]
    await r.play()
    assert r.sizes == [64, 100, 100, 100, 64]
    assert r.events[0][1].messages_gone == 30


async def test_a_cut_off_log_has_no_former_end() -> None:
    r = Scene({"readable_end": 130}, {"diverged": True}, offset=100, log=OLD)
    r.source.found.append((OLD, truncated(100, OLD, 90)))
    await r.play()
    assert r.events == [("log_changed", truncated(100, OLD, 90), 90)]


@pytest.mark.parametrize(
    ("log", "epoch", "now"),
    [
        (UNKNOWN_LOG, None, UNKNOWN_LOG),
        (UNKNOWN_LOG, 4, LogId(None, 4)),
        (LogId(b"o" * 16, 3, 7), 4, LogId(b"o" * 16, 4, 7, 0)),
        (LogId(None, 3, 7), None, LogId(None, None, 7)),
    ],
)
async def test_messages_tell_the_epoch_of_the_position_behind_them(log: LogId, epoch: int | None, now: LogId) -> None:
    r = Scene(MESSAGE, log=log)
    r.source.epoch = epoch
    await r.play()
    assert r.batches == [(0, 100, 1, now)]
    assert [each for _, _, each in r.source.asked] == [log, now]


async def test_waits_until_a_new_position_is_stored() -> None:
    """The next owner may not find it again."""
    for step in ({"error": OUT_OF_RANGE}, {"diverged": True}):
        r = Scene(step, offset=150, log=OLD)
        r.source.found.append((NEW, replaced(150, OLD)))
        stored = asyncio.Event()
        r.listener.written = stored.wait
        async with r.running():
            while not r.events:
                await asyncio.sleep(0)
            for _ in range(10):
                await asyncio.sleep(0)
            assert len(r.source.asked) == 1
            stored.set()
            await r.source.done.wait()
        assert r.offsets == [150, 0]
