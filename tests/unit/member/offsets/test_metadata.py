"""Notes in the metadata of offsets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.base.partition import LogId
from consumerd.member.offsets.kafka_store import CommittedOffset
from consumerd.member.offsets.metadata import OffsetNotes, format_metadata, parse_metadata

ID = bytes(range(16))
NAMED = "topic-id=AAECAwQFBgcICQoLDA0ODw"


@pytest.mark.parametrize(
    ("text", "notes", "with_epoch", "metadata"),
    [
        ("", OffsetNotes(), True, ""),
        (None, OffsetNotes(), True, None),
        ("why", OffsetNotes(LogId(None, None, 9)), True, "why"),
        ("", OffsetNotes(LogId(ID, 4)), False, NAMED),
        ("why not", OffsetNotes(LogId(ID, 4)), True, f"why not {NAMED} leader-epoch=4"),
        (None, OffsetNotes(LogId(ID), start=True), False, f"{NAMED} start=latest"),
        ("why", OffsetNotes(LogId(ID), True, 12), False, f"why partitions=12 {NAMED} start=latest"),
        ("", OffsetNotes(LogId(ID), False, 12), False, NAMED),
        ("why", OffsetNotes(LogId(ID, 4, None, 300)), False, f"why epoch-start=300 {NAMED}"),
        ("", OffsetNotes(LogId(ID, 4, None, 0)), True, f"epoch-start=0 {NAMED} leader-epoch=4"),
        ("", OffsetNotes(LogId(ID, None, None, 300)), False, NAMED),
    ],
)
def test_notes_follow_the_text_of_the_user(
    text: str | None, notes: OffsetNotes, with_epoch: bool, metadata: str
) -> None:
    assert format_metadata(text, notes, with_epoch=with_epoch) == metadata


@pytest.mark.parametrize(
    ("metadata", "notes"),
    [
        (None, OffsetNotes()),
        ("", OffsetNotes()),
        (f"another {NAMED} text", OffsetNotes()),
        ("topic-id=AAECAwQFBgcICQoLDA0O", OffsetNotes()),
        ("leader-epoch=99999999999", OffsetNotes()),
        ("leader-epoch=-1", OffsetNotes()),
        ("start=earliest", OffsetNotes()),
        ("partitions=x start=latest", OffsetNotes(start=True)),
        (f"partitions=12 {NAMED}", OffsetNotes(LogId(ID))),
        (f"leader-epoch=1 {NAMED} leader-epoch=3", OffsetNotes(LogId(ID, 3))),
        (f"epoch-start={2**63 - 1} {NAMED}", OffsetNotes(LogId(ID, None, None, 2**63 - 1))),
        (f"epoch-start={2**63} {NAMED}", OffsetNotes(LogId(ID))),
    ],
)
def test_other_texts_are_not_notes(metadata: str | None, notes: OffsetNotes) -> None:
    assert parse_metadata(metadata) == notes


@given(
    st.text(alphabet="ab =-", max_size=12),
    st.builds(
        OffsetNotes,
        st.builds(
            LogId,
            st.none() | st.binary(min_size=16, max_size=16),
            st.none() | st.integers(0, 2**31 - 1),
            st.none(),
            st.none() | st.integers(0, 2**63 - 1),
        ),
        st.booleans(),
        st.none() | st.integers(0, 2**31 - 1),
    ),
)
def test_reads_what_it_wrote(text: str, notes: OffsetNotes) -> None:
    notes = notes._replace(partitions=notes.partitions if notes.start else None)
    if notes.log.leader_epoch is None:
        notes = notes._replace(log=notes.log._replace(epoch_start=None))
    assert parse_metadata(format_metadata(text, notes, with_epoch=True)) == notes


def test_epoch_of_the_requests_field_has_the_start_that_is_noted() -> None:
    committed = CommittedOffset(500, f"why epoch-start=300 {NAMED}", 4)
    assert committed.notes == OffsetNotes(LogId(ID, 4, None, 300))


@given(st.text())
def test_reads_anything(metadata: str) -> None:
    parse_metadata(metadata)
