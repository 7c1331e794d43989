"""Tables of the earlier Parquet layout become Delta tables in place."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import transaction
from deltalake.table import TableAlterer

from consumerd.base.errors import ConfigError, ExitCode, NotFoundError
from consumerd.base.files import SystemFiles
from consumerd.cli.main import cli
from consumerd.spark.checkpoints import CheckpointLockedError, locked
from consumerd.spark.lake import delta
from consumerd.spark.lake.compact import compact
from consumerd.spark.lake.delta import DeltaLakeTable
from consumerd.spark.lake.land import land
from consumerd.spark.lake.refine_step import refine
from consumerd.spark.spec import parse_spark
from consumerd.spark.tables import open_table
from consumerd.spark.tables.convert import ConvertResult, convert_pipeline, convert_table
from consumerd.spark.tables.errors import TableCorruptError, TableError, TableOwnedError, TablePathError
from tests.support.lake_tables import COLUMNS, WRITER, batch_name, merged_name, write_earlier_table, write_rows


@pytest.fixture
def old(tmp_path: Path) -> Path:
    table = tmp_path / "lake" / "p" / "bronze"
    write_earlier_table(table)
    return table


def pages(table: Path) -> list[str]:
    return sorted(DeltaLakeTable(str(table)).dataset().to_table().column("page").to_pylist())


ALL = ["p0", "p1", "p2", "p3", "p4", "p6"]


def names(table: Path) -> set[str]:
    return {str(path.relative_to(table)) for path in table.rglob("*.parquet") if "_delta_log" not in path.parts}


def test_files_stay_and_batches_keep_their_numbers_and_owner(old: Path) -> None:
    before = names(old)
    result = convert_table(str(old))
    assert (result.batches, result.rows, result.adopted, result.written) == (7, 6, 4, 0)
    assert names(old) == {name for name in before if "_staging" not in name}
    table = DeltaLakeTable(str(old))
    assert (table.owner(), table.batches(), table.schema()) == (WRITER, (range(7),), COLUMNS)
    assert pages(old) == ALL
    rows = table.dataset().to_table().sort_by("batch")
    assert rows.column("ms").to_pylist() == [0, 1, 2, 3, None, 6]
    assert [at.microsecond for at in rows.column("at").to_pylist()] == [1, 2, 3, 4, 5, 7]
    assert [file.path.split("/")[0] for file in table.files(after=3, to=5)] == [batch_name(4)]
    assert not table.commit([], writer=WRITER, batch=6, schema=COLUMNS)
    assert table.commit([], writer=WRITER, batch=7, schema=COLUMNS)


def test_unread_folders_are_left_to_vacuum(old: Path) -> None:
    convert_table(str(old))
    table = DeltaLakeTable(str(old))
    removed = table.vacuum(0)
    assert {name.split("/")[0] for name in removed} == {batch_name(0), merged_name(0, 1), batch_name(5)}
    assert pages(old) == ALL
    assert table.optimize(1 << 20).merged == 1
    assert pages(old) == ALL


def test_part_of_a_folder_is_written_again(old: Path) -> None:
    write_rows(old / merged_name(3, 4), [3, 4])  # of an older release that merged in another way
    for file in (old / batch_name(4)).iterdir():
        file.unlink()
    (old / batch_name(4)).rmdir()
    result = convert_table(str(old))
    assert (result.adopted, result.written, result.rows) == (3, 1, 6)
    assert pages(old) == ALL


def test_files_without_the_column_batch_get_it(old: Path) -> None:
    for file in (old / batch_name(6)).iterdir():
        pq.write_table(pq.ParquetFile(file).read().drop(["batch"]), file)
    assert convert_table(str(old)).written == 1
    table = DeltaLakeTable(str(old))
    assert table.dataset(after=5).to_table().column("batch").to_pylist() == [6]
    assert pages(old) == ALL


def test_does_nothing_the_second_time(old: Path) -> None:
    convert_table(str(old))
    version = DeltaLakeTable(str(old)).version()
    assert convert_table(str(old)) == ConvertResult(str(old), 0, 0, 0, 0, 0)
    assert DeltaLakeTable(str(old)).version() == version


class _Killed(BaseException):
    """The process ends here."""


class _Life:
    """Ends at the call with number `ends_at` of those that change something."""

    def __init__(self, ends_at: int) -> None:
        self.left = ends_at

    def around(self, call: Any) -> Any:
        def counted(*args: Any, **named: Any) -> Any:
            if not self.left:
                raise _Killed
            self.left -= 1
            return call(*args, **named)

        return counted


def test_goes_on_after_a_kill_at_any_moment(old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(old / merged_name(3, 4), [3, 4])  # so that a file is written, too
    shutil.rmtree(old / batch_name(4))
    ends = 0
    while True:
        table = tmp_path / str(ends)
        shutil.copytree(old, table)
        life = _Life(ends)
        with monkeypatch.context() as patch:
            for owner, name in (
                (SystemFiles, "sync_file"),
                (SystemFiles, "remove_tree"),
                (SystemFiles, "sync_directory"),
                (delta, "create_table_with_add_actions"),
                (TableAlterer, "set_table_properties"),
            ):
                patch.setattr(owner, name, life.around(getattr(owner, name)))
            try:
                convert_table(str(table))
            except _Killed:
                ended = False
            else:
                ended = True
        if DeltaLakeTable(str(table)).exists:
            assert pages(table) == ALL
        else:
            assert (table / "_table.json").exists()
        convert_table(str(table))
        converted = DeltaLakeTable(str(table))
        assert (converted.owner(), converted.batches(), pages(table)) == (WRITER, (range(7),), ALL)
        assert not (table / "_table.json").exists()
        if ended:
            break
        ends += 1
    assert ends > 10


def test_table_without_batches_keeps_its_owner(old: Path) -> None:
    for folder in old.glob("batch=*"):
        shutil.rmtree(folder)
    convert_table(str(old))
    table = DeltaLakeTable(str(old))
    assert (table.owner(), table.batches(), table.schema()) == (WRITER, (), COLUMNS)
    with pytest.raises(TableOwnedError):
        table.commit([], writer="other", batch=0, schema=COLUMNS)


def test_lost_batch_is_an_error_and_changes_nothing(old: Path) -> None:
    shutil.rmtree(old / batch_name(4))
    with pytest.raises(TableCorruptError, match="has only the batches 0-3, 5-5, 6-6"):
        convert_table(str(old))
    assert not (old / "_delta_log").exists()


def test_batch_that_was_added_meanwhile_is_not_lost_silently(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create = transaction.create_table_with_add_actions

    def land_meanwhile(*args: Any, **named: Any) -> None:
        write_rows(old / batch_name(7), [7])
        create(*args, **named)

    monkeypatch.setattr(delta, "create_table_with_add_actions", land_meanwhile)
    for _ in range(2):  # nor by a repetition
        with pytest.raises(TableError, match="another batch while it was converted"):
            convert_table(str(old))
    assert (old / "_table.json").exists()


@pytest.mark.parametrize(
    ("name", "content"), [("_schema.json", b"{}"), ("_schema.json", b"\xff"), ("_table.json", b"[]")]
)
def test_damaged_description_is_one_sentence(old: Path, name: str, content: bytes) -> None:
    (old / name).write_bytes(content)
    with pytest.raises(TableCorruptError, match=rf"^{old}/{name} [^\n]*\.$"):
        convert_table(str(old))


def test_damaged_file_is_one_sentence(old: Path) -> None:
    (file,) = (old / batch_name(6)).iterdir()
    file.write_bytes(b"PAR1")
    with pytest.raises(TableCorruptError, match=rf"^{file} is not a Parquet file [^\n]*\.$"):
        convert_table(str(old))


def test_what_is_not_there_or_not_here_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        convert_table(str(tmp_path))
    with pytest.raises(TablePathError, match="hdfs://name/lake is not on this machine"):
        convert_table("hdfs://name/lake")


def pipeline(root: Path) -> dict[str, Any]:
    return {"spark": {"root": str(root), "pipelines": {"p": {"source": {"path": "/none", "subscribe": "t"}}}}}


def test_pipeline_is_converted_while_none_of_its_steps_runs(old: Path) -> None:
    spec = parse_spark(pipeline(old.parents[1]), "test").pipeline()
    (checkpoint := Path(spec.checkpoint("land"))).mkdir(parents=True)
    with locked(None, str(checkpoint)), pytest.raises(CheckpointLockedError):
        convert_pipeline(spec)
    assert not (old / "_delta_log").exists()
    (converted,) = convert_pipeline(spec).tables
    assert (converted.table, converted.batches) == (str(old), 7)


def test_every_step_names_the_remedy_until_the_table_is_converted(old: Path) -> None:
    document = pipeline(old.parents[1])
    document["spark"]["pipelines"]["p"] |= {"refine": {"fields": {"page": "string"}}}
    document["spark"]["pipelines"]["p"]["source"]["path"] = str(old)
    spec = parse_spark(document, "test").pipeline()
    before = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    steps: list[Any] = [
        lambda: land(spec, workers=1),
        lambda: refine(spec, workers=1),
        lambda: compact(spec),
        lambda: open_table(None, spec.bronze),
        lambda: open_table(None, spec.bronze, "iceberg"),
    ]
    for step in steps:
        with pytest.raises(TablePathError, match=rf"^{old} holds a table [^\n]*: run `consumerd spark convert` "):
            step()
    assert {path: path.read_bytes() for path in old.rglob("*") if path.is_file()} == before
    convert_pipeline(spec)
    assert open_table(None, spec.bronze).batches() == (range(7),)


def test_configured_format_of_the_earlier_layout_is_one_sentence(old: Path) -> None:
    document = pipeline(old.parents[1])
    document["spark"]["format"] = "parquet"
    with pytest.raises(ConfigError, match=r"'spark.format' is wrong: .*only read: set format = .delta., and run `"):
        parse_spark(document, "test")
    with pytest.raises(ConfigError, match='only read: set format = "delta"'):
        open_table(None, str(old), "parquet")


def test_command_prints_what_it_converted(old: Path, tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(
        f'[spark]\nroot = "{old.parents[1]}"\n[spark.pipelines.p.source]\npath = "/none"\nsubscribe = "t"\n'
    )
    done = CliRunner().invoke(cli, ["spark", "convert", "-c", str(file), "--json"])
    assert done.exit_code == ExitCode.OK, done.output
    (table,) = json.loads(done.stdout)["tables"]
    assert (table["table"], table["adopted"]) == (str(old), 4)
    again = CliRunner().invoke(cli, ["spark", "convert", "-c", str(file)])
    assert again.exit_code == ExitCode.OK
    assert "bronze" in again.stdout
