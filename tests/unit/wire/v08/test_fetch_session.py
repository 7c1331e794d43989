"""A fetch session as the client keeps it: what each request names and forgets, and what responses mean."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from consumerd.wire.v08.error_codes import ErrorCode
from consumerd.wire.v08.fetch_session import FetchSession, PartitionFetch, SessionRequest, without_session

T, U = b"t" * 16, b"u" * 16
OVER = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)


def of(number: int, offset: int = 0, topic: str = "t", **fields: Any) -> PartitionFetch:
    return PartitionFetch(topic, number, offset, 100, **fields)


def begun(*entries: PartitionFetch, session_id: int = 7) -> FetchSession:
    """A session that has had its first response."""
    session = FetchSession()
    for entry in entries:
        session.ask(entry)
    session.request()
    assert session.answered(0, session_id)
    return session


def said(request: SessionRequest) -> tuple[int, int, list[PartitionFetch], list[PartitionFetch], bool]:
    return request.session_id, request.epoch, list(request.named), list(request.forgotten), request.full


def test_first_request_names_all_and_later_ones_what_changed() -> None:
    session = FetchSession()
    for number in range(3):
        session.ask(of(number))
    assert said(session.request()) == (0, 0, [of(0), of(1), of(2)], [], True)
    assert session.answered(0, 7)
    assert said(session.request()) == (7, 1, [], [], False)
    assert session.answered(0, 7)
    session.ask(of(1, 5))
    session.ask(of(3))
    session.drop(("t", 0))
    assert said(session.request()) == (7, 2, [of(1, 5), of(3)], [of(0)], False)
    assert session.answered(0, 7)
    assert said(session.request()) == (7, 3, [], [], False)


def test_last_request_names_nothing_and_only_a_session_that_the_broker_has() -> None:
    assert FetchSession().last_request() is None
    session = begun(of(0))
    last = session.last_request()
    assert last is not None
    assert said(last) == (7, -1, [], [], True)
    session.lost()
    assert session.last_request() is None
    session.request()
    session.answered(0, 0)  # the broker has no room for another one
    assert session.last_request() is None


def test_partition_that_is_asked_for_again_in_the_same_way_is_not_named() -> None:
    session = begun(of(0), of(1))
    session.drop(("t", 0))
    session.ask(of(0))
    session.ask(of(2))
    session.drop(("t", 2))
    session.drop(("t", 9))
    assert said(session.request()) == (7, 1, [], [], False)


@pytest.mark.parametrize(
    "other",
    [of(0, 1), of(0)._replace(max_bytes=200), of(0, leader_epoch=1), of(0, last_epoch=1)],
    ids=["offset", "size", "leader epoch", "last epoch"],
)
def test_any_other_field_is_named(other: PartitionFetch) -> None:
    session = begun(of(0))
    session.ask(other)
    assert said(session.request()) == (7, 1, [other], [], False)


def test_partitions_are_named_in_the_order_in_which_they_were_asked_for_last() -> None:
    session = FetchSession()
    for number in (0, 1, 2, 0):
        session.ask(of(number))
    assert list(session.request().named) == [of(1), of(2), of(0)]


@pytest.mark.parametrize("error", OVER)
def test_session_that_is_over_begins_again_with_all_partitions(error: int) -> None:
    session = begun(of(0), of(1))
    session.ask(of(1, 5))
    session.request()
    assert not session.answered(error, 0)
    ended = 0 if error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND else 7  # the broker forgets that one
    assert said(session.request()) == (ended, 0, [of(0), of(1, 5)], [], True)
    assert session.answered(0, 8)
    assert said(session.request()) == (8, 1, [], [], False)


@pytest.mark.parametrize("error", [*OVER, ErrorCode.UNKNOWN])
def test_error_of_a_request_that_begins_a_session_is_an_error(error: int) -> None:
    session = FetchSession()
    session.ask(of(0))
    session.request()
    assert session.answered(error, 0)
    assert said(session.request()) == (0, 0, [of(0)], [], True)


def test_other_error_within_a_session_is_an_error_and_ends_the_session() -> None:
    session = begun(of(0))
    session.request()
    assert session.answered(ErrorCode.UNKNOWN, 7)
    assert said(session.request()) == (7, 0, [of(0)], [], True)


def test_broker_without_room_for_a_session_is_asked_for_all_each_time() -> None:
    session = begun(of(0), session_id=0)
    for _ in range(3):
        assert said(session.request()) == (0, 0, [of(0)], [], True)
        assert session.answered(0, 0)


@pytest.mark.parametrize("other", [0, 8])
def test_session_that_the_broker_closed_begins_again(other: int) -> None:
    session = begun(of(0))
    session.request()
    assert session.answered(0, other)
    assert said(session.request()) == (0, 0, [of(0)], [], True)


def test_lost_response_ends_the_session_at_the_broker() -> None:
    session = begun(of(0), of(1))
    session.drop(("t", 0))
    session.request()
    session.lost()
    assert said(session.request()) == (7, 0, [of(1)], [], True)
    assert session.answered(0, 9)
    assert said(session.request()) == (9, 1, [], [], False)


def test_epoch_wraps_to_one() -> None:
    session = begun(of(0))
    session._epoch = 2**31 - 1
    assert session.request().epoch == 2**31 - 1
    assert session.answered(0, 7)
    assert session.request().epoch == 1


def test_topic_that_was_created_again_replaces_the_former_one() -> None:
    session = begun(of(0, topic_id=T), of(1, topic_id=T))
    session.ask(of(0, topic_id=U))
    request = session.request()
    assert said(request) == (7, 1, [of(0, topic_id=U)], [of(0, topic_id=T)], False)
    assert dict(request.topics) == {T: "t", U: "t"}
    session.answered(0, 7)
    session.drop(("t", 1))
    assert dict(session.request().topics) == {U: "t"}


def test_new_session_begins_when_topics_get_names_in_place_of_ids() -> None:
    session = begun(of(0, topic_id=T))
    session.ask(of(0, topic="u"))
    assert said(session.request()) == (7, 0, [of(0, topic_id=T), of(0, topic="u")], [], True)
    session.answered(0, 8)
    assert said(session.request()) == (8, 1, [], [], False)
    session.answered(0, 8)
    session.drop(("u", 0))
    assert said(session.request()) == (8, 0, [of(0, topic_id=T)], [], True)


def test_named_topic_that_gets_an_id_is_not_forgotten_by_name() -> None:
    session = begun(of(0), of(0, topic="u"))
    session.ask(of(0, topic_id=T))
    assert said(session.request()) == (7, 1, [of(0, topic_id=T)], [], False)


def test_epochs_that_are_not_known_are_those_of_the_protocol() -> None:
    assert (of(0).leader_epoch, of(0).last_epoch, of(0).topic_id) == (-1, -1, bytes(16))


def test_request_without_session() -> None:
    request = without_session([of(0, topic_id=T), of(1, topic_id=T)])
    assert said(request) == (0, -1, [of(0, topic_id=T), of(1, topic_id=T)], [], True)
    assert dict(request.topics) == {T: "t"}


class Sessions(RuleBasedStateMachine):
    """A client's session beside a broker's: whenever the client continues, both have the same partitions."""

    def __init__(self) -> None:
        super().__init__()
        self.session = FetchSession()
        self.wanted: dict[tuple[str, int], PartitionFetch] = {}
        #: The broker's sessions: id -> (next epoch, partitions by name or id).
        self.broker: dict[int, tuple[int, bool, dict[tuple[Any, int], PartitionFetch]]] = {}
        self.ids = 0
        self.room = True
        self.served: dict[tuple[Any, int], PartitionFetch] | None = None

    places = st.tuples(st.sampled_from("tu"), st.integers(0, 3))

    @rule(place=places, offset=st.integers(0, 3), number=st.sampled_from([bytes(16), T, U]))
    def ask(self, place: tuple[str, int], offset: int, number: bytes) -> None:
        topic_id = number if place[0] == "t" else bytes(16) if number == bytes(16) else b"v" * 16
        entry = PartitionFetch(*place, offset, 100, topic_id=topic_id)
        self.wanted[place] = entry
        self.session.ask(entry)

    @rule(place=places)
    def drop(self, place: tuple[str, int]) -> None:
        self.wanted.pop(place, None)
        self.session.drop(place)

    @rule()
    def restart_the_broker(self) -> None:
        self.broker.clear()

    @rule(room=st.booleans())
    def give_room(self, room: bool) -> None:
        self.room = room

    @rule(arrives=st.booleans())
    def lose_a_response(self, arrives: bool) -> None:
        request = self.session.request()
        if arrives:
            self._serve(request)
        self.session.lost()

    @precondition(lambda self: self.wanted)
    @rule()
    def poll(self) -> None:
        error, session_id = self._serve(self.session.request())
        if not self.session.answered(error, session_id):
            request = self.session.request()
            assert request.full
            error, session_id = self._serve(request)
            assert self.session.answered(error, session_id)
        assert not error
        by_id = all(entry.topic_id != bytes(16) for entry in self.wanted.values())
        key = "topic_id" if by_id else "topic"
        assert self.served == {(getattr(each, key), each.partition): each for each in self.wanted.values()}

    def _serve(self, request: SessionRequest) -> tuple[int, int]:
        by_id = bytes(16) not in request.topics
        key = "topic_id" if by_id else "topic"
        named = {(getattr(each, key), each.partition): each for each in request.named}
        if request.epoch == 0:
            self.broker.pop(request.session_id, None)
            self.served = named
            if not self.room:
                return 0, 0
            self.ids += 1
            self.broker[self.ids] = 1, by_id, dict(named)
            return 0, self.ids
        if request.session_id not in self.broker:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0
        epoch, was_by_id, parts = self.broker[request.session_id]
        if by_id != was_by_id:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, 0
        if epoch != request.epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0
        parts.update(named)
        for each in request.forgotten:
            parts.pop((getattr(each, key), each.partition), None)
        self.broker[request.session_id] = epoch + 1, by_id, parts
        self.served = dict(parts)
        return 0, request.session_id

    @invariant()
    def keeps_no_names_of_topics_that_are_not_asked_for(self) -> None:
        assert self.session._topics.keys() == {each.topic_id for each in self.wanted.values()}


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
