"""Groups in ZooKeeper that daemons of ours share with the JVM's old consumers (0.8.2 to 1.1), on real brokers.

Members join, leave, freeze and are killed while messages are produced; topics get more partitions, brokers and leaders
stop and come back. `tests.interop.zk_group_account` describes the assertions on each run, message by message.
"""

from __future__ import annotations

import asyncio
import json
import logging
from asyncio.subprocess import PIPE
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates
from cryptography.x509 import load_pem_x509_certificates
from kazoo.client import KazooClient

from consumerd.base.errors import ExitCode
from consumerd.base.java import JavaRuntime
from consumerd.base.partition import TopicPartition
from consumerd.demo.ports import free_port
from consumerd.demo.processes import clean_environment, consumerd_command
from tests.interop.old_group_harness import DEFAULT_TIMES, OldGroup, Scene, WideGroup
from tests.interop.zk_group import GROUP
from tests.interop.zk_group_scenes import come_and_go, give_up_slowly

log = logging.getLogger(__name__)

pytestmark = [pytest.mark.interop, pytest.mark.zookeeper, pytest.mark.timeout(900)]


@pytest_asyncio.fixture
async def group(
    request: pytest.FixtureRequest,
    kafka: Any,
    cluster_client: Any,
    java: JavaRuntime,
    zk: KazooClient,
    zk_root: str,
    tmp_path: Path,
) -> AsyncIterator[OldGroup]:
    """A group without members, of the `Scene` that the test is parametrised with."""
    scene: Scene = request.param
    async with AsyncExitStack() as stack:
        config = {
            "zookeeper.session.timeout.ms": 4000,
            "min.insync.replicas": scene.brokers // 2 + 1,
            "unclean.leader.election.enable": "false",
        }
        release = scene.broker or scene.version
        brokers = [await kafka(release, partitions=1, config=config) for _ in range(scene.brokers)]
        client = await stack.enter_async_context(cluster_client(*brokers))
        kind = WideGroup if scene.round_trip else OldGroup
        made = kind(scene, brokers, client, tmp_path, zk_root, zk, java, stack)
        await made.create()
        yield made


@pytest.mark.parametrize(
    "group",
    [
        Scene("0.8.2.2", times=DEFAULT_TIMES),
        pytest.param(Scene("0.10.2.2", "roundrobin", filters=True), marks=pytest.mark.long),
        pytest.param(Scene("0.8.2.2", both=True), marks=pytest.mark.long),
        pytest.param(Scene("0.8.2.2", "roundrobin"), marks=pytest.mark.long),
        pytest.param(Scene("0.9.0.1", filters=True), marks=pytest.mark.long),
        pytest.param(Scene("0.10.2.2", times=DEFAULT_TIMES), marks=pytest.mark.long),
        pytest.param(Scene("1.1.1", "roundrobin"), marks=pytest.mark.long),
        pytest.param(Scene("1.1.1", filters=True), marks=pytest.mark.long),
        pytest.param(Scene("1.1.1", broker="2.8.2"), marks=pytest.mark.long),
    ],
    indirect=True,
    ids=str,
)
async def test_loses_nothing_while_members_come_and_go(group: OldGroup) -> None:
    """Every way to join and to leave, of ours and of the JVM's, each at other places of the order of ids."""
    streams = 1 if group.scene.assignor == "roundrobin" else 2
    async with group.producing():
        await come_and_go(group, streams)
        await group.set_partitions("evenings", 5)
        await group.settled("b", "q", "x")
        if group.scene.filters:
            await group.set_partitions("even-more", 4)
            await group.settled("b", "q", "x")
        # A member that is frozen for too long loses its partitions, and delivers none of their messages.
        await group.freeze("x")
        await group.settled("b", "q")
        group.daemons["x"].resume()
        await group.settled("b", "q", "x")
        await group.kill("q")
        await group.settled("b", "x")
    await group.account()


@pytest.mark.long
@pytest.mark.parametrize(
    "group",
    [
        Scene(version, times=DEFAULT_TIMES, topics={"events": 200}, round_trip=0.005)
        for version in ("0.8.2.2", "0.10.2.2")
    ],
    indirect=True,
    ids=str,
)
@pytest.mark.parametrize("first", ["ours", "the JVM's"])
async def test_shares_two_hundred_partitions_over_a_distant_zookeeper(group: WideGroup, first: str) -> None:
    """A second member joins, takes half of the partitions, and leaves; each answer of ZooKeeper takes 5 ms."""
    stays, comes = ("m", "q") if first == "ours" else ("q", "m")

    async def join(name: str) -> None:
        await (group.join_ours(name) if name == "m" else group.join_jvm(name))

    async with group.producing():
        alone = await group.changed(join(stays), stays)
        shared = await group.changed(join(comes), stays, comes)
        assert len(group.owned("m")) == len(group.owned("q")) == 100
        again = await group.changed(group.leave(comes), stays)
    sent = sum(map(len, group.sent.values()))
    log.info("owned %.1f s, shared %.1f s, owned again %.1f s; %d messages", alone, shared, again, sent)
    await group.account()
    log.info("handed over again: %d to ours, %d to the JVM's", group.repeated("m"), group.repeated("q"))
    assert group.repeated("m") <= 1  # what the stream of the JVM's held when it was asked to let go
    assert "can't rebalance" not in group.jvms["q"].output()


@pytest.mark.parametrize(
    "group",
    [
        Scene("0.8.2.2", times=DEFAULT_TIMES),
        pytest.param(Scene("0.10.2.2", times=DEFAULT_TIMES), marks=pytest.mark.long),
    ],
    indirect=True,
    ids=str,
)
@pytest.mark.parametrize("obeys", [True, False], ids=["in time", "too late"])
async def test_slow_handler_releases_partitions_to_a_jvm_member(
    group: OldGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, obeys: bool
) -> None:
    moving = TopicPartition.numbered("events", 5)  # of a's 0 to 5, when z comes and takes the last
    await give_up_slowly(group, moving, tmp_path, monkeypatch, obeys=obeys)


@pytest.mark.parametrize("group", [Scene("0.8.2.2", filters=True)], indirect=True, ids=str)
async def test_continues_when_brokers_stop_and_return(group: OldGroup) -> None:
    """Ownership does not depend on brokers: there is no rebalance, and all members continue to read."""
    async with group.producing():
        ours = await group.join_ours("m")
        await group.join_jvm("q", streams=2)
        await group.settled("m", "q")
    before = [event for event in ours.events() if event["event"] == "rebalanced"]
    (broker,) = group.brokers
    await broker.stop()
    await group.until(partial(group.is_gone, broker), "end of the broker")
    await broker.start()
    await group.all_led()
    async with group.producing():
        await group.settled("m", "q")
    assert [event for event in ours.events() if event["event"] == "rebalanced"] == before
    await group.account()


@pytest.mark.long
@pytest.mark.parametrize("group", [Scene("0.10.2.2", brokers=3)], indirect=True, ids=str)
async def test_group_follows_changed_leaders(group: OldGroup) -> None:
    """Leaders die with their broker, and come back: the partitions' owners stay, and follow them."""
    for broker in group.brokers:
        async with group.producing():
            if not group.daemons:
                await group.join_ours("m")
                await group.join_jvm("q", streams=2)
            await group.settled("m", "q")
        # While the producer pauses: a batch that is sent again would be stored twice.
        broker.kill()
        await group.until(partial(group.is_gone, broker), "end of a broker")
        await group.until(partial(group.in_sync, missing=1), "new leaders")
        await group.all_led()
        async with group.producing():
            await group.settled("m", "q")
        await broker.start()
        await group.until(group.in_sync, "replicas in sync")
    assert sum(event["event"] == "rebalanced" for event in group.daemons["m"].events()) == 2
    await group.account()


async def test_finds_brokers_at_the_configured_listener(
    kafka: Any, cluster_client: Any, java: JavaRuntime, zk: KazooClient, zk_root: str, tmp_path: Path, tls_files: Any
) -> None:
    """ZooKeeper lists plaintext and TLS; a daemon with `[kafka.tls]` takes the latter."""
    pem = tls_files.zookeeper.key_store.read_bytes()
    store = tmp_path / "store.p12"
    key, (own, *chain) = load_pem_private_key(pem, None), load_pem_x509_certificates(pem)
    assert isinstance(key, EllipticCurvePrivateKey | RSAPrivateKey)
    store.write_bytes(serialize_key_and_certificates(b"broker", key, own, chain, BestAvailableEncryption(b"secret")))
    plain, secure = free_port(), free_port()
    config = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},INSIDE://127.0.0.1:{secure}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INSIDE:SSL",
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(store),
        "ssl.keystore.password": "secret",
        "ssl.key.password": "secret",
    }
    broker = await kafka("0.10.2.2", port=plain, partitions=1, config=config)
    async with cluster_client(broker) as client, AsyncExitStack() as stack:
        group = OldGroup(Scene("0.10.2.2"), [broker], client, tmp_path, zk_root, zk, java, stack)
        await group.create()
        async with group.producing():
            await group.join_ours("m", kafka={"tls": {"ca": str(tls_files.authority)}})
            await group.settled("m")
        await group.account()


async def command(*words: str, stdin: bytes = b"") -> tuple[int | None, bytes, str]:
    """The exit code of a command of ours, and what it printed and said."""
    process = await asyncio.create_subprocess_exec(
        *consumerd_command(*words), env=clean_environment(), stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    output, errors = await asyncio.wait_for(process.communicate(stdin), 120)
    return process.returncode, output, errors.decode()


@pytest.mark.parametrize("group", [Scene("0.8.2.2")], indirect=True, ids=str)
async def test_console_commands_find_the_group_in_zookeeper_alone(group: OldGroup, zk_root: str) -> None:
    async with group.producing():
        await group.until(lambda: all(len(payloads) >= 16 for payloads in group.sent.values()), "messages")
    consume = ("consume", "--zookeeper", zk_root, "--group", GROUP, "--whitelist", "even.*", "--exit-at-end", "--json")
    code, output, _ = await command(*consume)
    assert code == ExitCode.OK
    printed: defaultdict[TopicPartition, list[bytes]] = defaultdict(list)
    for line in output.splitlines():
        told = json.loads(line)
        place = TopicPartition.numbered(told["topic"], told["partition"])
        assert (told["broker"], told["offset"]) == (None, len(printed[place]))
        printed[place].append(told["payload"].encode())
    assert printed == group.sent
    assert group.committed() == {place: len(payloads) for place, payloads in group.sent.items()}

    topic = next(iter(group.sent)).topic
    produce = ("produce", "--zookeeper", zk_root, "--topic", topic)
    code, _, errors = await command(*produce, "--magic", "0", stdin=b"x")
    assert (code, "--magic is for brokers of Kafka 0.7" in errors) == (ExitCode.USAGE, True)
    assert (await command(*produce, "--linger", "0", stdin=b"by ZooKeeper"))[0] == ExitCode.OK
    code, output, _ = await command(*consume)
    assert (code, [json.loads(line)["payload"] for line in output.splitlines()]) == (ExitCode.OK, ["by ZooKeeper"])
    at = ("--bootstrap-server", group.brokers[0].address, "--topic", topic)
    code, output, errors = await command("consume", *at, "--group", GROUP, "--exit-at-end")
    assert (code, output, "omit --group" in errors) == (ExitCode.CONFIG, b"", True)
