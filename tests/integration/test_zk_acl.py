"""ACLs of a member's nodes on a real ZooKeeper, with digest credentials: what others can and cannot do."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ExitCode
from consumerd.base.partition import TopicPartition
from consumerd.demo.processes import format_toml
from consumerd.net.zk.errors import NoAuth, NoNode
from consumerd.net.zk.session import Session
from tests.integration.conftest import consumerd

pytestmark = [pytest.mark.zookeeper]

TP = TopicPartition("t", 0, 0)
CREDENTIALS = "digest:group:hush-hush"
SECURED = {"auth": [CREDENTIALS], "acl": "creator"}
ID, OWNER, OFFSET = "/consumers/g/ids", "/consumers/g/owners/t/0-0", "/consumers/g/offsets/t/0-0"
OTHERS = "/consumers/g/owners/others"


def session(connect: str, credentials: str | None = None, **options: Any) -> Session:
    auth = [] if credentials is None else [("digest", credentials.partition(":")[2])]
    return Session(connect, clock=SystemClock(), rng=random.Random(1), session_timeout=10, auth=auth, **options)


async def committed(world: Any, offset: int) -> None:
    async def reached() -> bool:
        return bool(await world.offset(TP) == offset)

    await world.until(reached)


async def test_others_can_read_and_not_change_the_nodes_of_a_member(world: Any, cli: Callable[..., Any]) -> None:
    await world.broker()
    end = await world.append(TP, b"one")
    daemon = await world.daemon(zookeeper=SECURED)
    await world.until_printed(daemon, "one")
    await committed(world, end)
    (name,) = await world.zk.children(ID)
    stranger = world.zk  # as a JVM member of 0.7: without credentials
    assert (await stranger.get(f"{ID}/{name}"))[0] == b'{ "t": 1 }'
    assert (await stranger.get(OWNER))[0] == f"{name}-0".encode()
    forbidden = [
        stranger.set(f"{ID}/{name}", b'{ "other": 1 }'),
        stranger.delete(f"{ID}/{name}"),
        stranger.delete(OWNER),
        stranger.set(OFFSET, b"0"),
        stranger.delete(OFFSET),
        stranger.create(f"{ID}/g_jvm-1-abcdef01", b'{ "t": 1 }', ephemeral=True),
        stranger.create("/consumers/g/owners/t/0-1", b"g_jvm-1-abcdef01-0", ephemeral=True),
    ]
    for outcome in await asyncio.gather(*forbidden, return_exceptions=True):
        assert isinstance(outcome, NoAuth), outcome
    # Tools without credentials read; with them they write, too.
    described = await cli("group", "describe", "--zookeeper", world.chroot, "--group", "g")
    assert described.code == ExitCode.OK, described.stderr
    assert name in described.stdout
    assert await daemon.stop() == ExitCode.OK
    async with session(world.chroot, "digest:group:wrong") as wrong:
        with pytest.raises(NoAuth):
            await wrong.set(OFFSET, b"0")
    async with session(world.chroot, CREDENTIALS) as member:
        await member.set(OFFSET, b"%d" % end)


async def test_members_with_the_same_credentials_share_a_group(world: Any) -> None:
    await world.broker(partitions=2)
    await world.append(TP, b"one")
    daemons = [await world.daemon(f"daemon-{number}", zookeeper=SECURED) for number in range(2)]

    async def shared() -> bool:
        try:
            names = await world.zk.children("/consumers/g/owners/t")
            owners = {(await world.zk.get(f"/consumers/g/owners/t/{each}"))[0] for each in names}
        except NoNode:  # not claimed yet
            return False
        return len(names) == len(owners) == 2

    await world.until(shared)
    for daemon in daemons:
        assert await daemon.stop() == ExitCode.OK


async def test_open_parents_let_others_delete_the_nodes_of_a_member(world: Any) -> None:
    """ZooKeeper's rule, which docs/security.md states: who may delete a child is in the ACL of its parent."""
    await world.broker()
    end = await world.append(TP, b"one")
    await world.zk.ensure("/consumers/g/ids")  # as a group that began with open nodes has them
    await world.zk.ensure("/consumers/g/offsets/t")
    daemon = await world.daemon(zookeeper=SECURED)
    await world.until_printed(daemon, "one")
    await committed(world, end)
    with pytest.raises(NoAuth):
        await world.zk.set(OFFSET, b"0")
    await world.zk.delete(OFFSET)
    assert await daemon.stop() == ExitCode.OK


