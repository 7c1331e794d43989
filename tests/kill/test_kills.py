"""Whole processes die, freeze and come back: nothing is lost, or delivered by two; all is owned again soon.

Kills and stops of members, brokers and servers of ZooKeeper at random moments are in `test_torture`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from consumerd.demo.audit import AuditResult

pytestmark = [pytest.mark.kill, pytest.mark.zookeeper]

SESSION_TIMEOUT = 2.0
#: Of members that leave in order: a session that ran out on a slow machine would repeat what was not committed.
LONG_SESSION = {"session_timeout": 30.0}


def assert_sound(result: AuditResult) -> None:
    assert result.sound, result
    assert result.produced == result.distinct > 500


async def test_graceful_stop_repeats_nothing(cluster: Any) -> None:
    async with cluster.producing():
        first = await cluster.member(zookeeper=LONG_SESSION)
        await cluster.member(zookeeper=LONG_SESSION)
        await cluster.wait_all_owned(2)
        await cluster.goes_on()
        assert await first.stop() == 0
        await cluster.wait_all_owned(1)
    result = await cluster.wait_handled()
    assert_sound(result)
    assert result.duplicated == 0


async def test_rejoins_after_zookeeper_was_down_beyond_the_session_timeout(cluster: Any) -> None:
    async with cluster.producing():
        await cluster.member()
        await cluster.member()
        await cluster.wait_all_owned(2)
        cluster.zookeeper.kill()
        await asyncio.sleep(2 * SESSION_TIMEOUT)
        await cluster.zookeeper.start()
        await cluster.wait_all_owned(2)
        await cluster.goes_on()
    assert_sound(await cluster.wait_handled())


async def test_member_frozen_for_twice_its_session_delivers_nothing(cluster: Any) -> None:
    async with cluster.producing():
        # Slow enough to have messages waiting in the lanes all the time: those must not come out after the thaw.
        first = await cluster.member(pause=0.4)
        await cluster.member(pause=0.4)
        await cluster.wait_all_owned(2)
        await cluster.goes_on()
        first.pause()
        await asyncio.sleep(2 * SESSION_TIMEOUT)
        await cluster.wait_all_owned(1)
        first.resume()
        await cluster.wait_all_owned(2)
        await cluster.goes_on()
    assert_sound(await cluster.wait_handled())
