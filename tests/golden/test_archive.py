"""The real 0.7.2's logs: their export is what the real consumer saw, and their damage has its right name."""

from __future__ import annotations

import base64
import gzip
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import zstandard

from consumerd.base.errors import ExitCode
from consumerd.cli.main import run

CODECS = {"NoCompressionCodec": "none", "GZIPCompressionCodec": "gzip", "SnappyCompressionCodec": "snappy"}
DUMPED = ["producer-mix", "wire-broker"]
PRODUCER_MIX = {"gzip-0": (4, 177), "plain-0": (6, 160), "snappy-0": (6, 210)}


@pytest.fixture(scope="module")
def logs(golden: Path) -> Path:
    return golden / "kafka-0.7.2" / "logs"


def payload_of(row: dict[str, Any]) -> bytes:
    if "payload_base64" in row:
        return base64.b64decode(row["payload_base64"])
    payload = row["payload"]
    return payload.encode() if isinstance(payload, str) else bytes(payload)


def ndjson(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(out.glob("*/*/*.ndjson")) for line in path.read_text().split("\n")[:-1]]


def parquet(out: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in sorted(out.glob("*/*/*.parquet")):
        found += pyarrow.parquet.ParquetFile(path).read().to_pylist()
    return found


def compare(rows: list[dict[str, Any]], dump: dict[str, Any]) -> None:
    """Every leaf that the real consumer yielded, with the offset it would commit; the rest as the real iterator saw."""
    by_source: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        folder, file = row["source"].rsplit("/", 2)[1:]
        by_source.setdefault(f"{folder}/{file}", []).append(row)
    assert by_source.keys() == {name for name, seen in dump.items() if seen["consumer_view"]}
    for name, found in by_source.items():
        seen = dump[name]
        assert [(row["next_offset"], payload_of(row).hex()) for row in found] == [
            (leaf["offset_reported"], leaf["payload_hex"]) for leaf in seen["consumer_view"]
        ], name
        shallow = {outer["offset"]: outer for outer in seen["shallow"]}
        for row in found:
            outer = shallow[row["offset"]]
            assert (row["magic"], row["codec"]) == (outer["magic"], CODECS[outer["codec"]])
            assert row["crc_ok"] is outer["valid"] is True
        topic, _, partition = name.split("/")[0].rpartition("-")
        assert {(row["topic"], row["broker"], row["partition"]) for row in found} == {(topic, 0, int(partition))}


@pytest.mark.parametrize("name", DUMPED)
@pytest.mark.parametrize(("form", "read"), [("ndjson", ndjson), ("parquet", parquet)])
def test_exports_what_the_real_consumer_saw(
    logs: Path, tmp_path: Path, name: str, form: str, read: Callable[[Path], list[dict[str, Any]]]
) -> None:
    dump = json.loads((logs / f"{name}.dump.json").read_text())
    out = tmp_path / "out"
    command = ["log", "export", "--broker-id", "0", "--format", form, "-o", str(out), str(logs / name)]
    assert run(command) == ExitCode.OK
    compare(read(out), dump)


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tar.zst"])
def test_exports_the_same_from_tars(logs: Path, tmp_path: Path, ending: str) -> None:
    plain = tmp_path / "logs.tar"
    with tarfile.open(plain, "w") as tar:
        tar.add(logs / "producer-mix", "logs")
    path = tmp_path / f"logs{ending}"
    if ending == ".tar.gz":
        path.write_bytes(gzip.compress(plain.read_bytes()))
    elif ending == ".tar.zst":
        path.write_bytes(zstandard.compress(plain.read_bytes()))
    assert run(["log", "export", "--broker-id", "0", "-o", str(tmp_path / "out"), str(path)]) == ExitCode.OK
    compare(ndjson(tmp_path / "out"), json.loads((logs / "producer-mix.dump.json").read_text()))


def verified(capsys: pytest.CaptureFixture[str], *paths: Path) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    """Exit code, and findings by the name of the partition's folder."""
    code = run(["log", "verify", "--json", *map(str, paths)])
    *findings, summary = map(json.loads, capsys.readouterr().out.splitlines())
    found: dict[str, list[dict[str, Any]]] = {
        partition["partition"].rpartition("/")[2]: [] for partition in summary["summary"]["partitions"]
    }
    for finding in findings:
        found[finding["partition"].rpartition("/")[2]].append(finding)
    return code, found


@pytest.mark.parametrize("name", DUMPED)
def test_whole_logs_are_sound(logs: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, found = verified(capsys, logs / name)
    assert code == ExitCode.OK
    assert not any(found.values())


def test_counts_messages_of_the_real_producer(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "verify", str(logs / "producer-mix")]) == ExitCode.OK
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    found = {line[1].rpartition("/")[2]: (int(line[2]), int(line[4])) for line in lines if line[0] == "partition"}
    assert found == PRODUCER_MIX


#: The findings of verify in the logs that the real broker recovered, refused to start with, or served torn.
VERDICTS = {
    "recovery-before": {
        "badcrc-mid-0": [("bad-crc", 8942, 9115)],
        "badcrc-older-0": [("bad-crc", 0, 23)],  # which 0.7.2 never notices
        "empty-last-0": [],
        "first-deleted-0": [],
        "garbage-0": [("nonsense-block", 11169, 11224)],
        "otherfile-0": [],
        "torn-header-0": [("torn-tail", 11169, 11171)],
        "torn3-0": [("torn-tail", 11106, 11166)],
        "zeros-0": [("nonsense-block", 11169, 11269)],
    },
    "recovery-badmagic": {"badmagic-tail-0": [("unknown-magic", 11169, 11184)]},
    "recovery-torn-middle": {"torn-middle-0": [("lost-block", 4589, 4614)]},
    "recovery-clean-marker": {"torn-clean-0": [("torn-tail", 11106, 11166)]},
}


@pytest.mark.parametrize("name", list(VERDICTS))
def test_names_the_kind_of_damage(logs: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, found = verified(capsys, logs / name)
    assert {
        partition: [(finding["finding"], finding["offset"], finding["end"]) for finding in findings]
        for partition, findings in found.items()
    } == VERDICTS[name]
    assert code == ExitCode.CHECK_FAILED


def test_first_finding_is_where_the_real_broker_cut(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = logs / "recovery-before" / "log", logs / "recovery-after" / "log"
    _, found = verified(capsys, before)
    cut = 0
    for name, findings in found.items():
        last = max((before / name).glob("*.kafka"))
        kept = (after / name / last.name).stat().st_size
        if kept == last.stat().st_size:
            continue
        cut += 1
        assert findings[0]["offset"] == int(last.stem) + kept, name
    assert cut == 5


def test_recovered_segments_are_sound(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, found = verified(capsys, logs / "recovery-after")
    assert [name for name, findings in found.items() if findings] == ["badcrc-older-0"]
