"""The daemon's life: startup, main loop, shutdown, in that order below.

Strategy: one TaskGroup-free spine. The ZooKeeper session is started first, or a first broker asked (that it cannot be
reached is the one failure a start reports by itself), then the member runs until it leaves. A first SIGTERM or SIGINT
asks it to leave in order, as a failure does; either starts the deadline. A second signal, or the deadline, cancels it.
Signals are noticed outside of the loop (`consumerd.service.daemon.signals`), which also ends a process whose loop is
held. Closing the session then lets ZooKeeper drop the remaining nodes, and a coordinator misses the heartbeats; so a
forced stop is at worst a repetition for the next owner, never a loss. A handler that does not obey its cancellation
leaves only the end of the process, and the session to expire: its nodes must not go while it still works.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import structlog

from consumerd import __version__
from consumerd.base import native
from consumerd.base.budget import ByteBudget
from consumerd.base.clock import SystemClock
from consumerd.base.errors import ConsumerdError
from consumerd.base.ports import Clock
from consumerd.base.settings.processing import DaemonSection
from consumerd.handlers import Handler
from consumerd.member.consumer.running_member import RunningMember
from consumerd.member.consumer.settings import ConsumerSettings
from consumerd.net.connect import connect
from consumerd.service.config.build import build_connection_settings, open_session
from consumerd.service.config.build_subscriptions import build_members, errors_of
from consumerd.service.config.model import Config
from consumerd.service.config.subscriptions import MAIN
from consumerd.service.daemon.endpoints import build_server, check_http
from consumerd.service.daemon.group_view import ReadGroup
from consumerd.service.daemon.members import Members, ServedMember
from consumerd.service.daemon.monitor import Monitor
from consumerd.service.daemon.notify import READY, STOPPING, notify, status
from consumerd.service.daemon.readings import read
from consumerd.service.daemon.reload import Reloader
from consumerd.service.daemon.signals import (
    FORCE_SECONDS,
    ProcessSignals,
    StopForcedError,
    StopRequest,
    process_signals,
)
from consumerd.service.daemon.stalls import LoopWatch
from consumerd.service.daemon.telemetry import build_telemetry, check_telemetry
from consumerd.service.daemon.watchdog import Watchdog
from consumerd.wire.registry.dialect import Dialect

if TYPE_CHECKING:
    from consumerd.member.consumer.backends import GroupBackend
    from consumerd.net.client.cluster import ClusterClient
    from consumerd.net.zk.session import Session
    from consumerd.service.daemon.otel import Telemetry

log = structlog.get_logger(__name__)

#: Seconds after which a member that is not in its group yet counts as started: it waits for others, maybe for minutes.
STARTED_AFTER = 20.0

_T = TypeVar("_T")


async def serve(config: Config, path: Path | None = None) -> None:
    """Run the daemon until a signal or a failure. Raises ConsumerdError for everything that is not a graceful stop.

    `path` is the file of the configuration, which SIGHUP reloads.
    """
    clock, rng = SystemClock(), SystemRandom()
    members = build_members(config, clock=clock, rng=rng)
    settings = members[MAIN]
    check_http(config.health)
    check_telemetry(config.telemetry)
    monitor = Monitor(config, clock)
    handlers = {part.name: monitor.build_handler(part, part.config, rng) for part in monitor.subscriptions}
    reloader = None if path is None else Reloader(path, config, monitor, clock=clock, rng=rng)
    watching = Watching(monitor, reloader)
    log.info(
        "starting", version=__version__, codec=native.describe(), group=settings.group, consumer=settings.consumer_id
    )
    for part in monitor.subscriptions[1:]:
        each = members[part.name]
        part.attributes = {"messaging.consumer.group.name": each.group, "messaging.client.id": each.consumer_id}
        log.info("subscription_starting", subscription=part.name, group=each.group, consumer=each.consumer_id)
    async with AsyncExitStack() as stack:
        session = None
        await start_monitor(monitor, stack, settings.consumer_id)
        for part in monitor.subscriptions:
            handlers[part.name] = monitor.traced(handlers[part.name], part)
        if config.needs_session:
            section = config.zookeeper
            opening = open_session(stack, section, clock, rng, allow_empty=section.allow_empty, wait=True)
            session = await _unless_signalled(opening, config)
            if session is None:
                return
        joining = [Joining(name, each, handlers[name]) for name, each in members.items()]
        await run_members(config, joining, session, clock=clock, rng=rng, watching=watching)
    log.info("stopped", group=settings.group, consumer=settings.consumer_id)


async def start_monitor(monitor: Monitor, stack: AsyncExitStack, consumer: str) -> None:
    """Begin to watch, feed the service manager's watchdog, and serve HTTP if that is configured, until `stack` ends.

    Telemetry is sent where that is configured: wrap the handler with `monitor.traced` afterwards. `consumer` is the
    member's id. Raises ConfigError where it cannot listen.
    """
    monitor.telemetry = build_telemetry(
        monitor.config.telemetry,
        lambda: read(monitor),
        monitor.clock,
        instance=consumer,
        attributes={"messaging.consumer.group.name": monitor.main.group, "messaging.client.id": consumer},
    )
    if monitor.telemetry is not None:
        await stack.enter_async_context(monitor.telemetry)
        stack.push(partial(_limit_end, monitor, monitor.telemetry))
    await stack.enter_async_context(monitor)
    await stack.enter_async_context(Watchdog(lambda: monitor.sick, monitor.clock))
    if monitor.config.health.listen is not None:
        await stack.enter_async_context(build_server(monitor))


def _limit_end(monitor: Monitor, telemetry: Telemetry, *outcome: object) -> None:
    """Limit the end of telemetry to the deadline of the stop; to 0 seconds after a stop that was forced."""
    since = monitor.stopping_since
    if any(isinstance(each, StopForcedError) for each in outcome):
        telemetry.end_seconds = 0.0
    elif since is not None:
        left = monitor.config.daemon.stop_timeout - (monitor.clock.monotonic() - since)
        telemetry.end_seconds = max(0.0, min(telemetry.end_seconds, left))


class Watching(NamedTuple):
    """The monitor and the reloader of a member."""

    monitor: Monitor
    reloader: Reloader | None = None


# What serves Kafka 0.8 and later, or a group in ZooKeeper, is imported by the functions below when they are called: a
# daemon needs one of both, and has 3 to 5 MiB less.


def import_member(config: Config) -> None:
    """Import them now, so that `consumerd.cli.run.imports_kept` includes them."""
    if any(each.coordination == "zookeeper" for each in config.groups):
        import consumerd.member.consumer.consumer  # noqa: PLC0415
        import consumerd.net.cluster.entry  # noqa: PLC0415
        import consumerd.service.daemon.dialect  # noqa: PLC0415
    if config.needs_brokers:
        import consumerd.service.config.build_v08  # noqa: F401, PLC0415


async def start_client(client: ClusterClient, config: Config) -> None:
    """Find a first broker within the configured time. Raises BrokerError with the remedy, NotFoundError."""
    from consumerd.member.consumer.fixed import require_partitions  # noqa: PLC0415
    from consumerd.net.client.factory import find_broker  # noqa: PLC0415
    from consumerd.service.config.build_v08 import fixed_partitions  # noqa: PLC0415

    section, partitions = config.kafka, fixed_partitions(config.group)
    await find_broker(client, section.bootstrap, section.connection_timeout, key="kafka.bootstrap")
    if partitions:
        await client.retrying("find the partitions", partial(require_partitions, client, partitions))


class Joining(NamedTuple):
    """A member to be, of the subscription `name`."""

    name: str
    settings: ConsumerSettings
    handler: Handler


async def run_members(
    config: Config,
    joining: Sequence[Joining],
    session: Session | None,
    *,
    clock: Clock,
    rng: Random,
    watching: Watching | None = None,
) -> None:
    """Run the members of a process until they leave, under the process's signals. The main one comes first.

    `session` is started, and there where a group or its offsets are in ZooKeeper. They share it, the memory for
    messages and, of Kafka 0.8 and later, the client of the brokers. Raises GroupRefusedError where the dialects do not
    fit, ConfigError; else as `serve`.
    """
    configs = config.by_subscription()
    outside = [each for each in joining if configs[each.name].group.coordination != "zookeeper"]
    in_zookeeper = [each for each in joining if each not in outside]
    dialect = None
    if in_zookeeper:
        assert session is not None
        dialect = await _dialect_of(in_zookeeper, configs, session, clock)
        if dialect is None:  # and so there is nothing to consume
            return
    async with AsyncExitStack() as stack:
        client = None
        if outside or dialect is Dialect.V08:
            from consumerd.service.config.build_v08 import build_client  # noqa: PLC0415

            client = await stack.enter_async_context(build_client(config, clock=clock, rng=rng))
        for each in outside:
            assert client is not None
            with errors_of(each.name):
                if not await _unless_signalled(_done(start_client(client, configs[each.name])), config):
                    return
        crew = _Crew(config, session, client, dialect, ByteBudget(joining[0].settings.fetch.budget), clock, rng)
        members = {each.name: crew.member(each, configs[each.name]) for each in joining}
        if watching is not None:
            for part, member in zip(watching.monitor.subscriptions, members.values(), strict=True):
                served_group = config.health.listen is not None
                reader = crew.group_reader(member, part.config) if served_group else None
                watching.monitor.watch(member, reader, part)
        served = Members(members) if len(members) > 1 else members[joining[0].name]
        await _Service(served, session, config.daemon, None if watching is None else watching.reloader).run()


async def _dialect_of(
    joining: Sequence[Joining], configs: Mapping[str, Config], session: Session, clock: Clock
) -> Dialect | None:
    """Return the dialect of the groups in ZooKeeper; None if there is none, or a signal to stop came first."""
    from consumerd.service.daemon.dialect import find_dialect  # noqa: PLC0415

    first = joining[0]
    own, wait = configs[first.name], not first.settings.stop_at_end
    groups = dict.fromkeys(each.settings.group for each in joining)
    return await _unless_signalled(find_dialect(own, session, clock, wait=wait, groups=groups), own)


class _Crew(NamedTuple):
    """What the members of one process share. `dialect`: of their groups in ZooKeeper, if there are any."""

    config: Config
    session: Session | None
    client: ClusterClient | None
    dialect: Dialect | None
    budget: ByteBudget
    clock: Clock
    rng: Random

    def member(self, joining: Joining, own: Config) -> RunningMember[Any]:
        """Make the member of a subscription, which has the configuration `own`."""
        _, settings, handler = joining
        clock, rng, budget, session = self.clock, self.rng, self.budget, self.session
        if own.group.coordination != "zookeeper":
            from consumerd.service.config.build_v08 import build_consumer  # noqa: PLC0415

            assert self.client is not None
            return build_consumer(own, settings, handler, self.client, zk=session, clock=clock, rng=rng, budget=budget)
        from consumerd.member.consumer.consumer import GroupConsumer  # noqa: PLC0415

        assert session is not None
        backend = self._backend(own)
        return GroupConsumer(
            settings, zk=session, backend=backend, handler=handler, clock=clock, rng=rng, budget=budget
        )

    def _backend(self, own: Config) -> GroupBackend:
        if self.dialect is Dialect.V08:
            from consumerd.service.config.build_v08 import build_backend, names_brokers  # noqa: PLC0415

            assert self.client is not None
            return build_backend(own, self.client, bootstrap=names_brokers(self.config))
        from consumerd.member.consumer.backends import V07Backend  # noqa: PLC0415

        return V07Backend(partial(connect, settings=build_connection_settings(own)))

    def group_reader(self, member: RunningMember[Any], own: Config) -> ReadGroup | None:
        """Return what reads the whole group of a member; None with fixed partitions, which are not a group."""
        group, coordination = member.settings.group, own.group.coordination
        if coordination == "fixed":
            return None
        if coordination == "kafka":
            assert self.client is not None
            return _coordinated_group(self.client, group)
        assert self.session is not None
        assert self.dialect is not None
        return _group_in_zookeeper(self.session, group, self.dialect)


# Only a status page shows the whole group: a daemon that serves none does not import the administration of groups.


def _coordinated_group(client: ClusterClient, group: str) -> ReadGroup:
    from consumerd.operate.admin.v08.broker_groups import BrokerGroups  # noqa: PLC0415

    return partial(BrokerGroups(client).snapshot, group)


def _group_in_zookeeper(session: Session, group: str, dialect: Dialect) -> ReadGroup:
    from consumerd.operate.admin.snapshot import read_v07_snapshot  # noqa: PLC0415
    from consumerd.operate.admin.v08.snapshot import read_v08_snapshot  # noqa: PLC0415

    if dialect is Dialect.V08:
        return partial(read_v08_snapshot, session, group)
    return partial(read_v07_snapshot, session, group, brokers=False)


async def _done(work: Coroutine[Any, Any, None]) -> Literal[True]:
    await work
    return True


class _Start:
    """The steps before a member exists, which a signal can stop."""

    def __init__(self, task: asyncio.Task[Any], stop_timeout: float) -> None:
        self.stop_timeout = stop_timeout
        self._task = task

    def request(self, request: StopRequest) -> None:
        if request.times == 1:
            log.info("stop_requested", signal=request.reason)
        self._task.cancel()

    def held_for(self) -> float:
        return 0.0  # no code of a handler runs yet

    def outcome(self, reason: str) -> ConsumerdError:
        return StopForcedError(reason)


async def _unless_signalled(work: Coroutine[Any, Any, _T], config: Config) -> _T | None:
    """The result of `work`; None if a signal to stop came first."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    try:
        with process_signals() as signals, signals.sent_to(_Start(task, config.daemon.stop_timeout), loop):
            await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task])
        raise
    return None if task.cancelled() else task.result()


