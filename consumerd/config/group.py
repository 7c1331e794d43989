"""The tables that say what the member consumes, and how partitions and offsets change hands."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge
from pydantic import Field, model_validator

from consumerd.config.base import Seconds, Section, WireSeconds
from consumerd.consumer.config import ConsumerConfig
from consumerd.consumer.settings import ConsumerSettings
from consumerd.defaults import default_of
from consumerd.group.coordinated_tables import CoordinationSettings
from consumerd.group.membership_settings import MembershipSettings
from consumerd.offsets import OffsetSettings


class GroupSection(Section):
    """The group to join and what to consume. Give exactly one of topics, whitelist and blacklist (or partitions)."""

    id: str = Field(min_length=1, description="Name of the consumer group.", examples=["events"])
    coordination: Literal["zookeeper", "kafka", "fixed"] = Field(
        "zookeeper",
        description=(
            "Who shares the partitions out: the members by way of ZooKeeper (Kafka 0.7, and old consumers of 0.8.2 to "
            "1.1), a broker (0.9 and later, see [kafka]), or nobody: `fixed` consumes `partitions` (0.8 and later)."
        ),
    )
    dialect: Literal["auto", "0.7", "0.8"] = Field(
        default_of(ConsumerConfig, "dialect"),
        description=(
            "With coordination `zookeeper`: what brokers and members write there, that of Kafka 0.7 or that of 0.8 and "
            "later. `auto` goes by the brokers and members that are registered, and waits for a first one."
        ),
    )
    topics: dict[str, Annotated[int, Ge(1)]] = Field(
        default_factory=dict,
        description="Topics and the number of streams for each: how many shares of the topic this member asks for.",
        examples=[{"events": 1}],
    )
    whitelist: str | None = Field(
        None, description="Consume all topics that match this regular expression, new ones too.", examples=["events-.*"]
    )
    blacklist: str | None = Field(
        None, description="Consume all topics that do not match this regular expression.", examples=["test-.*"]
    )
    streams: int = Field(1, ge=1, description="Number of streams for whitelist and blacklist.")
    consumer_id: str | None = Field(
        None,
        min_length=1,
        description=(
            "What stands after `group_` in this member's id, such as a StatefulSet's pod name; unique in the group. "
            "By default made of host name, time and eight random hex digits."
        ),
        examples=["consumerd-0"],
    )
    partitions: dict[str, tuple[Annotated[int, Ge(0)], ...]] = Field(
        default_factory=dict,
        description="With coordination `fixed`: topics and the numbers of the partitions to consume.",
        examples=[{"events": [0, 1]}],
    )
    offsets: Literal["zookeeper", "kafka", "both", "none"] | None = Field(
        None,
        description=(
            "Where offsets are kept, under this group. By default in ZooKeeper where that coordinates, else in Kafka. "
            "`both` (Kafka 0.8.2 and later): the larger offset counts (dual.commit.enabled). `none`, with coordination "
            "`fixed` only: each start begins at fetch.initial, or where the handler says."
        ),
        examples=["both"],
    )
    assignor: Literal["range", "roundrobin"] = Field(
        default_of(ConsumerConfig, "assignor"),
        description=(
            "How partitions are shared out in groups of Kafka 0.8 and later. With coordination `kafka`: if all members "
            "agree on it; the other one is offered too. With `zookeeper`: as all members are configured, since nobody "
            "checks it (partition.assignment.strategy)."
        ),
    )
    roundrobin_as: Literal["0.8", "1.0"] = Field(
        "0.8",
        description=(
            "With coordination `zookeeper` and assignor `roundrobin`: whose order of partitions to keep, that of the "
            "JVM's old consumers of 0.8.2 to 0.11, or of 1.0 and 1.1. A group must not mix the two: their members "
            "would claim each other's partitions for ever."
        ),
    )
    session_timeout: WireSeconds = Field(
        default_of(CoordinationSettings, "session_timeout"),
        description=(
            "With coordination `kafka`: seconds of silence after which a member is out (session.timeout.ms). It should "
            "outlast the failure of a broker, during which nobody coordinates. Brokers of 0.9 that refuse so "
            "much (group.max.session.timeout.ms) are asked for 30."
        ),
    )
    heartbeat_interval: WireSeconds = Field(
        default_of(CoordinationSettings, "heartbeat_interval"),
        description="With coordination `kafka`: seconds between heartbeats (heartbeat.interval.ms).",
    )
    rebalance_timeout: WireSeconds = Field(
        default_of(CoordinationSettings, "rebalance_timeout"),
        description=(
            "With coordination `kafka`: seconds that a rebalance waits for a member to finish what it holds; brokers "
            "of 0.9 take the session timeout."
        ),
    )
    instance_id: str | None = Field(
        None,
        min_length=1,
        description=(
            "With coordination `kafka`, since 2.3: a name that keeps this member's partitions for it while it restarts "
            "within the session timeout (group.instance.id); unique in the group."
        ),
        examples=["consumerd-0"],
    )

    @property
    def storage(self) -> Literal["zookeeper", "kafka", "both", "none"]:
        """Where offsets are kept, the default resolved."""
        return self.offsets or ("zookeeper" if self.coordination == "zookeeper" else "kafka")

    @model_validator(mode="after")
    def _offsets_fit(self) -> GroupSection:
        if self.storage == "none" and self.coordination != "fixed":
            raise ValueError(
                'offsets = "none" needs coordination = "fixed": a partition that changes hands would begin at '
                "fetch.initial each time"
            )
        if self.storage == "zookeeper" and self.coordination == "kafka":
            raise ValueError(
                'offsets = "zookeeper" and coordination = "kafka" do not go together: only Kafka knows whose a '
                'partition is; use "both" to keep a copy in ZooKeeper'
            )
        if self.storage != "zookeeper" and self.dialect == "0.7":
            raise ValueError(f'offsets = "{self.storage}" needs dialect = "0.8": brokers of Kafka 0.7 keep no offsets')
        return self

    @model_validator(mode="after")
    def _one_subscription(self) -> GroupSection:
        fixed = self.coordination == "fixed"
        given = [bool(self.topics), self.whitelist is not None, self.blacklist is not None]
        if fixed and (any(given) or not any(self.partitions.values())):
            raise ValueError('coordination = "fixed" needs partitions, and no topics, whitelist or blacklist')
        if not fixed and self.partitions:
            raise ValueError('partitions need coordination = "fixed"')
        if not fixed and sum(given) != 1:
            raise ValueError("give exactly one of topics, whitelist and blacklist")
        if self.dialect != "auto" and self.coordination != "zookeeper":
            raise ValueError('dialect needs coordination = "zookeeper"')
        if self.dialect == "0.7" and self.assignor != "range":
            raise ValueError('assignor = "roundrobin" needs dialect = "0.8": members of Kafka 0.7 go by range alone')
        if self.roundrobin_as != "0.8" and not (self.coordination == "zookeeper" and self.assignor == "roundrobin"):
            raise ValueError('roundrobin_as needs coordination = "zookeeper" and assignor = "roundrobin"')
        if self.instance_id is not None and self.coordination != "kafka":
            raise ValueError('instance_id needs coordination = "kafka"')
        if 2 * self.heartbeat_interval > self.session_timeout:
            raise ValueError("session_timeout must be twice heartbeat_interval at least")
        if self.rebalance_timeout < self.session_timeout:
            raise ValueError(
                "rebalance_timeout must be as long as session_timeout at least "
                f"({self.rebalance_timeout:g} s and {self.session_timeout:g} s here)"
            )
        for name in (self.id, self.consumer_id or "x"):
            if "/" in name or "\0" in name:
                raise ValueError(f"{name!r} cannot be the name of a znode: it holds a slash or a NUL")
        return self


class RebalanceSection(Section):
    """How partitions change hands."""

    drain_timeout: Seconds = Field(
        default_of(MembershipSettings, "drain_timeout"),
        description=(
            "Seconds in which handlers must finish what they hold of partitions that move. "
            "JVM members of the group give up about 8 s after the trigger; 5 was seen to work, 9 left them stuck. "
            "Where a broker coordinates, everybody waits for whoever is slowest."
        ),
    )
    retry_interval: Seconds = Field(
        default_of(MembershipSettings, "retry_interval"),
        description="Seconds between attempts to claim what others still hold.",
    )
    reconcile_interval: Seconds = Field(
        default_of(MembershipSettings, "reconcile_interval"),
        description=(
            "Seconds between checks of what is decided, owned and registered, since watches get lost; where a broker "
            "coordinates, between looks for new topics and partitions."
        ),
    )


class CommitSection(Section):
    """When handled offsets are written to ZooKeeper or Kafka."""

    interval: Seconds = Field(
        default_of(ConsumerSettings, "commit_interval"), description="Seconds between commits (autocommit.interval.ms)."
    )
    metadata: str = Field(
        default_of(OffsetSettings, "metadata"),
        max_length=4096,
        description="For offsets in Kafka: a text to keep with them, which tools show.",
    )
    retention: Seconds | None = Field(
        None,
        description=(
            "For offsets in Kafka, on brokers of 0.9 to 2.0: seconds to keep them; by default, and on others, as the "
            "broker says (offsets.retention.minutes)."
        ),
        examples=[604800.0],
    )
    version: Literal[0, 1, 2] | None = Field(
        None,
        description=(
            "For offsets in Kafka: the version of the request; by default the newest that the broker has. With 0 "
            "(coordination `fixed` only) any broker since 0.8.1 keeps them in ZooKeeper, if it has one."
        ),
        examples=[1],
    )
