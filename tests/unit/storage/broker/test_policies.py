"""Delete policies by name: found, made per topic, and refused in one sentence."""

import asyncio
import random
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import ModuleType

import pytest

from consumerd.base import plugins
from consumerd.base.clock import SystemClock
from consumerd.base.errors import ConfigError
from consumerd.storage import MaxAge, SegmentFacts, StorageError
from consumerd.storage.broker import policies
from consumerd.storage.broker import server as server_module
from consumerd.storage.broker.config import BrokerConfig
from consumerd.storage.broker.policies import load_policies
from consumerd.storage.broker.server import Broker
from consumerd.wire.v07 import ProduceRequest, encode_message


class Newest:
    """Keep so many segments of topics that begin with `t`; no other topics, please."""

    def __init__(self, topic: str, argument: str) -> None:
        if not topic.startswith("t"):
            raise ValueError("not one of mine")
        self.keep = int(argument or "1")

    def deletable(self, segments: Sequence[SegmentFacts], now_ms: int) -> int:
        return len(segments) - self.keep


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("some_package")
    module.Newest = Newest  # type: ignore[attr-defined]
    module.wrong = lambda topic, argument: object()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "some_package", module)
    found = EntryPoints([EntryPoint("newest", "some_package:Newest", policies.POLICY.group)])
    monkeypatch.setattr(plugins, "entry_points", lambda group: found.select(group=group))


def test_loads_a_policy_by_entry_point_and_by_module() -> None:
    one, two = load_policies("p", "newest=3, some_package:Newest ,")
    assert [factory.policy("t").keep for factory in (one, two)] == [3, 1]  # type: ignore[attr-defined]
    assert load_policies("p", "") == ()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("newst", "p: unknown delete policy 'newst', did you mean 'newest'? There is newest."),
        ("some_package:Old", "p: delete policy 'some_package:Old': 'some_package' has no attribute 'Old'."),
        ("newest,:x", "p: delete policy ':x' is not of the form module:attribute."),
    ],
)
def test_rejects_wrong_names(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_policies("p", text)
    assert sentence in str(caught.value)


def test_reports_a_failing_policy_factory_with_its_topic() -> None:
    factory, wrong = load_policies("p", "newest=x,some_package:wrong")
    with pytest.raises(StorageError, match="'newest' failed for topic words: ValueError: not one of mine"):
        factory.policy("words")
    with pytest.raises(StorageError, match="'newest' failed for topic t: ValueError: invalid literal"):
        factory.policy("t")
    with pytest.raises(StorageError, match="'some_package:wrong' returned a object, which has no method `deletable`"):
        wrong.policy("t")


async def test_applies_custom_policies_after_age_and_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_FIRST_CLEANUP", 0.2)
    config = BrokerConfig.from_properties(
        {
            "log.dir": str(tmp_path),
            "port": "0",
            "enable.zookeeper": "false",
            "log.file.size": "1",
            "log.retention.hours": "1",
            "log.delete.policies": "newest=2",
        }
    )
    assert [type(policy) for policy in config.log_settings("t").delete_policies] == [MaxAge, Newest]
    async with Broker(config, clock=SystemClock(), rng=random.Random(1)) as broker:
        one = encode_message(b"a")
        for topic, closes in (("words", True), ("t", False)):
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
            for _ in range(5):
                writer.write(ProduceRequest(topic, 0, one).encode())
            if not closes:
                writer.write_eof()
            async with asyncio.timeout(60):
                assert await reader.read() == b""
            writer.close()
        async with asyncio.timeout(60):
            while len(list((tmp_path / "t-0").iterdir())) != 2:
                await asyncio.sleep(0.02)
        starts = sorted(int(path.stem) for path in (tmp_path / "t-0").iterdir())
        assert starts == [3 * len(one), 4 * len(one)]
