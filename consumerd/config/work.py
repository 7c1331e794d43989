"""The tables that say how messages come in, what is done with them, and how the process behaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from consumerd.config.base import Bytes, Seconds, Section, WireBytes
from consumerd.consumer.config import ConsumerConfig
from consumerd.consumer.settings import ConsumerSettings
from consumerd.defaults import default_of
from consumerd.fetch.settings import LONGEST_WAIT, SHORTEST_WAIT, FetchSettings
from consumerd.handlers import FileDeadLetters, RetryPolicy
from consumerd.net import ConnectionSettings


class FetchSection(Section):
    """How messages come in."""

    size: WireBytes = Field(
        default_of(FetchSettings, "fetch_bytes"), description="Bytes asked for in one fetch (fetch.size)."
    )
    max_size: WireBytes = Field(
        default_of(FetchSettings, "max_fetch_bytes"),
        description=(
            "Bytes up to which a fetch grows for a message that is larger than `size`, and a compressed one (up to 64 "
            "MiB in any case) when it is opened."
        ),
    )
    idle_backoff: Seconds = Field(
        default_of(FetchSettings, "poll_backoff_max"),
        description="Longest pause between polls of idle partitions (fetcher.backoff.ms), in seconds.",
    )
    max_wait: float = Field(
        default_of(FetchSettings, "max_wait"),
        ge=SHORTEST_WAIT,
        le=LONGEST_WAIT,
        description=(
            "On brokers since 0.8: seconds for which a broker holds an answer back while partitions that are read to "
            "their ends have less than `min_bytes` of new messages (fetch.max.wait.ms)."
        ),
    )
    min_bytes: WireBytes = Field(
        default_of(FetchSettings, "min_bytes"),
        description=(
            "On brokers since 0.8: bytes of new messages that end this wait (fetch.min.bytes); at most `size`. More "
            "means fewer and larger answers, and messages that come up to `max_wait` later."
        ),
    )
    budget: Bytes = Field(
        default_of(ConsumerSettings, "budget"),
        description="Bytes of messages held in memory at most, all partitions together.",
    )
    partition_budget: Bytes = Field(
        default_of(ConsumerSettings, "partition_budget"),
        description="Bytes of messages held in memory at most for one partition.",
    )
    initial: Literal["earliest", "latest"] = Field(
        default_of(ConsumerSettings, "initial"),
        description="Where a partition without a committed offset starts (autooffset.reset).",
    )
    out_of_range: Literal["earliest", "latest", "fail"] = Field(
        default_of(FetchSettings, "on_out_of_range").value,
        description="Where to go on when the broker no longer has the offset (autooffset.reset), or fail.",
    )
    isolation: Literal["read_uncommitted", "read_committed"] = Field(
        default_of(ConsumerConfig, "isolation"),
        description=(
            "On brokers since 0.11: hand over all messages, or only those of transactions that were committed, and "
            "wait for those that are open (isolation.level)."
        ),
    )
    corrupt: Literal["fail", "skip", "park"] = Field(
        default_of(FetchSettings, "on_corrupt").value,
        description="A message that is corrupt: fail (stop the daemon), skip it, or park (leave) its partition.",
    )
    oversize: Literal["fail", "skip", "park"] = Field(
        default_of(FetchSettings, "on_oversize").value,
        description="A message that is larger than `max_size`: fail, skip it, or park its partition.",
    )
    socket_timeout: Seconds = Field(
        default_of(ConnectionSettings, "request_timeout"),
        description="Seconds to wait for an answer of a broker (socket.timeout.ms).",
    )
    connect_timeout: Seconds = Field(
        default_of(ConnectionSettings, "connect_timeout"), description="Seconds to wait for a connection to a broker."
    )

    @model_validator(mode="after")
    def _one_fetch_can_bring_enough(self) -> FetchSection:
        most = min(self.size, default_of(FetchSettings, "max_answer_bytes"))
        if self.min_bytes > most:
            raise ValueError(f"min_bytes must be at most {most}, which one fetch can bring, and is {self.min_bytes}")
        return self


class HandlerSection(Section):
    """What is done with the messages."""

    name: str = Field(
        "print",
        description="Entry point in the group consumerd.handlers, or `module:attribute`.",
        examples=["files"],
    )
    options: dict[str, Any] = Field(default_factory=dict, repr=False, description="Keyword arguments of the handler.")
    max_attempts: int = Field(
        default_of(RetryPolicy, "max_attempts"), ge=1, description="How often a batch is tried in all."
    )
    initial_backoff: Seconds = Field(
        default_of(RetryPolicy, "initial_backoff"),
        description="Seconds before the second attempt; doubled each time, jittered.",
    )
    max_backoff: Seconds = Field(
        default_of(RetryPolicy, "max_backoff"), description="Longest pause between attempts, in seconds."
    )
    on_failure: Literal["stop", "skip", "dead_letter"] = Field(
        default_of(RetryPolicy, "on_failure"),
        description="After the last attempt: stop the daemon, skip the message, or write it to dead_letter.",
    )
    dead_letter: Path | None = Field(
        None,
        description="File (NDJSON) for messages that failed; confirmed on disk before the offset is committed.",
        examples=["/var/lib/consumerd/dead-letters.ndjson"],
    )
    dead_letter_max_size: Bytes = Field(
        default_of(FileDeadLetters, "max_size"),
        description=(
            "Bytes up to which the dead_letter file grows; then the daemon stops. It may be moved away at any time."
        ),
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
        default_of(ConsumerConfig, "stop_timeout"),
        description="Seconds for a graceful stop: drain, commit, release. A second signal forces the exit.",
    )
    stall_warning: Seconds = Field(
        2.0,
        description=(
            "Seconds for which a handler may hold the event loop before the log says so, with the stack that holds it."
        ),
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
