"""The calls of a session on a connection that answers from a script: each request, and what follows from its answer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import pytest
from aiozk import protocol

from consumerd.base.ports import Check, NodeStat, Operation, SessionEvent, SessionState, SetData
from consumerd.net.zk import base_session
from consumerd.net.zk.acl import parse_acl
from consumerd.net.zk.base_session import BaseSession, ensure_on
from consumerd.net.zk.connection import NeverSent, ZooKeeperConnection
from consumerd.net.zk.errors import (
    BadReply,
    BadVersion,
    ConnectionLost,
    InvalidPath,
    MultiFailed,
    NoAuth,
    NodeExists,
    NoNode,
    NotConnected,
    ServerError,
    SessionChanged,
)
from consumerd.net.zk.lifecycle import NO_PASSWORD, SessionLifecycle
from consumerd.net.zk.multi import MultiRequest
from consumerd.net.zk.requests import ExistsRequest, GetChildrenRequest, GetDataRequest, SetDataRequest
from consumerd.net.zk.watches import WatchTable

OURS, THEIRS = 5, 6
NO_NODE, NO_AUTH, BAD_VERSION, NODE_EXISTS, MOVED = (ServerError(code) for code in (-101, -102, -103, -110, -118))
TIMEOUT = 6.0


def stat(owner: int = 0, version: int = 0) -> NodeStat:
    return NodeStat(version, owner, 0, 1, 1, 1)


class StoppedClock:
    """Time that passes when a test moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class Line:
    """A connection that answers one request after the other: with a value, an error, or what a function returns."""

    where = "line:0"

    def __init__(self, *answers: Any) -> None:
        self.answers = deque(answers)
        self.requests: list[Any] = []
        self.end_reason = ""
        self.ended: Callable[[Line], None] = lambda line: None

    async def request(self, request: Any) -> Any:
        await asyncio.sleep(0)
        self.requests.append(request)
        answer = self.answers.popleft()
        if callable(answer):
            answer = answer()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self, reason: str) -> None:
        self.end_reason = reason
        self.ended(self)

    @property
    def asked(self) -> list[tuple[type, str]]:
        return [(type(request), getattr(request, "path", "")) for request in self.requests]


class Rig(BaseSession):
    """A session on such lines, which the test exchanges."""

    def __init__(self, *answers: Any, chroot: str = "", wait: float = 0.01) -> None:
        self.clock = StoppedClock()
        watches = WatchTable()
        lifecycle = SessionLifecycle("line", TIMEOUT, wait, clock=self.clock, watches=watches)
        super().__init__(lifecycle, watches, chroot=chroot, acl=parse_acl("open"), clock=self.clock)
        self.line = Line()
        self.closed = 0
        self.attach(*answers)

    def attach(self, *answers: Any, session_id: int = OURS) -> Line:
        """A connection of this session, or of another one, begins."""
        self.line = Line(*answers)
        self.line.ended = lambda line: self._lifecycle.detach(cast("ZooKeeperConnection", line))
        if session_id != self._lifecycle.granted_id:
            self._lifecycle.expire()
            self._lifecycle.grant(session_id, NO_PASSWORD, TIMEOUT)
        self._lifecycle.announce(cast("ZooKeeperConnection", self.line), self.clock.now)
        return self.line

    def lose(self, *answers: Any) -> Callable[[], Exception]:
        """An answer: this connection ends, and another one of the session begins."""

        def lost() -> Exception:
            self.line.kill("cut")
            self.attach(*answers)
            return ConnectionLost("cut")

        return lost

    async def start(self, timeout: float | None = None) -> None:
        """The session is there from the beginning."""

    async def close(self) -> None:
        self.closed += 1


# ---- The present state -----------------------------------------------------------------------------------------------


async def test_shows_the_state_of_its_lifecycle() -> None:
    rig = Rig()
    events: list[tuple[SessionEvent, int]] = []
    rig.subscribe(lambda event, session_id: events.append((event, session_id)))
    assert (rig.state, rig.session_id, rig.session_timeout) == (SessionState.CONNECTED, OURS, TIMEOUT)
    assert rig.has_multi
    rig.clock.now += 2.0
    assert rig.lease_left() == 4.0
    rig.line.kill("cut")
    assert rig.state is SessionState.SUSPENDED
    assert events == [(SessionEvent.SUSPENDED, OURS)]


