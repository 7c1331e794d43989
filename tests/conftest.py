"""Fixtures for the tests of all rooms: the golden recordings, Java, a real ZooKeeper."""

from __future__ import annotations

import functools
import logging
import os
import shutil
import signal
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

import hypothesis
import pytest
import structlog
import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from consumerd.base import native
from consumerd.base.java import JavaRuntime, MissingRuntimeError, find_java
from consumerd.demo.zookeeper import ZooKeeperServer, zookeeper_jars
from tests.support import maven, sharing
from tests.support.codecs import installed_native_codec
from tests.support.spark_jvm import share_classes
from tests.support.zookeeper_servers import ConfiguredZooKeeper, ZooKeeperTls

if os.environ.get("CI", "").lower() != "true":  # there Hypothesis does so by itself
    # No deadline: the duration of an example depends more on the other load of the machine than on our code.
    hypothesis.settings.register_profile("patient", deadline=None)
    hypothesis.settings.load_profile("patient")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background jobs ignore it, and so would the children of tests that end them with Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    # Under nohup: daemons that tests start would ignore it, too, and reload nothing.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

#: Tests that use the fixture get the marker, so that `-m "not zookeeper"` leaves out all that need a server.
_MARKED_FIXTURES = {
    "golden": "golden",
    "zookeeper": "zookeeper",
    "consumerd_zookeeper": "zookeeper",
    "zookeeper_factory": "zookeeper",
    "jafka_broker": "interop",
    "jafka_consumer": "interop",
    "jafka_producer": "interop",
}

#: Folders and modules whose tests are all `slow`, which `make test` leaves out: the brokers of other projects, JVMs of
#: Spark, processes that are killed, and the modules that take more than ten seconds of processor time. What is left
#: takes five minutes on two idle cores: a module that takes long belongs here.
_SLOW = (
    "tests/deploy/", "tests/interop/", "tests/kill/", "tests/spark/",
    "tests/faults/test_broker_process.py", "tests/faults/test_lake_disk.py", "tests/faults/test_zk_ensemble.py",
    "tests/integration/test_bad_input.py", "tests/integration/test_cli_", "tests/integration/test_daemon_http.py",
    "tests/integration/test_daemon_signals.py", "tests/integration/test_daemon_subscriptions.py",
    "tests/integration/test_dead_letters.py", "tests/integration/test_demo.py",
    "tests/integration/test_embedded_zookeeper.py", "tests/integration/test_memory.py",
    "tests/integration/test_mirror.py", "tests/integration/test_other_clients.py",
    "tests/integration/test_packaging.py", "tests/integration/test_produce_command.py",
    "tests/integration/test_status_page.py",
    "tests/simulation/test_handover.py", "tests/simulation/test_log_schedules.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(_SLOW):
            item.add_marker("slow")
        for fixture in getattr(item, "fixturenames", ()):
            if fixture in _MARKED_FIXTURES:
                item.add_marker(_MARKED_FIXTURES[fixture])


#: The list of tests that may use `javac` or jars of Maven: `.ci/run` repeats them on a machine without either.
_ASKS_FOR_A_JDK = Path(__file__).resolve().parents[1] / ".ci" / "asks-for-a-jdk"
_compiler: Callable[[JavaRuntime], Path | None] = vars(JavaRuntime)["compiler"].fget


class JdkGuard:
    """Fails a test that asks for a compiler or for jars of Maven where `.ci/run` does not expect it."""

    def __init__(self, root: Path, places: list[str]) -> None:
        self._places = [root / place for place in places]
        self._running: Path | None = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._running = item.path
        try:
            return (yield)
        finally:
            self._running = None

    def watch(self, asking: Callable[..., Any]) -> Callable[..., Any]:
        """`asking`, but for tests that stand elsewhere."""

        @functools.wraps(asking)
        def watched(*arguments: Any, **options: Any) -> Any:
            if self._running is not None and not any(map(self._running.is_relative_to, self._places)):
                pytest.fail(f"{self._running.name} asks for a JDK or for Maven: add it to .ci/asks-for-a-jdk")
            return asking(*arguments, **options)

        return watched


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(sharing, "sharing")
    sharing.share_ports(config)
    share_classes()
    if _ASKS_FOR_A_JDK.is_file():  # not in the source distribution
        guard = JdkGuard(_ASKS_FOR_A_JDK.parents[1], _ASKS_FOR_A_JDK.read_text("utf-8").split())
        config.pluginmanager.register(guard, "jdk-guard")
        # Tests that need jars look into the cache first.
        maven.cache_directory = guard.watch(maven.cache_directory)
        JavaRuntime.compiler = property(guard.watch(_compiler))  # type: ignore[assignment,method-assign]


@pytest.fixture(autouse=True)
def logs_end_with_the_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo what a command configured in this process: loggers would keep the file and the level that they had."""
    configure, root = structlog.configure, logging.getLogger()
    level = root.level

    def configure_for_now(**settings: Any) -> None:
        configure(**settings | {"cache_logger_on_first_use": False})

    monkeypatch.setattr(structlog, "configure", configure_for_now)
    yield
    root.setLevel(level)
    if structlog.is_configured():
        structlog.reset_defaults()


def _missing(reason: str) -> NoReturn:
    """Skip the test; under CI nothing may be missing."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(f"{reason} (CI=true: nothing is skipped)", pytrace=False)
    pytest.skip(reason)


def _skip_what_is_missing(error: Exception) -> None:
    """Skip the test if that is all that is wrong: what a test needs may be looked for anywhere, also in task groups."""
    missing: BaseException = error
    while isinstance(missing, ExceptionGroup) and len(missing.exceptions) == 1:
        missing = missing.exceptions[0]
    if isinstance(missing, MissingRuntimeError):
        _missing(str(missing))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None]:
    try:
        return (yield)
    except (MissingRuntimeError, ExceptionGroup) as error:
        _skip_what_is_missing(error)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    try:
        return (yield)
    except (MissingRuntimeError, ExceptionGroup) as error:
        _skip_what_is_missing(error)
        raise


