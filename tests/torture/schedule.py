"""Which faults come, in which order, for how long: a pure function of the seed and the size of the stage.

Strategy: kinds come from a shuffled deck, so that a run has most kinds before it repeats one. An episode is a list of
faults with the times of their beginnings; targets are numbers, which the player takes modulo what runs then. The
schedule counts members itself, so that one at least is always left and the group never grows above its size.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

#: Seconds that short faults of a link, a member or a server last, well below the session timeout.
_SHORT: Final = (0.2, 0.5, 1.0, 1.5)
#: Faults of an episode with several of them.
_FEWEST, _MOST = 2, 4
#: Part of the episodes that have one fault alone.
_ALONE: Final = 0.4


@dataclass(frozen=True, slots=True)
class Size:
    """What the schedule depends on besides its seed. `servers` of ZooKeeper that members depend on, 0 for none.

    `session_timeout` in seconds, of the members. `member_links`: whether one member alone can be cut off from what
    coordinates its group. `brokers`: how many there are. `slow_disks`: whose disks can be made slow (`member`,
    `broker`, `zookeeper`). `little_memory`: whether the memory of members may be limited.
    `zookeeper_links`: whether the servers of ZooKeeper can be cut from each other. `secured`: whether brokers have a
    password and a certificate for members.
    """

    members: int
    servers: int
    session_timeout: float
    #: Kinds to draw from; empty: all that the stage can perform.
    kinds: tuple[str, ...] = ()
    full_disks: bool = True
    member_links: bool = True
    brokers: int = 1
    slow_disks: tuple[str, ...] = ()
    little_memory: bool = False
    zookeeper_links: bool = False
    secured: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """`after` seconds from the beginning of the episode, for `seconds`; `amount` is a delay in seconds or a choice."""

    kind: str
    after: float = 0.0
    seconds: float = 0.0
    target: int = 0
    amount: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind}({self.target % 100}, {self.seconds:.1f} s, {self.amount:.3f})"


@dataclass(frozen=True, slots=True)
class Episode:
    """Faults that overlap; or one alone, which is timed. Then `rest` seconds without a fault."""

    faults: tuple[Fault, ...]
    rest: float

    @property
    def timed(self) -> bool:
        """Whether the time without an owner is judged."""
        return len(self.faults) == 1 and self.faults[0].kind in TIMED


def _none(_: random.Random, __: Size) -> float:
    return 0.0


def _short(rng: random.Random, _: Size) -> float:
    return rng.choice(_SHORT)


def _either(rng: random.Random, size: Size) -> float:
    """Shorter or longer than the session."""
    return rng.choice((*_SHORT, 0.7 * size.session_timeout, 1.3 * size.session_timeout, 1.8 * size.session_timeout))


def _long(rng: random.Random, size: Size) -> float:
    """Longer than the session of a broker, which is not longer than that of a member and a half."""
    return rng.choice((1.5, 2.0, 2.5)) * size.session_timeout


def _some_seconds(rng: random.Random, _: Size) -> float:
    return rng.uniform(1.0, 5.0)


#: All kinds, with how long they last.
KINDS: Final[dict[str, Callable[[random.Random, Size], float]]] = {
    "member_kill": _none,
    "member_stop": _none,
    "member_join": _none,
    "member_freeze": _either,
    "members_freeze": _either,
    "member_cut": _none,
    "member_stall": _either,
    "member_delay": _some_seconds,
    "member_descriptors": _some_seconds,
    "handler_hang": _some_seconds,
    "zookeeper_kill": _either,
    "zookeeper_freeze": _short,
    "zookeeper_leader_kill": _either,
    "zookeeper_leader_freeze": _either,
    "zookeeper_isolated": _either,
    "zookeeper_cut_off": _either,
    "zookeeper_leader_cut_off": _either,
    "zookeeper_mute": _either,
    "zookeeper_rolling_restart": _none,
    "broker_kill": _short,
    "broker_restart": _none,
    "broker_leader_kill": _long,
    "broker_rolling_restart": _none,
    "broker_freeze": _short,
    "broker_descriptors": _some_seconds,
    "broker_cut": _none,
    "broker_mute": _short,
    "broker_stall": _some_seconds,
    "broker_delay": _some_seconds,
    "broker_password": _some_seconds,
    "broker_certificate": _either,
    "disk_full": _some_seconds,
    "member_disk_slow": _some_seconds,
    "broker_disk_slow": _some_seconds,
    "zookeeper_disks_slow": _some_seconds,
    "member_memory": _some_seconds,
}
#: Kinds about the connections of one member to what coordinates its group.
MEMBER_LINKS: Final = frozenset({"member_cut", "member_stall", "member_delay"})
#: Kinds that only a cluster of brokers has.
CLUSTER: Final = frozenset({"broker_leader_kill", "broker_rolling_restart"})
#: Kinds about disks that need a library in the process.
SLOW_DISKS: Final = frozenset({"member_disk_slow", "broker_disk_slow", "zookeeper_disks_slow"})
#: Kinds that need a ZooKeeper that members depend on.
ZOOKEEPER: Final = frozenset(kind for kind in KINDS if "zookeeper" in kind)
#: Kinds that only an ensemble has.
ENSEMBLE: Final = frozenset(
    kind for kind in KINDS if kind.startswith(("zookeeper_leader", "zookeeper_is", "zookeeper_ro"))
)
#: Kinds about what brokers ask of members before they serve them.
SECURED: Final = frozenset({"broker_password", "broker_certificate"})
#: Kinds that never come together with another: members end of them, and are started again.
APART: Final = frozenset({"broker_password"})
#: Kinds about the links between servers of ZooKeeper.
ZOOKEEPER_LINKS: Final = frozenset({"zookeeper_cut_off", "zookeeper_leader_cut_off", "zookeeper_mute"})
#: Kinds that have an episode of their own, which is timed.
TIMED: Final = frozenset({"member_kill", "member_stop"})
#: Cards in the deck of kinds that come more than once.
_CARDS: Final = {"member_join": 4, "member_kill": 2, "member_stop": 2, "member_freeze": 2, "zookeeper_kill": 2}


def possible_kinds(size: Size) -> tuple[str, ...]:
    """The kinds that a stage of this size has."""
    return tuple(
        kind
        for kind in KINDS
        if (not size.kinds or kind in size.kinds)
        and (size.servers > 0 or kind not in ZOOKEEPER)
        and (size.servers > 1 or kind not in ENSEMBLE)
        and (size.member_links or kind not in MEMBER_LINKS)
        and (size.brokers > 1 or kind not in CLUSTER)
        and (size.full_disks or kind != "disk_full")
        and (kind not in SLOW_DISKS or kind.partition("_")[0] in size.slow_disks)
        and (size.zookeeper_links or kind not in ZOOKEEPER_LINKS)
        and (size.secured or kind not in SECURED)
        and (size.little_memory or kind != "member_memory")
    )


def episodes(seed: int, size: Size) -> Iterator[Episode]:
    """Episodes without end. The first one finds `size.members` members running.

    Raises ValueError if no kind is possible.
    """
    rng = random.Random(seed)
    deck = [kind for kind in possible_kinds(size) for _ in range(_CARDS.get(kind, 1))]
    if not deck:
        raise ValueError(f"a stage of this size cannot perform any of {sorted(size.kinds)}")
    timed = sorted(TIMED.intersection(deck))
    cards: list[str] = []
    running = size.members
    while True:
        faults: list[Fault] = []
        alone = rng.random() < _ALONE
        after = 0.0
        for _ in range(1 if alone else rng.randint(_FEWEST, _MOST)):
            if not cards:
                cards = rng.sample(deck, len(deck))
            kind = rng.choice(timed) if alone and timed else cards.pop()
            if kind in APART and faults:
                cards.append(kind)  # it is the next one
                break
            if kind in TIMED and running == 1:
                kind = "member_join"
            elif kind == "member_join" and running == size.members:
                kind = "member_stop" if running > 1 else "member_freeze"
            running += {"member_join": 1, "member_kill": -1, "member_stop": -1}.get(kind, 0)
            faults.append(Fault(kind, after, KINDS[kind](rng, size), rng.randrange(1 << 16), rng.uniform(0.001, 0.2)))
            if kind in APART:
                break
            after += rng.uniform(0.0, 1.0)
        yield Episode(tuple(faults), rng.uniform(0.2, 1.5))
