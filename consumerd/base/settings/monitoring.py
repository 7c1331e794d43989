"""The tables that say how the daemon is watched: over HTTP, by metrics, and in its log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from consumerd.base.address import parse_address
from consumerd.base.errors import ConfigError
from consumerd.base.settings.setting import Field, Reload, Seconds, SecondsOrZero, SecretStr, Section


class HealthTlsSection(Section, since="0.2.0"):
    """TLS of `health.listen`."""

    certificate: Path = Field(description="PEM file with the certificate.", examples=["/etc/consumerd/http.pem"])
    key: Path = Field(description="PEM file with its private key.", examples=["/etc/consumerd/http.key"])
    key_password: SecretStr | None = Field(None, "Password of an encrypted key.", repr=False)
    key_password_file: Path | None = Field(
        None, "File whose first line is this password.", examples=["http-key-password"]
    )
    client_ca: Path | None = Field(
        None,
        "PEM file with the authorities of client certificates: clients need one then, also for probes.",
        examples=["/etc/consumerd/clients.pem"],
    )


class HealthSection(Section, since="0.2.0"):
    """What the daemon serves over HTTP (needs the extra `http`): /healthz and /readyz, and more if allowed."""

    listen: str | None = Field(
        None,
        "Address and port of the HTTP server; without it there is none. /healthz and /readyz have no data and may be "
        "open to everybody.",
        examples=["127.0.0.1:8080"],
    )
    metrics: bool = Field(
        False, "Serve /metrics for Prometheus to every client that can connect (needs the extra `metrics`)."
    )
    status: bool | None = Field(
        None,
        "Serve the status page and /status.json. They need a loopback address, a token or tls.client_ca, and are "
        "served by default where one of these is given.",
        examples=[True],
    )
    token: SecretStr | None = Field(
        None,
        "Token for the status page and /status.json (`Authorization: Bearer`, or the password of a browser's prompt). "
        "Without it, or tls.client_ca, nobody can pause a partition.",
        examples=[""],
    )
    token_file: Path | None = Field(None, "File whose first line is this token.", examples=["http-token"])
    hung_after: Seconds = Field(
        300.0,
        "Seconds without progress of a batch after which its handler counts as hung, and /readyz is 503.",
        reload=Reload.AT_ONCE,
    )
    tls: HealthTlsSection | None = Field(None, "Speak TLS.")

    def rules(self) -> Iterator[str]:
        """The rule about the address, if it is broken."""
        if self.listen is not None:
            try:
                parse_address(self.listen, lowest=0)
            except ConfigError as error:
                yield f"listen: {error}"


class MetricsSection(Section, reload=Reload.AT_ONCE, since="0.2.0"):
    """Metrics, wherever they are read, and the summary in the log."""

    partition_labels: bool = Field(
        True, "Metrics for each partition; false sums them up by topic, for members with thousands."
    )
    lag_interval: Seconds = Field(
        15.0, "Seconds between looks at where the owned partitions end, while health.listen is set."
    )
    summary_interval: SecondsOrZero = Field(60.0, "Seconds between the log events `summary`; 0 for none.")


class TelemetrySection(Section, since="0.2.0"):
    """OpenTelemetry: traces and metrics to a collector, by OTLP over HTTP (needs the extra `otel`)."""

    otlp_endpoint: str | None = Field(
        None,
        "Base URL of the collector; /v1/traces and /v1/metrics are appended. Without it, and without "
        "OTEL_EXPORTER_OTLP_ENDPOINT in the environment, nothing is sent. Headers, certificates and sampling are set "
        "by OpenTelemetry's own variables (OTEL_EXPORTER_OTLP_HEADERS and so on).",
        examples=["http://127.0.0.1:4318"],
    )
    traces: bool = Field(True, "Send a span for each call of the handler, each commit and each rebalance.")
    metrics: bool = Field(True, "Send the metrics that /metrics has.")
    metrics_interval: Seconds | None = Field(
        None, "Seconds between exports of metrics; OTEL_METRIC_EXPORT_INTERVAL or 60 by default.", examples=[60.0]
    )

    def rules(self) -> Iterator[str]:
        """The rule about the URL, if it is broken."""
        if self.otlp_endpoint is not None:
            url = urlsplit(self.otlp_endpoint)
            if url.scheme not in ("http", "https") or not url.hostname:
                yield "otlp_endpoint must be a URL such as http://127.0.0.1:4318"
