"""A member as the command runs it: session, member and service of `consumerd.service.daemon`, in a simulated
process."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from consumerd.base.errors import ConsumerdError
from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch, Handler, HandlerContext, RetryPolicy, retrying
from consumerd.service.config.build import build_settings, open_session
from consumerd.service.config.model import Config, parse
from consumerd.service.config.subscriptions import MAIN
from consumerd.service.daemon import service
from consumerd.service.daemon.service import Joining, run_members
from consumerd.service.daemon.signals import Stoppable, StopRequest, process_signals
from tests.simulation.process import ProcessLoop, SimulatedProcess
from tests.simulation.zookeeper import WALL

if TYPE_CHECKING:
    from tests.simulation.base_world import BaseWorld

_SHORTEST = 1e-6
#: Seconds in which a process that was stopped sees that time has passed.
_FIRST_TURNS = 0.05
#: The same after its machine was suspended: no timer of the process ran, but the one of the lease is short.
_FIRST_LOOK = 0.3
#: Seconds for which a slow handler may keep a batch: longer than a drain and a lease.
LINGERS = 8.0


class ProcessClock:
    """The clock port of one process: it runs on while the process is stopped and while its machine is suspended."""

    def __init__(self, loop: ProcessLoop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        return self._loop.kernel.now

    def wall(self) -> float:
        return WALL + self._loop.kernel.now

    async def sleep(self, seconds: float) -> None:
        # No real clock goes so slowly that the rest of a rounded difference counts.
        await asyncio.sleep(max(_SHORTEST, seconds) if seconds > 0 else 0)


class ProcessSignals:
    """Stands for those of `consumerd.service.daemon.signals` in a simulated process: signals come from the
    simulation."""

    def __init__(self) -> None:
        self._receiver: Stoppable | None = None
        self._waiting: list[StopRequest] = []
        self._requests = 0

    @contextmanager
    def sent_to(self, receiver: Stoppable, loop: asyncio.AbstractEventLoop, reload: Any = None) -> Iterator[None]:
        self._receiver = receiver
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            receiver.request(request)
        try:
            yield
        finally:
            self._receiver = None

    def come(self, number: signal.Signals) -> None:
        self._requests += 1
        self._ask(StopRequest(number.name, self._requests))

    def stop(self, reason: str, failure: ConsumerdError) -> bool:
        if self._receiver is None:
            return False
        self._ask(StopRequest(reason, 1, failure))
        return True

    def expect_end(self) -> None:
        """The simulation limits the time of a stop by itself."""

    def _ask(self, request: StopRequest) -> None:
        if self._receiver is None:
            self._waiting.append(request)
        else:
            self._receiver.request(request)


@contextmanager
def _process_signals() -> Iterator[Any]:
    """Those of the simulated process, if this is one."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, ProcessLoop):
        with process_signals() as signals:
            yield signals
        return
    yield _signals_of(loop)


def _signals_of(loop: ProcessLoop) -> ProcessSignals:
    signals: ProcessSignals | None = getattr(loop, "signals", None)
    if signals is None:
        signals = ProcessSignals()
        loop.signals = signals  # type: ignore[attr-defined]
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, signals.come, number)
    return signals


setattr(service, "process_signals", _process_signals)  # noqa: B010 - it is not exported there


class RecordingHandler(Handler):
    """Takes `seconds` for a batch, and tells the account.

    `stubborn`: whether it is cancelled or not. `lingering`: some batches take `LINGERS` seconds.
    """

    def __init__(self, daemon: Daemon, seconds: float, *, stubborn: bool, lingering: bool) -> None:
        self._daemon = daemon
        self._seconds = seconds
        self._stubborn = stubborn
        #: Partitions whose flow has ended, as a handler sees it: it was cancelled, and is not called again.
        self._ended: set[TopicPartition] = set()
        self._lingering = random.Random(f"{daemon.world.seed}/{daemon.name}/lingers") if lingering else None

    async def start(self, context: HandlerContext) -> None: ...

    async def stop(self) -> None: ...

    async def position(self, partition: TopicPartition) -> int | None:
        self._ended.discard(partition)
        return None

    def _takes(self) -> float:
        return LINGERS if self._lingering is not None and self._lingering.random() < 0.15 else self._seconds

    async def handle(self, batch: Batch) -> None:
        daemon = self._daemon
        if daemon.loop.dead:
            return
        account, name = daemon.world.account, daemon.name
        messages = list(batch.messages())
        offsets = [message.offset for message in messages]
        contents = [bytes(message.payload) for message in messages]
        account.begin(name, batch.partition, offsets, contents)
        if batch.partition in self._ended:
            account.violate(f"{name} is handed more of {batch.partition}, though its handler was cancelled")
        handled = False
        try:
            await asyncio.sleep(self._takes())
            handled = True
        except asyncio.CancelledError:
            if not self._stubborn or daemon.loop.dead:
                raise
            self._ended.add(batch.partition)
            # The member has done what it can; what comes now is the handler's own affair.
            account.end(name, batch.partition, offsets, contents, handled=False)
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(self._takes())
            if not daemon.loop.dead:
                account.handled(batch.partition, offsets, contents)
            return
        finally:
            if not daemon.loop.dead:
                account.end(name, batch.partition, offsets, contents, handled=handled)


