"""Common parts of all random schedules: steps at random times, faults, and the account at the end.

Strategy: a subclass makes the world, and defines the events (`play`) and the conditions at the end. The account checks
every step. Each repeated message must be explained by a fault. A failure is reported with its timeline.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from tests.simulation.account import HandOver, Message
from tests.simulation.kernel import SimulationError

if TYPE_CHECKING:
    from tests.simulation.base_world import BaseWorld, Ending
    from tests.simulation.daemon import Daemon

_World = TypeVar("_World", bound="BaseWorld")
_Outcome = TypeVar("_Outcome")

#: Seconds for which a fault may show after it has ended: a session times out, the group rebalances.
AFTERMATH = 12.0
#: Seconds after which a healed group has settled.
SETTLED_WITHIN = 90.0
#: Lines of the timeline that a failure shows before its error.
SHOWN = 120


class ScheduleError(AssertionError):
    """A schedule did not end as it has to."""


class Fault(NamedTuple):
    """A fault, from `start` to `end`. `names`: the processes that it hit; None for all."""

    start: float
    end: float
    names: frozenset[str] | None
    what: str
    #: For so many seconds before it a message may not have been committed.
    before: float = math.inf
    #: It ends ownerships only by deleting owner nodes.
    takes: bool = False

    def explains(self, first: HandOver, again: HandOver) -> bool:
        """Whether the message of `first` may have been delivered once more."""
        hit = self.names is None or first.member in self.names
        return hit and self.start <= again.time and self.start - self.before <= first.time <= self.end + AFTERMATH


class BaseSchedule(Generic[_World, _Outcome]):
    """The schedule of one seed; `kind`: instead of the one of `kinds` that the seed chooses."""

    #: The file that plays one alone.
    tests = "tests/simulation/test_schedules.py"
    world: _World

    def __init__(self, seed: int, kinds: Sequence[str], kind: str | None = None) -> None:
        self.seed = seed
        rng = self.rng = random.Random(f"schedule/{seed}")
        self.kind = kind or rng.choice(kinds)
        self.happened: list[str] = []
        self.faults: list[Fault] = []
        self._undo: list[Callable[[], None]] = []
        self._names = 0
        self._told_to_leave: set[str] = set()

    # -- what subclasses say

    def make_world(self) -> _World:
        """The world, not entered."""
        raise NotImplementedError

    @property
    def description(self) -> str:
        """The random choices of the schedule, as text."""
        return self.kind

    def play(self) -> None:
        """All that happens."""
        raise NotImplementedError

    def outcome(self) -> _Outcome:
        """The summary of the events of a schedule."""
        raise NotImplementedError

    def _links(self, daemon: Daemon) -> list[Any]:
        """Connections of a process, for a fault to hit."""
        raise NotImplementedError

    def _provoke(self, daemon: Daemon) -> None:
        """Have members write just then."""

    def _busy(self, daemon: Daemon) -> Daemon:
        """Whom a freeze hits: this process, or one that has more to do."""
        return daemon

    def _isolate(self, daemon: Daemon, seconds: float) -> None:
        """Apply to the network the effects of a machine that is suspended for this time."""

    def _is_explained(self, first: HandOver, again: HandOver) -> bool:
        """Whether the message of `first` may have been delivered once more."""
        return any(fault.explains(first, again) for fault in self.faults)

    # -- the run

    def run(self) -> _Outcome:
        """Play it to its end. Raises ScheduleError."""
        world = self.world = self.make_world()
        try:
            with world:
                self.play()
                return self.outcome()
        except (AssertionError, Exception) as error:
            raise ScheduleError(self._report(error)) from error

    def _pass(self, seconds: float) -> None:
        self.world.run(seconds)
        self._require(not self.world.account.violations, "a rule was broken")

    # -- steps

    def _choose(self, steps: Sequence[tuple[float, Callable[[], None]]]) -> None:
        """Do one of them, by weight."""
        weights = [weight for weight, _ in steps]
        (_, action), *_ = self.rng.choices(steps, weights)
        action()

    def _note(self, what: str) -> None:
        self.happened.append(what.split(" ", maxsplit=1)[0])
        self.world.kernel.note("schedule", what)

    def _fault(self, what: str, names: Iterable[str] | None, seconds: float = 0.0) -> None:
        now = self.world.kernel.now
        self._note(what)
        self.faults.append(Fault(now, now + seconds, None if names is None else frozenset(names), what))

    @property
    def _living(self) -> list[Daemon]:
        return [
            daemon for daemon in self.world.daemons.values() if daemon.alive and daemon.name not in self._told_to_leave
        ]

    def _one(self) -> Daemon | None:
        living = self._living
        return self.rng.choice(living) if living else None

    def _leave(self) -> None:
        daemon = self._one()
        if daemon is None:
            return
        self._note(f"leave {daemon.name}")
        self._told_to_leave.add(daemon.name)
        daemon.terminate()

    def _burst(self) -> None:
        for partition in self.world.partitions:
            if self.rng.random() < 0.5:
                self.world.produce(partition, self.rng.randint(1, 3))

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        """Do it after a while, or when all is healed."""
        done: list[bool] = []

        def once() -> None:
            if not done:
                done.append(True)
                action()

        self._undo.append(once)
        self.world.kernel.after(seconds, once)

    # -- faults

    def _kill(self) -> None:
        daemon = self._one()
        if daemon is not None:
            self._fault(f"kill {daemon.name}", [daemon.name])
            daemon.kill()

    def _freeze(self) -> None:
        daemon = self._one()
        if daemon is None or daemon.loop.stopped:
            return
        seconds = self.rng.choice((0.3, 3.0, 7.0, 12.0, 25.0)) * self.rng.uniform(0.7, 1.3)
        daemon = self._busy(daemon)
        self._fault(f"freeze {daemon.name} for {seconds:.1f} s", [daemon.name], seconds)
        daemon.freeze()
        self._later(seconds, lambda: daemon.thaw() if daemon.loop.stopped and not daemon.loop.dead else None)

    def _suspend(self) -> None:
        daemon = self._one()
        if daemon is None or daemon.loop.stopped:
            return
        seconds = self.rng.choice((3.0, 10.0, 30.0)) * self.rng.uniform(0.7, 1.3)
        daemon = self._busy(daemon)
        self._fault(f"suspend {daemon.name} for {seconds:.1f} s", [daemon.name], seconds)
        self._isolate(daemon, seconds)
        daemon.suspend()
        self._later(seconds, lambda: daemon.resume() if daemon.loop.stopped and not daemon.loop.dead else None)

    def _cut(self) -> None:
        daemon = self._one()
        if daemon is not None:
            self._fault(f"cut {daemon.name}", [daemon.name])
            for link in self._links(daemon):
                link.cut()

    def _stall(self) -> None:
        daemon = self._one()
        if daemon is None:
            return
        links, seconds = self._links(daemon), self.rng.choice((0.5, 4.0, 15.0)) * self.rng.uniform(0.7, 1.3)
        up, down = self.rng.choice(((True, True), (True, False), (False, True)))
        ways = f"{'up' if up else ''}{'down' if down else ''}"
        self._fault(f"stall {daemon.name} {ways} for {seconds:.1f} s", [daemon.name], seconds)
        for link in links:
            link.stall(up=up, down=down)

        def go_on() -> None:
            for link in links:
                link.stall(False)

        self._later(seconds, go_on)

    def _lose_reply(self) -> None:
        daemon = self._one()
        if daemon is not None:
            self._fault(f"lose-reply of {daemon.name}", [daemon.name], 12.0)
            for link in self._links(daemon):
                link.lose_reply = True
            if self.rng.random() < 0.5:
                self._provoke(daemon)

    # -- the end

    def _heal(self) -> None:
        self._note("heal")
        undo, self._undo = self._undo, []
        for each in undo:
            each()

    def _terminate(self, leaving: Sequence[Ending]) -> None:
        """All of these leave, and end in order."""
        world = self.world
        for each in leaving:
            each.terminate()
            if self.rng.random() < 0.3:
                self._pass(self.rng.uniform(0.0, 2.0))
        for each in leaving:
            world.until_ended(each, 30.0)
            self._require(each.failure is None, f"{each.name} failed: {each.failure!r}")
        self._pass(0.5)
        for daemon in world.daemons.values():
            self._require(daemon.failure is None, f"{daemon.name} failed: {daemon.failure!r}")

    def _require_last_hand_overs(self) -> None:
        """The owner of each partition got its last message, once."""
        owners = self.world.owners()
        last = {each.partition: each for each in self.world.account.hand_overs}
        for partition, owner in owners.items():
            self._require(partition in last, f"{partition} was never handed over")
            self._require(last[partition].member == owner, f"{last[partition]}, but {owner} owns it")

    def _explain_repeats(self) -> None:
        account = self.world.account
        repeated = set(account.repeated)
        before: dict[Message, HandOver] = {}
        for each in account.hand_overs:
            message = each.message
            if message not in repeated:
                continue
            first = before.get(message)
            before[message] = each
            if first is not None:
                self._require(self._is_explained(first, each), f"nothing explains that {first} was repeated: {each}")

    def _require(self, condition: bool, what: str) -> None:
        if not condition:
            raise SimulationError(what)

    # -- for people

    def _report(self, error: BaseException) -> str:
        world = self.world
        lines = world.timeline(last=10**9).splitlines()
        broken = next((number for number, line in enumerate(lines) if "VIOLATION" in line), len(lines))
        shown = lines[max(0, broken - SHOWN) : broken + 5]
        violations = "\n".join(world.account.violations[:5])
        return (
            f"seed {self.seed} ({self.description}): "
            f"{type(error).__name__}: {error}\n{violations}\n\n" + "\n".join(shown) + f"\n\nseed {self.seed}: {error}"
            f"\nThe same again, alone: CONSUMERD_SEED={self.seed} python -m pytest {self.tests}"
        )
