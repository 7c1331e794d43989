"""Crashes of an exactly-once sink at one chosen step: each call of its place, and each `await`, from start to commit.

Strategy: a first member gets one message and crashes before its step number so-and-so. A second one takes over and
commits; then the machine loses power, and a third one, with one more message, must find all rows. A caller
goes through the numbers until a member does not get that far any more. In `zombie`, the first member is stopped
instead, and continues before a chosen step of the second one's takeover. `make` makes the world of the sink.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final, Literal

from consumerd.wire.registry.paths import offset_path
from consumerd.wire.registry.values import parse_offset
from tests.simulation.daemon import Daemon
from tests.simulation.kernel import SimulationError
from tests.simulation.rows_world import RowsWorld
from tests.simulation.sink_world import SinkWorld

Fault = Literal["kill", "power"]
#: A member's steps that are counted: calls of its place from its start, or turns of its loop from its first message.
Steps = Literal["calls", "turns"]

#: What is said where a crash lost the folder of a topic: the last member stops, since offsets of it are committed.
FOLDER_LOST: Final = "c has committed everything"
_SETTINGS: dict[str, dict[str, Any]] = {"fetch": {"initial": "earliest"}, "commit": {"interval": 0.1}}


class Story:
    """One partition in a world, and the members that follow each other."""

    def __init__(self, world: RowsWorld) -> None:
        self.world = world
        world.account.count_all()
        world.topic("t", 1)
        world.produce_all()
        (self.partition,) = world.partitions

    def join(self, name: str) -> Daemon:
        """Start a member."""
        return self.world.daemon(name, {**_SETTINGS, "group": {"consumer_id": name}})

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Let time pass until `condition()`; look often enough to see what lasts shorter than a session."""
        self.world.kernel.until(lambda: bool(condition()), 60.0, what=what)

    @property
    def committed(self) -> bool:
        """Whether the offset is that of the end of the log."""
        node = self.world.zookeeper.tree.nodes.get(offset_path(self.world.group, self.partition))
        return node is not None and parse_offset(node.data) == self.world.end(self.partition)

    def end(self, name: str) -> None:
        """The machine loses power; a member that starts afterwards stores what is left, and leaves."""
        world = self.world
        world.lose_power()
        world.produce_all()
        last = self.join(name)
        self.until(lambda: self.committed, f"{name} has committed everything")
        last.terminate()
        world.until_ended(last)
        world.check(complete=True)
        if world.account.violations:
            raise SimulationError("\n".join(world.account.violations))


def crash(
    number: int, fault: Fault, steps: Steps, seed: int = 0, *, make: Callable[[int], RowsWorld] = SinkWorld
) -> str | None:
    """Crash before step `number`, and tell its name; None if the member commits everything before.

    Raises SimulationError where a row is lost, repeated or invalid.
    """
    with make(seed) as world:
        story, count = Story(world), itertools.count()
        crashed: list[str] = []

        def watch(daemon: Daemon, step: str) -> None:
            if crashed or daemon.name != "a" or (step == "turn") != (steps == "turns"):
                return
            if (steps == "calls" or world.account.hand_overs) and next(count) == number:
                crashed.append(step)
                world.lose_power() if fault == "power" else daemon.kill()
                world.check()

        world.watcher = watch
        story.join("a")
        story.until(lambda: crashed or story.committed, "the first member crashes, or has committed")
        if not crashed:
            return None
        story.join("b")
        story.until(lambda: story.committed, "the second member has committed")
        story.end("c")
        return crashed[0]


def zombie(stopped: str, number: int, seed: int = 0, *, make: Callable[[int], RowsWorld] = SinkWorld) -> str | None:
    """Stop a member before its first call `stopped` of a batch, and continue it before call `number` of the next owner.

    Returns the name of that call; None if the next owner makes fewer. Raises SimulationError as `crash` does.
    """
    with make(seed) as world:
        story, count = Story(world), itertools.count()
        frozen: list[Daemon] = []
        thawed: list[str] = []

        def watch(daemon: Daemon, step: str) -> None:
            if daemon.name == "a" and step == stopped and not frozen and world.account.hand_overs:
                frozen.append(daemon)
                daemon.freeze()
            elif daemon.name == "b" and step != "turn" and not thawed and next(count) == number:
                thawed.append(step)
                frozen[0].thaw()

        world.watcher = watch
        story.join("a")
        story.until(lambda: frozen, f"the first member is stopped before {stopped}")
        world.produce_all()  # so that the next owner's ranges have other boundaries
        story.join("b")
        story.until(lambda: thawed or story.committed, "the first member continues, or the second one has committed")
        if not thawed:
            return None
        story.until(lambda: story.committed, "everything is committed")
        world.run(1.0)
        world.check()
        story.end("c")
        return thawed[0]
