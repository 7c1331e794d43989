"""The commands and snippets of the README work unchanged."""

import re
import subprocess
import sys
from pathlib import Path

from consumerd.demo.processes import clean_environment

ROOT = Path(__file__).resolve().parents[2]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_loads_the_ten_line_handler_with_its_configuration(tmp_path: Path) -> None:
    code, config = blocks("python")[0], blocks("toml")[0]
    (tmp_path / "wordcount.py").write_text(code)
    (tmp_path / "events.toml").write_text(config)
    done = subprocess.run(
        [sys.executable, "-m", "consumerd", "check", "-c", "events.toml"],
        cwd=tmp_path,
        env={**clean_environment(), "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "is valid: group events" in done.stdout


def test_begins_with_two_commands_that_set_up_by_themselves() -> None:
    first = re.findall(r"(?:^    .+\n)+", (ROOT / "README.md").read_text(), re.MULTILINE)[0]
    assert re.findall(r"^    make (\w+) +# \d+ minutes?", first, re.MULTILINE) == ["demo", "test"]
    for target in ("demo", "test"):
        assert re.search(rf"^{target}: setup\b", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_ten_lines_print_what_the_readme_shows(tmp_path: Path) -> None:
    (tmp_path / "wordcount.py").write_text(blocks("python")[0])
    session = blocks("console")[0].splitlines()
    commands = [line.removeprefix("$ ") for line in session if line.startswith("$ ")]
    assert any("consumerd handlers test" in command for command in commands)
    done = subprocess.run(
        ["/bin/sh", "-ec", "\n".join(commands).replace("consumerd ", f"'{sys.executable}' -m consumerd ")],
        cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = [line for line in session if not line.startswith("$ ")]
    assert sorted([*done.stdout.splitlines(), *done.stderr.splitlines()]) == sorted(shown)


def test_links_to_existing_files() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text())
    here = [link for link in links if "://" not in link]
    assert len(here) > 5
    assert [link for link in here if not (ROOT / link).exists()] == []
