"""The table of error codes."""

from __future__ import annotations

from consumerd.wire.v08 import ERRORS, ErrorCode, error_info


def test_codes_are_consecutive() -> None:
    assert list(ERRORS) == list(range(-1, 134))
    assert len({info.name for info in ERRORS.values()}) == len(ERRORS)
    assert all(info.code == code and info.text for code, info in ERRORS.items())


def test_named_codes_are_those_of_the_table() -> None:
    assert {int(code): code.name for code in ErrorCode} == {int(code): ERRORS[code].name for code in ErrorCode}


def test_flags_say_whether_to_retry_and_refresh() -> None:
    assert error_info(ErrorCode.NOT_LEADER_FOR_PARTITION).retriable
    assert error_info(ErrorCode.NOT_LEADER_FOR_PARTITION).refresh
    assert error_info(ErrorCode.GROUP_LOAD_IN_PROGRESS).retriable
    assert not error_info(ErrorCode.GROUP_LOAD_IN_PROGRESS).refresh
    assert not error_info(ErrorCode.ILLEGAL_GENERATION).retriable
    assert not error_info(ErrorCode.NONE).retriable


def test_codes_that_need_new_metadata_are_retriable_except_for_two() -> None:
    """The guide calls 9 final; 129 wants other brokers first."""
    assert {code for code, info in ERRORS.items() if info.refresh and not info.retriable} == {9, 129}


def test_describes_an_unknown_code() -> None:
    info = error_info(12345)
    assert (info.code, info.name, info.retriable, info.refresh) == (12345, "ERROR_12345", False, False)
    assert str(info).startswith("ERROR_12345 (12345): ")
    assert str(error_info(3)) == "UNKNOWN_TOPIC_OR_PARTITION (3): the broker has no such topic or partition"
