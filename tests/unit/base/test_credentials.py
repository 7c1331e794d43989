"""Secrets in files: where they are looked for, and what errors say of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumerd.base.credentials import find_file, read_secret, read_secrets
from consumerd.base.errors import ConfigError


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory, and systemd's credentials beside it."""
    for name in ("work", "credentials"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "credentials"))
    return tmp_path


def test_relative_path_is_looked_for_in_the_credentials_directory(places: Path) -> None:
    (places / "credentials" / "password").write_text("hush\n")
    assert read_secret(Path("password"), "x_file") == "hush"


def test_working_directory_comes_first(places: Path) -> None:
    for name in ("work", "credentials"):
        (places / name / "password").write_text(name)
    assert read_secret(Path("password"), "x_file") == "work"


def test_absolute_path_and_missing_variable_are_taken_as_they_are(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (places / "credentials" / "password").write_text("hush")
    assert find_file(places / "work" / "password") == places / "work" / "password"
    monkeypatch.delenv("CREDENTIALS_DIRECTORY")
    assert find_file(Path("password")) == Path("password")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "x_file: cannot read password: No such file or directory."),
        (b"\nhush\n", "x_file: password holds no secret in its first line."),
        (b"hush\xff", "x_file: cannot read password: it is not UTF-8 text."),
    ],
)
def test_errors_name_key_and_file_and_not_the_secret(places: Path, content: bytes | None, says: str) -> None:
    if content is not None:
        (places / "work" / "password").write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        read_secret(Path("password"), "x_file")
    assert str(raised.value) == says
    assert raised.value.__suppress_context__ or b"\xff" not in (content or b"")


def test_reads_several_secrets_line_by_line(places: Path) -> None:
    (places / "work" / "auth").write_text("digest:a:b\n\ndigest:c:d\r\n")
    assert read_secrets(Path("auth"), "auth_file") == ["digest:a:b", "digest:c:d"]
    (places / "work" / "auth").write_text("\n")
    with pytest.raises(ConfigError, match="auth_file: auth holds no secret"):
        read_secrets(Path("auth"), "auth_file")


def test_byte_order_mark_is_not_part_of_the_secret(places: Path) -> None:
    (places / "work" / "password").write_bytes(b"\xef\xbb\xbfhush\r\n")
    assert read_secret(Path("password"), "x_file") == "hush"
