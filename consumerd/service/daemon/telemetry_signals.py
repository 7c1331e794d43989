"""Which signals a process sends to a collector, and where to: by `[telemetry]`, or by OpenTelemetry's own variables.

Strategy: what this module does not read (headers, certificates, timeouts, sampling, sizes of batches) the SDK reads.
Source: https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, NamedTuple

from consumerd.base.errors import ConfigError
from consumerd.base.settings.monitoring import TelemetrySection

#: Seconds between exports of metrics, as in OpenTelemetry's specification.
_INTERVAL: Final = 60.0
#: The variable that names the collector.
ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"


class Destination(NamedTuple):
    """The destination of one signal. Without a URL the SDK takes it from the environment."""

    url: str | None


class Signals(NamedTuple):
    """The signals that are sent, and the interval of metrics, in seconds."""

    traces: Destination | None
    metrics: Destination | None
    interval: float


def find_signals(section: TelemetrySection, environment: Mapping[str, str] = os.environ) -> Signals | None:
    """Return the signals to send; None for none. Raises ConfigError for a variable that cannot be used."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    traces = _destination(section, "traces", environment) if section.traces else None
    metrics = _destination(section, "metrics", environment) if section.metrics else None
    if traces is None and metrics is None:
        return None
    return Signals(traces, metrics, section.metrics_interval or _interval(environment))


def _destination(section: TelemetrySection, signal: str, environment: Mapping[str, str]) -> Destination | None:
    if section.otlp_endpoint is not None:
        return Destination(f"{section.otlp_endpoint.rstrip('/')}/v1/{signal}")
    if environment.get(f"OTEL_{signal.upper()}_EXPORTER", "otlp").strip() != "otlp":
        return None
    given = environment.get(ENDPOINT) or environment.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
    return Destination(None) if given else None


def _interval(environment: Mapping[str, str]) -> float:
    text = environment.get("OTEL_METRIC_EXPORT_INTERVAL", "")
    if not text:
        return _INTERVAL
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ConfigError(f"OTEL_METRIC_EXPORT_INTERVAL must be a positive number of milliseconds, not {text!r}.")
    return int(text) / 1000
