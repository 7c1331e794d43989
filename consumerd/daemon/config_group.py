"""The tables that say what the member consumes, and how partitions and offsets change hands."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge
from pydantic import Field, model_validator

from consumerd.daemon.config_base import Seconds, Section


class GroupSection(Section):
    """The group to join and what to consume. Give exactly one of topics, whitelist and blacklist (or partitions)."""

    id: str = Field(min_length=1, description="Name of the consumer group.", examples=["events"])
    coordination: Literal["zookeeper", "kafka", "fixed"] = Field(
        "zookeeper",
        description=(
            "Who shares the partitions out: the members by way of ZooKeeper (Kafka 0.7), a broker (0.9 and later, "
            "see [kafka]), or nobody: `fixed` consumes `partitions` (Kafka 0.8 and later)."
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
    offsets: Literal["kafka", "none"] = Field(
        "kafka",
        description=(
            "With coordination `fixed`: keep offsets in Kafka under this group, or none: then each start begins at "
            "fetch.initial, or where the handler says."
        ),
    )
    assignor: Literal["range", "roundrobin"] = Field(
        "range",
        description=(
            "With coordination `kafka`: how the leader shares partitions out, if all members agree on it; the other "
            "one is offered too (partition.assignment.strategy)."
        ),
    )
    session_timeout: Seconds = Field(
        10.0,
        description="With coordination `kafka`: seconds of silence after which a member is out (session.timeout.ms).",
    )
    heartbeat_interval: Seconds = Field(
        3.0, description="With coordination `kafka`: seconds between heartbeats (heartbeat.interval.ms)."
    )
    rebalance_timeout: Seconds = Field(
        60.0,
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
        if self.instance_id is not None and self.coordination != "kafka":
            raise ValueError('instance_id needs coordination = "kafka"')
        if 2 * self.heartbeat_interval > self.session_timeout:
            raise ValueError("session_timeout must be twice heartbeat_interval at least")
        if self.rebalance_timeout < self.session_timeout:
            raise ValueError("rebalance_timeout must be as long as session_timeout at least")
        for name in (self.id, self.consumer_id or "x"):
            if "/" in name or "\0" in name:
                raise ValueError(f"{name!r} cannot be the name of a znode: it holds a slash or a NUL")
        return self


class RebalanceSection(Section):
    """How partitions change hands."""

    drain_timeout: Seconds = Field(
        4.0,
        description=(
            "Seconds in which handlers must finish what they hold of partitions that move. "
            "JVM members of the group give up about 8 s after the trigger; 5 was seen to work, 9 left them stuck. "
            "Where a broker coordinates, everybody waits for whoever is slowest."
        ),
    )
    retry_interval: Seconds = Field(0.2, description="Seconds between attempts to claim what others still hold.")
    reconcile_interval: Seconds = Field(
        30.0,
        description=(
            "Seconds between checks of what is decided, owned and registered, since watches get lost; where a broker "
            "coordinates, between looks for new topics and partitions."
        ),
    )


class CommitSection(Section):
    """When handled offsets are written to ZooKeeper or Kafka."""

    interval: Seconds = Field(10.0, description="Seconds between commits (autocommit.interval.ms).")
