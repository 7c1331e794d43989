"""OpenTelemetry: spans and metrics of a process to a collector, by OTLP over HTTP (the extra `otel`).

Strategy: the SDK's exporters block, so they work in threads: the SDK's own for spans, one of ours for metrics, whose
readings are taken on the loop. Queues are bounded and what does not fit is dropped: a collector that is slow or gone
costs neither the loop nor a message anything, and one line in the log. The rest has a moment to be sent at the end;
the threads are daemons, so that nothing waits for them after that.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import structlog
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.util.types import AttributeValue

from consumerd import __version__
from consumerd.base.errors import reason_of
from consumerd.base.metrics.exposition import Source
from consumerd.base.metrics.otlp import metrics_data
from consumerd.base.ports import Clock
from consumerd.handlers import Handler
from consumerd.service.daemon.telemetry_signals import Signals
from consumerd.service.daemon.tracing import MemberSpans, TracedHandler

log = structlog.get_logger(__name__)

#: Seconds to send the rest at the end, at most.
END_SECONDS: Final = 2.0
_NAME: Final = "consumerd"


class ExportFailures(logging.Handler):
    """Logs once that exports fail, and once that none does any more; replaces the logging of the SDK.

    Called in the exporters' threads.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._failing: set[str] = set()
        self._why = ""
        self._muted = False
        self._both = threading.Lock()

    @property
    def failing(self) -> bool:
        """Whether the last export of a signal failed."""
        return bool(self._failing)

    def mute(self) -> None:
        """Log nothing any more: exports that are still under way are given up."""
        with self._both:
            self._muted = True

    def emit(self, record: logging.LogRecord) -> None:
        """The SDK logs why an export fails or is repeated: the first reason is kept until an export succeeds."""
        self._why = self._why or record.getMessage()

    def note(self, signal: str, *, succeeded: bool) -> None:
        """An export of `traces` or `metrics` has ended."""
        with self._both:
            before = bool(self._failing)
            if self._muted:
                return
            (self._failing.discard if succeeded else self._failing.add)(signal)
            after, why = bool(self._failing), self._why
            if succeeded:
                self._why = ""
        if after and not before:
            log.warning("telemetry_export_failed", signal=signal, reason=why or "unknown")
        elif before and not after:
            log.info("telemetry_export_resumed")

    def __enter__(self) -> None:
        logger = logging.getLogger("opentelemetry")
        logger.addHandler(self)
        logger.propagate = False

    def __exit__(self, *_: object) -> None:
        logger = logging.getLogger("opentelemetry")
        logger.removeHandler(self)
        logger.propagate = True


class _ReportedSpans(SpanExporter):
    def __init__(self, inner: OTLPSpanExporter, report: ExportFailures) -> None:
        self._inner = inner
        self._report = report
        self.shutdown = inner.shutdown  # type: ignore[method-assign]

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._inner.export(spans)
        self._report.note("traces", succeeded=result is SpanExportResult.SUCCESS)
        return result


class _MetricSender:
    """Exports in a thread; takes one export while another is under way, and drops more."""

    def __init__(self, exporter: OTLPMetricExporter, report: ExportFailures) -> None:
        self._exporter = exporter
        self._report = report
        self._waiting: queue.Queue[MetricsData | None] = queue.Queue(maxsize=1)
        self._thread = threading.Thread(target=self._work, name="telemetry metrics", daemon=True)
        self._thread.start()
        self.shutdown = exporter.shutdown

    def send(self, data: MetricsData) -> None:
        """Export soon. Returns at once."""
        try:
            self._waiting.put_nowait(data)
        except queue.Full:
            log.debug("telemetry_metrics_dropped", reason="the export before is still under way")

    def end(self, last: MetricsData) -> None:
        """Export `last` and end the thread. Blocks."""
        for item in (last, None):
            self._waiting.put(item)
        self._thread.join()

    def _work(self) -> None:
        while (data := self._waiting.get()) is not None:
            result = self._exporter.export(data)
            self._report.note("metrics", succeeded=result is MetricExportResult.SUCCESS)


