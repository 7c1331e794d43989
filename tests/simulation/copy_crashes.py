"""Members that copy a topic to another cluster, with a fault at one chosen step.

Strategy: a member copies three partitions, whose messages come before and while it does. Before step number so-and-so
something happens to the target (`CopyWorld.strike`), the member is killed or stopped, or a second one joins. In the end
`CopyWorld.check` compares both sides: only those messages are there twice that the members could not know to be there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from tests.simulation.kernel import SimulationError
from tests.simulation.network import Link

if TYPE_CHECKING:
    from tests.simulation.copy_world import CopyWorld
    from tests.simulation.daemon import Daemon

#: What happens to a member: it is killed or stopped, or another one joins. All else happens to the target.
MemberFault = Literal["kill", "stop", "join"]
#: Whether a step is a request to the target, before it and before its answer, or a turn of the first member's loop.
CopySteps = Literal["requests", "turns"]
#: Messages of each partition at the start, and those that come later, with the seconds between them.
_FIRST, _LATER, _PAUSE = 4, 3, 0.04


def disturb_copy(
    make: Callable[[], CopyWorld], number: int, fault: str, steps: CopySteps, *, places_kept: bool = True
) -> str | None:
    """Let `fault` happen before step `number`, and tell its name; None if there are fewer.

    Raises SimulationError where a message is missing, misplaced, repeated without a reason, or committed too early.
    """
    with make() as world:
        count = itertools.count()
        disturbed: list[str] = []
        may_repeat: set[bytes] = set()

        def disturb(step: str, link: Link | None) -> None:
            if disturbed or not world.begun or next(count) != number:
                return
            disturbed.append(step)
            world.kernel.note("world", f"{fault} at {step}")
            if fault in ("kill", "stop", "join"):
                may_repeat.update(_disturb_member(world, first, fault))
            else:
                assert link is not None
                may_repeat.update(world.strike(fault, link))

        if steps == "turns":
            world.turns = lambda daemon: disturb("turn", None) if daemon is first else None
        else:
            world.watcher = lambda link, step: disturb(step, link)
        for partition in world.partitions:
            world.produce(partition, _FIRST)
        first = world.join("a")
        _produce_later(world)
        if not disturbed:
            return None
        if fault in ("kill", "stop"):
            world.join("b")
        _finish(world)
        world.check(may_repeat, places_kept=places_kept)
        return disturbed[0]


def _disturb_member(world: CopyWorld, member: Daemon, fault: str) -> set[bytes]:
    """The messages that may be repeated."""
    if fault == "kill":
        member.kill()
        return world.after_kill()
    if fault == "stop":
        member.terminate()
    else:
        world.join("b")
    return set()


def _produce_later(world: CopyWorld) -> None:
    """Let the members work, and messages come while they do."""
    world.kernel.until(lambda: world.begun, 60.0, what="a member has begun", every=0.01)
    for _ in range(_LATER):
        world.run(_PAUSE)
        world.produce_all()
    members = world.daemons
    world.kernel.until(
        lambda: world.all_committed() or not any(each.alive for each in members.values()),
        60.0,
        what="all is committed, or the member has ended",
        every=0.01,
    )


def _finish(world: CopyWorld) -> None:
    world.kernel.until(world.all_committed, 60.0, what="all is committed", every=0.05)
    world.run(1.0)  # the last one that joined is a member by then, and the one that was stopped has ended
    for daemon in world.daemons.values():
        if daemon.alive:
            daemon.terminate()
            world.until_ended(daemon)
        if daemon.failure is not None:
            raise SimulationError(f"{daemon.name} failed: {daemon.failure!r}")
