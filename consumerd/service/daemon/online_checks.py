"""What `consumerd check --online` looks at: servers, topics, permissions, the group, limits and the handler's receiver.

Strategy: each look is what the daemon does first, with the daemon's own settings, and ends before anything is changed:
no member is registered, no node or table made, no request sent to a receiver. Each has its time, and one that fails
does not hide those that do not depend on it. The error of a look is the one that `consumerd run` would end with, so its
exit code is the same.
"""

from __future__ import annotations

import asyncio
import inspect
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from random import SystemRandom
from typing import Final, NamedTuple

from consumerd.base.clock import SystemClock
from consumerd.base.errors import (
    BrokerError,
    ConfigError,
    ConsumerdError,
    HandlerFailedError,
    NotFoundError,
    ZooKeeperError,
    reason_of,
)
from consumerd.base.settings.group import GroupSection
from consumerd.handlers.loading import plain_handler
from consumerd.member.consumer.group_requests import NOT_OFFERED
from consumerd.net.client.cluster import ClusterClient, topic_partitions
from consumerd.net.client.topic_configs import message_limits
from consumerd.net.cluster.dialects import look_for_dialect
from consumerd.net.cluster.entry import start_session
from consumerd.net.cluster.view import ClusterView
from consumerd.net.connect import connect
from consumerd.net.zk.session import Session
from consumerd.service.config.build import (
    build_connection_settings,
    build_offset_settings,
    build_session,
    build_subscription,
)
from consumerd.service.config.build_handlers import build_plugin
from consumerd.service.config.build_v08 import build_client, fixed_partitions, names_brokers
from consumerd.service.config.model import Config
from consumerd.service.daemon.loop import ENOUGH_FILES, too_few_files
from consumerd.service.daemon.memory import memory_limit
from consumerd.service.daemon.permission_checks import require_group, require_nodes, require_read
from consumerd.wire.registry.dialect import Dialect
from consumerd.wire.registry.subscription import StaticSubscription
from consumerd.wire.v08.apis import CONSUMER_GROUP_HEARTBEAT

#: Bytes that a daemon needs besides its budget, and those of a worker process.
_PROCESS: Final = 128 << 20
_WORKER: Final = 64 << 20


class Finding(NamedTuple):
    """The result of one look: what was looked at, and what is there, or the error."""

    subject: str
    said: str
    error: ConsumerdError | None = None


async def look_online(config: Config, limit: float) -> AsyncIterator[Finding]:
    """Look at all that a daemon with this configuration needs; each look may take `limit` seconds."""
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        session: Session | None = None
        if config.needs_session:
            session = build_session(config.zookeeper, clock=clock, rng=SystemRandom(), wait_connected=limit)
            stack.push_async_callback(session.close)
            found = await _look("zookeeper", partial(_zookeeper, config, session, limit), limit + 1)
            yield found
            if found.error is not None:
                session = None
        configs = config.by_subscription()
        groups = {name: own for name, own in configs.items() if own.group.coordination == "zookeeper"}
        others = {name: own for name, own in configs.items() if name not in groups}
        clusters: list[tuple[_Cluster, dict[str, Config]]] = []
        if others:
            clusters.append((_V08Cluster(build_client(config, clock=clock, rng=SystemRandom())), others))
        if groups and session is not None:
            clusters.append((await _registered(next(iter(groups.values())), session), groups))
        for cluster, theirs in clusters:
            stack.push_async_callback(cluster.close)
            async for found in _look_at_cluster(cluster, config, theirs, session, limit):
                yield found
    yield await _look("memory", partial(_memory, config), limit)
    yield await _look("limits", _limits, limit)
    for name, own in config.by_subscription().items():
        yield await _look(_named("handler", name, config), partial(_handler, own), limit)


async def _look_at_cluster(
    cluster: _Cluster, config: Config, subscriptions: Mapping[str, Config], session: Session | None, limit: float
) -> AsyncIterator[Finding]:
    """Look at the brokers, and if they can be reached at what is there of these subscriptions."""
    found = await _look("brokers", cluster.brokers, limit)
    yield found
    if found.error is not None:
        return
    seen = {}
    for name, own in subscriptions.items():
        topics = await _look(_named("topics", name, config), partial(_topics, cluster, own), limit)
        yield topics
        if topics.error is None:
            seen[name] = own
        if (topic := own.handler.failure_topic) is not None:
            yield await _look(_named("dead letters", name, config), partial(cluster.letters, own, topic), limit)
    for name, own in subscriptions.items():
        if own.group.coordination != "zookeeper":
            yield await _look(_named("group", name, config), partial(cluster.group, own.group), limit)
    for name, own in seen.items():
        permissions = partial(_permissions, cluster, own, session)
        yield await _look(_named("permissions", name, config), permissions, limit)


def _named(subject: str, subscription: str, config: Config) -> str:
    return f"{subject} of {subscription}" if len(config.by_subscription()) > 1 else subject


