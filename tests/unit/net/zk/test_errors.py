from __future__ import annotations

import pytest

from consumerd.base.errors import ExitCode, ZooKeeperError
from consumerd.net.zk import errors


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        (-101, errors.NoNode, "does not exist"),
        (-102, errors.NoAuth, "denies access"),
        (-103, errors.BadVersion, "was modified concurrently"),
        (-108, errors.NoChildrenForEphemerals, "cannot have children"),
        (-110, errors.NodeExists, "already exists"),
        (-111, errors.NotEmpty, "still has children"),
        (-114, errors.InvalidACL, "refuses the configured ACL"),
        (-8, errors.InvalidPath, "as a path"),
        (-125, errors.QuotaExceeded, "raise it with `setquota`"),
        (-122, errors.UnexpectedReply, "error RequestTimeout (-122)"),
        (-9999, errors.UnexpectedReply, "error -9999"),
    ],
)
def test_error_names_the_path_and_the_problem(code: int, kind: type[errors.NodeError], says: str) -> None:
    error = errors.error_for(code, "/consumers/g")
    assert type(error) is kind
    assert "/consumers/g" in str(error)
    assert says in str(error)
    assert isinstance(error, errors.NodeError)
    assert error.path == "/consumers/g"


@pytest.mark.parametrize("code", [-4, -12, -112, -118])
def test_codes_that_end_the_connection_leave_the_outcome_open(code: int) -> None:
    assert type(errors.error_for(code, "/x")) is errors.ConnectionLost


@pytest.mark.parametrize("code", [-115, -124])
def test_reports_rejected_credentials(code: int) -> None:
    assert type(errors.error_for(code, "/x")) is errors.AuthFailed


def test_throttled_request_was_never_executed() -> None:
    error = errors.error_for(-127, "/x")
    assert isinstance(error, errors.NotConnected)
    assert "sheds load (ThrottledOp)" in str(error)


def test_every_code_of_zookeeper_has_its_name() -> None:
    """Those of KeeperException.Code in 3.9; SystemError and APIError only mark ranges."""
    ranges = (
        range(-8, 1),
        range(-14, -11),
        (-100, -101, -102, -103, -108),
        range(-115, -109),
        range(-125, -117),
        (-127,),
    )
    assert set(errors.NAMES) == {code for each in ranges for code in each}
    assert errors.name_of(-127) == "ThrottledOp (-127)"
    assert errors.name_of(-9999) == "-9999"


def test_every_error_has_an_exit_code() -> None:
    multi = errors.MultiFailed(3, errors.NoNode("/a"))
    assert (multi.index, type(multi.cause)) == (3, errors.NoNode)
    assert "operation 3" in str(multi)
    for error in (multi, errors.SessionChanged(1, 2), errors.RequestTooLarge(2, 1), errors.UnexpectedReply("/a", 5)):
        assert isinstance(error, ZooKeeperError)
        assert error.exit_code is ExitCode.ZOOKEEPER


def test_errors_keep_and_say_their_figures() -> None:
    reply = errors.UnexpectedReply("/a", 5)
    assert (reply.code, str(reply)) == (5, "ZooKeeper answered with error 5 for /a")
    large = errors.RequestTooLarge(2, 1)
    assert (large.size, large.limit) == (2, 1)
    assert str(large).startswith("a request of 2 bytes is above ZooKeeper's limit of 1 (jute.maxbuffer); ")
    over, replaced = errors.SessionChanged(16), errors.SessionChanged(16, 32)
    assert (over.actual, replaced.actual) == (0, 32)
    assert "session 0x10 has ended (there is no current one)" in str(over)
    assert "session 0x10 has ended (the current one is 0x20)" in str(replaced)


def test_refusal_of_a_server_says_its_code() -> None:
    error = errors.ServerError(-112)
    assert error.code == -112
    assert str(error) == "ZooKeeper answered with error SessionExpired (-112)"
