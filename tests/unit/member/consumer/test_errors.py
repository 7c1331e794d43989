"""Errors of members are sentences that name the thing and, where there is one, the remedy."""

from __future__ import annotations

import pytest

from consumerd.base.errors import ConsumerdError, ExitCode
from consumerd.base.partition import TopicPartition
from consumerd.member.consumer.errors import (
    ConsumerTimeoutError,
    FixedGroupError,
    GroupRefusedError,
    ListenerFailedError,
    NotAssignedError,
)

TP = TopicPartition("t", 0, 1)


@pytest.mark.parametrize(
    ("error", "words", "code"),
    [
        (GroupRefusedError("g", "both dialects"), "^cannot join group 'g': both dialects$", ExitCode.ZOOKEEPER),
        (
            FixedGroupError("g", TP),
            "^cannot commit the offset of t/0-1 to group 'g': .* need a group",
            ExitCode.REFUSED,
        ),
        (ConsumerTimeoutError(0.25), "^no message arrived within 0.25 s; iterate again", ExitCode.OK),
        (NotAssignedError(TP), r"^t/0-1 is not assigned to this consumer; see assignment\(\)$", ExitCode.NOT_FOUND),
        (ListenerFailedError("on_lost", OSError("gone")), r"on_lost failed \(gone\)$", ExitCode.HANDLER_FAILED),
    ],
)
def test_errors_name_the_thing_and_the_remedy(error: ConsumerdError, words: str, code: ExitCode) -> None:
    with pytest.raises(type(error), match=words):
        raise error
    assert error.exit_code is code
