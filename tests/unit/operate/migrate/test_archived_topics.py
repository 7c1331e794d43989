from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import ConfigError
from consumerd.operate.migrate import archived_topics
from consumerd.operate.migrate.archived_topics import ArchivedPartition, find_archived, require_sound
from consumerd.storage.archives.cluster_metadata import ClusterTopics
from consumerd.storage.archives.errors import CorruptSegmentError, NoSourceError, ReadFailedError
from consumerd.storage.archives.opening import open_segments
from consumerd.storage.archives.sources import SegmentSource, find_sources
from consumerd.storage.segments.cluster_metadata import ExistingTopic
from consumerd.wire.v07 import encode_message_set
from consumerd.wire.v08.records import RecordCodec
from tests.support.archives import batch, marker, write_segment


def found(*paths: Path, topics: tuple[str, ...] = ()) -> list[ArchivedPartition]:
    return find_archived(find_sources([str(path) for path in paths]), topics)


def only(*paths: Path) -> ArchivedPartition:
    (archived,) = found(*paths)
    return archived


def replayed(archived: ArchivedPartition, start: int = 0) -> list[tuple[int, bytes | None]]:
    return [(message.offset, message.payload) for chunk in archived.read(start) for message in chunk]


def test_transactions_count_only_where_they_were_committed(tmp_path: Path) -> None:
    write_segment(
        tmp_path, "t-0", 0,
        batch(0, b"a", producer=7), batch(1, b"b", producer=8), batch(2, b"plain"), batch(3, b"a2", producer=7),
        marker(4, 7, commit=True), marker(5, 8, commit=False),
    )  # fmt: skip
    write_segment(
        tmp_path, "t-0", 6,
        batch(6, b"b2", producer=8), marker(7, 8, commit=True), batch(8, b"open", b"open", producer=7), batch(10, None),
    )  # fmt: skip
    archived = only(tmp_path)
    expected = [(0, b"a"), (2, b"plain"), (3, b"a2"), (6, b"b2"), (10, None)]
    assert replayed(archived) == expected
    assert (archived.messages, archived.aborted, archived.unfinished) == (5, 1, 2)
    assert (archived.start, archived.end, archived.findings) == (0, 11, [])
    for start in range(12):
        assert replayed(archived, start) == [each for each in expected if each[0] >= start]


def test_batches_that_stand_twice_are_replayed_once(tmp_path: Path) -> None:
    write_segment(tmp_path, "t-0", 0, batch(0, b"a", b"b", b"c"))
    write_segment(tmp_path, "t-0", 2, batch(2, b"c", b"d"), batch(7, b"h"))  # and a gap, as compaction leaves one
    archived = only(tmp_path)
    assert replayed(archived) == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d"), (7, b"h")]
    assert archived.messages == 5


@pytest.mark.parametrize("missing", [[0, 2], [2]])
def test_first_segments_that_a_running_broker_deleted_meanwhile_are_named_and_passed_over(
    tmp_path: Path, missing: list[int]
) -> None:
    for offset in (0, 2, 4, 6):
        write_segment(tmp_path, "t-0", offset, batch(offset, b"%d" % offset, b"%d" % (offset + 1)))
    sources = find_sources([str(tmp_path)])
    for gone in missing:  # the first one may have been read before
        (tmp_path / "t-0" / f"{gone:020}.log").unlink()
    (archived,) = find_archived(sources)
    assert archived.notes == [
        "t/0: the segments from offset 0 to 3 were deleted since they were found, as a running broker does"
    ]
    assert (archived.damage, archived.holes, archived.messages, archived.log_start) == ([], [], 4, 4)
    assert replayed(archived) == [(offset, b"%d" % offset) for offset in (4, 5, 6, 7)]
    (tmp_path / "t-0" / f"{6:020}.log").unlink()
    with pytest.raises(ReadFailedError, match="it was deleted since it was found, as a running broker does: run the"):
        find_archived(sources)  # which retention does not do


def test_reads_in_pieces_of_a_limited_size(tmp_path: Path) -> None:
    write_segment(tmp_path, "t-0", 0, batch(0, *[b"x"] * 15_000), batch(15_000, *[b"y" * (3 << 20)] * 3))
    assert [len(chunk) for chunk in only(tmp_path).read()] == [10_000, 5_002, 1]


