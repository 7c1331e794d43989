"""The configuration: one pydantic model, read from TOML with environment overrides, unknown keys refused.

Strategy: every key is a field here with its unit and default in the description, and `config.example.toml` is
generated from these fields (`consumerd.daemon.example`), so there is one place to look. Defaults are those of 0.7.2
(golden notes, 8) unless the description says otherwise. `CONSUMERD_GROUP__ID=x` overrides `[group] id`.
"""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from consumerd.errors import ConfigError

Seconds = Annotated[float, Gt(0)]
Bytes = Annotated[int, Gt(0)]


class Section(BaseModel):
    """A table of the file. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


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


class TlsSection(Section):
    """TLS to the servers."""

    ca: Path | None = Field(
        None,
        description="PEM file with the authorities to trust; the system's by default.",
        examples=["/etc/consumerd/ca.pem"],
    )
    certificate: Path | None = Field(
        None, description="PEM file with the client certificate.", examples=["/etc/consumerd/client.pem"]
    )
    key: Path | None = Field(
        None, description="PEM file with the client's private key.", examples=["/etc/consumerd/client.key"]
    )
    check_hostname: bool = Field(True, description="Whether the certificate has to name the host.")


class ZooKeeperSection(Section):
    """The one ZooKeeper session."""

    connect: str = Field(
        "127.0.0.1:2181",
        description="Hosts and, after them, the chroot (made when missing).",
        examples=["zk1:2181,zk2:2181,zk3:2181/kafka"],
    )
    session_timeout: Seconds = Field(6.0, description="Seconds without contact after which the session is over.")
    connection_timeout: Seconds = Field(
        30.0, description="Seconds to wait for a first connection before giving up (0.7.2: the session timeout)."
    )
    auth: tuple[str, ...] = Field(
        (), description="Credentials, `digest:user:password` each; sent again after every reconnect."
    )
    acl: str = Field(
        "open",
        description="Access of nodes that we create: `open`, `creator-all`, or `scheme:id:rwcda` entries with commas.",
    )
    tls: TlsSection | None = Field(None, description="Speak TLS (the server's secureClientPort).")


class SaslSection(Section):
    """Who we are, for brokers that ask."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        "SCRAM-SHA-512", description="How to prove it. PLAIN shows the password: use it over TLS only."
    )
    user: str = Field(min_length=1, description="Name of the user.", examples=["consumerd"])
    password: str | None = Field(None, min_length=1, description="The password, or else `password_file`.")
    password_file: Path | None = Field(
        None,
        description="File whose first line is the password, such as a mounted secret.",
        examples=["/run/secrets/kafka-password"],
    )

    @model_validator(mode="after")
    def _one_password(self) -> SaslSection:
        if (self.password is None) == (self.password_file is None):
            raise ValueError("give exactly one of password and password_file")
        return self


class KafkaSection(Section):
    """The brokers, where they coordinate the group or partitions are fixed (Kafka 0.8 and later)."""

    bootstrap: tuple[str, ...] = Field(
        ("127.0.0.1:9092",),
        min_length=1,
        description="Brokers to begin with, `host:port` each; they tell of the others.",
        examples=[["kafka1:9092", "kafka2:9092"]],
    )
    client_id: str = Field("consumerd", description="Who we say that we are: brokers write it to their logs.")
    connection_timeout: Seconds = Field(
        30.0, description="Seconds to wait for a first broker that answers before giving up."
    )
    tls: TlsSection | None = Field(None, description="Speak TLS (a listener of SSL or SASL_SSL).")
    sasl: SaslSection | None = Field(None, description="Authenticate (a listener of SASL_PLAINTEXT or SASL_SSL).")


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


