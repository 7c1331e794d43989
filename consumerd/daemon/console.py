"""The console consumer: the daemon's member with standard output as its handler, and an end.

Strategy: everything is the daemon's (`consumerd.daemon.service`); only the handler and the condition to stop differ.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from random import SystemRandom
from typing import TYPE_CHECKING

from consumerd.clock import SystemClock
from consumerd.daemon.build import build_session, build_settings
from consumerd.daemon.service import run_member, start_session
from consumerd.errors import NotFoundError
from consumerd.handlers.builtin.console import ConsoleHandler, EnoughError
from consumerd.registry import topic_path
from consumerd.zk.errors import NoNode

if TYPE_CHECKING:
    from consumerd.daemon.config import Config
    from consumerd.zk import Session


async def consume(config: Config, *, max_messages: int | None, exit_at_end: bool, as_json: bool) -> None:
    """Print until `max_messages`, the end, or a signal. Raises NotFoundError for a topic that no broker has.

    The topic has to exist only where `exit_at_end` is asked for; otherwise it is waited for, as 0.7 members do.
    """
    clock, rng = SystemClock(), SystemRandom()
    settings = replace(build_settings(config, clock=clock, rng=rng), stop_at_end=exit_at_end)
    session = build_session(config.zookeeper, clock=clock, rng=rng)
    await start_session(session, config)
    try:
        if exit_at_end:
            for topic in config.group.topics:
                await _require_topic(session, topic)
        handler = ConsoleHandler(as_json=as_json, max_messages=max_messages)
        with suppress(EnoughError):
            await run_member(config, settings, handler, session, clock=clock, rng=rng)
    finally:
        await session.close()


async def _require_topic(session: Session, topic: str) -> None:
    try:
        brokers = await session.children(topic_path(topic))
    except NoNode:
        brokers = []
    if not brokers:
        raise NotFoundError(f"no broker has registered the topic {topic!r}; see `consumerd topics list`.")