def test_a_torn_end_is_what_a_broker_would_cut_off_and_anything_else_is_damage(tmp_path: Path) -> None:
    whole = batch(3, b"d", b"e")
    write_segment(tmp_path, "t-0", 0, batch(0, b"a", b"b", b"c"), whole[:-1])
    archived = only(tmp_path)
    require_sound([archived])
    assert [str(each.kind) for each in archived.findings] == ["torn-tail"]
    assert replayed(archived) == [(0, b"a"), (1, b"b"), (2, b"c")]
    write_segment(tmp_path, "t-0", 5, batch(5, b"f"))  # the end of one that is not the last
    archived = only(tmp_path)
    with pytest.raises(CorruptSegmentError, match=r"is torn.*nothing was replayed"):
        require_sound([archived])
    assert [str(each.kind) for each in archived.findings] == ["lost-block"]
    assert replayed(archived) == [(0, b"a"), (1, b"b"), (2, b"c"), (5, b"f")]


def test_of_several_copies_the_one_of_the_last_leader_with_the_most_is_replayed(tmp_path: Path) -> None:
    first = batch(0, b"a", leader_epoch=1)
    write_segment(tmp_path / "one", "t-0", 0, first, batch(1, b"b", b"unclean", b"unclean", leader_epoch=1))
    write_segment(tmp_path / "two", "t-0", 0, first, batch(1, b"c", leader_epoch=2))
    write_segment(tmp_path / "three", "t-0", 0, first, batch(1, b"c", leader_epoch=2), batch(2, b"d", leader_epoch=2))
    archived = only(tmp_path / "one", tmp_path / "two", tmp_path / "three")
    assert replayed(archived) == [(0, b"a"), (1, b"c"), (2, b"d")]
    one, two, three = (tmp_path / name / "t-0" for name in ("one", "two", "three"))
    left_out = "an election left out 3 offsets of it, which are not read"
    assert archived.notes == [
        f"a copy is not used: {one}: from offset 1 on it has leader epoch 1, where {three} has leader epoch 2: "
        + left_out,
        f"a copy is not used: {two}: it ends at offset 2, and {three} at 3",
    ]


def test_of_copies_with_checkpoints_the_one_that_is_replayed_is_read_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def noted(source: SegmentSource, **options: Any) -> Any:
        opened.append(f"{source.folder.split('/')[-2]} {source.name[-5]}")
        return open_segments(source, **options)

    monkeypatch.setattr(archived_topics, "open_segments", noted)
    for name, tail in (("one", [b"c"]), ("two", [b"c", b"d"]), ("three", [b"c", b"d"])):
        write_segment(tmp_path / name, "t-0", 0, batch(0, b"a", leader_epoch=1), batch(1, b"b", leader_epoch=1))
        write_segment(tmp_path / name, "t-0", 2, batch(2, *tail, leader_epoch=2))
        (tmp_path / name / "t-0" / "leader-epoch-checkpoint").write_text("0\n2\n1 0\n2 2\n")
    archived = only(tmp_path)
    expected = [*enumerate([b"a", b"b", b"c", b"d"])]
    assert opened == ["three 0", "three 2"]
    assert (replayed(archived), archived.damage) == (expected, [])
    assert archived.notes == [
        f"a copy is not used: {tmp_path}/one/t-0: it ends at offset 3, and {tmp_path}/three/t-0 at 4"
    ]
    # Damage that a glance does not show: another copy is intact.
    write_segment(
        tmp_path / "three", "t-0", 0, batch(0, b"a", leader_epoch=1)[:-1] + b"?", batch(1, b"b", leader_epoch=1)
    )
    opened.clear()
    archived = only(tmp_path)
    assert sorted(set(opened)) == [f"{name} {start}" for name in ("one", "three", "two") for start in (0, 2)]
    assert len(opened) == 6
    # At the end of a segment the first glance shows it.
    for name in ("two", "three"):
        write_segment(tmp_path / name, "t-0", 0, batch(0, b"a", leader_epoch=1), batch(1, b"b", leader_epoch=1))
    write_segment(tmp_path / "three", "t-0", 0, batch(0, b"a", leader_epoch=1))
    opened.clear()
    archived = only(tmp_path)
    assert opened == ["two 0", "two 2"]
    assert (replayed(archived), archived.damage) == (expected, [])


