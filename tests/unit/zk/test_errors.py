from __future__ import annotations

import pytest

from consumerd.errors import ExitCode, ZooKeeperError
from consumerd.zk import errors


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (-101, errors.NoNode),
        (-102, errors.NoAuth),
        (-103, errors.BadVersion),
        (-108, errors.NoChildrenForEphemerals),
        (-110, errors.NodeExists),
        (-111, errors.NotEmpty),
        (-114, errors.InvalidACL),
        (-8, errors.InvalidPath),
        (-9999, errors.UnexpectedReply),
    ],
)
def test_error_names_the_path(code: int, kind: type[errors.NodeError]) -> None:
    error = errors.error_for(code, "/consumers/g")
    assert type(error) is kind
    assert "/consumers/g" in str(error)
    assert isinstance(error, errors.NodeError)
    assert error.path == "/consumers/g"


@pytest.mark.parametrize("code", [-4, -12, -112, -118])
def test_codes_that_end_the_connection_leave_the_outcome_open(code: int) -> None:
    assert type(errors.error_for(code, "/x")) is errors.ConnectionLost


@pytest.mark.parametrize("code", [-115, -124])
def test_reports_rejected_credentials(code: int) -> None:
    assert type(errors.error_for(code, "/x")) is errors.AuthFailed


def test_every_error_has_an_exit_code() -> None:
    multi = errors.MultiFailed(3, errors.NoNode("/a"))
    assert (multi.index, type(multi.cause)) == (3, errors.NoNode)
    assert "operation 3" in str(multi)
    for error in (multi, errors.SessionChanged(1, 2), errors.RequestTooLarge(2, 1), errors.UnexpectedReply("/a", 5)):
        assert isinstance(error, ZooKeeperError)
        assert error.exit_code is ExitCode.ZOOKEEPER
    assert "5" in str(errors.UnexpectedReply("/a", 5))
    assert "0x10" in str(errors.SessionChanged(16))


def test_refusal_of_a_server_says_its_code() -> None:
    error = errors.ServerError(-112)
    assert error.code == -112
    assert str(error) == "ZooKeeper answered with error -112"
