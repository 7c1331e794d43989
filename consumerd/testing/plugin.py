"""The pytest plugin: fixtures for tests of handlers, consumers and producers. Documented in docs/testing.md.

Strategy: pytest loads this module in every project where consumerd is installed, so it imports nothing but pytest, and
every fixture imports its modules when it is requested. All fixtures are plain functions that return objects which do
their own waiting (servers) or are used with `await` in the test's loop (handlers, groups): so they do not care
which plugin runs async tests, or whether any does.
"""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pytest

if TYPE_CHECKING:
    from consumerd.demo.zookeeper import ZooKeeperServer
    from consumerd.handlers import RetryPolicy
    from consumerd.testing.brokers import LoopbackBroker
    from consumerd.testing.clock import FakeClock
    from consumerd.testing.fault_proxy import Direction
    from consumerd.testing.group import MemoryGroup
    from consumerd.testing.harness import HandlerHarness
    from consumerd.testing.loop import LoopThread
    from consumerd.testing.memory_zookeeper import MemoryZooKeeper
    from consumerd.testing.proxy import LoopbackProxy

Result = TypeVar("Result")

_MISSING = "consumerd_missing"
_MISSING_VARIABLE = "CONSUMERD_TESTING_MISSING"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the one setting."""
    parser.addini(
        _MISSING,
        "what tests do that need a ZooKeeper where Java or its jars are missing: skip or fail "
        f"(the environment variable {_MISSING_VARIABLE} goes before)",
        default="skip",
    )


def _give_up(config: pytest.Config, reason: str) -> None:
    wanted = os.environ.get(_MISSING_VARIABLE) or str(config.getini(_MISSING))
    if wanted == "skip":
        pytest.skip(reason)
    if wanted != "fail":
        raise pytest.UsageError(f"{_MISSING} must be skip or fail, not {wanted!r}")
    pytest.fail(reason, pytrace=False)


# -- running


@pytest.fixture
def consumerd_loop() -> Iterator[LoopThread]:
    """An event loop in a thread of its own, on which the servers of this test live."""
    from consumerd.testing.loop import LoopThread  # noqa: PLC0415 - see the module's strategy

    with LoopThread() as loop:
        yield loop


class CoroutineRunner(Protocol):
    """Runs a coroutine and returns its result; after `timeout` seconds it is cancelled, and TimeoutError raised."""

    def __call__(self, work: Coroutine[Any, Any, Result], *, timeout: float = 60.0) -> Result: ...


@pytest.fixture
def consumerd_run(consumerd_loop: LoopThread) -> CoroutineRunner:
    """Runs coroutines for tests that are not async, all on one loop, which runs on between: `consumerd_run(...)`."""
    return consumerd_loop.run


# -- ZooKeeper


@pytest.fixture(scope="session")
def consumerd_zookeeper(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ZooKeeperServer]:
    """A real ZooKeeper server on loopback for the whole run (extra `embedded`), sessions of 1 to 60 s. Let it live."""
    from consumerd.base.java import MissingRuntimeError  # noqa: PLC0415
    from consumerd.demo.zookeeper import ZooKeeperServer  # noqa: PLC0415
    from consumerd.testing.loop import LoopThread  # noqa: PLC0415

    server = ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"), config={"maxSessionTimeout": 60_000})
    try:
        with LoopThread() as loop:
            loop.run(server.start(timeout=50.0))
    except MissingRuntimeError as error:
        _give_up(request.config, str(error))
    yield server
    server.kill()


_roots = itertools.count(1)


@pytest.fixture
def consumerd_zookeeper_root(consumerd_zookeeper: ZooKeeperServer) -> str:
    """A connect string with a chroot of this test's own, which does not exist yet."""
    return f"{consumerd_zookeeper.connect}/t-{next(_roots)}"


@pytest.fixture
def consumerd_memory_zookeeper() -> MemoryZooKeeper:
    """A ZooKeeper in memory, without Java and sockets: `async with consumerd_memory_zookeeper.session() as zk`."""
    from consumerd.testing.memory_zookeeper import MemoryZooKeeper  # noqa: PLC0415

    return MemoryZooKeeper()