def test_the_longest_copy_that_agrees_is_replayed_and_what_it_lacks_is_damage(tmp_path: Path) -> None:
    """The last leader's copy has lost segments; another one has them, and is shorter."""
    for name, offsets in {"one": (0, 2, 4), "two": (0, 6)}.items():
        for offset in offsets:
            write_segment(tmp_path / name, "t-0", offset, batch(offset, b"%d" % offset, b"%d" % (offset + 1)))
    archived = only(tmp_path)
    assert [offset for offset, _ in replayed(archived)] == [*range(6)]
    assert [str(each.kind) for each in archived.damage] == ["shorter-copy"]
    with pytest.raises(CorruptSegmentError, match=r"one/t-0: it is read, and ends at offset 6, and .*two/t-0 at 8"):
        require_sound([archived])
    one, two = (tmp_path / name / "t-0" for name in ("one", "two"))
    note = f"a copy is not used: {two}: it has no segments with the offsets 2 to 5, which {one} has"
    assert archived.notes == [note]
    # Where offsets are missing inside of a segment, too, compaction has left them out, in each copy others.
    write_segment(tmp_path / "two", "t-0", 0, batch(0, b"x"), batch(2, b"y"))
    archived = only(tmp_path)
    assert [offset for offset, _ in replayed(archived)] == [0, 2, 6, 7]
    require_sound([archived])


def test_parts_of_a_log_in_several_folders_are_replayed_together(tmp_path: Path) -> None:
    write_segment(tmp_path / "new", "t-0", 2, batch(2, b"c"))
    write_segment(tmp_path / "old", "t-0", 0, batch(0, b"a", b"b"))
    archived = only(tmp_path)
    assert replayed(archived) == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert (archived.folder, archived.damage, archived.notes) == (
        f"{tmp_path / 'old' / 't-0'}, {tmp_path / 'new' / 't-0'}",
        [],
        [],
    )


def test_the_copy_of_the_existing_topic_is_replayed(tmp_path: Path) -> None:
    former, present = "MkTsQ5zXQ2uVGZ0p3Zy4ag", "hKImAdDrSReqRnjQuVumFw"
    for topic_id, values in {former: [b"a", b"b"], present: [b"c"]}.items():
        segment = write_segment(tmp_path / topic_id, "t-0", 0, batch(0, *values))
        segment.with_name("partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")
    for topic_id, values in {former: [b"a", b"b"], present: [b"c"]}.items():
        existing = ClusterTopics({"t": ExistingTopic("t", topic_id)}, {})
        (archived,) = find_archived(find_sources([str(tmp_path)]), existing=existing)
        assert [value for _, value in replayed(archived)] == values
        (note,) = archived.notes
        assert f"and the existing topic has {topic_id}" in note
    (archived,) = find_archived(find_sources([str(tmp_path / former)]), existing=ClusterTopics({}, {}))
    assert [note.split(": ")[1] for note in archived.notes] == ["the topic t was deleted, by the cluster's metadata"]


def test_leaves_out_what_brokers_keep_for_themselves_and_what_they_dropped(tmp_path: Path) -> None:
    for folder in ("__consumer_offsets-0", "__cluster_metadata-0", f"t-0.{'0' * 32}-delete"):
        write_segment(tmp_path, folder, 0, batch(0, b"x"))
    with pytest.raises(NoSourceError, match="no segments of a topic to replay"):
        found(tmp_path)
    write_segment(tmp_path, "t-1", 0, batch(0, b"x", codec=RecordCodec.GZIP))
    write_segment(tmp_path, "u-0", 0, batch(0, b"x"))
    assert [str(each.partition) for each in found(tmp_path)] == ["t/1", "u/0"]
    assert [each.codec for each in found(tmp_path)] == [RecordCodec.GZIP, RecordCodec.NONE]
    assert [str(each.partition) for each in found(tmp_path, topics=("u",))] == ["u/0"]
    with pytest.raises(NoSourceError, match="no segments of the topics v"):
        found(tmp_path, topics=("u", "v"))


def test_segments_of_0_7_are_named_with_what_replays_them(tmp_path: Path) -> None:
    path = tmp_path / "t-0" / f"{0:020}.kafka"
    path.parent.mkdir()
    path.write_bytes(encode_message_set([b"old"] * 3))
    with pytest.raises(ConfigError, match=r"of Kafka 0\.7 and before, which is not replayed: serve a copy"):
        found(tmp_path)
