from __future__ import annotations

import pickle

import pytest

from consumerd.net.client.errors import error_of, topic_error
from consumerd.wire.v08.error_codes import ErrorCode


def test_error_of_a_broker_is_the_same_in_another_process() -> None:
    for said in ("its own words", None):
        error = error_of(ErrorCode.NOT_LEADER_FOR_PARTITION, "fetch of t/0", said)
        assert error is not None
        again = pickle.loads(pickle.dumps(error))
        assert str(again) == str(error)
        assert (again.what, again.info, again.said) == (error.what, error.info, said)
        assert str(error).startswith("fetch of t/0: NOT_LEADER_FOR_PARTITION (error 6): ")
        assert str(error).endswith(said or error.info.text)
    assert error_of(0, "fetch") is None


@pytest.mark.parametrize("permission", ["Describe", "Read"])
def test_missing_permission_is_named_and_other_errors_are_not(permission: str) -> None:
    error = topic_error(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "fetch", "t", permission)
    assert str(error).endswith(f"the client lacks the permission {permission} on the topic 't'")
    assert "permission" not in str(topic_error(ErrorCode.LEADER_NOT_AVAILABLE, "fetch", "t", permission))
