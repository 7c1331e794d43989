"""Spans of a member: one for each call of the handler, each commit and each rebalance (the extra `otel`).

Strategy: the handler is wrapped, so that its span is the parent of those that it makes itself, and without tracing
nothing stands in the way of a batch. Commits and rebalances are reported by the member's stats after their end, and
their spans are made then, with the times of before. Messages of 0.8 and later may carry the context in which they were
produced, in the header `traceparent` (https://www.w3.org/TR/trace-context/): the span of a batch links to it. It is
not its parent, because a batch has messages of many traces.
Source: the semantic conventions for messaging, https://opentelemetry.io/docs/specs/semconv/messaging/.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, Tracer, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from consumerd.base.errors import reason_of
from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch, Handler
from consumerd.handlers.api import HandlerStage
from consumerd.member.consumer.stats import CommitAttempt, Rebalance

#: Contexts that the span of one batch links to: as many as the SDK keeps by default.
MOST_LINKS: Final = 128
_PROPAGATOR: Final = TraceContextTextMapPropagator()
_FIELDS: Final = frozenset(_PROPAGATOR.fields)


class TracedHandler(HandlerStage):
    """Calls `inner`, each batch in a span of its own."""

    def __init__(self, inner: Handler, tracer: Tracer, common: dict[str, AttributeValue]) -> None:
        super().__init__(inner)
        self._tracer = tracer
        self._common = common

    async def handle(self, batch: Batch) -> None:
        """As `inner`, whose errors are recorded in the span."""
        partition = batch.partition
        with self._tracer.start_as_current_span(
            f"process {partition.topic}",
            kind=SpanKind.CONSUMER,
            links=links(batch),
            attributes={
                **self._common,
                "messaging.operation.name": "process",
                "messaging.operation.type": "process",
                "messaging.destination.name": partition.topic,
                "messaging.destination.partition.id": partition.name,
                "messaging.kafka.offset": batch.start_offset,
                "messaging.batch.message_count": len(batch),
            },
        ):
            await self._inner.handle(batch)


def links(batch: Batch) -> list[Link]:
    """Links to the contexts that messages of the batch carry, each once, at most `MOST_LINKS`."""
    found: dict[tuple[int, int], Link] = {}
    for headers in batch.headers.values():
        carrier = {name: value.decode("ascii", "replace") for name, value in headers if value and name in _FIELDS}
        if "traceparent" not in carrier:
            continue
        context = get_current_span(_PROPAGATOR.extract(carrier)).get_span_context()
        if context.is_valid and (context.trace_id, context.span_id) not in found:
            found[context.trace_id, context.span_id] = Link(context)
            if len(found) == MOST_LINKS:
                break
    return list(found.values())


class MemberSpans:
    """Makes spans of commits and rebalances.

    `wall_of` gives the seconds since 1970 of a moment of the member's clock.
    """

    def __init__(self, tracer: Tracer, common: dict[str, AttributeValue], wall_of: Callable[[float], float]) -> None:
        self._tracer = tracer
        self._common = common
        self._wall_of = wall_of

    def committed(self, result: CommitAttempt) -> None:
        """As `StatsObserver.committed`."""
        attributes: dict[str, AttributeValue] = {
            "messaging.operation.name": "commit",
            "messaging.operation.type": "settle",
            "consumerd.commit.partitions": result.committed,
            "consumerd.commit.lost": result.lost,
        }
        self._record("commit", SpanKind.CLIENT, result.began, result.ended, attributes, result.error)

    def rebalanced(self, rebalance: Rebalance) -> None:
        """As `StatsObserver.rebalanced`."""
        attributes: dict[str, AttributeValue] = {
            "consumerd.rebalance.partitions": rebalance.partitions,
            "consumerd.rebalance.gained": _names(rebalance.gained),
            "consumerd.rebalance.lost": _names(rebalance.lost),
        }
        began = rebalance.ended - rebalance.seconds
        self._record("rebalance", SpanKind.INTERNAL, began, rebalance.ended, attributes, None)

    def _record(
        self,
        name: str,
        kind: SpanKind,
        began: float,
        ended: float,
        attributes: dict[str, AttributeValue],
        error: BaseException | None,
    ) -> None:
        start, end = (int(self._wall_of(moment) * 1e9) for moment in (began, ended))
        span = self._tracer.start_span(
            name, kind=kind, start_time=start, attributes={**self._common, **attributes}, context=Context()
        )
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, reason_of(error)))
        span.end(end)


def _names(partitions: tuple[TopicPartition, ...]) -> list[str]:
    return [str(partition) for partition in partitions]
