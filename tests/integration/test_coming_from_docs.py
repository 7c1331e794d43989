"""The snippets of docs/coming-from.md run unchanged except for addresses; its configurations are valid."""

from __future__ import annotations

import importlib
import random
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from consumerd import LATEST
from consumerd.base.clock import SystemClock
from consumerd.base.partition import TopicPartition
from consumerd.demo.processes import BrokerProcess
from consumerd.handlers import Batch, Handler
from consumerd.net.connect import connect
from consumerd.service.config.build_handlers import build_handler
from consumerd.service.config.model import Config, parse
from consumerd.wire.v07 import OffsetsRequest, ProduceRequest, encode_message_set
from consumerd.wire.v08.records import decode_records, encode_record_batch
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
    scripts = {"connector.py", "batches.py"}
    assert set(examples(DOCUMENT)) == {*scripts, "clicks_handler.py", "orders_handler.py", "withdrawals_handler.py"}


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
    assert handlers == {
        "orders.toml": "orders_handler:charge",
        "withdrawals.toml": "withdrawals_handler:handle",
        "backup.toml": "files",
        "sink.toml": "files",
    }


@pytest.fixture
def configured(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Handler, ModuleType]]:
    """The handler of a configuration of the page, and its module."""
    config = configurations(DOCUMENT)[f"{request.param}.toml"]
    module = f"{request.param}_handler"
    (tmp_path / f"{module}.py").write_text(examples(DOCUMENT)[f"{module}.py"], "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield build_handler(config, clock=SystemClock(), rng=random.Random(1)), importlib.import_module(module)
    del sys.modules[module]


def batch_of(payloads: Sequence[bytes], keys: Sequence[bytes | None]) -> Batch:
    data = encode_record_batch(list(payloads), keys=list(keys), base_offset=0)
    return Batch(TopicPartition.numbered("orders", 0), decode_records(data, 0))


@pytest.mark.asyncio
@pytest.mark.parametrize("configured", ["orders"], indirect=True)
async def test_orders_of_different_keys_overlap_and_those_of_one_key_do_not(
    configured: tuple[Handler, ModuleType],
) -> None:
    handler, module = configured
    await handler.handle(batch_of([b"a1", b"a2", b"b1", b"b2"], [b"a", b"a", b"b", b"b"]))
    assert {frozenset(module.charged[:2]), frozenset(module.charged[2:])} == {
        frozenset({"a1", "b1"}),
        frozenset({"a2", "b2"}),
    }


@pytest.mark.asyncio
@pytest.mark.parametrize("configured", ["withdrawals"], indirect=True)
async def test_withdrawals_are_decoded(configured: tuple[Handler, ModuleType]) -> None:
    handler, module = configured
    payloads = [b'{"account": "ada", "amount": 1.5}', b'{"account": "ada", "amount": 2}']
    await handler.handle(batch_of(payloads, [None, None]))
    assert module.totals == {"ada": 3.5}


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