async def test_block_closes_the_session_at_its_end() -> None:
    rig = Rig()
    async with rig as entered:
        assert entered is rig
        assert rig.closed == 0
    assert rig.closed == 1


# ---- Paths -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", "a", "/a/", "//", "/\ud800"])
async def test_rejects_invalid_paths_without_asking(path: str) -> None:
    rig = Rig()
    with pytest.raises(InvalidPath) as error:
        await rig.get(path)
    assert error.value.path == path
    with pytest.raises(InvalidPath):
        rig.watch(path, lambda: None)
    assert rig.line.requests == []


@pytest.mark.parametrize(
    ("chroot", "path", "full"),
    [("", "/", "/"), ("", "/a/b", "/a/b"), ("/t", "/", "/t"), ("/t", "/a", "/t/a"), ("/t", "/\u00e9", "/t/\u00e9")],
)
async def test_sends_absolute_paths(chroot: str, path: str, full: str) -> None:
    rig = Rig(stat(), chroot=chroot)
    await rig.exists(path)
    assert rig.line.asked == [(ExistsRequest, full)]
    told: list[str] = []
    rig.watch(path, lambda: told.append(path))
    rig._watches.fire(full)
    assert told == [path]


# ---- Reads and writes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [{}, {"watch": False}, {"watch": True}], ids=["default", "without", "with"])
async def test_reads_arm_a_watch_only_on_demand(asked: dict[str, bool]) -> None:
    rig = Rig((b"x", stat()), stat(), ["b", "a"])
    assert await rig.get("/a", **asked) == (b"x", stat())
    assert await rig.exists("/a", **asked) == stat()
    assert await rig.children("/a", **asked) == ["a", "b"]
    watch = asked.get("watch", False)
    assert rig.line.requests == [
        kind("/a", watch=watch) for kind in (GetDataRequest, ExistsRequest, GetChildrenRequest)
    ]


async def test_missing_node_is_none_for_exists_and_an_error_for_others() -> None:
    rig = Rig(NO_NODE, NO_NODE, NO_AUTH)
    assert await rig.exists("/a") is None
    with pytest.raises(NoNode):
        await rig.get("/a")
    with pytest.raises(NoAuth):
        await rig.exists("/a")
    assert not rig.line.end_reason


async def test_child_without_a_name_is_a_bad_reply() -> None:
    with pytest.raises(BadReply, match="/a"):
        await Rig(["x", None]).children("/a")


async def test_writes_any_version_unless_one_is_named() -> None:
    rig = Rig(stat(version=4), stat(version=8), None, None)
    assert (await rig.set("/a", b"1")).version == 4
    assert (await rig.set("/a", b"2", version=7)).version == 8
    await rig.delete("/a")
    await rig.delete("/a", version=7)
    assert rig.line.requests[:2] == [SetDataRequest("/a", b"1", -1), SetDataRequest("/a", b"2", 7)]
    assert [request.version for request in rig.line.requests[2:]] == [-1, 7]


@pytest.mark.parametrize("ephemeral", [False, True])
async def test_creates_with_the_acl_of_the_session(ephemeral: bool) -> None:
    rig = Rig(None)
    await rig.create("/a", b"x", ephemeral=ephemeral)
    (request,) = rig.line.requests
    assert (request.path, request.data, request.flags) == ("/a", b"x", int(ephemeral))
    assert [entry.perms for entry in request.acl] == [31]


async def test_creates_persistent_nodes_by_default() -> None:
    rig = Rig(None)
    await rig.create("/a", None)
    assert (rig.line.requests[0].flags, rig.line.requests[0].data) == (0, None)


@pytest.mark.parametrize("code", [-4, -12, -112, -118])
async def test_code_that_says_the_connection_is_of_no_use_ends_it(code: int) -> None:
    rig = Rig(ServerError(code))
    with pytest.raises(ConnectionLost):
        await rig.get("/a")
    assert str(code) in rig.line.end_reason
    assert rig.state is SessionState.SUSPENDED


