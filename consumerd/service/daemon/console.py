"""The console consumer: the daemon's member with standard output as its handler, and an end.

Strategy: everything is the daemon's (`consumerd.service.daemon.service`); only the handler and the condition to stop
differ. Without a group it consumes all partitions that exist at the start, as fixed ones, and commits nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from random import SystemRandom

from consumerd.base.clock import SystemClock
from consumerd.base.errors import BrokerError, ConfigError, NotFoundError
from consumerd.base.partition import TopicPartition
from consumerd.handlers.builtin.console import ConsoleHandler, EnoughError, UndecodableError
from consumerd.handlers.decoding.api import Decoder
from consumerd.member.consumer.group_requests import INTERNAL
from consumerd.net.client.cluster import ClusterClient, topic_partitions
from consumerd.net.client.settings import ClientSettings
from consumerd.net.cluster.entry import require_topics
from consumerd.operate.admin.changes import OffsetTarget
from consumerd.service.config.build import build_connection_settings, build_settings, build_subscription, open_session
from consumerd.service.config.build_v08 import build_client_of
from consumerd.service.config.model import Config
from consumerd.service.config.subscriptions import MAIN
from consumerd.service.daemon.service import Joining, run_members
from consumerd.wire.registry.subscription import StaticSubscription
from consumerd.wire.v08.errors import UnsupportedApiError


async def consume(
    config: Config, handler: ConsoleHandler, *, exit_at_end: bool, decoder: Decoder | None = None
) -> None:
    """Print messages as a member of a group, or of fixed partitions, until the handler stops, the end, or a signal.

    `decoder`: makes the values that are printed. UndecodableError at the end tells that it could not make some of them.

    Raises NotFoundError for a topic that no broker has, with `exit_at_end` only; otherwise the member waits for the
    topic, as 0.7 members do. ConfigError for brokers that do not coordinate groups; else as
    `consumerd.service.daemon.service.run_members`.
    """
    clock, rng = SystemClock(), SystemRandom()
    settings = replace(build_settings(config, clock=clock, rng=rng), stop_at_end=exit_at_end)
    topics = sorted(config.group.topics) if exit_at_end else []
    joining = Joining(MAIN, settings, handler if decoder is None else handler.behind(decoder))
    async with AsyncExitStack() as stack:
        session = None
        if config.group.coordination == "zookeeper":
            session = await open_session(stack, config.zookeeper, clock, rng, where="--zookeeper")
            await require_topics(session, topics)
        elif topics:
            async with _client(config) as client:
                await topic_partitions(client, topics)
        try:
            with suppress(EnoughError):
                await run_members(config, [joining], session, clock=clock, rng=rng)
        except UnsupportedApiError as error:
            if session is not None:
                raise
            raise ConfigError(
                "brokers before 0.9 do not coordinate groups: omit --group, or give --zookeeper, where groups of these "
                f"brokers coordinate ({error})."
            ) from error
    if handler.undecodable:
        raise UndecodableError(
            f"{handler.undecodable} of the printed messages could not be decoded: their lines have `error` in place of "
            "`value`."
        )


async def without_group(config: Config, numbers: Collection[int]) -> Config:
    """The configuration with all partitions of its subscription, fixed, and without committed offsets.

    `numbers`: only these partitions. Raises NotFoundError for missing topics and partitions, BrokerError, ConfigError.
    """
    subscription = build_subscription(config.group)
    async with _client(config) as client:
        if isinstance(subscription, StaticSubscription):
            there = await topic_partitions(client, sorted(config.group.topics))
        else:
            metadata = await client.retrying("find the topics", lambda: client.refresh(None))
            there = {
                name: sorted(topic.partitions)
                for name, topic in metadata.topics.items()
                if topic.partitions
                and not topic.internal
                and name not in INTERNAL
                and subscription.streams_for(name) > 0
            }
    if not there:
        raise NotFoundError("the brokers have no topic that matches; see `consumerd topics list`.")
    for topic, partitions in there.items():
        for number in sorted(numbers):
            if number not in partitions:
                raise NotFoundError(
                    f"the topic {topic!r} has no partition {number}: it has {len(partitions)}, numbered from 0."
                )
    fixed = {
        "coordination": "fixed",
        "partitions": {topic: tuple(sorted(set(numbers)) or partitions) for topic, partitions in there.items()},
        "topics": {},
        "whitelist": None,
        "blacklist": None,
        "offsets": "none",
    }
    return config.replace(group=config.group.replace(**fixed))


async def find_starts(config: Config, target: OffsetTarget) -> dict[TopicPartition, int]:
    """Where the fixed partitions of `config` begin: at an offset or a time, or so many messages before the end (SHIFT).

    An offset outside of the log is limited to it. Raises BrokerError for a partition that cannot be looked up.
    """
    from consumerd.operate.admin.changes import OffsetTargetKind  # noqa: PLC0415 - for these options only
    from consumerd.operate.admin.logs import LogRange, LookupFailure  # noqa: PLC0415 - for these options only
    from consumerd.operate.admin.v08.logs import V08BrokerLogs  # noqa: PLC0415 - for these options only
    from consumerd.service.config.build_v08 import fixed_partitions  # noqa: PLC0415

    partitions = fixed_partitions(config.group)
    starts = {}
    async with _client(config) as client:
        logs = V08BrokerLogs(client)
        ranges = await logs.ranges(partitions)
        there = {partition: known for partition, known in ranges.items() if isinstance(known, LogRange)}
        moments = await logs.at_time(there, target.value) if target.kind is OffsetTargetKind.TIME else {}
    for partition, known in ranges.items():
        if not isinstance(known, LogRange):
            raise BrokerError(f"the log of {partition} cannot be looked up: {known.reason}.")
        wanted = target.value
        if target.kind is OffsetTargetKind.SHIFT:
            wanted = known.end + target.value
        elif target.kind is OffsetTargetKind.TIME:
            moment = moments[partition]
            if isinstance(moment, LookupFailure):
                raise BrokerError(f"the offset of a time in {partition} cannot be looked up: {moment.reason}.")
            wanted = moment.offset
        starts[partition] = min(max(wanted, known.earliest), known.end)
    return starts


def _client(config: Config) -> ClusterClient:
    settings = ClientSettings(retry_timeout=config.kafka.connection_timeout)
    connection = build_connection_settings(config)
    return build_client_of(config.kafka, connection, clock=SystemClock(), rng=SystemRandom(), settings=settings)
