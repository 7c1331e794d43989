"""The mirror with a fault at one chosen request to the target, or at one of its awaits.

Strategy: a mirror copies three partitions to a cluster with two brokers (`tests.simulation.mirror_world`). Before step
number so-and-so a connection to the target breaks, a broker of the target restarts or leaves its cluster for a while,
the mirror is killed or stopped, or a second mirror joins. In the end all messages are on the target, each partition in
order and in the place that docs/tools.md says, and only those are there twice that the mirror could not know to be
there: not confirmed when the connection ended, or not committed when the mirror was killed.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Literal

from consumerd.producer import ProducerSettings
from tests.simulation.kernel import SimulationError
from tests.simulation.mirror_world import MirrorWorld

if TYPE_CHECKING:
    from tests.simulation.daemon import Daemon
    from tests.simulation.mirror_world import TargetBroker
    from tests.simulation.network import Link

#: What happens at a request to the target.
TargetFault = Literal["cut", "broker restarts", "broker leaves"]
#: What happens before a turn of the mirror's loop, or at a request.
MirrorFault = Literal["kill", "stop", "join"]
#: Whether a step is a request, before the broker works on it or before it answers, or a turn of the first mirror.
MirrorSteps = Literal["requests", "turns"]
#: Messages of each partition at the start, and those that come later, with the seconds between them.
_FIRST, _LATER, _PAUSE = 4, 3, 0.04
#: Seconds for which a broker is away: longer than the producer tries, so that the handler tries again.
_AWAY = 6.0


def disturb_mirror(
    number: int,
    fault: TargetFault | MirrorFault,
    steps: MirrorSteps = "requests",
    seed: int = 0,
    *,
    verify: bool = False,
) -> str | None:
    """Let `fault` happen before step `number`, and tell its name; None if there are fewer.

    Raises SimulationError where a message is missing, misplaced, repeated without a reason, or committed too early.
    """
    with MirrorWorld(seed, ProducerSettings(verify=verify)) as world:
        count = itertools.count()
        disturbed: list[str] = []
        may_repeat: set[bytes] = set()

        def disturb(step: str, broker: TargetBroker | None, link: Link | None) -> None:
            if disturbed or not world.begun or next(count) != number:
                return
            disturbed.append(step)
            world.kernel.note("world", f"{fault} at {step}")
            if fault in ("kill", "stop", "join"):
                may_repeat.update(_disturb_process(world, first, fault))
            else:
                assert broker is not None
                assert link is not None
                may_repeat.update(_disturb_target(world, broker, link, fault))

        if steps == "turns":
            world.turns = lambda daemon: disturb("turn", None, None) if daemon is first else None
        else:
            world.watcher = lambda broker, link, step: disturb(step, broker, link)
        for partition in world.partitions:
            world.produce(partition, _FIRST)
        first = world.join("a")
        _produce_later(world)
        if not disturbed:
            return None
        if fault in ("kill", "stop"):
            world.join("b")
        _finish(world)
        world.check(may_repeat, places_kept=fault != "broker leaves")
        return disturbed[0]


def _disturb_process(world: MirrorWorld, mirror: Daemon, fault: str) -> set[bytes]:
    """The messages that may be repeated."""
    if fault == "kill":
        mirror.kill()
        return world.uncommitted()
    if fault == "stop":
        mirror.terminate()
    else:
        world.join("b")
    return set()


def _disturb_target(world: MirrorWorld, broker: TargetBroker, link: Link, fault: str) -> set[bytes]:
    """The messages that may be repeated."""
    if fault == "cut":
        found = world.unconfirmed(broker, link)
        link.cut()
        return found
    found = world.unconfirmed(broker)
    if fault == "broker restarts":
        broker.stop()
        world.kernel.after(_AWAY, broker.start)
    else:
        broker.leave()
        world.kernel.after(_AWAY, broker.start)
        world.kernel.after(_AWAY, broker.join)
    return found


def _produce_later(world: MirrorWorld) -> None:
    """Let the mirror work, and messages come while it does."""
    world.kernel.until(lambda: world.begun, 60.0, what="the mirror has begun", every=0.01)
    for _ in range(_LATER):
        world.run(_PAUSE)
        world.produce_all()
    mirrors = world.daemons
    world.kernel.until(
        lambda: world.all_committed() or not any(each.alive for each in mirrors.values()),
        60.0,
        what="all is committed, or the mirror has ended",
        every=0.01,
    )


def _finish(world: MirrorWorld) -> None:
    world.kernel.until(world.all_committed, 60.0, what="all is committed", every=0.05)
    world.run(1.0)  # the last one that joined is a member by then, and the one that was stopped has ended
    for daemon in world.daemons.values():
        if daemon.alive:
            daemon.terminate()
            world.until_ended(daemon)
        if daemon.failure is not None:
            raise SimulationError(f"{daemon.name} failed: {daemon.failure!r}")
