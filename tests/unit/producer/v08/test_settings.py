"""Settings of the producer for 0.8 and later: the defaults that docs/producer.md gives, and what is refused."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from consumerd.producer import V08ProducerSettings
from consumerd.wire.v08.records import RecordCodec


def test_has_the_documented_defaults() -> None:
    assert asdict(V08ProducerSettings()) == {
        "acks": -1,
        "codec": RecordCodec.NONE,
        "batch_bytes": 131_072,
        "linger": 0.0,
        "buffer_bytes": 33_554_432,
        "request_timeout": 30.0,
        "delivery_timeout": 120.0,
        "in_flight": 5,
        "keyless": "sticky",
        "idempotent": None,
        "create_topics": True,
        "transactional_id": None,
        "transaction_timeout": 60.0,
    }


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"acks": 1}, None),
        ({"acks": 0}, None),
        ({"acks": 2}, "acks must be one of -1, 0, 1, not 2"),
        ({"acks": -2}, "acks must be one of -1, 0, 1, not -2"),
        ({"idempotent": True}, None),
        ({"idempotent": True, "acks": 1}, "an idempotent producer requires acks = -1"),
        ({"idempotent": False, "acks": 1}, None),
        ({"transactional_id": "pump-1", "idempotent": True}, None),
        ({"transactional_id": "pump-1", "acks": 1}, "a transactional_id requires acks = -1"),
        ({"transactional_id": "pump-1", "idempotent": False}, "and an idempotent producer"),
        ({"transactional_id": ""}, "transactional_id must not be empty"),
        ({"transaction_timeout": 0}, "transaction_timeout must be a positive number of seconds, not 0"),
        ({"batch_bytes": 1, "buffer_bytes": 1}, None),
        ({"batch_bytes": 0}, "batch_bytes must be a positive whole number of bytes, not 0"),
        ({"batch_bytes": 2, "buffer_bytes": 1}, "batch_bytes <= buffer_bytes"),
        ({"in_flight": 1}, None),
        ({"in_flight": 0}, "in_flight must be a positive whole number, not 0"),
    ],
)
def test_rejects_impossible_settings(given: dict[str, Any], words: str | None) -> None:
    if words is None:
        assert asdict(V08ProducerSettings(**given)).items() >= given.items()
        return
    with pytest.raises(ValueError, match=words):
        V08ProducerSettings(**given)