class Telemetry:
    """The telemetry of one process, from `__aenter__` to `__aexit__`. `source` gives the readings of its metrics.

    `attributes` describe the process: `messaging.consumer.group.name` and the like.
    """

    def __init__(
        self,
        signals: Signals,
        source: Source,
        clock: Clock,
        *,
        instance: str,
        attributes: dict[str, AttributeValue] | None = None,
    ) -> None:
        self._signals = signals
        self._source = source
        self._clock = clock
        self._started = clock.wall()
        self._common: dict[str, AttributeValue] = {"messaging.system": "kafka", **(attributes or {})}
        #: Seconds that the end may take, until another limit is set.
        self.end_seconds = END_SECONDS
        described: dict[str, AttributeValue] = {"service.version": __version__, "service.instance.id": instance}
        if "OTEL_SERVICE_NAME" not in os.environ and "service.name=" not in os.environ.get(
            "OTEL_RESOURCE_ATTRIBUTES", ""
        ):
            described["service.name"] = _NAME
        self._resource = Resource.create(described)
        self._scope = InstrumentationScope(_NAME, __version__)
        self._report = ExportFailures()
        self._processor: BatchSpanProcessor | None = None
        self._tracer: trace.Tracer | None = None
        self._sender: _MetricSender | None = None
        self._exporters: list[Any] = []
        self._task: asyncio.Task[None] | None = None

    def traced(self, handler: Handler, attributes: Mapping[str, AttributeValue] | None = None) -> Handler:
        """The handler with a span for each call; itself where no traces are sent.

        `attributes` of its spans take the place of those of the process.
        """
        if self._tracer is None:
            return handler
        return TracedHandler(handler, self._tracer, {**self._common, **(attributes or {})})

    def spans(self, attributes: Mapping[str, AttributeValue] | None = None) -> MemberSpans | None:
        """Return the maker of spans of commits and rebalances; None without traces. `attributes` as in `traced`."""
        if self._tracer is None:
            return None
        return MemberSpans(self._tracer, {**self._common, **(attributes or {})}, self._wall_of)

    def _wall_of(self, moment: float) -> float:
        return self._clock.wall() - (self._clock.monotonic() - moment)

    async def __aenter__(self) -> Telemetry:
        signals = self._signals
        if signals.traces is not None:
            exporter = OTLPSpanExporter(signals.traces.url)
            provider = TracerProvider(resource=self._resource, shutdown_on_exit=False)
            self._processor = BatchSpanProcessor(_ReportedSpans(exporter, self._report))
            provider.add_span_processor(self._processor)
            self._exporters.append(exporter)
            self._tracer = provider.get_tracer(_NAME, __version__)
            if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
                trace.set_tracer_provider(provider)  # spans that a handler makes itself go the same way
        if signals.metrics is not None:
            metric_exporter = OTLPMetricExporter(signals.metrics.url)
            self._sender = _MetricSender(metric_exporter, self._report)
            self._exporters.append(metric_exporter)
            self._task = asyncio.create_task(self._send_regularly(self._sender), name="telemetry")
        self._report.__enter__()
        log.info("telemetry_started", traces=signals.traces is not None, metrics=signals.metrics is not None)
        return self

    async def _send_regularly(self, sender: _MetricSender) -> None:
        while True:
            await self._clock.sleep(self._signals.interval)
            try:
                sender.send(self._data())
            except Exception as error:  # a defect of a reading, which must not end what is watched
                log.exception("monitor_failed", task="telemetry", reason=reason_of(error))

    def _data(self) -> MetricsData:
        now = self._clock.wall()
        return metrics_data(self._source(), self._resource, self._scope, started=self._started, now=now)

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        loop, sent = asyncio.get_running_loop(), asyncio.Event()
        last = None if self._sender is None else self._data()
        threading.Thread(target=self._end, args=(last, loop, sent), name="telemetry end", daemon=True).start()
        try:
            async with asyncio.timeout(self.end_seconds):
                await sent.wait()
        except TimeoutError:
            if not self._report.failing:  # else the log has said so
                seconds = f"{self.end_seconds:g} s"
                log.warning("telemetry_dropped", reason=f"the collector did not take the rest within {seconds}")
            self._report.mute()
            for exporter in self._exporters:
                exporter.shutdown()  # ends the pauses between attempts; the report keeps taking what the SDK logs
        else:
            self._report.__exit__()

    def _end(self, last: MetricsData | None, loop: asyncio.AbstractEventLoop, sent: asyncio.Event) -> None:
        if self._sender is not None and last is not None:
            self._sender.end(last)
            self._sender.shutdown()
        if self._processor is not None:
            self._processor.shutdown()  # type: ignore[no-untyped-call]  # which sends the rest
        with suppress(RuntimeError):  # the loop is closed: the rest was given up, which the log has said
            loop.call_soon_threadsafe(sent.set)
