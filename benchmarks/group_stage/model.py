"""The same events in a model: real members in one process and in virtual time, ZooKeeper and broker in memory.

Strategy: what the tests simulate (`tests.simulation`), at sizes for which a machine would not do. ZooKeeper speaks its
wire protocol, is `--zookeeper-ms` away (1 where that is 0) and takes 20,000 requests a second. Seconds are virtual, so
the machine's load does not show. Requests are counted as they reach the server, until a second after the group has
settled, and none but an event's: heartbeats are left out, commits on the interval and reconciliations switched off.
Names say where a member stands in the order of the group: one more at the end moves few partitions, one more at the
front nearly all.

Nothing may be lost, repeated or left uncommitted, and each event's requests stay below the formula that the tests hold
members to; the lower bound of any such protocol is printed beside them (both: `tests.simulation.requests`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.group_stage.figures import Figures
from consumerd.testing.memory_tree import Change
from consumerd.wire.registry.paths import ids_path, offsets_path, owners_root
from tests.simulation.requests import (
    HEARTBEATS,
    least_of_join,
    least_of_leave,
    least_of_partitions,
    of_join,
    of_leave,
    of_partitions,
)
from tests.simulation.world import World

if TYPE_CHECKING:
    import argparse

#: Requests that the modelled ZooKeeper takes in a second.
RATE = 20_000.0
#: Promise: seconds from an event until all partitions have the owners that they are to have.
SETTLED_SECONDS = 5.0
#: Virtual seconds: after which a group that did not settle never will, and between two events.
PATIENCE = 300.0
CALM = 1.0
#: Seconds between what members do without an event: commits on the interval, reconciliations.
NEVER = 3600.0
TOPIC = "events"


class Model:
    """One group in one world. Names of members sort as `m000`, `m001` and so on."""

    def __init__(self, world: World, options: argparse.Namespace, figures: Figures) -> None:
        self._world = world
        self._options = options
        self._figures = figures
        #: When an owner node was made or deleted last.
        self._changed_at = 0.0
        self._root = owners_root(world.group) + "/"
        world.zookeeper.observers.append(self._observe)

    def _observe(self, change: Change, path: str) -> None:
        if path.startswith(self._root) and change in (Change.CREATED, Change.DELETED):
            self._changed_at = self._world.kernel.now

    def run(self) -> None:
        """All events, one after the other."""
        members, partitions = self._options.members, self._options.partitions
        self._world.topic(TOPIC, partitions)
        self._event("start", partial(self._start, *(f"m{number:03d}" for number in range(members))))
        self._world.account.count_from(self._world.ends())
        for name, place in (("z", "at the end"), ("a", "at the front")):
            self._event(
                f"join {place}",
                partial(self._start, name),
                lambda moved, took, new: of_join(members, moved, 1, 1, 1, waited=took, new_topics=new),
                lambda moved: least_of_join(members, moved, 1, 1, 1),
            )
            self._event(
                f"leave {place}",
                partial(self._leave, name),
                lambda moved, took, new: of_leave(members, moved, 1, waited=took, new_topics=new),
                lambda moved: least_of_leave(members, moved),
            )
        self._event(
            "one partition more",
            lambda: self._world.topic(TOPIC, partitions + 1),
            lambda moved, took, new: of_partitions(members, moved, 1, waited=took, new_topics=new),
            lambda moved: least_of_partitions(members, moved),
        )
        self._stop()
        account = self._world.account
        self._figures.add("messages", account.count, "")
        self._figures.add("lost", len(account.lost), "", 0)
        self._figures.add("repeated", len(account.repeated), "", 0)
        self._figures.add("not committed", len(account.uncommitted), "", 0)
        for violation in account.violations:
            self._figures.fail(violation)

    def _start(self, *names: str) -> None:
        settings: dict[str, dict[str, Any]] = {
            "commit": {"interval": NEVER},
            "rebalance": {"reconcile_interval": NEVER},
            "fetch": {"initial": self._options.initial},
        }
        for name in names:
            self._world.daemon(name, {**settings, "group": {"consumer_id": name}})

    @property
    def _all_registered(self) -> bool:
        node = self._world.zookeeper.tree.nodes.get(ids_path(self._world.group))
        return node is not None and len(node.children) == sum(it.alive for it in self._world.daemons.values())

    def _leave(self, name: str) -> None:
        daemon = self._world.daemons[name]
        daemon.terminate()
        self._world.until_ended(daemon, PATIENCE)

    def _event(
        self,
        name: str,
        happen: Callable[[], object],
        limit: Callable[[int, float, int], int] | None = None,
        least: Callable[[int], int] | None = None,
    ) -> None:
        """Each partition has a message that is not committed when it happens.

        `least` says what it must cost with so many partitions moved; `limit` what it may, if that took so many seconds,
        and so many topics were committed to for the first time.
        """
        world, began = self._world, time.monotonic()
        world.produce_all()
        world.run(CALM)
        before, owners = Counter(world.zookeeper.requests), world.owners()
        new = int(offsets_path(world.group, TOPIC) not in world.zookeeper.tree.nodes)
        at = world.kernel.now
        happen()
        world.kernel.until(lambda: self._all_registered and world.is_shared, PATIENCE, what=f"settled: {name}")
        world.run(CALM)  # with fewer partitions than members it may have looked settled before anything moved
        took = max(0.0, self._changed_at - at)
        moved = len(world.owners().items() - owners.items())
        self._figures.add(f"{name}: settled", took, "s", SETTLED_SECONDS)
        self._figures.add(f"{name}: partitions moved", moved, "")
        self._tell(name, before, None if limit is None else limit(moved, took, new))
        if least is not None:
            self._figures.add(f"{name}: lower bound of requests", least(moved), "")
        self._figures.add(f"{name}: took to compute", time.monotonic() - began, "s")

    def _stop(self) -> None:
        """All leave at once."""
        world = self._world
        world.finish()
        before, began = Counter(world.zookeeper.requests), world.kernel.now
        living = [daemon for daemon in world.daemons.values() if daemon.alive]
        for daemon in living:
            daemon.terminate()
        for daemon in living:
            world.until_ended(daemon, PATIENCE)
        self._figures.add("all stop: ended", world.kernel.now - began, "s", SETTLED_SECONDS)
        self._tell("all stop", before)

    def _tell(self, name: str, before: Counter[tuple[str, str]], limit: int | None = None) -> None:
        spent: Counter[str] = Counter()
        for (_, kind), count in (Counter(self._world.zookeeper.requests) - before).items():
            if kind not in HEARTBEATS:
                spent[kind] += count
        self._figures.spread(f"{name}: requests", spent, "", limit, detail=True)


def model(options: argparse.Namespace, figures: Figures) -> None:
    """Run it."""
    with World(seed=1, round_trip=(options.zookeeper_ms or 1) / 1000, rate=RATE) as world:
        Model(world, options, figures).run()
