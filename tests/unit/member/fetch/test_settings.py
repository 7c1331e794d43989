"""The limits of the settings of fetching: the values at each limit, and those beside it."""

from __future__ import annotations

from typing import Any

import pytest

from consumerd.member.fetch.settings import FetchSettings
from consumerd.wire.v07 import DecodeLimits


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"poll_bytes": 1, "size": 1, "max_size": 1}, {"poll_bytes": 0}),
        ({"poll_bytes": 9, "size": 9}, {"poll_bytes": 10}),
        ({"poll_bytes": 1, "size": 1}, {"size": 0}),
        ({"max_size": 2**31 - 1}, {"max_size": 2**31}),
        ({"size": 2**31 - 1}, {"size": 2**31}),
        ({"poll_backoff_min": 1.0, "idle_backoff": 1.0}, {"idle_backoff": 0.9}),
        ({"poll_backoff_min": 0.001}, {"poll_backoff_min": 0.0}),
        ({"retry_backoff_min": 1.0, "retry_backoff_max": 1.0}, {"retry_backoff_max": 0.9}),
        ({"retry_backoff_min": 0.001}, {"retry_backoff_min": 0.0}),
        ({"max_wait": 0.01}, {"max_wait": 0.009}),
        ({"max_wait": 60.0}, {"max_wait": 60.1}),
        ({"min_bytes": 1}, {"min_bytes": 0}),
        ({"poll_bytes": 9, "size": 9, "min_bytes": 9}, {"min_bytes": 10}),
        ({"max_answer_bytes": 9, "min_bytes": 9}, {"min_bytes": 10}),
    ],
)
def test_accepts_the_value_at_each_limit_and_none_beyond_it(settings: dict[str, Any], wrong: dict[str, Any]) -> None:
    FetchSettings(**settings | ({"min_bytes": 1} if "max_size" in settings else {}))
    with pytest.raises(ValueError, match=rf"({'|'.join(FetchSettings.fields | dict.fromkeys(settings))}) must be"):
        FetchSettings(**settings | wrong)


def test_limits_of_decoding_allow_every_message_that_a_fetch_may_grow_for() -> None:
    wide = FetchSettings(max_size=1 << 30).limits
    assert (wide.max_message_bytes, wide.max_decompressed_bytes) == (1 << 30, 1 << 30)
    assert FetchSettings(max_size=1 << 20).limits == DecodeLimits()


def test_values_that_depend_on_others_keep_to_them() -> None:
    settings = FetchSettings(size=9, max_size=8, min_bytes=1, idle_backoff=0.005, partition_budget=20, budget=10)
    assert (settings.poll_bytes, settings.max_size, settings.partition_budget) == (9, 9, 10)
    assert settings.poll_backoff_min == 0.005
    assert settings.replace(size=7, idle_backoff=9.0).poll_bytes == 7
    assert settings.replace(size=7, idle_backoff=9.0).poll_backoff_min == 0.01


def test_defaults_are_those_of_kafka_where_it_has_the_setting() -> None:
    settings = FetchSettings()
    assert (settings.max_size, settings.poll_bytes) == (67108864, 65536)
    assert (settings.poll_backoff_min, settings.retry_backoff_min, settings.retry_backoff_max) == (0.01, 0.05, 2.0)
    assert settings.size == 1048576  # fetch.size of 0.7.2
    assert settings.idle_backoff == 1.0  # fetcher.backoff.ms
    assert settings.max_wait == 0.5  # fetch.max.wait.ms of 0.8 and later
    assert settings.min_bytes == 1  # fetch.min.bytes
    assert settings.max_answer_bytes == 52428800  # fetch.max.bytes
    assert not settings.read_committed  # isolation.level
