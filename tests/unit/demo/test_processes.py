from __future__ import annotations

import os
import signal
import socket
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.demo.errors import ChildError
from consumerd.demo.processes import BrokerProcess, DaemonProcess, clean_environment, format_toml, parse_event

texts = st.text(st.characters(exclude_categories=["Cs"]))
values = st.one_of(
    texts,
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.lists(st.integers(0, 9)),
    st.dictionaries(texts, st.integers(0, 9)),
)


@given(st.dictionaries(st.sampled_from(["group", "log"]), st.dictionaries(texts, values)))
def test_reads_back_its_toml(tables: dict[str, dict[str, Any]]) -> None:
    assert tomllib.loads(format_toml(tables)) == tables


def test_omits_keys_that_are_none() -> None:
    assert tomllib.loads(format_toml({"a": {"b": None, "c": 1}})) == {"a": {"c": 1}}


def test_ignores_environment_overrides_of_the_user() -> None:
    environ = {"PATH": "/bin", "CONSUMERD_GROUP__ID": "mine", "NOTIFY_SOCKET": "/run/x", "CONSUMERD_PURE": "1"}
    assert clean_environment(environ) == {"PATH": "/bin", "CONSUMERD_PURE": "1"}


def test_reads_events_as_json_objects_with_a_name() -> None:
    assert parse_event('{"event": "ready", "port": 1}') == {"event": "ready", "port": 1}
    for line in ("ready", '{"port": 1}', "{", "[]", '"event"', "", '{"event":' + "[" * 100_000):
        assert parse_event(line) is None


async def test_restarts_a_broker_on_its_port(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, None, broker_id=3, settings={"log.flush.interval": 1})
    async with broker:
        port = broker.port
        socket.create_connection(("127.0.0.1", port), 5).close()
        with pytest.raises(ChildError, match="is already running"):
            await broker.start()
        broker.kill()
        assert broker.returncode == -signal.SIGKILL
        await broker.restart()
        assert broker.port == port
        assert broker.address == f"127.0.0.1:{port}"
        assert {event["event"] for event in broker.events()} >= {"ready"}
    assert broker.returncode == 0
    assert (tmp_path / "data").is_dir()


async def test_takes_another_port_if_the_free_one_was_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        broker = BrokerProcess(tmp_path, None)
        broker.port = taken.getsockname()[1]
        async with broker:
            assert broker.port != taken.getsockname()[1]
        named = BrokerProcess(tmp_path, None, port=taken.getsockname()[1])
        with pytest.raises(ChildError, match=r"broker-0 ended early with status 6: .*in use"):
            await named.start()


async def test_reports_why_a_daemon_cannot_start(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path, {"group": {"id": "g", "topics": {"t": 1}}, "fetch": {"sise": 1}})
    with pytest.raises(ChildError, match=r"daemon ended early with status 3: .*fetch\.sise"):
        await daemon.start()
    assert daemon.returncode == 3
    assert os.path.exists(daemon.config_path)
