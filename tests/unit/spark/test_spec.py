"""Pipelines as declared, without a JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import ConfigError, NotFoundError
from consumerd.spark.spec import load_spark, parse_spark
from consumerd.spark.spec_model import interval_seconds, parse_type, size_bytes

REFINE: dict[str, Any] = {"fields": {"id": "bigint not null", "at": "timestamp_ms", "price": "decimal(10, 2)"}}
REGISTERED = REFINE | {"parse": "schema_registry", "registry_url": "http://r:8081"}


def spark(pipeline: dict[str, Any] | None = None, **table: Any) -> dict[str, Any]:
    declared = {"source": {"path": "/logs", "subscribe": "events"}} | (pipeline or {})
    return {"spark": {"root": "/lake/", "pipelines": {"p": declared}} | table}


def test_paths_follow_from_root_and_name() -> None:
    pipeline = parse_spark(spark(), "f").pipeline()
    assert (pipeline.bronze, pipeline.checkpoint("land")) == ("/lake/p/bronze", "/lake/p/_checkpoints/land")
    assert parse_spark(spark(root="s3a://b/x"), "f").pipeline("p").report == "s3a://b/x/p/report.html"
    assert not pipeline.is_continuous
    assert pipeline.compact_spec.target_bytes == 128 << 20


def test_spells_source_options_as_spark_does() -> None:
    source = {"path": ["/a", "/b"], "assign": {"t": ["0-0"]}, "failOnDataLoss": False, "minPartitions": 4}
    assert parse_spark(spark({"source": source}), "f").pipeline().source == {
        "path": "/a,/b", "assign": '{"t": ["0-0"]}', "failOnDataLoss": "false", "minPartitions": "4",
    }  # fmt: skip


def test_finds_a_pipeline_by_name_or_the_only_one() -> None:
    with pytest.raises(NotFoundError, match="no pipeline 'q'; declared pipelines: p"):
        parse_spark(spark(), "f").pipeline("q")
    with pytest.raises(NotFoundError, match="f declares these pipelines: none; name one"):
        parse_spark({"spark": {"root": "/x"}}, "f").pipeline()
    with pytest.raises(ConfigError, match=r"f has no \[spark\] table"):
        parse_spark({"group": {}}, "f")


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (spark(rooot="/x"), "unknown key 'spark.rooot', did you mean 'root'?"),
        (spark({"trigre": "x"}), "unknown key 'spark.pipelines.p.trigre', did you mean 'trigger'?"),
        (spark({"refine": REFINE | {"dedupe": True}}), "'spark.pipelines.p.refine.dedupe', did you mean 'dedup'?"),
        (spark({"refine": {"fields": {"a": {"type": "int", "form": "b"}}}}), "fields.a.form', did you mean 'from'?"),
        (spark({"compact": {"targett": 1}}), "did you mean 'target'?"),
        ({"spark": {}}, "'spark.root' is required"),
        (spark({"source": {}}), "'spark.pipelines.p.source' must not be empty"),
        (spark({"trigger": "often"}), "'often' is not an interval such as '10 minutes'"),
        (spark({"compact": {"target": "12x"}}), "'12x' is not a size such as '128m'"),
        (spark({"refine": {"fields": {}}}), "refine.fields' must not be empty"),
        (spark({"refine": {"fields": {"id": "bigin"}}}), "'bigin' is not a type, did you mean 'bigint'?"),
        (spark({"refine": {"fields": {"Offset": "int"}}}), 'other = { type = "...", from = "Offset" }'),
        (spark({"refine": {"fields": {"a": "int", "A": "int"}}}), "the column 'A' already exists"),
        (spark({"refine": {"fields": {"a b": "int"}}}), "'a b' is not a valid column name"),
        (spark({"refine": REFINE | {"event_time": "id"}}), "event_time = 'id' is not a declared field of type timest"),
        (
            spark({"refine": REFINE | {"partition_by": ["at"]}}),
            "partition_by = ['at'] must be one date(...) of landed_at",
        ),
        (spark({"refine": REFINE | {"partition_by": ["date(id)"]}}), "or of a field of type timestamp"),
        (spark({"refine": REFINE | {"partition_by": ["date(at)", "date(at)"]}}), "must be one date(...)"),
        (
            spark({"refine": {"fields": {"at": "timestamp", "At_date": "int"}, "partition_by": ["date(at)"]}}),
            "the column 'at_date' is that of the partitions",
        ),
        (
            spark({"refine": REFINE | {"parse": "regex"}}),
            'parse = "regex" requires pattern, and pattern requires parse = "regex"',
        ),
        (
            spark({"refine": REFINE | {"parse": "avro"}}),
            'parse = "avro" requires avro_schema, and avro_schema requires parse = "avro"',
        ),
        (spark({"refine": REFINE | {"avro_prefix": "confluent"}}), 'avro_prefix requires parse = "avro"'),
        (
            spark({"refine": REFINE | {"parse": "schema_registry"}}),
            'parse = "schema_registry" requires registry_url, and registry_url requires parse = "schema_registry"',
        ),
        (
            spark({"refine": REFINE | {"registry_url": "http://r:8081"}}),
            'registry_url requires parse = "schema_registry"',
        ),
        (
            spark({"refine": REGISTERED | {"registry_user": "me"}}),
            "give registry_user and registry_password_file, or registry_token_file, or none of them",
        ),
        (
            spark({"refine": REGISTERED | {"registry_password_file": "/secret"}}),
            "give registry_user and registry_password_file",
        ),
        (
            spark(
                {
                    "refine": REGISTERED
                    | {"registry_user": "me", "registry_password_file": "/s", "registry_token_file": "/t"}
                }
            ),
            "or registry_token_file, or none of them",
        ),
        (
            spark({"refine": REGISTERED | {"fields": {"a": "array<int>", "b": {"type": "int", "from": "a"}}}}),
            "'a' is read as two types; declare one of them",
        ),
        (
            spark({"refine": {"fields": {"b": {"type": "int", "from": "a"}, "a": "array<int>"}}}),
            "'a' is read as two types; declare one of them",
        ),
        (
            spark({"refine": REGISTERED | {"fields": {"a": "map<int,string>"}}}),
            "'a' = 'map<int,string>': keys of a map must be strings",
        ),
        (
            spark({"refine": {"fields": {"a": "array<map<date,string>>"}}}),
            "'a' = 'array<map<date,string>>': keys of a map must be strings",
        ),
        (
            spark({"refine": REFINE | {"parse": "regex", "pattern": "(?<id>.)"}}),
            "pattern has no group (?<at>...) for the field 'at'",
        ),
        (spark({"aggregate": {}}), "aggregate requires refine with an event_time"),
        (
            spark({"refine": REFINE | {"event_time": "at"}, "aggregate": {"sums": ["at"]}}),
            "sums: 'at' is not a declared field of a numeric type",
        ),
        (
            spark({"refine": REFINE | {"event_time": "at"}, "aggregate": {"group_by": ["page"]}}),
            "group_by: 'page' is neither",
        ),
        (
            spark({"refine": REFINE | {"event_time": "at"}, "aggregate": {"window": "1 hour", "slide": "2 hours"}}),
            "slide must not be longer than window",
        ),
        (spark(format="orc"), "'spark.format' must be delta or iceberg"),
        (spark(pipelines={"../p": {"source": {"path": "x"}}}), "is not a valid pipeline name"),
    ],
)
def test_reports_an_invalid_table_in_one_sentence(document: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_spark(document, "f")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_landed_at_can_be_the_event_time() -> None:
    declared = spark({"refine": REFINE | {"event_time": "landed_at"}, "aggregate": {"group_by": ["topic"]}})
    pipeline = parse_spark(declared, "f").pipeline()
    assert pipeline.refine is not None
    assert pipeline.refine.event_time == "landed_at"


def test_reports_a_variable_that_is_nested_too_deeply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONSUMERD_SPARK__CONFIG", "[" * 100_000)
    with pytest.raises(ConfigError, match=r"environment variable CONSUMERD_SPARK__CONFIG: .* cannot be read"):
        parse_spark({"spark": {"root": "/lake"}}, "file")


def test_environment_overrides_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CONSUMERD_SPARK__ROOT", "/elsewhere")
    path = tmp_path / "c.toml"
    path.write_text('[spark]\nroot = "/x"\n[spark.pipelines.p.source]\npath = "/logs"\n')
    assert load_spark(path).pipeline().bronze == "/elsewhere/p/bronze"


@pytest.mark.parametrize(
    ("text", "ddl"),
    [
        ("bigint", "bigint"), ("Long NOT NULL", "bigint"),
        ("decimal", "decimal(10,0)"), ("decimal( 38 , 2 )", "decimal(38,2)"),
        ("array<struct<a:int, b : map<string,double>>>", "array<struct<a:int,b:map<string,double>>>"),
        ("timestamp_ms", "timestamp"), ("Struct<Aa:STRING>", "struct<Aa:string>"),
    ],
)  # fmt: skip
def test_parses_types(text: str, ddl: str) -> None:
    assert parse_type(text).ddl == ddl
    assert parse_type(text).required == text.endswith("NOT NULL")


@pytest.mark.parametrize(
    "text",
    [
        "", "int int", "array<int", "array", "map<int>", "struct<>", "struct<1:int>", "decimal(39)", "decimal(2,3)",
        "decimal(x)", "not null", "int)", "array<" * 1000 + "int" + ">" * 1000, "b@d", "struct<a int>",
    ],
)  # fmt: skip
def test_rejects_invalid_types(text: str) -> None:
    with pytest.raises(ValueError, match="type"):
        parse_type(text)


def test_parses_intervals_and_sizes() -> None:
    assert [interval_seconds(text) for text in ("1 second", "10 Minutes", "2hours", "1 week")] == [1, 600, 7200, 604800]
    assert [size_bytes(text) for text in (5, "1k", "128MB", "2 GiB")] == [5, 1024, 128 << 20, 2 << 30]
    for text in ("0 seconds", "-1 day", "1 month", "day", ""):
        with pytest.raises(ValueError, match="interval"):
            interval_seconds(text)
