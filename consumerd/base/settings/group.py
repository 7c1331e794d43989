"""The tables of the consumer group, rebalances and commits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from consumerd.base.settings.kind import Ge
from consumerd.base.settings.setting import Field, Names, Reload, Seconds, SecondsOrZero, Section, WireSeconds


class CoordinatedSection(Section):
    """The membership of a group that a broker coordinates."""

    assignor: Literal["range", "roundrobin"] = Field(
        "range",
        "Assignment strategy of groups of Kafka 0.8 and later. With coordination `kafka`: used if all members support "
        "it; the other one is offered too. With `zookeeper`: must be the same in all members, which nothing checks.",
        names=Names(keyword="assignor", v08="partition.assignment.strategy"),
    )
    protocol: Literal["classic", "consumer"] = Field(
        "classic",
        "With coordination `kafka`: the group's protocol. `classic` (0.9 and later): a member assigns, and all release "
        "everything at each rebalance. `consumer` (KIP-848, 4.0 and later): the broker assigns, and only partitions "
        "that move are released.",
        names=Names(keyword="protocol", kafka="group.protocol"),
    )
    remote_assignor: str | None = Field(
        None,
        "With protocol `consumer`: the broker's assignor, one of its group.consumer.assignors; by default its first.",
        names=Names(keyword="remote_assignor", kafka="group.remote.assignor"),
        min_length=1,
        examples=["uniform"],
    )
    broker_filter: bool = Field(
        False,
        "With protocol `consumer`: the broker matches the whitelist against topic names, by RE2's rules, in place of "
        "this member.",
        names=Names(keyword="broker_filter"),
    )
    session_timeout: WireSeconds = Field(
        45.0,
        "With coordination `kafka`: seconds without a heartbeat after which the broker removes this member. Should be "
        "longer than the failover of a broker takes. If a broker of 0.9 refuses the value "
        "(group.max.session.timeout.ms), 30 is used. With protocol `consumer` this is the lease of "
        "this member: it must not be longer than the broker's group.consumer.session.timeout.ms.",
        names=Names(keyword="group_session_timeout", kafka="session.timeout.ms"),
    )
    heartbeat_interval: WireSeconds = Field(
        3.0,
        "With coordination `kafka`: seconds between heartbeats, at most 1 for ten seconds after each change of the "
        "group. With protocol `consumer` the broker's group.consumer.heartbeat.interval.ms applies in its place.",
        names=Names(keyword="heartbeat_interval", kafka="heartbeat.interval.ms"),
    )
    rebalance_timeout: WireSeconds = Field(
        60.0,
        "With coordination `kafka`: seconds that a rebalance waits for this member to finish what it holds; brokers "
        "of 0.9 use the session timeout.",
        names=Names(keyword="rebalance_timeout"),
    )
    instance_id: str | None = Field(
        None,
        "With coordination `kafka` (2.3 and later): name of a static member, which keeps its partitions while it "
        "restarts within the session timeout; must be unique in the group.",
        names=Names(keyword="instance_id", kafka="group.instance.id"),
        min_length=1,
        examples=["consumerd-0"],
    )

    def rules(self) -> Iterator[str]:
        """The rules about several keys that are broken."""
        if 2 * self.heartbeat_interval > self.session_timeout:
            yield "session_timeout must be at least twice heartbeat_interval"
        if self.rebalance_timeout < self.session_timeout:
            yield (
                "rebalance_timeout must be at least as long as session_timeout "
                f"({self.rebalance_timeout:g} s and {self.session_timeout:g} s here)"
            )


class GroupSection(CoordinatedSection):
    """The consumer group, and what to consume. Set exactly one of topics, whitelist and blacklist (or partitions)."""

    id: str = Field(
        description="Name of the consumer group.",
        names=Names(keyword="group", v07="groupid", v08="group.id"),
        min_length=1,
        examples=["events"],
    )
    coordination: Literal["zookeeper", "kafka", "fixed"] = Field(
        "zookeeper",
        "How partitions are assigned. `zookeeper`: by the members, through ZooKeeper (Kafka 0.7, and old consumers of "
        "0.8.2 to 1.1). `kafka`: by a broker (0.9 and later, see [kafka]). `fixed`: not at all, this member consumes "
        "`partitions` (0.8 and later).",
    )
    dialect: Literal["auto", "0.7", "0.8"] = Field(
        "auto",
        "With coordination `zookeeper`: format of what brokers and members register, that of Kafka 0.7 or that of 0.8 "
        "and later. `auto` detects it from the registered brokers and members, and waits for a first one.",
        names=Names(keyword="dialect"),
    )
    topics: dict[str, Annotated[int, Ge(1)]] = Field(
        description="Topics, each with its number of streams: how many shares of the topic this member asks for.",
        default_factory=dict,
        reload=Reload.SUBSCRIPTION,
        examples=[{"events": 1}],
    )
    whitelist: str | None = Field(
        None,
        "Consume all topics that match this regular expression, new ones too.",
        reload=Reload.SUBSCRIPTION,
        examples=["events-.*"],
    )
    blacklist: str | None = Field(
        None,
        "Consume all topics that do not match this regular expression.",
        reload=Reload.SUBSCRIPTION,
        examples=["test-.*"],
    )
    streams: int = Field(1, "Number of streams for whitelist and blacklist.", reload=Reload.SUBSCRIPTION, ge=1)
    consumer_id: str | None = Field(
        None,
        "Part of this member's id after `group_`, such as a StatefulSet's pod name; must be unique in the group. By "
        "default made of host name, time and eight random hex digits.",
        names=Names(keyword="consumer_id", v07="consumerid", v08="consumer.id"),
        min_length=1,
        examples=["consumerd-0"],
    )
    partitions: dict[str, tuple[Annotated[int, Ge(0)], ...]] = Field(
        description="With coordination `fixed`: topics and the numbers of the partitions to consume.",
        default_factory=dict,
        examples=[{"events": [0, 1]}],
    )
    offsets: Literal["zookeeper", "kafka", "both", "none"] | None = Field(
        None,
        "Where committed offsets are stored. By default in ZooKeeper with coordination `zookeeper`, else in Kafka. "
        "`both` (Kafka 0.8.2 and later): in both, and the larger offset counts (dual.commit.enabled). `none`, with "
        "coordination `fixed` only: nowhere; each start begins at fetch.initial, or where the handler says.",
        examples=["both"],
    )
    roundrobin_as: Literal["0.8", "1.0"] = Field(
        "0.8",
        "With coordination `zookeeper` and assignor `roundrobin`: whose order of partitions to use, that of the JVM's "
        "old consumers of 0.8.2 to 0.11 (`0.8`), or of 1.0 and 1.1 (`1.0`). A group must not mix the two: their "
        "members would claim each other's partitions for ever.",
    )

    @property
    def storage(self) -> Literal["zookeeper", "kafka", "both", "none"]:
        """The storage of offsets, with the default resolved."""
        return self.offsets or ("zookeeper" if self.coordination == "zookeeper" else "kafka")

    def rules(self) -> Iterator[str]:
        """The rules about several keys that are broken."""
        yield from super().rules()
        yield from self._rules_of_offsets()
        yield from self._rules_of_the_subscription()
        yield from self._rules_of_members()

    def _rules_of_offsets(self) -> Iterator[str]:
        if self.storage == "none" and self.coordination != "fixed":
            yield (
                'offsets = "none" needs coordination = "fixed": a partition that changes hands would begin at '
                "fetch.initial each time"
            )
        if self.storage == "zookeeper" and self.coordination == "kafka":
            yield (
                'offsets = "zookeeper" and coordination = "kafka" do not go together: only Kafka knows whose a '
                'partition is; use "both" to keep a copy in ZooKeeper'
            )
        if self.storage != "zookeeper" and self.dialect == "0.7":
            yield (f'offsets = "{self.storage}" needs dialect = "0.8": brokers of Kafka 0.7 do not store offsets')

    def _rules_of_the_subscription(self) -> Iterator[str]:
        fixed = self.coordination == "fixed"
        given = [bool(self.topics), self.whitelist is not None, self.blacklist is not None]
        if fixed and (any(given) or not any(self.partitions.values())):
            yield 'coordination = "fixed" needs partitions, and no topics, whitelist or blacklist'
        if not fixed and self.partitions:
            yield 'partitions need coordination = "fixed"'
        if not fixed and sum(given) != 1:
            yield "give exactly one of topics, whitelist and blacklist"
        if self.dialect != "auto" and self.coordination != "zookeeper":
            yield 'dialect needs coordination = "zookeeper"'
        if self.dialect == "0.7" and self.assignor != "range":
            yield 'assignor = "roundrobin" needs dialect = "0.8": members of Kafka 0.7 support range only'
        if self.roundrobin_as != "0.8" and not (self.coordination == "zookeeper" and self.assignor == "roundrobin"):
            yield 'roundrobin_as needs coordination = "zookeeper" and assignor = "roundrobin"'

    def _rules_of_members(self) -> Iterator[str]:
        if self.instance_id is not None and self.coordination != "kafka":
            yield 'instance_id needs coordination = "kafka"'
        if self.protocol == "consumer" and self.coordination != "kafka":
            yield 'protocol = "consumer" needs coordination = "kafka"'
        if self.protocol != "consumer" and (self.remote_assignor is not None or self.broker_filter):
            yield 'remote_assignor and broker_filter need protocol = "consumer"'
        elif self.broker_filter and self.whitelist is None:
            yield "broker_filter needs whitelist: the pattern that the broker matches"
        for name in (self.id, self.consumer_id or "x"):
            if "/" in name or "\0" in name:
                yield f"{name!r} cannot be the name of a znode: it contains a slash or a NUL"


class RebalanceSection(Section):
    """How partitions move between members."""

    drain_timeout: SecondsOrZero = Field(
        4.0,
        "Seconds that handlers have to finish what they hold of partitions that move. JVM members of the group give "
        "up about 8 s after the trigger: with 5 they still succeeded, with 9 they did not. With coordination `kafka`, "
        "all members wait for the slowest.",
        names=Names(keyword="drain_timeout"),
    )
    retry_interval: Seconds = Field(0.2, "Seconds between attempts to claim partitions that other members still own.")
    reconcile_interval: Seconds = Field(
        30.0,
        "Seconds between checks of assignment, ownership and registration, in case a watch was lost; with "
        "coordination `kafka`, between checks for new topics and partitions.",
    )


class CommitSection(Section):
    """How handled offsets are committed to ZooKeeper or Kafka."""

    interval: Seconds = Field(
        10.0,
        "Seconds between commits.",
        names=Names(keyword="commit_interval", v07="autocommit.interval.ms", v08="auto.commit.interval.ms"),
        reload=Reload.AT_ONCE,
    )
    metadata: str = Field(
        "",
        "For offsets in Kafka: text to store with each committed offset, which tools show.",
        names=Names(keyword="metadata"),
        max_length=4096,
    )
    retention: Seconds | None = Field(
        None,
        "For offsets in Kafka, on brokers of 0.9 to 2.0: seconds to keep them. By default, and on other brokers, the "
        "broker's offsets.retention.minutes applies.",
        examples=[604800.0],
    )
    version: Literal[0, 1, 2] | None = Field(
        None,
        "For offsets in Kafka: version of the OffsetCommit request; by default the newest that the broker supports. "
        "With 0 (coordination `fixed` only), brokers since 0.8.1 store the offsets in ZooKeeper, if they use it.",
        examples=[1],
    )
