"""What a program that catches an error of fetching can read from it, besides its text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from consumerd.base.partition import UNKNOWN_LOG, TopicPartition
from consumerd.member.fetch.errors import (
    BrokerUnknownError,
    CorruptPartitionError,
    LogChangedError,
    MessageTooLargeError,
    OffsetBeyondError,
    OffsetRefusedError,
)
from consumerd.member.fetch.log_changes import LogChange, LogChangeKind

T0 = TopicPartition("t", 3, 0)
CHANGE = LogChange(LogChangeKind.REPLACED, 7, UNKNOWN_LOG, UNKNOWN_LOG)


@pytest.mark.parametrize(
    ("make", "known"),
    [
        (lambda: BrokerUnknownError(3), {"broker": 3}),
        (lambda: OffsetRefusedError(T0, 7), {"partition": T0, "offset": 7}),
        (lambda: LogChangedError(T0, CHANGE), {"partition": T0, "change": CHANGE}),
        (lambda: OffsetBeyondError(T0, 3, 7, 9), {"partition": T0, "broker": 3, "offset": 7}),
        (lambda: MessageTooLargeError(T0, 7, 9, 8), {"partition": T0, "offset": 7, "needed": 9}),
        (lambda: CorruptPartitionError(T0, 7, "damaged"), {"partition": T0, "offset": 7}),
    ],
)
def test_errors_tell_what_they_are_about(make: Callable[[], Exception], known: dict[str, Any]) -> None:
    assert vars(make()) == known