class FetchSection(Section):
    """How messages come in."""

    size: Bytes = Field(1 << 20, description="Bytes asked for in one fetch (fetch.size).")
    max_size: Bytes = Field(
        64 << 20, description="Bytes up to which a fetch grows for a message that is larger than `size`."
    )
    idle_backoff: Seconds = Field(
        1.0, description="Longest pause between polls of idle partitions (fetcher.backoff.ms), in seconds."
    )
    budget: Bytes = Field(128 << 20, description="Bytes of messages held in memory at most, all partitions together.")
    partition_budget: Bytes = Field(16 << 20, description="Bytes of messages held in memory at most for one partition.")
    initial: Literal["earliest", "latest"] = Field(
        "earliest", description="Where a partition without a committed offset starts (autooffset.reset)."
    )
    out_of_range: Literal["earliest", "latest", "fail"] = Field(
        "earliest", description="Where to go on when the broker no longer has the offset (autooffset.reset), or fail."
    )
    corrupt: Literal["fail", "skip", "park"] = Field(
        "fail",
        description="A message that is corrupt: fail (stop the daemon), skip it, or park (leave) its partition.",
    )
    oversize: Literal["fail", "skip", "park"] = Field(
        "fail", description="A message that is larger than `max_size`: fail, skip it, or park its partition."
    )
    socket_timeout: Seconds = Field(30.0, description="Seconds to wait for an answer of a broker (socket.timeout.ms).")
    connect_timeout: Seconds = Field(5.0, description="Seconds to wait for a connection to a broker.")


class CommitSection(Section):
    """When handled offsets are written to ZooKeeper or Kafka."""

    interval: Seconds = Field(10.0, description="Seconds between commits (autocommit.interval.ms).")


class HandlerSection(Section):
    """What is done with the messages."""

    name: str = Field(
        "print",
        description="Entry point in the group consumerd.handlers, or `module:attribute`.",
        examples=["files"],
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of the handler.")
    max_attempts: int = Field(5, ge=1, description="How often a batch is tried in all.")
    initial_backoff: Seconds = Field(0.1, description="Seconds before the second attempt; doubled each time, jittered.")
    max_backoff: Seconds = Field(30.0, description="Longest pause between attempts, in seconds.")
    on_failure: Literal["stop", "skip", "dead_letter"] = Field(
        "stop", description="After the last attempt: stop the daemon, skip the message, or write it to dead_letter."
    )
    dead_letter: Path | None = Field(
        None,
        description="File (NDJSON) for messages that failed; confirmed on disk before the offset is committed.",
        examples=["/var/lib/consumerd/dead-letters.ndjson"],
    )
    timeout: Seconds | None = Field(
        None, description="Seconds after which one attempt is cancelled and counts as failed.", examples=[60.0]
    )

    @model_validator(mode="after")
    def _dead_letter_has_a_place(self) -> HandlerSection:
        if (self.on_failure == "dead_letter") != (self.dead_letter is not None):
            raise ValueError('on_failure = "dead_letter" and a dead_letter file go together')
        return self


class DaemonSection(Section):
    """The process."""

    stop_timeout: Seconds = Field(
        20.0, description="Seconds for a graceful stop: drain, commit, release. A second signal forces the exit."
    )
    loop: Literal["auto", "uvloop", "asyncio"] = Field(
        "auto", description="Event loop; auto takes uvloop if installed."
    )


class LogSection(Section):
    """The daemon's own log, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least severe level to show.")
    format: Literal["auto", "console", "json"] = Field(
        "auto", description="auto is console on a terminal and json elsewhere."
    )


class SparkTable(BaseModel):
    """Pipelines on Spark. The daemon keeps the table as it is: `consumerd.spark.spec` reads it."""

    model_config = ConfigDict(extra="allow", frozen=True)


class Config(BaseSettings):
    """The whole configuration of `consumerd run`."""

    model_config = SettingsConfigDict(
        extra="forbid", frozen=True, env_prefix="CONSUMERD_", env_nested_delimiter="__", env_nested_max_split=1
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
    spark: SparkTable = Field(default_factory=SparkTable)

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
    problem = error.errors()[0]
    *table, key = problem["loc"] or ("",)
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        nearest = difflib.get_close_matches(str(key), _known_keys(root, tuple(table)), n=1)
        hint = f", did you mean {nearest[0]!r}?" if nearest else ", which is not a key of this table."
        return f"unknown key {where!r}{hint}"
    if problem["type"] == "missing":
        return f"{where!r} is required."
    message = problem["msg"].removeprefix("Value error, ")
    return f"{where!r} is wrong: {message[:1].lower()}{message[1:]}."


def parse(document: dict[str, Any], source: str) -> Config:
    """Validate a parsed TOML document together with the environment.

    `source` names the document in errors. Raises ConfigError with one sentence about the first problem.
    """
    try:
        return Config(**document)
    except ValidationError as error:
        raise ConfigError(f"{source}: {first_problem(error, Config)}") from error


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
