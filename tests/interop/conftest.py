"""Brokers, producers and members of groups of other projects, in JVMs, against our ZooKeeper."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import random
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

import pytest
import pytest_asyncio
from kazoo.client import KazooClient

from consumerd.base.clock import SystemClock
from consumerd.base.java import JavaRuntime, MissingRuntimeError, find_java
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.opening import ChannelOpener
from consumerd.net.client.settings import ClientSettings
from consumerd.net.connect import connect
from tests.interop.kerberos import KeyDistributionCentre, missing_programs
from tests.support.jafka import JafkaBroker, jafka_jars
from tests.support.jafka_clients import JafkaMember, JafkaProducer, compile_java
from tests.support.kafka import RELEASES, KafkaBroker, KafkaRelease, kafka_jars
from tests.support.kafka_cluster import KafkaCluster


@pytest.fixture(scope="session")
def jafka_class_path(
    java: JavaRuntime, tmp_path_factory: pytest.TempPathFactory, missing: Callable[[str], NoReturn]
) -> list[Path]:
    """Jafka's jars and our compiled `JafkaMember` and `JafkaProducer`."""
    classes = tmp_path_factory.mktemp("java")
    try:
        jars = jafka_jars()
        sources = [Path(__file__).with_name("java") / f"{name}.java" for name in ("JafkaMember", "JafkaProducer")]
        compile_java(java, sources, jars, classes)
    except MissingRuntimeError as error:
        missing(str(error))
    return [classes, *jars]


class JafkaBrokerFactory(Protocol):
    """Starts a broker registered in `zookeeper`; further arguments are those of `JafkaBroker`."""

    async def __call__(self, zookeeper: str, **arguments: Any) -> JafkaBroker: ...


class JafkaConsumerFactory(Protocol):
    """Starts a member of `group`; returns when it has joined. Further arguments are those of `JafkaMember`."""

    async def __call__(
        self, zookeeper: str, group: str, topics: Mapping[str, int], **arguments: Any
    ) -> JafkaMember: ...


class JafkaProducerFactory(Protocol):
    """Starts a producer for `topic`. Further arguments are those of `JafkaProducer`."""

    async def __call__(self, zookeeper: str, topic: str, **arguments: Any) -> JafkaProducer: ...


@pytest.fixture
def zk(zk_root: str) -> Iterator[KazooClient]:
    """A session of a client that is not ours, in an existing chroot (Jafka does not create its own)."""
    hosts, _, chroot = zk_root.partition("/")
    client = KazooClient(hosts)
    client.start(20)
    client.ensure_path(f"/{chroot}")
    client.chroot = f"/{chroot}"
    yield client
    client.stop()
    client.close()


class Server(Protocol):
    async def start(self) -> None: ...

    def kill(self) -> None: ...


S = TypeVar("S", bound=Server)


def _starting(directory: Path, make: Callable[..., S]) -> Iterator[Callable[..., Coroutine[Any, Any, S]]]:
    """A function that makes a server in a folder of its own and starts it. All are stopped at the end of the test."""
    made: list[S] = []

    async def start(*arguments: Any, **options: Any) -> S:
        one = make(directory.with_name(f"{directory.name}-{len(made)}"), *arguments, **options)
        made.append(one)
        await one.start()
        return one

    yield start
    for one in made:
        one.kill()


@pytest.fixture
def jafka_broker(java: JavaRuntime, jafka_class_path: list[Path], tmp_path: Path) -> Iterator[JafkaBrokerFactory]:
    make = functools.partial(JafkaBroker, java=java, jars=jafka_class_path)
    yield from _starting(tmp_path / "jafka-broker", make)


@pytest.fixture
def jafka_consumer(java: JavaRuntime, jafka_class_path: list[Path], tmp_path: Path) -> Iterator[JafkaConsumerFactory]:
    make = functools.partial(JafkaMember, java=java, class_path=jafka_class_path, main="JafkaMember")
    yield from _starting(tmp_path / "jafka-member", make)


