"""The end of a running member: in order, at the deadline, by a second signal; and the output of the process then."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ConsumerdError, HandlerFailedError, ZooKeeperError
from consumerd.base.settings.processing import DaemonSection
from consumerd.member.consumer.consumer import GroupConsumer
from consumerd.member.consumer.coordinated import CoordinatedConsumer
from consumerd.member.consumer.fixed import FixedConsumer
from consumerd.net.client.cluster import ClusterClient
from consumerd.service.config.build_subscriptions import build_members
from consumerd.service.config.build_v08 import build_client
from consumerd.service.config.model import parse
from consumerd.service.daemon.members import Members
from consumerd.service.daemon.monitor import Monitor
from consumerd.service.daemon.reload import Reloader
from consumerd.service.daemon.service import Joining, Watching, _Service, run_members, serve
from consumerd.service.daemon.signals import StopForcedError
from consumerd.testing.memory_zookeeper import MemoryZooKeeper
from consumerd.wire.registry.dialect import Dialect


class Member:
    """As much of a consumer as the service looks at. It ends when asked to, unless it is `stubborn`."""

    def __init__(self, *, stubborn: bool = False) -> None:
        self.ready = asyncio.Event()
        self.stopping = asyncio.Event()
        self.failure: ConsumerdError | None = None
        self.owned: list[Any] = []
        self.cancelled = False
        self._stubborn = stubborn

    def request_stop(self, failure: ConsumerdError | None = None) -> None:
        self.failure = self.failure or failure
        self.stopping.set()

    async def run(self) -> None:
        self.ready.set()
        try:
            await (asyncio.Event() if self._stubborn else self.stopping).wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        if self.failure is not None:
            raise self.failure


class Session:
    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait_closed(self) -> None:
        await self.ended


def service(member: Member, session: Session | None = None, stop_timeout: float = 0.05) -> asyncio.Task[None]:
    made = _Service(member, session or Session(), DaemonSection(stop_timeout=stop_timeout))  # type: ignore[arg-type]
    return asyncio.create_task(made.run())


async def test_signal_stops_in_order() -> None:
    member = Member()
    task = service(member)
    await member.ready.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(task, 60)
    assert not member.cancelled


async def test_deadline_forces_the_exit() -> None:
    member = Member(stubborn=True)
    task = service(member)
    await member.ready.wait()
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(StopForcedError, match=r"no end within 0\.05 s"):
        await asyncio.wait_for(task, 60)
    assert member.cancelled


async def test_second_signal_forces_the_exit() -> None:
    member = Member(stubborn=True)
    task = service(member, stop_timeout=60)
    await member.ready.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await member.stopping.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(StopForcedError, match="second signal, SIGTERM"):
        await asyncio.wait_for(task, 60)


async def test_cancels_a_member_that_does_not_stop_and_raises_its_failure() -> None:
    member = Member(stubborn=True)
    task = service(member)
    await member.ready.wait()
    member.request_stop(HandlerFailedError("no more"))
    with pytest.raises(HandlerFailedError, match="no more"):
        await asyncio.wait_for(task, 60)
    assert member.cancelled


async def test_stops_when_the_session_ends_permanently() -> None:
    member, session = Member(), Session()
    task = service(member, session)
    session.ended.set_exception(ZooKeeperError("refused"))
    with pytest.raises(ZooKeeperError, match="refused"):
        await asyncio.wait_for(task, 60)


async def test_raises_unexpected_errors() -> None:
    class Broken(Member):
        async def run(self) -> None:
            raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(service(Broken()), 60)
    assert caught.group_contains(ZeroDivisionError)


async def test_reports_readiness_while_it_waits_for_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator waits for its slowest member: for minutes, where a service manager would give up on us."""
    told: list[tuple[str, ...]] = []
    monkeypatch.setattr("consumerd.service.daemon.service.notify", lambda *assignments: told.append(assignments))
    monkeypatch.setattr("consumerd.service.daemon.service.STARTED_AFTER", 0.01)
    member = Member()
    let_in = asyncio.Event()
    run = member.run

    async def wait_for_the_others() -> None:
        await let_in.wait()
        await run()

    member.run = wait_for_the_others  # type: ignore[method-assign]
    task = service(member)
    async with asyncio.timeout(60):
        while not told:
            await asyncio.sleep(0.01)
        assert told == [("READY=1", "STATUS=waiting for the group")]
        let_in.set()
        while len(told) < 2:
            await asyncio.sleep(0.01)
        assert told[1] == ("READY=1", "STATUS=member of the group")
        member.request_stop()
        await task


