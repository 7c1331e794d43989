"""Common parts of all simulated worlds: time, a network, the group's processes, producers, and the account.

Strategy: plain synchronous calls; `run`, `until` and what waits let virtual time pass. At the end every process is
unwound, and errors that no process may cause (an unhandled exception) are raised. Subclasses define servers,
topics and the outside view of a group: `tests.simulation.world`, `tests.simulation.kafka_world`.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Mapping, MutableMapping
from types import TracebackType
from typing import Any, Protocol, Self
from unittest import mock

import structlog

from consumerd.base.partition import TopicPartition
from tests.simulation.account import Account
from tests.simulation.daemon import Daemon
from tests.simulation.kernel import Kernel, SimulationError
from tests.simulation.network import Network
from tests.simulation.process import ProcessLoop


class Ending(Protocol):
    """A process that ends by itself."""

    name: str
    ended: bool
    failure: BaseException | None

    def terminate(self) -> None:
        """SIGTERM."""


#: Between two steps of the producers, in seconds.
_PRODUCE_EVERY = 0.01


class BaseWorld:
    """One run, of one group, without servers yet."""

    group = "group"

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(f"world/{seed}")
        self.kernel = Kernel()
        self.network = Network(self.kernel, random.Random(f"network/{seed}"))
        self.account = Account(self.kernel)
        self.daemons: dict[str, Daemon] = {}
        self.partitions: list[TopicPartition] = []
        self._producing = 0.0
        self._due = 0.0
        self._produced = 0
        self._patches: list[Any] = [
            mock.patch("socket.gethostname", return_value="host"),
            mock.patch("os._exit", self._exit),
        ]

    def __enter__(self) -> Self:
        for patch in self._patches:
            patch.start()
        gc.disable()  # what it finds depends on what ran before
        structlog.configure(
            processors=[self._log],
            wrapper_class=structlog.make_filtering_bound_logger(20),
            cache_logger_on_first_use=False,
        )
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for loop in self.kernel.loops:
                loop.unwind()
        finally:
            gc.enable()
            structlog.reset_defaults()
            for patch in self._patches:
                patch.stop()
        if error is None and self.kernel.failures:
            raise SimulationError("\n".join(self.kernel.failures))

    # -- what subclasses say

    def begin(self) -> None:
        """Start at the beginning of the logs."""

    def tables(self) -> dict[str, dict[str, Any]]:
        """The configuration of a member, by default."""
        raise NotImplementedError

    def produce(self, partition: TopicPartition, count: int = 1) -> None:
        """Append messages, one set each."""
        raise NotImplementedError

    def end(self, partition: TopicPartition) -> int:
        """The end of a log."""
        raise NotImplementedError

    def topic(self, topic: str, partitions: int) -> None:
        """Make a topic, or more partitions of it."""
        raise NotImplementedError

    def delete_topic(self, topic: str) -> None:
        """Its logs are gone, and what tells members of it."""
        raise NotImplementedError

    def truncate_log(self, partition: TopicPartition, lost: int) -> None:
        """The last messages of a log are gone, as after an unclean election, or a crash before they were on disk."""
        raise NotImplementedError

    def owners(self) -> dict[TopicPartition, str]:
        """Of each owned partition the process that owns it, as the group's keeper has it."""
        raise NotImplementedError

    @property
    def is_shared(self) -> bool:
        """Whether all partitions are owned, and all processes that live own as many as others, but for one."""
        raise NotImplementedError

    # -- logs that become other ones

    def forget_partitions(self, topic: str, *, broker: int | None = None) -> list[TopicPartition]:
        """The logs of a topic (on a broker) are gone. Those partitions."""
        gone = [each for each in self.partitions if each.topic == topic and broker in (None, each.broker)]
        for partition in gone:
            self.account.log_changed(partition)
            self.partitions.remove(partition)
        return gone

    # -- producers

    def produce_all(self) -> None:
        """One message to every partition."""
        for partition in self.partitions:
            self.produce(partition)

    def produce_steadily(self, per_second: float) -> None:
        """From now on so many messages in a second, to partitions by turns; 0 ends it."""
        began, self._producing = self._producing == 0.0, per_second
        if began and per_second:
            self.kernel.after(_PRODUCE_EVERY, self._produce_some)

    def _produce_some(self) -> None:
        if not self._producing:
            return
        self._due += self._producing * _PRODUCE_EVERY
        while self._due >= 1.0 and self.partitions:
            self._due -= 1.0
            self.produce(self.partitions[self._produced % len(self.partitions)])
        self.kernel.after(_PRODUCE_EVERY, self._produce_some)

    # -- members

    def daemon(
        self,
        name: str,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        handling: float = 0.002,
        stubborn: bool = False,
        lingering: bool = False,
    ) -> Daemon:
        """Start one more process, whose handler takes `handling` seconds for a batch.

        `stubborn`: the handler swallows its cancellation, and ends in its own time. `lingering`: some take long.
        """
        made = self.daemons[name] = Daemon(self, name, settings or {}, handling, stubborn=stubborn, lingering=lingering)
        return made

    def shares(self) -> dict[str, int]:
        """The number of partitions that each process owns."""
        counts: dict[str, int] = {}
        for owner in self.owners().values():
            counts[owner] = counts.get(owner, 0) + 1
        return counts

    # -- time

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.kernel.run(seconds)

    def until_shared(self, seconds: float = 60.0) -> float:
        """Let time pass until `is_shared`; how long that took."""
        return self.kernel.until(lambda: self.is_shared, seconds, what="all partitions are owned in fair shares")

    def settle(self, seconds: float = 60.0, *, calm: float = 3.0) -> float:
        """Until all is owned, and `calm` seconds more; messages count from here. How long the first part took."""
        took = self.until_shared(seconds)
        self.run(calm)
        self.account.count_from(self.ends())
        return took

    def finish(self, seconds: float = 60.0) -> None:
        """Produce no more, and let time pass until nothing is outstanding, or what is lost is lost."""
        self.produce_steadily(0)
        until = self.kernel.now + seconds
        while self.account.lost and self.kernel.now < until:
            self.run(0.5)
        self.run(1.0)

    def until_ended(self, daemon: Ending, seconds: float = 60.0) -> float:
        """Let time pass until a process has ended; how long that took."""
        return self.kernel.until(lambda: daemon.ended, seconds, what=f"{daemon.name} has ended", every=0.01)

    def leave(self, *leaving: Ending) -> float:
        """SIGTERM to processes, which have to end in order; how long that took."""
        began = self.kernel.now
        for each in leaving:
            each.terminate()
        for each in leaving:
            self.until_ended(each)
            assert each.failure is None
        return self.kernel.now - began

    def ends(self) -> dict[TopicPartition, int]:
        """The ends of the logs."""
        return {each: self.end(each) for each in self.partitions}

    def timeline(self, *, last: int = 200) -> str:
        """The events so far, as text."""
        return "\n".join(f"{time:12.6f} {who:>12}  {what}" for time, who, what in self.kernel.timeline[-last:])

    # -- observing

    def _log(self, logger: Any, method: str, entry: MutableMapping[str, Any]) -> Mapping[str, Any]:
        """Add the log events of daemons to the timeline, warnings with a mark."""
        loop = asyncio._get_running_loop()
        if isinstance(loop, ProcessLoop) and not loop.dead:
            name = entry.pop("event")
            mark = "" if method == "info" else "! "
            self.kernel.note(
                loop.name, " ".join([f"{mark}{name}", *(f"{key}={value}" for key, value in entry.items())])
            )
        raise structlog.DropEvent

    def _exit(self, code: int) -> None:
        """A daemon forces its end."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ProcessLoop)
        self.daemons[loop.name].kill()
