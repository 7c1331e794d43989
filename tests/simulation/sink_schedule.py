"""One random schedule of a group that stores messages exactly once: crashes, zombies and losses of power.

Strategy: a seed chooses a kind of run, and what happens at random times. Members are killed, stopped for longer than
their sessions, cut off, and told to leave; all of them lose power at once; the place is slow. Each of these may also be
armed for the next time a member works: at one of its next calls of the disk, or turns of its loop. The place of the
sink is a disk here, and a database in `table_schedule`. Kinds:

    calm     members join and leave, the place is fast and slow
    kills    processes are killed
    zombies  processes stop, and continue when others have taken their partitions over
    power    the machine loses power
    all      any of these

Whenever all is quiet or a crash has happened, the rows of each partition are the beginning of its log; in the end,
after the faults, they are all of it. A member that has ended in order has no thread left. `account` checks the
ownerships, the offsets and their order meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from consumerd.wire.registry.paths import owners_root
from tests.simulation.base_schedule import BaseSchedule
from tests.simulation.daemon import Daemon
from tests.simulation.rows_world import RowsWorld
from tests.simulation.sink_world import SinkWorld
from tests.simulation.threads import ThreadedLoop

KINDS = ("calm", "kills", "zombies", "power", "all", "all")
#: Seconds after which a session that a fault keeps from its server has timed out, and the server has seen it.
_TIMES_OUT = 9.0
#: Steps among which one is chosen for a crash.
_SOON = 40


class Outcome(NamedTuple):
    """The summary of the events of a schedule."""

    seed: int
    kind: str
    partitions: int
    members: int
    rows: int
    writes: int
    repeated: int
    happened: tuple[str, ...]
    #: Equal for equal runs.
    digest: int


class SinkSchedule(BaseSchedule[RowsWorld, Outcome]):
    """The schedule of one seed; `kind`: instead of the one that the seed chooses."""

    tests = "tests/simulation/test_sinks.py"
    kinds: tuple[str, ...] = KINDS

    def __init__(self, seed: int, kind: str | None = None) -> None:
        super().__init__(seed, self.kinds, kind)
        rng = self.rng
        self.round_trip = 0.001 * 50.0 ** rng.random()
        self.settings: dict[str, dict[str, Any]] = {
            "fetch": {"initial": "earliest"},
            "commit": {"interval": rng.choice((0.1, 2.0, 10.0))},
            "rebalance": {"drain_timeout": rng.choice((0.1, 0.5, 4.0))},
        }
        if rng.random() < 0.5:
            self.settings["handler"] = {"max_batch": rng.choice((1, 3, 10))}
        #: What a process does at one of its next steps: its name or "" for the first that gets there, and what.
        self._armed: dict[str, Callable[[Daemon], None]] = {}
        self._countdown: dict[str, int] = {}

    def make_world(self) -> RowsWorld:
        return SinkWorld(self.seed, round_trip=self.round_trip)

    @property
    def description(self) -> str:
        return f"{self.kind}, round trip {self.round_trip * 1000:.1f} ms, {self.settings}"

    # -- the run

    def play(self) -> None:
        world, rng = self.world, self.rng
        world.account.count_all()
        world.watcher = self._watch
        world.topic("t", rng.randint(1, 3))
        for _ in range(rng.randint(1, 2)):
            self._join()
        world.produce_steadily(rng.choice((3.0, 8.0)))
        self._pass(rng.uniform(0.0, 2.0))
        for _ in range(rng.randint(3, 7)):
            self._choose(self._steps())
            self._pass(rng.choice((0.05, 0.5, 3.0, 8.0)) * rng.random())
        self._end()

    def _steps(self) -> list[tuple[float, Callable[[], None]]]:
        steps: list[tuple[float, Callable[[], None]]] = [
            (3, self._join),
            (1, self._leave),
            (2, self._burst),
            (1, self._slow_down),
        ]
        if self.kind in ("kills", "all"):
            steps += [(1, self._kill), (4, lambda: self._arm("kill", self._kill_now))]
        if self.kind in ("zombies", "all"):
            steps += [(1, self._freeze), (4, lambda: self._arm("freeze", self._freeze_now)), (1, self._delete_owner)]
        if self.kind in ("power", "all"):
            steps += [(1, self._lose_power), (4, lambda: self._arm("power", lambda daemon: self._lose_power()))]
        if self.kind == "all":
            steps += [(1, self._cut), (1, self._stall), (1, self._lose_reply)]
        return steps

    def _fault(self, what: str, names: Any, seconds: float = 0.0) -> None:
        names = None if names is None else list(names)
        super()._fault(what, names, seconds)
        for name in (None,) if names is None else names:
            self.world.account.disturbed(name, seconds + _TIMES_OUT)

    def _links(self, daemon: Daemon) -> list[Any]:
        zookeeper = self.world.zookeeper
        return self.world.network.links_of(daemon.name, (zookeeper.host, zookeeper.port))

    def _provoke(self, daemon: Daemon) -> None:
        """Messages are committed soon."""
        self._burst()

    # -- steps

    def _join(self) -> None:
        if len(self._living) >= 3:
            return
        self._names += 1
        name = f"{self.rng.choice('abc')}{self._names}"
        self._note(f"join {name}")
        self.world.daemon(name, {**self.settings, "group": {"consumer_id": name}})

    def _slow_down(self) -> None:
        factor = self.rng.choice((10.0, 100.0, 1000.0))
        self.world.slow_down(factor)
        self._note(f"slow, by {factor:g}")
        self._later(self.rng.uniform(0.5, 8.0), lambda: self.world.slow_down(1.0))

    def _delete_owner(self) -> None:
        zookeeper = self.world.zookeeper
        root = owners_root(self.world.group) + "/"
        nodes = [path for path, node in zookeeper.tree.nodes.items() if node.owner and path.startswith(root)]
        if nodes:
            path = self.rng.choice(nodes)
            self._fault(f"delete {path}", None)
            zookeeper.remove(path)

    def _lose_power(self) -> None:
        self._fault("power", None)
        self.world.lose_power()
        self._armed.clear()
        if self.rng.random() < 0.7:
            self._join()

    # -- at a step of a process

    def _arm(self, what: str, action: Callable[[Daemon], None]) -> None:
        """Let it happen to a process at one of its next calls of the place, or else turns."""
        daemon = self._one()
        if daemon is None:
            return
        self._note(f"arm {what} of {daemon.name}")
        self._at_calls = self.rng.random() < 0.75
        self._countdown[daemon.name] = self.rng.randrange(_SOON)
        self._armed[daemon.name] = action
        self._burst()

    def _watch(self, daemon: Daemon, step: str) -> None:
        action = self._armed.get(daemon.name)
        if action is None or (step == "turn") == self._at_calls:
            return
        if self._countdown[daemon.name]:
            self._countdown[daemon.name] -= 1
            return
        del self._armed[daemon.name]
        self._note(f"now, before {step}")
        action(daemon)

    def _kill_now(self, daemon: Daemon) -> None:
        self._fault(f"kill {daemon.name}", [daemon.name])
        daemon.kill()
        self.world.check()

    def _freeze_now(self, daemon: Daemon) -> None:
        seconds = self.rng.choice((0.3, 7.0, 12.0)) * self.rng.uniform(0.7, 1.3)
        self._fault(f"freeze {daemon.name} for {seconds:.1f} s", [daemon.name], seconds)
        daemon.freeze()
        self._later(seconds, lambda: daemon.thaw() if daemon.loop.stopped and not daemon.loop.dead else None)

    # -- the end

    def _end(self) -> None:
        world = self.world
        self._armed.clear()
        self._heal()
        world.slow_down(1.0)
        if not self._living:
            self._join()
        world.produce_all()
        world.finish()
        self._require(not world.account.lost, f"not delivered: {world.account.lost[:5]}")
        world.check()
        world.until_shared(90.0)
        self._terminate(self._living)
        for daemon in world.daemons.values():
            assert isinstance(daemon.loop, ThreadedLoop)
            self._require(not daemon.ended or not daemon.loop.works, f"{daemon.name} has ended, but its thread has not")
        self._require(not world.account.violations, "a rule was broken")
        self._require(not world.account.uncommitted, f"not committed in the end: {world.account.uncommitted[:5]}")
        world.check(complete=True)

    def outcome(self) -> Outcome:
        world, account = self.world, self.world.account
        rows = world.read()
        digest = hash(tuple(each.time for each in account.hand_overs)) ^ hash(world.kernel.now)
        return Outcome(
            self.seed,
            self.kind,
            len(world.partitions),
            len(world.daemons),
            sum(map(len, rows.values())),
            world.writes,
            len(account.repeated),
            tuple(self.happened),
            digest,
        )
