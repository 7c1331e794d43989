"""Crashes of members that write dead letters to one file, at one chosen step: each call to the disk, and each `await`.

Strategy: two members share the file, which is renamed after every few letters. The first one crashes before its step
number so-and-so; the other one takes over and commits everything; then the machine loses power. Each rejected message
must have its letter on the disk then, and no letter more often than members wrote it without committing. In
`stop_of_letters` the first member is stopped instead, and continues when the other one has written some letters: so
each step of one member's write comes between those of another one's, where only the lock keeps them apart.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from consumerd.base.files import SystemFiles
from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch, Handler, Letter, RejectedError, RetryPolicy, retrying
from consumerd.handlers.dead_letter_files import FileDeadLetters
from consumerd.handlers.dead_letters import decode_letter
from consumerd.handlers.tracebacks import TRACEBACK
from consumerd.wire.registry.paths import offset_path, owner_path
from consumerd.wire.registry.values import parse_offset
from tests.simulation.daemon import Daemon, ProcessClock
from tests.simulation.disk import SimulatedDisk
from tests.simulation.kernel import SimulationError
from tests.simulation.sink_crashes import Fault, Steps
from tests.simulation.threads import ThreadedLoop
from tests.simulation.world import World

#: Of each partition; the handler rejects every second one.
MESSAGES = 6
#: Bytes of a file: about two letters.
FILE_SIZE = 500
#: Letters that another member writes while the first one is stopped: more than a file holds.
_BETWEEN = 3
_SETTINGS: dict[str, dict[str, Any]] = {"fetch": {"initial": "earliest"}, "commit": {"interval": 0.1}}


class LetterWorld(World):
    """Two partitions and a directory of dead letters."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.disk = SimulatedDisk(random.Random(f"disk/{seed}"))
        self.path = Path("/srv/letters/dead.ndjson")
        self.watcher: Callable[[Daemon, str], None] = lambda daemon, step: None
        #: Letters by the member that wrote them.
        self.written: Counter[str] = Counter()
        self._patches += self.disk.patches()

    def begin(self) -> None:
        super().begin()
        self.account.count_all()
        self.topic("t", 2)

    def share(self, ended: Callable[[], bool]) -> tuple[Daemon, Daemon]:
        """Start two members, and send messages when each has a partition, or `ended`: one alone would take them all."""
        members = self.join("a"), self.join("b")
        self.kernel.until(lambda: ended() or self._is_shared(), 60.0, what="each member has a partition")
        for partition in self.partitions:
            self.produce(partition, MESSAGES)
        return members

    def _is_shared(self) -> bool:
        nodes = self.zookeeper.tree.nodes
        owners = [nodes.get(owner_path(self.group, partition)) for partition in self.partitions]
        return len({node.data for node in owners if node is not None}) == len(owners)

    def join(self, name: str) -> Daemon:
        """Start a member."""
        made = self.daemons[name] = _Member(self, name)
        return made

    def committed(self) -> bool:
        """Whether all messages are."""
        nodes = self.zookeeper.tree.nodes
        paths = {partition: nodes.get(offset_path(self.group, partition)) for partition in self.partitions}
        return all(node is not None and parse_offset(node.data) == self.end(tp) for tp, node in paths.items())

    def lose_power(self) -> None:
        """All members die, and the disk forgets what was not synced."""
        for daemon in self.daemons.values():
            if daemon.alive:
                daemon.kill()
        self.disk.lose_power()

    def rejected(self) -> set[tuple[TopicPartition, int]]:
        """The messages that need a letter."""
        return {
            (partition, offset) for partition in self.partitions for offset in self.account.offsets(partition)[1::2]
        }

    def letters(self) -> Counter[tuple[TopicPartition, int]]:
        """Those on the disk, in all files; lines that are none are what a crash left."""
        found: Counter[tuple[TopicPartition, int]] = Counter()
        folder = self.path.parent
        if not self.disk.forgetful.is_directory(folder):
            return found
        for entry in self.disk.forgetful.entries(folder):
            for line in self.disk.content(folder / entry.name).split(b"\n")[:-1]:
                try:
                    message = decode_letter(line).message
                except ValueError:
                    continue
                found[message.partition, message.offset] += 1
        return found

    def check(self, crashes: int) -> None:
        """Raise SimulationError unless each rejected message has its letter, and at most one more for a crash."""
        if self.account.violations:
            raise SimulationError("\n".join(self.account.violations))
        letters, rejected = self.letters(), self.rejected()
        if letters.keys() != rejected:
            raise SimulationError(
                f"without a letter: {rejected - letters.keys()}, not rejected: {letters.keys() - rejected}"
            )
        more = [message for message, count in letters.items() if count > 1 + crashes]
        if more:
            raise SimulationError(f"letters that are repeated more often than members crashed: {more}")