async def test_unsent_call_is_sent_once_more_on_the_next_connection() -> None:
    rig = Rig()

    def ends() -> Exception:
        rig.line.kill("cut")
        rig.attach(stat(version=3))
        return NeverSent("cut")

    rig.line.answers.append(ends)
    assert await rig.exists("/a") == stat(version=3)


async def test_call_that_is_unsent_twice_was_not_connected() -> None:
    rig = Rig(NeverSent("first"), NeverSent("second"))
    with pytest.raises(NotConnected, match="second"):
        await rig.exists("/a")
    rig.line.answers.extend([NeverSent("first"), NO_NODE])
    assert await rig.exists("/a") is None


# ---- Multis ----------------------------------------------------------------------------------------------------------


async def test_empty_multi_sends_nothing() -> None:
    rig = Rig()
    await rig.multi([])
    assert rig.line.requests == []


async def test_multi_is_one_request_and_its_failure_names_the_operation() -> None:
    rig = Rig(None, (1, -101), (7, -101))
    operations: list[Operation] = [SetData("/a", b"1"), Check("/b")]
    await rig.multi(operations)
    with pytest.raises(MultiFailed) as failed:
        await rig.multi(operations, session_id=OURS)
    assert failed.value.index == 1
    assert isinstance(failed.value.cause, NoNode)
    assert failed.value.cause.path == "/b"
    with pytest.raises(MultiFailed, match="/b"):  # a hostile index: the last operation
        await rig.multi(operations)
    assert [type(request) for request in rig.line.requests] == [MultiRequest] * 3
    assert b"/a" in rig.line.requests[0].body


async def test_multi_of_another_session_is_not_sent() -> None:
    rig = Rig()
    with pytest.raises(SessionChanged) as changed:
        await rig.multi([Check("/a")], session_id=THEIRS)
    assert (changed.value.expected, changed.value.actual) == (THEIRS, OURS)
    assert rig.line.requests == []


# ---- Ensured paths ---------------------------------------------------------------------------------------------------


async def ensured(full: str, *answers: Any) -> list[tuple[type, str]]:
    line = Line(*answers)
    await ensure_on(cast("ZooKeeperConnection", line), full, parse_acl("open"))
    assert not line.answers
    for request in line.requests:
        if isinstance(request, protocol.CreateRequest):
            assert (request.data, request.flags) == (None, 0)
        else:
            assert not request.watch
    return line.asked


async def test_ensure_creates_what_is_missing_from_the_top() -> None:
    create = protocol.CreateRequest
    assert await ensured("/") == []
    assert await ensured("/a", stat()) == [(ExistsRequest, "/a")]
    assert await ensured("/a/b/c", NO_NODE, NO_NODE, stat(), None, None) == [
        (ExistsRequest, "/a/b/c"),
        (ExistsRequest, "/a/b"),
        (ExistsRequest, "/a"),
        (create, "/a/b"),
        (create, "/a/b/c"),
    ]
    assert await ensured("/a", NO_NODE, None) == [(ExistsRequest, "/a"), (create, "/a")]


async def test_ensure_takes_a_node_that_may_not_be_read_for_an_existing_one() -> None:
    assert len(await ensured("/a/b", NO_NODE, NO_AUTH, None)) == 3


async def test_ensure_creates_again_what_came_before_its_parent() -> None:
    """The parent's request was dropped to shed load, and repeated behind that of the child."""
    create = protocol.CreateRequest
    asked = await ensured("/a/b", NO_NODE, NO_NODE, None, NO_NODE, NODE_EXISTS, None)
    assert asked[2:] == [(create, "/a"), (create, "/a/b")] * 2


async def test_ensure_accepts_that_another_client_creates_the_node_first() -> None:
    assert len(await ensured("/a/b", NO_NODE, NO_NODE, NODE_EXISTS, None)) == 4


@pytest.mark.parametrize("answers", [(BAD_VERSION,), (NO_NODE, NO_AUTH)])
async def test_ensure_raises_other_errors(answers: tuple[Exception, ...]) -> None:
    with pytest.raises(ServerError) as error:
        await ensured("/a", *answers)
    assert error.value is answers[-1]
    with pytest.raises((BadVersion, NoAuth), match="/a"):
        await Rig(*answers).ensure("/a")