class _Service:
    """A running member under signals."""

    def __init__(
        self,
        consumer: ServedMember | Members,
        session: Session | None,
        section: DaemonSection,
        reloader: Reloader | None = None,
    ) -> None:
        self._reloader = reloader
        self._announced = asyncio.Event()
        self.stop_timeout = section.stop_timeout
        self._consumer = consumer
        self._session = session
        self._watch = LoopWatch(section.stall_warning)
        self._signals: ProcessSignals | None = None
        self._forced: str | None = None
        self._failure: ConsumerdError | None = None
        self._task: asyncio.Task[None] | None = None
        self._timers: list[asyncio.TimerHandle] = []

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        reload = None if self._reloader is None else self._reloader.request
        try:
            with process_signals() as self._signals, self._watch, self._signals.sent_to(self, loop, reload):
                await self._main_loop()
        finally:
            for timer in self._timers:
                timer.cancel()

    async def _main_loop(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._task = group.create_task(self._member(), name="member")
            watchers = [
                group.create_task(watch())
                for watch in (self._announce, self._guard_session, self._start_deadline, self._reload)
            ]
            await asyncio.wait([self._task])
            for watcher in watchers:
                watcher.cancel()
        outcome = self._outcome()
        if outcome is not None:
            raise outcome

    def _outcome(self) -> ConsumerdError | None:
        """Return the error of the process. The failure that began a stop comes before the error of a forced stop."""
        failure = self._failure or self._consumer.failure
        if self._forced is not None and failure is None:
            return StopForcedError(self._forced)
        return failure

    def held_for(self) -> float:
        return self._watch.held_for()

    def outcome(self, reason: str) -> ConsumerdError:
        return self._outcome() or StopForcedError(reason)

    async def _member(self) -> None:
        try:
            await self._consumer.run()
        except asyncio.CancelledError:
            if self._forced is None:
                raise
        except ConsumerdError as error:
            self._failure = error  # not raised here: it would come out of the group wrapped

    async def _announce(self) -> None:
        try:
            async with asyncio.timeout(STARTED_AFTER):
                await self._consumer.ready.wait()
        except TimeoutError:
            notify(READY, status(self._standing()))
            self._announced.set()
            await self._consumer.ready.wait()
        notify(READY, status(self._standing()))
        self._announced.set()
        log.info("ready", partitions=[str(partition) for partition in self._consumer.owned])

    async def _reload(self) -> None:
        """Reload when it is requested, once the service manager knows of the start."""
        if self._reloader is not None:
            await self._announced.wait()
            await self._reloader.run(self._consumer.stopping, self._standing)

    def _standing(self) -> str:
        return "member of the group" if self._consumer.ready.is_set() else "waiting for the group"

    async def _guard_session(self) -> None:
        """A session that ended for good (refused credentials) takes the daemon with it."""
        if self._session is None:
            return
        try:
            await self._session.wait_closed()
        except ConsumerdError as error:
            self._consumer.request_stop(error)

    # -- stopping

    def request(self, request: StopRequest) -> None:
        if request.times > 1:
            self._force(f"second signal, {request.reason}")
            return
        log.info("stop_requested", signal=request.reason)
        self._consumer.request_stop(request.failure)

    async def _start_deadline(self) -> None:
        await self._consumer.stopping.wait()
        assert self._signals is not None  # this runs within `run`
        self._signals.expect_end()
        log.info("stopping", deadline=self.stop_timeout)
        notify(STOPPING, status("draining"))
        self._later(self.stop_timeout, lambda: self._force(f"no end within {self.stop_timeout:g} s"))

    def _force(self, reason: str) -> None:
        if self._forced is not None or self._task is None or self._task.done():
            return
        self._forced = reason
        log.error("stop_forced", reason=reason)
        self._task.cancel()
        self._later(FORCE_SECONDS, self._exit)

    def _exit(self) -> None:
        """End the process where a handler does not end. No caller can print the sentence any more."""
        outcome = self._outcome()
        assert outcome is not None
        log.error("exit_forced", reason="a handler ignored its cancellation")
        sys.stderr.write(f"consumerd: {outcome}\n")
        sys.stderr.flush()
        os._exit(int(outcome.exit_code))

    def _later(self, seconds: float, function: Callable[[], None]) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(seconds, function))