async def _look(subject: str, look: Callable[[], Awaitable[str]], limit: float) -> Finding:
    try:
        async with asyncio.timeout(limit):
            return Finding(subject, await look())
    except TimeoutError as late:
        kinds: dict[str, type[ConsumerdError]] = {"zookeeper": ZooKeeperError, "handler": HandlerFailedError}
        kind = kinds.get(subject.partition(" ")[0], BrokerError)
        return Finding(subject, "", kind(f"{reason_of(late)} ({limit:g} s)"))
    except ConsumerdError as error:
        return Finding(subject, "", error)
    except Exception as error:  # of a handler: `run` ends with this code when its start fails
        return Finding(subject, "", HandlerFailedError(reason_of(error)))


async def _zookeeper(config: Config, session: Session, limit: float) -> str:
    section = config.zookeeper
    details = [section.connect]
    try:
        await start_session(session, limit, SystemClock(), allow_empty=False)
    except NotFoundError as error:
        if not section.allow_empty:
            raise
        details.append(f"a new cluster, as zookeeper.allow_empty permits: {error}")
    details.append(f"session timeout {session.session_timeout:g} s")
    details += ["TLS"] * (section.tls is not None)
    return ", ".join(details)


class _Cluster:
    """The looks at the brokers of a cluster, of 0.7."""

    def __init__(self, config: Config, session: Session) -> None:
        self._view = ClusterView(session)
        self._connect = partial(connect, settings=build_connection_settings(config))

    async def close(self) -> None:
        """Close the connections."""

    async def brokers(self) -> str:
        """Connect to each broker."""
        found = await self._view.read_brokers()
        if not found:
            raise BrokerError("no broker is registered in ZooKeeper; check that the brokers run")
        return await _reached({number: partial(self._reach, each.host, each.port) for number, each in found.items()})

    async def _reach(self, host: str, port: int) -> None:
        await (await self._connect(host, port)).close()

    async def require(self, topics: Collection[str]) -> str:
        """Require that the topics exist."""
        found = await self._view.read_topics(topics)
        if missing := [topic for topic in topics if not found.get(topic)]:
            raise NotFoundError(f"no broker has registered {', '.join(missing)}; see `consumerd topics list`")
        return _partitions({topic: sum(brokers.values()) for topic, brokers in found.items()})

    async def letters(self, config: Config, topic: str) -> str:
        """Require that the topic for dead letters exists, and compare its limit with those of its sources."""
        return await self.require([topic])

    async def larger_than(self, size: int, topics: Sequence[str]) -> str | None:
        """Return a sentence where a topic takes larger messages than `size` bytes. Brokers of 0.7 do not tell."""
        return None

    async def names(self) -> list[str]:
        """All topics."""
        return sorted(await self._view.read_topics())

    async def group(self, section: GroupSection) -> str:
        """Ask for the group, and require its protocol."""
        return section.id

    async def permissions(self, topics: Sequence[str], group: str | None) -> list[str]:
        """Require what brokers must permit, on the topics and, if it has a name, on the group. Return phrases."""
        return []


