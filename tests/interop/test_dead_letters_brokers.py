"""Dead letters in topics of real brokers: as messages with headers, and as JSON where brokers have none."""

from __future__ import annotations

import random
from typing import Any

import pytest

from consumerd.clock import SystemClock
from consumerd.config.build import build_dead_letters
from consumerd.config.model import parse
from consumerd.errors import HandlerFailedError
from consumerd.handlers import KeyedMessage, Letter
from consumerd.handlers.dead_letters import decode_letter
from consumerd.partition import TopicPartition
from tests.interop.test_forward import held

pytestmark = [pytest.mark.interop, pytest.mark.asyncio, pytest.mark.timeout(900)]

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
    await letters.stop()
    async with cluster_client(broker) as client:
        (record,) = (record for partition in await held(client, "dead") for record in partition)
    assert (record.payload, record.key, record.timestamp) == (b"v", b"k", 1_700_000_000_123)
    assert dict(record.headers)["consumerd.dead_letter.error"] == b"no"
    assert dict(record.headers)["consumerd.dead_letter.offset"] == b"7"


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
