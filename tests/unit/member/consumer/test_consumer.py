"""A member from joining to leaving, against ZooKeeper and brokers in memory: order, sessions, commits, ends."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumerd.base.errors import BrokerError, ExitCode, HandlerFailedError, IdTakenError, ZooKeeperError
from consumerd.base.partition import TopicPartition
from consumerd.base.turns import in_turns
from consumerd.group import events
from consumerd.group.membership_tables import MembershipSettings
from consumerd.handlers import PartitionTakenError
from consumerd.member.consumer.errors import GroupRefusedError
from consumerd.member.fetch.errors import OffsetBeyondError
from consumerd.net.zk.errors import AuthFailed
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.v07 import (
    Codec,
    ErrorCode,
    FetchResponse,
    OffsetsRequest,
    OffsetsResponse,
    Request,
    encode_message_set,
)

TP = TopicPartition("t", 0, 0)
OWNER = "/consumers/g/owners/t/0-0"
OFFSET = "/consumers/g/offsets/t/0-0"


# -- from claim to release


async def test_claims_handles_commits_releases_unregisters_in_order(group: Any) -> None:
    group.topic("t", 1)
    end = group.broker.append("t", 0, b"one", b"two")
    member = await group.member()
    await group.until(lambda: len(member.handler.seen) == 2)
    await member.stop()
    assert group.journal.of(OWNER, OFFSET, "a t/0-0", "/consumers/g/ids/g_a") == [
        ("created", "/consumers/g/ids/g_a"),
        ("created", OWNER),
        ("position", "a t/0-0"),
        ("begin", "a t/0-0"),
        ("end", "a t/0-0"),
        ("created", OFFSET),
        ("deleted", OWNER),
        ("deleted", "/consumers/g/ids/g_a"),
    ]
    assert group.offset(TP) == end
    assert member.handler.seen == [b"one", b"two"]
    assert (member.handler.starts, member.handler.stops) == (1, 1)


async def test_keeps_owner_node_while_handler_runs(group: Any) -> None:
    group.topic("t", 2)
    both = [TopicPartition("t", 0, number) for number in range(2)]
    ends = [group.broker.append("t", number, b"first %d" % number) for number in range(2)]
    a = await group.member("a")
    a.handler.hold()
    await group.until(lambda: a.handler.holding == 2)
    b = await group.member("b")
    await group.until(b.consumer.ready.is_set)
    await group.until(lambda: "t/0-1" not in map(str, a.consumer._member.target))
    await asyncio.sleep(0.05)  # b tries to claim all the time, and must not get it
    assert [group.owner(partition) for partition in both] == ["g_a-0", "g_a-0"]
    a.handler.let_go()
    await group.until(lambda: group.owner(both[1]) == "g_b-0")
    group.broker.append("t", 1, b"second")
    await group.until(lambda: b.handler.seen == [b"second"])
    assert sorted(a.handler.seen) == [b"first 0", b"first 1"]
    path, owner = "/consumers/g/offsets/t/0-1", "/consumers/g/owners/t/0-1"
    assert group.journal.of(path, owner, "a t/0-1", "b t/0-1") == [
        ("created", owner),
        ("position", "a t/0-1"),
        ("begin", "a t/0-1"),
        ("end", "a t/0-1"),
        ("created", path),
        ("deleted", owner),
        ("created", owner),
        ("position", "b t/0-1"),
        ("begin", "b t/0-1"),
        ("end", "b t/0-1"),
    ]
    assert group.offset(both[1]) == ends[1]
    assert group.offset(both[0]) is None  # what stays is neither released nor committed out of turn
    assert group.owner(both[0]) == "g_a-0"


async def test_cancels_late_handler_before_release(group: Any) -> None:
    group.topic("t", 1, b"one")
    member = await group.member(membership=MembershipSettings(drain_timeout=0.05))
    member.handler.hold()
    await group.until(lambda: member.handler.holding == 1)
    await member.stop()
    assert member.handler.cancelled == 1
    # Committed is where it began: nothing was handled, and nothing skipped.
    assert group.offset(TP) == 0
    assert group.journal.of(OWNER, OFFSET, "a t/0-0")[-3:] == [
        ("end", "a t/0-0"),
        ("created", OFFSET),
        ("deleted", OWNER),
    ]


# -- positions


@pytest.mark.parametrize("answer", [b"", b"\x00\x00\xff\xff\xff\xff", b"\0\0\0\0\0\1" + b"\xff" * 8, b"\0\0\0\0\0\0"])
async def test_retries_start_after_invalid_response(group: Any, answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    group.topic("t", 1)
    end = group.broker.append("t", 0, b"one")
    asked = 0

    def nonsense(request: Any) -> bytes | None:
        nonlocal asked
        if type(request).__name__ != "OffsetsRequest":
            return None
        asked += 1
        return answer if asked == 1 else None

    group.broker.on_request = nonsense
    monkeypatch.setattr("consumerd.member.consumer.start_offsets.RETRY_PAUSE", 0.01)
    member = await group.member()
    await group.until(lambda: member.handler.seen == [b"one"])
    assert asked == 2
    await member.stop()
    assert group.offset(TP) == end


async def test_non_numeric_offset_holds_back_its_partition_and_names_node(group: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("consumerd.member.consumer.start_offsets.RETRY_PAUSE", 0.01)
    group.topic("t", 2, b"one")
    group.zookeeper.put(OFFSET, b"seven")
    with capture_logs() as logs:
        member = await group.member()
        other = TopicPartition("t", 0, 1)
        await group.until(lambda: "seven" in (member.consumer.why_not_consumed(TP) or ""))
        await group.until(lambda: member.consumer.owned.get(other) == 0)
        assert (member.consumer.owned[TP], member.handler.seen) == (None, [])
        assert re.search("'seven'.*" + OFFSET, member.consumer.why_not_consumed(TP))
        assert group.data(OFFSET) == b"seven"  # the operator's to mend
        group.zookeeper.put(OFFSET, b"0")
        await group.until(lambda: member.handler.seen == [b"one"])
    assert member.consumer.why_not_consumed(TP) is None
    assert [entry["partition"] for entry in logs if entry["event"] == "position_lookup_failed"] == [str(TP)]
    await member.stop()


# -- sessions


async def test_session_expiry_cancels_handlers_without_commit(group: Any) -> None:
    group.topic("t", 1, b"one")
    member = await group.member()
    await group.until(lambda: member.handler.seen == [b"one"])
    member.handler.hold()
    group.broker.append("t", 0, b"two")
    await group.until(lambda: member.handler.holding == 1)
    old = member.zk.session_id
    group.zookeeper.expire(member.zk)
    await group.until(lambda: member.handler.cancelled == 1)
    member.handler.let_go()
    await group.until(lambda: len(member.handler.seen) == 3)
    # Nothing was committed before: a new session starts from ZooKeeper, and repeats.
    assert member.handler.seen == [b"one", b"one", b"two"]
    assert group.zookeeper.tree.stat(OWNER).ephemeral_owner == member.zk.session_id != old
    between = group.journal.entries[: group.journal.entries.index(("deleted", OWNER))]
    assert ("created", OFFSET) not in between
    assert group.journal.of("/consumers/g/ids/g_a") == [
        ("created", "/consumers/g/ids/g_a"),
        ("deleted", "/consumers/g/ids/g_a"),
        ("created", "/consumers/g/ids/g_a"),
    ]
    await member.stop()


async def test_suspended_member_delivers_within_lease_and_commits_later(group: Any) -> None:
    group.topic("t", 1, b"one")
    member = await group.member(commit_interval=0.005)
    await group.until(lambda: group.offset(TP) is not None and member.handler.seen == [b"one"])
    await group.until(lambda: group.offset(TP) == member.consumer.owned[TP])
    before = group.offset(TP)
    member.zk._lifecycle.timeout = 600.0  # a lease that outlasts the test
    group.zookeeper.disconnect(member.zk)
    mark = len(group.journal.entries)
    end = group.broker.append("t", 0, b"two")
    await group.until(lambda: member.handler.seen == [b"one", b"two"])
    await asyncio.sleep(0.05)
    assert group.offset(TP) == before
    group.zookeeper.reconnect(member.zk)
    await group.until(lambda: group.offset(TP) == end)
    assert [path for _, path in group.journal.entries[mark:] if path == OWNER] == []
    await member.stop()
    assert member.handler.seen == [b"one", b"two"]


async def test_delivers_nothing_after_lease_ended(group: Any) -> None:
    group.topic("t", 1, b"one")
    member = await group.member(commit_interval=0.005)
    await group.until(lambda: group.offset(TP) is not None and group.offset(TP) == member.consumer.owned[TP])
    group.zookeeper.disconnect(member.zk)
    member.zk._lifecycle.timeout = 0.0
    mark = len(group.journal.entries)
    group.broker.append("t", 0, b"two")
    await asyncio.sleep(0.1)
    assert group.journal.entries[mark:] == []
    member.zk._lifecycle.timeout = 6.0
    group.zookeeper.reconnect(member.zk)
    await group.until(lambda: member.handler.seen == [b"one", b"two"])
    assert group.journal.of(OWNER, "/consumers/g/ids/g_a") == [
        ("created", "/consumers/g/ids/g_a"),
        ("created", OWNER),
    ]
    await member.stop()


async def test_stops_when_session_ended_for_good(group: Any) -> None:
    group.topic("t", 1, b"one")
    member = await group.member()
    member.handler.hold()
    await group.until(lambda: member.handler.holding == 1)
    refused = AuthFailed("ZooKeeper refused the credentials")
    group.zookeeper.disconnect(member.zk)
    member.zk._lifecycle.finish(refused)
    member.consumer.request_stop(refused)
    with pytest.raises(AuthFailed):
        await member.ended()
    assert member.handler.cancelled == 1


# -- peers


async def test_abandons_partition_when_sink_reports_new_owner(group: Any) -> None:
    group.topic("t", 1, b"one")
    handler = group.recorder()
    handler.error = PartitionTakenError("t/0-0 was taken by another member")
    member = await group.member(handler=handler)
    await group.until(lambda: member.consumer.stats.lost_partitions > 0)
    handler.error = None
    await group.until(lambda: handler.seen == [b"one"])
    assert not member.task.done()


@pytest.mark.parametrize(
    "text", [b"", b"\xff\xfe", b"{", b"[1]", b'{"t": 0}', b'{"t": -1}', b"*x*t", b"*1*(", b'{"t": "x"}']
)
async def test_skips_peers_with_unreadable_nodes(group: Any, text: bytes) -> None:
    group.topic("t", 1, b"one")
    group.zookeeper.put("/consumers/g/ids/g_0", text)  # it would be first in the order
    member = await group.member()
    await group.until(lambda: member.handler.seen == [b"one"])


async def test_computes_assignment_in_turns_and_repeats_failed_snapshot(
    group: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = []

    async def counting(steps: Any) -> Any:
        prepared.append(steps)
        return await in_turns(steps)

    monkeypatch.setattr("consumerd.member.consumer.consumer.in_turns", counting)
    group.topic("t", 1)
    member = await group.member()
    await group.until(lambda: member.consumer.owned.get(TP) is not None)
    assert prepared
    group.zookeeper.cut_next_call(member.zk, carried_out=False)
    group.topic("t", 2)
    await group.until(lambda: member.zk.link is None)
    group.zookeeper.reconnect(member.zk)
    await group.until(lambda: len(member.owned) == 2)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/consumers/g/ids/g_z", b'{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}'),
        ("/brokers/ids/0", b'{"jmx_port":-1,"timestamp":"1","host":"h","version":1,"port":9092}'),
    ],
)
async def test_rejects_group_of_other_dialect(group: Any, path: str, text: bytes) -> None:
    group.topic("t", 1)
    group.zookeeper.put(path, text)
    member = await group.member()
    with pytest.raises((GroupRefusedError, RegistryError), match=r"0\.8"):
        await member.ended()
    assert not [entry for entry in group.journal.entries if "/g_a" in entry[1] or "/owners" in entry[1]]


@pytest.mark.parametrize("registered", [False, True])
async def test_waits_for_id_node_that_may_end(group: Any, monkeypatch: pytest.MonkeyPatch, registered: bool) -> None:
    """An id that was not configured, or under which this member was registered before, is not a live twin's."""
    monkeypatch.setattr("consumerd.member.consumer.coordination.GroupCoordination.patience", 0.0)
    group.topic("t", 1)
    async with group.zookeeper.session() as other:
        if registered:
            member = await group.member("pod", fixed_id=True)
            await group.until(lambda: group.owner(TP) == "g_pod-0")
            group.zookeeper.disconnect(member.zk)
            group.zookeeper.end(member.zk.granted_id)
            await other.create_ephemeral("/consumers/g/ids/g_pod", b'{ "t": 1 }', wait=0)
            group.zookeeper.reconnect(member.zk)
        else:
            await other.create_ephemeral("/consumers/g/ids/g_pod", b'{ "t": 1 }', wait=0)
            member = await group.member("pod")
        turns = member.consumer.turns
        await group.until(lambda: member.consumer.turns > turns + 10)  # attempts
        assert not member.task.done()
        assert group.owner(TP) is None
    await group.until(lambda: group.owner(TP) == "g_pod-0")


