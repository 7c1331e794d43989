"""Every secret of the configuration, found by its type: given in three ways, and shown in none.

A secret that is added to the model is filled and looked for here without a change of these tests.
"""

from __future__ import annotations

import json
import random
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
import trustme
from click.testing import CliRunner
from cryptography.hazmat.primitives import serialization

from consumerd.base.clock import SystemClock
from consumerd.base.credentials import secret_of, secrets_of
from consumerd.base.errors import ConsumerdError
from consumerd.base.settings.monitoring import HealthTlsSection
from consumerd.base.settings.servers import TlsSection
from consumerd.base.settings.setting import SecretStr, Section
from consumerd.cli.main import cli
from consumerd.handlers import Handler, Secret, load_handler
from consumerd.service.config.build import build_session, build_tls, key_password
from consumerd.service.config.build_handlers import build_handler
from consumerd.service.config.build_v08 import build_mechanism
from consumerd.service.config.model import Config, parse
from consumerd.service.config.problems import read_document
from consumerd.service.config.reloading import compare
from consumerd.service.config.toml_text import toml_value
from consumerd.service.daemon.checks import check_daemon
from consumerd.service.daemon.endpoints import build_access, build_server_tls

RNG = random.Random(1)
MARKER = "hush-hush-hush-hush"
#: The keys that a table requires in addition to its secrets.
NEEDED: dict[str, dict[str, Any]] = {
    "group": {"id": "g", "topics": {"t": 1}, "dialect": "0.7"},
    "kafka.sasl": {"user": "u"},
    "zookeeper.sasl": {"user": "u"},
    "health.tls": {"certificate": "/etc/c.pem", "key": "/etc/k.pem"},
    "handler": {"name": f"{__name__}:Sink", "options": {"dsn": MARKER}},
}
#: Secrets that have a form.
FORMS = {"zookeeper.auth": f"digest:user:{MARKER}"}


class Sink(Handler):
    """A handler with a secret."""

    def __init__(self, dsn: Secret[str]) -> None:
        self.dsn = dsn

    async def handle(self, batch: Any) -> None: ...


def hints_of(model: type[Section]) -> dict[str, Any]:
    return {name: hint for name, hint in get_type_hints(model).items() if name in model.fields}


def tables(model: type[Section] = Config, path: str = "") -> Iterator[tuple[str, type[Section]]]:
    """All tables with secrets, also those within others."""
    for name, annotation in hints_of(model).items():
        for part in (annotation, *get_args(annotation)):
            if isinstance(part, type) and issubclass(part, Section):
                place = f"{path}.{name}".lstrip(".")
                if part.secret_keys():
                    yield place, part
                yield from tables(part, place)


SECRETS = [(table, key) for table, model in tables() for key in model.secret_keys()]
MODELS = dict(tables())


def value_of(table: str, key: str) -> Any:
    text = FORMS.get(f"{table}.{key}", MARKER)
    return [text] if get_origin(hints_of(MODELS[table])[key]) is tuple else text


def document(*, without: tuple[str, str] | None = None) -> dict[str, Any]:
    """A valid configuration with every secret there is."""
    made: dict[str, Any] = {}
    for table in [*NEEDED, *MODELS]:
        place = made
        for part in table.split("."):
            place = place.setdefault(part, {})
        place.update(NEEDED.get(table, {}))
        place.update({key: value_of(table, key) for each, key in SECRETS if each == table and (each, key) != without})
    return made


def toml(made: dict[str, Any], path: str = "") -> str:
    """Tables within tables after the keys of the outer one."""
    plain = {key: value for key, value in made.items() if not isinstance(value, dict) or key in ("topics", "options")}
    lines = [f"[{path}]"] * bool(path) + [f"{key} = {toml_value(value)}" for key, value in plain.items()]
    nested = [toml(value, f"{path}.{key}".lstrip(".")) for key, value in made.items() if key not in plain]
    return "\n".join([*lines, *nested]) + "\n"


def place_in(made: dict[str, Any], table: str) -> dict[str, Any]:
    for part in table.split("."):
        made = made[part]
    return made


