"""The sender of a process's telemetry (`consumerd.service.daemon.telemetry_signals` says what it sends and where to).

Strategy: the extra `otel` is imported only where something is to be sent.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import structlog

from consumerd.base.errors import ConfigError
from consumerd.base.ports import Clock
from consumerd.base.settings.monitoring import TelemetrySection
from consumerd.service.daemon.telemetry_signals import ENDPOINT, find_signals

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

    from consumerd.base.metrics.exposition import Source
    from consumerd.service.daemon.otel import Telemetry

log = structlog.get_logger(__name__)

_PROTOCOL: Final = "http/protobuf"


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
        return f"{ENDPOINT} is set, and the extra `otel` is not installed"
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
