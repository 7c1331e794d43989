"""Detects mirrors that would copy their own output in a loop.

Strategy: a mirror writes to the topics that it reads, so source and target must not be one cluster. Brokers tell: each
announces itself with a name of its own making (`host-milliseconds`), so a broker that is registered on both sides is
one broker, whichever addresses it has. A pair of mirrors in opposite directions is a circle too, but each of them
may be meant for other messages: that is only warned about. It is seen by the names of members, since ours say that they
are mirrors (`mirror_host`).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from typing import ClassVar

from consumerd.base.calls import read_all
from consumerd.base.errors import ConsumerdError, ExitCode
from consumerd.base.ports import ZooKeeper
from consumerd.net.cluster.reading import children, data
from consumerd.net.cluster.view import ClusterView
from consumerd.net.zk.connect_string import parse_connect_string
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.paths import id_path, ids_path
from consumerd.wire.registry.subscription import Subscription, is_subscribed, parse_subscription

#: The prefix of the host's name in the id of a member that mirrors.
_MARK = "mirror-"


class CircleError(ConsumerdError):
    """Source and target are the same cluster, so the mirror would copy its own output in a loop."""

    exit_code: ClassVar[ExitCode] = ExitCode.REFUSED


def mirror_host(host: str) -> str:
    """The host's name for a consumer id, which shows others that this member is a mirror."""
    return _MARK + host


def refuse_same_place(source: str, target: str) -> None:
    """Raise CircleError for two connect strings with a server in common and the same chroot; ConfigError."""
    ours, theirs = parse_connect_string(source), parse_connect_string(target)
    if ours.chroot == theirs.chroot and set(ours.hosts) & set(theirs.hosts):
        raise CircleError(
            f"source and target are the same cluster (ZooKeeper at {source}): the mirror would copy its own "
            "output in a loop; choose another target."
        )


async def refuse_same_cluster(
    source: ZooKeeper, target: ZooKeeper | None, addresses: Iterable[tuple[str, int]] = ()
) -> None:
    """Raise CircleError when a broker of `source` is one of `target`, or listens on one of `addresses`."""
    brokers = (await ClusterView(source).read_brokers()).values()
    if target is not None:
        others = (await ClusterView(target).read_brokers()).values()
        same = [broker for broker in brokers if broker in others]
        if same:
            raise CircleError(
                f"source and target are the same cluster: broker {same[0].id} ({same[0].host}:{same[0].port}) is "
                "registered in both; the mirror would copy its own output in a loop; choose another target."
            )
    wanted = set().union(*[await resolve_address(*address) for address in addresses])
    for broker in brokers if wanted else ():
        if wanted & await resolve_address(*broker.address):
            raise CircleError(
                f"source and target are the same cluster: broker {broker.id} of the source listens on "
                f"{broker.host}:{broker.port}, the target's address; the mirror would copy its own output in a loop; "
                "choose another target."
            )


async def resolve_address(host: str, port: int) -> set[tuple[str, int]]:
    """The address as given, and the IP addresses that its host resolves to, if it does."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        found = []
    return {(host, port), *((str(entry[4][0]), port) for entry in found)}


async def find_reverse_mirrors(
    source: ZooKeeper, target: ZooKeeper, subscription: Subscription
) -> dict[str, list[str]]:
    """Members of groups on the target that mirror from there, and those of our topics that they read."""
    ours = [topic for topic in await ClusterView(source).read_topics() if is_subscribed(subscription, topic)]
    groups = await ClusterView(target).read_groups()
    members = await read_all(groups, lambda group: children(target, ids_path(group)))
    mirrors = [(group, name) for group in groups for name in members[group] if name.startswith(f"{group}_{_MARK}")]
    texts = await read_all(mirrors, lambda mirror: data(target, id_path(*mirror)))
    found = {}
    for (_, name), text in texts.items():
        try:
            theirs = parse_subscription(text or b"")
        except RegistryError:  # gone, or none that we would understand
            continue
        if topics := [topic for topic in ours if is_subscribed(theirs, topic)]:
            found[name] = topics
    return found
