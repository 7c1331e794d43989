"""The account of each message that was delivered to a group in ZooKeeper, and of allowed repetitions.

These rules hold for every kind of group:

- every message of every partition was delivered by a member;
- ours: within one ownership (from a claim to the next), messages come without a gap and without a step back;
- a new owner of a partition delivers no message again, except for the cases in the class of its account. Between our
  members no message is repeated, whether one leaves or the other joins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations, pairwise

COMMIT_INTERVAL = 0.5
#: Seconds that a JVM takes, on a busy machine, from reading an offset to handing over what comes first there.
LOOK_TO_CLAIM = 2.0


@dataclass
class Run:
    """Messages that one member got without a gap: the position of the first, and the time of each."""

    member: str
    first: int
    times: list[float]

    @property
    def last(self) -> int:
        return self.first + len(self.times) - 1

    def __repr__(self) -> str:
        return f"<{self.member} {self.first}-{self.last} from {self.times[0]:.3f} to {self.times[-1]:.3f}>"


@dataclass
class Runs:
    """The messages of one partition that were delivered."""

    jvm: set[str]
    #: When a member that owned the partition was killed or frozen, and the committed offset then.
    killed: Mapping[str, tuple[float, int]]
    runs: list[Run] = field(default_factory=list)

    def add(self, member: str, handed: list[tuple[float, int | None]]) -> None:
        """The messages that a member got, None for a claim. JVM members report no claims: a gap means a claim."""
        run: Run | None = None
        for at, position in handed:
            if position is None:
                run = None
            elif run is not None and position == run.last + 1:
                run.times.append(at)
            else:
                assert run is None or member in self.jvm, f"{run} goes on at {position}"
                run = Run(member, position, [at])
                self.runs.append(run)


@dataclass
class OldAccount(Runs):
    """The account of a partition of a group with old consumers of 0.8 to 1.1, where each message has an offset.

    They arrive in the order of the partition, and at one owner at a time: once the next one has got a message, the
    former one gets no more. These may be repeated

    - after a member that was killed or frozen: the messages that it had got after its last commit;
    - after a JVM member: the one message per stream that its iterator holds when it releases the partition;
    - to a JVM member after one of ours: the messages that ours handled last, since old consumers read the committed
      offset before they claim the partition.
    """

    #: Seconds from the one to the other.
    look_to_claim: float = LOOK_TO_CLAIM

    def part(self) -> None:
        """Part the runs of JVM members where another member had the partition in between, from its claim to its end.

        A member that gets a partition back continues where it was, if nothing was committed meanwhile.
        """
        whole, self.runs = self.runs, []
        for run in whole:
            first = 0
            for at in range(1, len(run.times) if run.member in self.jvm else 0):
                before, after = run.times[at - 1], run.times[at]
                if any(
                    other.member != run.member and before < other.times[0] and other.times[-1] < after
                    for other in whole
                ):
                    self.runs.append(Run(run.member, run.first + first, run.times[first:at]))
                    first = at
            self.runs.append(Run(run.member, run.first + first, run.times[first:]))

    def check(self, count: int) -> None:
        """Of so many messages."""
        self.part()
        self.runs.sort(key=lambda run: run.times[0])
        handed: dict[int, tuple[float, Run]] = {}
        for run in self.runs:
            for offset, at in enumerate(run.times, run.first):
                if offset in handed:
                    first, before = handed[offset]
                    assert self.may_repeat(offset, run, at, before, first), (
                        f"{run} repeats {offset} of {before} after {at - first:.3f} s"
                    )
                handed[offset] = at, run
        missing = set(range(count)) - handed.keys()
        assert not missing, f"never handed over: {sorted(missing)[:10]} of {count}; {self.runs}"
        for before, run in pairwise(self.runs):
            if before.member != run.member:
                late = [at for at in before.times if at > run.times[0]]
                assert len(late) <= (before.member in self.jvm), f"{before} goes on while {run} has begun"

    def may_repeat(self, offset: int, run: Run, second: float, before: Run, first: float) -> bool:
        """Whether `run` may have a message that another run got before. The docstring of the class lists the cases."""
        killed_at, committed = self.killed.get(before.member, (second, offset))
        if first <= killed_at < second and offset >= committed:
            return True
        if before.member in self.jvm:
            return offset == before.last
        return run.member in self.jvm and second - first < COMMIT_INTERVAL + self.look_to_claim


@dataclass
class JafkaAccount(Runs):
    """The account of a partition of a group with members of Jafka. Given: identities (offset, index) of its messages.

    The member that takes it over begins at the first leaf of an outermost message. These may be repeated

    - after a member that was killed: the messages that it had got after its last commit, which is read from ZooKeeper
      once it is dead; its successor begins at exactly that commit;
    - after a JVM member: leaves of the one outermost message at which the next begins. Jafka takes a message from its
      stream before it counts it, and commits the start of a compressed message until its last leaf;
    - to a JVM member after one of ours: what ours handled since its last commit but one. Jafka (as 0.7.2) reads the
      committed offset *before* it claims: a partition that is committed and given back between the two begins at what
      was committed before.
    """

    identities: list[tuple[int, int]] = field(default_factory=list)

    def check(self) -> None:
        handed: dict[int, list[tuple[float, Run]]] = {position: [] for position in range(len(self.identities))}
        for run in self.runs:
            assert self.identities[run.first][1] == 0, f"{run} begins within {self.identities[run.first]}"
            for position, at in enumerate(run.times, run.first):
                handed[position].append((at, run))
        for position, handovers in handed.items():
            assert handovers, f"{self.identities[position]} was never handed over"
            for (first, before), (second, run) in combinations(sorted(handovers, key=lambda each: each[0]), 2):
                assert self.may_repeat(self.identities[position][0], run, second, before, first), (
                    f"{run} repeats {self.identities[position]} of {before} after {second - first:.3f} s"
                )
        for member, (at, committed) in self.killed.items():
            others = [run for run in self.runs if run.times[0] > at and run.member != member]
            successor = min(others, key=lambda run: run.times[0])
            assert self.identities[successor.first][0] == committed, f"{successor} does not begin at {committed}"

    def may_repeat(self, offset: int, run: Run, second: float, before: Run, first: float) -> bool:
        """Whether `run` may have a message that another run got before. The docstring of the class lists the cases."""
        killed_at, committed = self.killed.get(before.member, (second, offset))
        if killed_at < second and offset >= committed:
            return True
        if before.member in self.jvm:
            return offset == self.identities[run.first][0]
        return run.member in self.jvm and second - first < COMMIT_INTERVAL + LOOK_TO_CLAIM
