"""The snippets of docs/coming-from.md run unchanged except for addresses; its configurations are valid."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from consumerd import LATEST
from consumerd.demo.processes import BrokerProcess
from consumerd.net.connect import connect
from consumerd.service.config.model import Config, parse
from consumerd.wire.v07 import OffsetsRequest, ProduceRequest, encode_message_set
from tests.integration.test_library_docs import ROOT, examples, run

pytest_plugins = ["pytester"]

DOCUMENT = "docs/coming-from.md"
TEST_OF_THE_HANDLER = """
import clicks_handler
import pytest


@pytest.mark.asyncio
async def test_users(consumerd_handler):
    async with consumerd_handler("clicks_handler:handle") as harness:
        await harness.deliver([b'{"user": "ada"}', b'{"user": "bob"}'])
    assert clicks_handler.seen == ["ada", "bob"]
"""


def test_every_example_is_run_here() -> None:
    assert set(examples(DOCUMENT)) == {"connector.py", "batches.py", "clicks_handler.py"}


def test_the_handler(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(clicks_handler=examples(DOCUMENT)["clicks_handler.py"], test_it=TEST_OF_THE_HANDLER)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-o", "asyncio_mode=strict", timeout=100)
    result.assert_outcomes(passed=1)


def configurations(document: str) -> dict[str, Config]:
    """The configurations of a page, by the file name in their first line."""
    blocks = re.findall(r"```toml\n# (\S+)\n(.*?)```", (ROOT / document).read_text("utf-8"), re.DOTALL)
    return {name: parse(tomllib.loads(text), "a test", environment=False) for name, text in blocks}


def test_the_configurations() -> None:
    handlers = {name: config.handler.name for name, config in configurations(DOCUMENT).items()}
    assert handlers == {"backup.toml": "files", "sink.toml": "files"}


def test_the_configuration_for_event_hubs() -> None:
    (config,) = configurations("docs/which-brokers.md").values()
    assert config.kafka.sasl is not None
    assert (config.kafka.sasl.user, config.kafka.tls is None) == ("$ConnectionString", False)


@pytest.mark.asyncio
async def test_the_consumers(zk_root: str, tmp_path: Path) -> None:
    async with BrokerProcess(tmp_path, zk_root, settings={"log.flush.interval": 1}) as broker:
        connection = await connect("127.0.0.1", broker.port)
        await connection.send(ProduceRequest("clicks", 0, encode_message_set([b"one", b"two"])).encode())
        await connection.request(OffsetsRequest("clicks", 0, LATEST, 1).encode())
        await connection.close()
        for name, printed in (("connector.py", r"clicks 0 one\nclicks 13 two\n"), ("batches.py", r".*'one', 'two'")):
            script = tmp_path / name
            script.write_text(examples(DOCUMENT)[name].replace("zk1:2181,zk2:2181/kafka", zk_root), "utf-8")
            found = await run(script)
            assert re.search(printed, found), found
            assert found.endswith("no message for 2 seconds")
