"""The configuration: one pydantic model, read from TOML with environment overrides, unknown keys refused.

Strategy: every key is a field of a table (`consumerd.config.group`, `servers`, `work`), with its unit and default in
the description. `config.example.toml` is generated from these fields (`consumerd.config.example`), so there is one
place to look. Defaults are those of 0.7.2 (golden notes, 8) unless the description says otherwise.
`CONSUMERD_GROUP__ID=x` overrides `[group] id`, and `CONSUMERD_KAFKA__SASL__PASSWORD` a key of a table within a table.
Passwords are never shown: neither in errors about them, nor where the configuration is printed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from consumerd.config.base import BrokenRulesError, Rule
from consumerd.config.group import CommitSection, GroupSection, RebalanceSection
from consumerd.config.monitoring import HealthSection, MetricsSection, TelemetrySection
from consumerd.config.problems import (
    ConfigProblemsError,
    UnreadableVariableError,
    has_variables,
    problems_of,
    read_document,
    unexpanded_variables,
    unknown_variables,
    unreadable_variables,
)
from consumerd.config.servers import KafkaSection, ZooKeeperSection
from consumerd.config.subscriptions import MAIN, SubscriptionSection, rules_of_subscriptions
from consumerd.config.work import DaemonSection, FetchSection, HandlerSection, LogSection
from consumerd.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Self


class SparkTable(BaseModel):
    """Pipelines on Spark. The daemon keeps the table as it is: `consumerd.spark.spec` reads it."""

    model_config = ConfigDict(extra="allow", frozen=True, hide_input_in_errors=True)


class Config(BaseModel):
    """The whole configuration of `consumerd run`."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True)

    group: GroupSection
    zookeeper: ZooKeeperSection = Field(default_factory=ZooKeeperSection)
    kafka: KafkaSection = Field(default_factory=KafkaSection)
    rebalance: RebalanceSection = Field(default_factory=RebalanceSection)
    fetch: FetchSection = Field(default_factory=FetchSection)
    commit: CommitSection = Field(default_factory=CommitSection)
    handler: HandlerSection = Field(default_factory=HandlerSection)
    subscriptions: tuple[SubscriptionSection, ...] = ()
    daemon: DaemonSection = Field(default_factory=DaemonSection)
    log: LogSection = Field(default_factory=LogSection)
    health: HealthSection = Field(default_factory=HealthSection)
    metrics: MetricsSection = Field(default_factory=MetricsSection)
    telemetry: TelemetrySection = Field(default_factory=TelemetrySection)
    spark: SparkTable = Field(default_factory=SparkTable, repr=False)

    @field_validator("subscriptions", mode="before")
    @classmethod
    def _is_an_array_of_tables(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple) or not all(
            isinstance(each, dict | SubscriptionSection) for each in value
        ):
            raise ValueError("it must be an array of tables: begin each of them with [[subscriptions]]")
        return value

    @classmethod
    def read(cls, document: dict[str, Any]) -> Self:
        """Validate `document`. Raises ValidationError."""
        return cls(**document)

    def by_subscription(self) -> dict[str, Config]:
        """Return each subscription's configuration, as if it were the only one, by its name; `[group]` comes first."""
        if not self.subscriptions:
            return {MAIN: self}
        configs = {MAIN: self.model_copy(update={"subscriptions": ()})}
        for each in self.subscriptions:
            keys = ("topics", "whitelist", "blacklist", "streams")
            group = {"id": each.group.id or self.group.id} | {key: getattr(each, key) for key in keys}
            tables = {"group": self.group.model_copy(update=group), "handler": each.handler}
            configs[each.name] = configs[MAIN].model_copy(update=tables)
        return configs

    def of_subscription(self, name: str | None) -> Config:
        """Return the configuration of one subscription; of the main one for None. Raises ConfigError if unknown."""
        configs = self.by_subscription()
        try:
            return configs[MAIN if name is None else name]
        except KeyError:
            raise ConfigError(f"unknown subscription {name!r}: the configuration has {', '.join(configs)}.") from None

    def rules(self) -> Iterator[str | Rule]:
        """The rules about keys of several tables that are broken."""
        yield from rules_of_subscriptions(self)
        if self.commit.version == 0 and (self.group.coordination != "fixed" or self.group.storage != "kafka"):
            yield (
                'commit.version = 0 needs group.coordination = "fixed" and group.offsets = "kafka": a request of that '
                "version does not say which member commits"
            )
        if self.commit.retention is not None and self.commit.version in (0, 1):
            yield (
                f"commit.retention and commit.version = {self.commit.version} do not go together: requests before "
                "version 2 have no retention"
            )

    @model_validator(mode="after")
    def _keeps_its_rules(self) -> Self:
        if broken := list(self.rules()):
            raise BrokenRulesError(broken)
        return self


def _model(environment: bool) -> type[Config]:
    """The model of the document, under the environment where that has variables for us."""
    if not (environment and has_variables()):
        return Config
    # 3 MiB and a twentieth of the start, which daemons without variables are spared.
    from consumerd.config.environment import ConfigWithEnvironment  # noqa: PLC0415

    return ConfigWithEnvironment


def parse(document: dict[str, Any], source: str, *, environment: bool = True) -> Config:
    """Validate a parsed TOML document, together with the environment unless that is not to have a say.

    `source` names the document in errors. Raises ConfigProblemsError with all problems.
    """
    problems = unexpanded_variables(document)
    if environment:
        problems += unknown_variables(Config)
    try:
        config = _model(environment).read(document)
    except ValidationError as error:
        raise ConfigProblemsError(source, problems + problems_of(error, Config, document)) from error
    except (UnreadableVariableError, RecursionError) as error:
        problems += unreadable_variables(error, Config)
    else:
        if not problems:
            return config
    raise ConfigProblemsError(source, problems) from None  # the cause has the text of the variable


def load(path: Path) -> Config:
    """Read and validate a configuration file. Raises ConfigError, with all problems of its keys."""
    return parse(read_document(path), str(path))


def parse_valid_tables(document: dict[str, Any], invalid: frozenset[str]) -> Config:
    """The configuration with defaults for the `invalid` tables, so that the others can be checked further.

    Rules about several tables are not checked. Raises ValidationError if another table is invalid, too, and
    UnreadableVariableError.
    """

    class Valid(_model(environment=True)):  # type: ignore[misc]
        @model_validator(mode="before")
        @classmethod
        def _leave_out(cls, tables: dict[str, Any]) -> dict[str, Any]:
            group = {"group": {"id": "unknown", "topics": {"unknown": 1}}} if "group" in invalid else {}
            return {name: table for name, table in tables.items() if name not in invalid} | group

        def rules(self) -> Iterator[str | Rule]:
            return iter(())

    valid: Config = Valid.read(document)
    return valid