# ---- Nodes that the session owns -------------------------------------------------------------------------------------


async def test_creates_an_owned_node_in_one_request() -> None:
    rig = Rig(None)
    await rig.create_ephemeral("/a", b"x", wait=0)
    (request,) = rig.line.requests
    assert (request.path, request.data, request.flags) == ("/a", b"x", 1)
    assert len(rig._watches) == 0


async def test_creates_the_parents_of_an_owned_node() -> None:
    rig = Rig(NO_NODE, NO_NODE, None, None)
    await rig.create_ephemeral("/g/a", b"x", wait=0)
    assert [path for _, path in rig.line.asked] == ["/g/a", "/g", "/g", "/g/a"]
    rig = Rig(NO_NODE, None)
    await rig.create_ephemeral("/a", b"x", wait=0)  # its parent is the root
    assert [path for _, path in rig.line.asked] == ["/a", "/a"]


async def test_creates_an_owned_node_on_the_connection_that_is_there_after_its_parents() -> None:
    rig = Rig()

    def exchange() -> None:
        rig.attach(None)

    first = rig.attach(NO_NODE, NO_NODE, exchange)
    await rig.create_ephemeral("/g/a", b"x", wait=0)
    assert [path for _, path in first.asked] == ["/g/a", "/g", "/g"]
    assert [path for _, path in rig.line.asked] == ["/g/a"]


async def test_keeps_an_owned_node_and_corrects_its_data() -> None:
    rig = Rig(NODE_EXISTS, stat(OURS), (b"x", stat(OURS, 3)))
    await rig.create_ephemeral("/a", b"x", wait=0)
    rig = Rig(NODE_EXISTS, stat(OURS), (b"old", stat(OURS, 3)), stat(OURS, 4))
    await rig.create_ephemeral("/a", b"x", wait=0)
    assert rig.line.requests[-2:] == [GetDataRequest("/a", watch=False), SetDataRequest("/a", b"x", 3)]


@pytest.mark.parametrize("answer", [NO_NODE, BAD_VERSION])
async def test_tries_again_when_the_owned_node_changes_meanwhile(answer: Exception) -> None:
    rig = Rig(NODE_EXISTS, stat(OURS), (b"old", stat(OURS)), answer, None)
    await rig.create_ephemeral("/a", b"x", wait=0)
    assert not rig.line.answers


async def test_never_adopts_the_node_of_another_session() -> None:
    rig = Rig(NODE_EXISTS, stat(THEIRS))
    with pytest.raises(NodeExists, match="/a"):
        await rig.create_ephemeral("/a", b"x", wait=0)
    assert rig.line.requests[-1] == ExistsRequest("/a", watch=True)
    assert len(rig._watches) == 0


async def test_waits_until_the_node_of_another_session_has_gone() -> None:
    rig = Rig(NODE_EXISTS, stat(THEIRS), NODE_EXISTS, stat(THEIRS), None)
    creating = asyncio.create_task(rig.create_ephemeral("/a", b"x", wait=2.5))
    for left in (3, 1):
        while not creating.done() and (len(rig.line.answers) > left or not len(rig._watches)):
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not creating.done()
        rig.clock.now += 2.0
        rig._watches.fire("/a")
    await creating


async def test_waits_no_longer_than_its_limit() -> None:
    rig = Rig(NODE_EXISTS, stat(THEIRS), NODE_EXISTS, stat(THEIRS))
    creating = asyncio.create_task(rig.create_ephemeral("/a", b"x", wait=5.0))
    while len(rig.line.answers) > 2:
        await asyncio.sleep(0)
    rig.clock.now += 5.0
    rig._watches.fire("/a")
    with pytest.raises(NodeExists):
        await creating


async def test_notices_that_a_node_has_gone_whose_watch_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_session, "_REREAD_INTERVAL", 0.001)
    rig = Rig(NODE_EXISTS, stat(THEIRS), None)
    await rig.create_ephemeral("/a", b"x", wait=1e9)
    assert not rig.line.answers


