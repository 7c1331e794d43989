"""The tables of fetching, the handler, the process and its log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from consumerd.base.settings.kind import Finite, Ge, Le, StartText, Unit
from consumerd.base.settings.moments import STARTS, is_start
from consumerd.base.settings.setting import (
    Bytes,
    Field,
    Names,
    Positive,
    Reload,
    Seconds,
    SecondsOrZero,
    Section,
    WireBytes,
)

#: Bytes of one response about many partitions (fetch.max.bytes).
MAX_ANSWER_BYTES: Final = 50 << 20
#: Where to continue when the broker does not have the offset (0.7.2: autooffset.reset). Nearest: the beginning for an
#: offset before it, the end for one after that.
OutOfRangePolicy = Literal["earliest", "latest", "nearest", "fail"]
#: What to do with a log that has become another one under a position: read what is new of it (a truncated log from
#: where it differs, a new one from its beginning), or stop or park as for a bad message.
LogChangePolicy = Literal["continue", "stop", "park"]
#: What to do with an unreadable message, larger than `max_size` or corrupt. Fail: report the partition as failed; the
#: listener decides, usually by stopping the daemon. Skip: continue after the message if its end is known, and report
#: it; park if it is not. Park: stop fetching this partition, report it, and keep owning it; all others continue.
BadMessagePolicy = Literal["fail", "skip", "park"]
#: What to do after the last attempt.
OnFailure = Literal["stop", "skip", "dead_letter", "retry_topic"]
#: Whether to wait for room on a full disk, which takes no attempts, or to stop at once.
OnDiskFull = Literal["wait", "stop"]
_DELAY_UNITS: Final = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))


class FetchSection(Section):
    """How messages are fetched."""

    size: WireBytes = Field(
        1 << 20,
        "Bytes requested in one fetch.",
        names=Names(keyword="fetch_size", v07="fetch.size", v08="fetch.message.max.bytes"),
    )
    max_size: WireBytes = Field(
        64 << 20,
        "Maximum size of a message in bytes: a fetch grows up to it for a message that is larger than `size`, and "
        "compressed messages may decompress to it (to 64 MiB in any case; more is corrupt). Brokers of 0.10.1 and "
        "later send a larger message whole, and it is handled.",
        names=Names(keyword="max_fetch_size"),
    )
    idle_backoff: Seconds = Field(
        1.0,
        "On brokers of 0.7: longest pause between polls of idle partitions, in seconds. Partitions that have messages "
        "often are polled sooner.",
        names=Names(keyword="idle_backoff", v07="fetcher.backoff.ms"),
    )
    max_wait: Annotated[float, Unit("seconds"), Ge(0.01), Le(60.0)] = Field(
        0.5,
        "On brokers of 0.8 and later: seconds that a broker waits at most for `min_bytes` of new messages, once the "
        "partitions are read to their ends.",
        names=Names(keyword="max_wait", v08="fetch.wait.max.ms", kafka="fetch.max.wait.ms"),
    )
    min_bytes: WireBytes = Field(
        1,
        "On brokers of 0.8 and later: bytes of new messages that a broker waits for; at most `size`. A larger value "
        "means fewer and larger responses, and messages that arrive up to `max_wait` later.",
        names=Names(keyword="min_bytes", v08="fetch.min.bytes"),
    )
    budget: Bytes = Field(
        128 << 20,
        "Maximum number of bytes of messages in memory, for all partitions together.",
        names=Names(keyword="budget"),
    )
    partition_budget: Bytes = Field(
        16 << 20,
        "Maximum number of bytes of messages in memory for one partition.",
        names=Names(keyword="partition_budget"),
    )
    initial: Annotated[str, StartText()] = Field(
        "earliest",
        "Where to start in partitions without a committed offset (autooffset.reset): `earliest`, `latest`, the first "
        "message of a time in ISO 8601 (UTC unless it has an offset), or of a duration before now (`7d`, `1d12h`). "
        "A partition that is added to a topic later is read from its beginning.",
        names=Names(keyword="initial"),
    )
    initial_by_topic: dict[str, str] | None = Field(
        None,
        "The same for single topics that are consumed, each with its own value, in place of `initial`.",
        names=Names(keyword="initial_by_topic"),
        since="0.2.0",
        examples=[{"events": "7d"}],
    )
    out_of_range: OutOfRangePolicy = Field(
        "earliest",
        "Where to continue when the broker does not have the offset (autooffset.reset), or `fail`. `nearest` is the "
        "beginning of the log for an offset before it, and the end for one after that.",
        names=Names(keyword="out_of_range"),
    )
    log_changed: LogChangePolicy = Field(
        "continue",
        "What to do when the log is another one than the offset was read from, since the topic was created again or "
        "the log was cut off: continue (with all that is new of the log), stop the daemon, or park the partition "
        "(stop reading it).",
        names=Names(keyword="log_changed"),
        since="0.2.0",
    )
    isolation: Literal["read_uncommitted", "read_committed"] = Field(
        "read_uncommitted",
        "On brokers of 0.11 and later: deliver all messages, or only those of committed transactions, waiting for "
        "open ones to end.",
        names=Names(keyword="isolation", kafka="isolation.level"),
    )
    corrupt: BadMessagePolicy = Field(
        "fail",
        "What to do with a corrupt message: fail (stop the daemon), skip it, or park its partition (stop reading it).",
        names=Names(keyword="corrupt"),
    )
    oversize: BadMessagePolicy = Field(
        "fail",
        "On brokers before 0.10.1: what to do with a message that is larger than `max_size`: fail, skip it, or park "
        "its partition.",
        names=Names(keyword="oversize"),
    )
    socket_timeout: Seconds = Field(
        30.0,
        "Seconds to wait for a response of a broker.",
        names=Names(keyword="socket_timeout", v07="socket.timeout.ms", v08="socket.timeout.ms"),
    )
    connect_timeout: Seconds = Field(
        5.0, "Seconds to wait for a connection to a broker.", names=Names(keyword="connect_timeout")
    )

    def rules(self) -> Iterator[str]:
        """The rules about several keys that are broken."""
        most = min(self.size, MAX_ANSWER_BYTES)
        if self.min_bytes > most:
            yield f"min_bytes must be at most {most}, which one fetch can return, not {self.min_bytes}"
        for topic, text in (self.initial_by_topic or {}).items():
            if not is_start(text):
                yield f"initial_by_topic of {topic!r} must be {STARTS}"


class RetryPolicy(Section, reload=Reload.HANDLER):
    """What to do when a handler fails."""

    max_attempts: int = Field(5, "Maximum number of attempts for a batch.", ge=1)
    initial_backoff: SecondsOrZero = Field(
        0.1, "Seconds before the second attempt; doubled for each further one, with jitter."
    )
    max_backoff: Seconds = Field(30.0, "Longest pause between attempts, in seconds.")
    bisect: bool = Field(
        False,
        "Divide a batch that failed at its last attempt: its halves are tried, and the halves of what fails, until "
        "each message that fails stands alone. For handlers of batches that do not say how far they came.",
        since="0.2.0",
    )
    on_failure: OnFailure = Field(
        "stop",
        "What to do after the last attempt: stop the daemon, skip the message, write it to dead_letter, or try it "
        "again later through retry_topic, and write it to dead_letter in the end.",
    )
    on_disk_full: OnDiskFull = Field(
        "wait",
        "What to do when the handler or the dead_letter file finds its disk full, over quota or read-only: wait for "
        "room, which uses no attempts, or stop the daemon.",
        since="0.2.0",
    )
    timeout: Seconds | None = Field(
        None, "Seconds after which an attempt is cancelled and counts as failed.", examples=[60.0]
    )


class HandlerSection(RetryPolicy, reload=Reload.HANDLER):
    """The handler of the messages, and what to do when it fails."""

    name: str = Field(
        "print", "Handler: an entry point in the group consumerd.handlers, or `module:attribute`.", examples=["files"]
    )
    options: dict[str, Any] = Field(description="Keyword arguments of the handler.", default_factory=dict, repr=False)
    decoder: str = Field(
        "bytes",
        "Decoder of the messages' payloads: bytes (none), text, json (extra `json`), avro (extra `avro`), another "
        "entry point in the group consumerd.decoders, or `module:attribute`. A message that cannot be decoded is "
        "treated as `on_failure` says, by itself.",
        examples=["json"],
        since="0.2.0",
    )
    decoder_options: dict[str, Any] = Field(
        description="Keyword arguments of the decoder; avro requires `schema`.",
        default_factory=dict,
        repr=False,
        since="0.2.0",
    )
    middleware: list[str] = Field(
        description="Middleware around each call of the handler, the outermost first: slow_calls, another entry point "
        "in the group consumerd.middleware, or `module:attribute`.",
        default_factory=list,
        examples=[["slow_calls"]],
        since="0.2.0",
    )
    middleware_options: dict[str, dict[str, Any]] = Field(
        description="Keyword arguments of middleware, by its name, such as { slow_calls = { threshold = 5.0 } }.",
        default_factory=dict,
        repr=False,
        since="0.2.0",
    )
    max_batch: int | None = Field(
        None,
        "Messages in one batch at most (a compressed message stays whole). [default: as they are fetched]",
        ge=1,
        examples=[500],
        since="0.2.0",
    )
    max_bytes: Bytes | None = Field(
        None,
        "Bytes of payloads in one batch at most; a larger message is one of its own. [default: as fetched]",
        examples=[1048576],
        since="0.2.0",
    )
    linger: Annotated[float, Unit("seconds"), Finite(), Ge(0), Le(3600)] = Field(
        0.0, "Seconds for which a batch that is not full waits for more messages of its partition.", since="0.2.0"
    )
    order: Literal["partition", "key"] = Field(
        "partition",
        "What is handled in order: each partition, or each key in a partition, with `concurrency` calls at once. "
        "Messages of 0.7 have no keys: there the handler has to say what the key is (`key(message)`).",
        since="0.2.0",
    )
    concurrency: int = Field(
        1, 'Calls of the handler at once for one partition, with order = "key".', ge=1, le=10_000, since="0.2.0"
    )
    processes: int | None = Field(
        None,
        "Run a synchronous handler (`def`) in up to this number of worker processes at once, for work that keeps a "
        "processor busy.",
        ge=1,
        le=256,
        examples=[4],
        since="0.2.0",
    )
    max_rate: Positive | None = Field(
        None,
        "Messages per second that the handler gets at most, of all partitions.",
        reload=Reload.AT_ONCE,
        examples=[1000.0],
        since="0.2.0",
    )
    delay: Seconds | None = Field(
        None,
        "Seconds after its timestamp before which a message is not handled. In a retry topic they count from the "
        "failure. Messages without a timestamp (before 0.10) do not wait.",
        reload=Reload.RESTART,
        examples=[300.0],
        since="0.2.0",
    )
    retry_topic: str | None = Field(
        None,
        "The beginning of the names of the topics for messages that are tried again later, one for each of "
        "retry_delays: `events-retry` makes events-retry-30s and so on. This daemon consumes them, too, in the same "
        "group. Brokers of 0.11 and later.",
        min_length=1,
        reload=Reload.RESTART,
        examples=["events-retry"],
        since="0.2.0",
    )
    retry_delays: tuple[Annotated[int, Unit("seconds"), Ge(1), Le(10**9)], ...] = Field(
        (30, 300, 3600),
        'Seconds after a failure at which a message is tried again, with on_failure = "retry_topic": each has a topic '
        "of its own.",
        reload=Reload.RESTART,
        since="0.2.0",
    )
    retry_order: Literal["none", "key"] = Field(
        "none",
        'What stays in order through retry topics: nothing, or each key. With "key" a message whose key has an older '
        "message in a retry topic follows it there without an attempt.",
        reload=Reload.RESTART,
        since="0.2.0",
    )
    dead_letter: Path | None = Field(
        None,
        "NDJSON file for messages that failed; synced to disk before the offset is committed. With dead_letter_topic "
        "it is for messages that are too large for the topic; [default there: TOPIC.too-large.ndjson in "
        "$STATE_DIRECTORY or the working directory]",
        examples=["/var/lib/consumerd/dead-letters.ndjson"],
    )
    dead_letter_file_size: Bytes = Field(
        64 << 20,
        "Bytes at which the dead_letter file is renamed (dead-letters.000001.ndjson) and a new one begun.",
        since="0.2.0",
    )
    dead_letter_max_size: Bytes = Field(
        1 << 30,
        "Maximum size of all dead_letter files in bytes; the daemon stops when it is reached. The files may be moved "
        "away at any time.",
    )
    dead_letter_topic: str | None = Field(
        None,
        "A topic of the same cluster for messages that failed; confirmed by its brokers before the offset is "
        "committed. It must exist, or be created by the brokers at the start.",
        min_length=1,
        examples=["events-dead-letters"],
        since="0.2.0",
    )
    dead_letter_as: Literal["message", "json"] = Field(
        "message",
        "In dead_letter_topic: the message itself with headers that say why it failed, or a JSON object. Brokers "
        "before 0.11 have no headers and need json; those of 0.7 get it in any case.",
        since="0.2.0",
    )

    def rules(self) -> Iterator[str]:
        """The rules about several keys that are broken."""
        if self.concurrency > 1 and self.order != "key":
            yield 'concurrency above 1 needs order = "key": a partition in order is one call at a time'
        if unknown := sorted(self.middleware_options.keys() - set(self.middleware)):
            yield f"middleware_options are given for {unknown[0]!r}, which middleware does not name"
        if len(set(self.middleware)) < len(self.middleware):
            yield "middleware names the same twice"
        has_place = self.dead_letter is not None or self.dead_letter_topic is not None
        if (self.on_failure in ("dead_letter", "retry_topic")) != has_place:
            yield f'on_failure = "{self._keeping}" and a dead_letter file or dead_letter_topic go together'
        if (self.on_failure == "retry_topic") != (self.retry_topic is not None):
            yield 'on_failure = "retry_topic" and retry_topic go together'
        if self.retry_order == "key":
            if self.on_failure != "retry_topic":
                yield 'retry_order = "key" needs on_failure = "retry_topic"'
            if self.bisect:
                yield 'retry_order = "key" and bisect do not go together: halves are not in the order of keys'
        if not self.retry_delays or len(set(self.retry_delays)) < len(self.retry_delays):
            yield "retry_delays must be one or more different numbers of seconds"

    @property
    def retry_topics(self) -> tuple[str, ...]:
        """The topics for messages that are tried again later, in the order in which a message passes through them."""
        if self.on_failure != "retry_topic":
            return ()
        return tuple(f"{self.retry_topic}-{delay_name(delay)}" for delay in self.retry_delays)

    @property
    def failure_topic(self) -> str | None:
        """The topic that messages go to when they fail: the first retry topic, or that of the dead letters."""
        return next(iter(self.retry_topics), self.dead_letter_topic)

    @property
    def _keeping(self) -> str:
        return "retry_topic" if self.on_failure == "retry_topic" else "dead_letter"


def delay_name(seconds: int) -> str:
    """A number of seconds as the end of a topic's name: 30s, 5m, 1h, 1d."""
    return next(f"{seconds // unit}{name}" for unit, name in _DELAY_UNITS if not seconds % unit)


class DaemonSection(Section):
    """The process."""

    stop_timeout: Seconds = Field(
        20.0,
        "Seconds for a graceful stop: drain, commit, release. A second signal forces the exit.",
        names=Names(keyword="stop_timeout"),
    )
    stall_warning: Seconds = Field(
        2.0, "Seconds that a handler may block the event loop before an error is logged, with the line that blocks it."
    )
    loop: Literal["auto", "uvloop", "asyncio"] = Field("auto", "Event loop; `auto` uses uvloop if it is installed.")


class LogSection(Section, reload=Reload.AT_ONCE):
    """The daemon's own log, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field("info", "Lowest level to show.")
    format: Literal["auto", "console", "json"] = Field(
        "auto", "Format of the log; `auto` is console on a terminal, else json."
    )
