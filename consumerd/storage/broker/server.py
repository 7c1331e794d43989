"""The broker: opens the logs, listens, serves and registers, and ends these in reverse order.

Strategy: `run` is the whole life cycle as one function of nested parts, each undone when the next ends: logs are held,
a socket listens, a task group holds the acceptor, the flush scheduler, the registration and one task per connection. A
graceful stop takes the address out of ZooKeeper, stops accepting, lets every connection finish what it has received,
flushes, and writes the clean marker. Any other end leaves no marker, so the next start checks the logs.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable
from typing import Self

import structlog

from consumerd.base.errors import ZooKeeperError, reason_of
from consumerd.base.ports import Clock, ZooKeeper
from consumerd.base.threads import in_thread
from consumerd.storage import LoadReport, Log, LogManager, OsFiles
from consumerd.storage.broker.config import BrokerConfig
from consumerd.storage.broker.connections import ClientConnections
from consumerd.storage.broker.errors import ListenError
from consumerd.storage.broker.memory import RequestMemory
from consumerd.storage.broker.partitions import BrokerPartitions
from consumerd.storage.broker.registration import BrokerRegistration
from consumerd.storage.broker.requests import RequestHandlers
from consumerd.storage.broker.stats import BrokerStats

logger = structlog.get_logger(__name__)

_BACKLOG = 1024
#: Seconds from the start to the first check of retention, as in 0.7.2 (golden notes, 3).
_FIRST_CLEANUP = 60.0
#: Seconds between checks for logs whose files can be closed: those that were not used in between.
_REST = 10.0
#: Seconds for which a graceful stop waits for ZooKeeper, and for clients that do not read their answers.
_STOP_PATIENCE = 5.0


class Broker:
    """One 0.7 broker. `async with Broker(...) as broker` serves inside the block; or `start`, `wait`, `stop`.

    `zookeeper` is a started session that the caller owns; None runs without registration.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock,
        rng: random.Random,
        zookeeper: ZooKeeper | None = None,
    ) -> None:
        self.config = config
        self._clock = clock
        self._rng = rng
        self._zookeeper = zookeeper
        self._logs = LogManager(config.log_dir, OsFiles(), config.log_settings)
        #: Its counters.
        self.stats = BrokerStats()
        self._connections = ClientConnections(config, clock, self.stats)
        self._registration: BrokerRegistration | None = None
        self._stopping = asyncio.Event()
        #: Set once the broker serves and is registered.
        self.ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        #: The port listened on, once started.
        self.port = config.port

    @property
    def connections(self) -> int:
        """The number of connected clients."""
        return len(self._connections)

    @property
    def request_memory(self) -> RequestMemory:
        """The memory that requests hold."""
        return self._connections.memory

    @property
    def stopping(self) -> bool:
        """Whether a graceful stop has begun."""
        return self._stopping.is_set()

    @property
    def registered(self) -> bool | None:
        """Whether its address is registered in ZooKeeper now; None where it runs without ZooKeeper."""
        if self._zookeeper is None:
            return None
        return self._registration is not None and self._registration.holds

    @property
    def registered_at(self) -> float | None:
        """Time of the last registration of its address, in seconds since 1970; None: not yet, or without ZooKeeper."""
        return None if self._registration is None else self._registration.registered_at

    @property
    def topics_not_registered(self) -> int | None:
        """The number of topics that ZooKeeper refuses to register; None before the start, or without ZooKeeper."""
        return None if self._registration is None else self._registration.topics_not_registered

    def logs(self) -> list[tuple[str, int, Log]]:
        """Topic, partition and log of each log in service."""
        return self._logs.in_use()

    @property
    def logs_offline(self) -> int:
        """The number of logs that are not served, because they are damaged."""
        return self._logs.damaged

    # -- life

    async def start(self) -> None:
        """Return when the broker serves and is registered.

        Raises StorageError and CorruptLogError for the logs, ListenError, IdTakenError and ZooKeeperError.
        """
        self._task = asyncio.create_task(self.run(), name="broker")
        ready = asyncio.create_task(self.ready.wait(), name="broker ready")
        try:
            await asyncio.wait({self._task, ready}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
            if not self.ready.is_set():
                self._task.cancel()
                await asyncio.wait({self._task})
        if not self.ready.is_set():
            self._task.result()

    async def wait(self) -> None:
        """Return when the broker has stopped. Raises the error that ended it."""
        assert self._task is not None
        await asyncio.shield(self._task)

    def request_stop(self) -> None:
        """Begin a graceful stop; `run` returns when it is done."""
        self._stopping.set()

    async def stop(self) -> None:
        """Stop gracefully. Raises StorageError when the last flush fails."""
        self.request_stop()
        await self.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def run(self) -> None:
        """Serve until `stop`; cancelled, or with an error, it ends at once and without the clean marker."""
        try:
            self._tell(await in_thread(self._logs.open, self._clock.monotonic()))
            with await asyncio.to_thread(self._listen) as listener:
                try:
                    await self._serve(listener)
                except BaseExceptionGroup as group:
                    raise _first(group) from None
        except BaseException:
            await in_thread(self._logs.abandon)
            raise
        await in_thread(self._logs.close, self._clock.monotonic())
        logger.info("broker_stopped", broker=self.config.broker_id)

    def _tell(self, report: LoadReport) -> None:
        for truncation in report.truncated:
            logger.warning(
                "log_truncated",
                log=truncation.name,
                end_offset=truncation.end_offset,
                found=truncation.cut.damage.value,
                bytes=truncation.cut.dropped,
                kept_in=str(truncation.cut.aside) if truncation.cut.aside else None,
            )
        for name, reason in report.damaged:
            logger.error("log_offline", log=name, reason=reason)
        for name in report.stray:
            logger.warning("stray_file_in_log_dir", directory=str(self.config.log_dir), name=name)
        for topic, partition in self._logs.partitions():
            if partition >= self.config.partitions_of(topic):
                logger.warning("log_unreachable", topic=topic, partition=partition)
        if report.marker_unreadable:
            logger.warning("clean_marker_unreadable", directory=str(self.config.log_dir))

    def _listen(self) -> socket.socket:
        host, port = self.config.host, self.config.port
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
            )[0]
            listener = socket.socket(family, kind, protocol)
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(address)
                listener.listen(_BACKLOG)
                listener.setblocking(False)
            except BaseException:
                listener.close()
                raise
        except OSError as error:
            raise ListenError(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
        self.port = listener.getsockname()[1]
        return listener

    async def _serve(self, listener: socket.socket) -> None:
        partitions = BrokerPartitions(self._logs, self._clock, self.stats)
        async with asyncio.TaskGroup() as group:
            registration = self._registration = self._make_registration()
            if registration is not None:
                await registration.register(self._logs.topics())
            requests = RequestHandlers(
                self.config,
                partitions,
                self._clock,
                self._rng,
                registration.add_topic if registration is not None else None,
            )
            flush_pause, clean_pause = self.config.flush_check_ms / 1000, self.config.cleanup_minutes * 60.0
            tasks = [
                group.create_task(self._connections.accept(listener, group, requests), name="accept"),
                group.create_task(self._connections.look_after(), name="idle connections"),
                group.create_task(self._regularly(partitions.flush_overdue, flush_pause, flush_pause), name="flush"),
                group.create_task(self._regularly(partitions.clean, _FIRST_CLEANUP, clean_pause), name="retention"),
                group.create_task(self._regularly(partitions.rest, _REST, _REST), name="idle logs"),
            ]
            if registration is not None:
                tasks.append(group.create_task(registration.run(), name="registration"))
            logger.info("broker_ready", broker=self.config.broker_id, port=self.port, logs=len(self._logs))
            self.ready.set()
            await self._stopping.wait()
            await self._shut_down(listener, registration, tasks)

    async def _shut_down(
        self, listener: socket.socket, registration: BrokerRegistration | None, tasks: list[asyncio.Task[None]]
    ) -> None:
        logger.info("broker_stopping", broker=self.config.broker_id, connections=len(self._connections))
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        listener.close()
        if registration is not None:
            try:
                async with asyncio.timeout(_STOP_PATIENCE):
                    await registration.withdraw()
            except TimeoutError:  # the session's end deletes the nodes
                late = f"ZooKeeper did not answer within {_STOP_PATIENCE:g} s"
                logger.warning("deregistration_failed", broker=self.config.broker_id, reason=late)
            except ZooKeeperError as error:
                logger.warning("deregistration_failed", broker=self.config.broker_id, reason=reason_of(error))
        await self._connections.stop(_STOP_PATIENCE)

    def _make_registration(self) -> BrokerRegistration | None:
        if self._zookeeper is None:
            return None
        config = self.config
        host = config.advertised_host or config.host
        return BrokerRegistration(
            self._zookeeper, config.broker_id, host, self.port, config.partitions_of, self._clock, self._rng
        )

    async def _regularly(self, work: Callable[[], Awaitable[None]], first: float, pause: float) -> None:
        """Do `work` after `first` seconds, and then `pause` seconds after each end of it."""
        await self._clock.sleep(first)
        while True:
            await work()
            await self._clock.sleep(pause)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error that ended a task group: all others are its consequences."""
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner
