"""Spans of handler calls, commits and rebalances, as an exporter gets them."""

from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from consumerd.base.partition import NO_BROKER, TopicPartition
from consumerd.handlers import Batch, Handler
from consumerd.member.consumer.stats import ConsumerStats, Rebalance
from consumerd.service.daemon.tracing import MOST_LINKS, MemberSpans, TracedHandler, links
from consumerd.wire.v07 import decode_batch, encode_message_set
from consumerd.wire.v08.records import decode_records, encode_record_batch

OLD, NEW = TopicPartition("t", 0, 2), TopicPartition("t", NO_BROKER, 1)
TRACE, SPAN = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331


def traceparent(span: int = SPAN) -> tuple[str, bytes]:
    return "traceparent", b"00-%032x-%016x-01" % (TRACE, span)


def keyed(*headers: tuple[tuple[str, bytes | None], ...]) -> Batch:
    """A batch of 0.8 and later, a message for each."""
    data = encode_record_batch([b"x"] * len(headers), headers=dict(enumerate(headers)), base_offset=40)
    return Batch(NEW, decode_records(data, 40))


class Traces:
    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._provider = TracerProvider(shutdown_on_exit=False)
        self._provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self._provider.get_tracer("test")

    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()


class Recording(Handler):
    def __init__(self, tracer: trace.Tracer, error: Exception | None = None) -> None:
        self._tracer = tracer
        self._error = error

    async def handle(self, batch: Batch) -> None:
        with self._tracer.start_as_current_span("inner"):
            if self._error is not None:
                raise self._error


async def test_one_span_for_each_call_of_the_handler() -> None:
    traces = Traces()
    handler = TracedHandler(Recording(traces.tracer), traces.tracer, {"messaging.consumer.group.name": "g"})
    await handler.handle(Batch(OLD, decode_batch(encode_message_set([b"one", b"two"]), 100)))
    inner, span = traces.spans()
    assert (span.name, span.kind, span.status.status_code) == ("process t", SpanKind.CONSUMER, StatusCode.UNSET)
    assert span.attributes == {
        "messaging.consumer.group.name": "g",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "t",
        "messaging.destination.partition.id": "0-2",
        "messaging.kafka.offset": 100,
        "messaging.batch.message_count": 2,
    }
    assert inner.parent == span.get_span_context()
    assert span.links == ()
    assert span.parent is None


async def test_a_failed_call_is_an_error_of_its_span() -> None:
    traces = Traces()
    handler = TracedHandler(Recording(traces.tracer, ValueError("no")), traces.tracer, {})
    with pytest.raises(ValueError, match="no"):
        await handler.handle(Batch(OLD, decode_batch(encode_message_set([b"one"]), 0)))
    _, span = traces.spans()
    assert span.status.status_code is StatusCode.ERROR
    assert [event.name for event in span.events] == ["exception"]


def test_links_to_the_contexts_that_messages_carry() -> None:
    other = ("traceparent", b"00-%032x-%016x-00" % (TRACE, 7))
    batch = keyed(
        (traceparent(), ("tracestate", b"a=1")),
        (),
        (("traceparent", None),),
        (traceparent(),),  # the same once more
        (("traceparent", b"\xffnonsense"),),
        (("x", b"y"), other),
    )
    first, second = links(batch)
    assert (first.context.trace_id, first.context.span_id) == (TRACE, SPAN)
    assert first.context.trace_state.get("a") == "1"
    assert first.context.is_remote
    assert second.context.span_id == 7
    assert [link.context.span_id for link in links(batch.rest(4))] == [7]
    assert [link.context.span_id for link in links(batch.part(0, 3))] == [SPAN]
    assert links(Batch(OLD, decode_batch(encode_message_set([b"one"]), 0))) == []


def test_links_are_bounded() -> None:
    batch = keyed(*((traceparent(number),) for number in range(1, 300)))
    assert len(links(batch)) == MOST_LINKS


def test_spans_of_commits_and_rebalances_have_their_times() -> None:
    traces = Traces()
    stats = ConsumerStats(observer=MemberSpans(traces.tracer, {"messaging.system": "kafka"}, lambda at: 1000.0 + at))
    stats.committed(1.0, 1.5, committed=3, lost=1)
    stats.commit_failed(2.0, 4.0, 2, ConnectionError("gone"))
    stats.rebalanced(Rebalance(10.0, 2.5, 2, (NEW,), ()))
    commit, failed, rebalance = traces.spans()
    assert (commit.name, commit.kind) == ("commit", SpanKind.CLIENT)
    assert (commit.start_time, commit.end_time) == (1001_000_000_000, 1001_500_000_000)
    assert dict(commit.attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "commit",
        "messaging.operation.type": "settle",
        "consumerd.commit.partitions": 3,
        "consumerd.commit.lost": 1,
    }
    assert (failed.status.status_code, failed.status.description) == (StatusCode.ERROR, "gone")
    assert (rebalance.name, rebalance.start_time, rebalance.end_time) == (
        "rebalance",
        1007_500_000_000,
        1010_000_000_000,
    )
    assert (rebalance.attributes or {})["consumerd.rebalance.gained"] == (str(NEW),)
    assert (stats.commits, stats.failed_commits) == (3, 2)