class Daemon(SimulatedProcess):
    """One process. `settings` are tables of the configuration; what is not given has the daemon's defaults."""

    def __init__(
        self,
        world: BaseWorld,
        name: str,
        settings: Mapping[str, Mapping[str, Any]],
        handling: float,
        *,
        stubborn: bool,
        lingering: bool,
    ) -> None:
        self.world = world
        self.name = name
        self.loop = self.make_loop()
        #: The error that ended it, once it has ended by itself.
        self.failure: BaseException | None = None
        tables = world.tables()
        for table, keys in settings.items():
            tables.setdefault(table, {}).update(keys)
        self._suspended_at = 0.0
        self._config = parse(tables, "a test", environment=False)
        self.handling = handling
        self.lingering = lingering
        #: In how many ways its handler is not as others.
        self.peculiar = stubborn + lingering
        self._handler = {"stubborn": stubborn, "lingering": lingering}
        world.kernel.note(name, "starts")
        self.loop.submit(lambda: self.loop.create_task(self._main(), name="main"))

    def make_loop(self) -> ProcessLoop:
        """The event loop of the process."""
        return ProcessLoop(self.world.kernel, self.world.network, self.name)

    def plugin(self) -> Handler:
        """The handler, as its plugin makes it."""
        return RecordingHandler(self, self.handling, **self._handler)

    def make_handler(self, clock: ProcessClock, rng: random.Random) -> Handler:
        """The handler with its failure policy, as a member gets it."""
        return retrying(self.plugin(), RetryPolicy(), clock=clock, rng=rng)

    async def serve(self, config: Config, clock: ProcessClock, rng: random.Random) -> None:
        """Run the member until it is stopped, as its command does."""
        settings = build_settings(config, clock=clock, rng=rng)
        handler = self.make_handler(clock, rng)
        async with AsyncExitStack() as stack:
            session = None
            if config.group.coordination == "zookeeper":
                session = await open_session(stack, config.zookeeper, clock, rng, allow_empty=False, wait=True)
            await run_members(config, [Joining(MAIN, settings, handler)], session, clock=clock, rng=rng)

    async def _main(self) -> None:
        clock, rng = ProcessClock(self.loop), random.Random(f"{self.world.seed}/{self.name}")
        try:
            await self.serve(self._config, clock, rng)
        except BaseException as error:
            self.failure = error
            if not isinstance(error, Exception):
                raise
        finally:
            if not self.loop.dead:
                self.ended = True
                self.world.kernel.note(self.name, f"has ended ({self.failure!r})" if self.failure else "has ended")
                self.world.network.close_all_of(self.name)

    # -- what may happen to a process

    def freeze(self) -> None:
        """SIGSTOP."""
        self.world.account.frozen.add(self.name)
        super().freeze()

    def thaw(self) -> None:
        """SIGCONT."""
        self._wake(_FIRST_TURNS)

    def _wake(self, seconds: float) -> None:
        """The seconds within which it abandons its current batches."""
        self.world.kernel.after(seconds, self._is_awake)
        super().thaw()

    def _is_awake(self) -> None:
        if not self.loop.stopped:
            self.world.account.frozen.discard(self.name)

    def suspend(self) -> None:
        """The machine sleeps: all its clocks but one stop, and its connections do not change."""
        self.world.kernel.note(self.name, "the machine is suspended")
        self.world.account.frozen.add(self.name)
        self._suspended_at = self.world.kernel.now
        self.loop.stop_process()

    def resume(self) -> None:
        """The machine wakes up."""
        self.loop.suspended += self.world.kernel.now - self._suspended_at
        self._wake(_FIRST_LOOK)