@pytest.fixture
def jafka_producer(java: JavaRuntime, jafka_class_path: list[Path], tmp_path: Path) -> Iterator[JafkaProducerFactory]:
    make = functools.partial(JafkaProducer, java=java, class_path=jafka_class_path, main="JafkaProducer")
    yield from _starting(tmp_path / "jafka-producer", make)


@pytest.fixture(scope="session")
def broker_java(java: JavaRuntime, missing: Callable[[str], NoReturn]) -> Callable[[KafkaRelease], JavaRuntime]:
    """The Java runtime for brokers of a release: since 4.1 a Java 25 (by default the wheel's), else `java`."""

    def choose(release: KafkaRelease) -> JavaRuntime:
        if release.number < (4, 1):
            return java
        try:
            return find_java(minimum=25)
        except MissingRuntimeError as error:
            missing(str(error))

    return choose


class KafkaFactory(Protocol):
    """Starts a real Kafka broker of `version`; further arguments are those of `KafkaBroker`."""

    async def __call__(self, version: str, **arguments: Any) -> KafkaBroker: ...


@pytest.fixture
def kafka(
    broker_java: Callable[[KafkaRelease], JavaRuntime],
    zk: KazooClient,
    zk_root: str,
    tmp_path: Path,
    missing: Callable[[str], NoReturn],
) -> Iterator[KafkaFactory]:
    """Brokers end with the test. With ZooKeeper they share one chroot: they form a cluster."""
    ids = itertools.count(1)

    def make(directory: Path, version: str, **arguments: Any) -> KafkaBroker:
        release = RELEASES[version]
        try:
            jars = kafka_jars(release)
        except MissingRuntimeError as error:
            missing(str(error))
        defaults = {"broker_id": next(ids), "java": broker_java(release), "jars": jars}
        return KafkaBroker(directory, release, None if release.kraft else zk_root, **{**defaults, **arguments})

    yield from _starting(tmp_path / "kafka", make)


@pytest.fixture
def kafka_cluster(
    broker_java: Callable[[KafkaRelease], JavaRuntime],
    zk: KazooClient,
    zk_root: str,
    tmp_path: Path,
    missing: Callable[[str], NoReturn],
) -> Callable[..., KafkaCluster]:
    """Makes a cluster of three brokers of a version, which is not started; more arguments are `KafkaCluster`'s."""

    def make(version: str, **arguments: Any) -> KafkaCluster:
        release = RELEASES[version]
        try:
            jars = kafka_jars(release)
        except MissingRuntimeError as error:
            missing(str(error))
        place = None if release.kraft else zk_root
        return KafkaCluster(tmp_path / "cluster", release, place, java=broker_java(release), jars=jars, **arguments)

    return make


class ClientFactory(Protocol):
    """A client of the cluster that `brokers` are of; `async with` closes it."""

    def __call__(self, *brokers: KafkaBroker) -> ClusterClient: ...


@pytest.fixture
def cluster_client() -> ClientFactory:
    def make(*brokers: KafkaBroker) -> ClusterClient:
        settings = ClientSettings(retry_timeout=60)
        clock = SystemClock()
        opener = ChannelOpener(functools.partial(connect, settings=settings.connection), settings, clock)
        bootstrap = [("127.0.0.1", broker.port) for broker in brokers]
        return ClusterClient(bootstrap, opener, settings, clock=clock, rng=random.Random(1))

    return make


@pytest_asyncio.fixture
async def kdc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: Callable[[str], NoReturn]
) -> AsyncIterator[KeyDistributionCentre]:
    """A key distribution centre, which the environment of this process names."""
    can_be_had = shutil.which("apt-get") is not None  # .ci/run has installed them then
    if importlib.util.find_spec("gssapi") is None:
        (missing if can_be_had else pytest.skip)("no extra gssapi: install libkrb5-dev and run `make gssapi`")
    if programs := missing_programs():
        (missing if can_be_had else pytest.skip)(f"no {', '.join(programs)}: install krb5-kdc, krb5-admin-server")
    made = KeyDistributionCentre(tmp_path / "kerberos")
    for name, value in made.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("KRB5CCNAME", raising=False)
    try:
        await made.start()
        yield made
    finally:
        made.stop()
