"""Topics that exist by KRaft's metadata log: records as brokers of 3.9.1 and 4.1.0 wrote them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import ExitCode
from consumerd.cli.main import run
from consumerd.storage.archives.cluster_metadata import ClusterTopics, read_cluster_metadata
from consumerd.storage.segments.cluster_metadata import ClusterMetadataReader
from consumerd.storage.segments.fields import RecordFields, UnreadableRecordError
from consumerd.wire.v08.records import encode_record_batch
from consumerd.wire.v08.records.crc32c import crc32c

KEPT, GONE, OTHER = "JdLy-fP2T5aVi8HsT1hUtQ", "hKImAdDrSReqRnjQuVumFw", "VKOGw387Q5CH828OC6AX_w"
#: The records of 3.9.1 about two topics: created with configurations, changed, a partition added, and one deleted.
BEGIN = "01170001001212426f6f747374726170207265636f726473"
END, ABORT = "01180000", "01190000"
LEVEL = "010c00116d657461646174612e76657273696f6e001500"
CREATED = [
    "010200056b65707425d2f2f9f3f64f96958bc1ec4f5854b500",
    "01040002056b6570740f636c65616e75702e706f6c69637908636f6d7061637400",
    "01040002056b6570740d726574656e74696f6e2e6d73083130303030303000",
    "0103010000000025d2f2f9f3f64f96958bc1ec4f5854b502000000010200000001010100000001000000000000000002dcff528628e6052e687c395c30e024f900",
    "0103010000000125d2f2f9f3f64f96958bc1ec4f5854b502000000010200000001010100000001000000000000000002dcff528628e6052e687c395c30e024f900",
    "01020005676f6e6584a22601d0eb4917aa4678d0b95ba61700",
    "0103010000000084a22601d0eb4917aa4678d0b95ba61702000000010200000001010100000001000000000000000002dcff528628e6052e687c395c30e024f900",
]
CHANGED = [
    "01040002056b657074126d61782e6d6573736167652e6279746573053230303000",
    "01040002056b6570740d726574656e74696f6e2e6d730000",
    "0103010000000225d2f2f9f3f64f96958bc1ec4f5854b502000000010200000001010100000001000000000000000002dcff528628e6052e687c395c30e024f900",
    "01090084a22601d0eb4917aa4678d0b95ba61700",
]
#: Of 4.1.0: another topic of the name, with a partition.
AGAIN = [
    "010200056b65707454a386c37f3b439087f36f0e0ba017ff00",
    "0103020000000054a386c37f3b439087f36f0e0ba017ff020000000102000000010101000000010000000000000000027d3c8e0c1fcec299e5da6c324502415200",
]
CONFIGURATION = {"cleanup.policy": "compact", "max.message.bytes": "2000"}


def records(offset: int, *found: str) -> bytes:
    return encode_record_batch([bytes.fromhex(each) for each in found], base_offset=offset, leader_epoch=1)


def control(offset: int, kind: int) -> bytes:
    data = bytearray(encode_record_batch([bytes(6)], keys=[struct.pack(">hh", 0, kind)], base_offset=offset))
    data[22] |= 0x20
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4)
    return bytes(data)


def snapshot(*found: str) -> bytes:
    return control(0, 3) + records(1, *found) + control(1 + len(found), 4)


def folder(root: Path, logs: dict[int, bytes], snapshots: dict[int, bytes] | None = None) -> Path:
    path = root / "__cluster_metadata-0"
    path.mkdir(parents=True)
    for start, data in logs.items():
        (path / f"{start:020}.log").write_bytes(data)
        (path / f"{start:020}.index").write_bytes(b"")
    for end, data in (snapshots or {}).items():
        (path / f"{end:020}-{1:010}.checkpoint").write_bytes(data)
    return path


def read(root: Path, logs: dict[int, bytes], snapshots: dict[int, bytes] | None = None) -> ClusterTopics:
    return read_cluster_metadata(str(folder(root, logs, snapshots)))


def names(found: ClusterTopics) -> list[str]:
    return list(found.topics)


def test_reads_topics_partitions_configurations_and_deleted_topics(tmp_path: Path) -> None:
    found = read(tmp_path, {0: control(0, 2) + records(1, LEVEL, *CREATED) + records(9, *CHANGED)})
    assert [topic.as_json() for topic in found.topics.values()] == [
        {
            "topic": "kept",
            "topic_id": KEPT,
            "partitions": {"0": [1], "1": [1], "2": [1]},
            "configuration": CONFIGURATION,
        }
    ]
    assert (found.deleted, found.findings) == ({GONE: "gone"}, [])


def test_reads_the_records_of_a_later_version(tmp_path: Path) -> None:
    found = read(tmp_path, {0: records(0, *AGAIN)})
    assert (found.ids, found.topics["kept"].partitions) == ({"kept": OTHER}, {0: (1,)})


def test_a_transaction_of_the_controllers_counts_when_it_ends(tmp_path: Path) -> None:
    for number, (end, topics) in enumerate({END: ["gone", "kept"], ABORT: [], LEVEL: []}.items()):
        log = {0: records(0, BEGIN, *CREATED[:4]) + records(5, *CREATED[4:], end)}
        assert names(read(tmp_path / str(number), log)) == topics


def test_a_change_of_replicas_counts() -> None:
    # Written by hand, by the schema: tagged fields 0 (ISR) and 2 (replicas).
    change = "01050000000000" + CREATED[0][16:48] + "02" + "0005" + "0200000002" + "0209" + "030000000200000003" + "00"
    reader = ClusterMetadataReader()
    for each in (*CREATED[:4], change):
        update = reader._read(bytes.fromhex(each))
        assert update is not None
        update()
    assert reader.topics()["kept"].partitions == {0: (2, 3)}


def test_snapshots_continue_where_the_log_has_a_hole(tmp_path: Path) -> None:
    later = records(20, *CHANGED)
    whole, half = snapshot(LEVEL, *CREATED), snapshot(LEVEL, *CREATED)[:-80]
    # The log begins with a snapshot's end; the earlier snapshot is incomplete, and the later one has all of it.
    found = read(tmp_path / "a", {20: later}, {20: whole})
    assert (names(found), found.deleted, found.findings) == (["kept"], {GONE: "gone"}, [])
    found = read(tmp_path / "b", {20: later}, {20: half, 24: snapshot(LEVEL, *CREATED[:5])})
    assert names(found) == ["kept"]
    assert [each.problem.partition("/__cluster_metadata-0 ")[2] for each in found.findings] == [
        f"has a snapshot {20:020}-0000000001.checkpoint that is not complete: which topics exist is a guess"
    ]
    # A snapshot behind the end of the log counts, and what it lacks was deleted.
    found = read(tmp_path / "c", {0: records(0, *CREATED)}, {50: snapshot(*CREATED[:5])})
    assert (names(found), found.deleted, found.findings) == (["kept"], {GONE: "gone"}, [])
    found = read(tmp_path / "d", {20: later})
    assert "has no offsets 0 to 19, and no snapshot of them" in found.findings[0].problem


def test_what_is_not_a_record_is_counted(tmp_path: Path) -> None:
    found = read(tmp_path, {0: records(0, *CREATED, "", "02", "0102", "0102ff", "010203ff" + "00" * 17, "01090001")})
    assert names(found) == ["gone", "kept"]
    assert "has 6 records that no known broker writes" in found.findings[0].problem


@pytest.mark.parametrize("data", [b"", b"\xff" * 6, b"\xff\xff\xff\xff\x0f", b"\x05ab"])
def test_fields_end_with_their_record(data: bytes) -> None:
    with pytest.raises(UnreadableRecordError):
        RecordFields(data, compact=True).text()
    with pytest.raises(UnreadableRecordError):
        RecordFields(data).int64()


def write(path: Path, topic_id: str, *, epoch: int = 0, count: int = 1) -> None:
    path.mkdir(parents=True)
    data = encode_record_batch([b"v"] * count, leader_epoch=epoch, timestamps=1_700_000_000_000 + count)
    (path / f"{0:020}.log").write_bytes(data)
    (path / f"{0:020}.index").write_bytes(b"")
    (path / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")


@pytest.fixture
def disks(tmp_path: Path) -> Path:
    """Two disks: the metadata says that `kept` exists and `gone` does not; one disk has a former `kept`."""
    log = {0: control(0, 2) + records(1, LEVEL, *CREATED) + records(9, *CHANGED)}
    for number in (1, 2):
        folder(tmp_path / str(number), log)
        (tmp_path / str(number) / "meta.properties").write_text(f"node.id={number}\n")
    write(tmp_path / "1" / "kept-0", KEPT)
    write(tmp_path / "2" / "kept-0", OTHER, epoch=9, count=5)
    write(tmp_path / "2" / "kept-7", KEPT)
    write(tmp_path / "2" / "kept-1", KEPT)
    write(tmp_path / "1" / "gone-0", GONE)
    write(tmp_path / "1" / "never-0", OTHER)
    return tmp_path


def test_log_ls_names_stale_folders_and_what_is_missing(disks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "ls", "--json", str(disks)]) == ExitCode.OK
    lines: list[dict[str, Any]] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = {
        each["folder"].removeprefix(f"{disks}/"): [
            (finding["finding"], finding["problem"].partition(": ")[2]) for finding in each["findings"]
        ]
        for each in lines
        if "folder" in each
    }
    other = f"it is of another topic of this name: its topic id is {OTHER}, and the existing topic has {KEPT}"
    assert found == {
        "1/__cluster_metadata-0": [],
        "2/__cluster_metadata-0": [],
        "1/gone-0": [("stale-folder", "the topic gone was deleted, by the cluster's metadata")],
        "1/kept-0": [],
        "1/never-0": [("stale-folder", "the topic never does not exist, by the cluster's metadata")],
        "2/kept-0": [
            ("other-topic-id", other),
            ("stale-folder", f"it is stale: its topic id is {OTHER}, and the existing topic kept has {KEPT}"),
        ],
        "2/kept-1": [("stale-folder", "it is stale: the brokers 1 have the replicas, and not 2")],
        "2/kept-7": [("stale-folder", "it is stale: the existing topic kept does not have the partition 7")],
    }
    assert [each["problem"] for each in lines if each.get("finding") == "missing-partition"] == [
        "the archive has no folder of kept/1, 2, which the cluster has"
    ]
    summary = lines[-1]["summary"]
    assert summary["existing_topics"][0]["configuration"] == CONFIGURATION
    assert summary["deleted_topics"] == [{"topic": "gone", "topic_id": GONE}]
    assert run(["log", "ls", str(disks)]) == ExitCode.OK
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines() if line.startswith("topic\t")]
    assert rows == [
        ["topic", "kept", "existing", "3", KEPT, "cleanup.policy=compact max.message.bytes=2000"],
        ["topic", "gone", "deleted", "", GONE, ""],
    ]


def test_export_reads_the_existing_topic_though_a_former_one_is_later(disks: Path) -> None:
    arguments = ["log", "export", "-o", str(disks / "out"), "--topic", "kept", str(disks / "1"), str(disks / "2")]
    assert run(arguments) == ExitCode.CHECK_FAILED
    assert (disks / "out" / "kept" / "0").is_dir()
    assert sum(file.read_text().count("\n") for file in (disks / "out" / "kept" / "0").iterdir()) == 1


def test_links_and_pipes_in_the_folder_are_not_opened(tmp_path: Path) -> None:
    path = folder(tmp_path, {})
    (path / f"{0:020}.log").mkdir()
    (path / f"{7:020}-{1:010}.checkpoint").mkdir()
    found = read_cluster_metadata(str(path))
    assert [each.problem.rpartition(" that ")[2] for each in found.findings] == [
        "cannot be read: it is not a regular file: which topics exist is a guess"
    ] * 2
    assert (
        read_cluster_metadata(str(tmp_path / "none"))
        .findings[0]
        .problem.endswith("cannot be read: No such file or directory: which topics exist is a guess")
    )