# -- servers on loopback


class BrokerFactory(Protocol):
    """Starts a broker, in this process or (with `process`) in one of its own; further arguments: `LoopbackBroker`."""

    def __call__(
        self,
        *,
        broker_id: int = 0,
        partitions: int = 1,
        zookeeper: str | None = None,
        settings: Mapping[str, str | int] | None = None,
        process: bool = False,
    ) -> LoopbackBroker: ...


@pytest.fixture
def consumerd_broker_factory(
    consumerd_loop: LoopThread, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerFactory]:
    """Starts Kafka 0.7 brokers that end with the test: `consumerd_broker_factory(partitions=4, zookeeper=...)`."""
    from consumerd.testing.brokers import ChildBroker, InProcessBroker  # noqa: PLC0415

    def start(*, process: bool = False, **arguments: Any) -> LoopbackBroker:
        kind = ChildBroker if process else InProcessBroker
        broker = kind(tmp_path_factory.mktemp("broker"), consumerd_loop, **arguments)
        stack.callback(broker.kill)
        broker.start()
        return broker

    with ExitStack() as stack:
        yield start


@pytest.fixture
def consumerd_broker(consumerd_broker_factory: BrokerFactory) -> LoopbackBroker:
    """A Kafka 0.7 broker in this process, with topics of four partitions, without ZooKeeper."""
    return consumerd_broker_factory(partitions=4)


class ProxyFactory(Protocol):
    """Starts a proxy in front of `host`:`port`; see `LoopbackProxy`."""

    def __call__(
        self,
        host: str,
        port: int,
        *,
        hook: Callable[[Direction, bytes], bytes] | None = None,
        frames: bool = False,
    ) -> LoopbackProxy: ...


@pytest.fixture
def consumerd_proxy_factory(consumerd_loop: LoopThread) -> Iterator[ProxyFactory]:
    """Starts TCP proxies that inject faults, and end with the test: `consumerd_proxy_factory(host, port)`."""
    from consumerd.testing.proxy import LoopbackProxy  # noqa: PLC0415

    def start(host: str, port: int, **arguments: Any) -> LoopbackProxy:
        proxy = LoopbackProxy(consumerd_loop, host, port, **arguments)
        stack.callback(proxy.close)
        proxy.start()
        return proxy

    with ExitStack() as stack:
        yield start


# -- handlers


class HandlerFactory(Protocol):
    """Makes a harness around a handler; see `HandlerHarness`."""

    def __call__(
        self,
        handler: object,
        options: Mapping[str, Any] | None = None,
        *,
        policy: RetryPolicy | None = None,
        clock: FakeClock | None = None,
        group: str = "group",
        consumer_id: str = "group_test",
        patience: float = 10.0,
        seed: int = 0,
    ) -> HandlerHarness: ...


@pytest.fixture
def consumerd_handler() -> Iterator[HandlerFactory]:
    """A daemon around your handler, without the daemon.

    `async with consumerd_handler(MyHandler, {"option": 1}) as harness: await harness.deliver([b"payload"])`
    """
    from consumerd.testing.harness import HandlerHarness  # noqa: PLC0415

    made: list[HandlerHarness] = []

    def make(handler: object, options: Mapping[str, Any] | None = None, **arguments: Any) -> HandlerHarness:
        made.append(HandlerHarness(handler, options, **arguments))
        return made[-1]

    yield make
    for harness in made:
        if harness.started:
            warnings.warn(
                f"the harness of {harness.handler!r} was started and not stopped: use `async with`, or `stop` it",
                ResourceWarning,
                stacklevel=1,
            )


@pytest.fixture
def consumerd_group() -> MemoryGroup:
    """Members with your handlers on a ZooKeeper and a broker in memory: `async with consumerd_group as group`."""
    from consumerd.testing.group import MemoryGroup  # noqa: PLC0415

    return MemoryGroup()
