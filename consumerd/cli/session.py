"""A ZooKeeper session for the length of one command, and the options that say where ZooKeeper is.

Strategy: commands that only look must not leave traces. A session creates its chroot where it is missing, so a chroot
that was named is looked for first, through a session without one, and its absence is an error.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from consumerd.zk import Session

_T = TypeVar("_T")

#: What a decorator of click takes and gives back.
Decorated = TypeVar("Decorated", bound="Callable[..., Any]")


def zookeeper_options(*, required: bool = True) -> Callable[[Decorated], Decorated]:
    """`--zookeeper` (parameter `zookeeper`) and `--timeout` (parameter `timeout`, seconds)."""

    def decorate(function: Decorated) -> Decorated:
        function = click.option(
            "--timeout",
            type=click.FloatRange(0, min_open=True),
            default=10.0,
            show_default=True,
            metavar="SECONDS",
            help="How long to wait for ZooKeeper.",
        )(function)
        return click.option(
            "--zookeeper", required=required, metavar="HOST:PORT/CHROOT", help="Where brokers and groups register."
        )(function)

    return decorate


def with_session(zookeeper: str, timeout: float, work: Callable[[Session], Awaitable[_T]]) -> _T:
    """Run `work` on a session of ZooKeeper at `zookeeper` and return its result.

    Raises ConfigError for an address that cannot be one, NotConnected when ZooKeeper cannot be reached within `timeout`
    seconds, NotFoundError for a chroot that does not exist, and what `work` raises.
    """
    from consumerd.daemon.logs import configure_logs  # noqa: PLC0415 - heavy imports only for the command that runs

    configure_logs("warning", "auto")
    return asyncio.run(_with_session(zookeeper, timeout, work))


async def _with_session(zookeeper: str, timeout: float, work: Callable[[Session], Awaitable[_T]]) -> _T:
    from consumerd.errors import NotFoundError  # noqa: PLC0415
    from consumerd.zk import parse_connect_string  # noqa: PLC0415

    hosts, chroot = parse_connect_string(zookeeper)
    servers = ",".join(map(str, hosts))

    async def look(session: Session) -> bool:
        return await session.exists(chroot) is not None

    if chroot and not await _on(servers, timeout, look):
        raise NotFoundError(f"there is no node {chroot} in ZooKeeper at {servers}; check the chroot of the address")
    return await _on(servers + chroot, timeout, work)


async def _on(connect: str, timeout: float, work: Callable[[Session], Awaitable[_T]]) -> _T:
    import random  # noqa: PLC0415

    from consumerd.clock import SystemClock  # noqa: PLC0415
    from consumerd.zk import Session  # noqa: PLC0415

    session = Session(connect, clock=SystemClock(), rng=random.Random(), wait_connected=timeout)
    await session.start(timeout)
    try:
        return await work(session)
    finally:
        await session.close()
