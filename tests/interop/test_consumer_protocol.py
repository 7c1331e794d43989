"""Groups of the consumer protocol (KIP-848) on real brokers: our members, Java's, librdkafka's, and classic ones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from consumerd.base.errors import ExitCode
from consumerd.base.java import JavaRuntime
from consumerd.wire.v08.apis import CONSUMER_GROUP_DESCRIBE
from consumerd.wire.v08.message_types import ConsumerGroupDescribeRequest
from tests.interop.group_harness import GROUP, PARTITIONS, Group
from tests.support.awakenings import PausableDaemon
from tests.support.kafka import RELEASES

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]
#: The shortest that the brokers allow once their limits are lowered.
SHORT = {
    "group.consumer.min.session.timeout.ms": 6000,
    "group.consumer.session.timeout.ms": 6000,
    "group.consumer.min.heartbeat.interval.ms": 500,
    "group.consumer.heartbeat.interval.ms": 500,
    "group.consumer.migration.policy": "bidirectional",
}
RELEASED = [version for version, release in RELEASES.items() if release.number >= (4, 1)]


@pytest_asyncio.fixture
async def group(
    request: pytest.FixtureRequest, kafka: Any, cluster_client: Any, java: JavaRuntime, tmp_path: Path
) -> AsyncIterator[Group]:
    broker = await kafka(request.param, partitions=PARTITIONS, config=SHORT)
    async with cluster_client(broker) as client:
        made = Group({broker.broker_id: broker}, client, tmp_path, java)
        await made.create()
        try:
            yield made
        finally:
            await made.close()


async def member(group: Group, **keys: Any) -> PausableDaemon:
    return await group.daemon(protocol="consumer", **keys)


async def described(group: Group) -> dict[str, Any]:
    body: ConsumerGroupDescribeRequest = {"group_ids": [GROUP]}
    answer = await group.client.call_coordinator(GROUP, CONSUMER_GROUP_DESCRIBE, body)
    return dict(answer["groups"][0])


@pytest.mark.long
@pytest.mark.parametrize("group", RELEASED, indirect=True)
async def test_loses_nothing_beside_java_and_librdkafka_when_a_member_is_killed(group: Group) -> None:
    group.begin_producing()
    first, second = await member(group), await member(group)
    await group.until(lambda: group.fair(first, second))
    java = await group.stranger("java", "consumer")
    confluent = await group.stranger("confluent", "consumer")
    await group.until(lambda: sum(len(group.share(each)) for each in (first, second)) <= PARTITIONS - 2)
    second.kill()
    before = sum(group.handed().values())
    await group.until(lambda: sum(group.handed().values()) > before + 500)
    third = await member(group)
    await group.until(lambda: bool(group.share(third)))
    await group.leave(confluent)
    await group.leave(java)
    await group.until(lambda: group.fair(first, third))
    await group.end_producing()
    await group.account(late=True)
    assert await first.stop() == ExitCode.OK
    assert await third.stop() == ExitCode.OK
    assert (await described(group))["members"] == []  # both left


@pytest.mark.long
@pytest.mark.parametrize("group", RELEASED, indirect=True)
async def test_live_group_moves_to_the_consumer_protocol_and_back(group: Group) -> None:
    """One member after the other is replaced; each kind is served beside the other meanwhile."""
    group.begin_producing()
    old = [await group.daemon() for _ in range(2)]
    await group.until(lambda: group.fair(*old))
    new = [await member(group)]
    await group.until(lambda: group.fair(*old, *new))
    assert sorted(each["member_type"] for each in (await described(group))["members"]) == [0, 0, 1]
    assert await old[0].stop() == ExitCode.OK
    new.append(await member(group))
    assert await old[1].stop() == ExitCode.OK
    await group.until(lambda: group.fair(*new))
    classic = await group.daemon()
    await group.until(lambda: group.fair(classic, *new))
    for each in new:
        assert await each.stop() == ExitCode.OK
    await group.until(lambda: group.fair(classic))
    await group.end_producing()
    await group.account()
    assert await classic.stop() == ExitCode.OK


@pytest.mark.long
@pytest.mark.parametrize("group", RELEASED[-1:], indirect=True)
async def test_broker_matches_the_pattern_and_a_static_member_keeps_its_partitions(group: Group) -> None:
    keys = {"topics": None, "whitelist": "even.*", "broker_filter": True, "remote_assignor": "range"}
    first = await member(group, **keys)
    second = await member(group, **keys, instance_id="second")
    await group.until(lambda: group.fair(first, second))
    share = group.share(second)
    assert await second.stop() == ExitCode.OK
    assert len((await described(group))["members"]) == 2  # it left for a while
    third = await member(group, **keys, instance_id="second")
    await group.until(lambda: group.fair(first, third))
    assert group.share(third) == share
    third.kill()  # it did not leave: the new process waits until the broker has removed it
    fourth = await member(group, **keys, instance_id="second")
    assert [event["event"] for event in fourth.events()].count("group_warning") == 1
    await group.until(lambda: group.fair(first, fourth))
