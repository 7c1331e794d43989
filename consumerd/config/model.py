"""The configuration: one pydantic model, read from TOML with environment overrides, unknown keys refused.

Strategy: every key is a field of a table (`config_group`, `config_servers`, `config_work`), with its unit and default
in the description, and `config.example.toml` is
generated from these fields (`consumerd.config.example`), so there is one place to look. Defaults are those of 0.7.2
(golden notes, 8) unless the description says otherwise. `CONSUMERD_GROUP__ID=x` overrides `[group] id`, and
`CONSUMERD_KAFKA__SASL__PASSWORD` a key of a table within a table. Passwords are shown nowhere: not where something is
wrong with them, and not in what a value is printed as.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from consumerd.config.group import CommitSection, GroupSection, RebalanceSection
from consumerd.config.servers import KafkaSection, ZooKeeperSection
from consumerd.config.work import DaemonSection, FetchSection, HandlerSection, LogSection
from consumerd.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


class SparkTable(BaseModel):
    """Pipelines on Spark. The daemon keeps the table as it is: `consumerd.spark.spec` reads it."""

    model_config = ConfigDict(extra="allow", frozen=True, hide_input_in_errors=True)


class Config(BaseSettings):
    """The whole configuration of `consumerd run`."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        env_prefix="CONSUMERD_",
        env_nested_delimiter="__",
        env_nested_max_split=2,
        hide_input_in_errors=True,
    )

    group: GroupSection
    zookeeper: ZooKeeperSection = Field(default_factory=ZooKeeperSection)
    kafka: KafkaSection = Field(default_factory=KafkaSection)
    rebalance: RebalanceSection = Field(default_factory=RebalanceSection)
    fetch: FetchSection = Field(default_factory=FetchSection)
    commit: CommitSection = Field(default_factory=CommitSection)
    handler: HandlerSection = Field(default_factory=HandlerSection)
    daemon: DaemonSection = Field(default_factory=DaemonSection)
    log: LogSection = Field(default_factory=LogSection)
    spark: SparkTable = Field(default_factory=SparkTable, repr=False)

    @model_validator(mode="after")
    def _commits_fit(self) -> Config:
        if self.commit.version == 0 and (self.group.coordination != "fixed" or self.group.storage != "kafka"):
            raise ValueError(
                'commit.version = 0 needs group.coordination = "fixed" and group.offsets = "kafka": a request of that '
                "version does not say which member commits"
            )
        if self.commit.retention is not None and self.commit.version in (0, 1):
            raise ValueError(
                f"commit.retention and commit.version = {self.commit.version} do not go together: requests before "
                "version 2 say nothing of it"
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment wins over the file (whose content comes in as init arguments)."""
        return env_settings, init_settings


class _WithoutEnvironment(Config):
    """The same, of the document alone."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Models in an annotation, also within `X | None` and `dict[str, X]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models(part)]


def _known_keys(root: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Names of the keys that the table at `location` may hold."""
    annotation: Any = root
    for part in location:
        if getattr(annotation, "__origin__", None) is dict:
            annotation = annotation.__args__[1]
            continue
        fields = {key: field for model in _models(annotation)[:1] for key, field in model.model_fields.items()}
        if part not in fields:
            return []
        annotation = fields[str(part)].annotation
    if getattr(annotation, "__origin__", None) is dict:
        return []
    return [field.alias or key for model in _models(annotation)[:1] for key, field in model.model_fields.items()]


def first_problem(error: ValidationError, root: type[BaseModel]) -> str:
    """The first problem of `error`, which validating a `root` raised, as one sentence."""
    problems = error.errors()
    # A misspelt name says more than that the right one is missing.
    problem = next((each for each in problems if each["type"] == "extra_forbidden"), problems[0])
    *table, key = problem["loc"] or ("",)
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        nearest = difflib.get_close_matches(str(key), _known_keys(root, tuple(table)), n=1)
        hint = f", did you mean {nearest[0]!r}?" if nearest else ", which is not a key of this table."
        return f"unknown key {where!r}{hint}"
    if problem["type"] == "missing":
        return f"{where!r} is required."
    message = problem["msg"].removeprefix("Value error, ")
    if not where:  # keys of different tables, which the sentence names
        return f"{message}."
    return f"{where!r} is wrong: {message[:1].lower()}{message[1:]}."


def unreadable_variable(error: SettingsError) -> str:
    """The sentence for a variable of the environment that is not what its key takes."""
    found = re.search(r'field "(\w+)"', str(error))
    table = found[1] if found else "..."
    return (
        f"the environment variable CONSUMERD_{table.upper()}... cannot be read: write lists and tables as JSON, "
        "as in CONSUMERD_KAFKA__BOOTSTRAP='[\"kafka1:9092\"]'."
    )


def _refuse_unknown_variables(source: str) -> None:
    """Raise ConfigError for a variable that is meant for us, and names no table."""
    prefix, delimiter = str(Config.model_config["env_prefix"]), str(Config.model_config["env_nested_delimiter"])
    tables = {table.upper() for table in Config.model_fields}
    for name in sorted(os.environ):
        table, nested, _ = name.upper().removeprefix(prefix).partition(delimiter)
        if not name.upper().startswith(prefix) or table in tables:
            continue
        nearest = difflib.get_close_matches(table, tables, n=1, cutoff=0.6 if nested else 0.8)
        if nested or nearest:  # without a key it may be somebody else's
            meant = f", did you mean {name[: len(prefix)]}{nearest[0]}{nested}...?" if nearest else "."
            raise ConfigError(f"{source}: the environment variable {name} names no table{meant}")


def parse(document: dict[str, Any], source: str, *, environment: bool = True) -> Config:
    """Validate a parsed TOML document, together with the environment unless that is not to have a say.

    `source` names the document in errors. Raises ConfigError with one sentence about the first problem.
    """
    if environment:
        _refuse_unknown_variables(source)
    try:
        return (Config if environment else _WithoutEnvironment)(**document)
    except ValidationError as error:
        raise ConfigError(f"{source}: {first_problem(error, Config)}") from error
    except SettingsError as error:
        raise ConfigError(f"{source}: {unreadable_variable(error)}") from None  # its cause has the text


def load(path: Path) -> Config:
    """Read and validate a configuration file. Raises ConfigError."""
    return parse(read_document(path), str(path))


def read_document(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, unchecked. Raises ConfigError where it is none."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the configuration {path} is not TOML: {error}.") from error
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the configuration {path} is not UTF-8 text (byte {error.start}).") from error