async def test_check_online_finds_nodes_that_may_not_be_written_and_leaves_none_behind(world: Any) -> None:
    await world.broker()
    await world.append(TP, b"one")
    async with session(world.chroot, CREDENTIALS, acl="creator") as member:
        await member.ensure("/consumers/g/ids")
    before = await nodes(world.zk)
    path = world.write(format_toml(world.config()))
    stranger = await consumerd("check", "-c", path, "--online")
    assert stranger.code == ExitCode.ZOOKEEPER, stranger.stderr
    assert "failed  permissions: ZooKeeper denies access to /consumers/g" in stranger.stdout
    path = world.write(format_toml(world.config(zookeeper=SECURED)))
    member_of_it = await consumerd("check", "-c", path, "--online")
    assert member_of_it.code == ExitCode.OK, member_of_it.stdout
    assert "ok      permissions: the group g: its nodes can be written" in member_of_it.stdout
    assert await nodes(world.zk) == before


async def nodes(zk: Session, path: str = "/") -> list[str]:
    """All paths."""
    found = [await nodes(zk, f"{path.rstrip('/')}/{name}") for name in await zk.children(path)]
    return [path, *(each for some in found for each in some)]


async def test_offsets_that_cannot_be_read_or_written_hold_back_their_partitions_alone(world: Any) -> None:
    """They are garbage, of an owner whose nodes others may not read, or of one whose nodes they may not write."""
    await world.broker(partitions=4)
    places = [TopicPartition("t", 0, number) for number in range(4)]
    ends = [await world.append(each, b"%d" % each.partition) for each in places]
    paths = [f"/consumers/g/offsets/t/{each.name}" for each in places]
    await world.zk.ensure("/consumers/g/offsets/t")
    await world.zk.create(paths[1], b"\xff")
    async with session(world.chroot, CREDENTIALS, acl="creator-all") as owner:
        await owner.create(paths[2], b"0")
    async with session(world.chroot, CREDENTIALS, acl="creator") as owner:
        await owner.create(paths[3], b"0")
    daemon = await world.daemon(commit={"interval": 0.05})
    await world.until_printed(daemon, "0", "3")
    refused = await daemon.wait_for_event("commit_refused", 60)
    assert paths[3] in refused["reason"]
    async with session(world.chroot, CREDENTIALS) as owner:
        await owner.set(paths[1], b"0")
        await owner.delete(paths[2])
        await owner.delete(paths[3])
    await world.until_printed(daemon, "0", "1", "2", "3")
    for place, end in zip(places, ends, strict=True):
        await world.until(lambda place=place, end=end: committed_is(world, place, end))
    named = [event["reason"] for event in daemon.events() if event["event"] == "position_lookup_failed"]
    assert len(named) == 2
    assert paths[1] in "".join(named)
    assert paths[2] in "".join(named)
    assert await daemon.stop() == ExitCode.OK


@pytest.mark.parametrize(("acl", "path"), [("creator", OTHERS), ("creator-all", f"{OTHERS}/0-0")])
async def test_owner_nodes_of_a_topic_that_are_protected_do_not_affect_others(world: Any, acl: str, path: str) -> None:
    """They may not be created, or not be read."""
    await world.broker()
    others = TopicPartition("others", 0, 0)
    await world.append(TP, b"one")
    await world.append(others, b"two")
    await world.zk.ensure(path.rpartition("/")[0])
    async with session(world.chroot, CREDENTIALS, acl=acl) as owner:
        await owner.create(path, None)
    daemon = await world.daemon(
        group={"topics": {"t": 1, "others": 1}}, rebalance={"reconcile_interval": 1.0, "retry_interval": 0.5}
    )
    await world.until_printed(daemon, "one")
    blocked = await daemon.wait_for_event("claim_blocked", 60)
    assert (blocked["partition"], blocked["owner"]) == (str(others), None)
    assert f"denies access to {OTHERS}" in blocked["reason"]
    async with session(world.chroot, CREDENTIALS) as owner:
        await owner.delete(path)
    await world.until_printed(daemon, "one", "two")
    assert [event for event in daemon.events() if event["event"] == "group_action_failed"] == []
    assert await daemon.stop() == ExitCode.OK


async def committed_is(world: Any, partition: TopicPartition, offset: int) -> bool:
    return bool(await world.offset(partition) == offset)
