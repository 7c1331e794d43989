"""The options of the data source: text by name -> values, or one sentence that names the invalid option.

Strategy: a table declares each option, as the tables of the configuration do: its type, default, meaning, the reads
that take it and the option that it requires. Rules that concern several options (exactly one of these, this one only
with that one) are checked afterwards, in one place per rule. Nothing is looked up: whether a topic or a file exists is
found out when a query is planned. What several options say together (`location`, `starting`) is made of them.

The options of Kafka's own clients are in `kafka_options`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from consumerd.base.errors import did_you_mean
from consumerd.base.settings.kind import Ge, Le, Lt
from consumerd.base.settings.processing import FetchSection
from consumerd.base.settings.properties import Natural
from consumerd.base.settings.setting import BrokenRulesError, Setting, Tuned, WireSeconds
from consumerd.spark.source.columns import ParseMode
from consumerd.spark.source.kafka_options import KafkaOptions, TextBytes, option, option_name
from consumerd.spark.source.offsets import Offsets, Position
from consumerd.spark.source.option_texts import (
    OptionError,
    offsets_with_broker,
    plain_path,
    read_assign,
    read_brokers,
    read_layout,
    read_path_list,
    read_paths,
    read_pattern,
    read_position,
    read_servers,
    read_text,
    read_times,
    read_topics,
    read_zookeeper,
    reads,
    with_broker,
)
from consumerd.spark.source.option_values import (
    DEFAULT_SPLIT_BYTES,
    Assign,
    BrokersLocation,
    FilesLocation,
    Location,
    PathLocation,
    Subscribe,
    SubscribePattern,
    ZooKeeperLocation,
)
from consumerd.storage.log.archive_names import DEFAULT_LAYOUT
from consumerd.wire.v07 import DEFAULT_LIMITS, EARLIEST, LATEST, DecodeLimits

log = logging.getLogger(__name__)

#: Other spellings of options.
ALIASES: Final[Mapping[str, str]] = {"kafka.bootstrap.servers": "bootstrap"}
#: Prefixes of settings of a JVM client that define the connection, the data that are read and their form: one of these
#: that is not supported is refused, since the read would differ without it.
DECIDING: Final = (
    "kafka.ssl.", "kafka.sasl.", "kafka.security.", "kafka.isolation.", "kafka.bootstrap.", "kafka.key.deserializer",
    "kafka.value.deserializer", "kafka.auto.offset.", "kafka.interceptor.",
)  # fmt: skip
#: Options of the same use where offsets count bytes, and where they count messages.
BY_UNIT: Final[Mapping[str, str]] = {
    "maxSplitBytes": "maxRecordsPerPartition",
    "maxBytesPerTrigger": "maxOffsetsPerTrigger",
}
#: Ignored settings that were logged already, in lower case.
_passed_over: set[str] = set()
_Int64 = Annotated[int, Ge(1), Lt(1 << 63)]


def _files(name: str, value: str) -> str:
    return plain_path(read_text(name, value))


def _location(options: SourceOptions) -> Location:
    if options.zookeeper is not None:
        return ZooKeeperLocation(options.zookeeper)
    if options.brokers is not None:
        return BrokersLocation(options.brokers, options.partitions)
    if options.bootstrap:
        return options.cluster(options.bootstrap)
    if options.files is not None:
        return FilesLocation(options.files)
    paths = (*options.path, *options.paths)
    whole = (path if "://" in path or "::" in path else str(Path(path).absolute()) for path in paths)
    return PathLocation(tuple(whole), options.layout, options.broker)


def _topics(options: SourceOptions) -> Assign | Subscribe | SubscribePattern | None:
    if options.assign is not None:
        return with_broker(_only_broker(options), options.assign)
    return options.subscribe or options.subscribe_pattern


def _named(key: str) -> Any:
    """The offsets or times of a key, by the full names of partitions."""
    return Tuned(factory=lambda options: offsets_with_broker(_only_broker(options), getattr(options, key)))


def _only_broker(options: SourceOptions) -> int | None:
    """The id of the only broker, if the options name exactly one."""
    several = options.brokers is None or len(options.brokers) != 1
    return options.broker if several else next(iter(options.brokers or ()))


class SourceOptions(KafkaOptions):
    """All options, read and checked. Sizes are bytes, times seconds unless named otherwise."""

    path: tuple[str, ...] = option(
        (), "directories, files or URLs (fsspec) of segments, `.kafka` of 0.7 and [`.log` of 0.8 and later]"
        "(#segments-of-08-and-later), separated by commas or as a list in `.load([...])`; also `.gz` and `.zst` (extra "
        "`archive`), one task per file", of="where", text=read_paths,
    )  # fmt: skip
    #: What Spark makes of `load([...])`.
    paths: tuple[str, ...] = option((), text=read_path_list)
    zookeeper: str | None = option(
        None, "ZooKeeper connect string of the 0.7 cluster, with its chroot", of="where", text=read_zookeeper
    )
    brokers: Mapping[int, tuple[str, int]] | None = option(
        None, "brokers by id: `0=kafka0:9092,1=kafka1:9092`", of="where", text=read_brokers
    )
    bootstrap: tuple[tuple[str, int], ...] = option(
        (), "brokers of 0.8 and later: `kafka1:9092,kafka2:9092`; also `kafka.bootstrap.servers`", of="where",
        text=read_servers,
    )  # fmt: skip
    files: str | None = option(None, "directory that the daemon's `files` handler wrote", of="where", text=_files)
    layout: str = option(
        DEFAULT_LAYOUT, "how directories are named, as in `log export` ([tools](tools.md))", requires="path",
        text=read_layout,
    )  # fmt: skip
    broker: Natural | None = option(None, "id of the broker, likewise", requires="path")
    partitions: Annotated[int, Ge(1), Le(100_000)] | None = option(
        None, "number of partitions that each broker has of a topic, which 0.7 brokers do not report",
        requires="brokers",
    )  # fmt: skip
    assign: Assign | None = option(
        None, 'JSON: `{"clicks": ["0-0", "0-1"]}`; `{"clicks": [0, 1]}` with at most one broker (`broker`, or one in '
        "`brokers`), and for 0.8+", of="what", text=read_assign,
    )  # fmt: skip
    subscribe: Subscribe | None = option(None, "topics: `clicks,orders`", of="what", text=read_topics)
    subscribe_pattern: SubscribePattern | None = option(
        None, "a regular expression that matches whole names, with the rules of [topic filters](topic-filters.md)",
        of="what", text=read_pattern,
    )  # fmt: skip
    starting_offsets: Position | None = option(
        None, '`earliest`, `latest`, or JSON `{"clicks": {"0-0": 71, "0-1": -2}}`; -2 is earliest, -1 latest; with the '
        "id of the log as in [a checkpoint](#streams)", text=read_position,
    )  # fmt: skip
    ending_offsets: Position = option(LATEST, "in the same form", of="batch", text=read_position)
    #: Milliseconds since 1970.
    starting_timestamp: Annotated[int, Ge(0), Lt(1 << 63)] | None = option(
        None, "milliseconds since 1970. **Precise to a segment** before 0.10.1: older messages are included, none is "
        "skipped",
    )  # fmt: skip
    starting_offsets_by_timestamp: Offsets | None = option(
        None, 'the same per partition: `{"clicks": {"0-0": 1321000000000}}`', text=read_times
    )
    fail_on_data_loss: bool = option(
        True, "`true`: the query fails if offsets were deleted, or a topic was created again; `false`: it continues "
        "and logs a warning",
    )  # fmt: skip
    mode: ParseMode = option(
        ParseMode.PERMISSIVE, "`PERMISSIVE`, `DROPMALFORMED` or `FAILFAST`: how to treat corrupt messages"
    )
    include_headers: bool = option(False, "`true` adds the column `headers`")
    max_split_bytes: Annotated[TextBytes, Ge(0)] = option(
        DEFAULT_SPLIT_BYTES, "approximate bytes per task, as `64m`; `0`: a whole segment"
    )
    min_partitions: Annotated[int, Ge(1), Le(1_000_000)] = option(
        1, "minimum number of tasks, if there is enough data to divide"
    )
    max_bytes_per_trigger: Annotated[TextBytes, Ge(1)] | None = option(
        None, "approximate bytes per micro-batch, over all partitions", of="stream"
    )
    max_offsets_per_trigger: _Int64 | None = option(
        None, "messages per micro-batch: with `bootstrap` counted as offsets, including gaps; for 0.7 estimated from "
        "the size of the next messages", of="stream",
    )  # fmt: skip
    max_records_per_partition: _Int64 | None = option(
        None, "offsets per task, instead of `maxSplitBytes`", requires="bootstrap"
    )
    group_id: str | None = option(
        None, "group for which `commitOffsets` commits offsets to ZooKeeper or to the brokers, for lag tools, see "
        "[streams](#streams)", of="stream",
    )  # fmt: skip
    commit_offsets: bool = option(False, "`true` commits offsets of `groupId`", of="stream", requires="groupId")
    fetch_size: Annotated[TextBytes, Ge(1)] = option(FetchSection.size, "bytes per fetch (`1m`)", of="brokers")
    timeout: WireSeconds = option(
        FetchSection.socket_timeout,
        f"milliseconds for a request ({FetchSection.socket_timeout * 1000:,.0f})",
        of="brokers",
        alias="timeoutMs",
    )
    max_message_bytes: Annotated[TextBytes, Ge(1)] = option(
        DEFAULT_LIMITS.max_message_bytes, "limit that protects against damaged or hostile bytes"
    )
    max_decompressed_bytes: Annotated[TextBytes, Ge(1)] = option(DEFAULT_LIMITS.max_decompressed_bytes, "likewise")

    #: Where the messages are, and which partitions.
    location: Location = Tuned(factory=_location)
    topics: Assign | Subscribe | SubscribePattern = Tuned(factory=_topics)
    starting: Position | None = _named("starting_offsets")
    ending: Position = _named("ending_offsets")
    #: Milliseconds since 1970 by partition.
    starting_times: Offsets | None = _named("starting_offsets_by_timestamp")

    @property
    def counts_messages(self) -> bool:
        """Whether offsets count messages, not bytes."""
        return bool(self.bootstrap)

    @property
    def max_split(self) -> int:
        """In what offsets count, bytes or messages, as the next one; 0: nothing is cut that need not be."""
        return (self.max_records_per_partition or 0) if self.bootstrap else self.max_split_bytes

    @property
    def max_per_trigger(self) -> int | None:
        """The most of a micro-batch of a stream: bytes, or about so many messages."""
        given = self.max_bytes_per_trigger, self.max_offsets_per_trigger
        return next((each for each in given if each is not None), None)

    @property
    def max_messages(self) -> int | None:
        """The same in messages, where offsets count bytes; about so many."""
        return None if self.bootstrap else self.max_offsets_per_trigger

    @property
    def limits(self) -> DecodeLimits:
        """The limits of decoders."""
        return DecodeLimits(
            max_message_bytes=self.max_message_bytes, max_decompressed_bytes=self.max_decompressed_bytes
        )

    def start_of_batch(self) -> Position:
        """Return the position at which a batch starts; `starting_timestamp` comes before it."""
        return EARLIEST if self.starting is None else self.starting

    def start_of_stream(self) -> Position:
        """Return the position at which a stream without a checkpoint starts; `starting_timestamp` comes before it."""
        return LATEST if self.starting is None else self.starting

    def rules(self) -> Iterator[str]:
        """The rules about several options that are broken."""
        given = {option_name(self.fields[key]): getattr(self, key) for key in self.fields if key in self.given}
        if "paths" in given:
            given["path"] = self.paths
        broken = [
            *_exactly_one(given, "where", "where the messages are"),
            *_exactly_one(given, "what", "which topics to read"),
            *(
                f"option {name} requires option {other}; add that or remove it"
                for name in given
                if (other := OPTIONS[name].more["requires"]) and other not in given
            ),
            *_contradictions(given),
            *self.kafka_rules(given),
        ]
        yield from broken
        if not broken:
            for name in self.tuned:  # so that a partition that is named twice is an error now, and paths are whole
                getattr(self, name)


#: All options by name, in the order of the documentation.
OPTIONS: Final[Mapping[str, Setting]] = {option_name(each): each for each in SourceOptions.fields.values()}
#: Options that are never shown, in lower case.
SECRET: Final = frozenset(name.lower() for name, each in OPTIONS.items() if not each.more.get("repr", True))
#: The options that only a stream takes, and those that only a batch takes.
STREAM_ONLY: Final = tuple(name for name, each in OPTIONS.items() if each.more["of"] == "stream")
BATCH_ONLY: Final = tuple(name for name, each in OPTIONS.items() if each.more["of"] == "batch")
_LOWERED: Final = {name.lower(): name for name in OPTIONS} | dict(ALIASES)


def read_options(options: Mapping[str, str]) -> SourceOptions:
    """The options of `spark.read.format("consumerd")`; upper and lower case are the same. Raises OptionError."""
    given: dict[str, Any] = {}
    for key, value in options.items():
        name = _LOWERED.get(key.lower())
        if name is None and key.lower().startswith("kafka.") and not key.lower().startswith(DECIDING):
            _pass_over(key)
            continue
        if name is None:
            raise OptionError(_unknown(key))
        setting = OPTIONS[name]
        if setting.name in given:
            raise OptionError(f"option {name} is given twice, once as {key}; remove one of them")
        read = setting.more["text"] or reads(SourceOptions.kinds()[setting.name])
        given[setting.name] = read(name, value)
    try:
        return SourceOptions(**given)
    except BrokenRulesError as error:
        raise OptionError(str(error.rules[0])) from None


def _pass_over(key: str) -> None:
    """Log once that a setting of Kafka's clients is ignored."""
    if key.lower() not in _passed_over:
        _passed_over.add(key.lower())
        log.warning("option %s is not used by the data source consumerd and is ignored", key[:80])