def said(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error)


def test_finds_secrets_of_all_rooms() -> None:
    assert {("zookeeper", "auth"), ("kafka.sasl", "password"), ("health", "token")} <= {*SECRETS}
    assert ("kafka.tls", "key_password") in SECRETS


@pytest.mark.parametrize(("table", "key"), SECRETS)
def test_each_secret_can_be_given_in_a_file(table: str, key: str, tmp_path: Path) -> None:
    annotation = hints_of(MODELS[table]).get(f"{key}_file")
    assert annotation is not None, f"{table}.{key} needs {key}_file"
    assert Path in get_args(annotation)
    made = document(without=(table, key))
    (tmp_path / "secret").write_text(FORMS.get(f"{table}.{key}", MARKER) + "\n")
    place_in(made, table)[f"{key}_file"] = str(tmp_path / "secret")
    section: Any = parse(made, "c.toml", environment=False)
    for part in table.split("."):
        section = getattr(section, part)
    find = secrets_of if isinstance(value_of(table, key), list) else secret_of
    read = find(section, key, table)
    assert read == value_of(table, key)


@pytest.mark.parametrize(("table", "key"), SECRETS)
def test_each_secret_can_be_given_in_the_environment(table: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value = value_of(table, key)
    name = f"CONSUMERD_{table.replace('.', '__')}__{key}".upper()
    monkeypatch.setenv(name, json.dumps(value) if isinstance(value, list) else value)
    section: Any = parse(document(without=(table, key)), "c.toml")
    for part in table.split("."):
        section = getattr(section, part)
    assert getattr(section, key) == ((SecretStr(value[0]),) if isinstance(value, list) else SecretStr(value))


@pytest.mark.parametrize(("table", "key"), SECRETS)
def test_secret_in_two_places_is_refused_without_its_value(table: str, key: str) -> None:
    made = document()
    place_in(made, table)[f"{key}_file"] = "somewhere"
    with pytest.raises(ConsumerdError, match=f"give exactly one of {key} and {key}_file") as raised:
        parse(made, "c.toml", environment=False)
    assert MARKER not in said(raised.value)


@pytest.mark.parametrize(("table", "key"), SECRETS)
@pytest.mark.parametrize("wrong", [{"a": MARKER}, [[MARKER]], [1, MARKER], 12])
def test_errors_about_a_secret_do_not_show_it(table: str, key: str, wrong: Any) -> None:
    made = document()
    place_in(made, table)[key] = wrong
    with pytest.raises(ConsumerdError) as raised:
        parse(made, "c.toml", environment=False)
    assert f"{table}.{key}" in str(raised.value)
    assert MARKER not in said(raised.value)


def test_errors_elsewhere_show_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for table in MODELS:
        made = document()
        place_in(made, table)["unknown"] = MARKER
        with pytest.raises(ConsumerdError) as raised:
            parse(made, "c.toml", environment=False)
        assert f"{table}.unknown" in str(raised.value)
        assert MARKER not in said(raised.value)
    monkeypatch.setenv("CONSUMERD_ZOOKEEPER__AUTH", f'["{MARKER}')
    with pytest.raises(ConsumerdError, match="CONSUMERD_ZOOKEEPER__AUTH") as raised:
        parse(document(), "c.toml")
    assert MARKER not in said(raised.value)


def test_the_configuration_shows_no_secret() -> None:
    config = parse(document(), "c.toml", environment=False)
    for shown in (repr(config), str(config), repr(config.replace(handler=None).plain())):
        assert MARKER not in shown
    assert MARKER not in repr(compare(config, parse({**document(), "kafka": {}}, "c.toml", environment=False)))


def test_commands_show_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.toml"
    path.write_text(toml(document()))
    monkeypatch.setenv("CONSUMERD_KAFKA__SASL__PASSWORD", MARKER)
    shown = ""
    for arguments in (["config", "show"], ["config", "show", "--json"], ["config", "show", "--origin"], ["check"]):
        result = CliRunner().invoke(cli, [*arguments, "-c", str(path)])
        shown += result.output + ("" if result.exception is None else said(result.exception))
    assert "zookeeper.auth" in shown  # by config show
    assert "health.tls" in shown  # by check: there are no such files
    assert MARKER not in shown


def test_parts_show_no_secret(tmp_path: Path) -> None:
    config = parse(document(), "c.toml", environment=False)
    assert config.kafka.sasl is not None
    assert config.kafka.tls is not None
    access = build_access(config.health.replace(listen="127.0.0.1:0"))
    for part in (
        build_session(config.zookeeper.replace(tls=None), clock=SystemClock(), rng=RNG),
        build_mechanism(config.kafka.sasl),
        access,
        build_handler(config, clock=SystemClock(), rng=RNG),
        key_password(config.kafka.tls, "kafka.tls"),
    ):
        assert MARKER not in repr(part)
    broken = tmp_path / "broken.pem"
    broken.write_text("not a key")
    section = config.kafka.tls.replace(certificate=broken, key=broken)
    with pytest.raises(ConsumerdError) as raised:
        build_tls(section, "kafka.tls")
    assert MARKER not in said(raised.value)


def test_problems_of_a_check_show_no_secret(tmp_path: Path) -> None:
    made = document()
    made["zookeeper"]["auth"] = [MARKER]
    path = tmp_path / "c.toml"
    path.write_text(toml(made))
    checked = check_daemon(read_document(path), "c.toml")
    assert any("zookeeper.auth" in each.sentence for each in checked.problems)
    assert MARKER not in repr(checked.problems) + repr(checked.config)


def test_secret_option_of_a_handler_can_be_given_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dsn").write_text(f"{MARKER}\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    name = f"{__name__}:Sink"
    sink = load_handler(name, {"dsn_file": "dsn"})
    assert isinstance(sink, Sink)
    assert sink.dsn == MARKER
    with pytest.raises(ConsumerdError, match="exactly one of the options 'dsn' and 'dsn_file'") as raised:
        load_handler(name, {"dsn": MARKER, "dsn_file": "dsn"})
    assert MARKER not in said(raised.value)
    with pytest.raises(ConsumerdError, match=r"handler\.options\.dsn_file: cannot read none: No such file"):
        load_handler(name, {"dsn_file": "none"})


def test_encrypted_key_opens_with_its_password_only(tmp_path: Path) -> None:
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    issued = trustme.CA().issue_cert("localhost")
    issued.cert_chain_pems[0].write_to_path(certificate)
    plain = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    lock = serialization.BestAvailableEncryption(MARKER.encode())
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    key.write_bytes(plain.private_bytes(pem, form, lock))
    files: dict[str, Any] = {"certificate": certificate, "key": key}
    build_tls(TlsSection(**files, key_password=SecretStr(MARKER)), "kafka.tls")
    build_server_tls(HealthTlsSection(**files, key_password=SecretStr(MARKER)))
    wrong = f"{MARKER}-wrong"
    for section in (TlsSection(**files), TlsSection(**files, key_password=SecretStr(wrong))):
        with pytest.raises(ConsumerdError, match=r"kafka\.tls\.certificate") as raised:
            build_tls(section, "kafka.tls")
        assert MARKER not in said(raised.value)
    with pytest.raises(ConsumerdError, match=r"set health\.tls\.key_password or key_password_file"):
        build_server_tls(HealthTlsSection(**files))


class Hiding(Section):
    """Secrets in other types, and a text that is none."""

    one: SecretStr | None = None
    several: tuple[SecretStr, ...] = ()
    within: dict[str, list[SecretStr]] | None = None
    shown: str | None = None


def test_secrets_are_known_within_other_types() -> None:
    assert Hiding.secret_keys() == ["one", "several", "within"]


def test_operations_names_every_secret() -> None:
    page = (Path(__file__).parents[4] / "docs" / "operations.md").read_text("utf-8")
    section = page.partition("### Secrets\n")[2].partition("\n## ")[0]
    assert SECRETS
    for table, key in SECRETS:
        if key == "key_password":
            assert f"`{table}`" in section
        else:
            assert f"`{table}.{key}`" in section, (table, key)