@pytest.fixture(scope="session")
def missing() -> Callable[[str], NoReturn]:
    """The function to call with the reason when a requirement of a test is missing on this machine."""
    return _missing


@pytest.fixture(scope="module", params=["pure", "native"])
def either_codec(request: pytest.FixtureRequest) -> Iterator[str]:
    """The test runs with the pure codec, and once more with the native one where that is built."""
    name = str(request.param)
    with native.using(_native() if name == "native" else None):
        yield name


@pytest.fixture(scope="module")
def native_codec() -> native.NativeCodec:
    """The native codec; the test is skipped where it is not built."""
    return _native()


def _native() -> native.NativeCodec:
    codec = installed_native_codec()
    if codec is None:
        if shutil.which("cargo") is not None:
            _missing("consumerd-native is not installed: `make setup` builds it")
        pytest.skip("consumerd-native is not installed, and there is no cargo to build it with")
    return codec


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of recordings of real brokers: $CONSUMERD_GOLDEN, else ../shared/golden beside the checkout."""
    named = os.environ.get("CONSUMERD_GOLDEN")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "golden"
    if not (folder / "kafka-0.7.2" / "NOTES.md").is_file():
        _missing(f"no golden recordings in {folder}: set CONSUMERD_GOLDEN to their folder")
    return folder


@pytest.fixture(scope="session")
def java() -> JavaRuntime:
    """A Java runtime together with the jars of ZooKeeper."""
    try:
        zookeeper_jars()
        return find_java()
    except MissingRuntimeError as error:
        _missing(str(error))


@pytest.fixture(scope="session")
def zookeeper(java: JavaRuntime, consumerd_zookeeper: ZooKeeperServer) -> ZooKeeperServer:
    """One ZooKeeper server for the whole run. Sessions of 1 to 60 s. Leave it alive: see `zookeeper_factory`.

    With `java` first: it says by our rules what happens where it is missing.
    """
    return consumerd_zookeeper


@pytest.fixture
def zk_root(zookeeper: ZooKeeperServer, consumerd_zookeeper_root: str) -> str:
    """A connect string with a chroot of this test's own, which does not exist yet."""
    return consumerd_zookeeper_root


class ZooKeeperFactory(Protocol):
    """Starts a private server; the arguments are those of `ConfiguredZooKeeper`."""

    async def __call__(self, **arguments: Any) -> ConfiguredZooKeeper: ...


@pytest.fixture
def zookeeper_factory(java: JavaRuntime, tmp_path: Path) -> Iterator[ZooKeeperFactory]:
    """`await zookeeper_factory(tick_ms=200)`: a server of the test's own, to be killed, paused and restarted."""
    servers: list[ConfiguredZooKeeper] = []

    async def make(**arguments: Any) -> ConfiguredZooKeeper:
        server = ConfiguredZooKeeper(tmp_path / f"zookeeper-{len(servers)}", java=java, **arguments)
        servers.append(server)
        await server.start()
        return server

    yield make
    for server in servers:
        server.kill()


@dataclass(frozen=True)
class TlsFiles:
    """PEM files of a made-up authority: its certificate, a server's and a client's key with chain."""

    authority: Path
    client: Path
    zookeeper: ZooKeeperTls


@pytest.fixture
def tls_files(tmp_path: Path) -> TlsFiles:
    """For `ConfiguredZooKeeper(tls=tls_files.zookeeper)` on 127.0.0.1, and for the SSLContext of its client."""
    authority = trustme.CA()
    folder = tmp_path / "tls"
    folder.mkdir()
    authority.cert_pem.write_to_path(folder / "authority.pem")
    for name in ("server", "client"):
        issued = authority.issue_cert("127.0.0.1", "localhost")
        key = load_pem_private_key(issued.private_key_pem.bytes(), None)
        # Java reads PKCS #8 only.
        text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (folder / f"{name}.pem").write_bytes(text + b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    return TlsFiles(
        folder / "authority.pem",
        folder / "client.pem",
        ZooKeeperTls(folder / "server.pem", folder / "authority.pem"),
    )
