"""The tables of fetching, the handler, the process and its log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from consumerd.base.settings.kind import Finite, Ge, Le, Unit
from consumerd.base.settings.setting import Bytes, Field, Positive, Reload, Seconds, Section, WireBytes

if TYPE_CHECKING:
    from collections.abc import Iterator


#: Bytes of one response about many partitions (fetch.max.bytes).
MAX_ANSWER_BYTES: Final = 50 << 20


class FetchSection(Section):
    """How messages are fetched."""

    size: WireBytes = Field(
        1 << 20,
        v07="fetch.size",
        v08="fetch.message.max.bytes",
        keyword="fetch_size",
        description="Bytes requested in one fetch.",
    )
    max_size: WireBytes = Field(
        64 << 20,
        keyword="max_fetch_size",
        description=(
            "Maximum size of a message in bytes: a fetch grows up to it for a message that is larger than "
            "`size`, and compressed messages may decompress to it (to 64 MiB in any case)."
        ),
    )
    idle_backoff: Seconds = Field(
        1.0,
        v07="fetcher.backoff.ms",
        keyword="idle_backoff",
        description=(
            "On brokers of 0.7: longest pause between polls of idle partitions, in seconds. "
            "Partitions that have messages often are polled sooner."
        ),
    )
    max_wait: Annotated[float, Unit("seconds"), Ge(0.01), Le(60.0)] = Field(
        0.5,
        v08="fetch.wait.max.ms",
        kafka="fetch.max.wait.ms",
        keyword="max_wait",
        description=(
            "On brokers of 0.8 and later: seconds that a broker waits at most for `min_bytes` of new messages, "
            "once the partitions are read to their ends."
        ),
    )
    min_bytes: WireBytes = Field(
        1,
        v08="fetch.min.bytes",
        keyword="min_bytes",
        description=(
            "On brokers of 0.8 and later: bytes of new messages that a broker waits for; at "
            "most `size`. A larger value means fewer and larger responses, and messages that arrive up to "
            "`max_wait` later."
        ),
    )
    budget: Bytes = Field(
        128 << 20,
        keyword="budget",
        description="Maximum number of bytes of messages in memory, for all partitions together.",
    )
    partition_budget: Bytes = Field(
        16 << 20,
        keyword="partition_budget",
        description="Maximum number of bytes of messages in memory for one partition.",
    )
    initial: Literal["earliest", "latest"] = Field(
        "earliest",
        keyword="initial",
        description=(
            "Where to start in partitions without a committed offset (autooffset.reset). A partition that is added "
            "to a topic later is read from its beginning."
        ),
    )
    out_of_range: Literal["earliest", "latest", "nearest", "fail"] = Field(
        "earliest",
        keyword="out_of_range",
        description=(
            "Where to continue when the broker does not have the offset (autooffset.reset), or `fail`. `nearest` is "
            "the beginning of the log for an offset before it, and the end for one after that."
        ),
    )
    log_changed: Literal["continue", "stop", "park"] = Field(
        "continue",
        keyword="log_changed",
        description=(
            "What to do when the log is another one than the offset was read from, since the topic was created again "
            "or the log was cut off: continue (with all that is new of the log), stop the daemon, or park the "
            "partition (stop reading it)."
        ),
    )
    isolation: Literal["read_uncommitted", "read_committed"] = Field(
        "read_uncommitted",
        kafka="isolation.level",
        keyword="isolation",
        description=(
            "On brokers of 0.11 and later: deliver all messages, or only those of committed transactions, "
            "waiting for open ones to end."
        ),
    )
    corrupt: Literal["fail", "skip", "park"] = Field(
        "fail",
        keyword="corrupt",
        description=(
            "What to do with a corrupt message: fail (stop the daemon), skip it, or park its partition (stop "
            "reading it)."
        ),
    )
    oversize: Literal["fail", "skip", "park"] = Field(
        "fail",
        keyword="oversize",
        description="What to do with a message that is larger than `max_size`: fail, skip it, or park its partition.",
    )
    socket_timeout: Seconds = Field(
        30.0,
        v07="socket.timeout.ms",
        v08="socket.timeout.ms",
        keyword="socket_timeout",
        description="Seconds to wait for a response of a broker.",
    )
    connect_timeout: Seconds = Field(
        5.0, keyword="connect_timeout", description="Seconds to wait for a connection to a broker."
    )

    def rules(self) -> Iterator[str]:
        """The rules about several keys that are broken."""
        most = min(self.size, MAX_ANSWER_BYTES)
        if self.min_bytes > most:
            yield f"min_bytes must be at most {most}, which one fetch can return, not {self.min_bytes}"


class HandlerSection(Section, reload=Reload.HANDLER):
    """The handler of the messages, and what to do when it fails."""

    name: str = Field(
        "print",
        description="Handler: an entry point in the group consumerd.handlers, or `module:attribute`.",
        examples=["files"],
    )
    options: dict[str, Any] = Field(default_factory=dict, repr=False, description="Keyword arguments of the handler.")
    decoder: str = Field(
        "bytes",
        description=(
            "Decoder of the messages' payloads: bytes (none), text, json (extra `json`), avro (extra `avro`), another "
            "entry point in the group consumerd.decoders, or `module:attribute`. A message that cannot be decoded is "
            "treated as `on_failure` says, by itself."
        ),
        examples=["json"],
    )
    decoder_options: dict[str, Any] = Field(
        default_factory=dict,
        repr=False,
        description="Keyword arguments of the decoder; avro requires `schema`.",
    )
    middleware: list[str] = Field(
        default_factory=list,
        description=(
            "Middleware around each call of the handler, the outermost first: slow_calls, another entry point in the "
            "group consumerd.middleware, or `module:attribute`."
        ),
        examples=[["slow_calls"]],
    )
    middleware_options: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        repr=False,
        description="Keyword arguments of middleware, by its name, such as { slow_calls = { threshold = 5.0 } }.",
    )
    max_batch: int | None = Field(
        None,
        ge=1,
        description="Messages in one batch at most (a compressed message stays whole). [default: as they are fetched]",
        examples=[500],
    )
    max_bytes: Bytes | None = Field(
        None,
        description="Bytes of payloads in one batch at most; a larger message is one of its own. [default: as fetched]",
        examples=[1048576],
    )
    linger: Annotated[float, Unit("seconds"), Finite(), Ge(0), Le(3600)] = Field(
        0.0,
        description="Seconds for which a batch that is not full waits for more messages of its partition.",
    )
    order: Literal["partition", "key"] = Field(
        "partition",
        description=(
            "What is handled in order: each partition, or each key in a partition, with `concurrency` calls at once. "
            "Messages of 0.7 have no keys: there the handler has to say what the key is (`key(message)`)."
        ),
    )
    concurrency: int = Field(
        1, ge=1, le=10_000, description='Calls of the handler at once for one partition, with order = "key".'
    )
    processes: int | None = Field(
        None,
        ge=1,
        le=256,
        description=(
            "Run a synchronous handler (`def`) in up to this number of worker processes at once, for work that keeps a "
            "processor busy."
        ),
        examples=[4],
    )
    max_rate: Positive | None = Field(
        None,
        reload=Reload.AT_ONCE,
        description="Messages per second that the handler gets at most, of all partitions.",
        examples=[1000.0],
    )
    max_attempts: int = Field(5, ge=1, description="Maximum number of attempts for a batch.")
    initial_backoff: Seconds = Field(
        0.1,
        description="Seconds before the second attempt; doubled for each further one, with jitter.",
    )
    max_backoff: Seconds = Field(30.0, description="Longest pause between attempts, in seconds.")
    on_failure: Literal["stop", "skip", "dead_letter"] = Field(
        "stop",
        description="What to do after the last attempt: stop the daemon, skip the message, or write it to dead_letter.",
    )
    on_disk_full: Literal["wait", "stop"] = Field(
        "wait",
        description=(
            "What to do when the handler or the dead_letter file finds its disk full, over quota or read-only: wait "
            "for room, which uses no attempts, or stop the daemon."
        ),
    )
    dead_letter: Path | None = Field(
        None,
        description=(
            "NDJSON file for messages that failed; synced to disk before the offset is committed. With "
            "dead_letter_topic it is for messages that are too large for the topic; "
            "[default there: TOPIC.too-large.ndjson in $STATE_DIRECTORY or the working directory]"
        ),
        examples=["/var/lib/consumerd/dead-letters.ndjson"],
    )
    dead_letter_file_size: Bytes = Field(
        64 << 20,
        description="Bytes at which the dead_letter file is renamed (dead-letters.000001.ndjson) and a new one begun.",
    )
    dead_letter_max_size: Bytes = Field(
        1 << 30,
        description=(
            "Maximum size of all dead_letter files in bytes; the daemon stops when it is reached. The files may be "
            "moved away at any time."
        ),
    )
    dead_letter_topic: str | None = Field(
        None,
        min_length=1,
        description=(
            "A topic of the same cluster for messages that failed; confirmed by its brokers before the offset is "
            "committed. It must exist, or be created by the brokers at the start."
        ),
        examples=["events-dead-letters"],
    )
    dead_letter_as: Literal["message", "json"] = Field(
        "message",
        description=(
            "In dead_letter_topic: the message itself with headers that say why it failed, or a JSON object. Brokers "
            "before 0.11 have no headers and need json; those of 0.7 get it in any case."
        ),
    )
    timeout: Seconds | None = Field(
        None, description="Seconds after which an attempt is cancelled and counts as failed.", examples=[60.0]
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
        if (self.on_failure == "dead_letter") != has_place:
            yield 'on_failure = "dead_letter" and a dead_letter file or dead_letter_topic go together'


class DaemonSection(Section):
    """The process."""

    stop_timeout: Seconds = Field(
        20.0,
        keyword="stop_timeout",
        description="Seconds for a graceful stop: drain, commit, release. A second signal forces the exit.",
    )
    stall_warning: Seconds = Field(
        2.0,
        description=(
            "Seconds that a handler may block the event loop before an error is logged, with the line that blocks it."
        ),
    )
    loop: Literal["auto", "uvloop", "asyncio"] = Field(
        "auto", description="Event loop; `auto` uses uvloop if it is installed."
    )


class LogSection(Section, reload=Reload.AT_ONCE):
    """The daemon's own log, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="Lowest level to show.")
    format: Literal["auto", "console", "json"] = Field(
        "auto", description="Format of the log; `auto` is console on a terminal, else json."
    )
