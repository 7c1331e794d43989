"""Whether a process sends telemetry, and where to: by `[telemetry]`, or by OpenTelemetry's own variables.

Strategy: decided here without the extra `otel`, which is imported only where something is to be sent. The variables of
the environment are those of OpenTelemetry's specification; what this module does not read (headers, certificates,
timeouts, sampling, sizes of batches) the SDK reads itself.
Source: https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from consumerd.base.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.util.types import AttributeValue

    from consumerd.base.metrics.exposition import Source
    from consumerd.base.ports import Clock
    from consumerd.service.config.monitoring import TelemetrySection
    from consumerd.service.daemon.otel import Telemetry

log = structlog.get_logger(__name__)

#: Seconds between exports of metrics, as in OpenTelemetry's specification.
_INTERVAL: Final = 60.0
_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
_PROTOCOL: Final = "http/protobuf"


class Place(NamedTuple):
    """The destination of one signal. Without a URL the SDK takes it from the environment."""

    url: str | None


class Signals(NamedTuple):
    """The signals that are sent, and the interval of metrics, in seconds."""

    traces: Place | None
    metrics: Place | None
    interval: float


def find_signals(section: TelemetrySection, environment: Mapping[str, str] = os.environ) -> Signals | None:
    """Return the signals to send; None for none. Raises ConfigError for a variable that cannot be used."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    traces = _place(section, "traces", environment) if section.traces else None
    metrics = _place(section, "metrics", environment) if section.metrics else None
    if traces is None and metrics is None:
        return None
    return Signals(traces, metrics, section.metrics_interval or _interval(environment))


def _place(section: TelemetrySection, signal: str, environment: Mapping[str, str]) -> Place | None:
    if section.otlp_endpoint is not None:
        return Place(f"{section.otlp_endpoint.rstrip('/')}/v1/{signal}")
    if environment.get(f"OTEL_{signal.upper()}_EXPORTER", "otlp").strip() != "otlp":
        return None
    given = environment.get(_ENDPOINT) or environment.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
    return Place(None) if given else None


def _interval(environment: Mapping[str, str]) -> float:
    text = environment.get("OTEL_METRIC_EXPORT_INTERVAL", "")
    if not text:
        return _INTERVAL
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ConfigError(f"OTEL_METRIC_EXPORT_INTERVAL must be a positive number of milliseconds, not {text!r}.")
    return int(text) / 1000


def check_telemetry(section: TelemetrySection) -> None:
    """Raise ConfigError for what would be refused at the start."""
    signals = find_signals(section)
    if signals is not None and section.otlp_endpoint is not None:
        _require_extra()


def _unusable(environment: Mapping[str, str]) -> str | None:
    protocol = environment.get("OTEL_EXPORTER_OTLP_PROTOCOL", _PROTOCOL).strip()
    if protocol != _PROTOCOL:
        return (
            f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol}, and only {_PROTOCOL} is supported: set that, or "
            "telemetry.otlp_endpoint"
        )
    try:
        _require_extra()
    except ConfigError:
        return f"{_ENDPOINT} is set, and the extra `otel` is not installed"
    return None


def _require_extra() -> None:
    try:
        import consumerd.service.daemon.otel  # noqa: F401, PLC0415 - the extra `otel`
    except ImportError as error:
        raise ConfigError("telemetry.otlp_endpoint needs the extra `otel`: pip install 'consumerd[otel]'.") from error


def build_telemetry(
    section: TelemetrySection,
    source: Source,
    clock: Clock,
    *,
    instance: str,
    attributes: dict[str, AttributeValue] | None = None,
) -> Telemetry | None:
    """Return the sender of telemetry, not started; None where nothing is to be sent. Raises ConfigError.

    Variables of the environment may be meant for other programs: a request that cannot be fulfilled is logged.
    """
    signals = find_signals(section)
    if signals is None:
        return None
    if section.otlp_endpoint is not None:
        _require_extra()
    elif reason := _unusable(os.environ):
        log.warning("telemetry_unavailable", reason=reason)
        return None
    from consumerd.service.daemon.otel import Telemetry  # noqa: PLC0415

    return Telemetry(signals, source, clock, instance=instance, attributes=attributes)
