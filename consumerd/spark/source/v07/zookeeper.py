"""One ZooKeeper session for the length of one query, from code without an event loop.

Strategy: planners are plain functions in a worker process of Spark's, so a loop is created for each query and ends with
it. A session creates its chroot if it is missing; so a chroot in the connect string is looked up first, and its absence
is an error. Events of so short a session are of no interest: only warnings are logged, unless the process has
configured logging itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import structlog

from consumerd.base.clock import SystemClock
from consumerd.base.errors import NotFoundError
from consumerd.net.zk.connect_string import parse_connect_string
from consumerd.net.zk.session import Session

_T = TypeVar("_T")


def ask_zookeeper(connect: str, timeout: float, work: Callable[[Session], Awaitable[_T]]) -> _T:
    """The result of `work` on a session; `timeout` in seconds. Not from within a running event loop.

    Raises ConfigError for an address that cannot be one, NotConnected when ZooKeeper cannot be reached in that time,
    NotFoundError for a chroot that does not exist, and what `work` raises.
    """
    with _warnings_only():
        return asyncio.run(_ask(connect, timeout, work))


@contextlib.contextmanager
def _warnings_only() -> Iterator[None]:
    if structlog.is_configured():
        yield
        return
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )
    try:
        yield
    finally:
        structlog.reset_defaults()


async def _ask(connect: str, timeout: float, work: Callable[[Session], Awaitable[_T]]) -> _T:
    hosts, chroot = parse_connect_string(connect)
    servers = ",".join(map(str, hosts))

    async def look(session: Session) -> bool:
        return await session.exists(chroot) is not None

    if chroot and not await _on(servers, timeout, look):
        raise NotFoundError(f"node {chroot} does not exist in ZooKeeper at {servers}; check the chroot")
    return await _on(servers + chroot, timeout, work)


async def _on(connect: str, timeout: float, work: Callable[[Session], Awaitable[_T]]) -> _T:
    session = Session(connect, clock=SystemClock(), rng=random.Random(), wait_connected=timeout)
    await session.start(timeout)
    try:
        return await work(session)
    finally:
        await session.close()
