"""A daemon whose handler refuses a message: one dead letter, confirmed before the commit, and no stall."""

from __future__ import annotations

from typing import Any

import pytest

from consumerd.base.errors import ExitCode
from consumerd.base.partition import TopicPartition
from consumerd.handlers.dead_letters import StoredLetter, decode_letter
from tests.integration.conftest import consumerd

pytestmark = [pytest.mark.zookeeper]

TP = TopicPartition("t", 0, 0)
REFUSE = {
    "name": "bad_handlers:Failing",
    "options": {"text": "bad"},
    "max_attempts": 2,
    "initial_backoff": 0.01,
    "on_failure": "dead_letter",
}


async def letters_in(world: Any, topic: str) -> list[StoredLetter]:
    done = await consumerd("consume", "--zookeeper", world.chroot, "--group", "x", "--topic", topic, "--exit-at-end")
    assert done.code == 0, done.stderr
    return [decode_letter(line.encode()) for line in done.stdout.splitlines()]


async def test_a_poison_message_costs_one_letter_in_a_topic_and_the_rest_goes_on(world: Any) -> None:
    await world.broker()
    await world.append(TP, b"one", b"bad one", b"three")
    daemon = await world.daemon(handler={**REFUSE, "dead_letter_topic": "dead"}, commit={"interval": 0.1})
    end = await world.append(TP, b"four")

    async def committed() -> bool:
        return bool(await world.offset(TP) == end)

    await world.until(committed)
    daemon.terminate()
    assert await daemon.wait(60) == 0
    (letter,) = await letters_in(world, "dead")
    assert letter.message.payload == b"bad one"
    assert letter.identity == ("t", 0, 0, 13, 0)
    assert (letter.error_type, letter.error, letter.attempts) == ("ValueError", "cannot digest bad", 2)


async def test_a_letter_that_is_too_large_for_the_topic_goes_to_a_file_and_the_partition_goes_on(world: Any) -> None:
    await world.broker()
    large = b"bad" * 300_000  # a letter of this in base64 is larger than brokers take
    end = await world.append(TP, b"first", large, b"bad one", b"good")
    path = world.directory / "beside.ndjson"
    handler = {**REFUSE, "dead_letter_topic": "dead", "dead_letter": str(path)}
    daemon = await world.daemon(handler=handler, commit={"interval": 0.1})

    async def committed() -> bool:
        return bool(await world.offset(TP) == end)

    await world.until(committed)
    assert await daemon.stop() == ExitCode.OK
    (event,) = [event for event in daemon.events() if event["event"] == "dead_letter_beside_topic"]
    assert event["place"] == str(path)
    assert [letter.message.payload for letter in await letters_in(world, "dead")] == [b"bad one"]
    listed = await consumerd("dead-letters", "list", str(path), "--json")
    assert listed.code == 0, listed.stderr
    (line,) = path.read_bytes().splitlines()
    assert decode_letter(line).message.payload == large


@pytest.mark.parametrize("group", [{"topics": {"t": 1, "dead": 1}}, {"whitelist": ".*"}])
async def test_a_group_that_would_consume_its_own_dead_letters_is_refused(world: Any, group: dict[str, Any]) -> None:
    done = await world.run(command="check", group=group, handler={**REFUSE, "dead_letter_topic": "dead"})
    assert done.code == ExitCode.CONFIG
    assert "the group consumes 'dead' itself" in done.sentences[-1]


async def test_letters_in_a_file_are_replayed_to_a_topic_once(world: Any) -> None:
    await world.broker()
    await world.append(TP, b"one", b"bad one", b"bad two", b"four")
    path = world.directory / "dead.ndjson"
    daemon = await world.daemon(handler={**REFUSE, "dead_letter": str(path)})
    await world.until(lambda: path.exists() and path.read_bytes().count(b"\n") == 2)
    daemon.terminate()
    assert await daemon.wait(60) == 0
    for count in (2, 0):
        done = await consumerd("dead-letters", "replay", str(path), "--to-topic", "again", "--zookeeper", world.chroot)
        assert (done.code, done.sentences) == (0, [f"{count} letters replayed to topic again."])
    consume = ("consume", "--zookeeper", world.chroot, "--group", "x", "--topic", "again", "--exit-at-end")
    assert (await consumerd(*consume)).stdout == "bad one\nbad two\n"