def refuse_options(options: Iterable[str], names: Iterable[str], where: str) -> None:
    """Raise OptionError where one of `names` is given for a read that is `where` ("a batch", "a stream")."""
    given = {name.lower() for name in options}
    for name in names:
        if name.lower() in given:
            raise OptionError(f"option {name} is not supported in {where}; remove it")


def _exactly_one(given: Mapping[str, Any], of: str, what: str) -> Iterator[str]:
    names = [name for name, each in OPTIONS.items() if each.more["of"] == of]
    found = [name for name in names if name in given]
    every = f"{', '.join(names[:-1])} or {names[-1]}"
    if not found:
        yield f"no option says {what}; set exactly one of {every}"
    if len(found) > 1:
        yield f"the options {' and '.join(found)} both say {what}; set exactly one of {every}"


def _contradictions(given: Mapping[str, Any]) -> Iterator[str]:
    """The rules that concern more than one option."""
    starts = [name for name in ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp") if name in given]
    if len(starts) > 1:
        yield f"the options {starts[0]} and {starts[1]} both say where to start; set only one of them"
    if "maxOffsetsPerTrigger" in given and "maxBytesPerTrigger" in given:
        yield "the options maxBytesPerTrigger and maxOffsetsPerTrigger both limit a micro-batch; set only one of them"
    if "maxOffsetsPerTrigger" in given and "files" in given:
        yield (
            "option maxOffsetsPerTrigger is not supported with files, whose offsets count bytes; use maxBytesPerTrigger"
        )
    if "broker" in given and "{broker}" in given.get("layout", ""):
        yield "option broker conflicts with {broker} in option layout; remove one of them"
    for counted, instead in BY_UNIT.items():
        if "bootstrap" in given and counted in given:
            yield (
                f"option {counted} counts bytes, and offsets of brokers of 0.8 and later count messages; use {instead}"
            )
    if "brokers" in given:
        if "subscribePattern" in given:
            yield "option subscribePattern requires option zookeeper or path: brokers alone do not list their topics"
        if "subscribe" in given and "partitions" not in given:
            yield (
                "option subscribe requires option partitions with brokers, which do not say how many there are; "
                "set it, or name the partitions with assign"
            )
    if given.get("commitOffsets") and not given.keys() & {"zookeeper", "bootstrap"}:
        yield "option commitOffsets writes to ZooKeeper or brokers; it requires option zookeeper or bootstrap"
    if "groupId" in given and not given.get("commitOffsets"):
        yield (
            "option groupId requires commitOffsets=true, as offsets are never read from a group; set that or remove it"
        )


def _unknown(key: str) -> str:
    own = [name for name in OPTIONS if not name.startswith("kafka.")]
    if key.lower().startswith("kafka."):
        known = ", ".join((*ALIASES, *(name for name in OPTIONS if name not in own)))
        return f"option {key[:80]} is not supported in Spark; supported Kafka options: {known}"
    known = f"; known options: {', '.join(own)} and some of Kafka's"
    return f"unknown option {key[:80]}{did_you_mean(key, (*OPTIONS, *ALIASES), known)}"
