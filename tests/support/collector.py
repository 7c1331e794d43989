"""An OpenTelemetry collector in this process: takes OTLP over HTTP, as the protocol has it, and keeps all of it.

Source: https://opentelemetry.io/docs/specs/otlp/#otlphttp.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """The requests that were received. `status` is the response; with `silent` there is none."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        #: Each export of metrics: points by name of the metric.
        self.metrics: list[dict[str, Any]] = []
        self.resources: list[dict[str, Any]] = []
        self.status = 200
        self.silent = False
        self.requests = 0
        self.url = ""
        self._changed = asyncio.Event()

    async def until(self, condition: Callable[[], object]) -> None:
        """Return when `condition` holds, which is asked after each request."""
        async with asyncio.timeout(60):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def names(self) -> list[str]:
        """The names of all spans."""
        return [span.name for span in self.spans]

    async def receive(self, request: web.Request) -> web.Response:
        """A request of either signal."""
        body = await request.read()
        if request.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        assert request.content_type == "application/x-protobuf"
        self.requests += 1
        self._changed.set()
        if self.silent:
            await asyncio.Event().wait()
        if self.status == 200:
            self._keep(request.path, body)
        return web.Response(status=self.status)

    def _keep(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resources.append(attributes(resource.resource))
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        else:
            assert path == "/v1/metrics"
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.resources.append(attributes(resource.resource))
                self.metrics.append(
                    {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}
                )


def attributes(holder: Any) -> dict[str, Any]:
    """The attributes of a span, a point or a resource."""
    found = {}
    for each in holder.attributes:
        kind = each.value.WhichOneof("value")
        value = getattr(each.value, kind)
        found[each.key] = [item.string_value for item in value.values] if kind == "array_value" else value
    return found


@asynccontextmanager
async def running_collector() -> AsyncIterator[Collector]:
    """A collector on a free port of loopback."""
    collector = Collector()
    app = web.Application()
    app.router.add_post("/{path:.*}", collector.receive)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        collector.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield collector
    finally:
        await runner.cleanup()
