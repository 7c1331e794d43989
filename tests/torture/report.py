"""The figures of a run, which of them break a promise, as a table and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tests.torture.account import Account
from tests.torture.play import Player
from tests.torture.stage import SESSION_TIMEOUT

if TYPE_CHECKING:
    from tests.torture.sinks import SinkCount

#: Seconds for which a partition may have no owner after a clean stop, and after a kill.
STOP_LIMIT: Final = 2.0
KILL_LIMIT: Final = SESSION_TIMEOUT + 3.0


@dataclass(frozen=True, slots=True)
class Report:
    """One run."""

    seed: int
    seconds: float
    partitions: int
    servers: int
    account: Account
    player: Player
    set_back: list[str]
    shares: list[int]
    #: 1-minute, 5-minute and 15-minute load of the machine at the end.
    load: str
    #: The kind of the stage.
    brokers: str
    #: What the exactly-once sinks hold, by their names.
    sinks: dict[str, SinkCount] = field(default_factory=dict)

    def longest(self, kind: str) -> float | None:
        """The longest ownerless time after faults of this kind that came alone, in seconds; None if none came."""
        return max((each.seconds for each in self.player.timed if each.kind == kind), default=None)

    @property
    def violations(self) -> list[str]:
        """The broken promises in words."""
        return self.broken + self.late

    @property
    def broken(self) -> list[str]:
        """Those that no machine is too slow for."""
        account, found = self.account, list(self.player.findings)
        for number, what in (
            (account.not_stored, "confirmed messages are not in the broker's log"),
            (account.stored_twice, "messages are in the broker's log more than once"),
            (account.audit.lost, "messages were never delivered"),
            (account.foreign + account.audit.corrupted, "messages are not what was sent"),
            (account.audit.out_of_order, "messages came out of order"),
            (account.audit.overlapping, "messages were delivered by a member after another one had claimed"),
            (len(self.set_back), "offsets were set back"),
        ):
            if number:
                found.append(f"{number} {what}")
        found += [*account.audit.findings, *self.set_back[:10]]
        for name, held in self.sinks.items():
            if not held.exact:
                found.append(
                    f"the sink {name} is not exact: {held.missing} messages are missing, {held.twice} are there twice, "
                    f"{held.wrong} rows are not what the log holds"
                )
        if self.shares and max(self.shares) - min(self.shares) > 1:
            found.append(f"the shares of the members at the end are not equal: {self.shares}")
        return found

    @property
    def late(self) -> list[str]:
        """Those about seconds: how long commits take, and how long a partition has no owner."""
        found = []
        if number := self.account.repeated_beyond:
            found += [f"{number} messages came again without a fault that explains it", *self.account.findings]
        for kind, limit in (("member_stop", STOP_LIMIT), ("member_kill", KILL_LIMIT)):
            if (seconds := self.longest(kind)) is not None and seconds > limit:
                found.append(f"a partition had no owner for {seconds:.2f} s after {kind}: more than {limit:g} s")
        return found

    def as_json(self) -> dict[str, Any]:
        """The same as one object."""
        account = self.account
        return {
            "brokers": self.brokers,
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "partitions": self.partitions,
            "servers": self.servers,
            "produced": account.produced,
            "acknowledged": account.acknowledged,
            "stored": account.stored,
            "faults": dict(sorted(self.player.kinds.items())),
            "skipped": self.player.skipped,
            "lost": account.lost,
            "repeated_within": account.repeated_within,
            "repeated_beyond": account.repeated_beyond,
            "out_of_order": account.audit.out_of_order,
            "overlapping": account.audit.overlapping,
            "sinks": {name: asdict(held) for name, held in self.sinks.items()},
            "sessions_expired_alone": account.expired_alone,
            "offsets_set_back": len(self.set_back),
            "ownerless_after_stop": self.longest("member_stop"),
            "ownerless_after_kill": self.longest("member_kill"),
            "load": self.load,
            "violations": self.violations,
        }

    def as_table(self) -> str:
        """Lines of names and figures; the violations follow."""
        figures = self.as_json()
        violations = figures.pop("violations")
        faults, sinks = figures.pop("faults"), figures.pop("sinks")
        rows = {name.replace("_", " "): value for name, value in figures.items()}
        for name, held in sinks.items():
            rows[f"sink {name}"] = ", ".join(f"{what} {number}" for what, number in held.items())
        rows["faults"] = sum(faults.values())
        rows |= {f"  {kind.replace('_', ' ')}": number for kind, number in faults.items()}
        width = max(map(len, rows))
        lines = [f"{name:<{width}}  {_figure(value)}" for name, value in rows.items()]
        return "\n".join([*lines, *(f"VIOLATION {text}" for text in violations)])


def _figure(value: object) -> str:
    if value is None:
        return "not measured"
    return f"{value:.2f} s" if isinstance(value, float) else str(value)