@pytest.mark.parametrize("comes", [False, True])
async def test_waits_for_next_session_unless_it_leaves(group: Any, comes: bool) -> None:
    """The session expired while the handler started."""
    group.topic("t", 1)
    member = await group.member()
    group.zookeeper.disconnect(member.zk)
    group.zookeeper.end(member.zk.granted_id)
    member.zk._lifecycle.expire()
    await group.until(member.consumer.running.is_set)
    if comes:
        group.zookeeper.reconnect(member.zk)
        await group.until(lambda: group.owner(TP) == "g_a-0")
    await member.stop(2.0)
    identity = "/consumers/g/ids/g_a"
    assert group.journal.of(identity) == ([("created", identity), ("deleted", identity)] if comes else [])


@pytest.mark.parametrize("end", ["stop", "cancel"])
async def test_gets_no_events_after_its_end(group: Any, end: str) -> None:
    group.topic("t", 1)
    member = await group.member()
    await group.until(lambda: group.owner(TP) == "g_a-0")
    await getattr(member, end)()
    waiting = member.consumer.waiting_events
    group.topic("t", 2)
    group.register_broker(1)
    group.zookeeper.expire(member.zk)
    for _ in range(10):
        await asyncio.sleep(0)
    assert member.consumer.waiting_events == waiting


