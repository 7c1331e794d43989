"""`consumerd check` on pipelines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from consumerd.base.errors import ConfigError, ExitCode
from consumerd.cli.main import run
from consumerd.spark.spec import load_spark
from consumerd.spark.spec_check import check_spark

GROUP = '[group]\nid = "g"\ntopics = { t = 1 }\n'
SPARK = '[spark]\nroot = "/lake"\n[spark.pipelines.p.source]\npath = "/logs"\nsubscribe = "t"\n'


def written(folder: Path, text: str) -> Path:
    path = folder / "c.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (SPARK, ExitCode.OK, "c.toml is valid: pipelines p, tables under /lake\n"),
        (GROUP + SPARK, ExitCode.OK, "valid: group g"),
        (GROUP + SPARK.replace("subscribe", "subscribbe"), ExitCode.CONFIG, "did you mean 'subscribe'?"),
        (SPARK + 'trigger = "x"\n[group]\n', ExitCode.CONFIG, "'group.id' is required"),
        (SPARK + "[spark.pipelines.p.refine]\n", ExitCode.CONFIG, "'spark.pipelines.p.refine.fields' is required"),
        ("", ExitCode.CONFIG, "'group' is required"),
    ],
)
def test_check_reports_invalid_pipelines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, code: ExitCode, said: str
) -> None:
    assert run(["check", "-c", str(written(tmp_path, text))]) == code
    output = capsys.readouterr()
    assert said in output.out + output.err
    # A line for the daemon and one for the pipelines, also where both are invalid.
    both = "[group]" in text and (code == ExitCode.OK or GROUP not in text)
    assert len((output.out + output.err).splitlines()) == (2 if both else 1)


def test_daemon_ignores_pipelines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = GROUP + '[spark]\nroot = "/lake"\nconfig = { "spark.hadoop.fs.s3a.secret.key" = "hush" }\n'
    assert run(["config", "show", "-c", str(written(tmp_path, secret))]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "spark.root\t" in out
    assert "hush" not in out


def test_source_options_must_be_valid_for_a_stream(tmp_path: Path) -> None:
    text = SPARK.replace("[spark.pipelines.p.source]\n", '[spark.pipelines.p.source]\nendingOffsets = "latest"\n')
    with pytest.raises(ConfigError, match="pipeline p: option endingOffsets is not supported in a stream"):
        check_spark(load_spark(written(tmp_path, text)))


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        (None, "cannot read the Avro schema"),
        ("{", "is not JSON"),
        ('"string"', "is not a record with fields"),
        (
            {"type": "record", "name": "r", "fields": [{"name": "b", "type": "int"}, 5]},
            "has no field 'a'; its fields: b",
        ),
        ({"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]}, None),
    ],
)
def test_avro_schema_must_have_the_declared_fields(tmp_path: Path, schema: object, sentence: str | None) -> None:
    path = tmp_path / "r.avsc"
    if schema is not None:
        path.write_text(schema if isinstance(schema, str) else json.dumps(schema))
    refine = f'[spark.pipelines.p.refine]\nparse = "avro"\navro_schema = "{path}"\nfields = {{ a = "int" }}\n'
    spec = load_spark(written(tmp_path, SPARK + refine))
    if sentence is None:
        check_spark(spec)
        return
    with pytest.raises(ConfigError, match=sentence):
        check_spark(spec)