async def test_reload_of_a_member_that_waits_for_its_group_does_not_call_it_a_member(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: asyncio.Queue[tuple[str, ...]] = asyncio.Queue()
    for module in ("service", "reload"):
        monkeypatch.setattr(f"consumerd.service.daemon.{module}.notify", lambda *each: told.put_nowait(each))
    monkeypatch.setattr("consumerd.service.daemon.service.STARTED_AFTER", 0.01)
    config, clock = parse({"group": {"id": "g", "topics": {"t": 1}}}, "a test"), SystemClock()
    reloader = Reloader(tmp_path / "removed.toml", config, Monitor(config, clock), clock=clock, rng=random.Random(1))
    member = Member()
    run, let_in = member.run, asyncio.Event()

    async def wait_for_the_others() -> None:
        await let_in.wait()
        await run()

    member.run = wait_for_the_others  # type: ignore[method-assign]
    made = _Service(member, Session(), DaemonSection(stop_timeout=60), reloader)  # type: ignore[arg-type]
    task = asyncio.create_task(made.run())
    rejected = "; the configuration was rejected: see the log"
    async with asyncio.timeout(60):
        assert await told.get() == ("READY=1", "STATUS=waiting for the group")
        reloader.request()
        assert (await told.get())[0] == "RELOADING=1"
        assert await told.get() == ("READY=1", f"STATUS=waiting for the group{rejected}")
        let_in.set()
        assert await told.get() == ("READY=1", "STATUS=member of the group")
        reloader.request()
        assert (await told.get())[0] == "RELOADING=1"
        assert await told.get() == ("READY=1", f"STATUS=member of the group{rejected}")
        member.request_stop()
        await task


@pytest.mark.parametrize("coordination", ["zookeeper", "kafka"])
async def test_signal_while_connecting_stops_in_order(coordination: str) -> None:
    """The first process of a container gets only those signals for which it has a handler."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        document = {
            "group": {"id": "g", "topics": {"t": 1}, "coordination": coordination},
            "zookeeper": {"connect": address},
            "kafka": {"bootstrap": [address]},
        }
        task = asyncio.create_task(serve(parse(document, "a test")))
        await asyncio.sleep(0.1)
        assert not task.done()
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(task, 60)


async def test_members_share_client_session_and_memory_however_each_is_coordinated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served: list[Members] = []
    made: list[ClusterClient] = []

    class Served:
        def __init__(self, consumer: Members, *_: object) -> None:
            served.append(consumer)

        async def run(self) -> None:
            pass

    def counted(*arguments: Any, **options: Any) -> ClusterClient:
        made.append(build_client(*arguments, **options))
        return made[-1]

    async def found(*_: object, **__: object) -> Any:
        return Dialect.V08

    monkeypatch.setattr("consumerd.service.daemon.service._Service", Served)
    monkeypatch.setattr("consumerd.service.daemon.service.start_client", found)
    monkeypatch.setattr("consumerd.service.daemon.dialect.find_dialect", found)
    monkeypatch.setattr("consumerd.service.config.build_v08.build_client", counted)
    handler = {"name": "null"}
    others = [
        {"name": "new", "group": {"id": "h", "coordination": "kafka"}, "topics": {"t": 1}, "handler": handler},
        {"name": "one", "group": {"coordination": "fixed"}, "partitions": {"u": [0]}, "handler": handler},
    ]
    config = parse({"group": {"id": "g", "topics": {"t": 1}}, "handler": handler, "subscriptions": others}, "a test")
    clock, rng = SystemClock(), random.Random(1)
    monitor = Monitor(config, clock)
    joining = [
        Joining(name, settings, monitor.build_handler(part, part.config, rng))
        for part, (name, settings) in zip(
            monitor.subscriptions, build_members(config, clock=clock, rng=rng).items(), strict=True
        )
    ]
    session: Any = MemoryZooKeeper().session()
    await run_members(config, joining, session, clock=clock, rng=rng, watching=Watching(monitor))
    members = [part.member for part in monitor.subscriptions]
    assert [type(member) for member in members] == [GroupConsumer, CoordinatedConsumer, FixedConsumer]
    assert len(made) == len(served) == len({id(member.budget) for member in members if member is not None}) == 1
