"""The configuration: one model of all tables, read from TOML with environment overrides, unknown keys refused.

Strategy: every key is a field of a table (`consumerd.base.settings.group`, `servers`, `work`), with its unit and
default in the description. `config.example.toml` is generated from these fields (`consumerd.service.config.example`),
so there is one place to look. Defaults are those of 0.7.2 (golden notes, 8) unless the description says otherwise.
`CONSUMERD_GROUP__ID=x` overrides `[group] id`, and `CONSUMERD_KAFKA__SASL__PASSWORD` a key of a table within a table.
Passwords are never shown: neither in errors about them, nor where the configuration is printed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from consumerd.base.errors import ConfigError
from consumerd.base.settings.group import CommitSection, GroupSection
from consumerd.base.settings.monitoring import HealthSection, MetricsSection, TelemetrySection
from consumerd.base.settings.processing import DaemonSection, HandlerSection, LogSection
from consumerd.base.settings.servers import KafkaSection, ZooKeeperSection
from consumerd.base.settings.setting import Field, Rule, Section
from consumerd.group.membership_tables import MembershipSettings
from consumerd.member.fetch.settings import FetchSettings
from consumerd.service.config.problems import read_document, unexpanded_variables, unknown_variables, validated
from consumerd.service.config.subscriptions import (
    MAIN,
    SubscriptionSection,
    group_of,
    retry_stages,
    rules_of_starts,
    rules_of_subscriptions,
)

#: Bytes that are fetched at once of a partition of a retry topic.
_WAITING_BYTES: Final = 64 << 10


class SparkTable(Section):
    """Pipelines on Spark. The daemon keeps the table as it is: `consumerd.spark.spec` reads it."""

    extra = True


class Config(Section):
    """The whole configuration of `consumerd run`."""

    group: GroupSection
    zookeeper: ZooKeeperSection = Field(default_factory=ZooKeeperSection)
    kafka: KafkaSection = Field(default_factory=KafkaSection)
    rebalance: MembershipSettings = Field(default_factory=MembershipSettings)
    fetch: FetchSettings = Field(default_factory=FetchSettings)
    commit: CommitSection = Field(default_factory=CommitSection)
    handler: HandlerSection = Field(default_factory=HandlerSection)
    subscriptions: tuple[SubscriptionSection, ...] = ()
    daemon: DaemonSection = Field(default_factory=DaemonSection)
    log: LogSection = Field(default_factory=LogSection)
    health: HealthSection = Field(default_factory=HealthSection)
    metrics: MetricsSection = Field(default_factory=MetricsSection)
    telemetry: TelemetrySection = Field(default_factory=TelemetrySection)
    spark: SparkTable = Field(default_factory=SparkTable, repr=False)

    @classmethod
    def tables(cls) -> dict[str, type[Section]]:
        """The tables that the daemon reads, by name; each of `subscriptions` is one. [spark] is of other commands."""
        return {name: table for name in cls.fields if name != "spark" and (table := cls.inner(name)) is not None}

    def by_subscription(self) -> dict[str, Config]:
        """Return each subscription's configuration, as if it were the only one, by its name; `[group]` comes first."""
        if not self.subscriptions and not self.handler.retry_topics:
            return {MAIN: self}
        configs = {MAIN: self.replace(subscriptions=())}
        for each in self.subscriptions:
            configs[each.name] = configs[MAIN].replace(group=group_of(self.group, each), handler=each.handler)
        for name, own in list(configs.items()):
            for stage in retry_stages(name, own.handler):
                static = self.group.instance_id and f"{self.group.instance_id}_{stage.name}"
                consumed = own.group.replace(
                    topics={stage.topic: 1}, whitelist=None, blacklist=None, instance_id=static
                )
                fetch = own.fetch.replace(
                    # What fails before the first assignment must not be skipped.
                    initial="earliest",
                    initial_by_topic=None,
                    out_of_range="earliest",
                    # Messages wait in memory until they are due.
                    size=min(own.fetch.size, _WAITING_BYTES),
                    min_bytes=1,
                    partition_budget=min(own.fetch.partition_budget, 4 * _WAITING_BYTES),
                )
                configs[stage.name] = own.replace(group=consumed, fetch=fetch, handler=stage.handler)
        return configs

    @property
    def groups(self) -> list[GroupSection]:
        """The groups of all subscriptions, each as if it were the only one."""
        return [self.group, *(group_of(self.group, each) for each in self.subscriptions)]

    @property
    def needs_session(self) -> bool:
        """Whether a group is in ZooKeeper, or keeps its offsets there."""
        return any("zookeeper" in (each.coordination, each.storage) or each.storage == "both" for each in self.groups)

    @property
    def needs_brokers(self) -> bool:
        """Whether a group is outside of ZooKeeper, so that `kafka.bootstrap` must name the brokers."""
        return any(each.coordination != "zookeeper" for each in self.groups)

    def of_subscription(self, name: str | None) -> Config:
        """Return the configuration of one subscription; of the main one for None. Raises ConfigError if unknown."""
        configs = self.by_subscription()
        try:
            return configs[MAIN if name is None else name]
        except KeyError:
            raise ConfigError(f"unknown subscription {name!r}: the configuration has {', '.join(configs)}.") from None

    def rules(self) -> Iterator[str | Rule]:
        """The rules about keys of several tables that are broken."""
        yield from rules_of_subscriptions(self.group, self.handler, self.subscriptions)
        yield from rules_of_starts(self.fetch.initial_by_topic or {}, self.group, self.subscriptions)
        others = [each for each in self.groups if (each.coordination, each.storage) != ("fixed", "kafka")]
        if self.commit.version == 0 and others:
            yield (
                'commit.version = 0 needs group.coordination = "fixed" and group.offsets = "kafka": a request of that '
                "version does not say which member commits"
            )
        if self.commit.version is not None and self.group.protocol == "consumer":
            yield (
                f'commit.version = {self.commit.version} and group.protocol = "consumer" do not go together: requests '
                "before version 9 do not have the member's epoch"
            )
        if self.commit.retention is not None and self.commit.version in (0, 1):
            yield (
                f"commit.retention and commit.version = {self.commit.version} do not go together: requests before "
                "version 2 have no retention"
            )


def parse(document: dict[str, Any], source: str, *, environment: bool = True) -> Config:
    """Validate a parsed TOML document, together with the environment unless `environment` is false.

    `source` names the document in errors. Raises ConfigProblemsError with all problems.
    """
    problems = [*unexpanded_variables(document), *(unknown_variables(Config) if environment else ())]
    return validated(Config, document, source, environment=environment, problems=problems)


def load(path: Path) -> Config:
    """Read and validate a configuration file. Raises ConfigError, with all problems of its keys."""
    return parse(read_document(path), str(path))
