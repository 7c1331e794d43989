"""Dead letters in topics of real brokers: as messages with headers, and as JSON where brokers have none."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumerd.base.clock import SystemClock
from consumerd.base.errors import HandlerFailedError, NotFoundError
from consumerd.base.partition import TopicPartition
from consumerd.handlers import KeyedMessage, Letter
from consumerd.handlers.dead_letters import decode_letter
from consumerd.service.config.build_handlers import build_dead_letters
from consumerd.service.config.model import parse
from tests.integration.conftest import consumerd
from tests.interop.test_forward import held
from tests.support.dead_letters import read_letters
from tests.support.waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

MESSAGE = KeyedMessage(TopicPartition.numbered("t", 3), 7, 0, 8, b"v", b"k", 1_700_000_000_123, 0, ())
LETTER = Letter(MESSAGE, ValueError("no"), 3)  # type: ignore[arg-type]  # a KeyedMessage is all that a Message is


def place(broker: Any, zookeeper: str | None, **handler: Any) -> Any:
    at: dict[str, Any] = {"kafka": {"bootstrap": [broker.address]}}
    if zookeeper is not None:
        at = {"zookeeper": {"connect": zookeeper}}
    group = {"id": "g", "topics": {"t": 1}, "coordination": "kafka" if zookeeper is None else "zookeeper"}
    policy = {"on_failure": "dead_letter", "dead_letter_topic": "dead", **handler}
    config = parse({"group": group, **at, "handler": policy}, "a test", environment=False)
    return build_dead_letters(config, clock=SystemClock(), rng=random.Random(1))


@pytest.mark.parametrize("by_zookeeper", [False, True])
async def test_letters_are_confirmed_messages(
    by_zookeeper: bool, kafka: Any, cluster_client: Any, zk_root: str
) -> None:
    broker = await kafka("2.8.2" if by_zookeeper else "3.9.1")
    letters = place(broker, zk_root if by_zookeeper else None)
    await letters.start()
    await letters.write([LETTER])
    async with cluster_client(broker) as client:
        (record,) = (record for partition in await held(client, "dead") for record in partition)
    assert (record.payload, record.key, record.timestamp) == (b"v", b"k", 1_700_000_000_123)
    assert dict(record.headers)["consumerd.dead_letter.error"] == b"no"
    assert dict(record.headers)["consumerd.dead_letter.offset"] == b"7"
    broker.kill()
    with capture_logs() as logs:
        writing = asyncio.create_task(letters.write([LETTER]))
        await until(lambda: "produce_retried" in [each["event"] for each in logs])
    writing.cancel()
    await asyncio.wait([writing])
    async with asyncio.timeout(10):  # the letter is not waited for: its message is not committed
        await letters.stop()


async def test_brokers_without_headers_get_json_and_refuse_the_rest(kafka: Any, cluster_client: Any) -> None:
    broker = await kafka("0.8.2.2")
    for as_ in ("message", "json"):
        letters = place(broker, None, dead_letter_as=as_)
        await letters.start()
        if as_ == "message":
            with pytest.raises(HandlerFailedError, match=r'before 0\.11 .*dead_letter_as = "json"'):
                await letters.write([LETTER])
        else:
            await letters.write([LETTER])
        await letters.stop()
    async with cluster_client(broker) as client:
        (record,) = (record for partition in await held(client, "dead") for record in partition)
    assert decode_letter(record.payload or b"").message == MESSAGE


@pytest.mark.long
async def test_a_missing_topic_is_found_and_a_message_as_large_as_the_topic_allows_is_kept(
    kafka: Any, cluster_client: Any, tmp_path: Path
) -> None:
    broker = await kafka("3.9.1", config={"auto.create.topics.enable": "false", "message.max.bytes": "10000"})
    path = tmp_path / "beside.ndjson"
    letters = place(broker, None, dead_letter=str(path))
    with pytest.raises(NotFoundError, match=r"create it: consumerd topics create --topic dead"):
        await letters.start()
    await letters.stop()
    for topic in ("dead", "t"):
        made = await consumerd("topics", "create", "--topic", topic, "--bootstrap-server", broker.address)
        assert made.code == 0, made.stderr
    letters = place(broker, None, dead_letter=str(path))
    with capture_logs() as logs:
        await letters.start()
    (reason,) = (each["reason"] for each in logs if each["event"] == "dead_letter_topic_too_small")
    assert "messages of t may have 10000 bytes" in reason
    assert "max.message.bytes of dead is 10000" in reason
    # A record batch of one message has some 70 bytes besides its payload, and the description more than 400.
    for size in (9_000, 9_500, 9_920):
        message = MESSAGE._replace(offset=size, payload=b"v" * size)
        await letters.write([Letter(message, ValueError("no"), 3, traceback="f" * 300)])  # type: ignore[arg-type]
    await letters.stop()
    async with cluster_client(broker) as client:
        records = [record for partition in await held(client, "dead") for record in partition]
    told = {len(record.payload or b""): "consumerd.dead_letter.traceback" in dict(record.headers) for record in records}
    assert told == {9_000: True, 9_500: False}
    (line,) = read_letters(path)
    assert line.letter is not None
    assert line.letter.message.payload == b"v" * 9_920
