"""The broker's nodes against a ZooKeeper in memory: whom it waits for, whom it does not, what it survives."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from consumerd.base.calls import READS_AT_ONCE
from consumerd.base.clock import SystemClock
from consumerd.base.errors import ExitCode, IdTakenError
from consumerd.net.zk.errors import NotConnected
from consumerd.storage.broker import registration as registration_module
from consumerd.storage.broker.registration import BrokerRegistration
from consumerd.testing.clock import FakeClock
from consumerd.testing.memory_zookeeper import MemorySession, MemoryZooKeeper
from tests.support.waiting import cancel, until

OURS = b"h-1300000000000:127.0.0.1:9092"
OTHERS = b"h-1300000000000:127.0.0.1:9093"


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration_module, "_MARGIN", 0.1)
    monkeypatch.setattr(registration_module, "_RETRY", 0.01)


def make(zk: MemorySession) -> BrokerRegistration:
    counts = {"one": 1, "three": 3}
    return BrokerRegistration(zk, 0, "127.0.0.1", 9092, counts.__getitem__, SystemClock(), random.Random(1))


@asynccontextmanager
async def running(registration: BrokerRegistration) -> AsyncIterator[None]:
    task = asyncio.create_task(registration.run())
    try:
        yield
    finally:
        await cancel(task)


async def test_creates_the_chroot_and_all_parents() -> None:
    zookeeper = MemoryZooKeeper()
    async with zookeeper.session(chroot="/some/where") as zk:
        await make(zk).register(["three"])
        dump = zookeeper.dump()
    assert dump["/some/where/brokers/topics/three/0"] == b"3"
    assert dump["/some/where/brokers/ids/0"] is not None
    assert dump["/some/where/brokers/ids"] is None


async def test_registers_at_the_start_though_a_server_of_the_ensemble_cuts_the_connection(
    server: MemoryZooKeeper, zk: MemorySession
) -> None:
    server.cut_next_call(zk, carried_out=False)
    registering = asyncio.create_task(make(zk).register(["three"]))
    await until(lambda: zk.link is None)
    server.reconnect(zk)
    await registering
    assert server.dump()["/brokers/topics/three/0"] == b"3"


async def test_registers_at_the_start_though_its_session_ends_while_it_waits_for_the_id(
    server: MemoryZooKeeper, zk: MemorySession
) -> None:
    server.put("/brokers/ids/0", OURS, session_id=7)
    registration = make(zk)
    with capture_logs() as logs:
        registering = asyncio.create_task(registration.register(["three"]))
        await until(lambda: any(entry["event"] == "waiting_for_broker_id" for entry in logs))
    server.expire(zk)
    server.end(7)
    await registering
    assert registration.holds


async def test_gives_up_at_the_start_when_the_connection_does_not_come_back() -> None:
    zookeeper = MemoryZooKeeper()
    async with zookeeper.session(wait_connected=0.1) as zk:
        zookeeper.disconnect(zk)
        with pytest.raises(NotConnected):
            await make(zk).register([])


async def test_waits_for_its_former_session_longer_than_any_session_timeout() -> None:
    """Its address is ours and we listen there, so it cannot be alive, however long its session had asked to live."""
    zookeeper = MemoryZooKeeper()
    async with zookeeper.session(session_timeout=0.2) as zk:
        zookeeper.put("/brokers/ids/0", OURS, session_id=7)
        zookeeper.put("/brokers/topics/three/0", b"1", session_id=7)
        registering = asyncio.create_task(make(zk).register(["three"]))
        await asyncio.sleep(0.6)
        assert not registering.done()
        zookeeper.end(7)
        await registering
        assert zookeeper.dump()["/brokers/ids/0"] != OURS
        assert zookeeper.dump()["/brokers/topics/three/0"] == b"3"


@pytest.mark.parametrize("data", [OTHERS, b"no address", None])
async def test_rejects_an_id_that_is_taken_after_the_session_timeout(data: bytes | None) -> None:
    zookeeper = MemoryZooKeeper()
    async with zookeeper.session(session_timeout=0.2) as zk:
        zookeeper.put("/brokers/ids/0", data, session_id=7)
        with pytest.raises(
            IdTakenError,
            match=r"broker id 0 is already registered in ZooKeeper by another live broker .* another --broker-id",
        ) as caught:
            await make(zk).register([])
        assert caught.value.exit_code == ExitCode.ID_TAKEN
        assert zookeeper.dump()["/brokers/ids/0"] == data


async def test_does_not_wait_for_a_persistent_id_node(server: MemoryZooKeeper, zk: MemorySession) -> None:
    server.put("/brokers/ids/0", OURS)
    async with asyncio.timeout(60):
        with pytest.raises(IdTakenError, match=r"by a persistent node .*, which does not expire; delete it"):
            await make(zk).register([])


async def test_tolerates_a_topic_node_made_by_hand() -> None:
    zookeeper = MemoryZooKeeper()
    async with zookeeper.session(session_timeout=0.1) as zk:
        zookeeper.put("/brokers/topics/one/0", b"8")
        registration = make(zk)
        await registration.register(["one", "three"])
        assert zookeeper.dump()["/brokers/topics/one/0"] == b"8"
        assert zookeeper.dump()["/brokers/topics/three/0"] == b"3"
        async with running(registration):
            registration.add_topic("one")
            registration.add_topic("three")
            zookeeper.remove("/brokers/topics/one/0")  # the operator has no use for it any more
            await until(lambda: zookeeper.dump().get("/brokers/topics/one/0") == b"1")
        await registration.withdraw()
        assert "/brokers/ids/0" not in zookeeper.dump()


async def test_registers_again_after_every_kind_of_disconnect() -> None:
    zookeeper = MemoryZooKeeper()
    async with zookeeper.session(session_timeout=2.0) as zk:
        registration = make(zk)
        await registration.register(["three"])
        async with running(registration):
            for round_number in range(12):
                await asyncio.sleep(0.002)  # the creator id holds a millisecond
                before = zookeeper.dump()["/brokers/ids/0"]
                match round_number % 4:
                    case 0:
                        zookeeper.expire(zk)
                    case 1:
                        zookeeper.disconnect(zk)
                        zookeeper.expire(zk)
                        zookeeper.reconnect(zk)
                    case 2:
                        zookeeper.remove("/brokers/ids/0")
                    case 3:
                        zookeeper.cut_next_call(zk, carried_out=bool(round_number % 8 == 3))
                        zookeeper.remove("/brokers/ids/0")
                        await until(lambda: zk.link is None)
                        zookeeper.reconnect(zk)
                await until(lambda before=before: zookeeper.dump().get("/brokers/ids/0") not in (None, before))
                await until(lambda: "/brokers/topics/three/0" in zookeeper.dump())


async def test_ends_the_broker_when_another_takes_its_id_after_an_expiry() -> None:
    zookeeper = MemoryZooKeeper()
    async with zookeeper.session(session_timeout=0.2) as zk:
        registration = make(zk)
        await registration.register([])
        zookeeper.disconnect(zk)
        zookeeper.expire(zk)
        zookeeper.put("/brokers/ids/0", OTHERS, session_id=7)
        zookeeper.reconnect(zk)
        with pytest.raises(IdTakenError):
            async with asyncio.timeout(60):
                await registration.run()


async def test_serves_on_though_zookeeper_cannot_hold_the_name_of_a_topic(
    server: MemoryZooKeeper, zk: MemorySession
) -> None:
    """Of the log directory of another broker: ZooKeeper refuses characters above U+FFFF, and 0.7.2 does not."""
    registration = make(zk)
    with capture_logs() as logs:
        await registration.register(["a\U0001f388", "three"])
        async with running(registration):
            registration.add_topic("b\U0001f388")
            registration.add_topic("one")
            await until(lambda: "/brokers/topics/one/0" in server.dump())
    refused = [(each["topic"], each["reason"]) for each in logs if each["event"] == "topic_not_registered"]
    assert [topic for topic, _ in refused] == ["a\U0001f388", "b\U0001f388"]
    assert "which no ZooKeeper node can have in its name" in refused[0][1]
    assert registration.topics_not_registered == 2


async def test_registers_all_other_topics_and_tries_again_where_an_acl_denies_one(
    server: MemoryZooKeeper, zk: MemorySession
) -> None:
    server.put("/brokers/topics/one", None)
    server.denied.add("/brokers/topics/one")
    registration = make(zk)
    with capture_logs() as logs:
        await registration.register(["one", "three"])
        assert (registration.holds, registration.topics_not_registered) == (True, 1)
        assert server.dump()["/brokers/topics/three/0"] == b"3"
        attempts = 0
        real = zk.create_ephemeral

        async def counted(path: str, data: bytes, *, wait: float) -> None:
            nonlocal attempts
            attempts += 1
            await real(path, data, wait=wait)

        zk.create_ephemeral = counted  # type: ignore[method-assign]
        async with running(registration):
            await until(lambda: attempts > 3)
            server.denied.clear()
            await until(lambda: server.dump().get("/brokers/topics/one/0") == b"1")
            await until(lambda: not registration.topics_not_registered)
    (event,) = (each for each in logs if each["event"] == "topic_not_registered")  # not one for each attempt
    assert (event["topic"], event["log_level"]) == ("one", "error")
    assert "ZooKeeper denies access to /brokers/topics/one/0" in event["reason"]


async def test_attempts_for_a_denied_topic_become_rarer_and_other_topics_do_not_cause_more(
    server: MemoryZooKeeper, zk: MemorySession
) -> None:
    server.put("/brokers/topics/t0", None)
    server.denied.add("/brokers/topics/t0")
    clock = FakeClock()
    registration = BrokerRegistration(zk, 0, "h", 9092, lambda topic: 1, clock, random.Random(1))
    tried: list[float] = []
    real = zk.create_ephemeral

    async def noted(path: str, data: bytes, *, wait: float) -> None:
        if path == "/brokers/topics/t0/0":
            tried.append(clock.monotonic())
        await real(path, data, wait=wait)

    zk.create_ephemeral = noted  # type: ignore[method-assign]
    async with running(registration):
        registration.add_topic("t0")
        for number in range(1, 100):
            registration.add_topic(f"t{number}")
            await until(lambda number=number: f"/brokers/topics/t{number}/0" in server.dump())
            await clock.advance(3.0)
    pauses = [after - before for before, after in itertools.pairwise(tried)]
    assert 5 < len(tried) < 20
    assert max(pauses) > 5 * pauses[0]


async def test_writes_topic_nodes_again_that_somebody_deleted(server: MemoryZooKeeper, zk: MemorySession) -> None:
    registration = make(zk)
    await registration.register(["three"])
    async with running(registration):
        registration.add_topic("one")
        for _ in range(3):
            for topic, count in (("three", b"3"), ("one", b"1")):
                path = f"/brokers/topics/{topic}/0"
                await until(lambda path=path: path in server.dump())
                server.remove(f"/brokers/topics/{topic}")
                await until(lambda path=path, count=count: server.dump().get(path) == count)
    await registration.withdraw()
    assert not [path for path, data in server.dump().items() if data is not None]


async def test_a_deletion_during_a_lost_connection_is_noticed_afterwards(
    server: MemoryZooKeeper, zk: MemorySession
) -> None:
    registration = make(zk)
    await registration.register(["three"])
    async with running(registration):
        for carried_out in (False, True):
            server.disconnect(zk)
            server.remove("/brokers/topics/three")
            server.reconnect(zk)
            server.cut_next_call(zk, carried_out=carried_out)
            await until(lambda: zk.link is None)
            server.reconnect(zk)
            await until(lambda: "/brokers/topics/three/0" in server.dump())


async def test_stays_up_while_zookeeper_refuses_its_address_after_an_expiry(
    server: MemoryZooKeeper, zk: MemorySession
) -> None:
    """It serves clients that know its address, as 0.7.2 does; only the start fails."""
    registration = make(zk)
    await registration.register(["three"])
    async with running(registration):
        server.denied.add("/brokers/ids")
        with capture_logs() as logs:
            server.expire(zk)
            await until(lambda: [each for each in logs if each["event"] == "registration_delayed"])
            assert not registration.holds
        server.denied.clear()
        await until(lambda: registration.holds)


@pytest.mark.parametrize("request_of_topics", ["create_ephemeral", "exists", "delete_owned"])
async def test_reads_makes_and_deletes_the_nodes_of_many_topics_several_at_a_time(
    request_of_topics: str, server: MemoryZooKeeper, zk: MemorySession
) -> None:
    topics = [f"topic-{number:02}" for number in range(2 * READS_AT_ONCE)]
    registration = BrokerRegistration(zk, 0, "h", 9092, lambda topic: 1, SystemClock(), random.Random(1))
    real = getattr(zk, request_of_topics)
    together = asyncio.Barrier(READS_AT_ONCE)

    async def meets_others(path: str, *arguments: object, **options: object) -> object:
        if path.startswith("/brokers/topics/topic"):
            await together.wait()
        return await real(path, *arguments, **options)

    setattr(zk, request_of_topics, meets_others)
    async with asyncio.timeout(30):
        await registration.register(topics)
        async with running(registration):
            await until(lambda: not registration._unread)
        assert [name for name in server.dump() if "/topic-" in name][1::2] == [
            f"/brokers/topics/{topic}/0" for topic in topics
        ]
        await registration.withdraw()
    assert not [name for name in server.dump() if name.endswith("/0")]


async def test_withdraws_the_address_before_the_topics(zk: MemorySession) -> None:
    """Else a consumer could see the broker without its partitions, and rebalance twice."""
    registration = make(zk)
    await registration.register(["one", "three"])
    deleted: list[str] = []
    real = zk.delete_owned

    async def noted(path: str) -> bool:
        deleted.append(path)
        return await real(path)

    zk.delete_owned = noted  # type: ignore[method-assign]
    await registration.withdraw()
    assert deleted[0] == "/brokers/ids/0"
    assert sorted(deleted[1:]) == ["/brokers/topics/one/0", "/brokers/topics/three/0"]