async def test_lost_reply_is_resolved_by_the_owner_of_the_node() -> None:
    rig = Rig()
    rig.line.answers.append(rig.lose(NODE_EXISTS, stat(OURS), (b"x", stat(OURS))))
    await rig.create_ephemeral("/a", b"x", wait=0)
    assert not rig.line.answers


@pytest.mark.parametrize(("passed", "tries_again"), [(TIMEOUT + 1.0, True), (TIMEOUT + 1.1, False)])
async def test_tries_again_after_lost_connections_for_the_session_timeout(passed: float, tries_again: bool) -> None:
    rig = Rig()
    again = rig.lose(None)

    def lost() -> Exception:
        rig.clock.now += passed
        return again()

    rig.line.answers.append(lost)
    creating = rig.create_ephemeral("/a", b"x", wait=1.0)
    if tries_again:
        await creating
    else:
        with pytest.raises(ConnectionLost):
            await creating


async def test_owned_node_of_a_session_that_has_ended_is_not_created() -> None:
    rig = Rig()

    def replaced() -> Exception:
        rig.line.kill("cut")
        rig.attach(session_id=THEIRS)
        return ConnectionLost("cut")

    rig.line.answers.append(replaced)
    with pytest.raises(SessionChanged):
        await rig.create_ephemeral("/a", b"x", wait=0)
    assert rig.line.requests == []


async def test_calls_for_owned_nodes_wait_for_a_session() -> None:
    rig = Rig(wait=60.0)

    def end_session() -> None:
        rig.line.kill("cut")
        rig._lifecycle.expire()

    end_session()
    creating = asyncio.create_task(rig.create_ephemeral("/a", b"x", wait=0))
    await asyncio.sleep(0)
    rig.attach(None)
    await creating
    end_session()
    deleting = asyncio.create_task(rig.delete_owned("/a"))
    await asyncio.sleep(0)
    rig.attach(stat(THEIRS), None, session_id=THEIRS)
    assert await deleting is True


async def test_deletes_the_version_that_it_saw_of_its_own_node() -> None:
    rig = Rig(stat(OURS, 3), None)
    assert await rig.delete_owned("/a") is True
    exists, delete = rig.line.requests
    assert exists == ExistsRequest("/a", watch=False)
    assert (delete.path, delete.version) == ("/a", 3)


async def test_deletes_no_node_of_another_session_and_none_that_is_gone() -> None:
    rig = Rig(stat(THEIRS))
    assert await rig.delete_owned("/a") is False
    assert len(rig.line.requests) == 1
    assert await Rig(NO_NODE).delete_owned("/a") is False


async def test_deletes_again_what_was_written_to_meanwhile() -> None:
    rig = Rig(stat(OURS, 3), BAD_VERSION, stat(OURS, 4), None)
    assert await rig.delete_owned("/a") is True
    assert rig.line.requests[-1].version == 4


async def test_deletion_whose_reply_was_lost_was_carried_out_if_the_node_is_gone() -> None:
    rig = Rig(stat(OURS, 3))
    rig.line.answers.append(rig.lose(NO_NODE))
    assert await rig.delete_owned("/a") is True


async def test_nothing_is_left_to_delete_when_the_session_has_ended() -> None:
    rig = Rig()

    def replaced() -> Exception:
        rig.line.kill("cut")
        rig.attach(session_id=THEIRS)
        return ConnectionLost("cut")

    rig.line.answers.append(replaced)
    assert await rig.delete_owned("/a") is False
    assert rig.line.requests == []


@pytest.mark.parametrize(("passed", "tries_again"), [(TIMEOUT, True), (TIMEOUT + 0.1, False)])
async def test_deletes_again_after_lost_connections_for_the_session_timeout(passed: float, tries_again: bool) -> None:
    rig = Rig()
    again = rig.lose(stat(OURS), None)

    def lost() -> Exception:
        rig.clock.now += passed
        return again()

    rig.line.answers.append(lost)
    if tries_again:
        assert await rig.delete_owned("/a") is True
    else:
        with pytest.raises(ConnectionLost):
            await rig.delete_owned("/a")
