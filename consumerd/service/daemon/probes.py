"""The routes that members, mirrors and brokers have in common: /healthz, /readyz and /metrics.

Strategy: a probe answers one word per reason and no data, so it may be open to every client. Implementations of
`Probed` decide what is alive and ready. The extras `http` and `metrics` are imported only where they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from consumerd.base.errors import ConfigError

if TYPE_CHECKING:
    from consumerd.base.metrics.exposition import Source
    from consumerd.net.http.server import Answer, Request, Route


class Probed(Protocol):
    """The source of the answers to probes. Reasons are words without data."""

    @property
    def sick(self) -> str | None:
        """The reason for which a restart of the process would help; None while it would not."""
        ...

    @property
    def unready(self) -> list[str]:
        """The reasons for which it does not do its work now; empty while it does."""
        ...


def check_extras(*, metrics: bool, listen: str = "health.listen", served: str = "health.metrics") -> None:
    """Raise ConfigError where an extra is not installed that `listen` or `served` needs."""
    try:
        import consumerd.net.http.server  # noqa: PLC0415 - the extra `http`
    except ImportError as error:
        raise ConfigError(f"{listen} needs the extra `http`: pip install 'consumerd[http]'.") from error
    if metrics:
        try:
            import consumerd.base.metrics.exposition  # noqa: F401, PLC0415 - the extra `metrics`
        except ImportError as error:
            raise ConfigError(f"{served} needs the extra `metrics`: pip install 'consumerd[metrics]'.") from error


def probe_routes(probed: Probed, source: Source | None) -> dict[tuple[str, str], Route]:
    """The routes; /metrics only with a `source` of readings."""
    from consumerd.net.http.server import Answer  # noqa: PLC0415

    def answer(reasons: list[str]) -> Answer:
        return Answer(f"{' '.join(reasons) or 'ok'}\n".encode(), status=503 if reasons else 200)

    async def healthz(_: Request) -> Answer:
        return answer([] if probed.sick is None else [probed.sick])

    async def readyz(_: Request) -> Answer:
        return answer(probed.unready)

    routes: dict[tuple[str, str], Route] = {("GET", "/healthz"): healthz, ("GET", "/readyz"): readyz}
    if source is not None:
        routes["GET", "/metrics"] = _metrics(source)
    return routes


def _metrics(source: Source) -> Route:
    from consumerd.base.metrics.exposition import Exposition  # noqa: PLC0415
    from consumerd.net.http.server import Answer  # noqa: PLC0415

    exposition = Exposition(source)

    async def metrics(request: Request) -> Answer:
        body, content_type = exposition.render(request.headers.get("Accept", ""))
        return Answer(body, content_type)

    return metrics
