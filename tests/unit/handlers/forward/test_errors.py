from __future__ import annotations

import pytest

from consumerd.handlers.forward.errors import is_hopeless, is_too_large
from consumerd.net.client.errors import AuthenticationError, NoBrokerReachedError, error_of
from consumerd.producer import MessageSizeTooLargeError
from consumerd.producer.v08.delivery import DeliveryError


@pytest.mark.parametrize("code", [10, 17, 18, 21, 29, 31, 32, 37, 38, 42, 43, 44, 58, 76, 87])
def test_classifies_permanent_errors(code: int) -> None:
    error = error_of(code, "no")
    assert error is not None
    assert is_hopeless(error)
    assert not error.retriable


@pytest.mark.parametrize("code", [-1, 3, 5, 6, 7, 19, 20, 45, 47, 56, 59, 4711])
def test_classifies_transient_errors(code: int) -> None:
    error = error_of(code, "no")
    assert error is not None
    assert not is_hopeless(error)


def test_classifies_errors_of_the_client() -> None:
    for error in (AuthenticationError("no"), DeliveryError("no"), MessageSizeTooLargeError("no")):
        assert is_hopeless(error)
    assert not is_hopeless(NoBrokerReachedError("no"))
    large = [code for code in range(100) if (told := error_of(code, "no")) is not None and is_too_large(told)]
    assert large == [10, 18]