class _Observed(FileDeadLetters):
    """Tells the account which letters are confirmed."""

    world: LetterWorld
    daemon: Daemon

    async def write(self, letters: Sequence[Letter]) -> None:
        await super().write(letters)
        if not self.daemon.loop.dead:
            self.world.written[self.daemon.name] += len(letters)
            for each in letters:
                self.world.account.handled(each.message.partition, [each.message.offset])


class _Rejecting(Handler):
    """Rejects every second message."""

    def __init__(self, world: LetterWorld) -> None:
        self._world = world

    async def handle(self, batch: Batch) -> None:
        batch.mark(0)
        rejected = self._world.rejected()
        for count, message in enumerate(batch.messages(), 1):
            if (message.partition, message.offset) in rejected:
                error = RejectedError("every second message")
                setattr(error, TRACEBACK, "")  # the path of this file would decide when a file of letters is full
                raise error
            self._world.account.handled(message.partition, [message.offset])
            batch.mark(count)


class _Member(Daemon):
    world: LetterWorld

    def __init__(self, world: LetterWorld, name: str) -> None:
        settings = {**_SETTINGS, "group": {"consumer_id": name}}
        super().__init__(world, name, settings, 0.0, stubborn=False, lingering=False)

    def make_loop(self) -> ThreadedLoop:
        return ThreadedLoop(
            self.world.kernel, self.world.network, self.name, lambda step: self.world.watcher(self, step)
        )

    def make_handler(self, clock: ProcessClock, rng: random.Random) -> Handler:
        letters = _Observed(self.world.path, clock=clock, file_size=FILE_SIZE, files=SystemFiles(self.world.disk))
        letters.world, letters.daemon = self.world, self
        policy = RetryPolicy(on_failure="dead_letter")
        return retrying(_Rejecting(self.world), policy, clock=clock, rng=rng, dead_letters=letters)


def crash_of_letters(number: int, fault: Fault, steps: Steps, seed: int = 0) -> str | None:
    """Crash before step `number` of the first member, and tell its name; None if everything is committed before.

    Raises SimulationError where a letter is lost, or repeated without a reason.
    """
    with LetterWorld(seed) as world:
        count = itertools.count()
        crashed: list[str] = []
        world.disk.make_durable_directory(world.path.parent.parent)

        def watch(daemon: Daemon, step: str) -> None:
            if crashed or daemon.name != "a" or (step == "turn") != (steps == "turns"):
                return
            if next(count) == number:
                crashed.append(step)
                world.lose_power() if fault == "power" else daemon.kill()

        world.watcher = watch
        world.share(lambda: bool(crashed))
        world.kernel.until(
            lambda: bool(crashed) or world.committed(), 60.0, what="the member crashes, or has committed"
        )
        if not crashed:
            return None
        if fault == "power":
            world.join("c")
        world.kernel.until(world.committed, 60.0, what="another member has committed")
        world.lose_power()
        world.check(2 if fault == "power" else 1)
        return crashed[0]


def stop_of_letters(number: int, seed: int = 0) -> str | None:
    """Stop the first member before its call `number`, and continue it when the other one has written some letters.

    Returns the name of that call; None if everything is committed before. Raises SimulationError as `crash_of_letters`.
    """
    with LetterWorld(seed) as world:
        count = itertools.count()
        stopped: list[str] = []
        world.disk.make_durable_directory(world.path.parent.parent)

        def watch(daemon: Daemon, step: str) -> None:
            if not stopped and daemon.name == "a" and step != "turn" and next(count) == number:
                stopped.append(step)
                daemon.freeze()

        world.watcher = watch
        first, second = world.share(lambda: bool(stopped))
        world.kernel.until(
            lambda: bool(stopped) or world.committed(), 60.0, what="the member is stopped, or has committed"
        )
        if not stopped:
            return None
        before = world.written["b"]
        world.kernel.until(
            lambda: world.written["b"] >= before + _BETWEEN or world.committed() or not second.alive,
            120.0,
            what="the other member has written letters",
            every=0.005,
        )
        first.thaw()
        world.kernel.until(
            lambda: world.committed() or not second.alive, 120.0, what="everything is committed", every=0.01
        )
        world.run(1.0)
        if second.failure is not None:
            raise SimulationError(f"{second.name} failed: {second.failure!r}")
        world.lose_power()
        world.check(1)
        return stopped[0]