class _V08Cluster(_Cluster):
    """The same, of 0.8 and later."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    async def close(self) -> None:
        await self._client.close()

    async def brokers(self) -> str:
        metadata = await self._client.refresh()

        async def reach(node_id: int) -> None:
            await self._client.node_channel(node_id)

        return await _reached({node: partial(reach, node) for node in metadata.nodes})

    async def require(self, topics: Collection[str]) -> str:
        found = await topic_partitions(self._client, list(topics))
        return _partitions({topic: len(numbers) for topic, numbers in found.items()})

    async def letters(self, config: Config, topic: str) -> str:
        from consumerd.service.config.build_dead_letters import compare_limits  # noqa: PLC0415

        found = await self.require([topic])
        try:
            small = await compare_limits(self._client, config, topic)
        except BrokerError as error:  # brokers before 0.11 do not tell, and others only with a permission
            small = f"its limit is unknown: {reason_of(error)}"
        return f"{found}; {small}" if small else found

    async def larger_than(self, size: int, topics: Sequence[str]) -> str | None:
        try:
            limits = await message_limits(self._client, topics)
        except BrokerError:  # brokers before 0.11 do not tell, and others only with a permission
            return None
        largest, topic = max(((limit, topic) for topic, limit in limits.items()), default=(0, ""))
        if largest <= size:
            return None
        return (
            f"max.message.bytes of {topic} is {largest}, and fetch.max_size {size}: larger messages are handled, too, "
            "and each takes its size of memory"
        )

    async def names(self) -> list[str]:
        metadata = await self._client.refresh(None)
        return sorted(name for name, topic in metadata.topics.items() if not topic.internal)

    async def group(self, section: GroupSection) -> str:
        name = section.id
        if section.protocol == "consumer":
            channel = await self._client.coordinator_channel(name)
            if not channel.versions.has(CONSUMER_GROUP_HEARTBEAT):
                raise BrokerError(f"broker {channel.address} does not have ConsumerGroupHeartbeat; {NOT_OFFERED}")
        from consumerd.operate.admin.v08.broker_groups import BrokerGroups  # noqa: PLC0415

        try:
            snapshot = await BrokerGroups(self._client).snapshot(name)
        except NotFoundError:
            return f"{name}: new"
        return f"{name}: state {snapshot.state or 'unknown'}"

    async def permissions(self, topics: Sequence[str], group: str | None) -> list[str]:
        await require_read(self._client, topics)
        said = [f"Read on {_count(len(topics), 'topic')}"]
        if group is not None:
            await require_group(self._client, group)
            said.append(f"Read on the group {group}")
        return said


async def _registered(config: Config, session: Session) -> _Cluster:
    """The looks at the brokers that are registered in ZooKeeper."""
    names = {"0.7": Dialect.V07, "0.8": Dialect.V08}
    dialect = names.get(config.group.dialect) or await look_for_dialect(session, [config.group.id])
    if dialect is not Dialect.V08:
        return _Cluster(config, session)
    client = build_client(config, clock=SystemClock(), rng=SystemRandom())
    if not names_brokers(config):
        from consumerd.service.config.build_dead_letters import registered_brokers  # noqa: PLC0415

        client.begin_with(await registered_brokers(config, session))
    return _V08Cluster(client)


async def _reached(brokers: dict[int, Callable[[], Awaitable[None]]]) -> str:
    """Connect to all brokers at once. Raises the error of the first that cannot be reached, and counts the others."""

    async def attempt(reach: Callable[[], Awaitable[None]]) -> BrokerError | None:
        try:
            await reach()
        except BrokerError as error:
            return error
        return None

    errors = [error for error in await asyncio.gather(*map(attempt, brokers.values())) if error is not None]
    if errors:
        raise BrokerError(f"{len(brokers) - len(errors)} of {len(brokers)} can be reached: {errors[0]}") from errors[0]
    return f"{len(brokers)} of {len(brokers)} can be reached (ids {', '.join(map(str, sorted(brokers)))})"


def _partitions(numbers: dict[str, int]) -> str:
    return "partitions: " + ", ".join(f"{topic} {number}" for topic, number in sorted(numbers.items()))


async def _names(cluster: _Cluster, config: Config) -> tuple[list[str], str | None]:
    """The subscribed topics; the filter that matched them, if it is one."""
    if config.group.coordination == "fixed":
        return sorted({each.topic for each in fixed_partitions(config.group)}), None
    subscription = build_subscription(config.group)
    if isinstance(subscription, StaticSubscription):
        return sorted(subscription.streams), None
    return [name for name in await cluster.names() if subscription.streams_for(name)], subscription.format()


async def _topics(cluster: _Cluster, config: Config) -> str:
    topics, matching = await _names(cluster, config)
    if matching is None:
        said = await cluster.require(topics)
    elif topics:
        said = f"{matching} matches {len(topics)}, such as {topics[0]}"
    else:
        raise NotFoundError(f"no topic matches {matching}; see `consumerd topics list`")
    large = await cluster.larger_than(config.fetch.max_size, topics)
    return f"{said}; {large}" if large else said


async def _permissions(cluster: _Cluster, config: Config, session: Session | None) -> str:
    """Require what a member of the subscription's group needs of brokers and of ZooKeeper."""
    topics, _ = await _names(cluster, config)
    by_zookeeper = config.group.coordination == "zookeeper"
    offsets = build_offset_settings(config)
    at_brokers = offsets.in_kafka or config.group.coordination == "kafka"
    said = await cluster.permissions(topics, config.group.id if at_brokers else None)
    if session is not None:
        nodes = await require_nodes(session, config.group.id, topics, member=by_zookeeper, offsets=offsets.in_zookeeper)
        said.append(f"the group {config.group.id}: {nodes}")
    return ", ".join(said)


async def _memory(config: Config) -> str:
    """Compare what the process may need with what it may have."""
    parts = [f"fetch.budget {config.fetch.budget >> 20} MiB", f"{_PROCESS >> 20} MiB for the process"]
    needed = config.fetch.budget + _PROCESS
    if workers := sum(own.handler.processes or 0 for own in config.by_subscription().values()):
        parts.append(f"{workers * _WORKER >> 20} MiB for {_count(workers, 'worker process', 'es')}")
        needed += workers * _WORKER
    found = await asyncio.to_thread(memory_limit)
    if found is None:
        return f"{', '.join(parts)}; this system's limit is unknown"
    limit, where = found
    if needed > limit:
        raise ConfigError(
            f"{' and '.join(parts)} are more than {where}, {limit >> 20} MiB: raise it, or lower fetch.budget"
        )
    return f"{', '.join(parts)}, of {limit >> 20} MiB ({where}); what the handler keeps comes on top"


def _count(number: int, what: str, plural: str = "s") -> str:
    return f"{number} {what}{plural if number != 1 else ''}"


async def _limits() -> str:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < ENOUGH_FILES:
        raise too_few_files(soft)
    files = "any number of" if soft == resource.RLIM_INFINITY else soft
    return f"{files} open files"


async def _handler(config: Config) -> str:
    section = config.handler
    look = getattr(plain_handler(build_plugin(section)), "check_online", None)
    if not inspect.iscoroutinefunction(look):
        return f"{section.name}: it loads; nothing else is checked"
    return f"{section.name}: {await look()}"
