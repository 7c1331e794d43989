"""Temporary errors are retried until the time is up; others are raised at once."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from consumerd.base.errors import BrokerError
from consumerd.member.offsets.errors import OffsetsHeldError, OffsetsUnavailableError
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import AuthenticationError, NoBrokerReachedError, RequestTooLargeError, error_of
from consumerd.net.client.settings import ClientSettings
from consumerd.net.errors import ConnectError, ConnectionClosedError
from consumerd.testing import FakeClock
from consumerd.wire.v08.error_codes import ErrorCode

PASSING: list[BrokerError | None] = [
    ConnectError("refused"),
    ConnectionClosedError("closed"),
    NoBrokerReachedError("none"),
    OffsetsUnavailableError("the coordinator loads"),
    error_of(ErrorCode.NOT_COORDINATOR_FOR_GROUP, "offsets"),
]
FINAL: list[BrokerError | None] = [
    BrokerError("the metadata lack the topic"),
    AuthenticationError("no"),
    RequestTooLargeError("no"),
    OffsetsHeldError("group", "t/0", "ZooKeeper"),
    error_of(ErrorCode.ILLEGAL_GENERATION, "offsets"),
]


class Attempt:
    """Fails so many times, and then says how often it was made."""

    def __init__(self, error: BrokerError, failures: int) -> None:
        self.error = error
        self.failures = failures
        self.made = 0

    async def __call__(self) -> int:
        self.made += 1
        if self.made <= self.failures:
            raise self.error
        return self.made


def client_of(clock: FakeClock, settings: ClientSettings, **options: Any) -> ClusterClient:
    return ClusterClient([], cast("Any", None), settings, clock=clock, rng=random.Random(1), **options)


async def result(attempt: Attempt) -> int:
    return await client_of(FakeClock(auto=True), ClientSettings()).retrying("ask", attempt, timeout=30.0)


@pytest.mark.parametrize("error", PASSING, ids=lambda error: type(error).__name__)
async def test_retries_transient_errors_until_timeout(error: BrokerError) -> None:
    assert await result(Attempt(error, 3)) == 4
    attempt = Attempt(error, 1_000)
    with pytest.raises(type(error)):
        await result(attempt)
    assert 10 < attempt.made < 100


@pytest.mark.parametrize("error", FINAL, ids=lambda error: type(error).__name__)
async def test_raises_permanent_errors_at_once(error: BrokerError) -> None:
    attempt = Attempt(error, 1)
    with pytest.raises(type(error)):
        await result(attempt)
    assert attempt.made == 1


async def test_pauses_twice_as_long_each_time_up_to_a_limit() -> None:
    clock, attempt = FakeClock(auto=True), Attempt(ConnectError("refused"), 6)
    settings = ClientSettings(retry_backoff_min=1.0, retry_backoff_max=4.0, retry_timeout=100.0)
    noted: list[str] = []
    client = client_of(clock, settings, on_retry=lambda what, error: noted.append(f"{what}: {error}"))
    await client.retrying("ask", attempt)
    assert all(0.5 * base <= wait <= 1.5 * base for wait, base in zip(clock.sleeps, [1, 2, 4, 4, 4, 4], strict=True))
    assert len(set(clock.sleeps)) == 6
    assert noted == ["ask: refused"]


@pytest.mark.parametrize(("timeout", "least", "most"), [(None, 3.0, 5.0), (50.0, 45.0, 50.0), (0.0, 0.0, 0.0)])
async def test_timeout_of_a_call_replaces_that_of_the_settings(
    timeout: float | None, least: float, most: float
) -> None:
    clock, attempt = FakeClock(auto=True), Attempt(ConnectError("refused"), 1_000)
    settings = ClientSettings(retry_timeout=5.0, retry_backoff_max=1.0)
    with capture_logs() as logs, pytest.raises(ConnectError):
        await client_of(clock, settings).retrying("ask", attempt, timeout=timeout)
    assert least <= sum(clock.sleeps) <= most
    reported = [(line["event"], line["what"], line["reason"]) for line in logs]
    assert reported == ([("retrying", "ask", "refused")] if most else [])
