"""`consumerd group plan --json` says for every observed rebalance what the real members did."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from consumerd.cli.group import command


def test_reproduces_observed_assignments(golden: Path, tmp_path: Path) -> None:
    lines = (golden / "kafka-0.7.2/rebalance/observed.jsonl").read_text().splitlines()
    for line in lines:
        case = json.loads(line)
        (tmp_path / "case.json").write_text(line)
        result = CliRunner().invoke(command, ["plan", "--json", str(tmp_path / "case.json")], catch_exceptions=False)
        assert json.loads(result.output) == case["owners"], case["name"]
    assert len(lines) == 76