async def test_fails_if_id_is_held_by_live_session(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consumerd.member.consumer.taken_id.PATIENCE", 0.1)
    group.topic("t", 1, b"one")
    a = await group.member("pod")
    await group.until(lambda: a.handler.seen == [b"one"])
    b = await group.member("pod", fixed_id=True)
    b.zk._lifecycle.timeout = -1.2  # so that it waits for 0.2 s
    with pytest.raises(IdTakenError, match="'g_pod' is held by another live member of group 'g' \\(session 0x"):
        await b.ended()
    group.broker.append("t", 0, b"two")
    await group.until(lambda: a.handler.seen == [b"one", b"two"])
    assert group.journal.of(OWNER) == [("created", OWNER)]


# -- ends


async def test_stop_at_end_handles_everything_and_commits(group: Any) -> None:
    group.topic("t", 3)
    ends = [group.broker.append("t", 0, b"a", b"b"), group.broker.append("t", 1, b"c", codec=Codec.GZIP), 0]
    member = await group.member(stop_at_end=True)
    await member.ended()
    assert sorted(member.handler.seen) == [b"a", b"b", b"c"]
    assert [group.offset(TopicPartition("t", 0, number)) for number in range(3)] == ends
    assert not [path for path in group.zookeeper.dump() if path.startswith("/consumers/g/owners/t/")]


@pytest.mark.parametrize("policy", ["earliest", "latest"])
async def test_stop_at_end_handles_recreated_log(group: Any, policy: str) -> None:
    """The position is after the log end, and no message was ever handled."""
    group.topic("t", 2)
    end = group.broker.append("t", 0, b"a", b"b")
    handler = group.recorder()
    handler.positions = {TopicPartition("t", 0, number): end + 1000 for number in range(2)}  # the second one is empty
    fetch = group.fetch_settings(out_of_range=policy)
    member = await group.member(handler=handler, stop_at_end=True, fetch=fetch)
    await member.ended()
    assert member.handler.seen == ([b"a", b"b"] if policy == "earliest" else [])
    assert [group.offset(TopicPartition("t", 0, number)) for number in range(2)] == [end, 0]


async def test_stop_at_end_ends_when_all_was_handled_before(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else happens once the broker has told the end."""
    monkeypatch.setattr("consumerd.member.consumer.start_offsets.RETRY_PAUSE", 0.01)
    group.topic("t", 1)
    group.zookeeper.put(OFFSET, b"%d" % group.broker.append("t", 0, b"one"))
    group.broker.away = True
    member = await group.member(stop_at_end=True, membership=MembershipSettings(settle=0.01))
    await group.until(lambda: len(group.journal.of("a t/0-0")) == 10 and not member.consumer.waiting_events)
    group.broker.away = False
    await member.ended()
    assert member.handler.seen == []


async def test_stop_at_end_without_partitions_ends(group: Any) -> None:
    group.topic("t", 1)
    a = await group.member("a")
    await group.until(lambda: group.owner(TP) == "g_a-0")
    b = await group.member("b", stop_at_end=True)
    await b.ended()
    assert not a.task.done()


async def test_commits_handled_messages_when_handler_fails(group: Any) -> None:
    group.topic("t", 1)
    end = group.broker.append("t", 0, b"one")
    member = await group.member()
    await group.until(lambda: member.handler.seen == [b"one"])
    member.handler.error = HandlerFailedError("no more")
    group.broker.append("t", 0, b"two")
    with pytest.raises(HandlerFailedError, match="no more"):
        await member.ended()
    assert group.offset(TP) == end
    assert group.owner(TP) is None
    assert group.data("/consumers/g/ids/g_a") is None
    assert member.handler.stops == 1


async def test_registers_nothing_when_handler_cannot_start(group: Any) -> None:
    class Broken(group.recorder().__class__):  # type: ignore[misc]
        async def start(self, context: Any) -> None:
            raise HandlerFailedError("no database")

    member = await group.member(handler=Broken(group.journal))
    with pytest.raises(HandlerFailedError, match="no database"):
        await member.ended()
    assert member.handler.stops == 1
    assert not [path for path in group.zookeeper.dump() if path.startswith("/consumers")]


async def test_leaves_without_waiting_for_starting_handler(group: Any) -> None:
    starting = asyncio.Event()

    class Starting(group.recorder().__class__):  # type: ignore[misc]
        async def start(self, context: Any) -> None:
            starting.set()
            await asyncio.Event().wait()

    member = await group.member(handler=Starting(group.journal))
    await asyncio.wait_for(starting.wait(), 60)
    member.consumer.request_stop()
    await member.ended()
    assert member.handler.stops == 1
    failed = await group.member("b", handler=Starting(group.journal, "b"))
    starting.clear()
    await asyncio.wait_for(starting.wait(), 60)
    failed.consumer.request_stop(BrokerError("gone for good"))
    with pytest.raises(BrokerError, match="gone for good"):
        await failed.ended()
    assert not [path for path in group.zookeeper.dump() if path.startswith("/consumers")]


async def test_failure_of_handler_stop_does_not_hide_first_failure(group: Any) -> None:
    class Unstoppable(group.recorder().__class__):  # type: ignore[misc]
        async def stop(self) -> None:
            raise HandlerFailedError("the database is away")

    member = await group.member(handler=Unstoppable(group.journal))
    member.consumer.request_stop()
    with pytest.raises(HandlerFailedError, match="the database is away"):
        await member.ended()
    failed = await group.member("b", handler=Unstoppable(group.journal, "b"))
    failed.consumer.request_stop(BrokerError("gone for good"))
    with pytest.raises(BrokerError, match="gone for good"):
        await failed.ended()
    assert group.data("/consumers/g/ids/g_a") is None


async def test_raises_handler_defect_unchanged(group: Any) -> None:
    group.topic("t", 1, b"one")
    handler = group.recorder()
    handler.error = ZeroDivisionError()
    member = await group.member(handler=handler)
    with pytest.raises(ExceptionGroup) as caught:
        await member.ended()
    assert caught.group_contains(ZeroDivisionError)
    assert handler.stops == 1


async def test_stops_on_impossible_offset_and_names_broker(group: Any) -> None:
    most = (1 << 63) - 1

    def lie(request: Request) -> bytes | None:
        if isinstance(request, OffsetsRequest):
            return OffsetsResponse(ErrorCode.NONE, (most,)).encode()[4:]
        return FetchResponse(ErrorCode.NONE, encode_message_set([b"x"])).encode()[4:]

    group.topic("t", 1)
    group.broker.on_request = lie
    member = await group.member()
    with pytest.raises(OffsetBeyondError, match=f"broker 0 sent messages at offset {most} of t/0-0 that end") as caught:
        await member.ended()
    assert caught.value.exit_code is ExitCode.BROKER
    assert member.handler.seen == []
    assert group.offset(TP) in (None, most)  # where the broker says that its log ends


@pytest.mark.parametrize(("policy", "seen"), [("skip", [b"one", b"three"]), ("park", [b"one"])])
async def test_continues_by_other_policies(group: Any, policy: str, seen: list[bytes]) -> None:
    group.topic("t", 2)
    sound = group.broker.append("t", 0, b"one")
    group.broker.append("t", 0, b"two")
    group.broker.append("t", 0, b"three")
    group.broker.append("t", 1, b"other")
    group.broker.logs["t", 0][sound + 11] ^= 1
    member = await group.member(fetch=group.fetch_settings(corrupt=policy))
    await group.until(lambda: sorted(member.handler.seen) == sorted([*seen, b"other"]))
    group.broker.append("t", 1, b"more")
    await group.until(lambda: b"more" in member.handler.seen)
    assert group.owner(TP) == "g_a-0"  # parked: owned and silent
    await member.stop()
    assert group.offset(TP) == (sound if policy == "park" else len(group.broker.logs["t", 0]))


async def test_stopping_before_anything_happened(group: Any) -> None:
    member = await group.member()
    member.consumer.request_stop()
    await member.ended()
    assert group.data("/consumers/g/ids/g_a") is None


async def test_stops_at_once_while_waiting_for_id_node(group: Any) -> None:
    other = await group.member("pod")
    await group.until(lambda: group.data("/consumers/g/ids/g_pod") is not None)
    member = await group.member("pod", fixed_id=True)  # would wait for 11 s
    await group.until(lambda: member.consumer._registering is not None)
    member.consumer.request_stop()
    await member.ended(2.0)
    assert group.data("/consumers/g/ids/g_pod") is not None
    await other.stop()


async def test_nudges_group_after_late_release(group: Any) -> None:
    group.topic("t", 2)
    late = MembershipSettings(drain_timeout=5.0, retry_interval=0.02, nudge_after=0.0)
    a = await group.member("a", membership=late)
    await group.until(lambda: len(a.owned) == 2)
    b = await group.member("b")
    await group.until(lambda: len(b.owned) == 1)
    nudge = "/consumers/g/ids/g_a-nudge"
    await group.until(lambda: ("deleted", nudge) in group.journal.entries)
    await group.until(lambda: not a.consumer._stragglers())
    assert group.data(nudge) is None


async def test_leaves_despite_failing_nudge(group: Any) -> None:
    member = await group.member()
    await group.until(lambda: group.data("/consumers/g/ids/g_a") is not None)
    group.zookeeper.put("/consumers/g/ids/g_a-nudge", b"in the way")
    for _ in range(2):
        member.consumer._perform(events.Nudge(member.zk.session_id))
    await member.stop(2.0)
    assert group.data("/consumers/g/ids/g_a") is None


async def test_raises_first_failure(group: Any) -> None:
    member = await group.member()
    member.consumer.request_stop(ZooKeeperError("first"))
    member.consumer.request_stop(HandlerFailedError("second"))
    with pytest.raises(ZooKeeperError, match="first"):
        await member.ended()


# -- topics that come and go


async def test_waits_for_missing_topic_and_logs_it(group: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from structlog.testing import capture_logs

    with capture_logs() as logs:
        member = await group.member()
        await group.until(member.consumer.ready.is_set)
        assert [entry["topics"] for entry in logs if entry["event"] == "waiting_for_topics"] == [["t"]]
        group.broker.append("t", 0, b"one")
        group.topic("t", 1)
        await group.until(lambda: member.handler.seen == [b"one"])
        await member.stop()
    assert len([entry for entry in logs if entry["event"] == "waiting_for_topics"]) == 1


async def test_counts_rebalances_that_change_the_assignment(group: Any) -> None:
    group.topic("t", 1)
    member = await group.member()
    stats, news = member.consumer.stats, [TopicPartition("t", 0, number) for number in range(3)]
    await group.until(lambda: len(stats.history) == 1)
    assert member.consumer.settled
    turns = member.consumer.turns
    group.zookeeper.put("/consumers/g/ids/g_z", b'{ "u": 1 }')  # a member with other topics
    await group.until(lambda: member.consumer.turns >= turns + 2)  # the watch, and the snapshot
    group.topic("t", 2)
    await group.until(lambda: len(stats.history) == 2)
    group.topic("t", 3)
    await group.until(lambda: len(stats.history) == 3)
    assert [(each.gained, each.lost, each.partitions) for each in stats.history] == [
        ((partition,), (), number) for number, partition in enumerate(news, 1)
    ]
    assert stats.rebalances == 3


async def test_changes_at_once_are_one_event(group: Any) -> None:
    group.topic("t", 1)
    member = await group.member()
    await group.until(lambda: member.owned == [TP])
    group.topic("t", 2)
    group.zookeeper.put("/consumers/g/ids/g_z", b'{ "u": 1 }')
    await asyncio.sleep(0)  # the watches of both have fired
    assert member.consumer.waiting_events == 1
    await group.until(lambda: len(member.owned) == 2)
    group.topic("t", 3)
    await group.until(lambda: len(member.owned) == 3)
